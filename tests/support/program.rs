//! The program under test, and trees to run it on.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use pve_atomicops::pci::Widths;

use super::HostTree;

/// The program below a root, with an environment that tests can rely on.
pub fn program(root: &Path) -> Command {
    let mut command = bare();
    command.arg("--root").arg(root);
    command
}

/// The program without any argument.
pub fn bare() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pve-atomicops"));
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C");
    command
}

/// A bundled example host.
pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/hosts").join(name)
}

/// A tree that may be changed.
pub struct Copy {
    directory: tempfile::TempDir,
}

impl Copy {
    /// Its root.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file below it, with the directories above.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let file = self.path().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(file.parent().expect("a directory")).expect("directories");
        std::fs::write(file, text).expect("write");
    }

    /// Writes a VM's configuration.
    pub fn write_vm(&self, vmid: u32, text: impl AsRef<[u8]>) {
        self.write(&format!("etc/pve/qemu-server/{vmid}.conf"), text);
    }

    /// A VM's configuration.
    pub fn vm(&self, vmid: u32) -> Vec<u8> {
        std::fs::read(self.path().join(format!("etc/pve/qemu-server/{vmid}.conf"))).expect("read")
    }
}

/// A copy of a tree, links as links.
pub fn copy_of(root: &Path) -> Copy {
    let directory = tempfile::tempdir().expect("directory");
    copy_into(root, directory.path());
    Copy { directory }
}

fn copy_into(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("list") {
        let entry = entry.expect("entry");
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().expect("type");
        if kind.is_symlink() {
            std::os::unix::fs::symlink(std::fs::read_link(&source).expect("link"), &target).expect("symlink");
        } else if kind.is_dir() {
            std::fs::create_dir(&target).expect("directory");
            copy_into(&source, &target);
        } else {
            std::fs::copy(&source, &target).expect("copy");
            assert_eq!(source.metadata().expect("size").size(), target.metadata().expect("size").size());
        }
    }
}

/// VM 100 on a host whose only card has one function of all widths and one of 32 and 64 bit.
pub fn card_whose_functions_differ(tree: HostTree) -> HostTree {
    tree.root_port("0000:00:03.1", 0x0b, |port| port.completes(Widths::ALL))
        .gpu("0000:0b:00.0", |gpu| gpu.completes(Widths::ALL))
        .audio("0000:0b:00.1", |audio| audio.completes(Widths::W32_W64))
        .vm(100, "machine: q35\nhostpci0: 0000:0b:00,pcie=1\n")
}
