//! The hook where many of it run at once, and where the system refuses it something.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::support::HostTree;

const VMS: std::ops::Range<u32> = 101..111;
/// Hooks for each VM.
const HOOKS: u32 = 20;
/// How often somebody else changes each VM's memory.
const CHANGES: u32 = 5;

const OLD: &str = "hostpci0: 0000:0b:00,pcie=1\n";
const NEW: &str = "hostpci0: 0000:0b:00.0,pcie=1\n";
const POLICY: &str = "mode = 'rewrite'\nafter_rewrite = 'continue'\nmin_gpus = 1\n";

fn config(hostpci: &str, memory: u32) -> String {
    format!("#keep\n{hostpci}machine: q35\nmemory: {memory}\n\n[snap]\n{OLD}")
}

fn card() -> HostTree {
    HostTree::new()
        .root_port("0000:00:03.1", 0x0b, |port| port)
        .gpu("0000:0b:00.0", |gpu| gpu)
        .audio("0000:0b:00.1", |audio| audio)
}

fn tree(policy: &str) -> HostTree {
    card().policy(policy).vm(101, &config(OLD, 0))
}

fn place(vmid: u32) -> String {
    format!("etc/pve/nodes/pve1/qemu-server/{vmid}.conf")
}

/// A shell that prepares something and goes on as the hook. `$t` is the tree.
fn prepared(tree: &HostTree, prepare: &str, redirect: &str) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-euc"])
        .arg(format!("t=$1; shift; {prepare}\nexec \"$@\" {redirect}"))
        .arg("sh")
        .arg(tree.path())
        .args(["timeout", "-k", "1", "60"])
        .arg(env!("CARGO_BIN_EXE_pve-atomicops"))
        .arg("--root")
        .arg(tree.path())
        .args(["hook", "101", "pre-start"])
        .stdin(Stdio::null());
    command
}

/// What the hook said; its exit status is 0.
fn hook(tree: &HostTree, prepare: &str, redirect: &str) -> String {
    let output = prepared(tree, prepare, redirect).output().expect("it runs");
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{prepare}: {said}{errors}");
    assert!(errors.is_empty(), "{prepare}: {errors}");
    said
}

fn hook_of(root: &Path, vmid: u32, phase: &str) -> Child {
    Command::new("sh")
        .args(["-c", "ulimit -v 300000; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_pve-atomicops"))
        .arg("--root")
        .arg(root)
        .args(["hook", &vmid.to_string(), phase])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts")
}

