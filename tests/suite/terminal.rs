//! What is printed: goldens of the example hosts, colours, widths, pipes, errors. `UPDATE_GOLDENS=1` keeps new ones.

use std::io::Read as _;
use std::process::{Command, Stdio};

use crate::support::golden;
use crate::support::live::said;
use crate::support::program::{bare, example, program};

const HOSTS: [&str; 3] = [
    "x399-two-7900xt",
    "b550-chipset-slot",
    "epyc-instinct-sriov",
];

/// What the program prints about an example host.
fn printed(host: &str, arguments: &[&str]) -> String {
    let output = program(&example(host))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the program runs");
    let (text, errors, _) = said(&output);
    assert_eq!(errors, "", "{host} {arguments:?}");
    text
}

/// Whether a line may be longer than the terminal is wide: what people copy, and the lines of a diff.
fn may_be_long(line: &str) -> bool {
    let line = line.trim_start();
    let copied = [
        "fix: ",
        "possible: ",
        "qm ",
        "pvesh ",
        "by: ",
        "To take it back: ",
        "hostpci",
        "https://",
        "+",
        "-",
        "efidisk",
        "@@",
    ];
    copied.iter().any(|start| line.starts_with(start))
}

fn fits(text: &str, columns: usize) {
    for line in text.lines().filter(|line| !may_be_long(line)) {
        let length = line.chars().count();
        assert!(length <= columns, "{length} columns: {line}");
    }
}

#[test]
fn check_of_the_example_hosts() {
    for host in HOSTS {
        for (form, arguments) in [
            ("text", &["check"][..]),
            ("table", &["check", "--all"]),
            ("quiet", &["check", "--quiet"]),
        ] {
            let text = printed(host, arguments);
            fits(&text, 80);
            golden::compare(&format!("{host}/check-{form}.txt"), &text);
        }
    }
}

#[test]
fn fix_of_the_example_hosts() {
    for (host, vmid) in [
        ("x399-two-7900xt", "101"),
        ("x399-two-7900xt", "103"),
        ("x399-two-7900xt", "104"),
        ("b550-chipset-slot", "110"),
        ("epyc-instinct-sriov", "200"),
    ] {
        for strategy in ["explicit", "split", "auto"] {
            let text = printed(host, &["fix", vmid, "--dry-run", "--strategy", strategy]);
            fits(&text, 80);
            golden::compare(&format!("{host}/fix-{vmid}-{strategy}.txt"), &text);
        }
    }
    let text = printed("x399-two-7900xt", &["fix", "103", "--dry-run", "--mapping"]);
    fits(&text, 80);
    golden::compare("x399-two-7900xt/fix-103-mapping.txt", &text);
    for host in HOSTS {
        let text = printed(host, &["fix", "--all", "--dry-run"]);
        fits(&text, 80);
        golden::compare(&format!("{host}/fix-all.txt"), &text);
    }
}

#[test]
fn findings_of_the_example_hosts() {
    for (host, vmid) in [
        ("x399-two-7900xt", "101"),
        ("x399-two-7900xt", "103"),
        ("b550-chipset-slot", "110"),
        ("epyc-instinct-sriov", "200"),
    ] {
        let text = printed(host, &["hook", vmid, "pre-start"]);
        assert!(text.starts_with("WARN: "), "{text}");
        golden::compare(&format!("{host}/hook-{vmid}.txt"), &text);
    }
    // One GPU, explicit forms, and a host that cannot: nothing to say.
    for (host, vmid) in [
        ("x399-two-7900xt", "102"),
        ("x399-two-7900xt", "104"),
        ("b550-chipset-slot", "111"),
        ("b550-chipset-slot", "112"),
    ] {
        assert_eq!(
            printed(host, &["hook", vmid, "pre-start"]),
            "",
            "{host} {vmid}"
        );
    }
}

/// Runs a command line on a terminal of so many columns, and gives what appears there.
fn on_terminal(columns: u16, environment: &[(&str, &str)], arguments: &str) -> String {
    let line = format!(
        "stty cols {columns} rows 50; exec {} --root {} {arguments}",
        env!("CARGO_BIN_EXE_pve-atomicops"),
        example("x399-two-7900xt").display()
    );
    let mut command = Command::new("script");
    command
        .args(["-qec", &line, "/dev/null"])
        .env_remove("NO_COLOR")
        .env("TERM", "xterm")
        .env("SHELL", "/bin/sh")
        .envs(environment.iter().copied())
        .stdin(Stdio::null());
    let output = command.output().expect("script runs");
    String::from_utf8(output.stdout)
        .expect("UTF-8")
        .replace("\r\n", "\n")
}

