//! A file system that does not answer, as /etc/pve does when the cluster's daemon hangs.

use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use fuser::{
    BackgroundSession, FileAttr, FileType, Filesystem, MountOption, ReplyAttr, ReplyEntry, Request,
};

/// The mount; it ends when this is dropped.
pub struct Silent {
    session: Option<BackgroundSession>,
    release: Sender<()>,
}

struct Server {
    released: std::sync::mpsc::Receiver<()>,
    waiting: Vec<ReplyEntry>,
}

impl Filesystem for Server {
    fn lookup(
        &mut self,
        _request: &Request<'_>,
        _parent: u64,
        _name: &std::ffi::OsStr,
        reply: ReplyEntry,
    ) {
        // Kept without an answer until the test is over.
        if self.released.try_recv().is_ok() {
            reply.error(libc_enoent());
        } else {
            self.waiting.push(reply);
        }
    }

    fn getattr(
        &mut self,
        _request: &Request<'_>,
        ino: u64,
        _handle: Option<u64>,
        reply: ReplyAttr,
    ) {
        let now = std::time::UNIX_EPOCH;
        let attributes = FileAttr {
            ino,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind: FileType::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        reply.attr(&Duration::from_secs(1), &attributes);
    }
}

fn libc_enoent() -> i32 {
    nix::errno::Errno::ENOENT as i32
}

impl Silent {
    /// Mounts it over a directory.
    pub fn mount(directory: &Path) -> Self {
        let (release, released) = channel();
        let server = Server {
            released,
            waiting: Vec::new(),
        };
        let options = [MountOption::RO, MountOption::FSName("silent".to_owned())];
        let session = fuser::spawn_mount2(server, directory, &options).expect("FUSE is available");
        Self {
            session: Some(session),
            release,
        }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = self.release.send(());
        // Unmounting drops the replies that were kept, which answers them with an error.
        drop(self.session.take());
    }
}
