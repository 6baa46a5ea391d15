//! Opening files beneath one root, and keeping count of it.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat};
use rustix::fs::{RawDir, readlinkat_raw};

use crate::archive::{ArchiveError, Node, TooManyLinks, Tree};

/// What went wrong with one file of the host.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", path.display())]
pub struct HostError {
    /// The file, with the root in front of it.
    pub path: PathBuf,
    /// Why.
    pub source: Cause,
}

impl HostError {
    /// Path and cause in one line, for places that show a single string.
    pub fn in_words(&self) -> String {
        format!("{}: {}", self.path.display(), self.source)
    }
}

/// Why a file of the host could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The kernel refused.
    #[error("{}", .0.desc())]
    Os(#[from] Errno),
    /// A directory, FIFO, socket or device where a regular file belongs.
    #[error("not a regular file")]
    NotRegular,
    /// Larger than such a file can be.
    #[error("larger than {0} bytes")]
    TooLarge(u64),
    /// An archive that can't be used.
    #[error("{}", with_sources(.0))]
    Archive(#[from] ArchiveError),
    /// Its content is not what this file has to hold.
    #[error("does not hold {0}")]
    Content(&'static str),
}

/// An error and what is behind it, in one line: a cause is shown where a single string is.
fn with_sources(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.fold(error.to_string(), |text, source| {
        format!("{text}: {source}")
    })
}

impl From<TooManyLinks> for Cause {
    fn from(_: TooManyLinks) -> Self {
        Self::Os(Errno::ELOOP)
    }
}

impl From<std::io::Error> for Cause {
    fn from(error: std::io::Error) -> Self {
        Self::Os(Errno::from_raw(
            error.raw_os_error().unwrap_or(Errno::EIO as i32),
        ))
    }
}

/// One thing the program looked at. Paths are absolute and do not show the root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// A regular file was opened.
    File(String),
    /// A directory was listed.
    Listing(String),
    /// The target of a symbolic link was read.
    Link(String),
    /// Bytes `offset..offset + length` of a function's configuration space were asked for.
    Config {
        /// The `config` file.
        path: String,
        /// Offset in bytes.
        offset: u16,
        /// Length in bytes.
        length: u16,
    },
}

/// How much was read: cheap enough to be always on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Regular files opened.
    pub files: u32,
    /// Bytes of configuration space that were asked for.
    pub config_bytes: u32,
}

/// For a hundred PCI functions at once; the longest entry has 280 bytes.
const LISTING_BUFFER: usize = 4096;
/// No symbolic link of Linux is longer.
const PATH_MAX: usize = 4096;

/// How often a resolution that raced with a rename is tried again.
const ATTEMPTS: u32 = 64;

/// Where files come from.
#[derive(Debug)]
enum Source {
    /// The kernel, below this directory.
    Directory(OwnedFd),
    /// An archive in memory.
    Archive(Tree),
}

/// An opened directory.
#[derive(Debug)]
pub(super) enum Directory {
    /// Of the kernel.
    Opened(OwnedFd),
    /// Of an archive: its path.
    Archived(String),
}

/// A place below which all paths are resolved, symbolic links included: a directory, or an archive in memory.
#[derive(Debug)]
pub(super) struct Root {
    source: Source,
    shown: PathBuf,
    tally: Cell<Tally>,
    accesses: Option<RefCell<Vec<Access>>>,
}

