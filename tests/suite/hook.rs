//! The hook as Proxmox calls it: what it prints, how it ends, what it opens.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::program::{Copy, bare, copy_of, example, program};

fn run(root: &Path, vmid: u32, phase: &str) -> Output {
    program(root)
        .args(["hook", &vmid.to_string(), phase])
        .stdin(Stdio::null())
        .output()
        .expect("the program runs")
}

fn stdout(output: &Output) -> String {
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn x399() -> Copy {
    copy_of(&example("x399-two-7900xt"))
}

fn policy(tree: &Copy, text: &str) {
    tree.write("etc/pve/atomicops.toml", text);
}

#[test]
fn a_loss_is_one_warning_with_card_path_guest_command_and_link() {
    let output = run(&example("x399-two-7900xt"), 101, "pre-start");
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("WARN: VM 101 (train) "), "{text}");
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.starts_with("WARN: "))
            .count(),
        1,
        "{text}"
    );
    assert!(
        lines[1..].iter().all(|line| line.starts_with("  ")),
        "{text}"
    );
    for part in [
        "card: 0000:0b:00.0 Navi 31 [Radeon RX 7900 XT/7900 XTX]",
        "root port 0000:00:03.1 completes 32 and 64 bit",
        "ich9-pcie-port-1 will show 32bit- 64bit-",
        "qm set 101 --hostpci0 0000:0b:00.0,pcie=1",
        "qm set 101 --hostpci1 0000:44:00.0,pcie=1",
        "https://lore.kernel.org/qemu-devel/8b3e30e6-3c3e-49ab-b9db-8296aaf819d1@app.fastmail.com/",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn where_nothing_is_to_be_reported_nothing_is_printed() {
    let root = example("x399-two-7900xt");
    for (vmid, phase) in [
        (102, "pre-start"),
        (104, "pre-start"),
        (101, "post-start"),
        (101, "pre-stop"),
        (101, "post-stop"),
    ] {
        let output = run(&root, vmid, phase);
        assert_eq!(
            (output.status.code(), stdout(&output).as_str()),
            (Some(0), ""),
            "{vmid} {phase}"
        );
    }
    let tree = x399();
    // A single-function card without function number, behind a root port with `Routing-`.
    tree.write_vm(
        300,
        "machine: q35\nhostpci0: 0000:0b:00.0,pcie=1\nhostpci1: 0000:44:00.0,pcie=1\n",
    );
    tree.write_vm(301, "name: no-devices\n");
    tree.write_vm(302, "");
    for vmid in [300, 301, 302] {
        let output = run(tree.path(), vmid, "pre-start");
        assert_eq!(
            (output.status.code(), stdout(&output).as_str()),
            (Some(0), ""),
            "{vmid}"
        );
    }
}

#[test]
fn mode_abort_refuses_with_the_way_out() {
    let tree = x399();
    policy(&tree, "mode = 'abort'\n");
    let output = run(tree.path(), 101, "pre-start");
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(
        text.contains("start of VM 101 refused") && text.contains("[vm.101]"),
        "{text}"
    );
    assert_eq!(run(tree.path(), 102, "pre-start").status.code(), Some(0));
    for phase in ["post-start", "pre-stop", "post-stop"] {
        assert_eq!(
            run(tree.path(), 101, phase).status.code(),
            Some(0),
            "{phase}"
        );
    }
    policy(&tree, "mode = 'abort'\n[vm.101]\nmode = 'off'\n");
    let output = run(tree.path(), 101, "pre-start");
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(0), "")
    );
}

#[test]
fn contexts_in_which_a_start_is_never_refused() {
    let config = "machine: q35\nhostpci0: 0000:0b:00,pcie=1\nhostpci1: 0000:44:00,pcie=1\n";
    for (line, reason) in [
        ("lock: backup", "it is locked (backup)"),
        (
            "vmstate: local:300/vm-300-state-x.raw",
            "it resumes from hibernation",
        ),
        (
            "runningmachine: pc-q35-10.0+pve0",
            "'runningmachine' is left over from a saved state",
        ),
    ] {
        let tree = x399();
        policy(&tree, "mode = 'abort'\n");
        tree.write_vm(300, format!("{config}{line}\n"));
        let output = run(tree.path(), 300, "pre-start");
        assert_eq!(output.status.code(), Some(0), "{line}");
        assert!(
            stdout(&output).contains(reason),
            "{line}: {}",
            stdout(&output)
        );
    }
    let tree = x399();
    policy(&tree, "mode = 'abort'\n");
    let migrated = |vmid: &str| {
        program(tree.path())
            .args(["hook", vmid, "pre-start"])
            .env("PVE_MIGRATED_FROM", "pve2")
            .output()
            .expect("the program runs")
    };
    let output = migrated("101");
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).contains("it is migrated to this node"));
    let output = migrated("999");
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(0), "")
    );
    tree.write_vm(300, format!("{config}template: 1\n"));
    let output = run(tree.path(), 300, "pre-start");
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(0), "")
    );
}

