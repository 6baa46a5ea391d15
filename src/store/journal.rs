//! What was changed in VM configurations, so that it can be taken back: `/var/lib/pve-atomicops/journal`.
//!
//! A file of JSON lines, only ever appended to, readable and writable by root alone. Two lines per change:
//!
//! ```json
//! {"record":"intent","number":7,"time":"2026-01-31T12:00:00Z","vmid":101,"node":"pve1","origin":"hook","undoes":null,
//!  "before":"<SHA-1>","after":"<SHA-1>","changes":[{"key":"hostpci0","line":3,"old":"...","new":"..."}]}
//! {"record":"outcome","number":7,"time":"2026-01-31T12:00:00Z","done":true,"after":"<SHA-1>"}
//! ```
//!
//! The intent is on disk *before* the configuration is touched, the outcome follows. A run killed in between leaves an
//! intent without outcome; the configuration's digest tells which it was as long as nobody changed the file again,
//! and the lines' text tells afterwards ([`Journal::last_edit`]). The next change of the same VM writes the missing
//! outcome ([`Journal::settle`]).
//!
//! `line` counts from 1 in the file after the change (for a removed line: what follows it). `old` and `new` are whole
//! lines with their ending, so that it comes back too; null where the line was added or removed. In them a backslash is written `\\`
//! and a byte that is not UTF-8 `\xNN`. `after` of an intent is null where another program (`qm set`) composes the
//! file.
//!
//! A last line without its ending was torn by a crash: its change never began, and it is cut off. Other unreadable
//! lines are skipped and counted.

use std::fmt;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};
use sha1::Digest as _;

use super::tree::{Directory, StepError, Tree, errno_of, is_private_to_us, is_regular};
use crate::vmconf::Vmid;

/// Where the journal's directory is, below the root.
const PARENT: &str = "var/lib";
const DIRECTORY: &str = "pve-atomicops";
const FILE: &str = "journal";

/// Only this much of the journal's end is read: some ten thousand changes.
const MAX_READ: u64 = 8 << 20;

/// A longer line is not written: a configuration has at most 16 `hostpci` lines, but each may be long.
const MAX_LINE: usize = 2 << 20;

/// How long to sleep between two attempts while another run writes the journal.
const POLL: Duration = Duration::from_millis(5);

/// The SHA-1 of a configuration's bytes: what Proxmox calls its digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 20]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha1::Sha1::digest(bytes).into())
    }
}

impl fmt::Display for Digest {
    /// 40 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no digest: not 40 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a SHA-1 digest of 40 hexadecimal digits")]
pub struct DigestError;

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        if text.len() != 40 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(DigestError);
        }
        let mut bytes = [0; 20];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let pair = text.get(2 * index..2 * index + 2).ok_or(DigestError)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| DigestError)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// What made a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The hook, in mode rewrite.
    Hook,
    /// The command `fix`.
    Fix,
    /// The command `undo`.
    Undo,
}

/// One line of the main section that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineChange {
    /// Its key, such as `hostpci0`.
    pub key: String,
    /// Its number, from 1, in the file after the change; of a removed line, the number of what follows it.
    pub line: usize,
    /// The line before, with its ending; none for one that is added.
    #[serde(with = "escaped")]
    pub old: Option<Vec<u8>>,
    /// The line after, with its ending; none for one that is removed.
    #[serde(with = "escaped")]
    pub new: Option<Vec<u8>>,
}

/// A change that is about to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Of which VM.
    pub vmid: Vmid,
    /// On which node.
    pub node: String,
    /// By what.
    pub origin: Origin,
    /// The number of the change that this one takes back.
    pub undoes: Option<u64>,
    /// The digest of the file before.
    pub before: Digest,
    /// The digest of the file after; none where another program composes it.
    pub after: Option<Digest>,
    /// The lines that change.
    pub changes: Vec<LineChange>,
}

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing is recorded: under way, or the run was killed.
    Open,
    /// It was made.
    Done,
    /// It was not made.
    Failed,
}

/// A change in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number; later ones have higher numbers.
    pub number: u64,
    /// When it was begun: RFC 3339, UTC.
    pub time: String,
    /// What it is. `after` is the digest that was found afterwards, where one was recorded.
    pub intent: Intent,
    /// How it ended.
    pub state: State,
}