impl Root {
    pub(super) fn new(path: &Path) -> Result<Self, HostError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory =
            nix::fcntl::open(path, flags, Mode::empty()).map_err(|errno| HostError {
                path: path.to_owned(),
                source: errno.into(),
            })?;
        Ok(Self::from_source(Source::Directory(directory), path))
    }

    /// The files of an archive; `shown` stands for it in errors.
    pub(super) fn archive(tree: Tree, shown: &Path) -> Self {
        Self::from_source(Source::Archive(tree), shown)
    }

    fn from_source(source: Source, shown: &Path) -> Self {
        Self {
            source,
            shown: shown.to_owned(),
            tally: Cell::default(),
            accesses: None,
        }
    }

    pub(super) fn record(&mut self) {
        self.accesses = Some(RefCell::default());
    }

    pub(super) fn accesses(&self) -> Vec<Access> {
        self.accesses
            .as_ref()
            .map(|list| list.borrow().clone())
            .unwrap_or_default()
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally.get()
    }

    pub(super) fn shown(&self) -> &Path {
        &self.shown
    }

    pub(super) fn error(&self, path: &str, cause: impl Into<Cause>) -> HostError {
        HostError {
            path: self.shown.join(path.trim_start_matches('/')),
            source: cause.into(),
        }
    }

    /// Notes an access; `access` is only built when somebody listens.
    pub(super) fn note(&self, access: impl FnOnce() -> Access, count: impl FnOnce(&mut Tally)) {
        let mut tally = self.tally.get();
        count(&mut tally);
        self.tally.set(tally);
        if let Some(list) = &self.accesses {
            list.borrow_mut().push(access());
        }
    }

    /// Opens something to read from it; `None` where there is nothing of that name.
    ///
    /// A file of an archive becomes one in memory, owned by the user who runs the program.
    fn open(&self, path: &str) -> Result<Option<OwnedFd>, Cause> {
        let directory = match &self.source {
            Source::Directory(directory) => directory,
            Source::Archive(tree) => {
                return match tree.get(path)? {
                    Some(Node::File(bytes)) => in_memory(bytes).map(Some),
                    Some(_) => Err(Cause::NotRegular),
                    None => Ok(None),
                };
            }
        };
        let resolve = ResolveFlag::RESOLVE_IN_ROOT;
        Ok(present(open_below(
            directory.as_fd(),
            path,
            OFlag::O_RDONLY,
            resolve,
        ))?)
    }

    /// Whether there is something at `path`.
    pub(super) fn exists(&self, path: &str) -> Result<bool, HostError> {
        let found = match &self.source {
            Source::Directory(directory) => {
                let resolve = ResolveFlag::RESOLVE_IN_ROOT;
                let fd = open_below(directory.as_fd(), path, OFlag::O_PATH, resolve);
                present(fd).map(|fd| fd.is_some()).map_err(Cause::from)
            }
            Source::Archive(tree) => tree
                .get(path)
                .map(|node| node.is_some())
                .map_err(Cause::from),
        };
        found.map_err(|cause| self.error(path, cause))
    }

    /// Opens a directory for [`Self::open_in`] and [`Self::link_in`]; `None` where there is no directory of that name.
    pub(super) fn directory(&self, path: &str) -> Result<Option<Directory>, HostError> {
        let opened = match &self.source {
            Source::Directory(directory) => {
                let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
                let fd = open_below(directory.as_fd(), path, flags, ResolveFlag::RESOLVE_IN_ROOT);
                present(fd)
                    .map(|fd| fd.map(Directory::Opened))
                    .map_err(Cause::from)
            }
            Source::Archive(tree) => tree
                .get(path)
                .map(|node| {
                    (node == Some(&Node::Directory)).then(|| Directory::Archived(path.to_owned()))
                })
                .map_err(Cause::from),
        };
        opened.map_err(|cause| self.error(path, cause))
    }

    /// Opens a file in a directory that was opened by `path`.
    pub(super) fn open_in(
        &self,
        directory: &Directory,
        path: &str,
        name: &str,
    ) -> Result<Option<OwnedFd>, Cause> {
        let Directory::Opened(fd) = directory else {
            return self.open(&format!("{path}/{name}"));
        };
        let resolve = ResolveFlag::RESOLVE_NO_SYMLINKS;
        match open_below(fd.as_fd(), name, OFlag::O_RDONLY, resolve) {
            // Not in sysfs, but in a tree that was made of links: then from the root, so that it stays inside.
            Err(Errno::ELOOP) => self.open(&format!("{path}/{name}")),
            result => Ok(present(result)?),
        }
    }

    /// The target of a symbolic link in a directory; `None` where `name` is missing or no link.
    pub(super) fn link_in(
        &self,
        directory: &Directory,
        name: &str,
    ) -> Result<Option<String>, Cause> {
        match (&self.source, directory) {
            (_, Directory::Opened(fd)) => Ok(link_target(fd.as_fd(), name)?),
            (Source::Archive(tree), Directory::Archived(path)) => {
                Ok(tree.link(&format!("{path}/{name}"))?.map(str::to_owned))
            }
            (Source::Directory(_), Directory::Archived(_)) => Ok(None),
        }
    }

    /// Opens a regular file of at most `limit` bytes, and tells its status.
    pub(super) fn open_file(
        &self,
        path: &str,
        limit: u64,
    ) -> Result<Option<(File, FileStat)>, HostError> {
        let Some(fd) = self.open(path).map_err(|cause| self.error(path, cause))? else {
            return Ok(None);
        };
        self.note(|| Access::File(path.to_owned()), |tally| tally.files += 1);
        regular(fd, limit)
            .map(Some)
            .map_err(|cause| self.error(path, cause))
    }

    /// All bytes of a regular file of at most `limit` bytes.
    pub(super) fn read(
        &self,
        path: &str,
        limit: u64,
    ) -> Result<Option<(Vec<u8>, FileStat)>, HostError> {
        let Some((file, status)) = self.open_file(path, limit)? else {
            return Ok(None);
        };
        read_all(file, &status, limit)
            .map(|bytes| Some((bytes, status)))
            .map_err(|cause| self.error(path, cause))
    }

    /// Names in a directory, sorted; `None` where there is no such directory.
    pub(super) fn names(&self, path: &str) -> Result<Option<Vec<String>>, HostError> {
        let listing = || Access::Listing(path.to_owned());
        let directory = match &self.source {
            Source::Directory(directory) => directory.as_fd(),
            Source::Archive(tree) => {
                let names = tree.names(path).map_err(|links| self.error(path, links))?;
                if names.is_some() {
                    self.note(listing, |_| ());
                }
                return Ok(names);
            }
        };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let fd = open_below(directory, path, flags, ResolveFlag::RESOLVE_IN_ROOT);
        let Some(fd) = present(fd).map_err(|errno| self.error(path, errno))? else {
            return Ok(None);
        };
        self.note(listing, |_| ());
        let mut names = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); LISTING_BUFFER];
        let mut entries = RawDir::new(fd, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|errno| self.error(path, std::io::Error::from(errno)))?;
            // A name that is not UTF-8 is none of ours.
            let name = entry.file_name().to_str().ok();
            let name = name.filter(|name| !matches!(*name, "." | ".."));
            names.extend(name.map(str::to_owned));
        }
        names.sort_unstable();
        Ok(Some(names))
    }
}

