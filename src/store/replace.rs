//! Exchanging a VM's configuration file as a whole, so that at any moment it is either the old or the new one.
//!
//! Proxmox's own way (`PVE::Tools::file_set_contents`): write `VMID.conf.tmp.PID` beside it, rename it over. What
//! /etc/pve does not allow is not tried: no chmod, no chown, no hard link, no `renameat2` flag, no `O_TMPFILE`.
//!
//! Right before the rename the file's bytes are compared with those that the new ones were made from, and the lock
//! is checked once more. Between that and the rename lies no system call. A writer that does not take Proxmox's
//! lock (an editor) could still slip in there; POSIX has no rename that depends on content.
//!
//! A run that is killed may leave its temporary file. It is harmless: Proxmox only reads names that match
//! `VMID.conf`, and leaves such files behind itself when it is killed. Those of other processes are never removed,
//! since nothing tells a dead one's from that of a live process on another node.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use super::lock::{LockError, VmLock};
use super::tree::{Directory, StepError, Tree, errno_of, is_private_to_us, is_regular};
use crate::vmconf::Vmid;

/// Where this node's configurations are, below the root: a link to `nodes/NODE/qemu-server`.
const DIRECTORY: &str = "etc/pve/qemu-server";

/// How sure it is that the new content will survive a power failure.
#[derive(Debug)]
pub enum Replaced {
    /// It is on stable storage, as far as the file system says so.
    Confirmed,
    /// The new content is in place, but the step that should make it durable failed.
    Unconfirmed(StepError),
}

/// Why the old file is still there, and what was left behind. The texts of the sources tell the rest.
#[derive(Debug, thiserror::Error)]
#[error("the configuration is unchanged{}", remains(left_behind.as_deref()))]
pub struct ReplaceError {
    /// Why.
    #[source]
    pub cause: Cause,
    /// The temporary file, where even removing it failed. It is harmless, and may be removed by hand.
    pub left_behind: Option<PathBuf>,
}

fn remains(left_behind: Option<&Path>) -> String {
    left_behind.map_or_else(String::new, |path| {
        format!(" ({} could not be removed; it is harmless)", path.display())
    })
}

/// Why a file could not be replaced. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// There is no such configuration on this node.
    #[error("{} does not exist on this node", .0.display())]
    Missing(PathBuf),
    /// It is a link, a directory or the like.
    #[error("{} is not a regular file", .0.display())]
    NotRegular(PathBuf),
    /// Its content is no longer what the change was made from.
    #[error("{} was changed by someone else meanwhile; nothing was written, try again", .0.display())]
    Changed(PathBuf),
    /// The file system takes no changes.
    #[error(
        "it cannot be written; /etc/pve is read-only while the cluster has no quorum, see `pvecm status`"
    )]
    ReadOnly(#[source] StepError),
    /// The new content is larger than /etc/pve takes.
    #[error(
        "it would have {size} bytes, and /etc/pve takes at most 1 MiB per file; \
         shorten its description or delete snapshots"
    )]
    TooLarge {
        /// The failed write.
        #[source]
        step: StepError,
        /// Of the new content, in bytes.
        size: usize,
    },
    /// There is no room.
    #[error("there is no room for it; free some space in its file system first")]
    NoSpace(#[source] StepError),
    /// Another file has the temporary file's name, and does not look like the remains of an earlier run.
    #[error("{} is in the way and is not a file of ours; remove it if nothing uses it", .0.display())]
    InTheWay(PathBuf),
    /// The lock no longer protects.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Any other failed operation.
    #[error(transparent)]
    Step(StepError),
}

impl From<StepError> for Cause {
    fn from(step: StepError) -> Self {
        match step.errno {
            Errno::EACCES | Errno::EROFS => Self::ReadOnly(step),
            Errno::ENOSPC | Errno::EDQUOT => Self::NoSpace(step),
            _ => Self::Step(step),
        }
    }
}

impl From<StepError> for ReplaceError {
    fn from(step: StepError) -> Self {
        Cause::from(step).into()
    }
}

impl From<Cause> for ReplaceError {
    fn from(cause: Cause) -> Self {
        Self {
            cause,
            left_behind: None,
        }
    }
}