/// The lines of the file, as serde sees them.
#[derive(Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "lowercase")]
enum Record {
    Intent {
        number: u64,
        time: String,
        vmid: u32,
        node: String,
        origin: Origin,
        undoes: Option<u64>,
        before: Digest,
        after: Option<Digest>,
        changes: Vec<LineChange>,
    },
    Outcome {
        number: u64,
        time: String,
        done: bool,
        after: Option<Digest>,
    },
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It or its directory is a link, or not of the expected kind, or others may have written it.
    #[error("{} is not trusted: {problem}", path.display())]
    Untrusted {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Another run kept it locked until the deadline.
    #[error("{} is in use by another run", .0.display())]
    Busy(PathBuf),
    /// The change is too large to be recorded.
    #[error("the change takes {size} bytes in the journal, and at most {MAX_LINE} are allowed")]
    TooLong {
        /// Of the line, in bytes.
        size: usize,
    },
    /// A record could not be put into JSON.
    #[error("cannot compose a journal record")]
    Compose(#[from] serde_json::Error),
    /// A file operation failed.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// The journal's directory. Each operation opens, locks and checks the file anew, since runs are short and several
/// may happen at once.
#[derive(Debug)]
pub struct Journal {
    directory: Directory,
    deadline: Instant,
}

/// The open, locked file.
struct Opened<'a> {
    directory: &'a Directory,
    file: Flock<File>,
    writable: bool,
}

/// What the journal says.
#[derive(Debug, Default)]
pub struct History {
    /// The changes, oldest first.
    pub entries: Vec<Entry>,
    /// How many lines could not be read and were left out.
    pub unreadable: usize,
}

impl Journal {
    /// Opens the journal's directory, making it where it is missing. Other runs are waited for until `deadline`.
    pub fn create(tree: &Tree, deadline: Instant) -> Result<Self, JournalError> {
        let parent = tree.ensure_directory(PARENT, Mode::from_bits_truncate(0o755))?;
        match parent.make_directory(DIRECTORY, Mode::from_bits_truncate(0o700)) {
            Ok(()) => parent.sync()?,
            Err(StepError {
                errno: Errno::EEXIST,
                ..
            }) => {}
            Err(error) => return Err(error.into()),
        }
        Self::trusted(tree, &parent, deadline)
    }

    /// Opens the journal's directory for reading; none where there is no journal.
    pub fn open(tree: &Tree, deadline: Instant) -> Result<Option<Self>, JournalError> {
        let absent = |error: &StepError| error.errno == Errno::ENOENT;
        let parent = match tree.directory(PARENT) {
            Err(error) if absent(&error) => return Ok(None),
            other => other?,
        };
        match parent.stat(DIRECTORY) {
            Err(error) if absent(&error) => return Ok(None),
            other => other?,
        };
        Self::trusted(tree, &parent, deadline).map(Some)
    }

    fn trusted(tree: &Tree, parent: &Directory, deadline: Instant) -> Result<Self, JournalError> {
        let untrusted = |problem| JournalError::Untrusted {
            path: parent.shown(DIRECTORY),
            problem,
        };
        let directory = match parent.subdirectory(DIRECTORY) {
            Err(StepError {
                errno: Errno::ELOOP | Errno::ENOTDIR,
                ..
            }) => {
                return Err(untrusted("it is not a directory"));
            }
            other => other?,
        };
        if !is_private_to_us(&directory.stat_open(&directory, ".")?) {
            return Err(untrusted("users other than root may write in it"));
        }
        log::trace!(
            "journal in {}",
            tree.path().join(PARENT).join(DIRECTORY).display()
        );
        Ok(Self {
            directory,
            deadline,
        })
    }

    /// Records that a change is about to be made, and returns its number. When this returns, it is on disk.
    pub fn intend(&self, intent: &Intent) -> Result<u64, JournalError> {
        let mut opened = self.file(true)?;
        let history = opened.history()?;
        let number = history
            .entries
            .iter()
            .map(|entry| entry.number)
            .max()
            .unwrap_or(0)
            + 1;
        let intent = intent.clone();
        opened.append(&Record::Intent {
            number,
            time: rfc3339(SystemTime::now()),
            vmid: intent.vmid.get(),
            node: intent.node,
            origin: intent.origin,
            undoes: intent.undoes,
            before: intent.before,
            after: intent.after,
            changes: intent.changes,
        })?;
        Ok(number)
    }

    /// Records that a change was made (`after`: the file's digest now) or not made (none).
    pub fn conclude(&self, number: u64, after: Option<Digest>) -> Result<(), JournalError> {
        self.file(true)?.append(&outcome(number, after))
    }

    /// Writes the outcome of changes of this VM that a killed run left open, as far as the configuration's present
    /// digest tells it.
    ///
    /// To be called with the VM's lock held: without it the change may just be under way.
    pub fn settle(&self, vmid: Vmid, present: Digest) -> Result<(), JournalError> {
        let mut opened = self.file(true)?;
        // Only the last one: the digest says nothing about an earlier open change that others followed.
        let last = opened
            .history()?
            .entries
            .into_iter()
            .rfind(|entry| entry.intent.vmid == vmid);
        let Some(entry) = last.filter(|entry| entry.state == State::Open) else {
            return Ok(());
        };
        if entry.intent.after == Some(present) {
            opened.append(&outcome(entry.number, Some(present)))
        } else if entry.intent.before == present {
            opened.append(&outcome(entry.number, None))
        } else {
            Ok(())
        }
    }

    /// Everything the journal says about one VM.
    pub fn history(&self, vmid: Vmid) -> Result<History, JournalError> {
        let mut opened = match self.file(false) {
            Err(JournalError::Step(error)) if error.errno == Errno::ENOENT => {
                return Ok(History::default());
            }
            other => other?,
        };
        let mut history = opened.history()?;
        history.entries.retain(|entry| entry.intent.vmid == vmid);
        Ok(history)
    }

    /// The change of `fix` or the hook that `undo` would take back: see [`History::last_edit`].
    pub fn last_edit(
        &self,
        vmid: Vmid,
        present: Digest,
        reads_as_left: impl FnMut(&Entry) -> bool,
    ) -> Result<Option<Entry>, JournalError> {
        Ok(self
            .history(vmid)?
            .last_edit(present, reads_as_left)
            .cloned())
    }

    /// Opens and locks the file. For reading it is not created.
    fn file(&self, writable: bool) -> Result<Opened<'_>, JournalError> {
        loop {
            let opened = self.attempt(writable)?;
            if let Some(opened) = opened {
                return Ok(opened);
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(JournalError::Busy(self.directory.shown(FILE)));
            }
            std::thread::sleep(left.min(POLL));
        }
    }

    fn attempt(&self, writable: bool) -> Result<Option<Opened<'_>>, JournalError> {
        let untrusted = |problem| JournalError::Untrusted {
            path: self.directory.shown(FILE),
            problem,
        };
        let fd = match self.open_file(writable) {
            // A socket, or a FIFO without a reader.
            Err(StepError {
                errno: Errno::ELOOP | Errno::ENXIO | Errno::EISDIR,
                ..
            }) => {
                return Err(untrusted("it is not a regular file"));
            }
            other => other?,
        };
        let stat = self.directory.stat_open(&fd, FILE)?;
        if !is_regular(&stat) {
            return Err(untrusted("it is not a regular file"));
        }
        if !is_private_to_us(&stat) {
            return Err(untrusted("users other than root may write it"));
        }
        if stat.st_nlink != 1 {
            return Err(untrusted("it has further names, or was just removed"));
        }
        let lock = if writable {
            FlockArg::LockExclusiveNonblock
        } else {
            FlockArg::LockSharedNonblock
        };
        match Flock::lock(File::from(fd), lock) {
            Ok(file) => Ok(Some(Opened {
                directory: &self.directory,
                file,
                writable,
            })),
            Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => Ok(None),
            Err((_, errno)) => Err(self.directory.error("lock", FILE, errno).into()),
        }
    }

