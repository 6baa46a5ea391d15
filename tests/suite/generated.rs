//! The files in `packaging/generated` are what the program prints: `UPDATE_GENERATED=1` writes them anew.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::golden;
use crate::support::live::said;
use crate::support::program::bare;

fn printed(arguments: &[&str]) -> String {
    let (text, errors, status) = said(&bare().args(arguments).output().expect("the program runs"));
    assert_eq!((status, errors.as_str()), (0, ""), "{arguments:?}");
    text
}

#[test]
fn files_of_the_package_are_current() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/generated");
    for (file, arguments) in [
        ("completions/bash", &["completions", "bash"][..]),
        ("completions/zsh", &["completions", "zsh"]),
        ("completions/fish", &["completions", "fish"]),
        ("pve-atomicops.1", &["man"]),
        ("pve-atomicops.toml.5", &["man", "policy"]),
    ] {
        golden::same(
            &directory.join(file),
            &printed(arguments),
            "UPDATE_GENERATED",
        );
    }
}

/// Feeds a program from standard input, and gives what it says.
fn fed(command: &mut Command, text: &str) -> (String, String, i32) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(text.as_bytes()).expect("a reader");
    drop(input);
    said(&child.wait_with_output().expect("it ends"))
}

#[test]
fn bash_takes_its_completions_and_offers_the_commands() {
    let script = format!(
        "{}\nCOMP_WORDS=(pve-atomicops f) COMP_CWORD=1\n\
         function=$(complete -p pve-atomicops | sed 's/.*-F \\([^ ]*\\) .*/\\1/')\n\
         $function pve-atomicops f pve-atomicops\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        printed(&["completions", "bash"])
    );
    let (text, errors, status) = fed(Command::new("bash").arg("--norc"), &script);
    assert_eq!((text.as_str(), errors.as_str(), status), ("fix\n", "", 0));
}

#[test]
fn man_reads_the_pages_without_a_warning() {
    for page in ["program", "policy"] {
        let mut command = Command::new("man");
        command
            .args(["-l", "--warnings=w", "-"])
            .env("MANWIDTH", "80")
            .env("LC_ALL", "C.UTF-8");
        let (text, errors, status) = fed(&mut command, &printed(&["man", page]));
        assert_eq!((status, errors.as_str()), (0, ""), "{page}");
        assert!(text.contains("NAME\n"), "{text}");
        assert!(text.contains("SEE ALSO\n"), "{text}");
    }
}
