//! Changing `hostpciN` lines of a VM configuration's main section, and nothing else.
//!
//! An [`Edit`] is the whole change as one value: the text before, the text after, and the lines that differ. A diff,
//! the write and the undo all come from it. Every byte outside of those lines stays as it was: sections after the
//! first header, comments, lines that Proxmox cannot read, line endings, a missing line feed at the end.
//!
//! Of several lines with one key Proxmox uses the last that fits the schema. That one is changed, so the others keep
//! being overridden. A line that Proxmox rejects is reused only when the key has no value at all. New keys go next to
//! other `hostpciN` lines in order of their index, or else where Proxmox would sort them.
//!
//! It writes no file and knows no lock.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::HostpciIndex;
use super::document::{Document, Line};
use super::hostpci;

/// A change to a configuration's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The bytes before.
    pub before: Vec<u8>,
    /// The bytes after.
    pub after: Vec<u8>,
    /// The lines that differ, in order. Empty if there is nothing to write.
    pub changes: Vec<LineChange>,
}

impl Edit {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// One line of an [`Edit`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineChange {
    /// The key the line is about.
    pub key: HostpciIndex,
    /// The line's number in the text after the edit, from 1. For a line that went: the number of what follows it.
    pub line_number: usize,
    /// The line before, with its ending; `None` for a new line.
    #[serde(with = "line_bytes")]
    pub old: Option<Vec<u8>>,
    /// The line after, with its ending; `None` for a line that went. A new line after one without a line feed begins
    /// with that line feed instead.
    #[serde(with = "line_bytes")]
    pub new: Option<Vec<u8>>,
}

/// Why an edit is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// Proxmox would drop the value.
    #[error("'{value}' is no value for {key}: {reason}")]
    Value {
        /// The key.
        key: HostpciIndex,
        /// The value.
        value: String,
        /// Proxmox's reason.
        reason: String,
    },
    /// The value fits the schema, but a line with it would not read as this value: blanks around it, or an end like
    /// `snapstate: delete`.
    #[error("'{value}' would not read back as the value of {key}")]
    NotReadBack {
        /// The key.
        key: HostpciIndex,
        /// The value.
        value: String,
    },
}

/// Why an edit cannot be taken back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RevertError {
    /// Somebody has changed the key since.
    #[error(
        "{key} has been changed since: it was left {}, and is now {}",
        Shown(.expected),
        Shown(.found)
    )]
    Changed {
        /// The key.
        key: HostpciIndex,
        /// The value that the edit left; `None`: not set.
        expected: Option<String>,
        /// The value now; `None`: not set.
        found: Option<String>,
    },
    /// The old value cannot be set again.
    #[error(transparent)]
    Edit(#[from] EditError),
}

struct Shown<'a>(&'a Option<String>);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(value) => write!(f, "'{value}'"),
            None => f.write_str("unset"),
        }
    }
}

/// A line of the main section that is or tries to be a `hostpciN` entry.
struct Candidate<'a> {
    line: usize,
    key: HostpciIndex,
    /// The value, if Proxmox takes it.
    accepted: Option<&'a [u8]>,
}

/// The document as the editor sees it.
struct Scan<'a> {
    lines: Vec<&'a [u8]>,
    /// How many of the lines are in the main section.
    main: usize,
    candidates: Vec<Candidate<'a>>,
}

