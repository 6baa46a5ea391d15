//! The snippet `hook/pve-atomicops-hook`, run by dash as Proxmox VE runs it: standard input closed, `LC_ALL=C`.
//!
//! Two things matter: the program's exit status passes through unchanged, and nothing that is wrong with the program
//! (missing, truncated, built for another machine, crashing) keeps a VM from starting.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SNIPPET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hook/pve-atomicops-hook");
const PROGRAM: &str = "/usr/sbin/pve-atomicops";

/// A directory with a copy of the snippet that calls `program` beside it instead of the installed one.
struct Snippet {
    dir: tempfile::TempDir,
}

impl Snippet {
    fn new() -> Self {
        let text = fs::read_to_string(SNIPPET).expect("the snippet");
        assert_eq!(
            text.matches(PROGRAM).count(),
            1,
            "the program is named once"
        );
        let snippet = Self {
            dir: tempfile::tempdir().expect("a temporary directory"),
        };
        let path = snippet.program().display().to_string();
        write(
            &snippet.dir.path().join("hook"),
            text.replace(PROGRAM, &path).as_bytes(),
            0o755,
        );
        snippet
    }

    fn program(&self) -> PathBuf {
        self.dir.path().join("program")
    }

    /// Runs the snippet with this file as the program.
    fn with(program: &[u8], mode: u32) -> (Self, Output) {
        let snippet = Self::new();
        write(&snippet.program(), program, mode);
        let output = snippet.run();
        (snippet, output)
    }

    fn run(&self) -> Output {
        Command::new("dash")
            .arg(self.dir.path().join("hook"))
            .args(["101", "pre-start"])
            .env_clear()
            .env("LC_ALL", "C")
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .output()
            .expect("dash")
    }

    #[track_caller]
    fn assert_warns(&self, output: &Output) {
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(stdout.lines().count(), 1, "{output:?}");
        assert!(stdout.starts_with("WARN: "), "{output:?}");
        assert!(
            stdout.contains(&self.program().display().to_string()),
            "{output:?}"
        );
        assert!(
            stdout.contains("101") && stdout.contains("pre-start"),
            "{output:?}"
        );
    }
}

fn write(path: &Path, content: &[u8], mode: u32) {
    fs::write(path, content).expect("write");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

/// A stand-in for the program that knows `--version` and otherwise does `body`.
fn script(body: &str) -> Vec<u8> {
    format!("#!/bin/sh\n[ \"$*\" = --version ] && echo 'pve-atomicops 9.9.9' && exit\n{body}\n")
        .into_bytes()
}

#[test]
fn arguments_output_and_exit_status_pass_through() {
    for status in [0, 1, 2, 42, 126, 127, 255] {
        let (_, output) = Snippet::with(
            &script(&format!("echo \"<$*>\"; echo err >&2; exit {status}")),
            0o755,
        );
        assert_eq!(output.status.code(), Some(status));
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "<hook 101 pre-start>\n"
        );
        assert_eq!(String::from_utf8_lossy(&output.stderr), "err\n");
    }
}

#[test]
fn the_program_replaces_the_shell() {
    // A signal that Proxmox sends to the hookscript has to reach the program, not a shell that waits for it.
    let (_, output) = Snippet::with(&script("kill -TERM $$"), 0o755);
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&output.status),
        Some(15)
    );
}

#[test]
fn the_real_program_is_recognized() {
    let snippet = Snippet::new();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_pve-atomicops"), snippet.program())
        .expect("symlink");
    let output = Command::new(snippet.program())
        .arg("--version")
        .output()
        .expect("the program");
    assert!(output.stdout.starts_with(b"pve-atomicops "), "{output:?}");
    // Whatever the hook says about a VM that is not there, the snippet must not call the program unusable.
    let output = snippet.run();
    assert!(
        !String::from_utf8_lossy(&output.stdout).contains("does not run"),
        "{output:?}"
    );
}

#[test]
fn a_missing_program_warns() {
    let snippet = Snippet::new();
    let output = snippet.run();
    snippet.assert_warns(&output);
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_program_without_execute_permission_warns() {
    let (snippet, output) = Snippet::with(&script("exit 1"), 0o644);
    snippet.assert_warns(&output);
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_directory_in_the_programs_place_warns() {
    let snippet = Snippet::new();
    fs::create_dir(snippet.program()).expect("mkdir");
    let output = snippet.run();
    snippet.assert_warns(&output);
}

#[test]
fn a_program_that_cannot_be_executed_warns() {
    // The shell runs a file as a script when the kernel does not know its format.
    let program = fs::read(env!("CARGO_BIN_EXE_pve-atomicops")).expect("the program");
    let mut other_machine = program.clone();
    other_machine[18..20].copy_from_slice(&[0xff, 0x7f]); // e_machine of the ELF header
    let mut other_format = program.clone();
    other_format[0] = 0;
    for (what, content) in [
        ("empty", &[][..]),
        ("zeros, as after a power failure", &[0; 4096][..]),
        ("truncated in the ELF header", &program[..40]),
        ("truncated", &program[..8192]),
        ("another machine's", &other_machine),
        ("not ELF", &other_format),
        ("a missing interpreter", b"#!/nonexistent/interpreter\n"),
    ] {
        let (snippet, output) = Snippet::with(content, 0o755);
        eprintln!("{what}");
        snippet.assert_warns(&output);
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn a_program_that_dies_before_it_can_answer_warns() {
    // The dynamic loader exits with 1 or 127 when a library is too old or missing: 1 would stop the VM.
    for body in ["exit 1", "exit 127", "kill -SEGV $$", "kill -ILL $$"] {
        let (snippet, output) = Snippet::with(format!("#!/bin/sh\n{body}\n").as_bytes(), 0o755);
        snippet.assert_warns(&output);
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn a_program_removed_after_the_probe_warns() {
    let (snippet, output) = Snippet::with(
        b"#!/bin/sh\n[ \"$*\" = --version ] && echo 'pve-atomicops 9.9.9' && rm \"$0\"\n",
        0o755,
    );
    snippet.assert_warns(&output);
}

#[test]
fn a_closed_standard_output_changes_nothing() {
    let snippet = Snippet::new();
    let status = Command::new("dash")
        .arg("-c")
        .arg(format!(
            "exec dash {}/hook 101 post-stop >&- 2>&-",
            snippet.dir.path().display()
        ))
        .status()
        .expect("dash");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn the_snippet_is_plain_shell() {
    let dash = Command::new("dash")
        .args(["-n", SNIPPET])
        .output()
        .expect("dash");
    assert!(dash.status.success() && dash.stderr.is_empty(), "{dash:?}");
    let mode = fs::metadata(SNIPPET)
        .expect("the snippet")
        .permissions()
        .mode();
    assert_eq!(
        mode & 0o777,
        0o755,
        "Proxmox refuses a hookscript that is not executable"
    );
}
