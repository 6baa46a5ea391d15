//! The hook in mode rewrite, the whole sequence as Proxmox runs it; chained hookscripts; undo.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::fcntl::{Flock, FlockArg};

use crate::support::program::{Copy, copy_of, example, program};

const BOTH: &str = "#keep me\nmachine: q35\nhostpci0: 0000:0b:00,pcie=1,x-vga=on\nhostpci1: 44:00,pcie=1\nmemory: 1024\n\
                    \n[snap]\nhostpci0: 0000:0b:00,pcie=1\n";
const REPAIRED: &str = "#keep me\nmachine: q35\nhostpci0: 0000:0b:00.0,pcie=1,x-vga=on\nhostpci1: 44:00.0,pcie=1\n\
                        memory: 1024\n\n[snap]\nhostpci0: 0000:0b:00,pcie=1\n";

/// The two-GPU host with VM 300, and a policy.
fn tree(policy: &str) -> Copy {
    let tree = copy_of(&example("x399-two-7900xt"));
    tree.write("etc/pve/atomicops.toml", policy);
    tree.write_vm(300, BOTH);
    tree
}

fn hook_command(tree: &Copy, phase: &str) -> Command {
    let mut command = program(tree.path());
    command.args(["hook", "300", phase]).stdin(Stdio::null());
    command
}

fn hook(tree: &Copy, phase: &str) -> (Option<i32>, String) {
    let Output { status, stdout, .. } = hook_command(tree, phase)
        .output()
        .expect("the program runs");
    (status.code(), String::from_utf8(stdout).expect("UTF-8"))
}

/// The VM's lock, held by this process as Proxmox's start task holds it.
fn held_lock(tree: &Copy) -> Flock<File> {
    let path = tree.path().join("var/lock/qemu-server/lock-300.conf");
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
    let file = File::create(path).expect("the lock file");
    Flock::lock(file, FlockArg::LockExclusive).expect("the lock")
}

#[test]
fn the_sequence_of_a_start_that_is_repaired() {
    let tree = tree("mode = 'rewrite'\n");
    let lock = held_lock(&tree);
    let (status, text) = hook(&tree, "pre-start");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.starts_with("WARN: VM 300 "), "{text}");
    assert!(text.contains("rewritten: `hostpci0: 0000:0b:00,pcie=1,x-vga=on` -> `hostpci0: 0000:0b:00.0,pcie=1,x-vga=on`"), "{text}");
    assert!(
        text.contains("qm start 300") && text.contains("pve-atomicops undo 300"),
        "{text}"
    );
    assert_eq!(String::from_utf8_lossy(&tree.vm(300)), REPAIRED);
    assert_eq!(hook(&tree, "pre-start"), (Some(0), String::new()));
    drop(lock);

    let undo = program(tree.path())
        .args(["undo", "300"])
        .output()
        .expect("the program runs");
    assert!(
        undo.status.success(),
        "{}",
        String::from_utf8_lossy(&undo.stderr)
    );
    assert_eq!(String::from_utf8_lossy(&tree.vm(300)), BOTH);
}

#[test]
fn a_repair_at_post_stop_costs_no_start() {
    let tree = tree("mode = 'rewrite'\n");
    let lock = held_lock(&tree);
    let (status, text) = hook(&tree, "post-stop");
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("repaired for its next start"), "{text}");
    assert_eq!(String::from_utf8_lossy(&tree.vm(300)), REPAIRED);
    assert_eq!(hook(&tree, "pre-start"), (Some(0), String::new()));
    assert_eq!(hook(&tree, "post-stop"), (Some(0), String::new()));
    drop(lock);
}

