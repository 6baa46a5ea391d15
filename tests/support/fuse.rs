//! A file system of our own, mounted through FUSE, that keeps /etc/pve's rules and can fail at a chosen operation.
//!
//! The whole tree of a `--root` run lies on it: below `etc/pve` the rules of pmxcfs hold, elsewhere those of an
//! ordinary file system. Content lives in memory; tests put it there and read it back without going through the
//! mount, so that they never wait for themselves. Nothing is cached by the kernel (no lifetime of names and
//! attributes, direct I/O): every system call on the tree is an operation here, and can be the one that fails.
//!
//! pmxcfs's rules, as measured on Proxmox VE 9: files are root:www-data 0640, other modes and owners EPERM; no hard
//! links (EPERM), no symbolic links (ENOSYS), no `O_TMPFILE`, no extended attributes, no flags of `renameat2` (EINVAL);
//! at most 1 MiB per file (EFBIG); times in whole seconds; without quorum every change is EACCES. What is missing of
//! pmxcfs: its file name and content rules, replication, the built-in files.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, FileAttr, FileType, Filesystem, MountOption, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session,
    TimeOrNow,
};
use nix::errno::Errno;
use nix::fcntl::{Flock, OFlag};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What /etc/pve takes for one file, in bytes.
pub const PMXCFS_MAX_FILE: usize = 1 << 20;

/// The group www-data of Debian.
const WWW_DATA: u32 = 33;

/// Names and attributes are asked for anew each time.
const NO_CACHE: Duration = Duration::ZERO;

/// `FOPEN_DIRECT_IO`: reads and writes go through unchanged.
const DIRECT_IO: u32 = 1;

const ROOT: u64 = 1;

/// What happens at the chosen operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It fails, and nothing is done.
    Fail(Errno),
    /// It is done, and reported as failed.
    DoAndFail(Errno),
    /// The process that asked for it is killed (SIGKILL) and nothing is done.
    Kill,
    /// It is done, and the process that asked for it is killed.
    DoAndKill,
    /// From it on the cluster has no quorum.
    LoseQuorum,
}

/// A fault that is waiting, or has happened.
#[derive(Clone, Copy, Debug)]
struct Fault {
    /// At which operation, from 1.
    at: usize,
    action: Action,
}

#[derive(Clone, Debug)]
enum Content {
    File(Vec<u8>),
    Link(PathBuf),
    Directory(BTreeMap<OsString, u64>),
}

#[derive(Clone, Debug)]
struct Node {
    content: Content,
    mode: u16,
    uid: u32,
    gid: u32,
    links: u32,
    mtime: SystemTime,
    /// Whether it lies below etc/pve.
    pmxcfs: bool,
}

struct State {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    quorum: bool,
    fault: Option<Fault>,
    /// The process whose operations count.
    watched: Option<u32>,
    /// Its operations since the last call of [`Mount::arm`].
    log: Vec<String>,
}

/// A mounted tree; unmounted, by force if need be, when it is dropped.
pub struct Mount {
    point: tempfile::TempDir,
    state: Arc<Mutex<State>>,
    session: Option<BackgroundSession>,
    /// Locks on files of this mount, let go before it is unmounted.
    kept: Mutex<Vec<Flock<OwnedFd>>>,
}

struct Served(Arc<Mutex<State>>);

impl Mount {
    /// Mounts an empty tree.
    pub fn new() -> Self {
        let root = Node::new(Content::Directory(BTreeMap::new()), 0o755, false);
        let state = Arc::new(Mutex::new(State {
            nodes: BTreeMap::from([(ROOT, root)]),
            next: ROOT + 1,
            quorum: true,
            fault: None,
            watched: None,
            log: Vec::new(),
        }));
        let point = tempfile::tempdir().expect("mount point");
        let options = [
            MountOption::FSName("pve-atomicops-test".to_owned()),
            MountOption::DefaultPermissions,
            MountOption::AllowOther,
        ];
        let session = Session::new(Served(Arc::clone(&state)), point.path(), &options)
            .and_then(Session::spawn)
            .expect("these tests need root and /dev/fuse");
        Self {
            point,
            state,
            session: Some(session),
            kept: Mutex::new(Vec::new()),
        }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.point.path()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the file system did not panic")
    }

