//! What people with few rights may write, and files that are none: no output can be forged, nothing hangs, and sizes are
//! bounded.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::properties::fuzzed::escape::assert_harmless;
use crate::properties::fuzzed::shell;
use crate::support::HostTree;

/// What every text that somebody else wrote is here: a forged warning, terminal escapes of one and of two bytes, text
/// that runs backwards, and what a shell would run.
const EVIL: &str =
    "x\x1b]0;t\x07\x1b[2J\u{9b}31m\u{202e}\u{2028}\r$(reboot)`id`;'\"\\ \"},{\"vmid\":1";

/// The program under `timeout`, and with no more memory than a small machine can spare.
fn guarded(root: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -v 600000; exec timeout -k 1 30 \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_pve-atomicops"))
        .arg("--root")
        .arg(root)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null());
    command
}

fn run(tree: &HostTree, arguments: &[&str]) -> Output {
    let output = guarded(tree.path())
        .args(arguments)
        .output()
        .expect("it runs");
    let status = output.status.code();
    assert!(
        matches!(status, Some(0..=2)),
        "{arguments:?}: {status:?} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    // The hook's own limit ends what hangs; nothing may need it.
    let hangs = String::from_utf8_lossy(&output.stdout).contains("not done within");
    assert!(!hangs, "{arguments:?} hangs");
    output
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn two_cards() -> HostTree {
    HostTree::new()
        .root_port("0000:00:03.1", 0x0b, |port| port)
        .gpu("0000:0b:00.0", |gpu| gpu)
        .audio("0000:0b:00.1", |audio| audio)
        .root_port("0000:40:03.1", 0x44, |port| port)
        .gpu("0000:44:00.0", |gpu| gpu)
        .audio("0000:44:00.1", |audio| audio)
}

/// VM 101 with everything in it that its owner can choose.
fn evil_tree() -> HostTree {
    let names = format!("1002  {EVIL}\n\t744c  {EVIL}\n\tab30  {EVIL}\n");
    let config = format!(
        "#{EVIL}\nname: {EVIL}\ntags: {EVIL}\nmachine: q35\nostype: l26\nhookscript: local:snippets/{EVIL}\n\
         hostpci0: 0000:0b:00,pcie=1,romfile={EVIL}\nhostpci1: 0000:44:00,pcie=1\nhostpci2: mapping={EVIL},pcie=1\n\
         hostpci3: {EVIL}\nhostpci4: mapping=evil,pcie=1\nhostpci5: 0000:0b:00;{EVIL}\n{EVIL}: {EVIL}\n{EVIL}\nlock: {EVIL}\n\
         args: -device pcie-root-port,id=\"{EVIL}\" -device vfio-pci,host=0000:44:00.0,bus=\"{EVIL}\" {EVIL}\n\
         [PENDING]\ndelete: {EVIL}\nhostpci9: {EVIL}\n[{EVIL}]\n[snap]\nname: {EVIL}\n"
    );
    two_cards()
        .vm(101, &config)
        .file("usr/share/misc/pci.ids", names)
        .mapping(&format!(
            "evil\n\tdescription {EVIL}\n\tmap node=pve1,path=0000:44:00,id=1002:744c,description={EVIL}\n\n\
             {EVIL}\n\tmap node=pve1,path=0000:44:00,id=1002:744c\n\t{EVIL}\n"
        ))
        .storage_cfg(&format!(
            "dir: local\n\tpath /var/lib/vz\n\tcontent snippets\n\n{EVIL}: {EVIL}\n\tpath {EVIL}\n\tcontent snippets\n"
        ))
}

#[test]
fn nothing_that_is_printed_can_be_forged() {
    let tree = evil_tree().node_policy("min_gpus = 1\n");
    for arguments in [
        &["check"][..],
        &["check", "--all"],
        &["check", "101", "--color", "never"],
        &["check", "-v", "101"],
        &["config", "101"],
        &["topology"],
        &["topology", "--all"],
        &["topology", "--vm", "101"],
        &["topology", "--vm", "101", "--format", "dot"],
        &["topology", EVIL.split('\u{2028}').next().unwrap_or("x")],
        &["fix", "101", "--dry-run"],
        &["fix", "101", "--dry-run", "--strategy", "split"],
        &["undo", "101", "--dry-run"],
        &["attach", "101"],
        &["detach", "101"],
        &["attach", "101", "--storage", "x\u{1b}[31m"],
        &["hook", "101", "pre-start"],
        &["hook", "101", "post-stop"],
    ] {
        let output = run(&tree, arguments);
        assert_harmless(text(&output.stdout), "\n\t");
        assert_harmless(text(&output.stderr), "\n\t");
        assert!(
            !output.stdout.is_empty()
                || !output.stderr.is_empty()
                || arguments.contains(&"post-stop"),
            "{arguments:?} says nothing"
        );
    }
}

#[test]
fn json_stays_json() {
    let tree = evil_tree().node_policy("min_gpus = 1\n");
    for arguments in [
        &["check", "--format", "json"][..],
        &["config", "101", "--format", "json"],
        &["topology", "--all", "--format", "json"],
        &["topology", "--vm", "101", "--format", "json"],
    ] {
        let output = run(&tree, arguments);
        let written = text(&output.stdout);
        assert_harmless(written, "\n");
        let value: serde_json::Value = serde_json::from_str(written).expect("JSON");
        if arguments[0] == "check" {
            assert_eq!(value["vms"].as_array().map(Vec::len), Some(1));
            assert_eq!(value["vms"][0]["vmid"], 101);
        }
    }
}

#[test]
fn a_task_log_has_only_lines_of_ours() {
    let evil = evil_tree();
    for policy in [
        "mode = 'warn'",
        "mode = 'abort'",
        "mode = 'rewrite'\nafter_rewrite = 'continue'",
    ] {
        evil.put(
            "etc/pve-atomicops/config.toml",
            format!("{policy}\nmin_gpus = 1\nsyslog = false\n"),
        );
        let output = run(&evil, &["hook", "101", "pre-start"]);
        let said = text(&output.stdout);
        assert!(said.contains("WARN: VM 101 "), "{said}");
        for line in said.lines() {
            let outcome = line.starts_with("start of VM 101 refused (mode = \"abort\"")
                || line.starts_with("VM 101: repaired; this start still uses");
            let ours = outcome || line.starts_with("WARN: VM 101 ") || line.starts_with("  ");
            assert!(ours, "{policy}: {line:?} in {said}");
        }
        assert!(output.stderr.is_empty(), "{policy}");
    }
}

#[test]
fn a_command_for_copying_is_plain_words() {
    let evil = evil_tree().node_policy("min_gpus = 1\n");
    evil.put(
        "etc/pve/nodes/pve1/qemu-server/101.conf",
        "machine: q35\nhostpci0: 0000:0b:00,pcie=1,romfile=a b$(reboot)'x\nhostpci4: mapping=evil,pcie=1\n",
    );
    let output = run(&evil, &["check", "101", "--format", "json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut commands = 0;
    for entry in report["vms"][0]["entries"].as_array().expect("entries") {
        for command in entry["fix"]["commands"].as_array().into_iter().flatten() {
            let words = shell::split(command.as_str().expect("text")).expect("plain words");
            assert!(matches!(words[0].as_str(), "qm" | "pvesh"), "{words:?}");
            let bare: Vec<_> = command
                .as_str()
                .unwrap_or_default()
                .split('\'')
                .step_by(2)
                .collect();
            assert!(!bare.concat().contains(['$', ';', '`']), "{command}");
            commands += 1;
        }
    }
    assert!(commands >= 1, "{report:#}");
    let shown = run(&evil, &["hook", "101", "pre-start"]);
    assert!(text(&shown.stdout).contains("    fix: qm set 101 --hostpci0 '"));
}

/// The rest of a policy that never stops a VM.
const CONTINUE: &str = "after_rewrite = 'continue'\nsyslog = false\nmin_gpus = 1\n";

/// Everything that is read, as a place of the tree.
const READ: [&str; 17] = [
    "etc/pve/nodes/pve1/qemu-server/101.conf",
    "etc/pve/atomicops.toml",
    "etc/pve-atomicops/config.toml",
    "etc/pve/mapping/pci.cfg",
    "etc/pve/storage.cfg",
    "etc/pve/ha/resources.cfg",
    "etc/hostname",
    "proc/sys/kernel/osrelease",
    "var/lib/dpkg/status",
    "usr/share/misc/pci.ids",
    "sys/bus/pci/devices/0000:0b:00.0/config",
    "sys/bus/pci/devices/0000:0b:00.0/vendor",
    "sys/bus/pci/devices/0000:0b:00.0/reset_method",
    "sys/bus/pci/devices/0000:0b:00.0",
    "run/lock/qemu-server/lock-101.conf",
    "var/lib/pve-atomicops/journal",
    "var/lib/pve-atomicops",
];

/// Things that are no regular file.
const KINDS: [&str; 7] = [
    "fifo",
    "socket",
    "directory",
    "loop",
    "dangling",
    "device",
    "huge",
];

fn replace(tree: &HostTree, place: &str, kind: &str) {
    tree.put(place, "");
    let path = tree.at(place);
    std::fs::remove_file(&path).expect("removed");
    match kind {
        "fifo" => mkfifo(&path, Mode::from_bits_truncate(0o600)).expect("fifo"),
        // The path of a socket has to be short.
        "socket" => {
            let directory = tempfile::tempdir().expect("directory");
            let short = directory.path().join("s");
            drop(UnixListener::bind(&short).expect("socket"));
            std::fs::rename(&short, &path).expect("moved");
        }
        "directory" => std::fs::create_dir(&path).expect("directory"),
        "loop" => symlink(path.file_name().expect("a name"), &path).expect("link"),
        "dangling" => symlink("/nowhere", &path).expect("link"),
        // Nothing outside of the tree is opened, so that it has to hold one itself.
        "device" => {
            let made = Command::new("mknod")
                .arg(&path)
                .args(["c", "1", "5"])
                .status();
            assert!(made.expect("mknod runs").success());
        }
        _ => std::fs::File::create(&path)
            .and_then(|file| file.set_len(1 << 40))
            .expect("a sparse file"),
    }
}

#[test]
fn no_file_of_another_kind_makes_anything_hang_or_stops_a_vm() {
    for place in READ {
        // A rewrite waits for the disk several times, so it is made only where there is something to it.
        let writes = place.starts_with("run/") || place.starts_with("var/lib/pve");
        let mode = if writes { "rewrite" } else { "warn" };
        for kind in KINDS {
            let tree = two_cards()
                .vm(
                    101,
                    "machine: q35\nhostpci0: 0000:0b:00,pcie=1\nhostpci1: mapping=mm,pcie=1\n",
                )
                .mapping("mm\n\tmap node=pve1,path=0000:44:00,id=1002:744c\n")
                .policy(&format!("mode = '{mode}'\n{CONTINUE}"));
            replace(&tree, place, kind);
            let hook = run(&tree, &["hook", "101", "pre-start"]);
            assert_eq!(hook.status.code(), Some(0), "{place} as {kind}: {hook:?}");
            let before = tree.at(place).symlink_metadata().is_ok();
            // The others read through the same functions; one that could hang and one that cannot be read will do.
            if matches!(kind, "fifo" | "directory") {
                run(&tree, &["check", "101"]);
                run(&tree, &["undo", "101", "--dry-run"]);
                run(&tree, &["topology", "--vm", "101"]);
            }
            assert_eq!(tree.at(place).symlink_metadata().is_ok(), before);
        }
    }
}

#[test]
fn policies_that_are_named_are_no_exception() {
    let tree = two_cards().vm(101, "machine: q35\nhostpci0: 0000:0b:00,pcie=1\n");
    for kind in KINDS {
        replace(&tree, "etc/named.toml", kind);
        let named = tree.at("etc/named.toml");
        let named = named.to_str().expect("UTF-8");
        let hook = run(&tree, &["--config", named, "hook", "101", "pre-start"]);
        assert_eq!(hook.status.code(), Some(0), "{kind}");
        assert!(
            text(&hook.stdout).starts_with("WARN: pve-atomicops: "),
            "{kind}"
        );
        assert_eq!(
            run(&tree, &["--config", named, "check"]).status.code(),
            Some(2),
            "{kind}"
        );
        tree.put("etc/named.toml", "");
    }
}

#[test]
fn roots_and_archives_of_other_kinds_are_refused() {
    let tree = two_cards();
    for kind in KINDS.iter().filter(|kind| **kind != "directory") {
        replace(&tree, "root", kind);
        let output = guarded(&tree.at("root"))
            .arg("check")
            .output()
            .expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{kind}: {output:?}");
        tree.put("root", "");
    }
}

#[test]
fn a_configuration_may_be_large_but_not_endless() {
    let limit = 1 << 20;
    let tree = two_cards().policy(&format!("mode = 'rewrite'\n{CONTINUE}"));
    for (unit, times) in [
        ("\n", limit),
        ("a\n", limit / 2),
        ("#\n", limit / 2),
        ("hostpci0: 0000:0b:00,pcie=1\n", limit / 28),
        ("hostpci0: mapping=mm\n", limit / 20),
        ("[a]\n", limit / 4),
        ("[PENDING]\nhostpci1: 0b:00\n", limit / 27),
        ("description: %\n", limit / 15),
        ("a", limit),
    ] {
        let config = unit.repeat(times);
        tree.put("etc/pve/nodes/pve1/qemu-server/101.conf", &config);
        let hook = run(&tree, &["hook", "101", "pre-start"]);
        assert_eq!(hook.status.code(), Some(0), "{unit:?}");
        assert!(
            hook.stdout.len() < 1 << 14,
            "{unit:?}: {} bytes of log",
            hook.stdout.len()
        );
        run(&tree, &["check", "101"]);
    }
    tree.put(
        "etc/pve/nodes/pve1/qemu-server/101.conf",
        vec![b'\n'; limit + 1],
    );
    let hook = run(&tree, &["hook", "101", "pre-start"]);
    assert_eq!(hook.status.code(), Some(0));
    let said = text(&hook.stdout);
    assert!(
        said.contains("larger than 1048576 bytes") && said.lines().count() == 1,
        "{said}"
    );
    assert_eq!(run(&tree, &["check", "101"]).status.code(), Some(2));
}

#[test]
fn args_and_mappings_may_be_large() {
    let tree = two_cards().node_policy("min_gpus = 1\nsyslog = false\n");
    let device = " -device pcie-root-port,id=rp";
    let args: String = (0..20_000)
        .map(|number| format!("{device}{number}"))
        .collect();
    let maps = "\tmap node=pve1,path=0000:44:00,id=1002:744c\n".repeat(20_000);
    let tree = tree
        .vm(
            101,
            &format!("machine: q35\nargs:{args}\nhostpci0: mapping=mm,pcie=1\n"),
        )
        .mapping(&format!("mm\n{maps}"));
    assert_eq!(
        run(&tree, &["hook", "101", "pre-start"]).status.code(),
        Some(0)
    );
    run(&tree, &["check", "101"]);
}

#[test]
fn a_host_may_have_more_functions_than_any_has() {
    let tree = two_cards()
        .vm(101, "machine: q35\nhostpci0: 0000:0b:00,pcie=1\n")
        .node_policy("min_gpus = 1\nsyslog = false\n");
    let devices = tree.at("sys/bus/pci/devices");
    for number in 0..100_000_u32 {
        let (segment, rest) = (0x10 + number / 65536, number % 65536);
        let name = format!(
            "{segment:04x}:{:02x}:{:02x}.{}",
            rest >> 8,
            rest >> 3 & 31,
            rest & 7
        );
        symlink("/nowhere", devices.join(name)).expect("link");
    }
    let hook = run(&tree, &["hook", "101", "pre-start"]);
    assert_eq!(hook.status.code(), Some(0));
    assert!(text(&hook.stdout).starts_with("WARN: VM 101 "), "{hook:?}");
    assert_eq!(run(&tree, &["check", "101"]).status.code(), Some(1));
}
