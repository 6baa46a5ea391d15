//! Text from files, made safe to print.
//!
//! Names, tags and values in a VM's configuration are written by people with limited rights. None of them may forge a
//! line of a task log, move a terminal's cursor, turn text around, or smuggle words into a command that is printed for
//! copying.

use std::fmt::Write as _;
use std::io::{self, Write};

/// Whether a character could change how the text around it is shown: controls (C0, DEL, C1), line and paragraph
/// separators, bidirectional controls, and other invisible format characters.
pub fn is_unsafe(c: char) -> bool {
    matches!(c,
        '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}')
}

/// Whether a text is printable ASCII, as nearly every one is: asked first, since it is told without decoding characters.
///
/// All bytes are looked at, so that the compiler may take sixteen of them at once.
fn is_plain(text: &str) -> bool {
    let plain = |byte| matches!(byte, b' '..=b'~');
    text.bytes().fold(true, |all, byte| all & plain(byte))
}

/// Whether a text has no unsafe character.
pub fn is_safe(text: &str) -> bool {
    is_plain(text) || !text.chars().any(is_unsafe)
}

/// The text with every unsafe character as `\xHH` or `\u{HHHH}`, and a backslash doubled so that the two can't be
/// confused.
pub fn text(text: &str) -> String {
    if is_plain(text) && !text.as_bytes().contains(&b'\\') {
        return text.to_owned();
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => escaped.push_str("\\\\"),
            c if is_unsafe(c) && u32::from(c) < 0x100 => {
                let _ = write!(escaped, "\\x{:02x}", u32::from(c));
            }
            c if is_unsafe(c) => {
                let _ = write!(escaped, "\\u{{{:x}}}", u32::from(c));
            }
            c => escaped.push(c),
        }
    }
    escaped
}

/// A text for one place in a line: escaped, and cut after `limit` characters with `…`.
pub fn short(value: &str, limit: usize) -> String {
    match value.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", text(value.get(..end).unwrap_or_default())),
        None => text(value),
    }
}

/// One word of a POSIX shell command line: bare where every character is harmless, else in quotes.
pub fn shell_word(word: &str) -> String {
    let harmless = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./_-".contains(c);
    if !word.is_empty() && word.chars().all(harmless) {
        return word.to_owned();
    }
    if is_safe(word) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    // ANSI-C quoting: the only form that keeps control characters on one visible line.
    let mut quoted = String::from("$'");
    for c in word.chars() {
        match c {
            '\'' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            c if is_unsafe(c) => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(quoted, "\\x{byte:02x}");
                }
            }
            c => quoted.push(c),
        }
    }
    quoted.push('\'');
    quoted
}

/// A command line for copying, each word quoted where it must be.
pub fn command<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> String {
    let words: Vec<_> = words
        .into_iter()
        .map(|word| shell_word(word.as_ref()))
        .collect();
    words.join(" ")
}

/// A value as indented JSON with a final newline; unsafe characters are written as `\uXXXX`, so that looking at the
/// output is as harmless as parsing it.
pub fn json(value: &impl serde::Serialize) -> Result<String, serde_json::Error> {
    let mut bytes = Vec::new();
    write_json(&mut bytes, value).map_err(serde::ser::Error::custom)?;
    String::from_utf8(bytes).map_err(serde::ser::Error::custom)
}

/// Writes what [`json`] gives.
pub fn write_json(out: &mut impl Write, value: &impl serde::Serialize) -> io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, Harmless::default());
    value.serialize(&mut serializer)?;
    out.write_all(b"\n")
}

/// The indented layout, with unsafe characters escaped.
#[derive(Default)]
struct Harmless<'a>(serde_json::ser::PrettyFormatter<'a>);

impl serde_json::ser::Formatter for Harmless<'_> {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if is_plain(fragment) {
            return out.write_all(fragment.as_bytes());
        }
        let mut rest = fragment;
        while let Some(at) = rest.find(is_unsafe) {
            let (safe, after) = rest.split_at(at);
            out.write_all(safe.as_bytes())?;
            let mut characters = after.chars();
            if let Some(c) = characters.next() {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    write!(out, "\\u{unit:04x}")?;
                }
            }
            rest = characters.as_str();
        }
        out.write_all(rest.as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

#[cfg(test)]
mod tests {
    use super::{command, json, shell_word, short, text};

    #[test]
    fn nothing_that_moves_a_cursor_or_forges_a_line_stays() {
        assert_eq!(
            text("a\nWARN: b\x1b[2J\u{9b}\u{202e}\\"),
            r"a\x0aWARN: b\x1b[2J\x9b\u{202e}\\"
        );
        assert_eq!(text("Größe 128 ☃"), "Größe 128 ☃");
        assert_eq!(short("abcdef\n", 3), "abc…");
        assert_eq!(short("abc", 3), "abc");
    }

    #[test]
    fn shell_words_are_quoted_where_they_must_be() {
        assert_eq!(shell_word("0000:0b:00.0,pcie=1"), "0000:0b:00.0,pcie=1");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("a;b"), "'a;b'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!(shell_word("a\nb'"), r"$'a\x0ab\''");
        assert_eq!(command(["qm", "set", "$(reboot)"]), "qm set '$(reboot)'");
    }

    #[test]
    fn json_is_harmless_to_look_at_and_reads_back() {
        let hostile = "\u{9b}31m\u{202e}\u{e0001}\n\"";
        let written = json(&hostile).unwrap();
        assert!(written.trim_end().is_ascii(), "{written}");
        assert_eq!(serde_json::from_str::<String>(&written).unwrap(), hostile);
    }
}
