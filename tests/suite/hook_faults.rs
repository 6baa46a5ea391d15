//! The hook in mode rewrite with every one of its file operations going wrong: reading the policy, the configuration and
//! `sysfs` as well as writing. The whole tree lies on one file system that keeps /etc/pve's rules.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use nix::errno::Errno;
use nix::fcntl::FlockArg;

use crate::child::{CONFIG, flock};
use crate::crash::{Outcome, Point, at_every_operation, run};
use crate::fuse::{Action, Mount};
use crate::support::HostTree;
use crate::support::program::program;

const OLD: &[u8] =
    b"#keep\nmachine: q35\nhostpci0: 0000:0b:00,pcie=1\n\n[snap]\nhostpci0: 0000:0b:00\n";
const NEW: &[u8] =
    b"#keep\nmachine: q35\nhostpci0: 0000:0b:00.0,pcie=1\n\n[snap]\nhostpci0: 0000:0b:00\n";
const DIRECTORY: &str = "etc/pve/nodes/pve1/qemu-server";

/// A node with one card of two functions, and VM 101, which passes it.
fn node() -> Mount {
    let tree = HostTree::named("pve1")
        .root_port("0000:00:03.1", 0x0b, |port| port)
        .gpu("0000:0b:00.0", |gpu| gpu)
        .audio("0000:0b:00.1", |audio| audio)
        .policy("mode = 'rewrite'\nmin_gpus = 1\nsyslog = false\n")
        .vm(101, std::str::from_utf8(OLD).expect("UTF-8"));
    let mount = Mount::new();
    copy(tree.path(), tree.path(), &mount);
    mount.directory("run/lock");
    mount.link("var/lock", "/run/lock");
    mount.directory("var/lib");
    mount
}

fn copy(root: &Path, directory: &Path, mount: &Mount) {
    for entry in directory.read_dir().expect("list") {
        let path = entry.expect("entry").path();
        let place = path
            .strip_prefix(root)
            .expect("below")
            .to_str()
            .expect("UTF-8")
            .to_owned();
        if let Ok(target) = path.read_link() {
            mount.link(&place, target.to_str().expect("UTF-8"));
        } else if path.is_dir() {
            mount.directory(&place);
            copy(root, &path, mount);
        } else {
            mount.file(&place, &std::fs::read(&path).expect("read"));
        }
    }
}

fn hook(mount: &Mount) -> Command {
    let mut command = program(mount.path());
    command.args(["hook", "101", "pre-start"]);
    command
}

/// The configuration is old or new; the start is refused exactly where it is new; nothing else stops it.
fn judge(mount: &Mount, point: &Point, outcome: &Outcome) {
    let config = mount.content(CONFIG).expect("the configuration is there");
    let shown = String::from_utf8_lossy(&config).into_owned();
    assert!(config == OLD || config == NEW, "{point}: {shown}");
    match outcome.status.code() {
        Some(0) => {
            assert_eq!(shown.as_bytes(), OLD, "{point}: {outcome}");
            assert!(
                !outcome.stdout.is_empty(),
                "{point}: a start that is not repaired is not silent"
            );
        }
        Some(1) => assert_eq!(shown.as_bytes(), NEW, "{point}: {outcome}"),
        None => assert!(
            matches!(point.action, Action::Kill | Action::DoAndKill),
            "{point}: {outcome}"
        ),
        other => panic!("{point}: {other:?}: {outcome}"),
    }
    if matches!(point.action, Action::Fail(_) | Action::DoAndFail(_)) {
        assert_eq!(mount.names(DIRECTORY), ["101.conf"], "{point}: {outcome}");
    }
    let later = run(mount, &hook(mount));
    let expected = i32::from(config != NEW);
    assert_eq!(later.status.code(), Some(expected), "{point}: {later}");
    assert_eq!(mount.content(CONFIG).as_deref(), Some(NEW), "{point}");
}

fn sweep(actions: &[Action], prepare: impl Fn() -> Mount) {
    // A run without a fault is refused, since it repairs: the harness wants success there.
    let tried = at_every_operation(actions, prepare, hook, judge);
    writeln!(
        std::io::stderr(),
        "hook: {tried} points tried with {actions:?}"
    )
    .expect("stderr");
    assert!(
        tried >= 100 * actions.len(),
        "only {tried} points: is the mount used at all?"
    );
}

#[test]
fn an_error_at_any_operation_of_the_hook() {
    sweep(&[Action::Fail(Errno::EIO)], node);
}

#[test]
fn the_hook_killed_at_any_operation() {
    sweep(&[Action::DoAndKill], || {
        let mount = node();
        // This process is the parent of the hook, and holds the lock as Proxmox does.
        mount.keep(flock(mount.path(), FlockArg::LockExclusive));
        mount
    });
}
