//! Several writers at once: no change of any of them is lost.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::child::{CONFIG, command, said};
use crate::fuse::Mount;

/// How often each of them counts up.
const TIMES: u32 = 100;

const START: &str = "cores: 0\nhostpci1: 0\nhostpci2: 0\nmemory: 0\n";

fn node() -> Mount {
    let mount = Mount::new();
    mount.file(CONFIG, START.as_bytes());
    mount.link("etc/pve/qemu-server", "nodes/pve1/qemu-server");
    mount.directory("run/lock/qemu-server");
    mount.link("var/lock", "/run/lock");
    mount.directory("var/lib");
    mount
}

/// Runs all of them at once; each must succeed.
fn together(mount: &Mount, commands: Vec<Command>) -> Vec<String> {
    let children: Vec<_> = commands
        .into_iter()
        .map(|mut command| {
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .expect("the command starts")
        })
        .collect();
    let mut words = Vec::new();
    for child in children {
        let output = child.wait_with_output().expect("our child");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(output.status.success(), "{text}");
        words.extend(said(&text).into_iter().map(str::to_owned));
    }
    writeln!(
        std::io::stderr(),
        "{} writers: {}",
        words.len(),
        words.join("; ")
    )
    .expect("stderr");
    assert_eq!(mount.names("etc/pve/nodes/pve1/qemu-server"), ["101.conf"]);
    words
}

fn config(mount: &Mount) -> String {
    String::from_utf8(mount.content(CONFIG).expect("configuration")).expect("UTF-8")
}

#[test]
fn two_of_us_lose_nothing_of_each_other() {
    let mount = node();
    let times = TIMES.to_string();
    let ours = |key| command("count-as-store", mount.path(), &[key, &times]);
    together(&mount, vec![ours("hostpci1"), ours("hostpci2")]);
    let expected = format!("cores: 0\nhostpci1: {TIMES}\nhostpci2: {TIMES}\nmemory: 0\n");
    assert_eq!(config(&mount), expected);
    // Each change has an intent and an outcome, and no other line went into the journal.
    let journal = mount
        .content("var/lib/pve-atomicops/journal")
        .expect("journal");
    let lines = String::from_utf8(journal).expect("UTF-8");
    let done = lines
        .lines()
        .filter(|line| line.contains("\"done\":true"))
        .count();
    assert_eq!(done, 2 * TIMES as usize);
}

#[test]
fn we_and_qm_set_lose_nothing_of_each_other() {
    let mount = node();
    let times = TIMES.to_string();
    let ours = |key| command("count-as-store", mount.path(), &[key, &times]);
    let qm = |key| command("count-as-qm", mount.path(), &[key, &times]);
    together(
        &mount,
        vec![
            ours("hostpci1"),
            qm("memory"),
            qm("cores"),
            ours("hostpci2"),
        ],
    );
    let expected =
        format!("cores: {TIMES}\nhostpci1: {TIMES}\nhostpci2: {TIMES}\nmemory: {TIMES}\n");
    assert_eq!(config(&mount), expected);
}
