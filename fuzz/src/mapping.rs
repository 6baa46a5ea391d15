//! `/etc/pve/mapping/pci.cfg`: what is kept fits Proxmox's schema, and narrowing an entry changes its place only.

use pve_atomicops::plan::{mapping_words, narrow_mapping};
use pve_atomicops::report::escape;
use pve_atomicops::vmconf::mapping::{MapEntry, parse};

use super::shell;

/// The property.
pub fn holds(data: &[u8]) {
    let (mappings, warnings) = parse(data);
    let lines = data.split(|byte| *byte == b'\n').count();
    let mut last = 0;
    for warning in &warnings {
        assert!(
            warning.line >= last.max(1) && warning.line <= lines,
            "{warning:?}"
        );
        assert!(!warning.text.contains('\n'), "{warning:?}");
        last = warning.line;
    }
    for (name, mapping) in &mappings {
        assert!(
            !name.is_empty()
                && !name.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/'),
            "{name:?}"
        );
        assert!(!mapping.map.is_empty(), "{name:?} without an entry");
        for value in &mapping.map {
            entry(value);
        }
        let words = mapping_words(name, &mapping.map);
        assert_eq!(shell::split(&escape::command(&words)).as_ref(), Ok(&words));
    }
}

fn entry(value: &str) {
    let Ok(entry) = MapEntry::parse(value) else {
        panic!("{value:?} was kept");
    };
    let narrow = narrow_mapping(
        value,
        "0000:0b:00.0",
        "1002:744c",
        Some("1da2:e471"),
        Some(14),
    );
    let Ok(narrowed) = MapEntry::parse(&narrow) else {
        panic!("{value:?} became {narrow:?}");
    };
    let expected = MapEntry {
        path: "0000:0b:00.0".to_owned(),
        id: "1002:744c".to_owned(),
        subsystem_id: entry.subsystem_id.as_ref().map(|_| "1da2:e471".to_owned()),
        iommugroup: entry.iommugroup.as_ref().map(|_| "14".to_owned()),
        ..entry
    };
    assert_eq!(narrowed, expected, "{value:?}");
}
