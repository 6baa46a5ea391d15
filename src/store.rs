//! The only writer: changes a VM's configuration and remembers how to take that back.
//!
//! - [`lock`]: Proxmox's lock of the VM, ours or our caller's.
//! - [`journal`]: what was changed, written before the change is made.
//! - [`replace`]: the exchange of the file, old or new at any moment.
//! - [`tree`]: paths beneath the root.
//!
//! What is written is decided elsewhere: this module gets the bytes before and after. It still refuses bytes that
//! differ in more than `hostpciN` lines of the main section, so that no mistake elsewhere can reach the rest of a
//! configuration.
//!
//! Order of a rewrite: lock, compare, intent into the journal, temporary file, compare, check the lock, rename,
//! sync, outcome into the journal. Killed between any two of them, the configuration is the old or the new one, and
//! the journal tells which.

use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use crate::vmconf::{HostpciIndex, Vmid};

pub mod journal;
pub mod lock;
pub mod replace;
pub mod tree;

use journal::{Digest, Intent, Journal, JournalError, LineChange, Origin};
use lock::{LockError, VmLock};
use replace::{Cause, Configs, ReplaceError, Replaced};
use tree::{StepError, Tree};

/// A change of one VM's configuration, as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite<'a> {
    /// Of which VM.
    pub vmid: Vmid,
    /// On which node, for the journal.
    pub node: &'a str,
    /// What makes it, for the journal.
    pub origin: Origin,
    /// The number of the journal entry that it takes back.
    pub undoes: Option<u64>,
    /// The whole file as it was read.
    pub before: &'a [u8],
    /// The whole file as it shall be.
    pub after: &'a [u8],
    /// The lines in which the two differ, for the journal.
    pub changes: Vec<LineChange>,
}

/// A rewrite that took place.
#[derive(Debug)]
pub struct Rewritten {
    /// Its number in the journal; none where there was nothing to change.
    pub number: Option<u64>,
    /// What did not work afterwards. The new configuration is in place all the same.
    pub doubts: Vec<Doubt>,
}