#[test]
fn by_hand_the_hook_takes_the_lock_itself_and_waits_for_no_stranger() {
    let tree = tree("mode = 'rewrite'\ntimeout_s = 1\n");
    // A stranger: a process that is no ancestor of the hook.
    let path = tree.path().join("var/lock/qemu-server/lock-300.conf");
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
    let mut stranger = Command::new("flock")
        .arg(&path)
        .args(["sh", "-c", "echo held; read wait"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("flock of util-linux");
    let mut held = String::new();
    let output = stranger.stdout.take().expect("its output");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut held).expect("it runs");
    assert_eq!(held, "held\n");
    let (status, text) = hook(&tree, "pre-start");
    assert_eq!(status, Some(0), "{text}");
    assert!(
        text.contains("not rewritten") || text.contains("not done within"),
        "{text}"
    );
    assert_eq!(String::from_utf8_lossy(&tree.vm(300)), BOTH);
    drop(stranger.stdin.take());
    stranger.wait().expect("it ends");
    assert_eq!(hook(&tree, "pre-start").0, Some(1));
    assert_eq!(String::from_utf8_lossy(&tree.vm(300)), REPAIRED);
}

#[test]
fn what_follows_a_rewrite() {
    let continued = tree("mode = 'rewrite'\nafter_rewrite = 'continue'\n");
    let (status, text) = hook(&continued, "pre-start");
    assert_eq!(status, Some(0), "{text}");
    assert!(
        text.contains("this start still uses the old configuration"),
        "{text}"
    );
    assert_eq!(String::from_utf8_lossy(&continued.vm(300)), REPAIRED);

    let restarted = tree("mode = 'rewrite'\nafter_rewrite = 'restart'\n");
    let (status, text) = hook(&restarted, "pre-start");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("qm start 300"), "{text}");
}

#[test]
fn split_moves_the_other_functions_to_ports_of_their_own() {
    let tree = tree("mode = 'rewrite'\nstrategy = 'split'\n");
    assert_eq!(hook(&tree, "pre-start").0, Some(1));
    let config = String::from_utf8(tree.vm(300)).expect("UTF-8");
    for line in [
        "hostpci0: 0000:0b:00.0,pcie=1,x-vga=on\n",
        "hostpci1: 44:00.0,pcie=1\n",
        "hostpci2: 0000:0b:00.1,pcie=1\n",
        "hostpci3: 44:00.1,pcie=1\n",
    ] {
        assert!(config.contains(line), "{line} is missing in\n{config}");
    }
    assert_eq!(hook(&tree, "pre-start"), (Some(0), String::new()));
}

#[test]
fn when_nothing_is_rewritten() {
    let windows = "mode = 'rewrite'\n";
    let cases: [(&str, String, Option<&str>); 10] = [
        (
            "mode = 'rewrite'\n",
            format!("lock: backup\n{BOTH}"),
            Some("it is locked (backup)"),
        ),
        (
            "mode = 'rewrite'\n",
            format!("vmstate: local:300/x.raw\n{BOTH}"),
            Some("it resumes from hibernation"),
        ),
        (
            "mode = 'rewrite'\n",
            format!("runningcpu: host\n{BOTH}"),
            Some("left over from a saved state"),
        ),
        ("mode = 'rewrite'\n", format!("template: 1\n{BOTH}"), None),
        (
            windows,
            format!("ostype: win11\n{BOTH}"),
            Some("windows = \"rewrite\""),
        ),
        (
            "mode = 'rewrite'\n",
            BOTH.replace(
                "[snap]",
                "[PENDING]\nhostpci0: 0000:0b:00.0,pcie=1\n\n[snap]",
            ),
            Some("a change of hostpci0 is pending"),
        ),
        (
            "mode = 'rewrite'\n",
            BOTH.replace("[snap]", "[PENDING]\ndelete: hostpci1\n\n[snap]"),
            Some("a change of hostpci1 is pending"),
        ),
        ("mode = 'rewrite'\nmin_gpus = 3\n", BOTH.to_owned(), None),
        (
            "mode = 'rewrite'\n",
            "machine: q35\nhostpci0: mapping=gpu0,pcie=1\nhostpci1: mapping=gpu1,pcie=1\n"
                .to_owned(),
            Some("mapping belongs to the cluster"),
        ),
        (
            "mode = 'rewrite'\n",
            "machine: q35\nhostpci0: 0000:0b:00\nhostpci1: 0000:44:00\n".to_owned(),
            Some("changes the guest's hardware"),
        ),
    ];
    for (policy, config, reason) in cases {
        let tree = tree(policy);
        tree.write_vm(300, &config);
        for phase in ["pre-start", "post-stop"] {
            let (status, text) = hook(&tree, phase);
            assert_eq!(status, Some(0), "{config}{text}");
            assert_eq!(String::from_utf8_lossy(&tree.vm(300)), config);
            match reason {
                None => assert_eq!(text, "", "{config}"),
                Some(reason) => {
                    let lines: Vec<_> = text.lines().filter(|line| line.contains(reason)).collect();
                    assert_eq!(lines.len(), 1, "{reason}\n{config}{text}");
                }
            }
        }
        assert!(
            !tree.path().join("var/lib/pve-atomicops/journal").exists(),
            "{config}"
        );
    }
    let migrated = tree("mode = 'rewrite'\n");
    let output = hook_command(&migrated, "pre-start")
        .env("PVE_MIGRATED_FROM", "pve2")
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("it is migrated"));
    assert_eq!(String::from_utf8_lossy(&migrated.vm(300)), BOTH);

    let allowed = tree("mode = 'rewrite'\nwindows = 'rewrite'\n");
    allowed.write_vm(300, format!("ostype: win11\n{BOTH}"));
    assert_eq!(hook(&allowed, "pre-start").0, Some(1));
    assert_eq!(
        String::from_utf8_lossy(&allowed.vm(300)),
        format!("ostype: win11\n{REPAIRED}")
    );
}