impl<'a> Scan<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
        let main = lines
            .iter()
            .position(|line| matches!(Line::of(line), Line::Header(_)))
            .unwrap_or(lines.len());
        let candidates = lines
            .iter()
            .take(main)
            .enumerate()
            .filter_map(|(line, text)| {
                let (key, accepted) = candidate(text)?;
                Some(Candidate {
                    line,
                    key,
                    accepted,
                })
            })
            .collect();
        Self {
            lines,
            main,
            candidates,
        }
    }

    fn of_key(&self, key: HostpciIndex) -> impl DoubleEndedIterator<Item = &Candidate<'a>> {
        self.candidates
            .iter()
            .filter(move |candidate| candidate.key == key)
    }

    /// The line that gives the key its value.
    fn effective(&self, key: HostpciIndex) -> Option<(usize, &'a [u8])> {
        self.of_key(key)
            .rev()
            .find_map(|candidate| Some((candidate.line, candidate.accepted?)))
    }

    fn value(&self, key: HostpciIndex) -> Option<&'a [u8]> {
        self.effective(key).map(|(_, value)| value)
    }

    /// The line before which a new key belongs.
    fn insertion_point(&self, key: HostpciIndex) -> usize {
        let lower = self.candidates.iter().filter(|other| other.key < key);
        if let Some(lower) = lower.max_by_key(|other| (other.key, other.line)) {
            return lower.line + 1;
        }
        let higher = self.candidates.iter().filter(|other| other.key > key);
        if let Some(higher) = higher.min_by_key(|other| (other.key, other.line)) {
            return higher.line;
        }
        let name = key.to_string();
        let sorts_after = |text: &[u8]| match Line::of(text) {
            Line::Entry { key, .. } => key > name.as_str(),
            _ => false,
        };
        let main = self.lines.get(..self.main).unwrap_or_default();
        main.iter()
            .position(|text| sorts_after(text))
            .unwrap_or_else(|| {
                // After what there is, but before the empty lines that set off the next section.
                main.iter()
                    .rposition(|text| !matches!(Line::of(text), Line::Blank))
                    .map_or(0, |last| last + 1)
            })
    }

    /// The line ending in use around a line.
    fn ending_at(&self, line: usize) -> &'static [u8] {
        let before = line.checked_sub(1).and_then(|line| self.lines.get(line));
        let around = [before, self.lines.get(line), self.lines.first()];
        let ending = around
            .into_iter()
            .flatten()
            .find_map(|text| match ending(text) {
                b"" => None,
                ending => Some(ending),
            });
        ending.unwrap_or(b"\n")
    }
}

/// The key of a line that is or tries to be a `hostpciN` entry, and its value if Proxmox takes it.
fn candidate(text: &[u8]) -> Option<(HostpciIndex, Option<&[u8]>)> {
    match Line::of(text) {
        Line::Entry { key, value } => {
            let key = HostpciIndex::from_key(key)?;
            let fits = check(value).is_ok();
            Some((key, fits.then_some(value)))
        }
        // `hostpci0:` with nothing after it.
        Line::Unparsable => {
            let colon = text.iter().position(|byte| *byte == b':')?;
            let key = std::str::from_utf8(text.get(..colon)?).ok()?;
            Some((HostpciIndex::from_key(key)?, None))
        }
        _ => None,
    }
}

/// Whether Proxmox takes the value when it reads a file.
fn check(value: &[u8]) -> Result<(), String> {
    if value.contains(&b'\n') || value.contains(&b'\r') {
        return Err("property contains a line feed".to_owned());
    }
    hostpci::check(&String::from_utf8_lossy(value)).map_err(|error| error.detail())
}

/// The line ending.
fn ending(text: &[u8]) -> &'static [u8] {
    if text.ends_with(b"\r\n") {
        b"\r\n"
    } else if text.ends_with(b"\n") {
        b"\n"
    } else {
        b""
    }
}

/// What happens to the lines of the old text.
#[derive(Default)]
struct Splices {
    /// By line: what replaces it; `None` removes it.
    replaced: BTreeMap<usize, (HostpciIndex, Option<Vec<u8>>)>,
    /// By the line they come before and the key: the new line without ending.
    inserted: BTreeMap<(usize, HostpciIndex), Vec<u8>>,
}

impl Document {
    /// Sets and removes `hostpciN` keys of the main section.
    ///
    /// A key that already has the value is left alone, so an edit may turn out empty. Removing a key removes each line
    /// that Proxmox would take for it, not those that it rejects anyway.
    ///
    /// # Errors
    /// A value that Proxmox would not read back as given. The result has been read back for every key.
    pub fn edit(&self, set: &BTreeMap<HostpciIndex, Option<String>>) -> Result<Edit, EditError> {
        let set = set
            .iter()
            .map(|(key, value)| (*key, value.as_deref().map(str::as_bytes)))
            .collect();
        self.edit_bytes(&set)
    }