    fn open_file(&self, writable: bool) -> Result<OwnedFd, StepError> {
        if !writable {
            return self.directory.open(FILE, OFlag::O_RDONLY, Mode::empty());
        }
        let flags = OFlag::O_RDWR | OFlag::O_APPEND;
        let mode = Mode::from_bits_truncate(0o600);
        match self.directory.open(FILE, flags, Mode::empty()) {
            Err(error) if error.errno == Errno::ENOENT => {}
            other => return other,
        }
        match self
            .directory
            .open(FILE, flags | OFlag::O_CREAT | OFlag::O_EXCL, mode)
        {
            // Another run was faster.
            Err(error) if error.errno == Errno::EEXIST => {
                self.directory.open(FILE, flags, Mode::empty())
            }
            Ok(fd) => {
                // Its name too must outlive a power failure before anything relies on it.
                self.directory.sync()?;
                Ok(fd)
            }
            Err(error) => Err(error),
        }
    }
}

fn outcome(number: u64, after: Option<Digest>) -> Record {
    Record::Outcome {
        number,
        time: rfc3339(SystemTime::now()),
        done: after.is_some(),
        after,
    }
}

impl Opened<'_> {
    fn error(&self, operation: &'static str, error: &std::io::Error) -> StepError {
        self.directory.error(operation, FILE, errno_of(error))
    }

    /// Reads the end of the file. When it is open for writing, a torn last line is cut off.
    fn history(&mut self) -> Result<History, JournalError> {
        let mut file: &File = &self.file;
        let length = file
            .seek(SeekFrom::End(0))
            .map_err(|error| self.error("examine", &error))?;
        let start = length.saturating_sub(MAX_READ);
        file.seek(SeekFrom::Start(start))
            .map_err(|error| self.error("read", &error))?;
        let mut text = Vec::new();
        file.take(MAX_READ)
            .read_to_end(&mut text)
            .map_err(|error| self.error("read", &error))?;
        let whole = text
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |end| end + 1);
        if whole < text.len() && self.writable {
            let keep = start + whole as u64;
            file.set_len(keep)
                .map_err(|error| self.error("repair", &error))?;
        }
        text.truncate(whole);
        let begin = if start == 0 {
            0
        } else {
            text.iter()
                .position(|&byte| byte == b'\n')
                .map_or(text.len(), |end| end + 1)
        };
        Ok(History::parse(text.get(begin..).unwrap_or_default()))
    }

    fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        if line.len() > MAX_LINE {
            return Err(JournalError::TooLong { size: line.len() });
        }
        // Cuts off what another run left half-written; else this record would be appended to it.
        self.history()?;
        let mut file: &File = &self.file;
        let length = file
            .seek(SeekFrom::End(0))
            .map_err(|error| self.error("examine", &error))?;
        let written = file.write_all(&line).and_then(|()| file.sync_all());
        if let Err(error) = written {
            // A record that is not surely on disk must not be seen later either. If this fails too, the next run
            // cuts off a torn line, and a whole one is an intent that nothing followed.
            if let Err(error) = file.set_len(length) {
                log::debug!("cannot shorten the journal again: {error}");
            }
            return Err(self.error("write", &error).into());
        }
        Ok(())
    }
}

