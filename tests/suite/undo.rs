//! `undo`: takes an edit back as long as its lines read as they were left.

use std::fs;
use std::process::Output;

use crate::support::HostTree;
use crate::support::example_hosts::x399_two_7900xt;
use crate::support::live::{Live, said};
use crate::support::program::program;

fn on_tree(tree: &HostTree, arguments: &[&str]) -> Output {
    program(tree.path())
        .args(arguments)
        .output()
        .expect("the program runs")
}

fn ok(output: &Output) -> String {
    let (text, errors, status) = said(output);
    assert_eq!((errors.as_str(), status), ("", 0), "{text}");
    text
}

#[test]
fn fix_and_undo_by_qm_give_the_same_bytes_back() {
    for strategy in ["explicit", "split"] {
        let live = Live::new(x399_two_7900xt());
        let before = live.tree.vm_text(101);
        ok(&live.run(&["fix", "101", "--yes", "--strategy", strategy]));
        assert_ne!(live.tree.vm_text(101), before);
        let text = ok(&live.run(&["undo", "101", "--dry-run"]));
        assert!(text.contains("+hostpci0: 0000:0b:00,pcie=1\n"), "{text}");
        assert_eq!(live.calls().len(), 1, "a dry run calls nothing");
        let text = ok(&live.run(&["undo", "101"]));
        assert!(text.contains("Taken back. VM 101 does not run"), "{text}");
        assert_eq!(live.tree.vm_text(101), before, "{strategy}");
        let calls = live.calls();
        let call = calls.last().expect("a call").join(" ");
        assert!(
            call.starts_with(
                "qm set 101 --hostpci0 0000:0b:00,pcie=1 --hostpci1 0000:44:00,pcie=1 "
            ),
            "{call}"
        );
        assert_eq!(
            call.contains("--delete hostpci2,hostpci3"),
            strategy == "split",
            "{call}"
        );
        assert!(call.contains(" --digest "), "{call}");
        // What is taken back is not taken back again.
        let text = ok(&live.run(&["undo", "101"]));
        assert!(text.contains("no edit"), "{text}");
        assert_eq!(live.calls().len(), calls.len());
    }
}

#[test]
fn a_tree_gives_the_same_bytes_back() {
    for strategy in ["explicit", "split"] {
        // A last line without an ending, and what Proxmox would sort: nothing of it may change.
        let tree = x399_two_7900xt();
        let before = format!("# notes\n\n{}onboot: 1", tree.vm_text(101));
        let tree = tree.vm(101, &before);
        ok(&on_tree(
            &tree,
            &["fix", "101", "--yes", "--strategy", strategy],
        ));
        assert_ne!(tree.vm_text(101), before);
        ok(&on_tree(&tree, &["undo", "101"]));
        assert_eq!(tree.vm_text(101), before, "{strategy}");
    }
}

#[test]
fn edits_of_the_hook_are_taken_back_too() {
    let tree = x399_two_7900xt().policy("mode = \"rewrite\"\nsyslog = false\n");
    let before = tree.vm_text(101);
    let output = on_tree(&tree, &["hook", "101", "post-stop"]);
    ok(&output);
    assert_ne!(tree.vm_text(101), before);
    let text = ok(&on_tree(&tree, &["undo", "101"]));
    assert!(text.contains("by the hook"), "{text}");
    assert_eq!(tree.vm_text(101), before);
}

#[test]
fn lines_that_changed_since_are_left_alone() {
    let live = Live::new(x399_two_7900xt());
    ok(&live.run(&["fix", "101", "--yes"]));
    let edited = live
        .tree
        .vm_text(101)
        .replace("0000:44:00.0,pcie=1", "0000:44:00.0,pcie=1,rombar=0");
    live.tree
        .put("etc/pve/nodes/pve1/qemu-server/101.conf", &edited);
    let (_, errors, status) = said(&live.run(&["undo", "101"]));
    assert_eq!(status, 2);
    assert!(
        errors.starts_with("error: VM 101 is unchanged: hostpci1 has been changed since"),
        "{errors}"
    );
    assert_eq!(live.tree.vm_text(101), edited);
    // Other lines may change.
    let elsewhere = live
        .tree
        .vm_text(101)
        .replace(",rombar=0", "")
        .replace("memory: 65536", "memory: 32768");
    live.tree
        .put("etc/pve/nodes/pve1/qemu-server/101.conf", &elsewhere);
    ok(&live.run(&["undo", "101"]));
    let text = live.tree.vm_text(101);
    assert!(text.contains("memory: 32768\n"), "{text}");
    assert!(text.contains("hostpci1: 0000:44:00,pcie=1\n"), "{text}");
}

#[test]
fn a_pending_edit_is_not_undone_but_how_to_is_said() {
    let live = Live::new(x399_two_7900xt());
    ok(&live.run(&["fix", "101", "--yes"]));
    let text = live.tree.vm_text(101);
    let pending = format!("{text}\n[PENDING]\nhostpci0: 0000:0b:00,pcie=1\n");
    live.tree
        .put("etc/pve/nodes/pve1/qemu-server/101.conf", &pending);
    let (_, errors, status) = said(&live.run(&["undo", "101"]));
    assert_eq!(status, 2);
    assert!(
        errors.contains("a change of hostpci0 is pending"),
        "{errors}"
    );
    assert!(
        errors.contains("`qm set 101 --revert hostpci0,hostpci1`"),
        "{errors}"
    );
    assert_eq!(live.tree.vm_text(101), pending);
}

#[test]
fn a_vm_without_edits_has_nothing_to_undo() {
    let tree = x399_two_7900xt();
    let text = ok(&on_tree(&tree, &["undo", "101"]));
    assert!(text.starts_with("VM 101: no edit"), "{text}");
    // The journal of another VM says nothing about this one.
    ok(&on_tree(&tree, &["fix", "101", "--yes"]));
    let text = ok(&on_tree(&tree, &["undo", "104"]));
    assert!(text.starts_with("VM 104: no edit"), "{text}");
    assert!(fs::exists(tree.at("var/lib/pve-atomicops/journal")).expect("readable"));
}