    fn edit_bytes(&self, set: &BTreeMap<HostpciIndex, Option<&[u8]>>) -> Result<Edit, EditError> {
        let scan = Scan::of(self.as_bytes());
        let mut splices = Splices::default();
        for (key, value) in set {
            let Some(value) = value else {
                for candidate in scan.of_key(*key) {
                    if candidate.accepted.is_some() {
                        splices.replaced.insert(candidate.line, (*key, None));
                    }
                }
                continue;
            };
            check(value).map_err(|reason| EditError::Value {
                key: *key,
                value: String::from_utf8_lossy(value).into_owned(),
                reason,
            })?;
            let current = scan.effective(*key);
            if current.is_some_and(|(_, current)| current == *value) {
                continue;
            }
            let line = [format!("{key}: ").as_bytes(), value].concat();
            let reused = current
                .map(|(line, _)| line)
                .or_else(|| scan.of_key(*key).next_back().map(|other| other.line));
            if let Some(at) = reused {
                let ending = scan
                    .lines
                    .get(at)
                    .map_or(b"".as_slice(), |text| ending(text));
                let line = [&line, ending].concat();
                splices.replaced.insert(at, (*key, Some(line)));
            } else {
                let before = scan.insertion_point(*key);
                splices.inserted.insert((before, *key), line);
            }
        }
        let edit = self.splice(&scan, &splices);
        let after = Scan::of(&edit.after);
        for (key, value) in set {
            if after.value(*key) != *value {
                return Err(EditError::NotReadBack {
                    key: *key,
                    value: String::from_utf8_lossy(value.unwrap_or_default()).into_owned(),
                });
            }
        }
        Ok(edit)
    }

    fn splice(&self, scan: &Scan<'_>, splices: &Splices) -> Edit {
        let mut after = Vec::with_capacity(self.as_bytes().len() + 64);
        let mut line_number = 1;
        let mut changes = Vec::new();
        for at in 0..=scan.lines.len() {
            let inserted = splices
                .inserted
                .iter()
                .filter(|((before, _), _)| *before == at);
            for ((_, key), line) in inserted {
                let unterminated = after.last().is_some_and(|byte| *byte != b'\n');
                let new = if unterminated {
                    line_number += 1;
                    // Not with a carriage return: it would become the value of an entry that is all blank.
                    [b"\n", line.as_slice()].concat()
                } else {
                    [line, scan.ending_at(at)].concat()
                };
                after.extend_from_slice(&new);
                changes.push(LineChange {
                    key: *key,
                    line_number,
                    old: None,
                    new: Some(new),
                });
                if !unterminated {
                    line_number += 1;
                }
            }
            let Some(old) = scan.lines.get(at) else {
                continue;
            };
            let kept = match splices.replaced.get(&at) {
                Some((key, new)) => {
                    changes.push(LineChange {
                        key: *key,
                        line_number,
                        old: Some(old.to_vec()),
                        new: new.clone(),
                    });
                    new.as_deref()
                }
                None => Some(*old),
            };
            if let Some(text) = kept {
                after.extend_from_slice(text);
                line_number += usize::from(text.ends_with(b"\n"));
            }
        }
        Edit {
            before: self.to_bytes(),
            after,
            changes,
        }
    }

    /// Takes an earlier edit of this file back.
    ///
    /// Where the changed lines still stand as they were left, they get their old bytes again. Where the file has been
    /// written anew since (Proxmox sorts it), the keys get their old values, provided that they still have those that
    /// the edit gave them.
    ///
    /// # Errors
    /// A key has another value by now.
    pub fn revert(&self, changes: &[LineChange]) -> Result<Edit, RevertError> {
        let old_values = values(changes, |change| change.old.as_deref());
        if let Some(edit) = self.restore_lines(changes) {
            let scan = Scan::of(&edit.after);
            if old_values
                .iter()
                .all(|(key, value)| scan.value(*key) == *value)
            {
                return Ok(edit);
            }
        }
        let scan = Scan::of(self.as_bytes());
        for (key, expected) in values(changes, |change| change.new.as_deref()) {
            let found = scan.value(key);
            let restored_already = old_values.get(&key).is_some_and(|old| *old == found);
            if found != expected && !restored_already {
                let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
                return Err(RevertError::Changed {
                    key,
                    expected: expected.map(text),
                    found: found.map(text),
                });
            }
        }
        Ok(self.edit_bytes(&old_values)?)
    }