impl History {
    /// Reads journal lines.
    fn parse(text: &[u8]) -> Self {
        let mut history = Self::default();
        for line in text
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            match serde_json::from_slice(line)
                .ok()
                .and_then(Entry::from_record)
            {
                Some(Line::Entry(entry)) => history.entries.push(entry),
                Some(Line::Outcome { number, after }) => {
                    let entry = history
                        .entries
                        .iter_mut()
                        .rfind(|entry| entry.number == number);
                    if let Some(entry) = entry {
                        entry.state = if after.is_some() {
                            State::Done
                        } else {
                            State::Failed
                        };
                        entry.intent.after = after.or(entry.intent.after);
                    }
                }
                None => history.unreadable += 1,
            }
        }
        history
    }

    /// The last change of `fix` or the hook that was made and not taken back.
    ///
    /// One without a recorded outcome counts as made if the file's present digest is the one after it, as not made
    /// if it is the one before it, and otherwise if its lines read as that change left them, which
    /// `reads_as_left` must tell.
    pub fn last_edit(
        &self,
        present: Digest,
        mut reads_as_left: impl FnMut(&Entry) -> bool,
    ) -> Option<&Entry> {
        let mut was_made = |entry: &Entry| match entry.state {
            State::Done => true,
            State::Failed => false,
            State::Open if entry.intent.after == Some(present) => true,
            State::Open if entry.intent.before == present => false,
            State::Open => reads_as_left(entry),
        };
        let mut undone = Vec::new();
        for entry in self.entries.iter().rev() {
            if undone.contains(&entry.number) {
                continue;
            }
            match (entry.intent.origin, entry.intent.undoes) {
                (Origin::Undo, number) => {
                    // For an undo, "reads as left" means that the old lines are back.
                    if was_made(entry) {
                        undone.extend(number);
                    }
                }
                (Origin::Hook | Origin::Fix, _) => {
                    if was_made(entry) {
                        return Some(entry);
                    }
                }
            }
        }
        None
    }
}

