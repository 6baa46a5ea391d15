//! Proxmox's own lock of one VM: `flock(2)` on `/var/lock/qemu-server/lock-VMID.conf`.
//!
//! Proxmox holds it around every change of a VM's configuration and around the start, pre-start and post-stop hooks
//! included. A hook therefore runs *inside* the lock and must not wait for it: where an ancestor process holds
//! it, the lock counts as ours ([`Holder::Caller`]). Who holds it is read from `/proc/locks`, whose process IDs
//! are those that took the lock; ancestry from the parent IDs in `/proc/PID/stat`. Both are of the running system
//! even when the tree is another one, as the lock is too.
//!
//! A shared lock of an ancestor gives no right to write and is treated like a stranger's.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::stat::{FileStat, Mode, major, minor};

use super::tree::{Directory, StepError, Tree, is_regular};
use crate::vmconf::Vmid;

/// Where the lock files are, below the root (`PVE::QemuConfig::config_file_lock`, qemu-server 9.2.6).
const DIRECTORY: &str = "var/lock/qemu-server";

/// How long to sleep between two attempts while a stranger holds the lock.
const POLL: Duration = Duration::from_millis(25);

/// How many parents are followed: more than any process tree has, so that a reused ID cannot make a loop.
const MAX_ANCESTORS: usize = 4096;

/// No more of `/proc/locks` than this is read.
const MAX_LOCKS: u64 = 64 << 20;

/// Who holds the lock that we work under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// We do, and let go when the [`VmLock`] is dropped.
    Own,
    /// The ancestor process with this ID does; it stays locked when we end.
    Caller(u32),
}

/// A VM's lock, held.
#[derive(Debug)]
pub struct VmLock {
    directory: Directory,
    name: String,
    identity: Identity,
    holding: Holding,
}

#[derive(Debug)]
enum Holding {
    Own(#[expect(dead_code, reason = "held for its Drop, which unlocks")] Flock<OwnedFd>),
    Caller(u32),
}

/// Why a lock is not held.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Something other than a regular file has the lock file's name.
    #[error("{} is not a regular file", .0.display())]
    NotRegular(PathBuf),
    /// Another process, none of our ancestors, kept it until the deadline.
    #[error("{} is held by {}; nothing was changed", path.display(), process(*.holder))]
    Busy {
        /// The lock file.
        path: PathBuf,
        /// The process that holds it, where it could be told.
        holder: Option<u32>,
    },
    /// It was held, and no longer is.
    #[error("{} is no longer held by {}; nothing was changed", path.display(), process(*.holder))]
    Lost {
        /// The lock file.
        path: PathBuf,
        /// The ancestor that held it; none where it was ours and the file has been replaced.
        holder: Option<u32>,
    },
    /// The lock file could not be opened, made or locked.
    #[error(transparent)]
    Step(#[from] StepError),
    /// `/proc` did not tell who holds what.
    #[error("cannot read {path}")]
    Proc {
        /// Which file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

fn process(holder: Option<u32>) -> String {
    holder.map_or_else(
        || "another process".to_owned(),
        |pid| format!("process {pid}"),
    )
}

/// What `/proc/locks` knows a file by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    major: u64,
    minor: u64,
    inode: u64,
}

impl From<&FileStat> for Identity {
    fn from(stat: &FileStat) -> Self {
        Self {
            major: major(stat.st_dev),
            minor: minor(stat.st_dev),
            inode: stat.st_ino,
        }
    }
}

/// One attempt.
enum Attempt {
    Held(Identity, Holding),
    /// The file was exchanged between open and lock.
    Stale,
    Busy(Option<u32>),
}

impl VmLock {
    /// Gets the lock: at once where an ancestor or nobody holds it, else as soon as a stranger lets go, trying until
    /// `deadline` (at least once).
    ///
    /// The directory and the file are made where they are missing, as Proxmox would make them.
    pub fn acquire(tree: &Tree, vmid: Vmid, deadline: Instant) -> Result<Self, LockError> {
        let directory = tree.ensure_directory(DIRECTORY, Mode::from_bits_truncate(0o755))?;
        let name = format!("lock-{vmid}.conf");
        loop {
            let holder = match attempt(&directory, &name)? {
                Attempt::Held(identity, holding) => {
                    return Ok(Self {
                        directory,
                        name,
                        identity,
                        holding,
                    });
                }
                Attempt::Stale => None,
                Attempt::Busy(holder) => holder,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LockError::Busy {
                    path: directory.shown(&name),
                    holder,
                });
            }
            std::thread::sleep(left.min(POLL));
        }
    }

    /// Who holds it.
    pub fn holder(&self) -> Holder {
        match self.holding {
            Holding::Own(_) => Holder::Own,
            Holding::Caller(pid) => Holder::Caller(pid),
        }
    }

    /// Checks that the lock still protects: the ancestor still is one and still holds it, or our own lock is on
    /// the file that others would lock.
    pub fn confirm(&self) -> Result<(), LockError> {
        let held = match self.holding {
            Holding::Caller(pid) => {
                exclusive_holders(&locks()?, self.identity).contains(&pid)
                    && ancestors()?.contains(&pid)
            }
            Holding::Own(_) => match self.directory.stat(&self.name) {
                Ok(stat) => Identity::from(&stat) == self.identity,
                Err(StepError {
                    errno: Errno::ENOENT,
                    ..
                }) => false,
                Err(error) => return Err(error.into()),
            },
        };
        if held {
            return Ok(());
        }
        Err(LockError::Lost {
            path: self.directory.shown(&self.name),
            holder: match self.holding {
                Holding::Caller(pid) => Some(pid),
                Holding::Own(_) => None,
            },
        })
    }
}

fn attempt(directory: &Directory, name: &str) -> Result<Attempt, LockError> {
    // O_WRONLY fails at once (ENXIO) on a FIFO without a reader; O_NONBLOCK is always set by `open`.
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT;
    let fd = match directory.open(name, flags, Mode::from_bits_truncate(0o644)) {
        Ok(fd) => fd,
        // ELOOP: a symbolic link; EISDIR: a directory; ENXIO: a FIFO or a socket.
        Err(StepError {
            errno: Errno::ELOOP | Errno::EISDIR | Errno::ENXIO,
            path,
            ..
        }) => {
            return Err(LockError::NotRegular(path));
        }
        Err(error) => return Err(error.into()),
    };
    let stat = directory.stat_open(&fd, name)?;
    if !is_regular(&stat) {
        return Err(LockError::NotRegular(directory.shown(name)));
    }
    let identity = Identity::from(&stat);
    match Flock::lock(fd, FlockArg::LockExclusiveNonblock) {
        Ok(flock) => match directory.stat(name) {
            Ok(now) if Identity::from(&now) == identity => {
                Ok(Attempt::Held(identity, Holding::Own(flock)))
            }
            Ok(_)
            | Err(StepError {
                errno: Errno::ENOENT,
                ..
            }) => Ok(Attempt::Stale),
            Err(error) => Err(error.into()),
        },
        Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => {
            let holders = exclusive_holders(&locks()?, identity);
            let ancestors = ancestors()?;
            Ok(match holders.iter().find(|pid| ancestors.contains(pid)) {
                Some(&pid) => Attempt::Held(identity, Holding::Caller(pid)),
                None => Attempt::Busy(holders.first().copied()),
            })
        }
        Err((_, errno)) => Err(directory.error("lock", name, errno).into()),
    }
}

fn locks() -> Result<String, LockError> {
    let path = "/proc/locks";
    let proc_error = |source| LockError::Proc {
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_LOCKS).read_to_string(&mut text))
        .map_err(proc_error)?;
    Ok(text)
}

