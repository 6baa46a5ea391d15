//! What a process has given up: new privileges, descriptors, the caller's environment; and that no register of any device
//! is ever opened for writing.

use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::support::example_hosts::x399_two_7900xt;
use crate::support::live::Live;
use crate::support::program::{Copy, copy_of, example, program};

/// What a command does, as the kernel sees it.
fn traced(root: &Path, calls: &str, arguments: &[&str]) -> String {
    let trace = tempfile::NamedTempFile::new().expect("a file");
    let ended = Command::new("strace")
        .args([
            "-f",
            "-qq",
            "-y",
            "-s",
            "4096",
            "-e",
            &format!("trace={calls}"),
            "-o",
        ])
        .arg(trace.path())
        .arg(env!("CARGO_BIN_EXE_pve-atomicops"))
        .arg("--root")
        .arg(root)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("strace is installed");
    assert!(
        matches!(ended.code(), Some(0..=1)) || arguments[0] == "verify",
        "{arguments:?}: {ended}"
    );
    std::fs::read_to_string(trace.path()).expect("the trace")
}

fn tree() -> Copy {
    let tree = copy_of(&example("x399-two-7900xt"));
    tree.write(
        "etc/pve/atomicops.toml",
        "mode = 'rewrite'\nsyslog = false\n",
    );
    tree
}

/// Commands that read and nothing else.
const READERS: [&[&str]; 9] = [
    &["check"],
    &["check", "--all", "--format", "json"],
    &["config", "101"],
    &["topology", "--all"],
    &["topology", "--vm", "101", "--format", "dot"],
    &["capture", "-o", "-"],
    // There is no such VM running, which is told after everything has been read.
    &["verify", "101"],
    &["completions", "bash"],
    &["man"],
];

/// Commands that may write.
const WRITERS: [&[&str]; 7] = [
    &["fix", "101", "--dry-run"],
    &["fix", "101", "--yes"],
    &["undo", "101"],
    &["attach", "101"],
    &["detach", "101"],
    &["hook", "101", "pre-start"],
    &["hook", "101", "post-stop"],
];

#[test]
fn no_register_is_ever_opened_for_writing() {
    let tree = tree();
    let mut read = 0;
    for arguments in READERS.iter().chain(&WRITERS).copied() {
        let calls = "open,openat,openat2,creat,truncate,ftruncate,mmap,pwrite64,ioctl,chmod,fchmod";
        for line in traced(tree.path(), calls, arguments).lines() {
            if !line.contains("/sys/") && !line.contains("\"config\"") {
                continue;
            }
            read += usize::from(line.contains("config"));
            let writes = [
                "O_WRONLY",
                "O_RDWR",
                "O_CREAT",
                "O_TRUNC",
                "creat(",
                "truncate",
                "pwrite",
                "ioctl",
                "chmod",
                "PROT_WRITE",
            ];
            assert!(
                !writes.iter().any(|mode| line.contains(mode)),
                "{arguments:?}: {line}"
            );
        }
    }
    assert!(read > 20, "the registers were read {read} times only");
}

#[test]
fn what_only_reads_cannot_gain_privileges() {
    let tree = tree();
    let call = "prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) = 0";
    for arguments in READERS {
        let trace = traced(tree.path(), "prctl,openat2", arguments);
        let given_up = trace.find(call);
        assert!(given_up.is_some(), "{arguments:?}: {trace}");
        // Before the first file is opened.
        assert!(
            trace.find("openat2(").is_none_or(|at| Some(at) > given_up),
            "{arguments:?}"
        );
    }
    for arguments in WRITERS {
        // Proxmox's commands, and scripts of the chain, run as they would without this program.
        let trace = traced(tree.path(), "prctl", arguments);
        assert!(!trace.contains("NO_NEW_PRIVS"), "{arguments:?}");
    }
}

#[test]
fn no_command_leaves_a_core_dump() {
    let tree = tree();
    for arguments in READERS.iter().chain(&WRITERS) {
        let trace = traced(tree.path(), "prlimit64,setrlimit", arguments);
        assert!(
            trace.contains("RLIMIT_CORE, {rlim_cur=0, rlim_max=0}"),
            "{arguments:?}: {trace}"
        );
    }
}

