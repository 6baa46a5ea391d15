//! A file system whose server hangs, as /etc/pve does when the cluster's daemon is stuck.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use fuser::{BackgroundSession, Filesystem, MountOption, ReplyStatfs, Request};
use nix::errno::Errno;

/// The mount; it ends when this is dropped.
pub struct Silent {
    session: Option<BackgroundSession>,
    release: Sender<()>,
    victim: Option<JoinHandle<()>>,
}

struct Server {
    hangs: Sender<()>,
    released: Receiver<()>,
}

impl Filesystem for Server {
    fn statfs(&mut self, _request: &Request<'_>, _ino: u64, reply: ReplyStatfs) {
        // From here on no request is read, until the test is over.
        let _ = self.hangs.send(());
        let _ = self.released.recv();
        reply.error(Errno::EIO as i32);
    }
}

impl Silent {
    /// Mounts it over a directory, and lets it hang.
    pub fn mount(directory: &Path) -> Self {
        let (hangs, hanging) = channel();
        let (release, released) = channel();
        let options = [MountOption::RO, MountOption::FSName("silent".to_owned())];
        let server = Server { hangs, released };
        let session = fuser::spawn_mount2(server, directory, &options).expect("FUSE is available");
        let place = directory.to_owned();
        // Statistics lock nothing: whoever looks for a file meanwhile waits for the server alone, and can be killed.
        let victim =
            std::thread::spawn(move || assert!(nix::sys::statvfs::statvfs(&place).is_err()));
        hanging.recv().expect("the server got the request");
        Self {
            session: Some(session),
            release,
            victim: Some(victim),
        }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = self.release.send(());
        let joined = self.victim.take().map(JoinHandle::join);
        drop(self.session.take());
        assert!(
            joined.is_none_or(|joined| joined.is_ok()),
            "the name is not there"
        );
    }
}