/// The directory with this node's VM configurations, open.
#[derive(Debug)]
pub struct Configs {
    directory: Directory,
}

impl Configs {
    /// Opens it, whatever node directory the link leads to.
    pub fn open(tree: &Tree) -> Result<Self, StepError> {
        Ok(Self {
            directory: tree.directory(DIRECTORY)?,
        })
    }

    /// The bytes of a VM's configuration, but at most `limit` of them.
    pub fn read(&self, vmid: Vmid, limit: u64) -> Result<Vec<u8>, Cause> {
        let name = format!("{vmid}.conf");
        let fd = match self.directory.open(&name, OFlag::O_RDONLY, Mode::empty()) {
            Ok(fd) => fd,
            Err(StepError {
                errno: Errno::ENOENT,
                path,
                ..
            }) => return Err(Cause::Missing(path)),
            Err(StepError {
                errno: Errno::ELOOP | Errno::ENXIO,
                path,
                ..
            }) => {
                return Err(Cause::NotRegular(path));
            }
            Err(error) => return Err(Cause::Step(error)),
        };
        if !is_regular(&self.directory.stat_open(&fd, &name).map_err(Cause::Step)?) {
            return Err(Cause::NotRegular(self.directory.shown(&name)));
        }
        self.directory
            .read(&File::from(fd), &name, limit)
            .map_err(Cause::Step)
    }

    /// Checks that the file still holds exactly these bytes.
    pub fn expect(&self, vmid: Vmid, content: &[u8]) -> Result<(), Cause> {
        if self.holds(vmid, content)? {
            Ok(())
        } else {
            Err(Cause::Changed(self.directory.shown(format!("{vmid}.conf"))))
        }
    }

    fn holds(&self, vmid: Vmid, content: &[u8]) -> Result<bool, Cause> {
        // One byte more tells a longer file from an equal one.
        let limit =
            u64::try_from(content.len()).map_or(u64::MAX, |length| length.saturating_add(1));
        Ok(self.read(vmid, limit)? == content)
    }

    /// Replaces a VM's configuration, if it still holds `before`.
    ///
    /// On an error the old file is untouched and the temporary one is gone (or named in the error).
    pub fn replace(
        &self,
        vmid: Vmid,
        before: &[u8],
        after: &[u8],
        lock: &VmLock,
    ) -> Result<Replaced, ReplaceError> {
        // Told early, so that the usual refusals do not even create a file.
        lock.confirm().map_err(Cause::Lock)?;
        self.expect(vmid, before)?;

        let name = format!("{vmid}.conf");
        let temporary = format!("{name}.tmp.{}", std::process::id());
        let file = self.create(&temporary)?;
        let renamed = self
            .fill(file, &temporary, after)
            .and_then(|()| lock.confirm().map_err(Cause::Lock))
            .and_then(|()| self.expect(vmid, before))
            .and_then(|()| Ok(self.directory.rename(&temporary, &name)?));
        let failed = match renamed {
            Ok(()) => None,
            // A network or user-space file system can fail after it has done the work. What the file holds decides,
            // unless that cannot be read either.
            Err(Cause::Step(step)) if step.operation == "rename to" => {
                if self.holds(vmid, after).unwrap_or(false) {
                    return Ok(Replaced::Unconfirmed(step));
                }
                Some(Cause::Step(step))
            }
            Err(cause) => Some(cause),
        };
        if let Some(cause) = failed {
            let left_behind = match self.directory.remove(&temporary) {
                Ok(())
                | Err(StepError {
                    errno: Errno::ENOENT,
                    ..
                }) => None,
                Err(error) => Some(error.path),
            };
            return Err(ReplaceError { cause, left_behind });
        }
        Ok(match self.directory.sync() {
            Ok(()) => Replaced::Confirmed,
            Err(step) => Replaced::Unconfirmed(step),
        })
    }

