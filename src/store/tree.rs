//! The directory tree that is written to, and the few file operations that the store makes in it.
//!
//! Every path is resolved beneath the tree's root with `openat2(2)` and `RESOLVE_IN_ROOT`: absolute links such as
//! `/var/lock -> /run/lock` stay inside, and nothing outside is ever touched when the root is not `/`.
//! Afterwards names are used relative to an open directory, so that a link exchanged meanwhile changes nothing.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};

/// A file operation that the system refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {operation} {}: {}", path.display(), errno.desc())]
pub struct StepError {
    /// What was tried, as a verb.
    pub operation: &'static str,
    /// On which file, below the tree's root.
    pub path: PathBuf,
    /// Why not.
    pub errno: Errno,
}

/// The root below which all paths lie: `/`, or the directory given with `--root`.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    path: PathBuf,
}

/// An open directory of a [`Tree`].
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

/// How often an `openat2` that lost a race against a rename (EAGAIN) is tried again.
const RESOLVE_ATTEMPTS: usize = 16;

impl Tree {
    /// Opens the tree.
    pub fn open(root: &Path) -> Result<Self, StepError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = nix::fcntl::open(root, flags, Mode::empty()).map_err(|errno| StepError {
            operation: "open",
            path: root.to_owned(),
            errno,
        })?;
        Ok(Self {
            root: fd,
            path: root.to_owned(),
        })
    }

    /// The path the tree was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a directory, following links on the way as if the tree were `/`. `path` has no leading slash.
    pub fn directory(&self, path: &str) -> Result<Directory, StepError> {
        let shown = self.path.join(path);
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let mut attempt = 0;
        loop {
            attempt += 1;
            match openat2(&self.root, path, how) {
                Ok(fd) => return Ok(Directory { fd, path: shown }),
                Err(Errno::EAGAIN | Errno::EINTR) if attempt < RESOLVE_ATTEMPTS => {}
                Err(errno) => {
                    return Err(StepError {
                        operation: "open",
                        path: shown,
                        errno,
                    });
                }
            }
        }
    }

    /// Opens a directory, making it and what is missing above it. Only the last part gets `mode`, the others 0755.
    pub fn ensure_directory(&self, path: &str, mode: Mode) -> Result<Directory, StepError> {
        match self.directory(path) {
            Err(error) if error.errno == Errno::ENOENT => {}
            other => return other,
        }
        let (parent, name) = match path.rsplit_once('/') {
            Some((parent, name)) => (
                self.ensure_directory(parent, Mode::from_bits_truncate(0o755))?,
                name,
            ),
            None => (self.directory(".")?, path),
        };
        match mkdirat(&parent.fd, name, mode) {
            Ok(()) | Err(Errno::EEXIST) => self.directory(path),
            Err(errno) => Err(StepError {
                operation: "make",
                path: self.path.join(path),
                errno,
            }),
        }
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Directory {
    /// The path of an entry, for messages.
    pub fn shown(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// The path the directory was opened with, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An error about an entry.
    pub fn error(&self, operation: &'static str, name: &str, errno: Errno) -> StepError {
        StepError {
            operation,
            path: self.shown(name),
            errno,
        }
    }

    /// Opens an entry. Links are never followed, and neither a FIFO nor a terminal can make it wait.
    pub fn open(&self, name: &str, flags: OFlag, mode: Mode) -> Result<OwnedFd, StepError> {
        let operation = if flags.contains(OFlag::O_CREAT) {
            "create"
        } else {
            "open"
        };
        let flags =
            flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        openat(&self.fd, name, flags, mode).map_err(|errno| self.error(operation, name, errno))
    }

    /// Opens a directory that is an entry here, but no link to one.
    pub fn subdirectory(&self, name: &str) -> Result<Self, StepError> {
        let fd = self.open(name, OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())?;
        Ok(Self {
            fd,
            path: self.shown(name),
        })
    }

    /// What an open file or directory of this directory is.
    pub fn stat_open(&self, fd: impl AsFd, name: &str) -> Result<FileStat, StepError> {
        fstat(fd).map_err(|errno| self.error("examine", name, errno))
    }

    /// What an entry is, links not followed.
    pub fn stat(&self, name: &str) -> Result<FileStat, StepError> {
        fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(|errno| self.error("examine", name, errno))
    }

    /// Makes a directory here.
    pub fn make_directory(&self, name: &str, mode: Mode) -> Result<(), StepError> {
        mkdirat(&self.fd, name, mode).map_err(|errno| self.error("make", name, errno))
    }

    /// Removes an entry that is no directory.
    pub fn remove(&self, name: &str) -> Result<(), StepError> {
        unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir)
            .map_err(|errno| self.error("remove", name, errno))
    }

    /// Renames an entry over another of the same directory.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), StepError> {
        renameat(&self.fd, from, &self.fd, to).map_err(|errno| self.error("rename to", to, errno))
    }

    /// Waits until the directory itself is on stable storage.
    pub fn sync(&self) -> Result<(), StepError> {
        fsync(&self.fd).map_err(|errno| StepError {
            operation: "sync directory",
            path: self.path.clone(),
            errno,
        })
    }

    /// Reads an open file to its end, but at most `limit` bytes.
    pub fn read(&self, file: &File, name: &str, limit: u64) -> Result<Vec<u8>, StepError> {
        let mut content = Vec::new();
        file.take(limit)
            .read_to_end(&mut content)
            .map_err(|error| self.error("read", name, errno_of(&error)))?;
        Ok(content)
    }
}

/// Whether this is a regular file.
pub fn is_regular(stat: &FileStat) -> bool {
    stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits()
}

/// Whether only root, or the user we run as, can have written this: the owner is one of the two, and neither group
/// nor others may write.
pub fn is_private_to_us(stat: &FileStat) -> bool {
    (stat.st_uid == 0 || stat.st_uid == nix::unistd::geteuid().as_raw())
        && stat.st_mode & 0o022 == 0
}

/// The number of an I/O error; EIO for one that the standard library made up.
pub fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
