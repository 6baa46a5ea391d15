//! What Proxmox reads from a VM configuration file.
//!
//! Follows `PVE::QemuServer::parse_vm_config` (qemu-server 9.2) in its forgiving mode: what does not fit is dropped
//! with a warning, and an earlier value of the same key stays. Values that are not UTF-8 are decoded with U+FFFD for
//! each bad sequence; editing works on the bytes and is not touched by that.
//!
//! It does not look at the values' meaning, and it reads no other file.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Serialize, Serializer};

use super::HostpciIndex;
use super::document::{Document, Header, Line};
use super::patterns;
use super::schema;

/// The settings of one section by key, as Proxmox keeps them: booleans are `1` or `0`, everything else is as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Section(BTreeMap<String, String>);

impl Section {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// The `hostpciN` entries in order of N.
    pub fn hostpci(&self) -> impl Iterator<Item = (HostpciIndex, &str)> {
        let mut entries: Vec<_> = self
            .0
            .range("hostpci".to_owned()..)
            .take_while(|(key, _)| key.starts_with("hostpci"))
            .filter_map(|(key, value)| Some((HostpciIndex::from_key(key)?, value.as_str())))
            .collect();
        entries.sort_unstable_by_key(|(index, _)| *index);
        entries.into_iter()
    }

    /// All keys and values, sorted by key as Proxmox writes them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// How many keys are set.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no key is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn set(&mut self, key: &str, value: String) {
        match self.0.get_mut(key) {
            Some(old) => *old = value,
            None => {
                self.0.insert(key.to_owned(), value);
            }
        }
    }
}

impl FromIterator<(String, String)> for Section {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(entries: T) -> Self {
        Self(entries.into_iter().collect())
    }
}

/// A configuration as Proxmox reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The main section.
    pub main: Section,
    /// What `[PENDING]` sets.
    pub pending: Section,
    /// The value of `[PENDING]`'s `delete:` line, as written.
    pub pending_delete: Option<String>,
    /// The names of the snapshots, sorted.
    pub snapshots: Vec<String>,
    /// What Proxmox warns about, in order of the lines.
    pub warnings: Vec<Warning>,
}

impl Config {
    /// The keys that are about to be removed, without the `!` that forces it.
    pub fn pending_deletions(&self) -> impl Iterator<Item = &str> {
        patterns::split_list(self.pending_delete.as_deref().unwrap_or_default())
            .map(|key| key.strip_prefix('!').unwrap_or(key))
    }
}

/// A section by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SectionName {
    /// Before the first header.
    Main,
    /// `[PENDING]`.
    Pending,
    /// `[special:NAME]`.
    Special(String),
    /// `[NAME]`.
    Snapshot(String),
}

impl fmt::Display for SectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Main => f.write_str("main"),
            Self::Pending => f.write_str("PENDING"),
            Self::Special(name) => write!(f, "special:{name}"),
            Self::Snapshot(name) => f.write_str(name),
        }
    }
}

/// One warning that Proxmox gives while reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The line's number, from 1.
    pub line: usize,
    /// What kind of trouble it is.
    pub kind: WarningKind,
    /// The warning in Proxmox's words, in one line, without `vm VMID - ` in front. Control characters of the file are
    /// still in it.
    pub text: String,
    /// The setting that Proxmox does not use, where the line is one.
    pub dropped: Option<Dropped>,
}

impl Serialize for Warning {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;

        let mut fields = serializer.serialize_struct("Warning", 2)?;
        fields.serialize_field("line", &self.line)?;
        fields.serialize_field("text", &self.text)?;
        fields.end()
    }
}

/// What kind of trouble a warning is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarningKind {
    /// The line is no entry, no header and no comment.
    NotAnEntry,
    /// Proxmox does not know the key in this section.
    UnknownKey,
    /// The value does not fit the key.
    BadValue,
    /// A `delete:` line outside of `[PENDING]`.
    MisplacedDelete,
    /// The section was there before; its earlier content does not count.
    DuplicateSection,
    /// A header with a name that no section can have; its content is skipped.
    UnknownSection,
}

/// A setting that Proxmox does not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The section it stands in.
    pub section: SectionName,
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
    /// Why Proxmox does not use it.
    pub reason: String,
}

/// Where the decoder is.
enum Place<'a> {
    Main,
    Pending,
    Special(&'a str),
    Snapshot(&'a str),
    Skipped,
}

impl Place<'_> {
    fn name(&self) -> Option<SectionName> {
        Some(match self {
            Self::Main => SectionName::Main,
            Self::Pending => SectionName::Pending,
            Self::Special(name) => SectionName::Special((*name).to_owned()),
            Self::Snapshot(name) => SectionName::Snapshot((*name).to_owned()),
            Self::Skipped => return None,
        })
    }
}

impl Document {
    /// Reads the file as Proxmox does.
    pub fn decode(&self) -> Config {
        let mut decoder = Decoder {
            config: Config::default(),
            place: Place::Main,
            description: None,
            pending_seen: false,
            special_seen: BTreeSet::new(),
            snapshots: BTreeSet::new(),
            line: 0,
        };
        for (index, line) in self.lines().enumerate() {
            decoder.line = index + 1;
            decoder.read(line);
        }
        decoder.finish_description();
        let mut config = decoder.config;
        config.snapshots = decoder.snapshots.into_iter().map(str::to_owned).collect();
        config
    }
}

