//! `attach` and `detach` on a live host.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};

use crate::support::HostTree;
use crate::support::example_hosts::x399_two_7900xt;
use crate::support::live::{Live, said};
use crate::support::program::program;

const VOLUME: &str = "local:snippets/pve-atomicops-hook";
const SNIPPET: &str = "var/lib/vz/snippets/pve-atomicops-hook";
const RECORD: &str = "var/lib/pve-atomicops/snippets";
const POLICY: &str = "etc/pve-atomicops/config.toml";

fn ok(live: &Live, arguments: &[&str]) -> String {
    let (text, errors, status) = said(&live.run(arguments));
    assert_eq!((errors.as_str(), status), ("", 0), "{text}");
    text
}

/// A message on one line, whatever the width.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn mode(tree: &HostTree, place: &str) -> u32 {
    fs::metadata(tree.at(place))
        .expect(place)
        .permissions()
        .mode()
        & 0o7777
}

/// VM 101 with a hookscript of its own, which belongs to root and can be run.
fn with_own_hookscript() -> Live {
    let tree = x399_two_7900xt();
    let text = tree.vm_text(101).replace(
        "hostpci0: ",
        "hookscript: local:snippets/own.sh\nhostpci0: ",
    );
    let tree = tree
        .vm(101, &text)
        .file("var/lib/vz/snippets/own.sh", "#!/bin/sh\nexit 0\n")
        .mode("var/lib/vz/snippets/own.sh", 0o755)
        // Everything above is checked too.
        .mode("", 0o755);
    Live::new(tree)
}

#[test]
fn the_snippet_is_installed_recorded_and_set() {
    let live = Live::new(x399_two_7900xt());
    let before = live.tree.vm_text(101);
    let text = ok(&live, &["attach", "101", "102"]);
    assert!(
        text.contains("installed /var/lib/vz/snippets/pve-atomicops-hook\n"),
        "{text}"
    );
    assert_eq!(
        live.tree.text(SNIPPET),
        include_str!("../../hook/pve-atomicops-hook")
    );
    assert_eq!(mode(&live.tree, SNIPPET), 0o755);
    let digest = pve_atomicops::vmconf::document::digest(before.as_bytes());
    assert_eq!(
        live.calls()[0],
        [
            "qm",
            "set",
            "101",
            "--hookscript",
            VOLUME,
            "--digest",
            &digest
        ]
    );
    assert!(
        live.tree
            .vm_text(102)
            .contains(&format!("hookscript: {VOLUME}\n"))
    );
    // The record is what sha256sum would print: the package's scripts check it with that.
    let sum = std::process::Command::new("sha256sum")
        .arg(live.tree.at(SNIPPET))
        .output()
        .expect("sha256sum");
    let sum = String::from_utf8(sum.stdout).expect("UTF-8");
    let (sum, _) = sum.split_once(' ').expect("a sum");
    assert_eq!(
        live.tree.text(RECORD),
        format!("{sum}  /var/lib/vz/snippets/pve-atomicops-hook\n")
    );
    assert_eq!(mode(&live.tree, "var/lib/pve-atomicops"), 0o700);
    // Again: nothing is left to do.
    let text = ok(&live, &["attach", "101", "102"]);
    assert_eq!(live.calls().len(), 2);
    assert_eq!(
        text,
        format!("VM 101: attached already ({VOLUME})\nVM 102: attached already ({VOLUME})\n")
    );
    // And back.
    ok(&live, &["detach", "101"]);
    assert_eq!(live.tree.vm_text(101), before);
    let text = ok(&live, &["detach", "101"]);
    assert_eq!(text, "VM 101: not attached\n");
    assert_eq!(live.calls().len(), 3);
    assert!(
        fs::exists(live.tree.at(SNIPPET)).expect("readable"),
        "VM 102 still calls it"
    );
}

#[test]
fn an_own_hookscript_goes_into_the_chain_and_comes_back() {
    let live = with_own_hookscript();
    let before = live.tree.vm_text(101);
    let policy = "# ours\nmin_gpus = 1 # one will do\n";
    live.tree.put(POLICY, policy);
    let text = ok(&live, &["attach", "101"]);
    assert!(
        flat(&text).contains("its hookscript 'local:snippets/own.sh' is called by the hook now"),
        "{text}"
    );
    assert!(
        live.tree
            .vm_text(101)
            .contains(&format!("hookscript: {VOLUME}\n"))
    );
    let chained = format!("{policy}\n[vm.101]\nchain = [\"local:snippets/own.sh\"]\n");
    assert_eq!(live.tree.text(POLICY), chained);
    assert_eq!(mode(&live.tree, POLICY), 0o644);
    ok(&live, &["attach", "101"]);
    assert_eq!(live.tree.text(POLICY), chained, "once is enough");
    let text = ok(&live, &["detach", "101"]);
    assert!(
        flat(&text).contains("'local:snippets/own.sh' is its hookscript again"),
        "{text}"
    );
    assert_eq!(live.tree.vm_text(101), before);
    assert_eq!(live.tree.text(POLICY), policy);
}

