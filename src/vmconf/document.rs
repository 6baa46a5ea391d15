//! A VM configuration with every byte kept.
//!
//! A *document* is the file's bytes, cut into lines that keep their endings. A *section* begins at a header in column
//! one (`[PENDING]`, `[special:cloudinit]`, `[snapshot]`); what comes before the first header is the *main section*.
//! [`Document::decode`] says what Proxmox reads from it, [`Document::edit`] makes a new text.
//!
//! Lines are classified here, in the order in which `PVE::QemuServer::parse_vm_config` (qemu-server 9.2) tries its
//! patterns. Proxmox reads the file as bytes: a line ends at a line feed and nowhere else, only ASCII white space is
//! white space, and a carriage return is white space like any other.

use sha1::{Digest, Sha1};

use super::patterns;
use super::property_string::is_space;

/// The SHA-1 digest of a file's bytes in hexadecimal: what `qm set --digest` compares.
pub fn digest(bytes: &[u8]) -> String {
    use std::fmt::Write;

    Sha1::digest(bytes)
        .iter()
        .fold(String::with_capacity(40), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// A VM configuration file, every byte kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    bytes: Vec<u8>,
}

impl Document {
    /// Takes a file's bytes. Any bytes are a document, be they UTF-8 or not.
    pub fn parse(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
        }
    }

    /// The bytes, exactly as they came.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.bytes.clone()
    }

    /// The bytes, borrowed.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The digest of the bytes, as [`digest`] computes it.
    pub fn digest(&self) -> String {
        digest(&self.bytes)
    }

    /// The lines with their endings; the last one may have none.
    pub fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.split_inclusive(|byte| *byte == b'\n')
    }
}

