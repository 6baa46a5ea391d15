//! A VM's configuration: reading keeps every byte, an edit touches `hostpciN` lines of the main section and nothing
//! else, and taking it back gives the bytes of before.
//!
//! Input: number of keys to set, for each a byte of index and kind and perhaps a value; then the file.

use std::collections::BTreeMap;

use pve_atomicops::vmconf::document::digest;
use pve_atomicops::vmconf::{Document, HostpciIndex, LineChange};

use super::input::Input;

/// Values to set that Proxmox takes.
const VALUES: [&str; 8] = [
    "0000:0b:00.0,pcie=1",
    "0b:00",
    "mapping=gpu,pcie=1",
    "0000:0b:00.0;0000:0b:00.1",
    "host=0000:44:00.0,pcie=1,x-vga=1,rombar=0,romfile=a.rom",
    "0000:0b:00.1,pcie=1,driver=keep",
    "pcie=1,0000:0b:00.0",
    "",
];

/// The property.
pub fn holds(data: &[u8]) {
    let mut input = Input::new(data);
    let mut set = BTreeMap::new();
    for _ in 0..input.byte() % 5 {
        let head = input.byte();
        let Some(index) = HostpciIndex::new(head & 15) else {
            panic!("there are 16 indices");
        };
        let value = match head >> 4 {
            0..4 => None,
            4..8 => Some(input.text()),
            other => VALUES
                .get(usize::from(other - 8))
                .map(|value| (*value).to_owned()),
        };
        set.insert(index, value);
    }
    let bytes = input.rest();
    let document = Document::parse(bytes);
    reading(bytes, &document);
    let Ok(edit) = document.edit(&set) else {
        return;
    };
    assert_eq!(edit.before, bytes, "what was before");
    assert_eq!(edit.is_empty(), edit.after == bytes, "an edit of nothing");
    let after = Document::parse(&edit.after);
    only_named_lines(&edit.before, &edit.after, &edit.changes);
    same_elsewhere(&document, &after, &set);
    let again = after.edit(&set);
    assert!(
        again.is_ok_and(|again| again.is_empty()),
        "a second time changes nothing"
    );

    // What the journal keeps is what is taken back.
    let kept = serde_json::to_string(&edit.changes).unwrap_or_default();
    let kept: Vec<LineChange> = serde_json::from_str(&kept).unwrap_or_default();
    assert_eq!(kept, edit.changes, "the journal's form");
    match after.revert(&kept) {
        Ok(back) => assert_eq!(
            String::from_utf8_lossy(&back.after),
            String::from_utf8_lossy(bytes),
            "taken back"
        ),
        Err(error) => panic!("it cannot be taken back: {error}"),
    }
}

fn reading(bytes: &[u8], document: &Document) {
    assert_eq!(document.to_bytes(), bytes);
    assert_eq!(document.lines().collect::<Vec<_>>().concat(), bytes);
    assert_eq!(document.digest(), digest(bytes));
    let config = document.decode();
    assert_eq!(config, Document::parse(bytes).decode(), "reading twice");
    let lines = document.lines().count();
    let mut last = 0;
    for warning in &config.warnings {
        assert!(warning.line >= last && warning.line <= lines, "{warning:?}");
        assert!(!warning.text.contains('\n'), "{warning:?}");
        last = warning.line;
    }
    for (key, value) in config.main.iter().chain(config.pending.iter()) {
        assert!(!key.is_empty(), "an empty key");
        assert!(
            key == "description" || !value.contains('\n'),
            "{key}: {value:?}"
        );
    }
}

/// Each line that the edit names is about its key, and with the old lines in the places of the new ones the text is that
/// of before, byte for byte.
fn only_named_lines(before: &[u8], after: &[u8], changes: &[LineChange]) {
    let mut text = after.to_vec();
    for change in changes.iter().rev() {
        for line in [&change.old, &change.new].into_iter().flatten() {
            let line = String::from_utf8_lossy(line);
            let line = line.strip_prefix('\n').unwrap_or(&line);
            assert!(line.starts_with(&format!("{}:", change.key)), "{line:?}");
            let body = line.strip_suffix('\n').unwrap_or(line);
            assert!(!body.contains('\n'), "{line:?}");
        }
        let new = change.new.as_deref().unwrap_or_default();
        let start = offset_of_line(&text, change.line_number) - usize::from(new.starts_with(b"\n"));
        let end = start + new.len();
        assert_eq!(text.get(start..end), Some(new), "{change:?}");
        text.splice(start..end, change.old.iter().flatten().copied());
    }
    assert_eq!(
        String::from_utf8_lossy(&text),
        String::from_utf8_lossy(before),
        "other lines"
    );
    assert_eq!(text, before, "other lines");
    if let Some(header) = first_header(before) {
        let tail = before.get(header..).unwrap_or_default();
        assert!(after.ends_with(tail), "behind the first header");
    }
}

fn offset_of_line(text: &[u8], number: usize) -> usize {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines.take(number - 1).map(<[u8]>::len).sum()
}

/// Where the first line stands that is a section's header beyond doubt.
fn first_header(text: &[u8]) -> Option<usize> {
    let mut offset = 0;
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let name = line
            .trim_ascii_end()
            .strip_prefix(b"[")
            .and_then(|line| line.strip_suffix(b"]"));
        if name.is_some_and(|name| {
            name.len() > 1
                && name[0].is_ascii_alphabetic()
                && name
                    .iter()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(byte))
        }) {
            return Some(offset);
        }
        offset += line.len();
    }
    None
}

fn same_elsewhere(
    before: &Document,
    after: &Document,
    set: &BTreeMap<HostpciIndex, Option<String>>,
) {
    let (before, after) = (before.decode(), after.decode());
    assert_eq!(after.pending, before.pending);
    assert_eq!(after.pending_delete, before.pending_delete);
    assert_eq!(after.snapshots, before.snapshots);
    for (index, value) in set {
        assert_eq!(
            after.main.get(&index.to_string()),
            value.as_deref(),
            "{index}"
        );
    }
    let named = |key: &str| set.keys().any(|index| index.to_string() == key);
    let others = |config: &pve_atomicops::vmconf::Config| -> BTreeMap<String, String> {
        let entries = config.main.iter().filter(|(key, _)| !named(key));
        entries
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    };
    assert_eq!(others(&after), others(&before));
}
