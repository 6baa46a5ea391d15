//! Runs programs and says what they cost.

#![allow(dead_code, reason = "each bench needs a part of it")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

/// A program and its arguments.
#[derive(Clone)]
pub struct Program {
    /// What the table calls it.
    pub name: String,
    /// The words of its command line.
    pub words: Vec<String>,
}

impl Program {
    /// A program by its name in the table and its command line.
    pub fn new(name: &str, words: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            words: words.iter().map(|word| (*word).to_owned()).collect(),
        }
    }

    /// The same program with one word in place of another.
    pub fn with(&self, old: &str, new: &str) -> Self {
        let mut changed = self.clone();
        for word in &mut changed.words {
            if word == old {
                new.clone_into(word);
            }
        }
        changed
    }

    /// Runs it once, which has to succeed.
    pub fn run(&self) {
        let status = self.command().status().expect("the program runs");
        assert!(status.success(), "{}: {status}", self.name);
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        quiet(&mut command);
        command
    }

    fn after(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(&self.words);
        quiet(&mut command);
        command
    }
}

/// As Proxmox calls a hook: no input, output to somewhere else, one locale.
fn quiet(command: &mut Command) {
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
}

/// Wall times of each program, sorted: one run of each per round, so that whatever else the machine does hits all alike.
///
/// What a program finds in the processor's caches depends on the one before it. So the order changes: over the rounds,
/// with a prime number of programs, each runs after each other equally often.
pub fn wall(programs: &[Program], rounds: usize) -> Vec<Vec<Duration>> {
    let count = programs.len();
    let mut times = vec![Vec::with_capacity(rounds); count];
    for round in 0..=rounds {
        let stride = 1 + round % (count - 1);
        for place in 0..count {
            let at = place * stride % count;
            let mut command = programs[at].command();
            let start = Instant::now();
            command.status().expect("the program runs");
            // The first round fills the caches.
            if round > 0 {
                times[at].push(start.elapsed());
            }
        }
    }
    for times in &mut times {
        times.sort_unstable();
    }
    times
}

/// The value below which `part` of the sorted values lie.
pub fn quantile(sorted: &[Duration], part: f64) -> Duration {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a few hundred values"
    )]
    let at = (sorted.len() as f64 * part) as usize;
    sorted[at.min(sorted.len() - 1)]
}

/// System calls, those of threads and children included, as `strace` counts them.
pub fn system_calls(program: &Program) -> Option<u64> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a path in UTF-8");
    let status = program.after(&["strace", "-f", "-c", "-o", path]).status();
    status.ok()?;
    let text = std::fs::read_to_string(file.path()).ok()?;
    let total = text.lines().find(|line| line.ends_with(" total"))?;
    // Share, seconds, microseconds per call, calls, and errors where there are some.
    total.split_whitespace().nth(3)?.parse().ok()
}

/// Instructions of the program's own process in user space, as callgrind counts them.
pub fn instructions(program: &Program) -> Option<u64> {
    let out = "--callgrind-out-file=/dev/null";
    let log = tempfile::NamedTempFile::new().expect("a file");
    let to = format!("--log-file={}", log.path().display());
    let words = [
        "valgrind",
        "--tool=callgrind",
        "--trace-children=no",
        out,
        &to,
    ];
    program.after(&words).status().ok()?;
    let text = std::fs::read_to_string(log.path()).ok()?;
    let collected = text.lines().find(|line| line.contains("Collected : "))?;
    collected.rsplit(' ').next()?.parse().ok()
}

/// What one run used.
#[derive(Clone, Copy)]
pub struct Usage {
    /// CPU time, of user and system together.
    pub cpu: Duration,
    /// Peak resident memory in KiB; never below that of [`runner`] itself.
    pub peak: u64,
}

/// The argument with which a bench's program is its own [`runner`].
const RUNNER: &str = "--run-one";

/// CPU time and peak memory of one run.
///
/// The kernel counts the memory of a process from before its `exec` too, which is the memory of its parent. So the parent
/// has to be a small one: this program, started anew.
pub fn usage(program: &Program) -> Usage {
    let own = std::env::current_exe().expect("this program");
    let own = own.to_str().expect("a path in UTF-8");
    let mut command = program.after(&[own, RUNNER]);
    let output = command.stderr(Stdio::piped()).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().last().unwrap_or_default();
    let mut numbers = line
        .split(' ')
        .map(|number| number.parse().expect("numbers"));
    let mut next = || numbers.next().expect("two numbers");
    Usage {
        cpu: Duration::from_micros(next()),
        peak: next(),
    }
}

/// Runs one program and prints what it used, if this process was started for that. To be called first.
pub fn runner() {
    let words: Vec<String> = std::env::args().collect();
    if words.get(1).is_none_or(|word| word != RUNNER) {
        return;
    }
    let program = Program {
        name: String::new(),
        words: words[2..].to_vec(),
    };
    program.command().status().expect("the program runs");
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("usage");
    let microseconds = |time: nix::sys::time::TimeVal| time.tv_sec() * 1_000_000 + time.tv_usec();
    let cpu = microseconds(usage.user_time()) + microseconds(usage.system_time());
    eprintln!("{cpu} {}", usage.max_rss());
    std::process::exit(0);
}

/// Lines that `strace` prints of calls that name a file.
pub fn trace(program: &Program) -> Option<Vec<String>> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a path in UTF-8");
    let words = [
        "strace",
        "-f",
        "-qq",
        "-y",
        "-e",
        "trace=openat,openat2,getdents64,pread64",
        "-o",
        path,
    ];
    program.after(&words).status().ok()?;
    let text = std::fs::read_to_string(file.path()).ok()?;
    Some(text.lines().map(str::to_owned).collect())
}

/// The files that a trace shows opened below a root, in order, and the bytes of configuration space that were read.
pub fn reads(lines: &[String], root: &Path) -> (Vec<String>, u64) {
    let root = root.canonicalize().expect("the root").display().to_string();
    let mut files = Vec::new();
    let mut bytes = 0;
    for line in lines {
        let Some((call, result)) = line.rsplit_once(" = ") else {
            continue;
        };
        if call.contains("pread64(") && call.contains("/config>") {
            bytes += result.parse::<u64>().unwrap_or(0);
        } else if let Some((_, path)) = result.split_once('<')
            && let Some(path) = path.trim_end_matches('>').strip_prefix(&root)
        {
            files.push(path.to_owned());
        }
    }
    (files, bytes)
}