/// A line without its line feed, as Proxmox understands it outside of special sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// Nothing but white space.
    Blank,
    /// A section header.
    Header(Header<'a>),
    /// A `#` line: one line of the section's description, encoded.
    Comment(&'a [u8]),
    /// A `description:` line, encoded.
    Description(&'a [u8]),
    /// A line that ends in `snapstate: prepare` or `snapstate: delete`.
    SnapState,
    /// An `args:` line.
    Args(&'a [u8]),
    /// A `delete:` line.
    Delete(&'a [u8]),
    /// `key: value`.
    Entry { key: &'a str, value: &'a [u8] },
    /// Anything else.
    Unparsable,
}

/// The name between the brackets of a header line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header<'a> {
    Pending,
    Special(&'a str),
    Snapshot(&'a str),
    Unknown(&'a [u8]),
}

impl<'a> Line<'a> {
    /// Classifies a line; its ending may still be there.
    pub(super) fn of(line: &'a [u8]) -> Self {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let trimmed = trim_end(line);
        let Some(first) = trimmed.first() else {
            return Self::Blank;
        };
        match first {
            b'[' => {
                if let Some(header) = header(trimmed) {
                    return Self::Header(header);
                }
            }
            b'#' => return Self::Comment(line.get(1..).unwrap_or_default()),
            _ => {}
        }
        if let Some(text) = after_key(trimmed, b"description:") {
            return Self::Description(text);
        }
        if is_snap_state(trimmed) {
            return Self::SnapState;
        }
        if let Some(text) = after_key(trimmed, b"args:") {
            return Self::Args(text);
        }
        if let Some(text) = after_key(trimmed, b"delete:") {
            return Self::Delete(text);
        }
        match entry(line, trimmed) {
            Some((key, value)) => Self::Entry { key, value },
            None => Self::Unparsable,
        }
    }
}

/// Without trailing white space.
fn trim_end(bytes: &[u8]) -> &[u8] {
    let length = bytes
        .iter()
        .rposition(|byte| !is_space(*byte))
        .map_or(0, |last| last + 1);
    bytes.get(..length).unwrap_or_default()
}

fn trim_start(bytes: &[u8]) -> &[u8] {
    let start = bytes
        .iter()
        .position(|byte| !is_space(*byte))
        .unwrap_or(bytes.len());
    bytes.get(start..).unwrap_or_default()
}

/// What follows `prefix` and white space, if there is anything.
fn after_key<'a>(trimmed: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let text = trim_start(trimmed.strip_prefix(prefix)?);
    (!text.is_empty()).then_some(text)
}

/// `^\[([^\]]*)\]\s*$` and the narrower patterns tried before it.
fn header(trimmed: &[u8]) -> Option<Header<'_>> {
    let name = trimmed.strip_prefix(b"[")?.strip_suffix(b"]")?;
    if name.contains(&b']') {
        return None;
    }
    let Ok(text) = std::str::from_utf8(name) else {
        return Some(Header::Unknown(name));
    };
    if text.eq_ignore_ascii_case("pending") {
        return Some(Header::Pending);
    }
    if let Some((word, special)) = text.split_once(':')
        && word.eq_ignore_ascii_case("special")
        && ["cloudinit", "fleecing"]
            .iter()
            .any(|known| special.eq_ignore_ascii_case(known))
    {
        return Some(Header::Special(special));
    }
    if patterns::is_config_id(text) {
        return Some(Header::Snapshot(text));
    }
    Some(Header::Unknown(name))
}

/// `snapstate:\s*(prepare|delete)\s*$`, wherever on the line it begins.
fn is_snap_state(trimmed: &[u8]) -> bool {
    let rest = trimmed
        .strip_suffix(b"prepare")
        .or_else(|| trimmed.strip_suffix(b"delete"));
    rest.is_some_and(|rest| trim_end(rest).ends_with(b"snapstate:"))
}

/// `^([a-z][a-z_\-]*\d*):\s*(.+?)\s*$`. A value of white space only is its last character, which the pattern has to
/// leave for it.
fn entry<'a>(line: &'a [u8], trimmed: &'a [u8]) -> Option<(&'a str, &'a [u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let key = line.get(..colon)?;
    let letters = key
        .iter()
        .position(|byte| !matches!(byte, b'a'..=b'z' | b'_' | b'-'))
        .unwrap_or(key.len());
    let starts_with_letter = key.first().is_some_and(u8::is_ascii_lowercase);
    if !starts_with_letter || !key.iter().skip(letters).all(u8::is_ascii_digit) {
        return None;
    }
    let value = match trimmed.get(colon + 1..) {
        Some(rest) if !rest.is_empty() => trim_start(rest),
        _ => line.get(colon + 1..)?.last_chunk::<1>()?,
    };
    Some((std::str::from_utf8(key).ok()?, value))
}

#[cfg(test)]
mod tests {
    use super::{Document, Header, Line, digest};

    #[test]
    fn digests_are_sha1_of_the_bytes() {
        assert_eq!(digest(b""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        assert_eq!(
            Document::parse(b"abc").digest(),
            "a9993e364706816aba3e25717850c26c9cd0d89d"
        );
    }

    #[test]
    fn headers() {
        let header = |text: &'static str| match Line::of(text.as_bytes()) {
            Line::Header(header) => Some(header),
            _ => None,
        };
        assert_eq!(header("[PeNdInG] \t\r\n"), Some(Header::Pending));
        assert_eq!(
            header("[SPECIAL:Cloudinit]"),
            Some(Header::Special("Cloudinit"))
        );
        assert_eq!(header("[snap-1]"), Some(Header::Snapshot("snap-1")));
        assert_eq!(header("[1st]"), Some(Header::Unknown(b"1st")));
        assert_eq!(header("[]"), Some(Header::Unknown(b"")));
        for text in [" [PENDING]", "[PENDING] x", "[a[b]]", "[snap", "["] {
            assert_eq!(header(text), None, "{text}");
        }
    }

    #[test]
    fn entries() {
        let entry = |text: &'static str| match Line::of(text.as_bytes()) {
            Line::Entry { key, value } => {
                Some((key, std::str::from_utf8(value).unwrap().to_owned()))
            }
            _ => None,
        };
        let of = |key, value: &str| Some((key, value.to_owned()));
        assert_eq!(entry("a-b_1:x y \x0c\r\n"), of("a-b_1", "x y"));
        assert_eq!(entry("hostpci0: \t\n"), of("hostpci0", "\t"));
        assert_eq!(entry("hostpci0: \r"), of("hostpci0", "\r"));
        assert_eq!(entry("description: "), of("description", " "));
        assert_eq!(entry("a::"), of("a", ":"));
        for text in [
            "a:", "a : b", " a: b", "A: b", "a1b: c", "_a: b", "1: b", ":b", "ab",
        ] {
            assert_eq!(entry(text), None, "{text}");
        }
    }

    #[test]
    fn special_lines() {
        assert_eq!(Line::of(b" \x0b\r\n"), Line::Blank);
        assert_eq!(Line::of(b"#x \r\n"), Line::Comment(b"x \r"));
        assert_eq!(Line::of(b"args: -a  b \n"), Line::Args(b"-a  b"));
        assert_eq!(Line::of(b"delete:x"), Line::Delete(b"x"));
        assert_eq!(Line::of(b"%% snapstate:delete\t"), Line::SnapState);
        assert_eq!(Line::of(b"args: snapstate: prepare"), Line::SnapState);
        assert_eq!(
            Line::of(b"description: snapstate: prepare"),
            Line::Description(b"snapstate: prepare")
        );
        assert_eq!(Line::of(b"\xff: x"), Line::Unparsable);
    }
}