#[test]
fn a_journal_that_cannot_be_written_stops_the_rewrite_and_not_the_start() {
    let tree = tree("mode = 'rewrite'\n");
    // A file where the directory belongs: that fails for root as well.
    tree.write("var/lib/pve-atomicops", "in the way");
    let (status, text) = hook(&tree, "pre-start");
    assert_eq!(status, Some(0), "{text}");
    assert!(
        text.contains("is not rewritten: the change cannot be recorded"),
        "{text}"
    );
    assert_eq!(String::from_utf8_lossy(&tree.vm(300)), BOTH);
}

/// A hookscript of the tree that notes how it was called, and exits with a status; its path there.
fn script_in(tree: &Copy, name: &str, status: u8) -> String {
    let directory = tree.path().join("usr/local/sbin");
    std::fs::create_dir_all(&directory).expect("directories");
    script(&directory, name, status);
    format!("/usr/local/sbin/{name}")
}

/// A hookscript that notes how it was called, and exits with a status.
fn script(directory: &Path, name: &str, status: u8) {
    let path = directory.join(name);
    let text = format!(
        "#!/bin/sh\necho \"{name} $* $MARK\" >>'{}'\necho said by {name}\nexit {status}\n",
        directory.join("calls").display()
    );
    std::fs::write(&path, text).expect("write");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
}

#[test]
fn further_hookscripts_run_in_order_for_every_phase() {
    let tree = tree("[vm.300]\nchain = ['/usr/local/sbin/first', '/usr/local/sbin/second']\n");
    script_in(&tree, "first", 0);
    script_in(&tree, "second", 0);
    let calls = || {
        let file = tree.path().join("usr/local/sbin/calls");
        let calls = std::fs::read_to_string(&file).unwrap_or_default();
        let _ = std::fs::remove_file(&file);
        calls
    };
    for phase in ["pre-start", "post-start", "pre-stop", "post-stop"] {
        let output = hook_command(&tree, phase)
            .env("MARK", "marked")
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert_eq!(
            calls(),
            format!("first 300 {phase} marked\nsecond 300 {phase} marked\n")
        );
        assert!(text.ends_with("said by first\nsaid by second\n"), "{text}");
        // Our own findings come first.
        assert_eq!(
            text.starts_with("WARN: VM 300"),
            phase == "pre-start",
            "{text}"
        );
    }
}

