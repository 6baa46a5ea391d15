//! Runs a command on a FUSE tree again and again, and lets another file operation go wrong each time.

use std::fmt;
use std::io::Write as _;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::fuse::{Action, Mount};

/// More operations than any command here makes: a bound for the loop.
const MAX_OPERATIONS: usize = 5000;

/// How a command ended.
pub struct Outcome {
    /// Its status.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            status,
            stdout,
            stderr,
        } = self;
        write!(
            f,
            "{status}\n--- standard output\n{stdout}\n--- standard error\n{stderr}"
        )
    }
}

/// One attempt.
pub struct Point {
    /// What went wrong.
    pub action: Action,
    /// Which operation, with its number and name.
    pub operation: String,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at operation {}", self.action, self.operation)
    }
}

/// The command behind a gate: a shell that waits for a line and then becomes the command, with the same process ID.
/// So the mount can be told whom to watch before the first operation.
fn gated(command: &Command) -> Command {
    let mut gated = Command::new("/bin/sh");
    gated.args(["-c", "read -r line; exec \"$@\"", "sh"]);
    gated.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => gated.env(name, value),
            None => gated.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        gated.current_dir(directory);
    }
    gated
}

/// Runs a command that uses the mount, with its operations counted and its standard input at the end. One that hangs
/// gets an error from the file system, is killed and fails the test; the limit is far beyond what any run takes.
pub fn run(mount: &Mount, command: &Command) -> Outcome {
    let output = tempfile::tempdir().expect("directory");
    let file = |name| std::fs::File::create(output.path().join(name)).expect("file");
    let mut child = gated(command)
        .stdin(Stdio::piped())
        .stdout(file("stdout"))
        .stderr(file("stderr"))
        .spawn()
        .expect("the command starts");
    mount.watch(child.id());
    child
        .stdin
        .take()
        .expect("piped")
        .write_all(b"\n")
        .expect("the gate is there");
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut hung = false;
    let status = loop {
        if let Some(status) = child.try_wait().expect("our child") {
            break status;
        }
        if Instant::now() > deadline && !hung {
            hung = true;
            mount.abort();
            child.kill().expect("our child");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = |name| {
        let bytes = std::fs::read(output.path().join(name)).expect("output");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let outcome = Outcome {
        status,
        stdout: text("stdout"),
        stderr: text("stderr"),
    };
    assert!(!hung, "{command:?} hung after {:?}: {outcome}", mount.log());
    outcome
}

/// For each action, and for the first, second, third ... operation: prepares a mount, runs the command with that
/// operation going wrong, and lets `check` judge. Ends when a run makes no more operations. Returns the number of
/// points that were tried.
pub fn at_every_operation(
    actions: &[Action],
    prepare: impl Fn() -> Mount,
    command: impl Fn(&Mount) -> Command,
    check: impl Fn(&Mount, &Point, &Outcome),
) -> usize {
    let mut tried = 0;
    for &action in actions {
        for at in 1.. {
            assert!(
                at < MAX_OPERATIONS,
                "the command makes ever more operations"
            );
            let mount = prepare();
            mount.arm(at, action);
            let outcome = run(&mount, &command(&mount));
            let log = mount.log();
            mount.disarm();
            let Some(operation) = log.get(at - 1) else {
                assert!(
                    outcome.status.code().is_some(),
                    "without a fault it ends by itself: {outcome}"
                );
                break;
            };
            let point = Point {
                action,
                operation: format!("{at}: {operation}"),
            };
            check(&mount, &point, &outcome);
            tried += 1;
        }
    }
    tried
}
