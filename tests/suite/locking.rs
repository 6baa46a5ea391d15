//! Proxmox's lock of a VM: held by an ancestor, by a stranger, by nobody.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::fcntl::FlockArg;

use crate::child::{CONFIG, REFUSED, command, flock, repaired, said};

const OLD: &[u8] = b"hostpci0: 0000:0b:00,pcie=1\n";

/// A tree with VM 101 on an ordinary file system.
fn node() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("directory");
    let config = root.path().join(CONFIG);
    std::fs::create_dir_all(config.parent().expect("directory")).expect("directory");
    std::fs::write(config, OLD).expect("configuration");
    std::fs::create_dir_all(root.path().join("run/lock")).expect("directory");
    std::fs::create_dir(root.path().join("var")).expect("directory");
    for (target, link) in [
        ("nodes/pve1/qemu-server", "etc/pve/qemu-server"),
        ("/run/lock", "var/lock"),
    ] {
        std::os::unix::fs::symlink(target, root.path().join(link)).expect("link");
    }
    root
}

fn config(root: &Path) -> Vec<u8> {
    std::fs::read(root.join(CONFIG)).expect("configuration")
}

/// What a role says, with its status.
fn outcome(command: &mut Command) -> (Option<i32>, Vec<String>) {
    let output = command
        .stdin(Stdio::null())
        .output()
        .expect("the command starts");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    (
        output.status.code(),
        said(&text).into_iter().map(str::to_owned).collect(),
    )
}

/// A role that waits for a line; ended when dropped.
struct Waiting {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Waiting {
    fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, lines }
    }

    /// The next thing it says.
    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.lines.read_line(&mut line).expect("output"),
                0,
                "it ended"
            );
            if let Some(said) = line.strip_prefix("> ") {
                return said.trim_end().to_owned();
            }
        }
    }

    fn go_on(&mut self) {
        self.child
            .stdin
            .take()
            .expect("piped")
            .write_all(b"\n")
            .expect("line");
    }

    fn status(&mut self) -> Option<i32> {
        self.child.wait().expect("our child").code()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Fails where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_lock_that_nobody_holds_becomes_ours() {
    let root = node();
    let got = outcome(&mut command("acquire", root.path(), &["0"]));
    assert_eq!(got, (Some(0), vec!["own".to_owned()]));
}

#[test]
fn a_lock_of_the_parent_counts_as_ours() {
    let root = node();
    let held = flock(root.path(), FlockArg::LockExclusive);
    let got = outcome(&mut command("acquire", root.path(), &["0"]));
    assert_eq!(
        got,
        (Some(0), vec![format!("caller {}", std::process::id())])
    );
    drop(held);
    let got = outcome(&mut command("acquire", root.path(), &["0"]));
    assert_eq!(got, (Some(0), vec!["own".to_owned()]));
}

#[test]
fn a_lock_of_an_ancestor_further_up_counts_as_ours() {
    let root = node();
    let held = flock(root.path(), FlockArg::LockExclusive);
    let inner = command("acquire", root.path(), &["0"]);
    let mut outer = Command::new("/bin/sh");
    // The shell stays in between: it has another command to run afterwards.
    outer
        .args(["-c", "\"$@\"; exit $?", "sh"])
        .arg(inner.get_program())
        .args(inner.get_args());
    outer.envs(
        inner
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    assert_eq!(
        outcome(&mut outer),
        (Some(0), vec![format!("caller {}", std::process::id())])
    );
    drop(held);
}

#[test]
fn a_shared_lock_of_the_parent_gives_no_right_to_write() {
    let root = node();
    let held = flock(root.path(), FlockArg::LockShared);
    let (status, words) = outcome(&mut command("acquire", root.path(), &["0"]));
    assert_eq!(status, Some(REFUSED), "{words:?}");
    assert!(
        words.iter().all(|word| word.starts_with("error: ")),
        "{words:?}"
    );
    drop(held);
}

#[test]
fn a_strangers_lock_is_respected_and_then_waited_for() {
    let root = node();
    let mut stranger = Waiting::start(command("hold", root.path(), &[]));
    assert_eq!(stranger.hear(), "holding");
    // A sibling is no ancestor.
    let got = outcome(&mut command("acquire", root.path(), &["0"]));
    assert_eq!(
        got,
        (Some(REFUSED), vec![format!("busy {}", stranger.child.id())])
    );
    let mut patient = Waiting::start(command("acquire", root.path(), &["100"]));
    stranger.go_on();
    assert_eq!(patient.hear(), "own");
    assert_eq!(patient.status(), Some(0));
}

#[test]
fn a_strangers_lock_prevents_a_rewrite() {
    let root = node();
    let mut stranger = Waiting::start(command("hold", root.path(), &[]));
    assert_eq!(stranger.hear(), "holding");
    let mut writer = Waiting::start(command("rewrite", root.path(), &[]));
    // The writer waits far longer than this test takes, and can only go on when the stranger has let go.
    assert_eq!(config(root.path()), OLD);
    stranger.go_on();
    assert_eq!(writer.hear(), "rewritten");
    assert_eq!(writer.status(), Some(0));
    assert_eq!(config(root.path()), repaired(OLD));
}

#[test]
fn a_rewrite_under_the_parents_lock_leaves_it_held() {
    let root = node();
    let held = flock(root.path(), FlockArg::LockExclusive);
    let got = outcome(&mut command("rewrite", root.path(), &[]));
    assert_eq!(got, (Some(0), vec!["rewritten".to_owned()]));
    assert_eq!(config(root.path()), repaired(OLD));
    let got = outcome(&mut command("acquire", root.path(), &["0"]));
    assert_eq!(
        got,
        (Some(0), vec![format!("caller {}", std::process::id())])
    );
    drop(held);
}

#[test]
fn a_lock_that_the_parent_lets_go_stops_the_rename() {
    let root = node();
    let held = flock(root.path(), FlockArg::LockExclusive);
    let mut writer = Waiting::start(command("replace-later", root.path(), &[]));
    assert_eq!(writer.hear(), format!("Caller({})", std::process::id()));
    drop(held);
    writer.go_on();
    assert_eq!(writer.hear(), "lost");
    assert_eq!(writer.status(), Some(REFUSED));
    assert_eq!(config(root.path()), OLD);
    let names = std::fs::read_dir(root.path().join(CONFIG).parent().expect("directory"));
    assert_eq!(names.expect("directory").count(), 1);
}