/// A trouble that came too late to stop a rewrite.
#[derive(Debug, thiserror::Error)]
pub enum Doubt {
    /// It may not survive a power failure.
    #[error("the new configuration is in place, but may not survive a power failure")]
    NotDurable(#[source] StepError),
    /// Its outcome is missing in the journal; it will be recognised by its digest.
    #[error("the new configuration is in place, but the journal could not note so")]
    NotNoted(#[source] JournalError),
}

/// Why a rewrite did not take place. The configuration is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The new bytes differ from the old ones elsewhere than in `hostpciN` lines of the main section.
    #[error("the change would touch more than hostpci lines of the main section")]
    TooWide,
    /// The VM's lock could not be had.
    #[error("the VM's lock is not free")]
    Lock(#[source] LockError),
    /// The change could not be recorded, so that it could not be taken back.
    #[error("the change cannot be recorded, and is therefore not made")]
    Journal(#[source] JournalError),
    /// A directory could not be opened.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The file could not be read or replaced.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
}

impl From<Cause> for StoreError {
    fn from(cause: Cause) -> Self {
        ReplaceError::from(cause).into()
    }
}

/// Makes a change: under the VM's lock, recorded, and only if the file still holds `before`.
///
/// Waits for a lock of strangers until `deadline`; the steps after it are not bounded.
pub fn rewrite(
    tree: &Tree,
    rewrite: Rewrite<'_>,
    deadline: Instant,
) -> Result<Rewritten, StoreError> {
    let Rewrite {
        vmid,
        before,
        after,
        ..
    } = rewrite;
    if before == after {
        return Ok(Rewritten {
            number: None,
            doubts: Vec::new(),
        });
    }
    if !differs_in_hostpci_only(before, after) {
        return Err(StoreError::TooWide);
    }
    let lock = VmLock::acquire(tree, vmid, deadline).map_err(StoreError::Lock)?;
    let configs = Configs::open(tree)?;
    configs.expect(vmid, before)?;

    let journal = Journal::create(tree, deadline).map_err(StoreError::Journal)?;
    journal
        .settle(vmid, Digest::of(before))
        .map_err(StoreError::Journal)?;
    let intent = Intent {
        vmid,
        node: rewrite.node.to_owned(),
        origin: rewrite.origin,
        undoes: rewrite.undoes,
        before: Digest::of(before),
        after: Some(Digest::of(after)),
        changes: rewrite.changes,
    };
    let number = journal.intend(&intent).map_err(StoreError::Journal)?;

    match configs.replace(vmid, before, after, &lock) {
        Ok(replaced) => {
            let mut doubts = Vec::new();
            if let Replaced::Unconfirmed(step) = replaced {
                doubts.push(Doubt::NotDurable(step));
            }
            if let Err(error) = journal.conclude(number, intent.after) {
                doubts.push(Doubt::NotNoted(error));
            }
            Ok(Rewritten {
                number: Some(number),
                doubts,
            })
        }
        Err(error) => {
            // Without this line the next run would settle it by the digest.
            if let Err(error) = journal.conclude(number, None) {
                log::debug!("the journal could not note that change {number} failed: {error}");
            }
            Err(error.into())
        }
    }
}

/// Whether two configurations are equal but for `hostpciN` lines in their main sections. An unterminated last line
/// counts as terminated, since a line may be added after it.
fn differs_in_hostpci_only(before: &[u8], after: &[u8]) -> bool {
    other_lines(before).eq(other_lines(after))
}

/// The lines that must stay, without their endings: all from the first section header on, and before it all but
/// `hostpciN` lines.
fn other_lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut main = true;
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    text.split(|&byte| byte == b'\n').filter(move |line| {
        let trimmed = line.trim_ascii_end();
        main = main && !(trimmed.starts_with(b"[") && trimmed.ends_with(b"]"));
        !(main && is_hostpci(line))
    })
}

fn is_hostpci(line: &[u8]) -> bool {
    let key = line.split(|&byte| byte == b':').next().unwrap_or_default();
    key.len() < line.len()
        && std::str::from_utf8(key).is_ok_and(|key| HostpciIndex::from_key(key).is_some())
}

/// A mark in the run-time directory, which the next boot removes.
#[derive(Debug)]
pub struct Stamp {
    directory: tree::Directory,
    name: String,
}

impl Stamp {
    /// Where the marks are, below the root.
    const DIRECTORY: &str = "run/pve-atomicops";

    /// The mark with this name, which may not contain a slash.
    pub fn new(tree: &Tree, name: &str) -> Result<Self, StepError> {
        let directory = tree.ensure_directory(Self::DIRECTORY, Mode::from_bits_truncate(0o700))?;
        let stat = directory.stat_open(&directory, ".")?;
        if !tree::is_private_to_us(&stat) {
            return Err(directory.error("trust", ".", Errno::EPERM));
        }
        Ok(Self {
            directory,
            name: name.to_owned(),
        })
    }

    /// Sets the mark; false where it was set already. Of several runs at once exactly one gets true.
    pub fn set(&self) -> Result<bool, StepError> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        match self
            .directory
            .open(&self.name, flags, Mode::from_bits_truncate(0o600))
        {
            Ok(_) => Ok(true),
            Err(error) if error.errno == Errno::EEXIST => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the mark; nothing happens where it is not set.
    pub fn clear(&self) -> Result<(), StepError> {
        match self.directory.remove(&self.name) {
            Err(error) if error.errno == Errno::ENOENT => Ok(()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hostpci_lines_of_the_main_section_may_differ() {
        let only = |before: &str, after: &str| {
            assert!(
                differs_in_hostpci_only(before.as_bytes(), after.as_bytes()),
                "{before:?} {after:?}"
            );
        };
        only("a: 1\nhostpci0: x\nb: 2\n", "a: 1\nhostpci0: y\nb: 2\n");
        only("a: 1\nhostpci0: x\n", "a: 1\nhostpci0: y\nhostpci1: z\n");
        only("a: 1\nhostpci0: x", "a: 1\nhostpci0: y\nhostpci1: z\n");
        only(
            "hostpci0: x\n[snap]\nhostpci0: x\n",
            "hostpci0: y\n[snap]\nhostpci0: x\n",
        );
        only("#a\nhostpci15: x\n", "#a\n");
        only("a: [x]\nhostpci0: x\n", "a: [x]\nhostpci0: y\n");

        let wide = |before: &str, after: &str| {
            assert!(
                !differs_in_hostpci_only(before.as_bytes(), after.as_bytes()),
                "{before:?} {after:?}"
            );
        };
        wide("a: 1\nhostpci0: x\n", "a: 2\nhostpci0: x\n");
        wide("a: 1\nhostpci0: x\n", "hostpci0: x\n");
        wide("a: 1\n\nhostpci0: x\n", "a: 1\nhostpci0: x\n");
        wide("a: 1\r\nhostpci0: x\n", "a: 1\nhostpci0: x\n");
        wide("a: 1\nb: 2\n", "b: 2\na: 1\n");
        wide(
            "hostpci0: x\n[snap]\nhostpci0: x\n",
            "hostpci0: x\n[snap]\nhostpci0: y\n",
        );
        wide(
            "hostpci0: x\n[PENDING] \nhostpci0: x\n",
            "hostpci0: x\n[PENDING] \n",
        );
        wide("#hostpci0: x\n", "#hostpci0: y\n");
        wide("hostpci16: x\n", "hostpci16: y\n");
        wide("hostpci: x\n", "hostpci: y\n");
        wide("hostpci0\n", "hostpci1\n");
    }

    #[test]
    fn a_stamp_is_set_once_until_it_is_cleared() {
        let root = tempfile::tempdir().expect("directory");
        let tree = Tree::open(root.path()).expect("tree");
        let stamp = Stamp::new(&tree, "restart-101").expect("stamp");
        stamp.clear().expect("nothing to clear");
        assert!(stamp.set().expect("set"));
        assert!(!stamp.set().expect("set already"));
        assert!(
            !Stamp::new(&tree, "restart-101")
                .expect("stamp")
                .set()
                .expect("set already")
        );
        assert!(
            Stamp::new(&tree, "restart-102")
                .expect("stamp")
                .set()
                .expect("another")
        );
        stamp.clear().expect("cleared");
        assert!(stamp.set().expect("set again"));
    }

    #[test]
    fn stamps_in_a_directory_of_others_are_not_trusted() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().expect("directory");
        let tree = Tree::open(root.path()).expect("tree");
        let directory = root.path().join("run/pve-atomicops");
        std::fs::create_dir_all(&directory).expect("directory");
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).expect("mode");
        let error = Stamp::new(&tree, "restart-101").expect_err("untrusted");
        assert_eq!(error.errno, Errno::EPERM);
    }
}
