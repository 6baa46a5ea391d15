//! `fix`, as it calls `qm` and `pvesh` on a live host, and as it edits a tree.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::support::HostTree;
use crate::support::example_hosts::{b550_chipset_slot, x399_two_7900xt};
use crate::support::live::{Live, said};
use crate::support::program::{bare, program};

const OLD_LINES: &str = "hostpci0: 0000:0b:00,pcie=1\nhostpci1: 0000:44:00,pcie=1\n";
const NEW_LINES: &str = "hostpci0: 0000:0b:00.0,pcie=1\nhostpci1: 0000:44:00.0,pcie=1\n";

fn digest(text: &str) -> String {
    pve_atomicops::vmconf::document::digest(text.as_bytes())
}

fn journal(tree: &HostTree) -> String {
    fs::read_to_string(tree.at("var/lib/pve-atomicops/journal")).unwrap_or_default()
}

/// Runs it on a tree, without a terminal.
fn on_tree(tree: &HostTree, arguments: &[&str]) -> (String, String, i32) {
    said(
        &program(tree.path())
            .arg("fix")
            .args(arguments)
            .stdin(std::process::Stdio::null())
            .output()
            .expect("the program runs"),
    )
}

#[test]
fn a_stopped_vm_is_changed_by_one_qm_call() {
    let live = Live::new(x399_two_7900xt());
    let before = live.tree.vm_text(101);
    let (text, errors, status) = said(&live.run(&["fix", "101", "--yes"]));
    assert_eq!((errors.as_str(), status), ("", 0), "{text}");
    assert_eq!(
        live.calls(),
        [[
            "qm",
            "set",
            "101",
            "--hostpci0",
            "0000:0b:00.0,pcie=1",
            "--hostpci1",
            "0000:44:00.0,pcie=1",
            "--digest",
            &digest(&before),
        ]]
    );
    let after = live.tree.vm_text(101);
    assert_eq!(after, before.replace(OLD_LINES, NEW_LINES));
    assert!(text.contains("-hostpci0: 0000:0b:00,pcie=1\n"), "{text}");
    assert!(text.contains("+hostpci0: 0000:0b:00.0,pcie=1\n"), "{text}");
    assert!(text.contains("Changed. VM 101 does not run"), "{text}");
    // The intent has no digest of the new file, since qm composes it; the outcome has the one found.
    let journal = journal(&live.tree);
    assert!(journal.contains("\"origin\":\"fix\""), "{journal}");
    assert!(journal.contains(&digest(&before)), "{journal}");
    assert!(
        journal.contains(&format!("\"done\":true,\"after\":\"{}\"", digest(&after))),
        "{journal}"
    );
    // The same again has nothing to do.
    let (text, _, status) = said(&live.run(&["fix", "101", "--yes"]));
    assert_eq!(status, 0);
    assert!(text.contains("nothing is lost"), "{text}");
    assert_eq!(live.calls().len(), 1);
}

#[test]
fn a_running_vm_gets_a_pending_change() {
    let live = Live::new(x399_two_7900xt());
    // A process that is this VM's, as far as /proc tells.
    let pid = Running::start(&live, 101);
    let before = live.tree.vm_text(101);
    let (text, errors, status) = said(&live.run(&["fix", "101", "--yes"]));
    assert_eq!((errors.as_str(), status), ("", 0), "{text}");
    let after = live.tree.vm_text(101);
    assert_eq!(after, format!("{before}\n[PENDING]\n{NEW_LINES}"));
    for words in [
        "`qm reboot 101`",
        "`qm shutdown 101`",
        "from inside the guest is not enough",
    ] {
        let flat = text.replace('\n', " ");
        assert!(flat.contains(words), "{words}: {text}");
    }
    // It is on its way: neither made twice nor taken for a new loss.
    let (text, _, status) = said(&live.run(&["fix", "101", "--yes"]));
    assert_eq!(status, 0);
    assert!(text.contains("made already, and pending"), "{text}");
    assert_eq!(live.calls().len(), 1);
    drop(pid);
}

/// A process with QEMU's `-id VMID` in its command line, and its PID file.
struct Running(std::process::Child);