#[test]
fn own_trouble_is_one_warning_and_never_stops_a_vm() {
    for mode in ["warn", "off", "abort"] {
        let tree = x399();
        policy(&tree, &format!("mode = '{mode}'\n"));
        std::fs::remove_file(tree.path().join("etc/pve/qemu-server/101.conf")).expect("remove");
        // A FIFO would block a careless reader for ever.
        nix::unistd::mkfifo(
            &tree.path().join("etc/pve/qemu-server/101.conf"),
            nix::sys::stat::Mode::S_IRWXU,
        )
        .expect("FIFO");
        for vmid in [101, 999] {
            let output = run(tree.path(), vmid, "pre-start");
            let text = stdout(&output);
            assert_eq!(output.status.code(), Some(0), "{mode}: {text}");
            let lines = usize::from(mode != "off");
            assert_eq!(
                text.lines()
                    .filter(|line| line.starts_with("WARN: "))
                    .count(),
                lines,
                "{mode}: {text}"
            );
            assert_eq!(text.lines().count(), lines, "{mode}: {text}");
        }
    }
}

#[test]
fn a_policy_that_cannot_be_trusted_or_read_is_not_used() {
    let finding = |tree: &Copy, problem: &str| {
        let output = run(tree.path(), 101, "pre-start");
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(0), "{text}");
        let first = text.lines().next().expect("a line");
        assert!(
            first.starts_with("WARN: pve-atomicops: ") && first.contains(problem),
            "{first}"
        );
        assert!(
            text.lines()
                .nth(1)
                .expect("the finding")
                .starts_with("WARN: VM 101"),
            "{text}"
        );
    };
    let tree = x399();
    policy(&tree, "mode = 'abort'\nmodus = 1\n");
    finding(
        &tree,
        "/etc/pve/atomicops.toml: line 2: unknown key 'modus'",
    );
    // The other file counts, but for refusing a start.
    tree.write("etc/pve-atomicops/config.toml", "mode = 'abort'\n");
    finding(&tree, "/etc/pve/atomicops.toml: line 2");
    policy(&tree, "mode = 'abort'\n");
    let file = tree.path().join("etc/pve/atomicops.toml");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).expect("chmod");
    finding(
        &tree,
        "/etc/pve/atomicops.toml is not trusted: writable by others",
    );
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    std::os::unix::fs::chown(&file, Some(65534), None).expect("the tests run as root");
    finding(
        &tree,
        "/etc/pve/atomicops.toml is not trusted: owned by user 65534",
    );
}

#[test]
fn the_snippets_name_and_the_two_word_call_are_the_hook() {
    let tree = x399();
    for arguments in [&["101", "pre-start"][..], &["hook", "101", "pre-start"]] {
        let output = program(tree.path())
            .args(arguments)
            .output()
            .expect("the program runs");
        assert!(stdout(&output).starts_with("WARN: VM 101"), "{arguments:?}");
    }
    let link = tree.path().join("some-hook");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_pve-atomicops"), &link).expect("symlink");
    let output = Command::new(&link)
        .arg("--root")
        .arg(tree.path())
        .args(["101", "pre-start"])
        .env_clear()
        .output()
        .expect("the program runs");
    assert!(stdout(&output).starts_with("WARN: VM 101"));
}

#[test]
fn the_finding_goes_to_syslog_and_a_missing_socket_is_silent() {
    let tree = x399();
    std::fs::create_dir_all(tree.path().join("dev")).expect("directory");
    let socket = UnixDatagram::bind(tree.path().join("dev/log")).expect("socket");
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a limit");
    let output = run(tree.path(), 101, "pre-start");
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).expect("a message");
    let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
    assert!(
        message.starts_with("<28>") && message.contains("VM 101 pre-start: WARN: VM 101"),
        "{message}"
    );
    assert!(stdout(&output).starts_with("WARN: VM 101"));
    socket.set_nonblocking(true).expect("not blocking");
    while socket.recv(&mut buffer).is_ok() {}
    policy(&tree, "syslog = false\n");
    run(tree.path(), 101, "pre-start");
    assert!(socket.recv(&mut buffer).is_err());
}