/// The processes that hold an exclusive flock on this file. Lines read
/// `1: FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF`, with `->` after the number for one that still waits; device
/// numbers are hexadecimal, the inode number is decimal (`lock_get_status` in fs/locks.c).
fn exclusive_holders(locks: &str, file: Identity) -> Vec<u32> {
    locks
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace().skip(1);
            if (fields.next(), fields.next(), fields.next())
                != (Some("FLOCK"), Some("ADVISORY"), Some("WRITE"))
            {
                return None;
            }
            let pid = fields.next()?.parse().ok()?;
            let mut identity = fields.next()?.split(':');
            let found = Identity {
                major: u64::from_str_radix(identity.next()?, 16).ok()?,
                minor: u64::from_str_radix(identity.next()?, 16).ok()?,
                inode: identity.next()?.parse().ok()?,
            };
            (found == file).then_some(pid)
        })
        .collect()
}

/// Our parent, its parent, and so on; never ourselves.
fn ancestors() -> Result<Vec<u32>, LockError> {
    let mut found = Vec::new();
    let mut pid = std::process::id();
    while found.len() < MAX_ANCESTORS {
        let path = format!("/proc/{pid}/stat");
        let stat = match std::fs::read(&path) {
            Ok(stat) => stat,
            // It ended just now, or lives outside our PID namespace.
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => break,
            Err(source) => return Err(LockError::Proc { path, source }),
        };
        match parent_of(&stat) {
            Some(parent) if parent != 0 && !found.contains(&parent) => {
                found.push(parent);
                pid = parent;
            }
            _ => break,
        }
    }
    Ok(found)
}

