//! The policy file: an error names a line of it, and a script that is put into a VM's chain and taken out again leaves
//! the policy as it was.
//!
//! Input: the name of a script up to NUL, then the file.

use std::time::Duration;

use pve_atomicops::settings::{Policy, chain, resolve};
use pve_atomicops::vmconf::Vmid;

use super::input::Input;

/// The property.
pub fn holds(data: &[u8]) {
    let mut input = Input::new(data);
    let script = input.text();
    let Ok(text) = std::str::from_utf8(input.rest()) else {
        return;
    };
    let (Some(vmid), Some(other)) = (Vmid::new(101), Vmid::new(102)) else {
        panic!("101 and 102 are IDs");
    };
    let policy = match Policy::parse("policy.toml", text) {
        Ok(policy) => policy,
        Err(error) => {
            let lines = text.split('\n').count();
            assert!(error.line >= 1 && error.line <= lines, "{error:?}");
            assert!(error.to_string().contains("policy.toml"), "{error}");
            // Nothing to say about a chain in a file that is not used, but asking must end.
            let _ = chain::prepend(text, vmid, &script, &[]);
            return;
        }
    };
    // Whoever puts a script in has looked at it: it is a path or a volume ID.
    let quoted = serde_json::to_string(&script).unwrap_or_default();
    if Policy::parse("script", &format!("chain = [{quoted}]")).is_err() {
        return;
    }
    let settings = resolve([&policy], vmid);
    assert!(settings.timeout <= Duration::from_secs(3600));
    let Ok(Some(longer)) = chain::prepend(text, vmid, &script, &settings.chain) else {
        return;
    };
    let Ok(with) = Policy::parse("policy.toml", &longer) else {
        panic!("unreadable afterwards:\n{longer}");
    };
    let mut expected = settings.clone();
    expected.chain.insert(0, script.clone());
    assert_eq!(resolve([&with], vmid), expected, "{longer}");
    assert_eq!(
        resolve([&with], other),
        resolve([&policy], other),
        "{longer}"
    );
    let general = without_own(text);
    let Ok(Some(shorter)) = chain::remove(&longer, vmid, &script, &general) else {
        panic!("it cannot be taken out:\n{longer}");
    };
    let Ok(without) = Policy::parse("policy.toml", &shorter) else {
        panic!("unreadable in the end:\n{shorter}");
    };
    assert_eq!(resolve([&without], vmid), settings, "{shorter}");
    assert_eq!(
        resolve([&without], other),
        resolve([&policy], other),
        "{shorter}"
    );
}

/// The chain that is in force for a VM without one of its own.
fn without_own(text: &str) -> Vec<String> {
    let stranger = Vmid::new(999_999_999);
    let policy = Policy::parse("policy.toml", text);
    match (policy, stranger) {
        (Ok(policy), Some(stranger)) => resolve([&policy], stranger).chain,
        _ => Vec::new(),
    }
}
