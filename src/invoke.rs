//! Runs `qm` and `pvesh`: a list of words, no shell, output passed through as it comes.
//!
//! The program is looked for in the absolute directories of `PATH`, as root's own environment has it. Relative ones and
//! empty ones are passed over: the current directory decides nothing here. Where there is no `PATH`, those of the
//! system are taken. Nothing else of the caller's environment is passed on. Standard input is empty: a command that asks must not take an answer that was meant for us.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::report::escape;

/// Where programs are looked for without a `PATH`.
const SYSTEM_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The environment of programs that are run for their work, and not in place of what Proxmox would run: nothing of the
/// caller's, such as `PERL5LIB` or `LD_PRELOAD` kept by `sudo -E`, reaches them.
pub const PLAIN_ENVIRONMENT: [(&str, &str); 3] =
    [("HOME", "/root"), ("LC_ALL", "C"), ("PATH", SYSTEM_PATH)];

/// Why a command did not do its work. Each text names the command as it can be typed.
#[derive(Debug, thiserror::Error)]
pub enum InvokeError {
    /// There is no such program.
    #[error(
        "there is no program '{program}' on this host, which belongs to Proxmox VE; the command is: {command}"
    )]
    NotFound {
        /// Its name.
        program: String,
        /// The command.
        command: String,
    },
    /// It could not be started.
    #[error("cannot start `{command}`")]
    Start {
        /// The command.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// It ended with another status than 0. Its own message went to standard error before.
    #[error("`{command}` {}", ending(*.status))]
    Failed {
        /// The command.
        command: String,
        /// How it ended.
        status: ExitStatus,
    },
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("failed with exit status {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended abnormally".to_owned(),
    }
}

/// Runs a command, its program first. Its standard output is passed on unless `quiet`, its standard error always.
pub fn run(words: &[String], quiet: bool) -> Result<(), InvokeError> {
    let command = || escape::command(words);
    let (program, arguments) = words
        .split_first()
        .map_or(("", &[][..]), |(first, rest)| (first, rest));
    let path = find(program, std::env::var_os("PATH").as_deref()).ok_or_else(|| {
        InvokeError::NotFound {
            program: program.to_owned(),
            command: command(),
        }
    })?;
    log::debug!("runs {} as {}", command(), path.display());
    // What we printed so far stands before what the command prints.
    let _ = io::stdout().flush();
    let mut plain = Command::new(&path);
    plain.env_clear().envs(PLAIN_ENVIRONMENT);
    if let Some(search) = std::env::var_os("PATH") {
        plain.env("PATH", search);
    }
    let status = plain
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(if quiet {
            Stdio::null()
        } else {
            Stdio::inherit()
        })
        .status()
        .map_err(|source| InvokeError::Start {
            command: command(),
            source,
        })?;
    if status.success() {
        Ok(())
    } else {
        Err(InvokeError::Failed {
            command: command(),
            status,
        })
    }
}

/// The first executable file of this name in the absolute directories of `path`.
fn find(program: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    if program.is_empty() || program.contains('/') {
        return None;
    }
    let path = path
        .filter(|path| !path.is_empty())
        .unwrap_or(OsStr::new(SYSTEM_PATH));
    std::env::split_paths(path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(program))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_absolute_directories_only() {
        let directory = tempfile::tempdir().expect("directory");
        let bin = directory.path().join("bin");
        std::fs::create_dir(&bin).expect("directory");
        std::fs::write(bin.join("qm"), "#!/bin/sh\n").expect("file");
        let path = |text: &str| find("qm", Some(OsStr::new(text)));
        let shown = bin.display().to_string();
        assert_eq!(path(&shown), None, "not executable");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(bin.join("qm"), mode).expect("mode");
        assert_eq!(path(&shown), Some(bin.join("qm")));
        assert_eq!(path(&format!(":.:bin:{shown}")), Some(bin.join("qm")));
        assert_eq!(path(":.:"), None);
        assert_eq!(find("bin/qm", Some(OsStr::new(&shown))), None);
        assert!(find("sh", None).is_some(), "the system's own path");
    }

    #[test]
    fn a_failure_names_the_command_and_how_it_ended() {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let error = run(&words(&["false", "a b", "--x"]), true).expect_err("it fails");
        assert_eq!(
            error.to_string(),
            "`false 'a b' --x` failed with exit status 1"
        );
        let error = run(&words(&["no-such-program-here", "1"]), true).expect_err("none");
        assert!(
            error
                .to_string()
                .ends_with("the command is: no-such-program-here 1")
        );
        run(&words(&["true"]), true).expect("true");
    }
}
