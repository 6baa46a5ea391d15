//! The text of `lspci`: reading ends, errors name a line of it, and what it describes can be followed upwards.

use pve_atomicops::pci::lspci::parse;
use pve_atomicops::pci::roles::trace;
use pve_atomicops::report::escape;
use pve_atomicops::rules::linux::Kernel;
use pve_atomicops::rules::vfio::host_answer;

use super::escape::assert_harmless;

/// The property.
pub fn holds(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let listing = match parse(&text) {
        Ok(listing) => listing,
        Err(error) => {
            let words = error.to_string();
            assert_harmless(&escape::text(&words), "");
            if let Some(line) = words.strip_prefix("line ") {
                let line = line.split(':').next().unwrap_or_default();
                let lines = text.lines().count();
                assert!(
                    line.parse()
                        .is_ok_and(|line: usize| line >= 1 && line <= lines),
                    "{words}"
                );
            }
            return;
        }
    };
    assert_eq!(parse(&text).as_ref(), Ok(&listing), "reading twice");
    assert!(listing.topology.iter().count() <= text.lines().count());
    let kernel = Kernel::parse("6.17.2-1-pve");
    for function in listing.topology.iter() {
        let addr = function.addr;
        assert_ne!(function.parent, Some(addr), "above itself");
        assert_ne!(function.physfn, Some(addr), "its own physical function");
        assert!(listing.topology.path_to(addr).len() <= 64);
        if let Ok(bridges) = trace(&listing.topology, addr).bridges {
            assert!(bridges.len() <= 64);
        }
        let answer = host_answer(&listing.topology, addr, &kernel);
        assert!(
            !answer.widths.is_empty() || answer.denial.is_some(),
            "{answer:?}"
        );
    }
    for (addr, name) in &listing.names {
        assert!(listing.topology.get(*addr).is_some());
        assert_harmless(&escape::text(name), "");
    }
}
