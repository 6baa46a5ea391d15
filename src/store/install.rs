//! Putting a file of our own in place: the snippet, its record, the node's policy.
//!
//! Old or new at any moment, like a configuration, but on ordinary file systems: a temporary file beside it, `fchmod`,
//! `fsync`, rename, `fsync` of the directory. A VM may be starting and read it meanwhile.

use std::fs::File;
use std::io::Write as _;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fchmod};

use super::tree::{Directory, StepError, Tree, errno_of, is_private_to_us, is_regular};

/// The largest file that is read back: ours have a few kilobytes.
const LIMIT: u64 = 1 << 20;

/// What is in the place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Its content.
    pub content: Vec<u8>,
    /// Its permission bits.
    pub mode: u32,
}

/// Reads a file that may be replaced; none where there is nothing of that name.
///
/// # Errors
/// Any but a regular file is in the way (`EEXIST`), a link too: what it leads to belongs to somebody else.
pub fn present(tree: &Tree, directory: &str, name: &str) -> Result<Option<Present>, StepError> {
    let directory = match tree.directory(directory) {
        Err(error) if error.errno == Errno::ENOENT => return Ok(None),
        other => other?,
    };
    let fd = match directory.open(name, OFlag::O_RDONLY, Mode::empty()) {
        Err(error) if error.errno == Errno::ENOENT => return Ok(None),
        Err(error) if matches!(error.errno, Errno::ELOOP | Errno::ENXIO) => {
            return Err(directory.error("replace", name, Errno::EEXIST));
        }
        other => other?,
    };
    let stat = directory.stat_open(&fd, name)?;
    if !is_regular(&stat) {
        return Err(directory.error("replace", name, Errno::EEXIST));
    }
    Ok(Some(Present {
        content: directory.read(&File::from(fd), name, LIMIT)?,
        mode: stat.st_mode & 0o7777,
    }))
}

/// Puts a file in place with exactly these permissions, making the directory where it is missing (0755).
///
/// # Errors
/// The step that failed. What was there before is there still, but for a failed sync of the directory.
pub fn install(
    tree: &Tree,
    directory: &str,
    name: &str,
    content: &[u8],
    mode: u32,
) -> Result<(), StepError> {
    let directory = tree.ensure_directory(directory, Mode::from_bits_truncate(0o755))?;
    let temporary = format!(".{name}.{}", std::process::id());
    let file = create(&directory, &temporary)?;
    let placed = fill(&directory, file, &temporary, content, mode)
        .and_then(|()| directory.rename(&temporary, name));
    if let Err(error) = placed {
        if let Err(left) = directory.remove(&temporary) {
            log::debug!("{left}");
        }
        return Err(error);
    }
    directory.sync()
}

/// Removes a file; nothing happens where it is not there.
pub fn remove(tree: &Tree, directory: &str, name: &str) -> Result<(), StepError> {
    match tree.directory(directory)?.remove(name) {
        Err(error) if error.errno == Errno::ENOENT => Ok(()),
        other => other,
    }
}

/// Creates the temporary file. One of that name is what a killed run with our process ID left, or in the way.
fn create(directory: &Directory, temporary: &str) -> Result<File, StepError> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
    let create = || directory.open(temporary, flags, Mode::from_bits_truncate(0o600));
    match create() {
        Err(error) if error.errno == Errno::EEXIST => {
            let stat = directory.stat(temporary)?;
            if !is_regular(&stat) || !is_private_to_us(&stat) {
                return Err(error);
            }
            directory.remove(temporary)?;
            create().map(File::from)
        }
        other => other.map(File::from),
    }
}

fn fill(
    directory: &Directory,
    mut file: File,
    temporary: &str,
    content: &[u8],
    mode: u32,
) -> Result<(), StepError> {
    let failed = |operation, errno| directory.error(operation, temporary, errno);
    file.write_all(content)
        .map_err(|error| failed("write", errno_of(&error)))?;
    // Not by the mode of creation, which the umask may narrow: a snippet that is not executable stops its VMs.
    fchmod(&file, Mode::from_bits_truncate(mode)).map_err(|errno| failed("chmod", errno))?;
    nix::unistd::fsync(&file).map_err(|errno| failed("sync", errno))?;
    nix::unistd::close(file).map_err(|errno| failed("close", errno))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::PathBuf;

    use super::*;

    struct Bench {
        root: tempfile::TempDir,
        tree: Tree,
    }

    impl Bench {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("directory");
            let tree = Tree::open(root.path()).expect("tree");
            Self { root, tree }
        }

        fn path(&self, place: &str) -> PathBuf {
            self.root.path().join(place)
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(self.path("a/b")).expect("directory");
            entries
                .map(|entry| {
                    entry
                        .expect("entry")
                        .file_name()
                        .into_string()
                        .expect("UTF-8")
                })
                .collect()
        }
    }

    #[test]
    fn a_file_is_put_in_place_and_replaced() {
        let bench = Bench::new();
        assert_eq!(present(&bench.tree, "a/b", "hook").expect("nothing"), None);
        for (content, mode) in [(&b"one"[..], 0o755), (b"two", 0o644)] {
            install(&bench.tree, "a/b", "hook", content, mode).expect("installed");
            let found = present(&bench.tree, "a/b", "hook").expect("readable");
            let expected = Present {
                content: content.to_vec(),
                mode,
            };
            assert_eq!(found, Some(expected));
            assert_eq!(bench.names(), ["hook"]);
        }
    }

    #[test]
    fn what_is_no_file_is_in_the_way() {
        let bench = Bench::new();
        std::fs::create_dir_all(bench.path("a/b/hook")).expect("directory");
        let error = present(&bench.tree, "a/b", "hook").expect_err("a directory");
        assert_eq!(error.errno, Errno::EEXIST);
        assert!(install(&bench.tree, "a/b", "hook", b"x", 0o755).is_err());
        assert_eq!(bench.names(), ["hook"]);
        symlink("/etc/passwd", bench.path("a/b/link")).expect("link");
        let error = present(&bench.tree, "a/b", "link").expect_err("a link");
        assert_eq!(error.errno, Errno::EEXIST);
    }

    #[test]
    fn the_remains_of_a_killed_run_are_no_obstacle() {
        let bench = Bench::new();
        let name = format!("a/b/.hook.{}", std::process::id());
        std::fs::create_dir_all(bench.path("a/b")).expect("directory");
        std::fs::write(bench.path(&name), "half").expect("file");
        install(&bench.tree, "a/b", "hook", b"whole", 0o755).expect("installed");
        assert_eq!(bench.names(), ["hook"]);

        // A file that others may write is none of ours.
        std::fs::write(bench.path(&name), "half").expect("file");
        let mode = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(bench.path(&name), mode).expect("mode");
        let error = install(&bench.tree, "a/b", "hook", b"x", 0o755).expect_err("in the way");
        assert_eq!(error.errno, Errno::EEXIST);
    }
}