enum Line {
    Entry(Entry),
    Outcome { number: u64, after: Option<Digest> },
}

impl Entry {
    fn from_record(record: Record) -> Option<Line> {
        Some(match record {
            Record::Intent {
                number,
                time,
                vmid,
                node,
                origin,
                undoes,
                before,
                after,
                changes,
            } => Line::Entry(Self {
                number,
                time,
                intent: Intent {
                    vmid: Vmid::new(vmid)?,
                    node,
                    origin,
                    undoes,
                    before,
                    after,
                    changes,
                },
                state: State::Open,
            }),
            Record::Outcome {
                number,
                done,
                after,
                ..
            } => {
                if done != after.is_some() {
                    return None;
                }
                Line::Outcome { number, after }
            }
        })
    }
}

/// Bytes as JSON text and back: `\\` for a backslash, `\xNN` for a byte that is not UTF-8.
mod escaped {
    use serde::{Deserialize as _, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "the signature that serde calls")]
    pub(super) fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => serializer.serialize_some(&escape(bytes)),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        Option::<String>::deserialize(deserializer)?
            .map(|text| unescape(&text))
            .transpose()
            .map_err(serde::de::Error::custom)
    }

    pub(super) fn escape(bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            text.push_str(&chunk.valid().replace('\\', "\\\\"));
            text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
        }
        text
    }

    pub(super) fn unescape(text: &str) -> Result<Vec<u8>, &'static str> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('\\') {
            bytes.extend_from_slice(before.as_bytes());
            rest = if let Some(after) = after.strip_prefix('\\') {
                bytes.push(b'\\');
                after
            } else {
                let digits = after.strip_prefix('x').and_then(|after| after.get(..2));
                let digits = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
                let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                bytes.push(byte.ok_or("a backslash is followed by neither a backslash nor xNN")?);
                after.get(3..).unwrap_or_default()
            };
        }
        bytes.extend_from_slice(rest.as_bytes());
        Ok(bytes)
    }
}

