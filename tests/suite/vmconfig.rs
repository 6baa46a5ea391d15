//! `Document::decode` reads what Proxmox reads: every row of `vmconfig.jsonl`.

use pve_atomicops::vmconf::decode::Section;
use pve_atomicops::vmconf::{Document, HostpciIndex};
use serde_json::{Map, Value};

/// The keys that the vectors record, besides `hostpciN`.
const KEYS: [&str; 14] = [
    "machine",
    "ostype",
    "bios",
    "vga",
    "boot",
    "lock",
    "vmstate",
    "template",
    "tags",
    "hookscript",
    "name",
    "description",
    "args",
    "runningmachine",
];

fn recorded(section: &Section) -> Value {
    let entries: Map<String, Value> = section
        .iter()
        .filter(|(key, _)| KEYS.contains(key) || HostpciIndex::from_key(key).is_some())
        .map(|(key, value)| (key.to_owned(), Value::from(value)))
        .collect();
    Value::Object(entries)
}

#[test]
fn every_vector_reads_as_in_proxmox() {
    let mut rows = 0;
    for line in include_str!("../vectors/vmconfig.jsonl").lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let name = row["name"].as_str().unwrap();
        let raw = row["raw"].as_str().unwrap().as_bytes();
        let document = Document::parse(raw);
        assert_eq!(document.to_bytes(), raw, "{name}");
        let config = document.decode();
        assert_eq!(recorded(&config.main), row["main"], "{name}: main");
        assert_eq!(recorded(&config.pending), row["pending"], "{name}: pending");
        assert_eq!(
            config.pending_delete.as_deref(),
            row.get("pending_delete").and_then(Value::as_str),
            "{name}: pending_delete"
        );
        assert_eq!(
            Value::from(config.snapshots),
            row["snapshots"],
            "{name}: snapshots"
        );
        assert_eq!(
            Value::from(config.warnings.len()),
            row["warnings"],
            "{name}: {:?}",
            config.warnings
        );
        rows += 1;
    }
    println!("vmconfig.jsonl: {rows} rows read as in Proxmox");
    assert_eq!(rows, 187);
}
