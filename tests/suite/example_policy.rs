//! `examples/atomicops.toml`: what it says is what the program does.

use pve_atomicops::settings::{Policy, Settings, Strategy, resolve};
use pve_atomicops::vmconf::Vmid;

const EXAMPLE: &str = include_str!("../../examples/atomicops.toml");

/// The example with its settings switched on: they start with `#` and no space.
fn switched_on() -> String {
    EXAMPLE
        .lines()
        .map(|line| {
            line.strip_prefix('#')
                .filter(|rest| !rest.starts_with(' '))
                .unwrap_or(line)
        })
        .map(|line| format!("{line}\n"))
        .collect()
}

fn vmid(number: &str) -> Vmid {
    number.parse().expect("a VM ID")
}

#[test]
fn as_shipped_it_sets_nothing() {
    let policy = Policy::parse("example", EXAMPLE).expect("the example");
    assert_eq!(policy, Policy::default());
}

#[test]
fn it_shows_the_defaults() {
    let policy = Policy::parse("example", &switched_on()).expect("the example, switched on");
    assert_eq!(resolve([&policy], vmid("100")), Settings::default());
    assert_ne!(resolve([&policy], vmid("101")), Settings::default());
    assert_eq!(resolve([&policy], vmid("101")).strategy, Strategy::Split);
}

#[test]
fn it_shows_every_key() {
    // The program's own message about an unknown key lists the keys there are.
    let error = Policy::parse("example", "nonsense = 1").expect_err("an unknown key");
    let (_, keys) = error
        .problem
        .split_once("the keys are ")
        .expect("the list of keys");
    let keys: Vec<_> = keys
        .split(", ")
        .take_while(|key| !key.starts_with("and "))
        .collect();
    assert!(keys.len() >= 9, "{keys:?}");
    for key in keys {
        let shown = EXAMPLE
            .lines()
            .filter(|line| line.starts_with(&format!("#{key} = ")))
            .count();
        assert!(shown >= 1, "{key} is not in the example");
    }
}
