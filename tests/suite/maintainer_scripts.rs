//! The package's maintainer scripts, put together as `packaging/build` does and run below a directory (`DPKG_ROOT`).
//!
//! `packaging/test-lifecycle` runs them through dpkg. Here they meet what a chroot cannot offer: a cluster file system
//! that does not answer at all, and many guests.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};

const SNIPPET: &str = "var/lib/vz/snippets/pve-atomicops-hook";
const RECORD: &str = "var/lib/pve-atomicops/snippets";
const SHIPPED: &str = "usr/share/pve-atomicops/pve-atomicops-hook";

/// A root directory with the package's files, and a recorded snippet of an earlier version.
struct Root {
    dir: tempfile::TempDir,
}

impl Root {
    fn new() -> Self {
        let root = Self {
            dir: tempfile::tempdir().expect("a temporary directory"),
        };
        root.write(SHIPPED, include_str!("../../hook/pve-atomicops-hook"));
        root.write(SNIPPET, "#!/bin/sh\n# an earlier version\n");
        let digest = Command::new("sha256sum")
            .arg(root.path(SNIPPET))
            .output()
            .expect("sha256sum");
        let digest = String::from_utf8(digest.stdout).expect("a digest");
        root.write(RECORD, &format!("{}  /{SNIPPET}\n", &digest[..64]));
        root
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("mkdir");
        fs::write(&path, text).expect("write");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("chmod");
    }

    fn guest(&self, node: &str, name: &str, text: &str) {
        self.write(&format!("etc/pve/nodes/{node}/{name}.conf"), text);
    }

    fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Runs one script with its waits shortened to a tenth, checks that it succeeds, and gives its output.
    #[track_caller]
    fn run(&self, script: &str, arguments: &[&str]) -> String {
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/debian");
        let read = |name: &str| fs::read_to_string(packaging.join(name)).expect("a script");
        let functions = read("functions.sh");
        assert_eq!(functions.matches("tries=100\n").count(), 1);
        let text = read(&format!("pve-atomicops.{script}"));
        assert_eq!(text.matches("#FUNCTIONS#\n").count(), 1);
        let text = text
            .replace("#FUNCTIONS#\n", &functions)
            .replace("tries=100\n", "tries=10\n");
        let output: Output = Command::new("dash")
            .args(["-c", &text, script])
            .args(arguments)
            .env("DPKG_ROOT", self.dir.path())
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .expect("dash");
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

const ATTACHED: &str = "hookscript: local:snippets/pve-atomicops-hook\n";

#[test]
fn an_upgrade_refreshes_what_nobody_edited() {
    let root = Root::new();
    let said = root.run("postinst", &["configure", "0.0.1"]);
    assert!(said.contains(&format!("refreshed /{SNIPPET}")), "{said}");
    let now = fs::read(root.path(SNIPPET)).expect("the snippet");
    assert_eq!(now, fs::read(root.path(SHIPPED)).expect("the new one"));
    let mode = fs::metadata(root.path(SNIPPET))
        .expect("the snippet")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o755);
    // The record follows, and a second time there is nothing to do.
    assert_eq!(root.run("postinst", &["configure", "0.0.1"]), "");
    fs::write(root.path(SNIPPET), "#!/bin/sh\n# mine\n").expect("write");
    let said = root.run("postinst", &["configure", "0.0.1"]);
    assert!(said.contains("was edited"), "{said}");
    assert_eq!(
        fs::read(root.path(SNIPPET)).expect("the snippet"),
        b"#!/bin/sh\n# mine\n"
    );
}

#[test]
fn an_upgrade_leaves_links_alone_and_makes_nothing_new() {
    let root = Root::new();
    let before = fs::read(root.path(RECORD)).expect("the record");
    fs::rename(root.path(SNIPPET), root.path("elsewhere")).expect("rename");
    assert_eq!(root.run("postinst", &["configure", "0.0.1"]), "");
    assert!(!root.exists(SNIPPET));
    std::os::unix::fs::symlink(root.path("elsewhere"), root.path(SNIPPET)).expect("symlink");
    assert_eq!(root.run("postinst", &["configure", "0.0.1"]), "");
    assert!(root.path(SNIPPET).is_symlink());
    assert_eq!(fs::read(root.path(RECORD)).expect("the record"), before);
}

#[test]
fn removal_names_guests_by_the_main_section() {
    let root = Root::new();
    root.guest(
        "pve1",
        "qemu-server/101",
        &format!("{ATTACHED}memory: 512\n"),
    );
    root.guest(
        "pve1",
        "qemu-server/102",
        &format!("memory: 512\n[PENDING]\n{ATTACHED}"),
    );
    root.guest(
        "pve1",
        "qemu-server/103",
        "hookscript: local:snippets/other.sh\n",
    );
    root.guest(
        "pve1",
        "qemu-server/104",
        &format!("#{ATTACHED}memory: 512\n"),
    );
    root.guest(
        "pve2",
        "qemu-server/105",
        &format!("memory: 512\n\n[a snap]\n{ATTACHED}"),
    );
    root.guest(
        "pve2",
        "lxc/106",
        "hookscript: nfs:snippets/pve-atomicops-hook  \n",
    );
    let said = root.run("prerm", &["remove"]);
    let lines: Vec<_> = said.lines().filter(|line| line.starts_with("  ")).collect();
    assert_eq!(
        lines,
        [
            "  pve1: qm set 101 --delete hookscript",
            "  pve1: qm set 102 --revert hookscript   (a pending change)",
            "  pve2: snapshot a_snap of 105 names it too: a rollback brings it back",
            "  pve2: pct set 106 --delete hookscript",
        ],
        "{said}"
    );
    assert_eq!(root.run("prerm", &["upgrade", "9.9"]), "");
}

#[test]
fn removal_is_silent_without_attached_guests() {
    let root = Root::new();
    assert_eq!(root.run("prerm", &["remove"]), "");
    root.guest("pve1", "qemu-server/101", "memory: 512\n");
    assert_eq!(root.run("prerm", &["remove"]), "");
}

#[test]
fn removal_copes_with_a_thousand_guests() {
    let root = Root::new();
    for vmid in 1000..2000 {
        root.guest("pve1", &format!("qemu-server/{vmid}"), "memory: 512\n");
    }
    root.guest("pve1", "qemu-server/1500", ATTACHED);
    let said = root.run("prerm", &["remove"]);
    assert!(said.contains("qm set 1500 --delete hookscript"), "{said}");
}

#[test]
fn purge_keeps_a_snippet_under_the_name_that_a_guest_uses() {
    let root = Root::new();
    root.guest(
        "pve2",
        "qemu-server/101",
        &format!("memory: 512\n[snap]\n{ATTACHED}"),
    );
    root.write("etc/pve/atomicops.toml", "");
    root.guest("pve1", "qemu-server/102", "memory: 512\n");
    let said = root.run("postrm", &["purge"]);
    assert!(root.exists(SNIPPET), "{said}");
    assert!(root.exists("etc/pve/atomicops.toml"), "{said}");
    assert!(!root.exists("var/lib/pve-atomicops"), "{said}");
    assert!(said.contains("kept /etc/pve/atomicops.toml"), "{said}");
    assert!(said.contains("removed /var/lib/pve-atomicops"), "{said}");
}

#[test]
fn purge_removes_what_no_guest_names() {
    let root = Root::new();
    root.guest(
        "pve1",
        "qemu-server/101",
        "hookscript: local:snippets/my-pve-atomicops-hook\n",
    );
    root.write("etc/pve-atomicops/config.toml", "");
    root.write("etc/pve/atomicops.toml", "");
    let said = root.run("postrm", &["purge"]);
    for gone in [
        SNIPPET,
        "etc/pve-atomicops",
        "etc/pve/atomicops.toml",
        "var/lib/pve-atomicops",
    ] {
        assert!(!root.exists(gone), "{gone}: {said}");
    }
    assert!(said.contains(&format!("removed /{SNIPPET}")), "{said}");
}

#[test]
fn purge_keeps_foreign_files_beside_the_policy() {
    let root = Root::new();
    root.write("etc/pve-atomicops/config.toml", "");
    root.write("etc/pve-atomicops/notes", "");
    let said = root.run("postrm", &["purge"]);
    assert!(!root.exists("etc/pve-atomicops/config.toml"), "{said}");
    assert!(root.exists("etc/pve-atomicops/notes"), "{said}");
}

#[test]
fn removal_alone_deletes_nothing() {
    let root = Root::new();
    root.write("etc/pve-atomicops/config.toml", "");
    assert_eq!(root.run("postrm", &["remove"]), "");
    assert!(root.exists(SNIPPET) && root.exists(RECORD));
    assert!(root.exists("etc/pve-atomicops/config.toml"));
}

/// A file system that answers nothing until the gate opens, and then that there is nothing.
struct Mute(Gate);

#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn wait(&self) {
        let (open, changed) = &*self.0;
        let mut open = open.lock().expect("the gate");
        while !*open {
            open = changed.wait(open).expect("the gate");
        }
    }

    fn open(&self) {
        *self.0.0.lock().expect("the gate") = true;
        self.0.1.notify_all();
    }
}

