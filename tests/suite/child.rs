//! Processes that the tests start: this test binary again, in a role.
//!
//! A process of its own is needed wherever one is killed, or holds a lock as another process. Each role gets the
//! tree's root and further words, says what came of it in lines that begin with `> `, and exits with [`REFUSED`] if
//! the store refused.

use std::io::{BufRead as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use pve_atomicops::store::journal::{LineChange, Origin};
use pve_atomicops::store::lock::{Holder, LockError, VmLock};
use pve_atomicops::store::replace::{Cause, Configs, ReplaceError};
use pve_atomicops::store::tree::Tree;
use pve_atomicops::store::{Rewrite, StoreError, rewrite};
use pve_atomicops::vmconf::Vmid;

/// The exit status of a role whose change the store refused.
pub const REFUSED: i32 = 3;

/// How the variables are called that carry the role to the new process.
const ROLE: &str = "PVE_ATOMICOPS_TEST_ROLE";

/// Where VM 101's lock file is, below the root.
pub const LOCK: &str = "run/lock/qemu-server/lock-101.conf";

/// Where VM 101's configuration is, below the root.
pub const CONFIG: &str = "etc/pve/nodes/pve1/qemu-server/101.conf";

/// The VM of these tests.
pub fn vmid() -> Vmid {
    Vmid::new(101).expect("a VM ID")
}

/// A command that plays a role. The words may not contain spaces.
pub fn command(role: &str, root: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test binary"));
    let line = [&[role, root.to_str().expect("UTF-8")], words]
        .concat()
        .join(" ");
    command
        .args(["--exact", "child::entry", "--nocapture", "--test-threads=1"])
        .env(ROLE, line);
    command
}

/// What a role said.
pub fn said(stdout: &str) -> Vec<&str> {
    stdout
        .lines()
        .filter_map(|line| line.strip_prefix("> "))
        .collect()
}

/// Not a test: the entry of the processes above. Without a role there is nothing to do.
#[test]
fn entry() {
    let Ok(line) = std::env::var(ROLE) else {
        return;
    };
    // The test harness has begun a line with this test's name.
    println!();
    let words: Vec<_> = line.split(' ').collect();
    let status = match *words.as_slice() {
        ["rewrite", root] => rewrite_once(&tree(root)),
        ["acquire", root, seconds] => acquire(&tree(root), seconds),
        ["hold", root] => hold(root),
        ["replace-later", root] => replace_later(&tree(root)),
        ["count-as-store", root, key, times] => count_as_store(&tree(root), key, times),
        ["count-as-qm", root, key, times] => count_as_qm(Path::new(root), key, times),
        _ => panic!("no such role: {line}"),
    };
    std::process::exit(status);
}

fn say(text: impl std::fmt::Display) {
    println!("> {text}");
    std::io::stdout().flush().expect("standard output");
}

fn wait_for_line() {
    std::io::stdin()
        .lock()
        .read_line(&mut String::new())
        .expect("standard input");
}

fn tree(root: &str) -> Tree {
    Tree::open(Path::new(root)).expect("tree")
}

fn number(text: &str) -> u32 {
    text.parse().expect("a number")
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(100)
}

/// The change that all of these tests make: the card's first function alone.
pub fn repaired(config: &[u8]) -> Vec<u8> {
    let text = String::from_utf8(config.to_vec()).expect("UTF-8");
    text.replace("0000:0b:00,", "0000:0b:00.0,").into_bytes()
}

/// The lines in which two configurations with equally many lines differ.
pub fn changes(before: &[u8], after: &[u8]) -> Vec<LineChange> {
    let lines = |text: &[u8]| -> Vec<Vec<u8>> {
        text.split(|&byte| byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect()
    };
    let (before, after) = (lines(before), lines(after));
    assert_eq!(before.len(), after.len());
    std::iter::zip(before, after)
        .zip(1..)
        .filter(|((old, new), _)| old != new)
        .map(|((old, new), line)| LineChange {
            key: String::from_utf8_lossy(old.split(|&b| b == b':').next().unwrap_or_default())
                .into_owned(),
            line,
            old: Some(old),
            new: Some(new),
        })
        .collect()
}

/// Reads the configuration, repairs it, and says `rewritten`, `nothing to do` or `refused: ...`.
fn rewrite_once(tree: &Tree) -> i32 {
    let before = match Configs::open(tree)
        .map_err(|error| error.to_string())
        .and_then(|configs| {
            configs
                .read(vmid(), 4 << 20)
                .map_err(|error| error.to_string())
        }) {
        Ok(before) => before,
        Err(error) => {
            say(format_args!("refused: {error}"));
            return REFUSED;
        }
    };
    let after = repaired(&before);
    if after == before {
        say("nothing to do");
        return 0;
    }
    let change = Rewrite {
        vmid: vmid(),
        node: "pve1",
        origin: Origin::Hook,
        undoes: None,
        before: &before,
        after: &after,
        changes: changes(&before, &after),
    };
    match rewrite(tree, change, far()) {
        Ok(rewritten) => {
            say("rewritten");
            for doubt in rewritten.doubts {
                say(format_args!("doubt: {:#}", anyhow::Error::from(doubt)));
            }
            0
        }
        Err(error) => {
            say(format_args!("refused: {:#}", anyhow::Error::from(error)));
            REFUSED
        }
    }
}

/// Takes the VM's lock and says who holds it.
fn acquire(tree: &Tree, seconds: &str) -> i32 {
    let deadline = Instant::now() + Duration::from_secs(number(seconds).into());
    match VmLock::acquire(tree, vmid(), deadline) {
        Ok(lock) => {
            lock.confirm().expect("held");
            match lock.holder() {
                Holder::Own => say("own"),
                Holder::Caller(pid) => say(format_args!("caller {pid}")),
            }
            0
        }
        Err(LockError::Busy {
            holder: Some(pid), ..
        }) => {
            say(format_args!("busy {pid}"));
            REFUSED
        }
        Err(error) => {
            say(format_args!("error: {error}"));
            REFUSED
        }
    }
}

/// An exclusive flock on VM 101's lock file, as Proxmox takes it.
pub fn flock(root: &Path, kind: FlockArg) -> Flock<OwnedFd> {
    let path = root.join(LOCK);
    std::fs::create_dir_all(path.parent().expect("directory")).expect("directory");
    let file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .expect("lock file");
    Flock::lock(OwnedFd::from(file), kind)
        .map_err(|(_, errno)| errno)
        .expect("lock")
}

/// Holds the VM's lock until a line comes.
fn hold(root: &str) -> i32 {
    let held = flock(Path::new(root), FlockArg::LockExclusive);
    say("holding");
    wait_for_line();
    drop(held);
    0
}

/// Takes the lock, waits for a line, and only then replaces the configuration.
fn replace_later(tree: &Tree) -> i32 {
    let lock = VmLock::acquire(tree, vmid(), Instant::now()).expect("lock");
    let configs = Configs::open(tree).expect("configurations");
    let before = configs.read(vmid(), 4 << 20).expect("configuration");
    say(format_args!("{:?}", lock.holder()));
    wait_for_line();
    match configs.replace(vmid(), &before, &repaired(&before), &lock) {
        Ok(_) => {
            say("replaced");
            0
        }
        Err(ReplaceError {
            cause: Cause::Lock(LockError::Lost { .. }),
            left_behind: None,
        }) => {
            say("lost");
            REFUSED
        }
        Err(error) => panic!("{:#}", anyhow::Error::from(error)),
    }
}

/// Adds one to the number on the line of `key`.
fn incremented(config: &[u8], key: &str) -> Vec<u8> {
    let text = std::str::from_utf8(config).expect("UTF-8");
    let mut found = false;
    let text: String = text
        .lines()
        .map(|line| {
            match line
                .strip_prefix(key)
                .and_then(|rest| rest.strip_prefix(": "))
            {
                Some(count) => {
                    found = true;
                    format!("{key}: {}\n", number(count) + 1)
                }
                None => format!("{line}\n"),
            }
        })
        .collect();
    assert!(found, "{key} in {text}");
    text.into_bytes()
}

/// Counts up through the store. Reads without the lock, as the hook does, and so is now and then refused.
fn count_as_store(tree: &Tree, key: &str, times: &str) -> i32 {
    let mut refused = 0;
    let mut done = 0;
    while done < number(times) {
        let configs = Configs::open(tree).expect("configurations");
        let before = configs.read(vmid(), 4 << 20).expect("configuration");
        let after = incremented(&before, key);
        let change = Rewrite {
            vmid: vmid(),
            node: "pve1",
            origin: Origin::Hook,
            undoes: None,
            before: &before,
            after: &after,
            changes: changes(&before, &after),
        };
        match rewrite(tree, change, far()) {
            Ok(rewritten) => {
                assert!(rewritten.doubts.is_empty(), "{:?}", rewritten.doubts);
                done += 1;
            }
            Err(StoreError::Replace(ReplaceError {
                cause: Cause::Changed(_),
                ..
            })) => refused += 1,
            Err(error) => panic!("{:#}", anyhow::Error::from(error)),
        }
    }
    say(format_args!("{done} done, {refused} refused"));
    0
}

/// Counts up as `qm set` changes a configuration: everything under the lock.
fn count_as_qm(root: &Path, key: &str, times: &str) -> i32 {
    let config: PathBuf = root.join("etc/pve/qemu-server/101.conf");
    let temporary = root.join(format!(
        "etc/pve/qemu-server/101.conf.tmp.{}",
        std::process::id()
    ));
    for _ in 0..number(times) {
        let held = flock(root, FlockArg::LockExclusive);
        let before = std::fs::read(&config).expect("configuration");
        std::fs::write(&temporary, incremented(&before, key)).expect("temporary file");
        std::fs::rename(&temporary, &config).expect("renamed");
        drop(held);
        std::thread::yield_now();
    }
    say("done");
    0
}
