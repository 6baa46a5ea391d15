//! Starts a VM again after a hook has repaired its configuration and stopped the start.
//!
//! The hook runs inside the start task, which holds the VM's lock: the new start must come from outside and a little
//! later. A transient systemd timer does that; it survives the task, and `systemctl` and the journal show it.
//!
//! So that no loop can arise, at most one such restart per VM is arranged until a start went through: a mark in
//! `/run/pve-atomicops`, which a reboot removes too. Whether a VM may be restarted at all (HA restarts its own) is
//! the caller's decision.

use std::io;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::store::Stamp;
use crate::store::tree::{StepError, Tree};
use crate::vmconf::Vmid;

/// How long after the hook the start is tried. `qm start` itself waits 10 s for the VM's lock.
const DELAY: &str = "2s";

/// How often a running command is looked after.
const POLL: Duration = Duration::from_millis(20);

/// What came of arranging a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arranged {
    /// It will be tried.
    Scheduled,
    /// One was tried already and no start went through since.
    AlreadyTried,
}

/// Why no restart could be arranged.
#[derive(Debug, thiserror::Error)]
pub enum RestartError {
    /// The mark could not be set, so that a loop could not be excluded.
    #[error("cannot note that a restart is tried")]
    Stamp(#[source] StepError),
    /// The command could not be run.
    #[error("cannot run {program}")]
    Run {
        /// Which.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// It failed.
    #[error("{program} failed: {status}")]
    Failed {
        /// Which.
        program: String,
        /// How.
        status: ExitStatus,
    },
    /// It did not end in time and was killed.
    #[error("{0} did not end in time")]
    TimedOut(String),
}

/// The command that arranges the start, as program and arguments.
pub fn command(vmid: Vmid) -> Vec<String> {
    [
        "/usr/bin/systemd-run",
        "--quiet",
        "--collect",
        &format!("--unit=pve-atomicops-start-{vmid}"),
        &format!("--description=Start VM {vmid} after its configuration was repaired"),
        &format!("--on-active={DELAY}"),
        // Timers may be a minute late by default.
        "--timer-property=AccuracySec=100ms",
        "--",
        "/usr/sbin/qm",
        "start",
        &vmid.to_string(),
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Arranges one start of the VM through `run`, which gets [`command`]; see [`run`] for the real one.
pub fn arrange(
    tree: &Tree,
    vmid: Vmid,
    run: impl FnOnce(&[String]) -> Result<(), RestartError>,
) -> Result<Arranged, RestartError> {
    let stamp = stamp(tree, vmid).map_err(RestartError::Stamp)?;
    if !stamp.set().map_err(RestartError::Stamp)? {
        return Ok(Arranged::AlreadyTried);
    }
    if let Err(error) = run(&command(vmid)) {
        if let Err(error) = stamp.clear() {
            log::debug!("the mark of a restart that was not arranged stays: {error}");
        }
        return Err(error);
    }
    Ok(Arranged::Scheduled)
}

/// Notes that a start went through: from now on a restart may be arranged again.
pub fn started(tree: &Tree, vmid: Vmid) -> Result<(), StepError> {
    stamp(tree, vmid)?.clear()
}

fn stamp(tree: &Tree, vmid: Vmid) -> Result<Stamp, StepError> {
    Stamp::new(tree, &format!("restart-{vmid}"))
}

/// Runs a command of the host and waits for it until the deadline. It gets no input and a plain environment; what it
/// has to say about a failure goes to our standard error.
pub fn run(command: &[String], deadline: Instant) -> Result<(), RestartError> {
    let (program, arguments) = command
        .split_first()
        .map_or(("", command), |(p, a)| (p.as_str(), a));
    let failed = |source| RestartError::Run {
        program: program.to_owned(),
        source,
    };
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(crate::invoke::PLAIN_ENVIRONMENT)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(failed)?;
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return if status.success() {
                Ok(())
            } else {
                Err(RestartError::Failed {
                    program: program.to_owned(),
                    status,
                })
            };
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            child.kill().and_then(|()| child.wait()).map_err(failed)?;
            return Err(RestartError::TimedOut(program.to_owned()));
        }
        std::thread::sleep(left.min(POLL));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vmid() -> Vmid {
        Vmid::new(101).expect("a VM ID")
    }

    fn words(text: &[&str]) -> Vec<String> {
        text.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn the_start_comes_from_a_timer_of_its_own() {
        assert_eq!(
            command(vmid()),
            [
                "/usr/bin/systemd-run",
                "--quiet",
                "--collect",
                "--unit=pve-atomicops-start-101",
                "--description=Start VM 101 after its configuration was repaired",
                "--on-active=2s",
                "--timer-property=AccuracySec=100ms",
                "--",
                "/usr/sbin/qm",
                "start",
                "101",
            ]
        );
    }

    #[test]
    fn one_restart_is_arranged_until_a_start_went_through() {
        let root = tempfile::tempdir().expect("directory");
        let tree = Tree::open(root.path()).expect("tree");
        let mut calls = Vec::new();
        let mut arrange = |vmid| {
            arrange(&tree, vmid, |command| {
                calls.push(command.last().cloned());
                Ok(())
            })
            .expect("arranged")
        };
        let other = Vmid::new(102).expect("a VM ID");
        assert_eq!(arrange(vmid()), Arranged::Scheduled);
        assert_eq!(arrange(vmid()), Arranged::AlreadyTried);
        assert_eq!(arrange(other), Arranged::Scheduled);
        started(&tree, vmid()).expect("noted");
        started(&tree, vmid()).expect("nothing left to do");
        assert_eq!(arrange(vmid()), Arranged::Scheduled);
        assert_eq!(arrange(other), Arranged::AlreadyTried);
        let expected = ["101", "102", "101"].map(|vmid| Some(vmid.to_owned()));
        assert_eq!(calls, expected);
    }

    #[test]
    fn a_restart_that_could_not_be_arranged_does_not_count() {
        let root = tempfile::tempdir().expect("directory");
        let tree = Tree::open(root.path()).expect("tree");
        let deadline = Instant::now() + Duration::from_secs(60);
        let failing = |_: &[String]| run(&words(&["/bin/false"]), deadline);
        let error = arrange(&tree, vmid(), failing).expect_err("failed");
        assert!(matches!(error, RestartError::Failed { .. }), "{error}");
        let missing = |_: &[String]| run(&words(&["/nonexistent/program"]), deadline);
        let error = arrange(&tree, vmid(), missing).expect_err("failed");
        assert!(matches!(error, RestartError::Run { .. }), "{error}");
        let working = |_: &[String]| run(&words(&["/bin/true"]), deadline);
        assert_eq!(
            arrange(&tree, vmid(), working).expect("arranged"),
            Arranged::Scheduled
        );
    }

    #[test]
    fn a_command_that_hangs_is_ended_at_the_deadline() {
        let error = run(&words(&["/bin/sleep", "3600"]), Instant::now()).expect_err("too slow");
        assert!(matches!(error, RestartError::TimedOut(_)), "{error}");
    }

    #[test]
    fn nothing_to_run_is_an_error() {
        let error = run(&[], Instant::now()).expect_err("no program");
        assert!(matches!(error, RestartError::Run { .. }), "{error}");
    }
}