    /// The text with the old lines back in place; `None` where one of the changed lines is not where it was.
    fn restore_lines(&self, changes: &[LineChange]) -> Option<Edit> {
        let mut text = self.to_bytes();
        let main = Scan::of(self.as_bytes()).main;
        let mut undone = Vec::with_capacity(changes.len());
        // From the end, so that the numbers of the lines before stay true.
        for change in changes.iter().rev() {
            let line = change.line_number.checked_sub(1)?;
            let start = line_start(&text, line)?;
            let old = change.old.as_deref().unwrap_or_default();
            let (start, end) = match &change.new {
                Some(new) => {
                    let start = start.checked_sub(usize::from(new.starts_with(b"\n")))?;
                    let end = start + new.len();
                    let whole_line = new.ends_with(b"\n") || end == text.len();
                    if line >= main || !whole_line || text.get(start..end)? != new {
                        return None;
                    }
                    (start, end)
                }
                None if line <= main => (start, start),
                None => return None,
            };
            text.splice(start..end, old.iter().copied());
            undone.push(LineChange {
                key: change.key,
                line_number: change.line_number,
                old: change.new.clone(),
                new: change.old.clone(),
            });
        }
        undone.reverse();
        renumber(&mut undone);
        Some(Edit {
            before: self.to_bytes(),
            after: text,
            changes: undone,
        })
    }
}

/// Line numbers in the text after an inverse edit: lines that came or went move the ones after them.
fn renumber(undone: &mut [LineChange]) {
    let mut came: usize = 0;
    let mut went: usize = 0;
    for change in undone {
        change.line_number = (change.line_number + came).saturating_sub(went).max(1);
        match (&change.old, &change.new) {
            (None, Some(_)) => came += 1,
            (Some(_), None) => went += 1,
            _ => {}
        }
    }
}

/// Where a line begins, counted from 0. The end of a text that ends in a line feed, or is empty, begins a line too.
fn line_start(text: &[u8], line: usize) -> Option<usize> {
    if line == 0 {
        return Some(0);
    }
    text.iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .nth(line - 1)
        .map(|(at, _)| at + 1)
}

/// What the lines on one side of the changes make of each key: the last that Proxmox takes.
fn values<'a>(
    changes: &'a [LineChange],
    side: impl Fn(&'a LineChange) -> Option<&'a [u8]>,
) -> BTreeMap<HostpciIndex, Option<&'a [u8]>> {
    let mut values = BTreeMap::new();
    for change in changes {
        let value = values.entry(change.key).or_insert(None);
        let line = side(change).map(|line| line.strip_prefix(b"\n").unwrap_or(line));
        if let Some((_, Some(accepted))) = line.and_then(candidate) {
            *value = Some(accepted);
        }
    }
    values
}

