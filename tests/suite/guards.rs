//! Counts that keep the program quick, none of which depends on the machine's speed: system calls, files opened, bytes of
//! configuration space, instructions. The figures behind them, and how they were measured, are in docs/performance.md.

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::HostTree;
use crate::support::large::{functions, large_host, vm_text};
use crate::support::program::{Copy, bare, copy_of, example, program};

/// The example host, with a system log that takes messages.
fn x399() -> (Copy, UnixDatagram) {
    let tree = copy_of(&example("x399-two-7900xt"));
    std::fs::create_dir(tree.path().join("dev")).expect("directory");
    let socket = UnixDatagram::bind(tree.path().join("dev/log")).expect("socket");
    (tree, socket)
}

/// What `strace` says with these options of a command.
fn strace(options: &[&str], command: &Command) -> String {
    let trace = tempfile::NamedTempFile::new().expect("a file");
    let status = Command::new("strace")
        .args(["-f", "-qq"])
        .args(options)
        .arg("-o")
        .arg(trace.path())
        .arg(command.get_program())
        .args(command.get_args())
        .stdout(Stdio::null())
        .status()
        .expect("strace is installed");
    assert!(status.code().is_some_and(|code| code < 2), "{status}");
    std::fs::read_to_string(trace.path()).expect("the trace")
}

fn system_calls(command: &Command) -> u64 {
    // Builds with debug assertions ask with fcntl before each close.
    let text = strace(&["-c", "-e", "trace=!fcntl"], command);
    let total = text.lines().find(|line| line.ends_with(" total"));
    let calls = total.and_then(|line| line.split_whitespace().nth(3));
    calls
        .unwrap_or_else(|| panic!("{text}"))
        .parse()
        .expect("a number")
}

fn hook(root: &Path, vmid: u32, phase: &str) -> Command {
    let mut command = program(root);
    command.args(["hook", &vmid.to_string(), phase]);
    command
}

/// What a command opens below a root, in order, and how many bytes of configuration space it reads of each function.
fn reads(command: &Command, root: &Path) -> (Vec<String>, Vec<(String, u64)>) {
    let text = strace(&["-y", "-e", "trace=openat,openat2,pread64"], command);
    let root = root.canonicalize().expect("the root").display().to_string();
    let (mut opened, mut bytes) = (Vec::new(), Vec::<(String, u64)>::new());
    for line in text.lines() {
        let Some((call, result)) = line.rsplit_once(" = ") else {
            continue;
        };
        if let Some((before, _)) = call.split_once("/config>")
            && call.contains("pread64(")
        {
            let function = before.rsplit('/').next().unwrap_or_default().to_owned();
            let read: u64 = result.trim().parse().expect("a number");
            match bytes.iter_mut().find(|(name, _)| *name == function) {
                Some((_, sum)) => *sum += read,
                None => bytes.push((function, read)),
            }
        } else if let Some((_, path)) = result.split_once('<')
            && let Some(path) = path.trim_end_matches('>').strip_prefix(&root)
        {
            opened.push(path.to_owned());
        }
    }
    (opened, bytes)
}

#[test]
fn the_hook_needs_few_system_calls() {
    let (tree, _log) = x399();
    // What starting any program costs here; the linker's part differs between systems.
    let base = system_calls(&Command::new("/bin/true"));
    for (vmid, phase, limit) in [
        (101, "pre-start", 240),
        (102, "pre-start", 176),
        (101, "post-start", 42),
        (101, "pre-stop", 42),
        (101, "post-stop", 42),
    ] {
        let calls = system_calls(&hook(tree.path(), vmid, phase)) - base;
        println!("{vmid} {phase}: {calls} system calls more than /bin/true");
        // A few come and go with the order in which two threads run, and some more are needed before Linux 6.2.
        assert!(calls <= limit, "{vmid} {phase}: {calls}");
    }
}

#[test]
fn no_library_but_libc_is_loaded() {
    let text = strace(&["-e", "trace=openat"], bare().arg("--version"));
    let libraries: BTreeSet<_> = text
        .lines()
        .filter(|line| !line.contains("ENOENT"))
        .filter_map(|line| line.split('"').nth(1))
        .filter(|path| path.contains(".so."))
        .filter_map(|path| path.rsplit('/').next())
        .filter(|name| *name != "ld.so.cache")
        .collect();
    assert_eq!(libraries, BTreeSet::from(["libc.so.6"]));
}