impl Running {
    fn start(live: &Live, vmid: u32) -> Self {
        let child = std::process::Command::new("sh")
            .args([
                "-c",
                "while :; do sleep 60; done",
                "kvm",
                "-id",
                &vmid.to_string(),
            ])
            .spawn()
            .expect("a shell");
        live.tree.put(
            &format!("run/qemu-server/{vmid}.pid"),
            format!("{}\n", child.id()),
        );
        Self(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn another_pending_change_is_not_replaced() {
    let tree = x399_two_7900xt();
    let text = tree.vm_text(101);
    let tree = tree.vm(
        101,
        &format!("{text}\n[PENDING]\nhostpci1: 0000:44:00,pcie=1,rombar=0\n"),
    );
    let live = Live::new(tree);
    let (_, errors, status) = said(&live.run(&["fix", "101", "--yes"]));
    assert_eq!(status, 2);
    assert!(
        errors.starts_with("error: a change of hostpci1 is pending already"),
        "{errors}"
    );
    assert!(errors.contains("qm set 101 --revert hostpci1"), "{errors}");
    assert_eq!(live.calls(), [[""; 0]; 0]);
}

#[test]
fn what_qm_refuses_is_passed_on_with_the_command() {
    let tree = x399_two_7900xt();
    let locked = format!("lock: backup\n{}", tree.vm_text(101));
    let live = Live::new(tree.vm(101, &locked));
    let (_, errors, status) = said(&live.run(&["fix", "101", "--yes"]));
    assert_eq!(status, 2);
    assert_eq!(
        errors,
        format!(
            "VM is locked (backup)\nerror: VM 101 is unchanged: `qm set 101 --hostpci0 0000:0b:00.0,pcie=1 --hostpci1 \
             0000:44:00.0,pcie=1 --digest {}` failed with exit status 255\n",
            digest(&locked)
        )
    );
    assert_eq!(live.tree.vm_text(101), locked);
    assert!(journal(&live.tree).contains("\"done\":false"));
}

#[test]
fn a_change_in_between_is_noticed_by_its_digest() {
    let live = Live::new(x399_two_7900xt());
    let before = live.tree.vm_text(101);
    live.tree
        .put("run/stand-in/changes-first", "affinity: 0-15\n");
    let output = live.run(&["fix", "101", "--yes"]);
    let (_, errors, status) = said(&output);
    assert_eq!(status, 2);
    assert!(
        errors.starts_with("detected modified configuration"),
        "{errors}"
    );
    assert_eq!(live.tree.vm_text(101), format!("affinity: 0-15\n{before}"));
    assert!(journal(&live.tree).contains("\"done\":false"));
}

#[test]
fn a_lock_that_somebody_holds_is_not_broken() {
    let live = Live::new(x399_two_7900xt());
    let lock = live.tree.at("run/lock/qemu-server/lock-101.conf");
    let file = fs::File::create(lock).expect("lock file");
    let held = nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusive).expect("lock");
    let (_, errors, status) = said(&live.run(&["fix", "101", "--yes"]));
    assert_eq!(status, 2);
    assert!(
        errors.contains("can't lock file '/var/lock/qemu-server/lock-101.conf' - got timeout"),
        "{errors}"
    );
    drop(held);
    let (_, errors, status) = said(&live.run(&["fix", "101", "--yes"]));
    assert_eq!((errors.as_str(), status), ("", 0));
}

#[test]
fn without_proxmox_the_command_is_named() {
    let live = Live::new(x399_two_7900xt());
    let output = live
        .command(&["fix", "101", "--yes"])
        .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
        .output()
        .expect("unshare runs");
    let (_, errors, status) = said(&output);
    assert_eq!(status, 2);
    assert!(
        errors.contains("there is no program 'qm' on this host"),
        "{errors}"
    );
    assert!(
        errors.contains("the command is: qm set 101 --hostpci0"),
        "{errors}"
    );
}

#[test]
fn a_mapping_is_changed_for_all_who_use_it_and_they_are_named() {
    let tree = x399_two_7900xt().vm_on(
        "pve2",
        203,
        "name: elsewhere\nmachine: q35\nhostpci3: mapping=gpu0,pcie=1\n",
    );
    let live = Live::new(tree);
    let config = live.tree.vm_text(103);
    let cfg = live.tree.text("etc/pve/mapping/pci.cfg");
    let (text, errors, status) = said(&live.run(&["fix", "103", "--mapping", "--yes"]));
    assert_eq!((errors.as_str(), status), ("", 0), "{text}");
    assert!(
        text.contains("  VM 103 (train-mapped) on node 'pve1': hostpci0\n"),
        "{text}"
    );
    assert!(
        text.contains("  VM 203 (elsewhere) on node 'pve2': hostpci3\n"),
        "{text}"
    );
    let calls = live.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!(
        calls[0],
        [
            "pvesh",
            "set",
            "/cluster/mapping/pci/gpu0",
            "--map",
            "id=1002:744c,iommugroup=27,node=pve1,path=0000:0b:00.0,subsystem-id=1da2:e471",
            "--digest",
            &digest(&cfg),
        ]
    );
    let after = live.tree.text("etc/pve/mapping/pci.cfg");
    assert_eq!(
        after,
        cfg.replace("path=0000:0b:00,", "path=0000:0b:00.0,")
            .replace("path=0000:44:00,", "path=0000:44:00.0,")
    );
    assert_eq!(live.tree.vm_text(103), config, "the VM itself stays");
    // What is printed to take it back does so.
    let back = text
        .lines()
        .find_map(|line| line.strip_prefix("To take it back: "))
        .expect("a command");
    let words: Vec<_> = back.split(' ').collect();
    let pvesh = crate::support::live::stand_ins().join("pvesh");
    let output = live
        .command_as(&pvesh, &words[1..])
        .output()
        .expect("unshare runs");
    assert!(output.status.success(), "{output:?}");
    assert!(
        live.tree
            .text("etc/pve/mapping/pci.cfg")
            .contains("path=0000:0b:00,")
    );
}

#[test]
fn a_mapping_is_left_alone_without_being_asked_for() {
    let live = Live::new(x399_two_7900xt());
    let (text, errors, status) = said(&live.run(&["fix", "103", "--yes"]));
    assert_eq!((errors.as_str(), status), ("", 1));
    assert!(
        text.contains("fix:   pvesh set /cluster/mapping/pci/gpu0 --map "),
        "{text}"
    );
    assert!(text.contains("--mapping"), "{text}");
    assert!(live.calls().is_empty());
}

#[test]
fn a_tree_is_edited_through_the_store() {
    let tree = x399_two_7900xt();
    let before = tree.vm_text(101);
    let (text, errors, status) = on_tree(&tree, &["101", "--yes", "--strategy", "split"]);
    assert_eq!((errors.as_str(), status), ("", 0), "{text}");
    assert_eq!(
        tree.vm_text(101),
        before.replace(
            OLD_LINES,
            &format!("{NEW_LINES}hostpci2: 0000:0b:00.1,pcie=1\nhostpci3: 0000:44:00.1,pcie=1\n")
        )
    );
    assert!(journal(&tree).contains("\"origin\":\"fix\""));
    let (text, _, status) = on_tree(&tree, &["101"]);
    assert_eq!(status, 0);
    assert!(text.contains("nothing is lost"), "{text}");
}

#[test]
fn a_locked_vm_of_a_tree_is_left_alone() {
    let tree = x399_two_7900xt();
    let locked = format!("lock: snapshot\n{}", tree.vm_text(101));
    let tree = tree.vm(101, &locked);
    let (_, errors, status) = on_tree(&tree, &["101", "--yes"]);
    assert_eq!(status, 2);
    assert_eq!(
        errors,
        "error: VM 101 is locked (snapshot): wait until that is done\n"
    );
    assert_eq!(tree.vm_text(101), locked);
}

#[test]
fn nobody_is_asked_where_nobody_can_answer() {
    let tree = x399_two_7900xt();
    let before = tree.vm_text(101);
    let (text, errors, status) = on_tree(&tree, &["101"]);
    assert_eq!(status, 2);
    assert!(errors.starts_with("error: nobody can be asked"), "{errors}");
    assert!(errors.contains("--yes"), "{errors}");
    assert!(
        text.contains("+hostpci0: 0000:0b:00.0,pcie=1"),
        "what would be done is shown: {text}"
    );
    assert_eq!(tree.vm_text(101), before);
    assert_eq!(journal(&tree), "");
}

/// Runs it with a terminal, on which somebody types.
fn answered(tree: &HostTree, typed: &str) -> (String, i32) {
    use std::io::Write as _;
    use std::process::Stdio;
    let line = format!(
        "{} --root {} fix 101",
        env!("CARGO_BIN_EXE_pve-atomicops"),
        tree.path().display()
    );
    let mut child = std::process::Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("TERM", "dumb")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script runs");
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(typed.as_bytes())
        .expect("a reader");
    let output = child.wait_with_output().expect("it ends");
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        output.status.code().expect("it ends by itself"),
    )
}

#[test]
fn only_a_yes_on_a_terminal_makes_the_change() {
    let tree = x399_two_7900xt();
    let before = tree.vm_text(101);
    for no in ["n\n", "\n", "maybe\n"] {
        let (text, status) = answered(&tree, no);
        assert_eq!(status, 1, "{text}");
        assert!(text.contains("Make this change? [y/N]"), "{text}");
        assert!(text.contains("Nothing was changed."), "{text}");
        assert_eq!(tree.vm_text(101), before);
    }
    let (text, status) = answered(&tree, "y\n");
    assert_eq!(status, 0, "{text}");
    assert_eq!(tree.vm_text(101), before.replace(OLD_LINES, NEW_LINES));
}

#[test]
fn a_dry_run_changes_nothing() {
    let live = Live::new(b550_chipset_slot());
    let before = live.tree.vm_text(110);
    let (text, errors, status) = said(&live.run(&["fix", "110", "--dry-run"]));
    assert_eq!((errors.as_str(), status), ("", 0));
    assert!(
        text.contains("\nby: qm set 110 --hostpci0 0000:0b:00.0,pcie=1 --digest "),
        "{text}"
    );
    assert!(
        text.ends_with("Nothing was changed (--dry-run).\n"),
        "{text}"
    );
    assert_eq!(live.tree.vm_text(110), before);
    assert!(live.calls().is_empty());
    assert_eq!(journal(&live.tree), "");
}

#[test]
fn advice_is_shown_and_never_carried_out() {
    let tree = x399_two_7900xt();
    let text = tree.vm_text(101).replace(",pcie=1", "");
    let live = Live::new(tree.vm(101, &text));
    let (said_text, errors, status) = said(&live.run(&["fix", "101", "--yes"]));
    assert_eq!((errors.as_str(), status), ("", 1));
    assert!(
        said_text.contains("possible: qm set 101 --hostpci0 0000:0b:00.0,pcie=1\n"),
        "{said_text}"
    );
    assert!(live.calls().is_empty());
    assert_eq!(live.tree.vm_text(101), text);
}

#[test]
fn what_proxmox_refuses_is_no_loss_and_no_peace_either() {
    let tree = x399_two_7900xt();
    let text = tree.vm_text(101).replace("machine: q35\n", "");
    let tree = tree.vm(101, &text);
    let (shown, errors, status) = on_tree(&tree, &["101", "--yes"]);
    assert_eq!(status, 2);
    assert!(shown.contains("error: Proxmox refuses it"), "{shown}");
    assert!(
        errors.starts_with("error: hostpci0 of VM 101 has to be mended by hand first"),
        "{errors}"
    );
    assert_eq!(tree.vm_text(101), text);
}

#[test]
fn an_unknown_vm_is_answered_with_near_ones_or_its_node() {
    let tree = x399_two_7900xt().vm_on("pve2", 300, "name: x\n");
    let (_, errors, status) = on_tree(&tree, &["100"]);
    assert_eq!(status, 2);
    assert_eq!(
        errors,
        "error: there is no VM 100 on this node; the nearest IDs are 101, 102, 103\n"
    );
    let (_, errors, _) = on_tree(&tree, &["300"]);
    assert_eq!(errors, "error: VM 300 is on node 'pve2': run this there\n");
}

#[test]
fn without_root_all_that_can_be_read_is_shown_and_the_rest_is_named() {
    let tree = x399_two_7900xt();
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(tree.path(), mode).expect("readable by all");
    let live = Live::new(tree);
    let program = env!("CARGO_BIN_EXE_pve-atomicops");
    let nobody = |arguments: &[&str]| {
        let mut words = vec!["--reuid=65534", "--regid=65534", "--clear-groups", program];
        words.extend(arguments);
        said(
            &live
                .command_as(std::path::Path::new("setpriv"), &words)
                .output()
                .expect("unshare runs"),
        )
    };
    // The configuration is readable in this tree, the journal is not.
    let (text, errors, status) = nobody(&["fix", "101", "--yes"]);
    assert_eq!(status, 2, "{errors}");
    assert!(text.contains("+hostpci0: 0000:0b:00.0,pcie=1"), "{text}");
    assert_eq!(
        errors,
        "error: changing the configuration of VM 101 needs root: run this as root\n"
    );
    assert!(live.calls().is_empty());
    // As on a real host: www-data's group only.
    let file = live.tree.at("etc/pve/nodes/pve1/qemu-server/101.conf");
    fs::set_permissions(file, fs::Permissions::from_mode(0o640)).expect("mode");
    let (_, errors, status) = nobody(&["check", "101"]);
    assert_eq!(status, 2);
    assert!(
        errors.starts_with("error: /etc/pve/qemu-server/101.conf: Permission denied"),
        "{errors}"
    );
    assert!(errors.ends_with("run this as root\n"), "{errors}");
    // The others of the node are shown all the same.
    let (text, _, status) = nobody(&["check"]);
    assert_eq!(status, 2);
    assert!(text.contains("VM 102 (train-explicit)"), "{text}");
}

#[test]
fn all_vms_at_once_are_only_shown() {
    let (_, errors, status) = said(&bare().args(["fix", "--all"]).output().expect("it runs"));
    assert_eq!(status, 2);
    assert!(errors.contains("--dry-run"), "{errors}");
}
