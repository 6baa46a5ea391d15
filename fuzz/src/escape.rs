//! Text from files that is printed: no control character comes through, no two texts look the same, JSON and commands
//! read back as what they were made from.

use pve_atomicops::report::diff::unified;
use pve_atomicops::report::escape::{command, json, short, text};
use pve_atomicops::report::style::Palette;

use super::input::Input;
use super::shell;

/// The property.
pub fn holds(data: &[u8]) {
    let mut input = Input::new(data);
    let limit = usize::from(input.byte());
    let raw = String::from_utf8_lossy(input.rest());
    let shown = text(&raw);
    assert_harmless(&shown, "");
    assert_eq!(unescape(&shown).as_deref(), Some(&*raw), "{shown}");
    let cut = short(&raw, limit);
    assert_harmless(&cut, "");
    assert!(cut.chars().count() <= limit * 10 + 1, "{cut}");

    let written = json(&raw).unwrap_or_default();
    assert_harmless(written.trim_end_matches('\n'), "");
    assert_eq!(
        serde_json::from_str::<String>(&written).ok().as_deref(),
        Some(&*raw)
    );
    let nested = serde_json::json!({ raw.clone(): [&*raw, { "a": &*raw }] });
    let written = json(&nested).unwrap_or_default();
    assert_harmless(&written, "\n");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&written).ok(),
        Some(nested)
    );

    let words: Vec<String> = raw.split('\0').map(str::to_owned).collect();
    let line = command(&words);
    assert_harmless(&line, "");
    assert_eq!(shell::split(&line), Ok(words), "{line}");

    let (before, after) = input.rest().split_at(input.rest().len() / 2);
    let diff = unified("/etc/pve/x", before, after, Palette::PLAIN);
    assert_harmless(&diff, "\n\t");
    assert_eq!(diff.is_empty(), before == after);
    for line in diff.lines().skip(2) {
        assert!(
            line.starts_with(['+', '-', ' ', '\\']) || line.starts_with("@@ "),
            "{line}"
        );
    }
}

/// Nothing in a text could change how the text around it is shown, but the characters in `allowed`.
///
/// The list is kept apart from the program's own on purpose.
pub fn assert_harmless(text: &str, allowed: &str) {
    for c in text.chars().filter(|c| !allowed.contains(*c)) {
        let bidirectional = "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}";
        assert!(
            !c.is_control()
                && !bidirectional.contains(c)
                && !"\u{2028}\u{2029}\u{feff}".contains(c),
            "{c:?} in {text:?}"
        );
    }
}

/// The text that an escaped one was made from.
fn unescape(shown: &str) -> Option<String> {
    let (mut raw, mut rest) = (String::new(), shown);
    while let Some((plain, behind)) = rest.split_once('\\') {
        raw.push_str(plain);
        let (number, behind) = match behind.chars().next()? {
            '\\' => {
                raw.push('\\');
                rest = &behind[1..];
                continue;
            }
            'x' => (behind.get(1..3)?, behind.get(3..)?),
            'u' => behind.strip_prefix("u{")?.split_once('}')?,
            _ => return None,
        };
        raw.push(char::from_u32(u32::from_str_radix(number, 16).ok()?)?);
        rest = behind;
    }
    raw.push_str(rest);
    Some(raw)
}