/// The parent's ID in `/proc/PID/stat`: the second field after the name, which stands in parentheses and may itself
/// contain spaces and parentheses.
fn parent_of(stat: &[u8]) -> Option<u32> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    const FILE: Identity = Identity {
        major: 0,
        minor: 0x19,
        inode: 1234,
    };

    fn vmid() -> Vmid {
        Vmid::new(101).expect("a VM ID")
    }

    fn now() -> Instant {
        Instant::now()
    }

    #[test]
    fn holders_are_those_that_have_it_exclusively() {
        let locks = "\
            1: POSIX  ADVISORY  WRITE 10 00:19:1234 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 11 00:19:1234 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 12 00:19:1234 0 EOF\n\
            3: FLOCK  ADVISORY  READ  13 00:19:1234 0 EOF\n\
            4: FLOCK  ADVISORY  WRITE 14 00:19:12345 0 EOF\n\
            5: FLOCK  ADVISORY  WRITE 15 00:1a:1234 0 EOF\n\
            6: FLOCK  ADVISORY  WRITE 16 01:19:1234 0 EOF\n\
            7: FLOCK\n\n8: FLOCK  ADVISORY  WRITE x y\n";
        assert_eq!(exclusive_holders(locks, FILE), [11]);
        assert_eq!(exclusive_holders("", FILE), [0_u32; 0]);
    }

    #[test]
    fn the_parent_follows_the_last_parenthesis() {
        assert_eq!(parent_of(b"7 (task UPID) S 42 7 7 0"), Some(42));
        assert_eq!(parent_of(b"7 (a) R 1 (b) S 42 7"), Some(42));
        assert_eq!(parent_of(b"7 (\xff) S 42 7"), Some(42));
        assert_eq!(parent_of(b"7 (a"), None);
        assert_eq!(parent_of(b"7 (a) S"), None);
    }

    #[test]
    fn our_ancestors_begin_with_our_parent_and_leave_us_out() {
        let ancestors = ancestors().expect("ancestors");
        assert_eq!(
            ancestors.first().copied(),
            Some(std::os::unix::process::parent_id())
        );
        assert!(!ancestors.contains(&std::process::id()));
    }

    #[test]
    fn a_free_lock_becomes_ours_and_is_let_go() {
        let root = tempfile::tempdir().expect("directory");
        let tree = Tree::open(root.path()).expect("tree");
        let lock = VmLock::acquire(&tree, vmid(), now()).expect("lock");
        assert_eq!(lock.holder(), Holder::Own);
        lock.confirm().expect("held");
        // Held by this very process, which is not its own ancestor: to a second attempt it is a stranger's.
        match VmLock::acquire(&tree, vmid(), now()) {
            Err(LockError::Busy { holder, .. }) => assert_eq!(holder, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        drop(lock);
        VmLock::acquire(&tree, vmid(), now()).expect("free again");
        let file = root.path().join("var/lock/qemu-server/lock-101.conf");
        let mode = std::fs::metadata(file).expect("file").permissions().mode();
        assert_eq!(mode & 0o777 & !0o644, 0, "{mode:o}");
    }

    #[test]
    fn a_lock_file_exchanged_under_us_is_noticed() {
        let root = tempfile::tempdir().expect("directory");
        let tree = Tree::open(root.path()).expect("tree");
        let lock = VmLock::acquire(&tree, vmid(), now()).expect("lock");
        let file = root.path().join("var/lock/qemu-server/lock-101.conf");
        std::fs::remove_file(&file).expect("removed");
        assert!(matches!(
            lock.confirm(),
            Err(LockError::Lost { holder: None, .. })
        ));
        std::fs::write(&file, "").expect("another");
        assert!(matches!(
            lock.confirm(),
            Err(LockError::Lost { holder: None, .. })
        ));
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let root = tempfile::tempdir().expect("directory");
        let tree = Tree::open(root.path()).expect("tree");
        let directory = root.path().join(DIRECTORY);
        std::fs::create_dir_all(&directory).expect("directory");
        let file = directory.join("lock-101.conf");
        let far = now() + Duration::from_secs(3600);
        let refused = |what: &str| {
            let result = VmLock::acquire(&tree, vmid(), far);
            assert!(
                matches!(result, Err(LockError::NotRegular(_))),
                "{what}: {result:?}"
            );
        };
        nix::unistd::mkfifo(&file, Mode::from_bits_truncate(0o600)).expect("FIFO");
        refused("FIFO");
        // With a reader the open succeeds, and fstat tells.
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK;
        let reader = nix::fcntl::open(&file, flags, Mode::empty()).expect("reader");
        refused("FIFO with a reader");
        drop(reader);
        std::fs::remove_file(&file).expect("removed");
        std::fs::create_dir(&file).expect("directory");
        refused("directory");
        std::fs::remove_dir(&file).expect("removed");
        std::fs::write(root.path().join("elsewhere"), "").expect("target");
        symlink("../../../elsewhere", &file).expect("link");
        refused("link");
        std::fs::remove_file(&file).expect("removed");
        symlink("/dev/null", &file).expect("link");
        refused("link to a device");
    }

    #[test]
    fn a_link_in_the_path_stays_beneath_the_root() {
        let root = tempfile::tempdir().expect("directory");
        std::fs::create_dir_all(root.path().join("run/lock")).expect("directory");
        std::fs::create_dir_all(root.path().join("var")).expect("directory");
        symlink("/run/lock", root.path().join("var/lock")).expect("link");
        let tree = Tree::open(root.path()).expect("tree");
        VmLock::acquire(&tree, vmid(), now()).expect("lock");
        assert!(
            root.path()
                .join("run/lock/qemu-server/lock-101.conf")
                .is_file()
        );
    }
}