    /// Creates the temporary file. One with our own process ID can only be left by a killed run whose ID has come
    /// round again (only this node's processes write to this node's directory): it is removed, if it looks so.
    fn create(&self, temporary: &str) -> Result<File, ReplaceError> {
        let create = || {
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
            self.directory
                .open(temporary, flags, Mode::from_bits_truncate(0o640))
                .map(File::from)
        };
        match create() {
            Err(StepError {
                errno: Errno::EEXIST,
                ..
            }) => {
                let stat = self.directory.stat(temporary)?;
                if !is_regular(&stat) || !is_private_to_us(&stat) || stat.st_nlink != 1 {
                    return Err(Cause::InTheWay(self.directory.shown(temporary)).into());
                }
                self.directory.remove(temporary)?;
                Ok(create()?)
            }
            // The file may exist although the answer was an error.
            Err(error) if error.errno == Errno::EIO => {
                let left_behind = match self.directory.remove(temporary) {
                    Ok(())
                    | Err(StepError {
                        errno: Errno::ENOENT,
                        ..
                    }) => None,
                    Err(error) => Some(error.path),
                };
                Err(ReplaceError {
                    cause: error.into(),
                    left_behind,
                })
            }
            other => Ok(other?),
        }
    }

    fn fill(&self, mut file: File, temporary: &str, content: &[u8]) -> Result<(), Cause> {
        let error =
            |operation, errno| match (errno, self.directory.error(operation, temporary, errno)) {
                (Errno::EFBIG, step) => Cause::TooLarge {
                    step,
                    size: content.len(),
                },
                (_, step) => Cause::from(step),
            };
        file.write_all(content)
            .map_err(|source| error("write", errno_of(&source)))?;
        nix::unistd::fsync(&file).map_err(|errno| error("sync", errno))?;
        // Some file systems report a failed write only here.
        nix::unistd::close(file).map_err(|errno| error("close", errno))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::time::Instant;

    use super::*;

    const OLD: &[u8] = b"hostpci0: 0000:0b:00,pcie=1\n";
    const NEW: &[u8] = b"hostpci0: 0000:0b:00.0,pcie=1\n";

    struct Bench {
        root: tempfile::TempDir,
        configs: Configs,
        lock: VmLock,
    }

    impl Bench {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("directory");
            let pve = root.path().join("etc/pve");
            std::fs::create_dir_all(pve.join("nodes/pve1/qemu-server")).expect("directory");
            symlink("nodes/pve1/qemu-server", pve.join("qemu-server")).expect("link");
            let tree = Tree::open(root.path()).expect("tree");
            let lock = VmLock::acquire(&tree, vmid(), Instant::now()).expect("lock");
            let bench = Self {
                configs: Configs::open(&tree).expect("configs"),
                root,
                lock,
            };
            std::fs::write(bench.path("101.conf"), OLD).expect("config");
            bench
        }

        fn path(&self, name: &str) -> PathBuf {
            self.root
                .path()
                .join("etc/pve/nodes/pve1/qemu-server")
                .join(name)
        }

        fn temporary(&self) -> PathBuf {
            self.path(&format!("101.conf.tmp.{}", std::process::id()))
        }

        fn replace(&self) -> Result<Replaced, ReplaceError> {
            self.configs.replace(vmid(), OLD, NEW, &self.lock)
        }

        fn content(&self) -> Vec<u8> {
            std::fs::read(self.path("101.conf")).expect("config")
        }

        fn names(&self) -> Vec<String> {
            let mut names: Vec<_> = std::fs::read_dir(self.path(""))
                .expect("directory")
                .map(|entry| {
                    entry
                        .expect("entry")
                        .file_name()
                        .into_string()
                        .expect("UTF-8")
                })
                .collect();
            names.sort();
            names
        }
    }

    fn vmid() -> Vmid {
        Vmid::new(101).expect("a VM ID")
    }