#[test]
fn the_policy_file_is_made_where_there_is_none() {
    let live = with_own_hookscript();
    ok(&live, &["attach", "101"]);
    let policy = live.tree.text(POLICY);
    assert!(policy.starts_with("# Policy of pve-atomicops"), "{policy}");
    assert!(
        policy.ends_with("\n[vm.101]\nchain = [\"local:snippets/own.sh\"]\n"),
        "{policy}"
    );
}

#[test]
fn a_chain_of_the_cluster_stays_in_force() {
    let live = with_own_hookscript();
    live.tree.put(
        "etc/pve/atomicops.toml",
        "chain = [\"/usr/local/sbin/all\"]\n",
    );
    ok(&live, &["attach", "101"]);
    let policy = live.tree.text(POLICY);
    assert!(
        policy.ends_with("chain = [\"local:snippets/own.sh\", \"/usr/local/sbin/all\"]\n"),
        "{policy}"
    );
    let text = ok(&live, &["detach", "101"]);
    assert!(
        !live.tree.text(POLICY).contains("[vm.101]"),
        "only the cluster's is left"
    );
    assert!(
        flat(&text)
            .contains("not called any more, since the hook called them: /usr/local/sbin/all"),
        "{text}"
    );
}

#[test]
fn a_hookscript_that_the_hook_would_not_run_is_not_taken_over() {
    let live = with_own_hookscript();
    let before = live.tree.vm_text(101);
    let script = live.tree.at("var/lib/vz/snippets/own.sh");
    chown(&script, Some(1234), None).expect("another owner");
    let (_, errors, status) = said(&live.run(&["attach", "101"]));
    assert_eq!(status, 2);
    assert!(
        errors.starts_with("error: VM 101 is unchanged: its hookscript 'local:snippets/own.sh'"),
        "{errors}"
    );
    assert!(errors.contains("does not belong to root"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(live.calls().is_empty());
    assert_eq!(live.tree.vm_text(101), before);
    assert!(!fs::exists(live.tree.at(POLICY)).expect("readable"));
}

#[test]
fn a_refusal_of_qm_puts_the_policy_back() {
    let live = with_own_hookscript();
    let locked = format!("lock: migrate\n{}", live.tree.vm_text(101));
    live.tree
        .put("etc/pve/nodes/pve1/qemu-server/101.conf", &locked);
    let (_, errors, status) = said(&live.run(&["attach", "101"]));
    assert_eq!(status, 2);
    assert!(
        errors.starts_with(
            "VM is locked (migrate)\nerror: VM 101 is unchanged: `qm set 101 --hookscript"
        ),
        "{errors}"
    );
    assert!(!fs::exists(live.tree.at(POLICY)).expect("readable"));
    live.tree.put(POLICY, "min_gpus = 1\n");
    said(&live.run(&["attach", "101"]));
    assert_eq!(live.tree.text(POLICY), "min_gpus = 1\n");
}

#[test]
fn a_file_of_others_is_in_the_way_an_old_one_of_ours_is_not() {
    let live = Live::new(x399_two_7900xt());
    live.tree.put(SNIPPET, "#!/bin/sh\n# somebody's\n");
    let (_, errors, status) = said(&live.run(&["attach", "101"]));
    assert_eq!(status, 2);
    assert!(errors.contains("is none of ours: move it away"), "{errors}");
    assert!(live.calls().is_empty());
    // The same content, recorded as what an older version wrote.
    let sum = "24a7b3b6cc8c2ad0bf3bd4c4d7e3df2e9fb4ff0d42f0b2b33cbb1bbeba1f1d0c";
    live.tree.put(
        RECORD,
        format!("{sum}  /var/lib/vz/snippets/pve-atomicops-hook\n"),
    );
    fs::set_permissions(
        live.tree.at("var/lib/pve-atomicops"),
        fs::Permissions::from_mode(0o700),
    )
    .expect("mode");
    fs::set_permissions(live.tree.at(SNIPPET), fs::Permissions::from_mode(0o755)).expect("mode");
    let text = ok(&live, &["attach", "101"]);
    assert!(text.contains("was edited, and is left as it is"), "{text}");
    assert!(live.tree.text(SNIPPET).contains("somebody's"));
    let output = std::process::Command::new("sha256sum")
        .arg(live.tree.at(SNIPPET))
        .output()
        .expect("sha256sum");
    let sum = String::from_utf8(output.stdout).expect("UTF-8");
    let (sum, _) = sum.split_once(' ').expect("a sum");
    live.tree.put(
        RECORD,
        format!("{sum}  /var/lib/vz/snippets/pve-atomicops-hook\n"),
    );
    let text = ok(&live, &["attach", "101"]);
    assert!(text.contains("installed"), "{text}");
    assert_eq!(
        live.tree.text(SNIPPET),
        include_str!("../../hook/pve-atomicops-hook")
    );
}

#[test]
fn a_snippet_that_cannot_be_run_is_mended() {
    let live = Live::new(x399_two_7900xt());
    ok(&live, &["attach", "101"]);
    fs::set_permissions(live.tree.at(SNIPPET), fs::Permissions::from_mode(0o644)).expect("mode");
    let text = ok(&live, &["attach", "101"]);
    assert!(text.contains("installed"), "{text}");
    assert_eq!(
        mode(&live.tree, SNIPPET),
        0o755,
        "what is not executable stops the VM"
    );
}

#[test]
fn a_storage_is_chosen_or_the_way_to_one_is_told() {
    let cfg = "dir: local\n\tpath /var/lib/vz\n\tcontent iso,vztmpl\n\n\
               dir: off\n\tpath /var/lib/off\n\tcontent snippets\n\tdisable\n\n\
               dir: other\n\tpath /var/lib/other\n\tcontent snippets\n\tnodes pve9\n\n\
               lvmthin: thin\n\tthinpool data\n\tvgname pve\n\tcontent images\n\n\
               dir: scripts\n\tpath /var/lib/scripts\n\tcontent snippets\n\tcontent-dirs snippets=hooks\n";
    let live = Live::new(x399_two_7900xt().storage_cfg(cfg));
    for (storage, words) in [
        (
            "nothing",
            "error: there is no storage 'nothing'; there are: local, off, other, scripts, thin",
        ),
        ("off", "error: storage 'off' is disabled"),
        (
            "other",
            "error: storage 'other' is disabled, or not for node 'pve1'",
        ),
        ("thin", "error: storage 'thin' does not allow snippets\n"),
        (
            "local",
            "error: storage 'local' does not allow snippets; to allow them: pvesm set local --content iso,vztmpl,snippets",
        ),
    ] {
        let (_, errors, status) = said(&live.run(&["attach", "101", "--storage", storage]));
        assert_eq!(status, 2);
        assert!(errors.starts_with(words), "{storage}: {errors}");
    }
    assert!(live.calls().is_empty());
    let before = live.tree.text("etc/pve/storage.cfg");
    let (_, errors, _) = said(&{
        live.tree.put(
            "etc/pve/storage.cfg",
            before.split("dir: scripts").next().expect("text"),
        );
        live.run(&["attach", "101"])
    });
    assert!(
        errors.contains(
            "no enabled storage of this node allows snippets; to allow them: pvesm set local"
        ),
        "{errors}"
    );
}

#[test]
fn other_nodes_are_named_where_the_storage_is_not_shared() {
    let tree = x399_two_7900xt().vm_on("pve2", 300, "name: x\n");
    let live = Live::new(tree);
    let text = ok(&live, &["attach", "101"]);
    assert!(
        flat(&text).contains("storage 'local' is not shared."),
        "{text}"
    );
    assert!(flat(&text).contains("The other nodes: pve2"), "{text}");
    let (_, errors, status) = said(&live.run(&["attach", "300"]));
    assert_eq!(status, 2);
    assert_eq!(errors, "error: VM 300 is on node 'pve2': run this there\n");
    live.tree.put(
        "etc/pve/storage.cfg",
        "dir: local\n\tpath /var/lib/vz\n\tcontent snippets\n\tshared 1\n",
    );
    assert_eq!(
        ok(&live, &["attach", "101"]),
        format!("VM 101: attached already ({VOLUME})\n")
    );
}

#[test]
fn all_gpu_takes_the_vms_with_two_or_more() {
    let live = Live::new(x399_two_7900xt());
    ok(&live, &["attach", "--all-gpu"]);
    let vms: Vec<_> = live.calls().iter().map(|call| call[2].clone()).collect();
    // 104 passes one GPU.
    assert_eq!(vms, ["101", "102", "103"]);
}

#[test]
fn one_unknown_vm_stops_before_anything_is_done() {
    let live = Live::new(x399_two_7900xt());
    let (_, errors, status) = said(&live.run(&["attach", "101", "199"]));
    assert_eq!(status, 2);
    assert!(errors.starts_with("error: there is no VM 199"), "{errors}");
    assert!(live.calls().is_empty());
    assert!(!fs::exists(live.tree.at(SNIPPET)).expect("readable"));
}

#[test]
fn a_tree_only_gets_the_commands_named() {
    let tree = x399_two_7900xt();
    let before = tree.vm_text(101);
    let output = program(tree.path())
        .args(["attach", "101"])
        .output()
        .expect("it runs");
    let (text, errors, status) = said(&output);
    assert_eq!((errors.as_str(), status), ("", 0));
    assert!(
        text.contains("  qm set 101 --hookscript local:snippets/pve-atomicops-hook --digest "),
        "{text}"
    );
    assert_eq!(tree.vm_text(101), before);
    assert!(!fs::exists(tree.at(SNIPPET)).expect("readable"));
}

#[test]
fn the_attached_snippet_runs_and_lets_a_vm_start_without_the_program() {
    let live = Live::new(x399_two_7900xt());
    ok(&live, &["attach", "101"]);
    let snippet = live.tree.at(SNIPPET);
    let output = live
        .command_as(&snippet, &["101", "pre-start"])
        .output()
        .expect("it runs");
    let (text, errors, status) = said(&output);
    assert_eq!((errors.as_str(), status), ("", 0));
    assert!(text.starts_with("WARN: ") || text.is_empty(), "{text}");
}
