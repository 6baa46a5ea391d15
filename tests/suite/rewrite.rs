//! `Document::edit` changes the intended keys and nothing else: every row of `rewrite.jsonl`, and random texts.

use std::collections::BTreeMap;

use proptest::prelude::*;
use pve_atomicops::vmconf::{Document, HostpciIndex};
use serde_json::{Map, Value};

/// Whether a line of the main section is, or tries to be, an entry of one of these keys.
fn is_line_of(line: &[u8], keys: &[String]) -> bool {
    keys.iter()
        .any(|key| line.starts_with(format!("{key}:").as_bytes()))
}

/// A header as Proxmox knows it, told by the brackets alone: enough for texts whose brackets are all headers.
fn is_header(line: &[u8]) -> bool {
    let line = line.trim_ascii_end();
    line.starts_with(b"[")
        && line.ends_with(b"]")
        && line.iter().position(|byte| *byte == b']') == Some(line.len() - 1)
}

/// The main section without the lines of these keys, and everything from the first header on.
fn remainder(text: &[u8], keys: &[String]) -> (Vec<Vec<u8>>, Vec<u8>) {
    let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    let main = lines
        .iter()
        .position(|line| is_header(line))
        .unwrap_or(lines.len());
    let (main, rest) = lines.split_at(main);
    let kept = main
        .iter()
        .filter(|line| !is_line_of(line, keys))
        .map(|line| line.to_vec())
        .collect();
    (kept, rest.concat())
}

#[test]
fn every_vector_reads_as_proxmox_has_to_read_it() {
    let mut rows = 0;
    for line in include_str!("../vectors/rewrite.jsonl").lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let name = row["name"].as_str().unwrap();
        let before = Document::parse(row["raw"].as_str().unwrap().as_bytes());
        let set: BTreeMap<HostpciIndex, Option<String>> =
            serde_json::from_value(row["set"].clone()).unwrap();
        let keys: Vec<String> = set.keys().map(ToString::to_string).collect();

        let edit = before.edit(&set).unwrap();
        assert_eq!(edit.before, before.to_bytes(), "{name}");
        let after = Document::parse(&edit.after);
        let (old, new) = (before.decode(), after.decode());
        let main: Map<String, Value> = new
            .main
            .iter()
            .map(|(key, value)| (key.to_owned(), Value::from(value)))
            .collect();
        assert_eq!(Value::Object(main), row["parsed_after"], "{name}");
        assert_eq!(new.pending, old.pending, "{name}");
        assert_eq!(new.pending_delete, old.pending_delete, "{name}");
        assert_eq!(new.snapshots, old.snapshots, "{name}");
        assert_eq!(
            remainder(&edit.after, &keys),
            remainder(&edit.before, &keys),
            "{name}"
        );

        let back = after.revert(&edit.changes).unwrap();
        assert_eq!(back.after, edit.before, "{name}: reverted");
        rows += 1;
    }
    println!("rewrite.jsonl: {rows} rows rewritten and reverted");
    assert_eq!(rows, 54);
}

/// Lines that matter to the reader, without their endings.
fn interesting_line() -> impl Strategy<Value = Vec<u8>> {
    let address = prop::sample::select(vec![
        "0b:00",
        "0b:00.0,pcie=1",
        "mapping=gpu",
        "zz",
        "",
        " ",
        "0c:00 snapstate: delete",
    ]);
    let entry = (0..18u8, address, prop::sample::select(vec!["", " ", "\t"]))
        .prop_map(|(index, value, gap)| format!("hostpci{index}:{gap}{value}").into_bytes());
    let other = prop::sample::select(vec![
        "",
        "  ",
        "machine: q35",
        "args: hostpci0: 0b:00",
        "boot: order=hostpci0",
        "# hostpci0: 0b:00",
        "#",
        "description: x",
        "[PENDING]",
        "[snap]",
        "[special:cloudinit]",
        "[1]",
        " [PENDING]",
        "delete: hostpci0",
        "zzz: 1",
        "\r",
    ])
    .prop_map(|text| text.as_bytes().to_vec());
    let noise = prop::collection::vec(
        any::<u8>().prop_filter("no line end, no header", |byte| !b"\n[]".contains(byte)),
        0..12,
    );
    prop_oneof![4 => entry, 3 => other, 1 => noise]
}

fn interesting_text() -> impl Strategy<Value = Vec<u8>> {
    let ending = prop_oneof![4 => Just("\n"), 1 => Just("\r\n")];
    (
        prop::collection::vec((interesting_line(), ending), 0..14),
        interesting_line(),
    )
        .prop_map(|(lines, last)| {
            let mut text = Vec::new();
            for (line, ending) in lines {
                text.extend(line);
                text.extend(ending.as_bytes());
            }
            text.extend(last);
            text
        })
}

fn edits() -> impl Strategy<Value = BTreeMap<HostpciIndex, Option<String>>> {
    let index = (0..16u8).prop_map(|number| HostpciIndex::new(number).unwrap());
    let value = prop::option::of(prop::sample::select(vec![
        "01:00.0,pcie=1".to_owned(),
        "0b:00".to_owned(),
        "mapping=other".to_owned(),
        "01:00,romfile=ü.rom".to_owned(),
    ]));
    prop::collection::btree_map(index, value, 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_bytes_come_back_as_they_were(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let document = Document::parse(&bytes);
        document.decode();
        prop_assert_eq!(document.to_bytes(), bytes);
    }

    #[test]
    fn edits_touch_their_keys_in_the_main_section_only(text in interesting_text(), set in edits()) {
        let before = Document::parse(&text);
        let edit = before.edit(&set).unwrap();
        let after = Document::parse(&edit.after);
        let keys: Vec<String> = set.keys().map(ToString::to_string).collect();

        let (old_main, old_rest) = remainder(&text, &keys);
        let (new_main, new_rest) = remainder(&edit.after, &keys);
        prop_assert_eq!(new_rest, old_rest);
        // The last line of a text without a line feed at its end may get one.
        let strip = |lines: Vec<Vec<u8>>| -> Vec<Vec<u8>> {
            lines.into_iter().map(|line| line.trim_ascii_end().to_vec()).collect()
        };
        prop_assert_eq!(strip(new_main), strip(old_main));

        let (old, new) = (before.decode(), after.decode());
        for (key, value) in old.main.iter().filter(|(key, _)| !keys.iter().any(|k| k == key)) {
            prop_assert_eq!(new.main.get(key), Some(value));
        }
        for (key, value) in &set {
            prop_assert_eq!(new.main.get(&key.to_string()), value.as_deref());
        }
        prop_assert_eq!(new.pending, old.pending);
        prop_assert_eq!(new.snapshots, old.snapshots);
    }

    #[test]
    fn reverting_an_edit_gives_the_bytes_back(text in interesting_text(), set in edits()) {
        let edit = Document::parse(&text).edit(&set).unwrap();
        let back = Document::parse(&edit.after).revert(&edit.changes).unwrap();
        prop_assert_eq!(back.after, text);
    }
}