/// What a run opens for reading below the root, as `strace` sees it.
fn opened(root: &Path, vmid: u32) -> BTreeSet<String> {
    let trace = tempfile::NamedTempFile::new().expect("a file");
    let status = Command::new("strace")
        .args([
            "-f",
            "-qq",
            "-y",
            "-e",
            "trace=open,openat,openat2,creat",
            "-o",
        ])
        .arg(trace.path())
        .arg(env!("CARGO_BIN_EXE_pve-atomicops"))
        .arg("--root")
        .arg(root)
        .args(["hook", &vmid.to_string(), "pre-start"])
        .stdout(Stdio::null())
        .status()
        .expect("strace is installed");
    assert!(status.success());
    let text = std::fs::read_to_string(trace.path()).expect("the trace");
    let root = root.canonicalize().expect("the root").display().to_string();
    let mut paths = BTreeSet::new();
    for line in text.lines() {
        assert!(
            !line.contains("O_RDWR") && !line.contains("O_WRONLY") && !line.contains("creat("),
            "{line}"
        );
        // `-y` appends the path of the returned descriptor; what is not there has none.
        let path = line
            .rsplit_once(" = ")
            .and_then(|(_, result)| result.split_once('<'));
        if let Some(path) =
            path.and_then(|(_, path)| path.trim_end_matches('>').strip_prefix(&root))
        {
            paths.insert(path.to_owned());
        }
    }
    paths
}

#[test]
fn only_what_this_vm_needs_is_opened() {
    let root = example("x399-two-7900xt");
    let expected = |path: &str| {
        let bridges = [
            "0000:00:03.1",
            "0000:09:00.0",
            "0000:0a:00.0",
            "0000:40:03.1",
            "0000:42:00.0",
            "0000:43:00.0",
        ];
        let functions = [
            "0000:0b:00.0",
            "0000:0b:00.1",
            "0000:44:00.0",
            "0000:44:00.1",
        ];
        let config = [
            "",
            "/etc/hostname",
            "/proc/sys/kernel/osrelease",
            "/var/lib/dpkg/status",
            "/usr/share/misc/pci.ids",
            "/sys/bus/pci/devices",
        ];
        if config.contains(&path)
            || path.starts_with("/etc/pve/atomicops.toml")
            || path.starts_with("/etc/pve-atomicops/")
        {
            return true;
        }
        if let Some(vm) = path.strip_prefix("/etc/pve/") {
            return vm.ends_with("/101.conf") || vm == "mapping/pci.cfg";
        }
        let Some(device) = path.strip_prefix("/sys/devices/") else {
            return false;
        };
        let known = |component: &str| {
            component.starts_with("pci0000:")
                || bridges.contains(&component)
                || functions.contains(&component)
        };
        let mut components: Vec<_> = device.split('/').collect();
        let attributes = [
            "vendor",
            "device",
            "class",
            "config",
            "subsystem_vendor",
            "subsystem_device",
            "reset_method",
            "iommu_group",
            "driver",
        ];
        if components
            .last()
            .is_some_and(|last| attributes.contains(last))
        {
            components.pop();
        }
        components.iter().all(|component| known(component))
    };
    let paths = opened(&root, 101);
    println!("opened: {paths:#?}");
    let unexpected: Vec<_> = paths.iter().filter(|path| !expected(path)).collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
    assert!(
        paths
            .iter()
            .any(|path| path.ends_with("0000:0b:00.0/config")),
        "{paths:#?}"
    );
    assert!(paths.contains("/usr/share/misc/pci.ids"));
    assert!(!paths.iter().any(|path| path.ends_with("pci.cfg")));
    // Nothing is printed for 102, so nobody needs a name.
    assert!(!opened(&root, 102).contains("/usr/share/misc/pci.ids"));
    assert!(
        opened(&root, 103)
            .iter()
            .any(|path| path.ends_with("mapping/pci.cfg"))
    );
}

#[test]
fn the_time_limit_ends_the_work_and_the_vm_goes_on() {
    // The configuration is on a file system that does not answer: a FUSE mount whose server never replies.
    let tree = x399();
    policy(&tree, "timeout_s = 1\n");
    let mount =
        crate::support::silent::Silent::mount(&tree.path().join("etc/pve/nodes/pve1/qemu-server"));
    let start = Instant::now();
    let output = run(tree.path(), 101, "pre-start");
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(
        text.starts_with("WARN: pve-atomicops: not done within 1 s"),
        "{text}"
    );
    assert!(start.elapsed() >= Duration::from_secs(1));
    drop(mount);
}

#[test]
fn standard_output_may_be_closed() {
    let root = example("x399-two-7900xt");
    let mut child = program(&root)
        .args(["hook", "101", "pre-start"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert_eq!(
        bare()
            .args(["hook", "101"])
            .output()
            .expect("it runs")
            .status
            .code(),
        Some(2)
    );
}

#[test]
fn a_phase_that_is_not_known_stops_no_vm() {
    let output = bare()
        .args(["hook", "101", "pre-teleport"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        stdout(&output),
        "WARN: pve-atomicops: unknown phase 'pre-teleport'; nothing was done\n"
    );
    // At a terminal a wrong word is an error.
    for words in [
        &["101", "pre-teleport"][..],
        &["hook", "10", "pre-start"],
        &["hook", "101"],
    ] {
        let output = bare().args(words).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{words:?}");
    }
}