/// A point in time as RFC 3339 in UTC, whole seconds. Times before 1970 read as 1970.
fn rfc3339(time: SystemTime) -> String {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (mut days, second) = (since / 86_400, since % 86_400);
    let leap = |year: u64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let mut year = 1970;
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let february = if leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!(
        "{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z",
        days + 1
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use proptest::prelude::*;

    use super::*;

    fn vmid() -> Vmid {
        Vmid::new(101).expect("a VM ID")
    }

    fn intent() -> Intent {
        Intent {
            vmid: vmid(),
            node: "pve1".to_owned(),
            origin: Origin::Hook,
            undoes: None,
            before: Digest::of(b"old"),
            after: Some(Digest::of(b"new")),
            changes: vec![LineChange {
                key: "hostpci0".to_owned(),
                line: 3,
                old: Some(b"hostpci0: 0000:0b:00,pcie=1".to_vec()),
                new: Some(b"hostpci0: 0000:0b:00.0,pcie=1".to_vec()),
            }],
        }
    }

    struct Bench {
        root: tempfile::TempDir,
        tree: Tree,
    }

    impl Bench {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("directory");
            Self {
                tree: Tree::open(root.path()).expect("tree"),
                root,
            }
        }

        fn journal(&self) -> Journal {
            Journal::create(&self.tree, Instant::now()).expect("journal")
        }

        fn path(&self) -> PathBuf {
            self.root.path().join("var/lib/pve-atomicops/journal")
        }

        fn text(&self) -> String {
            std::fs::read_to_string(self.path()).expect("journal")
        }
    }

    fn none(_: &Entry) -> bool {
        false
    }

    #[test]
    fn what_is_written_is_read_back() {
        let bench = Bench::new();
        assert!(
            Journal::open(&bench.tree, Instant::now())
                .expect("none")
                .is_none()
        );
        let journal = bench.journal();
        assert!(journal.history(vmid()).expect("empty").entries.is_empty());
        assert_eq!(journal.intend(&intent()).expect("intent"), 1);
        assert_eq!(journal.intend(&intent()).expect("intent"), 2);
        journal
            .conclude(1, Some(Digest::of(b"new")))
            .expect("outcome");
        journal.conclude(2, None).expect("outcome");
        let journal = Journal::open(&bench.tree, Instant::now())
            .expect("open")
            .expect("there");
        let history = journal.history(vmid()).expect("history");
        assert_eq!(history.unreadable, 0);
        let states: Vec<_> = history
            .entries
            .iter()
            .map(|e| (e.number, e.state))
            .collect();
        assert_eq!(states, [(1, State::Done), (2, State::Failed)]);
        assert!(history.entries.iter().all(|entry| entry.intent == intent()));
        let other = Vmid::new(102).expect("a VM ID");
        assert!(journal.history(other).expect("history").entries.is_empty());
        let mode = |path| std::fs::metadata(path).expect("there").permissions().mode() & 0o7777;
        assert_eq!(mode(bench.path()), 0o600);
        assert_eq!(
            mode(bench.path().parent().expect("parent").to_owned()),
            0o700
        );
    }

    #[test]
    fn a_record_has_the_documented_shape() {
        let bench = Bench::new();
        bench.journal().intend(&intent()).expect("intent");
        let mut line: serde_json::Value = serde_json::from_str(&bench.text()).expect("JSON");
        let time = line["time"].take();
        assert_eq!(
            time.as_str().map(str::len),
            Some("2026-01-31T12:00:00Z".len())
        );
        let expected = serde_json::json!({
            "record": "intent", "number": 1, "time": null, "vmid": 101, "node": "pve1",
            "origin": "hook", "undoes": null,
            "before": "c00dbbc9dadfbe1e232e93a729dd4752fade0abf",
            "after": "c2a6b03f190dfb2b4aa91f8af8d477a9bc3401dc",
            "changes": [{"key": "hostpci0", "line": 3, "old": "hostpci0: 0000:0b:00,pcie=1",
                "new": "hostpci0: 0000:0b:00.0,pcie=1"}],
        });
        assert_eq!(line, expected);
    }

    #[test]
    fn a_torn_last_line_is_cut_off_wherever_it_tore() {
        let bench = Bench::new();
        bench.journal().intend(&intent()).expect("intent");
        bench
            .journal()
            .conclude(1, Some(Digest::of(b"new")))
            .expect("outcome");
        let whole = bench.text();
        let line = whole.lines().next().expect("a line").to_owned();
        for cut in 1..=line.len() {
            let torn = format!("{whole}{}", line.get(..cut).expect("ASCII"));
            std::fs::write(bench.path(), &torn).expect("written");
            // Reading tolerates it and leaves it; writing repairs it.
            let history = bench.journal().history(vmid()).expect("history");
            assert_eq!((history.entries.len(), history.unreadable), (1, 0));
            assert_eq!(bench.text(), torn);
            assert_eq!(bench.journal().intend(&intent()).expect("intent"), 2);
            assert!(bench.text().starts_with(&whole));
            let history = bench.journal().history(vmid()).expect("history");
            assert_eq!((history.entries.len(), history.unreadable), (2, 0));
        }
        // Torn in the middle of the very first line.
        std::fs::write(bench.path(), "{\"record\":").expect("written");
        assert_eq!(bench.journal().intend(&intent()).expect("intent"), 1);
        assert_eq!(bench.text().lines().count(), 1);
    }

    #[test]
    fn damage_in_the_middle_is_counted_and_skipped() {
        let bench = Bench::new();
        bench.journal().intend(&intent()).expect("intent");
        let line = bench.text();
        let damaged = [
            line.as_bytes(),
            b"\0\0\0\0\n",
            b"{\"record\":\"other\"}\n",
            b"{\"record\":\"outcome\",\"number\":1,\"time\":\"\",\"done\":true,\"after\":null}\n",
            b"\xff\n",
            line.replace("\"vmid\":101", "\"vmid\":1").as_bytes(),
            line.replace("\"number\":1", "\"number\":9").as_bytes(),
        ]
        .concat();
        std::fs::write(bench.path(), damaged).expect("written");
        let history = bench.journal().history(vmid()).expect("history");
        assert_eq!((history.entries.len(), history.unreadable), (2, 5));
        assert_eq!(bench.journal().intend(&intent()).expect("intent"), 10);
    }

    #[test]
    fn only_the_end_of_a_huge_journal_is_read() {
        let bench = Bench::new();
        bench.journal().intend(&intent()).expect("intent");
        let line = bench.text();
        let count = usize::try_from(MAX_READ).expect("fits") / line.len() + 10;
        std::fs::write(bench.path(), line.repeat(count)).expect("written");
        let history = bench.journal().history(vmid()).expect("history");
        assert_eq!(history.unreadable, 0);
        assert!(history.entries.len() < count && history.entries.len() > count - 20);
        assert_eq!(bench.journal().intend(&intent()).expect("intent"), 2);
    }

    #[test]
    fn what_others_could_have_written_is_not_trusted() {
        let bench = Bench::new();
        bench.journal().intend(&intent()).expect("intent");
        let mode = |path: &std::path::Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("mode");
        };
        let refused = |what: &str| {
            let result = Journal::create(&bench.tree, Instant::now())
                .and_then(|journal| journal.intend(&intent()));
            assert!(
                matches!(result, Err(JournalError::Untrusted { .. })),
                "{what}: {result:?}"
            );
            let result = Journal::open(&bench.tree, Instant::now())
                .and_then(|journal| journal.expect("there").history(vmid()));
            assert!(
                matches!(result, Err(JournalError::Untrusted { .. })),
                "{what}: {result:?}"
            );
        };
        mode(&bench.path(), 0o620);
        refused("group may write");
        mode(&bench.path(), 0o602);
        refused("others may write");
        mode(&bench.path(), 0o600);
        let directory = bench.path().parent().expect("parent").to_owned();
        mode(&directory, 0o777);
        refused("directory");
        mode(&directory, 0o700);
        std::fs::hard_link(bench.path(), directory.join("other")).expect("hard link");
        refused("hard link");
        std::fs::remove_file(bench.path()).expect("removed");
        symlink("other", bench.path()).expect("link");
        refused("link");
        std::fs::remove_file(bench.path()).expect("removed");
        nix::unistd::mkfifo(&bench.path(), Mode::from_bits_truncate(0o600)).expect("FIFO");
        refused("FIFO");
        std::fs::remove_file(bench.path()).expect("removed");
        std::fs::create_dir(bench.path()).expect("directory");
        refused("directory for a file");
        std::fs::remove_dir_all(&directory).expect("removed");
        std::fs::create_dir(bench.root.path().join("elsewhere")).expect("directory");
        symlink("../../elsewhere", &directory).expect("link");
        refused("directory is a link");
    }

    #[test]
    fn a_foreign_owner_is_not_trusted() {
        let bench = Bench::new();
        bench.journal().intend(&intent()).expect("intent");
        // Only root can give files away; the tests run as root.
        std::os::unix::fs::chown(bench.path(), Some(65534), None).expect("chown");
        let result = bench.journal().intend(&intent());
        assert!(
            matches!(result, Err(JournalError::Untrusted { .. })),
            "{result:?}"
        );
    }

    #[test]
    fn another_writer_is_waited_for_until_the_deadline() {
        let bench = Bench::new();
        let journal = bench.journal();
        journal.intend(&intent()).expect("intent");
        let held = journal.file(true).expect("held");
        let result = bench.journal().intend(&intent());
        assert!(matches!(result, Err(JournalError::Busy(_))), "{result:?}");
        drop(held);
        assert_eq!(bench.journal().intend(&intent()).expect("intent"), 2);
    }

    #[test]
    fn an_open_change_is_settled_by_the_digest() {
        for (present, state) in [
            (b"new", State::Done),
            (b"old", State::Failed),
            (b"xxx", State::Open),
        ] {
            let bench = Bench::new();
            let journal = bench.journal();
            journal.intend(&intent()).expect("intent");
            journal
                .settle(vmid(), Digest::of(present))
                .expect("settled");
            let history = journal.history(vmid()).expect("history");
            assert_eq!(history.entries.first().expect("entry").state, state);
            journal.settle(vmid(), Digest::of(b"new")).expect("settled");
            let lines = bench.text().lines().count();
            assert_eq!(lines, 2, "{present:?}: a settled change is left alone");
        }
    }

    /// What `last_edit` finds, as numbers.
    fn last(history: &History, present: &[u8], reads: impl FnMut(&Entry) -> bool) -> Option<u64> {
        history
            .last_edit(Digest::of(present), reads)
            .map(|entry| entry.number)
    }

    #[test]
    fn the_last_edit_is_the_last_that_was_made_and_not_undone() {
        let bench = Bench::new();
        let journal = bench.journal();
        let history = || journal.history(vmid()).expect("history");
        let done = Some(Digest::of(b"new"));
        assert_eq!(last(&history(), b"new", none), None);
        journal.intend(&intent()).expect("intent");
        journal.conclude(1, done).expect("outcome");
        assert_eq!(last(&history(), b"anything", none), Some(1));
        journal.intend(&intent()).expect("intent");
        journal.conclude(2, None).expect("outcome");
        assert_eq!(
            last(&history(), b"anything", none),
            Some(1),
            "2 was not made"
        );
        journal
            .intend(&Intent {
                origin: Origin::Fix,
                after: None,
                ..intent()
            })
            .expect("intent");
        journal.conclude(3, done).expect("outcome");
        assert_eq!(last(&history(), b"anything", none), Some(3));
        let undo = |number| Intent {
            origin: Origin::Undo,
            undoes: Some(number),
            ..intent()
        };
        journal.intend(&undo(3)).expect("intent");
        journal.conclude(4, done).expect("outcome");
        assert_eq!(
            last(&history(), b"anything", none),
            Some(1),
            "3 was taken back"
        );
        journal.intend(&undo(1)).expect("intent");
        journal.conclude(5, None).expect("outcome");
        assert_eq!(
            last(&history(), b"anything", none),
            Some(1),
            "the undo failed"
        );
        journal.intend(&undo(1)).expect("intent");
        journal.conclude(6, done).expect("outcome");
        assert_eq!(last(&history(), b"anything", none), None);
    }

    #[test]
    fn an_open_change_counts_by_digest_and_then_by_its_lines() {
        let bench = Bench::new();
        let journal = bench.journal();
        journal.intend(&intent()).expect("intent");
        journal
            .conclude(1, Some(Digest::of(b"old")))
            .expect("outcome");
        journal.intend(&intent()).expect("intent");
        let history = journal.history(vmid()).expect("history");
        let unasked = |_: &Entry| -> bool { panic!("the digest decides") };
        assert_eq!(last(&history, b"new", unasked), Some(2));
        assert_eq!(last(&history, b"old", unasked), Some(1));
        assert_eq!(last(&history, b"xxx", |entry| entry.number == 2), Some(2));
        assert_eq!(last(&history, b"xxx", none), Some(1));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let text = |seconds| rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        // Each from `date -u -d @N`.
        assert_eq!(text(0), "1970-01-01T00:00:00Z");
        assert_eq!(text(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(text(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(text(951_868_800), "2000-03-01T00:00:00Z");
        assert_eq!(text(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(text(1_735_689_600), "2025-01-01T00:00:00Z");
        assert_eq!(text(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(
            rfc3339(SystemTime::UNIX_EPOCH - Duration::from_secs(1)),
            text(0)
        );
    }

    #[test]
    fn digests_are_sha1_in_hexadecimal() {
        let digest = Digest::of(b"abc");
        assert_eq!(
            digest.to_string(),
            "a9993e364706816aba3e25717850c26c9cd0d89d"
        );
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for wrong in [
            "",
            "a9",
            "+9993e364706816aba3e25717850c26c9cd0d89d",
            &"g".repeat(40),
        ] {
            assert_eq!(wrong.parse::<Digest>(), Err(DigestError));
        }
    }

    #[test]
    fn escapes_are_readable_and_strict() {
        assert_eq!(escaped::escape("Grüße".as_bytes()), "Grüße");
        assert_eq!(escaped::escape(b"a\\x41\xffb"), "a\\\\x41\\xffb");
        for wrong in ["\\", "\\x", "\\x4", "\\n", "\\x+4", "\\xü"] {
            assert!(escaped::unescape(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_survive(
            old in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..80)),
            new in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..80)),
        ) {
            let change = LineChange { key: "hostpci0".to_owned(), line: 1, old, new };
            let text = serde_json::to_string(&change).expect("JSON");
            prop_assert!(!text.contains('\n'));
            let back: LineChange = serde_json::from_str(&text).expect("JSON");
            prop_assert_eq!(back, change);
        }
    }
}