#[test]
fn reads_do_not_grow_with_the_host() {
    let mut before = None;
    for slots in [2, 128] {
        let tree = large_host(slots).vm(100, &vm_text(0, 1));
        let (opened, bytes) = reads(&hook(tree.path(), 100, "pre-start"), tree.path());
        // The card's three functions and the root port above.
        assert_eq!(bytes.len(), 4, "{} functions", functions(slots));
        for (function, bytes) in &bytes {
            assert!(*bytes <= 256, "{function}: {bytes}");
        }
        let (before, count) = before.get_or_insert((opened.clone(), functions(slots)));
        assert_eq!(*before, opened, "{count} and {}", functions(slots));
    }
}

#[test]
fn what_several_vms_share_is_read_once() {
    let mut tree = large_host(4);
    for number in 0..12 {
        // Twelve VMs on four cards, two of them each.
        tree = tree.vm(100 + number, &vm_text(number, 4));
    }
    let mut check = program(tree.path());
    check.args(["check", "--all", "--format", "json"]);
    let (opened, bytes) = reads(&check, tree.path());
    let mut once = opened.clone();
    once.retain(|path| path.ends_with("/config"));
    assert_eq!(once.len(), 16, "{once:#?}");
    once.sort();
    once.dedup();
    assert_eq!(once.len(), 16, "a function was read twice");
    assert!(bytes.iter().all(|(_, bytes)| *bytes <= 256), "{bytes:?}");
    // Opened to be listed, and to read links in it.
    let listings = opened.iter().filter(|path| *path == "/sys/bus/pci/devices");
    assert_eq!(listings.count(), 2);
    for once in ["/var/lib/dpkg/status", "/proc/sys/kernel/osrelease"] {
        assert_eq!(
            opened.iter().filter(|path| *path == once).count(),
            1,
            "{once}"
        );
    }
}

/// Instructions in user space, by callgrind.
fn instructions(command: &Command) -> u64 {
    let log = tempfile::NamedTempFile::new().expect("a file");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--trace-children=no"])
        .arg("--callgrind-out-file=/dev/null")
        .arg(format!("--log-file={}", log.path().display()))
        .arg(command.get_program())
        .args(command.get_args())
        .output()
        .expect("valgrind is installed");
    let text = std::fs::read_to_string(log.path()).expect("the log");
    // 1 is an answer of check.
    assert!(output.status.code().is_some_and(|code| code < 2), "{text}");
    let collected = text.lines().find(|line| line.contains("Collected : "));
    let number = collected.and_then(|line| line.rsplit(' ').next());
    number
        .unwrap_or_else(|| panic!("{text}"))
        .parse()
        .expect("a number")
}

#[test]
fn instructions_stay_within_bounds() {
    // Not every valgrind knows openat2 (3.19 does not), so the host is an archive here, which is read without it. What
    // unpacking costs is the difference to a phase in which nothing is to be done.
    let directory = tempfile::tempdir().expect("directory");
    let archive = directory.path().join("host.tar.gz");
    let mut capture = program(&example("x399-two-7900xt"));
    let status = capture.arg("capture").arg("-o").arg(&archive).status();
    assert!(status.expect("the program runs").success());
    let of = |phase| instructions(&hook(&archive, 101, phase));
    let work = of("pre-start") - of("pre-stop");
    println!("{work} instructions for VM 101");
    // A fifth more than measured, in a build without optimization; half of it is what an archive costs.
    assert!(work <= 5_800_000, "{work}");
    // And the number of VMs is a factor, not more.
    let check = |vms: u32| {
        let tree = (0..vms).fold(large_host(1), |tree: HostTree, number| {
            tree.vm(100 + number, &vm_text(0, 1))
        });
        let file = directory.path().join(format!("{vms}.tar.gz"));
        let mut capture = program(tree.path());
        let status = capture.arg("capture").arg("-o").arg(&file).status();
        assert!(status.expect("the program runs").success());
        let mut check = program(&file);
        check.args(["check", "--all", "--format", "json"]);
        instructions(&check)
    };
    let (ten, twenty, forty) = (check(10), check(20), check(40));
    println!("check --all: {ten}, {twenty}, {forty} instructions for 10, 20, 40 VMs");
    let (first, second) = (twenty - ten, (forty - twenty) / 2);
    assert!(
        second * 100 <= first * 120,
        "{first}, then {second} for ten VMs"
    );
}