#[test]
fn a_chained_script_that_fails_ends_the_start_with_its_status() {
    let tree = tree("");
    let (bad, good) = (script_in(&tree, "bad", 7), script_in(&tree, "good", 0));
    tree.write(
        "etc/pve/atomicops.toml",
        format!("mode = 'off'\n[vm.300]\nchain = ['{bad}', '{good}']\n"),
    );
    let (status, text) = hook(&tree, "pre-start");
    assert_eq!(status, Some(7), "{text}");
    assert!(!text.contains("said by good"), "{text}");
    let (status, text) = hook(&tree, "post-stop");
    assert_eq!(status, Some(0), "{text}");
    assert!(
        text.contains("WARN: ") && text.contains("said by good"),
        "{text}"
    );

    // One that others can write is not run; in pre-start that refuses the start, since it may guard the VM.
    std::fs::set_permissions(
        tree.path().join("usr/local/sbin/good"),
        std::fs::Permissions::from_mode(0o777),
    )
    .expect("chmod");
    tree.write(
        "etc/pve/atomicops.toml",
        format!("[vm.300]\nchain = ['{good}']\n"),
    );
    let (status, text) = hook(&tree, "pre-start");
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains("WARN: ") && !text.contains("said by good"),
        "{text}"
    );
    let (status, text) = hook(&tree, "post-stop");
    assert_eq!(status, Some(0), "{text}");
    assert!(!text.contains("said by good"), "{text}");
}

#[test]
fn nothing_outside_the_root_is_chained() {
    let outside = tempfile::tempdir().expect("a directory");
    script(outside.path(), "outside", 0);
    let direct = outside.path().join("outside");
    let tree = tree("");
    std::fs::create_dir_all(tree.path().join("opt")).expect("a directory");
    std::os::unix::fs::symlink(&direct, tree.path().join("opt/link")).expect("a link");
    for named in [direct.to_str().expect("UTF-8"), "/opt/link"] {
        tree.write("etc/pve/atomicops.toml", format!("chain = ['{named}']\n"));
        for (phase, expected) in [("pre-start", 1), ("post-stop", 0)] {
            let (status, text) = hook(&tree, phase);
            assert_eq!(status, Some(expected), "{text}");
            assert!(
                text.contains("WARN: the chained hookscript was not run"),
                "{text}"
            );
            assert!(!text.contains("said by outside"), "{text}");
        }
    }
    assert!(!outside.path().join("calls").exists());
}

#[test]
fn a_volume_id_in_the_chain_is_found_through_the_storages() {
    let tree = tree("[vm.300]\nchain = ['mine:snippets/guard']\n");
    tree.write(
        "etc/pve/storage.cfg",
        "dir: mine\n\tpath /srv/mine\n\tcontent snippets\n",
    );
    let directory = tree.path().join("srv/mine/snippets");
    std::fs::create_dir_all(&directory).expect("directories");
    script(&directory, "guard", 0);
    let (status, text) = hook(&tree, "post-start");
    assert_eq!((status, text.as_str()), (Some(0), "said by guard\n"));
    tree.write(
        "etc/pve/atomicops.toml",
        "[vm.300]\nchain = ['other:snippets/guard']\n",
    );
    let (status, text) = hook(&tree, "pre-start");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("other:snippets/guard"), "{text}");
}

#[test]
fn two_hooks_at_once_repair_once() {
    for _ in 0..10 {
        let tree = tree("mode = 'rewrite'\n");
        let mut hooks: Vec<_> = (0..4)
            .map(|_| {
                hook_command(&tree, "pre-start")
                    .stdout(Stdio::null())
                    .spawn()
                    .expect("it runs")
            })
            .collect();
        let refused = hooks
            .iter_mut()
            .filter_map(|hook| hook.wait().expect("it ends").code())
            .filter(|code| *code == 1)
            .count();
        assert_eq!(String::from_utf8_lossy(&tree.vm(300)), REPAIRED);
        assert_eq!(refused, 1, "exactly one of them made the change");
        let journal = std::fs::read_to_string(tree.path().join("var/lib/pve-atomicops/journal"))
            .expect("the journal");
        assert_eq!(
            journal
                .lines()
                .filter(|line| line.contains("\"done\":true"))
                .count(),
            1,
            "{journal}"
        );
    }
}