struct Decoder<'a> {
    config: Config,
    place: Place<'a>,
    description: Option<String>,
    pending_seen: bool,
    special_seen: BTreeSet<&'a str>,
    snapshots: BTreeSet<&'a str>,
    line: usize,
}

impl<'a> Decoder<'a> {
    fn read(&mut self, bytes: &'a [u8]) {
        let line = Line::of(bytes);
        if let Line::Header(header) = line {
            self.finish_description();
            self.enter(header);
            return;
        }
        if matches!(self.place, Place::Skipped) {
            return;
        }
        match line {
            Line::Blank | Line::Header(_) | Line::SnapState => {}
            Line::Comment(text) => {
                let description = self.description.get_or_insert_default();
                description.push_str(&decode_text(text));
                description.push('\n');
            }
            Line::Description(text) => {
                let description = self.description.get_or_insert_default();
                description.push_str(&decode_text(text));
            }
            Line::Args(value) => self.keep("args", &String::from_utf8_lossy(value)),
            Line::Delete(value) => {
                let value = String::from_utf8_lossy(value);
                if matches!(self.place, Place::Pending) {
                    self.config.pending_delete = Some(value.into_owned());
                } else {
                    let text = "property 'delete' is only allowed in [PENDING]";
                    self.drop_setting(
                        WarningKind::MisplacedDelete,
                        "delete",
                        &value,
                        text,
                        text.to_owned(),
                    );
                }
            }
            Line::Entry { key, value } => self.entry(key, &String::from_utf8_lossy(value)),
            Line::Unparsable => {
                let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
                let text = format!("unable to parse config: {}", excerpt(text));
                self.warn(WarningKind::NotAnEntry, text);
            }
        }
    }

    fn enter(&mut self, header: Header<'a>) {
        match header {
            Header::Pending => {
                if self.pending_seen {
                    self.warn(
                        WarningKind::DuplicateSection,
                        "duplicate section: pending".to_owned(),
                    );
                }
                self.pending_seen = true;
                self.config.pending = Section::default();
                self.config.pending_delete = None;
                self.place = Place::Pending;
            }
            Header::Special(name) => {
                if !self.special_seen.insert(name) {
                    let text = format!("duplicate special section: {name}");
                    self.warn(WarningKind::DuplicateSection, text);
                }
                self.place = Place::Special(name);
            }
            Header::Snapshot(name) => {
                if !self.snapshots.insert(name) {
                    let text = format!("duplicate snapshot section: {name}");
                    self.warn(WarningKind::DuplicateSection, text);
                }
                self.place = Place::Snapshot(name);
            }
            Header::Unknown(name) => {
                let text = format!("skipping unknown section: '{}'", excerpt(name));
                self.warn(WarningKind::UnknownSection, text);
                self.place = Place::Skipped;
            }
        }
    }

    fn entry(&mut self, key: &str, value: &str) {
        let kind = match self.place {
            // Proxmox keeps what is there without checking it, for its information only.
            Place::Special("cloudinit") => return,
            Place::Special("fleecing") => (key == "fleecing-images").then_some(
                schema::Kind::Named(is_volume_list, "unable to parse volume ID"),
            ),
            // The name was matched in any case, but there is no schema for other spellings than the above.
            Place::Special(_) => {
                let reason = "check_type: no schema defined";
                return self.refuse(WarningKind::UnknownKey, key, value, reason);
            }
            _ => schema::kind(key),
        };
        let Some(kind) = kind else {
            let reason = format!("unknown setting '{key}'");
            return self.refuse(WarningKind::UnknownKey, key, value, &reason);
        };
        match kind.check(value) {
            // `cdrom` is an old name of `ide2`.
            Ok(value) => self.keep(if key == "cdrom" { "ide2" } else { key }, &value),
            Err(reason) => self.refuse(WarningKind::BadValue, key, value, &reason),
        }
    }

    fn keep(&mut self, key: &str, value: &str) {
        match self.place {
            Place::Main => self.config.main.set(key, value.to_owned()),
            Place::Pending => self.config.pending.set(key, value.to_owned()),
            Place::Special(_) | Place::Snapshot(_) | Place::Skipped => {}
        }
    }

    /// Description lines count only once the section is over: they replace what an entry may have set.
    fn finish_description(&mut self) {
        if let Some(description) = self.description.take() {
            self.keep("description", description.trim_end());
        }
    }

    fn refuse(&mut self, kind: WarningKind, key: &str, value: &str, reason: &str) {
        let text = format!("unable to parse value of '{key}' - {reason}");
        self.drop_setting(kind, key, value, reason, text);
    }