#[test]
fn a_chained_script_gets_the_environment_and_no_descriptors() {
    let tree = tree();
    let script = tree.path().join("script");
    let seen = tree.path().join("seen");
    std::fs::write(
        &script,
        format!(
            "#!/bin/sh\n{{ ls /proc/$$/fd; env; grep -E 'NoNewPrivs|^Umask|SigIgn' /proc/$$/status; }} >{}\n",
            seen.display()
        ),
    )
    .expect("script");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("mode");
    tree.write(
        "etc/pve/atomicops.toml",
        "mode = 'off'\nsyslog = false\nchain = ['/script']\n",
    );
    // A secret of the caller's, which it forgot to mark.
    let secret = std::fs::File::open("/etc/passwd").expect("open");
    fcntl(&secret, FcntlArg::F_SETFD(FdFlag::empty())).expect("inherited");
    let ended = program(tree.path())
        .args(["hook", "101", "pre-start"])
        .env("PVE_MIGRATED_FROM", "pve2")
        .env("OTHER", "kept")
        .status()
        .expect("it runs");
    fcntl(&secret, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("no longer");
    assert!(secret.as_raw_fd() > 2 && ended.success(), "{ended}");
    let seen = std::fs::read_to_string(seen).expect("the script ran");
    // 10 or 255 is what a shell reads its script through.
    let mut descriptors: Vec<u32> = seen.lines().map_while(|line| line.parse().ok()).collect();
    descriptors.sort_unstable();
    assert!(
        descriptors.starts_with(&[0, 1, 2]) && descriptors[3..].iter().all(|number| *number >= 10),
        "{descriptors:?}"
    );
    for line in ["PVE_MIGRATED_FROM=pve2", "OTHER=kept", "NoNewPrivs:\t0"] {
        assert!(
            seen.lines().any(|seen| seen == line),
            "{line} is not in {seen}"
        );
    }
    // A program expects SIGPIPE to end it where nobody reads on.
    let ignored = seen.lines().find_map(|line| line.strip_prefix("SigIgn:\t"));
    let ignored = u64::from_str_radix(ignored.expect("a mask"), 16).expect("a mask");
    let pipe = nix::sys::signal::Signal::SIGPIPE as i32 - 1;
    assert_eq!(ignored >> pipe & 1, 0, "{ignored:x}");
}

#[test]
fn a_missing_standard_descriptor_is_no_place_for_a_file() {
    let tree = tree();
    let arguments = ["hook", "101", "pre-stop"];
    let own = env!("CARGO_BIN_EXE_pve-atomicops");
    for closed in ["<&- >&- 2>&-", ">&-", "2>&- <&-"] {
        let trace = tempfile::NamedTempFile::new().expect("a file");
        let line = format!(
            "exec strace -f -qq -e trace=openat,openat2 -o {} sh -c 'exec {own} --root {} {} {closed}'",
            trace.path().display(),
            tree.path().display(),
            arguments.join(" ")
        );
        let ended = Command::new("sh").args(["-c", &line]).status();
        assert!(ended.expect("it runs").success(), "{closed}");
        let trace = std::fs::read_to_string(trace.path()).expect("the trace");
        // After the libraries of the program.
        let ours = trace
            .lines()
            .filter(|line| !line.contains(".so") && !line.contains("ENOENT"));
        let ours: Vec<_> = ours
            .skip_while(|line| !line.contains("/dev/null"))
            .collect();
        let missing = closed.matches("&-").count();
        for (at, line) in ours.iter().enumerate() {
            let (_, number) = line.rsplit_once(" = ").expect("a result");
            let number: usize = number.trim().parse().expect("a descriptor");
            assert_eq!(
                at < missing,
                line.contains("\"/dev/null\""),
                "{closed}: {ours:#?}"
            );
            assert_eq!(at < missing, number < 3, "{closed}: {ours:#?}");
        }
        assert!(ours.len() > missing, "{closed}: {ours:#?}");
    }
}

#[test]
fn only_the_entry_is_unsafe() {
    // The compiler holds the library to it; beside it there is the program's entry alone.
    let library = include_str!("../../src/lib.rs");
    assert!(library.contains("#![forbid(unsafe_code)]"));
    let entry = include_str!("../../src/main.rs");
    let unsafe_lines: Vec<_> = entry
        .lines()
        .map(str::trim)
        .filter(|line| line.contains("unsafe") && !line.starts_with("//"))
        .collect();
    assert_eq!(
        unsafe_lines,
        [
            "#![allow(unsafe_code)]",
            "#[unsafe(no_mangle)]",
            "let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) };",
        ]
    );
}

#[test]
fn proxmoxs_commands_get_a_plain_environment() {
    let live = Live::new(x399_two_7900xt());
    let output = live
        .command(&["fix", "101", "--yes"])
        .envs([
            ("PERL5OPT", "-MNoSuchModule"),
            ("PERL5LIB", "/nowhere"),
            ("SECRET", "x"),
        ])
        .output()
        .expect("unshare runs");
    // Perl would have refused to start with that option.
    assert!(output.status.success(), "{output:?}");
    assert!(!live.calls().is_empty());
    let environment = live.tree.text("run/stand-in/environment");
    let names: Vec<_> = environment.lines().collect();
    assert_eq!(names, ["HOME", "LC_ALL", "PATH"]);
}
