//! `Hostpci::parse` accepts and refuses what Proxmox does: every row of `hostpci.jsonl`.

use pve_atomicops::vmconf::HostpciIndex;
use pve_atomicops::vmconf::hostpci::{Hostpci, is_unset};
use serde_json::Value;

/// Messages of Proxmox that come from the schema alone.
fn is_schema_message(message: &str) -> bool {
    message == "format error"
        || message.starts_with("duplicate key in comma-separated list property: ")
        || message == "missing key in comma-separated list property"
}

/// Messages that Proxmox gives for an entry right after the schema has accepted it.
fn clashes(entry: &Hostpci) -> bool {
    entry.host.is_some() == entry.mapping.is_some()
}

#[test]
fn every_vector_is_judged_as_proxmox_does() {
    let (mut refused, mut accepted) = (0, 0);
    for line in include_str!("../vectors/hostpci.jsonl").lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let name = row["name"].as_str().unwrap();
        let error = row["result"]["error"].as_str();
        // Proxmox reads the entries in order of their index and stops at the first error. Unset values it never
        // reads at all.
        let entries: Vec<Result<Hostpci, String>> = HostpciIndex::all()
            .filter_map(|index| row["conf"][index.to_string()].as_str())
            .filter(|value| !is_unset(value))
            .map(|value| Hostpci::parse(value).map_err(|error| error.to_string()))
            .collect();
        let first_refusal = entries.iter().find_map(|entry| entry.as_ref().err());
        match error {
            Some(message) if is_schema_message(message) => {
                assert_eq!(first_refusal.map(String::as_str), Some(message), "{name}");
                refused += 1;
            }
            Some(_) => {
                // The message is about an entry that the schema accepted; later ones were never looked at.
                assert!(
                    entries.first().is_some_and(Result::is_ok),
                    "{name}: {first_refusal:?}"
                );
                accepted += 1;
            }
            None => {
                assert_eq!(first_refusal, None, "{name}");
                accepted += 1;
            }
        }
        if matches!(
            error,
            Some(
                "Cannot set both 'host' and 'mapping'." | "Either 'host' or 'mapping' must be set."
            )
        ) {
            let before_clash = entries
                .iter()
                .take_while(|entry| entry.as_ref().map_or(true, |entry| !clashes(entry)));
            assert!(before_clash.clone().all(Result::is_ok), "{name}");
            assert!(before_clash.count() < entries.len(), "{name}");
        }
    }
    println!("hostpci.jsonl: {refused} rows refused by the schema, {accepted} accepted");
    assert_eq!((refused, accepted), (66, 383));
}