    fn drop_setting(
        &mut self,
        kind: WarningKind,
        key: &str,
        value: &str,
        reason: &str,
        text: String,
    ) {
        let dropped = self.place.name().map(|section| Dropped {
            section,
            key: key.to_owned(),
            value: value.to_owned(),
            reason: reason.to_owned(),
        });
        self.config.warnings.push(Warning {
            line: self.line,
            kind,
            text,
            dropped,
        });
    }

    fn warn(&mut self, kind: WarningKind, text: String) {
        self.config.warnings.push(Warning {
            line: self.line,
            kind,
            text,
            dropped: None,
        });
    }
}

fn is_volume_list(text: &str) -> bool {
    patterns::split_list(text).all(patterns::is_volume_id)
}

/// `PVE::Tools::decode_text`: percent escapes, then UTF-8.
fn decode_text(bytes: &[u8]) -> Cow<'_, str> {
    if !bytes.contains(&b'%') {
        return String::from_utf8_lossy(bytes);
    }
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, tail)) = rest.split_first() {
        if *first == b'%'
            && let [high, low, after @ ..] = tail
            && let (Some(high), Some(low)) = (hex_digit(*high), hex_digit(*low))
        {
            decoded.push(high << 4 | low);
            rest = after;
        } else {
            decoded.push(*first);
            rest = tail;
        }
    }
    Cow::Owned(String::from_utf8_lossy(&decoded).into_owned())
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

/// The beginning of what may be a very long line.
fn excerpt(bytes: &[u8]) -> String {
    const LONGEST: usize = 200;
    match bytes.get(..LONGEST) {
        Some(start) if bytes.len() > LONGEST => format!("{}...", String::from_utf8_lossy(start)),
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Document, SectionName, WarningKind};

    #[test]
    fn a_dropped_value_says_where_and_why() {
        let config = Document::parse(
            b"hostpci0: 0b:00,pcie=2\n[PENDING]\nhostpci1: 0b:00,pcie=1,pcie=1\n[aa]\nfoo: bar\n",
        )
        .decode();
        let [first, second, third] = config.warnings.as_slice() else {
            panic!("{:?}", config.warnings);
        };
        assert_eq!((first.line, first.kind), (1, WarningKind::BadValue));
        assert_eq!(
            first.text,
            "unable to parse value of 'hostpci0' - format error: pcie: type check ('boolean') failed - got '2'"
        );
        let dropped = first.dropped.as_ref().unwrap();
        assert_eq!(
            (&dropped.section, dropped.key.as_str()),
            (&SectionName::Main, "hostpci0")
        );
        assert_eq!(dropped.value, "0b:00,pcie=2");
        assert_eq!(second.line, 3);
        assert_eq!(
            second.dropped.as_ref().unwrap().section,
            SectionName::Pending
        );
        assert_eq!((third.line, third.kind), (5, WarningKind::UnknownKey));
        assert_eq!(
            third.dropped.as_ref().unwrap().section,
            SectionName::Snapshot("aa".to_owned())
        );
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced_in_values_only() {
        let bytes =
            b"args: -x \xff\nhostpci0: 0b:00,romfile=\xfe.rom\n\xff\xff\n[\xff]\nmachine: q35\n";
        let document = Document::parse(bytes);
        let config = document.decode();
        assert_eq!(config.main.get("args"), Some("-x \u{fffd}"));
        assert_eq!(
            config.main.get("hostpci0"),
            Some("0b:00,romfile=\u{fffd}.rom")
        );
        assert_eq!(config.main.get("machine"), None);
        assert_eq!(config.warnings.len(), 2);
        assert_eq!(document.to_bytes(), bytes);
    }

    #[test]
    fn entries_come_in_order_of_their_index() {
        let config =
            Document::parse(b"hostpci10: 0b:00\nhostpci2: 0c:00\nhotplug: 0\nhostpci1: 0d:00\n")
                .decode();
        let entries: Vec<_> = config
            .main
            .hostpci()
            .map(|(index, value)| (index.get(), value))
            .collect();
        assert_eq!(entries, [(1, "0d:00"), (2, "0c:00"), (10, "0b:00")]);
    }

    #[test]
    fn pending_deletions_are_split_and_lose_their_mark() {
        let config = Document::parse(b"[PENDING]\ndelete: hostpci0,vga;!balloon\n").decode();
        let keys: Vec<_> = config.pending_deletions().collect();
        assert_eq!(keys, ["hostpci0", "vga", "balloon"]);
        assert_eq!(Document::default().decode().pending_deletions().count(), 0);
    }

    #[test]
    fn a_long_line_is_quoted_in_part() {
        let config = Document::parse(&b"!".repeat(100_000)).decode();
        assert!(
            config
                .warnings
                .iter()
                .all(|warning| warning.text.len() < 300)
        );
        assert_eq!(config.warnings.len(), 1);
    }

    #[test]
    fn serializes_as_plain_json() {
        let config = Document::parse(b"name: a\n??\n").decode();
        assert_eq!(
            serde_json::to_string(&config.main).unwrap(),
            r#"{"name":"a"}"#
        );
        assert_eq!(
            serde_json::to_string(&config.warnings).unwrap(),
            r#"[{"line":2,"text":"unable to parse config: ??"}]"#
        );
    }
}
