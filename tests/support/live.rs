//! A tree as the running system: the program sees it as `/`, without `--root`, and calls `qm` and `pvesh` by their names.
//!
//! The tree's directories are mounted over the system's own, in a mount namespace that ends with the program. The commands
//! are the executables in `stand-ins/`, which stand first on `PATH` and note what they were called with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::HostTree;

/// Mounts the tree, takes its node's name, and goes on as the program.
const ENTER: &str = r#"
tree=$1 node=$2
shift 2
mkdir -p "$tree/run/lock/qemu-server" "$tree/dev"
echo "$node" >/proc/sys/kernel/hostname
mount --bind "$tree/proc/sys/kernel/osrelease" /proc/sys/kernel/osrelease
mount --bind "$tree/sys" /sys
mount --bind "$tree/var/lib" /var/lib
mount --bind "$tree/run" /run
mount --bind "$tree/etc" /etc
exec "$@"
"#;

/// A tree as the running system.
pub struct Live {
    /// The tree.
    pub tree: HostTree,
    node: String,
}

impl Live {
    /// Takes a tree.
    pub fn new(tree: HostTree) -> Self {
        let node = tree.text("etc/hostname").trim().to_owned();
        for place in ["run/lock/qemu-server", "run/stand-in", "var/lib"] {
            fs::create_dir_all(tree.at(place)).expect(place);
        }
        Self { tree, node }
    }

    /// The program with these arguments.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.command_as(Path::new(env!("CARGO_BIN_EXE_pve-atomicops")), arguments)
    }

    /// Any program with these arguments.
    pub fn command_as(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        if !nix::unistd::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command
            .args(["--mount", "--uts", "--propagation", "private"])
            .args(["sh", "-euc", ENTER, "sh"])
            .arg(self.tree.path())
            .arg(&self.node)
            .arg(program)
            .args(arguments)
            .env_clear()
            .env(
                "PATH",
                format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", stand_ins().display()),
            )
            .env("LC_ALL", "C")
            .stdin(Stdio::null());
        command
    }

    /// Runs the program.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("unshare runs")
    }

    fn log(&self) -> PathBuf {
        self.tree.at("run/stand-in/log")
    }

    /// What `qm` and `pvesh` were called with so far, word by word.
    pub fn calls(&self) -> Vec<Vec<String>> {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        log.lines()
            .map(|line| line.split('\u{1f}').map(str::to_owned).collect())
            .collect()
    }
}

/// The directory of the stand-ins.
pub fn stand_ins() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/stand-ins")
}

/// Standard output, standard error and exit status, as text.
pub fn said(output: &Output) -> (String, String, i32) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (
        text(&output.stdout),
        text(&output.stderr),
        output.status.code().expect("it ends by itself"),
    )
}