impl fuser::Filesystem for Mute {
    fn lookup(&mut self, _: &fuser::Request<'_>, _: u64, _: &OsStr, reply: fuser::ReplyEntry) {
        self.0.wait();
        reply.error(nix::errno::Errno::ENOENT as i32);
    }

    fn getattr(&mut self, _: &fuser::Request<'_>, _: u64, _: Option<u64>, reply: fuser::ReplyAttr) {
        self.0.wait();
        reply.error(nix::errno::Errno::ENOENT as i32);
    }
}

#[test]
fn a_cluster_file_system_that_does_not_answer_stops_nothing() {
    let root = Root::new();
    let etc_pve = root.path("etc/pve");
    fs::create_dir_all(&etc_pve).expect("mkdir");
    let gate = Gate::default();
    let mounted = fuser::spawn_mount2(Mute(gate.clone()), &etc_pve, &[]).expect("a FUSE mount");
    // A failed assertion must not leave the scripts' children waiting for ever.
    let said = std::panic::catch_unwind(|| {
        [
            root.run("postinst", &["configure", "0.0.1"]),
            root.run("prerm", &["remove"]),
            root.run("postrm", &["remove"]),
            root.run("postrm", &["purge"]),
        ]
    });
    gate.open();
    drop(mounted);
    let [installed, removing, removed, purged] = said.expect("the scripts");
    assert!(installed.contains("refreshed"), "{installed}");
    assert!(removing.contains("no answer"), "{removing}");
    assert!(
        removing.contains("qm set VMID --delete hookscript"),
        "{removing}"
    );
    assert_eq!(removed, "");
    assert!(
        purged.contains("no answer") && purged.contains(SNIPPET),
        "{purged}"
    );
    assert!(root.exists(SNIPPET));
    assert!(!root.exists("var/lib/pve-atomicops"));
}