    #[test]
    fn the_file_gets_the_new_bytes_and_nothing_else_remains() {
        let bench = Bench::new();
        assert!(matches!(bench.replace(), Ok(Replaced::Confirmed)));
        assert_eq!(bench.content(), NEW);
        assert_eq!(bench.names(), ["101.conf"]);
        let mode = std::fs::metadata(bench.path("101.conf"))
            .expect("file")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777 & !0o640, 0, "{mode:o}");
    }

    #[test]
    fn a_file_changed_meanwhile_is_kept() {
        let longer = [OLD, b"x"].concat();
        let shorter = OLD.get(..OLD.len() - 1).expect("not empty");
        for other in [b"other\n".as_slice(), &longer, shorter, b""] {
            let bench = Bench::new();
            std::fs::write(bench.path("101.conf"), other).expect("config");
            let error = bench.replace().expect_err("changed");
            assert!(matches!(error.cause, Cause::Changed(_)), "{error}");
            assert_eq!(bench.content(), other);
            assert_eq!(bench.names(), ["101.conf"]);
        }
    }

    #[test]
    fn what_is_missing_or_no_file_is_told() {
        let bench = Bench::new();
        std::fs::remove_file(bench.path("101.conf")).expect("removed");
        let error = bench.replace().expect_err("missing");
        assert!(matches!(error.cause, Cause::Missing(_)), "{error}");
        std::fs::write(bench.path("other"), OLD).expect("file");
        symlink("other", bench.path("101.conf")).expect("link");
        let error = bench.replace().expect_err("link");
        assert!(matches!(error.cause, Cause::NotRegular(_)), "{error}");
        std::fs::remove_file(bench.path("101.conf")).expect("removed");
        nix::unistd::mkfifo(&bench.path("101.conf"), Mode::from_bits_truncate(0o600))
            .expect("FIFO");
        let error = bench.replace().expect_err("FIFO");
        assert!(matches!(error.cause, Cause::NotRegular(_)), "{error}");
    }

    #[test]
    fn remains_of_a_killed_run_with_our_process_id_are_cleared_away() {
        let bench = Bench::new();
        std::fs::write(bench.temporary(), "half a con").expect("file");
        bench.replace().expect("replaced");
        assert_eq!(bench.content(), NEW);
        assert_eq!(bench.names(), ["101.conf"]);
    }

    #[test]
    fn what_is_not_ours_under_the_temporary_name_stays() {
        let bench = Bench::new();
        let temporary = bench.temporary();
        let refused = || {
            let error = bench.replace().expect_err("in the way");
            assert!(matches!(error.cause, Cause::InTheWay(_)), "{error}");
            assert_eq!(bench.content(), OLD);
            assert!(temporary.symlink_metadata().is_ok());
        };
        symlink("101.conf", &temporary).expect("link");
        refused();
        std::fs::remove_file(&temporary).expect("removed");
        std::fs::create_dir(&temporary).expect("directory");
        refused();
        std::fs::remove_dir(&temporary).expect("removed");
        std::fs::write(&temporary, "").expect("file");
        let writable = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(&temporary, writable).expect("mode");
        refused();
        std::fs::remove_file(&temporary).expect("removed");
        std::fs::hard_link(bench.path("101.conf"), &temporary).expect("hard link");
        refused();
    }

    #[test]
    fn a_lost_lock_stops_the_rename() {
        let bench = Bench::new();
        std::fs::remove_file(bench.root.path().join("var/lock/qemu-server/lock-101.conf"))
            .expect("removed");
        let error = bench.replace().expect_err("lost");
        assert!(
            matches!(error.cause, Cause::Lock(LockError::Lost { .. })),
            "{error}"
        );
        assert_eq!(bench.content(), OLD);
    }

    #[test]
    fn messages_say_what_to_do() {
        let message =
            |cause: Cause| format!("{:#}", anyhow::Error::from(ReplaceError::from(cause)));
        let step = |errno| StepError {
            operation: "create",
            path: "/etc/pve/x".into(),
            errno,
        };
        assert_eq!(
            message(step(Errno::EACCES).into()),
            "the configuration is unchanged: it cannot be written; /etc/pve is read-only while the \
             cluster has no quorum, see `pvecm status`: cannot create /etc/pve/x: Permission denied"
        );
        assert!(message(step(Errno::EROFS).into()).contains("pvecm status"));
        assert!(message(step(Errno::ENOSPC).into()).contains("free some space"));
        let large = message(Cause::TooLarge {
            step: step(Errno::EFBIG),
            size: 2_000_000,
        });
        assert!(
            large.contains("2000000 bytes") && large.contains("1 MiB"),
            "{large}"
        );
        assert_eq!(
            message(step(Errno::EIO).into()),
            "the configuration is unchanged: cannot create /etc/pve/x: I/O error"
        );
    }
}