    /// Puts a file there, with the directories above it; mode 0640 below etc/pve, else 0600.
    pub fn file(&self, path: &str, content: &[u8]) {
        self.state().put(path, Content::File(content.to_vec()));
    }

    /// Puts a directory there.
    pub fn directory(&self, path: &str) {
        self.state().put(path, Content::Directory(BTreeMap::new()));
    }

    /// Puts a symbolic link there; etc/pve has some built in.
    pub fn link(&self, path: &str, target: &str) {
        self.state().put(path, Content::Link(target.into()));
    }

    /// A file's content, without going through the mount.
    pub fn content(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.state();
        match &state.nodes.get(&state.find(path)?)?.content {
            Content::File(content) => Some(content.clone()),
            _ => None,
        }
    }

    /// The names in a directory, without going through the mount.
    pub fn names(&self, path: &str) -> Vec<String> {
        let state = self.state();
        let node = state.find(path).and_then(|ino| state.nodes.get(&ino));
        match node.map(|node| &node.content) {
            Some(Content::Directory(entries)) => entries
                .keys()
                .map(|name| name.to_string_lossy().into_owned())
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Whether the cluster has quorum.
    pub fn quorum(&self, quorum: bool) {
        self.state().quorum = quorum;
    }

    /// Counts the operations of this process, and of no other. Others there always are: whenever this test binary
    /// starts a process for some other test, that process closes its copies of our files first.
    pub fn watch(&self, process: u32) {
        self.state().watched = Some(process);
    }

    /// Starts counting operations anew, and lets the one with this number (from 1) go wrong.
    pub fn arm(&self, at: usize, action: Action) {
        let mut state = self.state();
        state.fault = Some(Fault { at, action });
        state.log.clear();
    }

    /// Starts counting operations anew; none goes wrong.
    pub fn disarm(&self) {
        let mut state = self.state();
        state.fault = None;
        state.log.clear();
    }

    /// The watched process's operations since the last call of [`Mount::arm`] or [`Mount::disarm`].
    pub fn log(&self) -> Vec<String> {
        self.state().log.clone()
    }

    /// Keeps a lock on a file of this mount for as long as it is mounted.
    pub fn keep(&self, lock: Flock<OwnedFd>) {
        self.kept.lock().expect("no panic").push(lock);
    }

    /// Breaks the connection: whatever waits for this file system gets an error.
    pub fn abort(&self) {
        // MNT_FORCE is what aborts a FUSE connection.
        if let Err(errno) = umount2(self.path(), MntFlags::MNT_FORCE | MntFlags::MNT_DETACH) {
            eprintln!("cannot unmount {}: {errno}", self.path().display());
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Ok(mut kept) = self.kept.lock() {
            kept.clear();
        }
        self.abort();
        if let Some(session) = self.session.take() {
            // The result may be that the connection was aborted: we did that. A panic of the file system counts.
            let BackgroundSession { guard, .. } = session;
            let served = guard.join();
            assert!(
                served.is_ok() || std::thread::panicking(),
                "the file system panicked"
            );
        }
    }
}

impl Node {
    fn new(content: Content, mode: u16, pmxcfs: bool) -> Self {
        Self {
            content,
            mode,
            uid: 0,
            gid: if pmxcfs { WWW_DATA } else { 0 },
            links: 1,
            mtime: SystemTime::now(),
            pmxcfs,
        }
    }

    fn attributes(&self, ino: u64) -> FileAttr {
        let (kind, size) = match &self.content {
            Content::File(content) => (FileType::RegularFile, content.len()),
            Content::Link(target) => (FileType::Symlink, target.as_os_str().len()),
            Content::Directory(_) => (FileType::Directory, 0),
        };
        let since = self
            .mtime
            .duration_since(SystemTime::UNIX_EPOCH)
            .expect("after 1970");
        let mtime = if self.pmxcfs {
            SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
        } else {
            self.mtime
        };
        FileAttr {
            ino,
            size: size as u64,
            blocks: size.div_ceil(512) as u64,
            atime: mtime,
            mtime,
            ctime: mtime,
            crtime: mtime,
            kind,
            perm: self.mode,
            nlink: self.links,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

/// The result of an operation.
type Answer<T> = Result<T, Errno>;

impl State {
    fn find(&self, path: &str) -> Option<u64> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(ROOT, |ino, name| {
                self.entries(ino).ok()?.get(OsStr::new(name)).copied()
            })
    }

    fn put(&mut self, path: &str, content: Content) {
        let names: Vec<_> = path.split('/').collect();
        let (name, above) = names.split_last().expect("a name");
        let mut parent = ROOT;
        let mut pmxcfs = false;
        for (depth, directory) in above.iter().enumerate() {
            pmxcfs |= above.get(..=depth) == Some(["etc", "pve"].as_slice());
            let known = self
                .entries(parent)
                .expect("directory")
                .get(OsStr::new(directory))
                .copied();
            parent = known.unwrap_or_else(|| {
                let node = Node::new(Content::Directory(BTreeMap::new()), 0o755, pmxcfs);
                self.insert(parent, OsStr::new(directory), node)
            });
        }
        pmxcfs |= path == "etc/pve";
        let mode = match (&content, pmxcfs) {
            (Content::File(_), true) => 0o640,
            (Content::File(_), false) => 0o600,
            (Content::Link(_), _) => 0o777,
            (Content::Directory(_), _) => 0o755,
        };
        self.insert(parent, OsStr::new(name), Node::new(content, mode, pmxcfs));
    }

    fn insert(&mut self, parent: u64, name: &OsStr, node: Node) -> u64 {
        let ino = self.next;
        self.next += 1;
        self.nodes.insert(ino, node);
        self.entries_mut(parent)
            .expect("directory")
            .insert(name.to_owned(), ino);
        ino
    }

    fn node(&self, ino: u64) -> Answer<&Node> {
        self.nodes.get(&ino).ok_or(Errno::ESTALE)
    }

    fn node_mut(&mut self, ino: u64) -> Answer<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(Errno::ESTALE)
    }

    fn entries(&self, ino: u64) -> Answer<&BTreeMap<OsString, u64>> {
        match &self.node(ino)?.content {
            Content::Directory(entries) => Ok(entries),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn entries_mut(&mut self, ino: u64) -> Answer<&mut BTreeMap<OsString, u64>> {
        match &mut self.node_mut(ino)?.content {
            Content::Directory(entries) => Ok(entries),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn child(&self, parent: u64, name: &OsStr) -> Answer<u64> {
        self.entries(parent)?
            .get(name)
            .copied()
            .ok_or(Errno::ENOENT)
    }

    fn attributes(&self, ino: u64) -> Answer<FileAttr> {
        Ok(self.node(ino)?.attributes(ino))
    }

    /// Whether a change at this node is allowed at all.
    fn writable(&self, ino: u64) -> Answer<bool> {
        let pmxcfs = self.node(ino)?.pmxcfs;
        if pmxcfs && !self.quorum {
            Err(Errno::EACCES)
        } else {
            Ok(pmxcfs)
        }
    }

    fn make(&mut self, parent: u64, name: &OsStr, content: Content, mode: u32) -> Answer<FileAttr> {
        let pmxcfs = self.writable(parent)?;
        if self.child(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let mode = match (&content, pmxcfs) {
            (Content::File(_), true) => 0o640,
            (Content::Directory(_), true) => 0o755,
            _ => (mode & 0o7777) as u16,
        };
        let ino = self.insert(parent, name, Node::new(content, mode, pmxcfs));
        self.attributes(ino)
    }

    fn unlink(&mut self, parent: u64, name: &OsStr, directory: bool) -> Answer<()> {
        self.writable(parent)?;
        let ino = self.child(parent, name)?;
        match (&self.node(ino)?.content, directory) {
            (Content::Directory(_), false) => return Err(Errno::EISDIR),
            (Content::Directory(entries), true) if !entries.is_empty() => {
                return Err(Errno::ENOTEMPTY);
            }
            (Content::File(_) | Content::Link(_), true) => return Err(Errno::ENOTDIR),
            _ => {}
        }
        self.entries_mut(parent)?.remove(name);
        self.node_mut(ino)?.links -= 1;
        Ok(())
    }

    fn rename(
        &mut self,
        (parent, name): (u64, &OsStr),
        (new_parent, new_name): (u64, &OsStr),
        flags: u32,
    ) -> Answer<()> {
        let pmxcfs = self.writable(parent)? | self.writable(new_parent)?;
        if flags != 0 {
            // An ordinary file system knows some; nothing here uses them.
            return Err(if pmxcfs { Errno::EINVAL } else { Errno::ENOSYS });
        }
        let ino = self.child(parent, name)?;
        let replaced = self.child(new_parent, new_name).ok();
        if let Some(replaced) = replaced {
            let is_directory = |ino| {
                self.node(ino)
                    .map(|node| matches!(node.content, Content::Directory(_)))
            };
            if is_directory(ino)? || is_directory(replaced)? {
                return Err(Errno::EISDIR);
            }
        }
        self.entries_mut(parent)?.remove(name);
        self.entries_mut(new_parent)?
            .insert(new_name.to_owned(), ino);
        if let Some(replaced) = replaced {
            self.node_mut(replaced)?.links -= 1;
        }
        Ok(())
    }

    fn write(&mut self, ino: u64, offset: usize, data: &[u8], append: bool) -> Answer<usize> {
        let pmxcfs = self.writable(ino)?;
        let node = self.node_mut(ino)?;
        let Content::File(content) = &mut node.content else {
            return Err(Errno::EISDIR);
        };
        let offset = if append { content.len() } else { offset };
        let end = offset + data.len();
        if pmxcfs && end > PMXCFS_MAX_FILE {
            return Err(Errno::EFBIG);
        }
        if content.len() < end {
            content.resize(end, 0);
        }
        content
            .get_mut(offset..end)
            .expect("resized")
            .copy_from_slice(data);
        node.mtime = SystemTime::now();
        Ok(data.len())
    }

    fn set(
        &mut self,
        ino: u64,
        mode: Option<u32>,
        (uid, gid): (Option<u32>, Option<u32>),
        size: Option<u64>,
        mtime: Option<SystemTime>,
    ) -> Answer<FileAttr> {
        let pmxcfs = self.writable(ino)?;
        let node = self.node_mut(ino)?;
        if pmxcfs {
            let usual = if matches!(node.content, Content::Directory(_)) {
                0o755
            } else {
                0o640
            };
            if mode.is_some_and(|mode| mode & 0o7777 != usual)
                || uid.is_some_and(|uid| uid != 0)
                || gid.is_some_and(|gid| gid != WWW_DATA)
            {
                return Err(Errno::EPERM);
            }
        }
        if let Some(size) = size {
            let size = usize::try_from(size).map_err(|_| Errno::EFBIG)?;
            let Content::File(content) = &mut node.content else {
                return Err(Errno::EISDIR);
            };
            if pmxcfs && size > PMXCFS_MAX_FILE {
                return Err(Errno::EFBIG);
            }
            content.resize(size, 0);
            node.mtime = SystemTime::now();
        }
        if let Some(mode) = mode {
            node.mode = (mode & 0o7777) as u16;
        }
        node.uid = uid.unwrap_or(node.uid);
        node.gid = gid.unwrap_or(node.gid);
        node.mtime = mtime.unwrap_or(node.mtime);
        self.attributes(ino)
    }
}

/// Whether a thread belongs to a process.
fn belongs(thread: u32, process: u32) -> bool {
    if thread == process {
        return true;
    }
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    group.is_some_and(|group| group.trim() == process.to_string())
}

impl Served {
    /// Does one operation, unless it is the one that goes wrong.
    fn operate<T>(
        &self,
        request: &Request<'_>,
        name: impl std::fmt::Display,
        operation: impl FnOnce(&mut State) -> Answer<T>,
    ) -> Answer<T> {
        let mut state = self.0.lock().expect("the file system did not panic");
        let Some(watched) = state
            .watched
            .filter(|&watched| belongs(request.pid(), watched))
        else {
            return operation(&mut state);
        };
        state.log.push(name.to_string());
        let number = state.log.len();
        let action = state
            .fault
            .filter(|fault| fault.at == number)
            .map(|fault| fault.action);
        let kill_asker = || {
            let process = i32::try_from(watched).expect("a process ID");
            kill(Pid::from_raw(process), Signal::SIGKILL).expect("it waits for our answer");
        };
        match action {
            None => operation(&mut state),
            Some(Action::LoseQuorum) => {
                state.quorum = false;
                operation(&mut state)
            }
            Some(Action::Fail(errno)) => Err(errno),
            Some(Action::DoAndFail(errno)) => operation(&mut state).and(Err(errno)),
            Some(Action::Kill) => {
                kill_asker();
                Err(Errno::EINTR)
            }
            Some(Action::DoAndKill) => {
                let answer = operation(&mut state);
                kill_asker();
                answer
            }
        }
    }
}

fn number(errno: Errno) -> i32 {
    errno as i32
}

impl Filesystem for Served {
    fn lookup(&mut self, request: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEntry) {
        let answer = self.operate(
            request,
            format_args!("lookup {}", name.to_string_lossy()),
            |state| state.attributes(state.child(parent, name)?),
        );
        match answer {
            Ok(attributes) => reply.entry(&NO_CACHE, &attributes, 0),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn getattr(&mut self, request: &Request<'_>, ino: u64, _: Option<u64>, reply: ReplyAttr) {
        match self.operate(request, "getattr", |state| state.attributes(ino)) {
            Ok(attributes) => reply.attr(&NO_CACHE, &attributes),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn setattr(
        &mut self,
        request: &Request<'_>,
        ino: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<u64>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<u32>,
        reply: ReplyAttr,
    ) {
        let mtime = mtime.map(|mtime| match mtime {
            TimeOrNow::SpecificTime(time) => time,
            TimeOrNow::Now => SystemTime::now(),
        });
        let answer = self.operate(request, "setattr", |state| {
            state.set(ino, mode, (uid, gid), size, mtime)
        });
        match answer {
            Ok(attributes) => reply.attr(&NO_CACHE, &attributes),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn readlink(&mut self, request: &Request<'_>, ino: u64, reply: ReplyData) {
        let answer = self.operate(request, "readlink", |state| {
            match &state.node(ino)?.content {
                Content::Link(target) => Ok(target.clone()),
                _ => Err(Errno::EINVAL),
            }
        });
        match answer {
            Ok(target) => reply.data(target.as_os_str().as_encoded_bytes()),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn mknod(
        &mut self,
        request: &Request<'_>,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let answer = self.operate(
            request,
            format_args!("mknod {}", name.to_string_lossy()),
            |state| {
                if mode & 0o170_000 != 0o100_000 {
                    return Err(Errno::EPERM);
                }
                state.make(parent, name, Content::File(Vec::new()), mode & !umask)
            },
        );
        match answer {
            Ok(attributes) => reply.entry(&NO_CACHE, &attributes, 0),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn mkdir(
        &mut self,
        request: &Request<'_>,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let answer = self.operate(
            request,
            format_args!("mkdir {}", name.to_string_lossy()),
            |state| {
                state.make(
                    parent,
                    name,
                    Content::Directory(BTreeMap::new()),
                    mode & !umask,
                )
            },
        );
        match answer {
            Ok(attributes) => reply.entry(&NO_CACHE, &attributes, 0),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn unlink(&mut self, request: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        let name_shown = format_args!("unlink {}", name.to_string_lossy()).to_string();
        let answer = self.operate(request, name_shown, |state| {
            state.unlink(parent, name, false)
        });
        empty(answer, reply);
    }

    fn rmdir(&mut self, request: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        let name_shown = format_args!("rmdir {}", name.to_string_lossy()).to_string();
        let answer = self.operate(request, name_shown, |state| {
            state.unlink(parent, name, true)
        });
        empty(answer, reply);
    }

    fn symlink(
        &mut self,
        request: &Request<'_>,
        parent: u64,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let answer = self.operate(
            request,
            format_args!("symlink {}", name.to_string_lossy()),
            |state| {
                if state.node(parent)?.pmxcfs {
                    return Err(Errno::ENOSYS);
                }
                state.make(parent, name, Content::Link(target.to_owned()), 0o777)
            },
        );
        match answer {
            Ok(attributes) => reply.entry(&NO_CACHE, &attributes, 0),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn rename(
        &mut self,
        request: &Request<'_>,
        parent: u64,
        name: &OsStr,
        new_parent: u64,
        new_name: &OsStr,
        flags: u32,
        reply: ReplyEmpty,
    ) {
        let shown = format!(
            "rename {} {}",
            name.to_string_lossy(),
            new_name.to_string_lossy()
        );
        let answer = self.operate(request, shown, |state| {
            state.rename((parent, name), (new_parent, new_name), flags)
        });
        empty(answer, reply);
    }

    fn link(
        &mut self,
        request: &Request<'_>,
        ino: u64,
        new_parent: u64,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let answer = self.operate(
            request,
            format_args!("link {}", name.to_string_lossy()),
            |state| {
                if state.writable(new_parent)? || state.node(ino)?.pmxcfs {
                    return Err(Errno::EPERM);
                }
                if state.child(new_parent, name).is_ok() {
                    return Err(Errno::EEXIST);
                }
                state.entries_mut(new_parent)?.insert(name.to_owned(), ino);
                state.node_mut(ino)?.links += 1;
                state.attributes(ino)
            },
        );
        match answer {
            Ok(attributes) => reply.entry(&NO_CACHE, &attributes, 0),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn open(&mut self, request: &Request<'_>, ino: u64, flags: i32, reply: ReplyOpen) {
        let answer = self.operate(request, "open", |state| {
            if OFlag::from_bits_retain(flags).contains(OFlag::O_TRUNC) {
                state.set(ino, None, (None, None), Some(0), None)?;
            }
            state.node(ino).map(drop)
        });
        match answer {
            Ok(()) => reply.opened(0, DIRECT_IO),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn create(
        &mut self,
        request: &Request<'_>,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let answer = self.operate(
            request,
            format_args!("create {}", name.to_string_lossy()),
            |state| match state.child(parent, name) {
                Ok(ino) if !OFlag::from_bits_retain(flags).contains(OFlag::O_EXCL) => {
                    state.attributes(ino)
                }
                _ => state.make(parent, name, Content::File(Vec::new()), mode & !umask),
            },
        );
        match answer {
            Ok(attributes) => reply.created(&NO_CACHE, &attributes, 0, 0, DIRECT_IO),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn read(
        &mut self,
        request: &Request<'_>,
        ino: u64,
        _: u64,
        offset: i64,
        size: u32,
        _: i32,
        _: Option<u64>,
        reply: ReplyData,
    ) {
        let answer = self.operate(request, "read", |state| match &state.node(ino)?.content {
            Content::File(content) => {
                let start = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
                let rest = content.get(start..).unwrap_or_default();
                let length = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
                Ok(rest.get(..length).unwrap_or(rest).to_vec())
            }
            _ => Err(Errno::EISDIR),
        });
        match answer {
            Ok(content) => reply.data(&content),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn write(
        &mut self,
        request: &Request<'_>,
        ino: u64,
        _: u64,
        offset: i64,
        data: &[u8],
        _: u32,
        flags: i32,
        _: Option<u64>,
        reply: ReplyWrite,
    ) {
        let append = OFlag::from_bits_retain(flags).contains(OFlag::O_APPEND);
        let answer = self.operate(request, "write", |state| {
            let offset = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
            state.write(ino, offset, data, append)
        });
        match answer.and_then(|written| u32::try_from(written).map_err(|_| Errno::EINVAL)) {
            Ok(written) => reply.written(written),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn flush(&mut self, request: &Request<'_>, _: u64, _: u64, _: u64, reply: ReplyEmpty) {
        empty(self.operate(request, "flush", |_| Ok(())), reply);
    }

    fn fsync(&mut self, request: &Request<'_>, _: u64, _: u64, _: bool, reply: ReplyEmpty) {
        empty(self.operate(request, "fsync", |_| Ok(())), reply);
    }

    fn fsyncdir(&mut self, request: &Request<'_>, _: u64, _: u64, _: bool, reply: ReplyEmpty) {
        empty(self.operate(request, "fsyncdir", |_| Ok(())), reply);
    }

    fn opendir(&mut self, request: &Request<'_>, ino: u64, _: i32, reply: ReplyOpen) {
        match self.operate(request, "opendir", |state| state.entries(ino).map(drop)) {
            Ok(()) => reply.opened(0, 0),
            Err(errno) => reply.error(number(errno)),
        }
    }

    fn readdir(
        &mut self,
        request: &Request<'_>,
        ino: u64,
        _: u64,
        offset: i64,
        mut reply: ReplyDirectory,
    ) {
        let answer = self.operate(request, "readdir", |state| {
            state
                .entries(ino)?
                .iter()
                .map(|(name, &ino)| Ok((name.clone(), ino, state.attributes(ino)?.kind)))
                .collect::<Answer<Vec<_>>>()
        });
        match answer {
            Ok(entries) => {
                let skip = usize::try_from(offset).unwrap_or(usize::MAX);
                for ((name, ino, kind), next) in entries.into_iter().zip(1_i64..).skip(skip) {
                    if reply.add(ino, next, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(errno) => reply.error(number(errno)),
        }
    }
}

fn empty(answer: Answer<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(number(errno)),
    }
}