fn without_escapes(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\x1b') {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    plain + rest
}

#[test]
fn prose_is_broken_where_the_terminal_ends() {
    for columns in [40, 60, 80, 100] {
        let text = without_escapes(&on_terminal(columns, &[], "check 101 104"));
        assert!(text.starts_with("VM 101 (train), q35: lost\n"), "{text}");
        fits(&text, usize::from(columns));
        let longest = text
            .lines()
            .filter(|line| !may_be_long(line))
            .map(|line| line.chars().count())
            .max();
        assert!(
            longest > Some(usize::from(columns) - 12),
            "{columns} columns are used: {text}"
        );
    }
    // Narrower than can be read, and wider.
    assert_eq!(
        without_escapes(&on_terminal(20, &[], "check 101")),
        without_escapes(&on_terminal(40, &[], "check 101"))
    );
    assert_eq!(
        without_escapes(&on_terminal(200, &[], "check 101")),
        without_escapes(&on_terminal(100, &[], "check 101"))
    );
}

#[test]
fn words_are_the_same_at_any_width() {
    let words = |text: &str| {
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let plain = printed("x399-two-7900xt", &["check", "101"]);
    for columns in [40, 100] {
        let text = without_escapes(&on_terminal(columns, &[], "check 101"));
        assert_eq!(words(&text), words(&plain), "{columns}");
    }
}

#[test]
fn colours_are_for_terminals_and_those_who_ask() {
    let escape = |text: &str| text.contains('\x1b');
    assert!(escape(&on_terminal(80, &[], "check 101")));
    assert!(escape(&on_terminal(80, &[], "fix 101 --dry-run")));
    assert!(!escape(&on_terminal(80, &[("NO_COLOR", "1")], "check 101")));
    assert!(
        escape(&on_terminal(80, &[("NO_COLOR", "")], "check 101")),
        "empty is unset"
    );
    assert!(!escape(&on_terminal(80, &[("TERM", "dumb")], "check 101")));
    assert!(!escape(&on_terminal(80, &[], "check 101 --color never")));
    assert!(escape(&on_terminal(
        80,
        &[("NO_COLOR", "1")],
        "check 101 --color always"
    )));
    assert!(!escape(&printed("x399-two-7900xt", &["check", "101"])));
    let colored = printed("x399-two-7900xt", &["check", "101", "--color", "always"]);
    assert!(escape(&colored));
    // Colours change nothing else.
    assert_eq!(
        without_escapes(&colored),
        printed("x399-two-7900xt", &["check", "101"])
    );
    let json = printed(
        "x399-two-7900xt",
        &["check", "101", "--format", "json", "--color", "always"],
    );
    assert!(!escape(&json));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for arguments in [
        &["check"][..],
        &["completions", "bash"],
        &["man"],
        &["fix", "--all", "--dry-run"],
    ] {
        let mut child = program(&example("x399-two-7900xt"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        drop(child.stdout.take());
        let mut errors = String::new();
        child
            .stderr
            .take()
            .expect("a pipe")
            .read_to_string(&mut errors)
            .expect("UTF-8");
        let status = child.wait().expect("it ends");
        assert_eq!(errors, "", "{arguments:?}");
        assert!(
            status.code().is_some_and(|code| code < 2),
            "{arguments:?}: {status}"
        );
    }
}

#[test]
fn errors_are_one_line_that_says_what_to_do() {
    let cases: [(&[&str], &str); 5] = [
        (
            &["check", "105"],
            "error: there is no VM 105 on this node; the nearest IDs are 102, 103, 104\n",
        ),
        (
            &["attach", "101", "--config", "x.toml"],
            "error: --config has no meaning here: the chain goes into /etc/pve-atomicops/config.toml, which the hook reads\n",
        ),
        (
            &["check", "--config", "/nonexistent.toml"],
            "error: /nonexistent.toml: no such file\n",
        ),
        (
            &["fix", "103", "--mapping", "--yes"],
            "error: a mapping is changed by pvesh on a live host only, and this is a tree below --root\n",
        ),
        (
            &["undo", "999"],
            "error: there is no VM 999 on this node; the nearest IDs are 102, 103, 104\n",
        ),
    ];
    for (arguments, expected) in cases {
        let output = program(&example("x399-two-7900xt"))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("the program runs");
        let (_, errors, status) = said(&output);
        assert_eq!((errors.as_str(), status), (expected, 2), "{arguments:?}");
    }
    let (_, errors, status) = said(
        &bare()
            .args(["check", "--root", "/nonexistent"])
            .output()
            .expect("it runs"),
    );
    assert_eq!(status, 2);
    assert!(
        errors.starts_with("error: --root /nonexistent: "),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1);
}