/// A file in memory, to be read like any other.
fn in_memory(bytes: &[u8]) -> Result<OwnedFd, Cause> {
    let fd = memfd_create(c"archive", MFdFlags::MFD_CLOEXEC)?;
    // Else everybody could write to it, as far as its mode tells.
    fchmod(&fd, Mode::from_bits_truncate(0o644))?;
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

/// Opens `path` below `directory`, never waiting for a peer and never taking a terminal.
fn open_below(
    directory: BorrowedFd<'_>,
    path: &str,
    flags: OFlag,
    resolve: ResolveFlag,
) -> nix::Result<OwnedFd> {
    let mut flags = flags | OFlag::O_CLOEXEC;
    if !flags.contains(OFlag::O_PATH) {
        flags |= OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    }
    let how = OpenHow::new()
        .flags(flags)
        .mode(Mode::empty())
        .resolve(resolve);
    for _ in 1..ATTEMPTS {
        match openat2(directory, path, how) {
            // openat2(2): a ".." could not be followed safely because something was renamed meanwhile.
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            result => return result,
        }
    }
    openat2(directory, path, how)
}

/// The target of a symbolic link; `None` where `name` is missing or no link.
fn link_target(directory: BorrowedFd<'_>, name: &str) -> nix::Result<Option<String>> {
    let mut buffer = [MaybeUninit::uninit(); PATH_MAX];
    match readlinkat_raw(directory, name, &mut buffer) {
        // What fills the buffer may have been cut off.
        Ok((_, [])) => Err(Errno::ENAMETOOLONG),
        Ok((target, _)) => Ok(std::str::from_utf8(target).ok().map(str::to_owned)),
        Err(rustix::io::Errno::INVAL) => Ok(None),
        Err(errno) => present(Err(Errno::from_raw(errno.raw_os_error()))),
    }
}

/// Turns "there is no such thing" into `None`.
pub(super) fn present<T>(result: nix::Result<T>) -> nix::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Accepts a regular file of at most `limit` bytes.
pub(super) fn regular(fd: OwnedFd, limit: u64) -> Result<(File, FileStat), Cause> {
    let status = fstat(&fd)?;
    if SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
        return Err(Cause::NotRegular);
    }
    if u64::try_from(status.st_size).unwrap_or(0) > limit {
        return Err(Cause::TooLarge(limit));
    }
    Ok((File::from(fd), status))
}

/// Reads a file to its end; more than `limit` bytes are an error, whatever its status said.
pub(super) fn read_all(file: File, status: &FileStat, limit: u64) -> Result<Vec<u8>, Cause> {
    // One more byte than expected, so that the end is seen without growing.
    let expected = usize::try_from(status.st_size).unwrap_or(0) + 1;
    let mut bytes = Vec::with_capacity(expected.max(64));
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(Cause::TooLarge(limit));
    }
    Ok(bytes)
}
