//! `args`: reading raw QEMU devices ends and keeps within what was written; words that are quoted come back.

use pve_atomicops::vmconf::args::{Options, RawDevices, shellwords};

/// The property.
pub fn holds(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let words = shellwords(&text);
    if let Some(words) = &words {
        assert!(words.iter().map(String::len).sum::<usize>() <= text.len());
        let quoted: Vec<_> = words.iter().map(|word| quote(word)).collect();
        assert_eq!(
            shellwords(&quoted.join(" ")).as_ref(),
            Some(words),
            "{quoted:?}"
        );
        for word in words {
            options(word);
        }
    }
    let devices = RawDevices::parse(&text);
    assert_eq!(RawDevices::parse(&text), devices, "reading twice");
    let count = words.map_or(0, |words| words.len());
    assert!(devices.ports().count() + devices.vfio().count() <= 2 * count);
    options(&text);
}

/// In double quotes a backslash makes the next character plain.
fn quote(word: &str) -> String {
    format!("\"{}\"", word.replace('\\', r"\\").replace('"', "\\\""))
}

fn options(text: &str) {
    let mut options = Options::parse(text, "driver");
    options.set("driver", "x");
    assert_eq!(options.get("driver"), Some("x"), "{text:?}");
    if let Some(mut options) = Options::from_json(text) {
        options.set("id", "y");
        assert_eq!(options.get("id"), Some("y"), "{text:?}");
    }
}