/// Lines in a journal: as a text where they are UTF-8, else as numbers.
mod line_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Bytes {
        Text(String),
        Raw(Vec<u8>),
    }

    #[allow(clippy::ref_option)] // The shape that serde calls.
    pub(super) fn serialize<S: Serializer>(
        line: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        line.as_ref()
            .map(|bytes| match String::from_utf8(bytes.clone()) {
                Ok(text) => Bytes::Text(text),
                Err(error) => Bytes::Raw(error.into_bytes()),
            })
            .serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let line = Option::<Bytes>::deserialize(deserializer)?;
        Ok(line.map(|bytes| match bytes {
            Bytes::Text(text) => text.into_bytes(),
            Bytes::Raw(bytes) => bytes,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Document, Edit, EditError, HostpciIndex, LineChange, RevertError};

    fn set(keys: &[(u8, Option<&str>)]) -> BTreeMap<HostpciIndex, Option<String>> {
        keys.iter()
            .map(|(index, value)| (HostpciIndex::new(*index).unwrap(), value.map(str::to_owned)))
            .collect()
    }

    fn edit(before: &str, keys: &[(u8, Option<&str>)]) -> Edit {
        Document::parse(before.as_bytes()).edit(&set(keys)).unwrap()
    }

    /// Checks the text after, and that reverting gives the text before.
    fn becomes(before: &str, keys: &[(u8, Option<&str>)], after: &str) {
        let edit = edit(before, keys);
        assert_eq!(String::from_utf8_lossy(&edit.after), after);
        let back = Document::parse(&edit.after).revert(&edit.changes).unwrap();
        assert_eq!(String::from_utf8_lossy(&back.after), before);
        // And the inverse is an edit that can be taken back in turn.
        let again = Document::parse(&back.after).revert(&back.changes).unwrap();
        assert_eq!(String::from_utf8_lossy(&again.after), after);
    }

    #[test]
    fn a_line_is_replaced_where_it_stands() {
        becomes(
            "#x\nhostpci0:  0b:00 \t\nmachine: q35\n\n[PENDING]\nhostpci0: 0c:00\n",
            &[(0, Some("0b:00.0"))],
            "#x\nhostpci0: 0b:00.0\nmachine: q35\n\n[PENDING]\nhostpci0: 0c:00\n",
        );
    }

    #[test]
    fn new_keys_go_beside_their_kin_or_where_they_sort() {
        becomes(
            "boot: cdn\nhostpci1: 0b:00\nhostpci10: 0c:00\nmachine: q35\n",
            &[(0, Some("01:00")), (2, Some("02:00")), (11, Some("03:00"))],
            "boot: cdn\nhostpci0: 01:00\nhostpci1: 0b:00\nhostpci2: 02:00\nhostpci10: 0c:00\n\
             hostpci11: 03:00\nmachine: q35\n",
        );
        becomes(
            "#n\nboot: cdn\nmachine: q35\n",
            &[(1, Some("01:00")), (3, Some("02:00"))],
            "#n\nboot: cdn\nhostpci1: 01:00\nhostpci3: 02:00\nmachine: q35\n",
        );
        becomes(
            "boot: cdn\n\n[snap]\n",
            &[(0, Some("01:00"))],
            "boot: cdn\nhostpci0: 01:00\n\n[snap]\n",
        );
        becomes(
            "[snap]\nhostpci0: 0c:00\n",
            &[(0, Some("01:00"))],
            "hostpci0: 01:00\n[snap]\nhostpci0: 0c:00\n",
        );
        becomes("", &[(0, Some("01:00"))], "hostpci0: 01:00\n");
    }

    #[test]
    fn line_endings_are_kept() {
        becomes(
            "boot: cdn\r\nhostpci0: 0b:00\r\n[PENDING]\r\n",
            &[(0, Some("0b:00.0")), (1, Some("0b:00.1"))],
            "boot: cdn\r\nhostpci0: 0b:00.0\r\nhostpci1: 0b:00.1\r\n[PENDING]\r\n",
        );
        becomes(
            "machine: q35\nhostpci0: 0b:00",
            &[
                (0, Some("0b:00.0")),
                (1, Some("0b:00.1")),
                (2, Some("0b:00.2")),
            ],
            "machine: q35\nhostpci0: 0b:00.0\nhostpci1: 0b:00.1\nhostpci2: 0b:00.2",
        );
        becomes(
            "a\r\nboot: cdn",
            &[(0, Some("01:00")), (4, Some("02:00"))],
            "a\r\nboot: cdn\nhostpci0: 01:00\nhostpci4: 02:00",
        );
    }

    #[test]
    fn a_blank_value_at_the_end_of_the_text_keeps_its_blank() {
        let text = "a\r\nhostpci0: ";
        let edit = edit(text, &[(1, Some("0b:00"))]);
        let config = Document::parse(&edit.after).decode();
        assert_eq!(config.main.get("hostpci0"), Some(" "));
        becomes(
            text,
            &[(1, Some("0b:00"))],
            "a\r\nhostpci0: \nhostpci1: 0b:00",
        );
    }

    #[test]
    fn the_line_that_counts_is_the_one_that_changes() {
        becomes(
            "hostpci0: 0b:00\nhostpci0: 0c:00\nhostpci0: zz\n",
            &[(0, Some("01:00"))],
            "hostpci0: 0b:00\nhostpci0: 01:00\nhostpci0: zz\n",
        );
        becomes(
            "hostpci0:\nhostpci0: zz\n",
            &[(0, Some("01:00"))],
            "hostpci0:\nhostpci0: 01:00\n",
        );
        becomes(
            "hostpci0: 0c:00 snapstate: delete\n",
            &[(0, Some("01:00"))],
            "hostpci0: 0c:00 snapstate: delete\nhostpci0: 01:00\n",
        );
    }

    #[test]
    fn removing_takes_every_line_that_counts() {
        becomes(
            "hostpci0: 0b:00\nx\nhostpci0: zz\nhostpci0: 0c:00\nhostpci1: 0d:00",
            &[(0, None), (1, None), (2, None)],
            "x\nhostpci0: zz\n",
        );
        becomes(
            "hostpci0: 0b:00",
            &[(0, None), (1, Some("0c:00"))],
            "hostpci1: 0c:00\n",
        );
    }

    #[test]
    fn what_is_so_already_is_no_change() {
        let same = edit("hostpci0:0b:00  \n", &[(0, Some("0b:00")), (5, None)]);
        assert!(same.is_empty());
        assert_eq!(same.after, same.before);
    }

    #[test]
    fn changes_name_their_lines() {
        let edit = edit(
            "a: b\nhostpci0: 0b:00\nhostpci2: 0c:00\n",
            &[(0, Some("0b:00.0")), (1, Some("0b:00.1")), (2, None)],
        );
        let lines: Vec<_> = edit
            .changes
            .iter()
            .map(|change| (change.key.get(), change.line_number))
            .collect();
        assert_eq!(lines, [(0, 2), (1, 3), (2, 4)]);
        assert_eq!(
            edit.changes.first().unwrap().old.as_deref(),
            Some(b"hostpci0: 0b:00\n".as_slice())
        );
    }

    #[test]
    fn values_that_would_not_hold_are_refused() {
        let document = Document::parse(b"machine: q35\n");
        for (value, readable) in [
            ("zz", false),
            ("0b:00\nargs: -x", false),
            ("0b:00,romfile=a\r", false),
            ("0b:00,romfile=a ", true),
            ("0b:00,romfile=a snapstate: delete", true),
        ] {
            let error = document.edit(&set(&[(0, Some(value))])).unwrap_err();
            assert_eq!(
                matches!(error, EditError::NotReadBack { .. }),
                readable,
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_that_proxmox_has_sorted_since_gets_its_values_back() {
        let edit = edit(
            "machine: q35\nhostpci0: 0b:00,pcie=1\n",
            &[(0, Some("0b:00.0,pcie=1")), (1, Some("0b:00.1,pcie=1"))],
        );
        let sorted = Document::parse(
            b"cores: 4\nhostpci0: 0b:00.0,pcie=1\nhostpci1: 0b:00.1,pcie=1\nmachine: q35\n",
        );
        let back = sorted.revert(&edit.changes).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&back.after),
            "cores: 4\nhostpci0: 0b:00,pcie=1\nmachine: q35\n"
        );
        let twice = Document::parse(&back.after).revert(&edit.changes).unwrap();
        assert!(twice.is_empty());
    }

    #[test]
    fn what_somebody_else_changed_is_not_reverted() {
        let edit = edit("hostpci0: 0b:00\n", &[(0, Some("0b:00.0"))]);
        let key = HostpciIndex::new(0).unwrap();
        for (now, found) in [
            ("hostpci0: 0c:00\n", Some("0c:00")),
            ("hostpci0: 0b:00.0\nhostpci0: 0c:00\n", Some("0c:00")),
            ("machine: q35\n", None),
            ("[snap]\nhostpci0: 0b:00.0\n", None),
        ] {
            let error = Document::parse(now.as_bytes())
                .revert(&edit.changes)
                .unwrap_err();
            assert_eq!(
                error,
                RevertError::Changed {
                    key,
                    expected: Some("0b:00.0".to_owned()),
                    found: found.map(str::to_owned),
                },
                "{now}"
            );
        }
    }

    #[test]
    fn changes_survive_a_journal() {
        let before = b"hostpci0: 0b:00,romfile=\xff\nmachine: q35\n";
        let edit = Document::parse(before)
            .edit(&set(&[(0, Some("0b:00.0")), (1, Some("0c:00"))]))
            .unwrap();
        let text = serde_json::to_string(&edit.changes).unwrap();
        let changes: Vec<LineChange> = serde_json::from_str(&text).unwrap();
        assert_eq!(changes, edit.changes);
        let back = Document::parse(&edit.after).revert(&changes).unwrap();
        assert_eq!(back.after, before);
    }
}