/// Somebody who changes a configuration as Proxmox does: under the lock, by a new file.
fn changer(root: &Path, vmid: u32) -> Child {
    let script = format!(
        "for i in $(seq {CHANGES}); do flock {root}/var/lock/qemu-server/lock-{vmid}.conf sh -ec '
         awk \"/^memory: /{{ \\$2++ }} {{ print }}\" {root}/{conf} >{root}/{conf}.tmp.$$
         mv {root}/{conf}.tmp.$$ {root}/{conf}'; done",
        root = root.display(),
        conf = place(vmid),
    );
    Command::new("sh")
        .args(["-ec", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts")
}

#[test]
fn two_hundred_hooks_at_once_lose_no_change() {
    let tree = VMS.fold(
        // Whoever waits for a turn must not run out of time: it is no measure of this machine.
        card().policy(&format!("{POLICY}timeout_s = 600\nsyslog = false\n")),
        |tree, vmid| tree.vm(vmid, &config(OLD, 0)),
    );
    let mut children = Vec::new();
    for round in 0..HOOKS {
        let phase = ["pre-start", "post-stop"][usize::from(round % 2 == 1)];
        children.extend(VMS.map(|vmid| hook_of(tree.path(), vmid, phase)));
        if round == 0 {
            children.extend(VMS.map(|vmid| changer(tree.path(), vmid)));
        }
    }
    for child in children {
        let Output {
            status,
            stdout,
            stderr,
        } = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&stdout);
        assert!(
            status.success(),
            "{status} {said} {}",
            String::from_utf8_lossy(&stderr)
        );
        assert!(!said.contains("internal error"), "{said}");
    }
    for vmid in VMS {
        // All of them may have come across a change of somebody else; now nobody is in the way.
        let last = hook_of(tree.path(), vmid, "pre-start").wait_with_output();
        assert!(last.expect("it ends").status.success());
        assert_eq!(tree.text(&place(vmid)), config(NEW, CHANGES), "VM {vmid}");
    }
    let mut names: Vec<_> = std::fs::read_dir(tree.at("etc/pve/nodes/pve1/qemu-server"))
        .expect("list")
        .map(|entry| {
            entry
                .expect("entry")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .collect();
    names.sort();
    assert_eq!(
        names,
        VMS.map(|vmid| format!("{vmid}.conf")).collect::<Vec<_>>()
    );
    // One edit for each VM, and no more.
    let journal = tree.text("var/lib/pve-atomicops/journal");
    let done = journal
        .lines()
        .filter(|line| line.contains("\"done\":true"));
    assert_eq!(done.count(), VMS.len(), "{journal}");
}

#[test]
fn what_cannot_be_written_leaves_everything_as_it_was() {
    for (trouble, prepare) in [
        (
            "no room for the journal",
            "mkdir -p $t/var/lib/pve-atomicops; mount -t tmpfs -o size=4k,mode=700 none $t/var/lib/pve-atomicops
             head -c 4096 /dev/zero >$t/var/lib/pve-atomicops/full",
        ),
        (
            "no room for the configuration",
            "d=$t/etc/pve/nodes/pve1/qemu-server; cp $d/101.conf $t/saved; mount -t tmpfs -o size=8k none $d
             cp $t/saved $d/101.conf; head -c 4096 /dev/zero >$d/full",
        ),
        (
            "/var is read-only",
            "mount --bind $t/var $t/var; mount -o remount,bind,ro $t/var",
        ),
        (
            "/etc/pve is read-only",
            "mount --bind $t/etc/pve $t/etc/pve; mount -o remount,bind,ro $t/etc/pve",
        ),
        (
            "no i-nodes",
            "d=$t/etc/pve/nodes/pve1/qemu-server; cp $d/101.conf $t/saved; mount -t tmpfs -o nr_inodes=2 none $d
             cp $t/saved $d/101.conf",
        ),
    ] {
        let tree = tree(&format!("{POLICY}syslog = false\n"));
        let show = "\"$@\"; cat $t/etc/pve/nodes/pve1/qemu-server/101.conf; ls $t/etc/pve/nodes/pve1/qemu-server; exit 0";
        let said = hook(&tree, &format!("{prepare}\n{show}"), "");
        let (log, rest) = said.split_once("#keep\n").expect("the configuration");
        assert!(log.starts_with("WARN: VM 101 "), "{trouble}: {log}");
        assert!(log.contains("  VM 101 is not rewritten: "), "{trouble}: {log}");
        assert_eq!(log.matches("WARN").count(), 1, "{trouble}: {log}");
        let expected = config(OLD, 0);
        let names = rest.strip_prefix(expected.trim_start_matches("#keep\n"));
        let names = names.unwrap_or_else(|| panic!("{trouble}: {rest}"));
        assert!(!names.contains("tmp"), "{trouble}: {names}");
    }
}

#[test]
fn directories_that_are_missing_are_made() {
    for prepare in [
        "rm -rf $t/var/lib/pve-atomicops",
        "rm -rf $t/var/lib",
        "rm -rf $t/var/lock $t/run",
        "rm -rf $t/var/lib/dpkg $t/usr",
        "rm -rf $t/dev",
    ] {
        let tree = tree(POLICY);
        let said = hook(&tree, prepare, "");
        assert!(said.contains("VM 101: repaired"), "{prepare}: {said}");
        assert_eq!(tree.text(&place(101)), config(NEW, 0), "{prepare}");
    }
}

#[test]
fn a_task_log_that_takes_nothing_stops_nothing() {
    for redirect in [
        ">&-",
        ">/dev/full",
        "<&-",
        ">&- 2>&- <&-",
        ">/dev/full 2>/dev/full",
        "| true",
    ] {
        for policy in [
            POLICY,
            // A script that fails is a warning after the stop, and that cannot be told either.
            "mode = 'off'\nchain = ['/nonexistent/hook']\n",
        ] {
            let tree = tree(policy);
            let off = policy.contains("off");
            let mut command = prepared(&tree, "", redirect);
            if off {
                command = Command::new("sh");
                command
                    .arg("-c")
                    .arg(format!("exec \"$@\" {redirect}"))
                    .arg("sh")
                    .arg(env!("CARGO_BIN_EXE_pve-atomicops"))
                    .arg("--root")
                    .arg(tree.path())
                    .args(["hook", "101", "post-stop"]);
            }
            let ended = command.output().expect("it runs");
            assert_eq!(ended.status.code(), Some(0), "{redirect}: {ended:?}");
            let expected = if off { OLD } else { NEW };
            assert_eq!(tree.text(&place(101)), config(expected, 0), "{redirect}");
        }
    }
}

#[test]
fn a_huge_environment_and_few_resources() {
    let variables: String = (0..14)
        .map(|number| format!("export V{number}=$(head -c 100000 /dev/zero | tr '\\0' x);"))
        .collect();
    for prepare in [
        variables.as_str(),
        "ulimit -v 100000",
        "ulimit -s 256",
        "ulimit -f 100",
        "ulimit -t 20",
    ] {
        let tree = tree(POLICY);
        let said = hook(&tree, prepare, "");
        assert!(said.contains("VM 101: repaired"), "{said}");
        assert_eq!(tree.text(&place(101)), config(NEW, 0));
    }
}

/// With three descriptors not even the program's libraries can be opened. From seven on a loss is found, from eleven on it
/// is repaired; with fewer there is a warning that says so, and the VM goes on.
#[test]
fn few_descriptors() {
    for limit in 4..=12 {
        let tree = tree(&format!("{POLICY}syslog = false\n"));
        let said = hook(&tree, &format!("ulimit -n {limit}"), "");
        let repaired = said.contains("VM 101: repaired");
        let expected = if repaired { NEW } else { OLD };
        assert_eq!(
            tree.text(&place(101)),
            config(expected, 0),
            "{limit}: {said}"
        );
        assert!(said.contains("WARN: "), "{limit}: {said}");
        let found = said.starts_with("WARN: VM 101 will not get");
        assert!(limit < 7 || found, "{limit}: {said}");
        assert!(limit < 11 || repaired, "{limit}: {said}");
        assert!(
            repaired || said.contains("Too many open files"),
            "{limit}: {said}"
        );
    }
}

#[test]
fn a_script_of_the_chain_sees_no_trouble_of_ours() {
    let tree = tree("syslog = false\n");
    let script = tree.at("script");
    std::fs::write(&script, "#!/bin/sh\necho ran \"$@\"\n").expect("script");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("mode");
    tree.put(
        "etc/pve/atomicops.toml",
        format!("{POLICY}syslog = false\nchain = ['/script']\n"),
    );
    for prepare in [
        "rm $t/etc/pve/qemu-server",
        "rm -rf $t/sys",
        "mount --bind $t/etc/pve $t/etc/pve; mount -o remount,bind,ro $t/etc/pve",
    ] {
        let said = hook(&tree, prepare, "");
        assert!(said.ends_with("ran 101 pre-start\n"), "{prepare}: {said}");
    }
}
