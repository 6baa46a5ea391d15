//! Runs further hookscripts, since Proxmox allows only one per VM.
//!
//! Each is called as Proxmox would call it: `FILE VMID PHASE`, the same environment and working directory, output
//! passed through, standard input empty, no limit on its run time. In pre-start the first that fails ends the chain
//! and the start; in the other phases a failure is a warning and the next one runs, as Proxmox itself does.
//!
//! A script runs as root, so it must be one that only root could have put there: a regular, executable file owned by
//! root that neither group nor others may write, in directories of which the same holds (or that are sticky like
//! /tmp, where a file of root's cannot be exchanged). Checking the whole path is what makes it safe to start the
//! script by its name afterwards. Starting it through an open descriptor instead would hand the script a
//! `/proc/self/fd/N` as its own name, by which many look for their companions.
//!
//! Links are followed first, and the file they lead to is checked and run. Does not read the storage configuration, and
//! knows no other root than the system's: the caller's function turns volume IDs and paths into paths of files.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;

use crate::vmconf::{Phase, Vmid};

/// Where a script without a `#!` line goes, as with `execvp(3)`, which Proxmox uses.
const SHELL: &str = "/bin/sh";

/// How often a script that is open for writing is tried, and the pause between.
const BUSY_ATTEMPTS: usize = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// Any error of the caller's function that resolves volume IDs and paths.
pub type ResolveError = Box<dyn std::error::Error + Send + Sync>;

/// Why a script was not run.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// It is neither an absolute path nor a volume ID that leads to one.
    #[error("'{0}' is neither an absolute path nor a volume ID")]
    NoPath(String),
    /// Its volume ID or path leads nowhere.
    #[error("'{script}' cannot be resolved")]
    Unresolved {
        /// The volume ID or path.
        script: String,
        /// Why.
        source: ResolveError,
    },
    /// It, or a directory above it, cannot be examined.
    #[error("cannot examine {}", path.display())]
    Examine {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not a file that may be run.
    #[error("{} {problem}", path.display())]
    Unfit {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it, as a predicate.
        problem: &'static str,
    },
    /// It could not be started.
    #[error("cannot start {}", path.display())]
    Start {
        /// The script.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A link of the chain that went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It was not run.
    #[error("the chained hookscript was not run")]
    NotRun(#[source] ScriptError),
    /// It ended with another status than 0.
    #[error("{} {}", path.display(), ending(*.status))]
    Failed {
        /// The script.
        path: PathBuf,
        /// How it ended.
        status: ExitStatus,
    },
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended abnormally".to_owned(),
    }
}

impl Failure {
    /// The exit status that stands for this failure: the script's own, 128 + n for signal n, 1 if it was not run.
    pub fn exit_status(&self) -> u8 {
        let Self::Failed { status, .. } = self else {
            return 1;
        };
        let number = status
            .code()
            .or_else(|| status.signal().map(|signal| 128 + signal));
        number
            .and_then(|number| u8::try_from(number).ok())
            .filter(|&number| number != 0)
            .unwrap_or(1)
    }
}

/// Runs the scripts in order. An error ends the chain, and with it the start; it can only come in pre-start. In the
/// other phases `warn` gets each failure, right when it happens.
///
/// `scripts` are absolute paths or volume IDs; `resolve` tells the absolute path where each lies. `own` are files that lead back
/// here, such as the VM's own hookscript; they are never run, nor is this program itself.
pub fn run(
    scripts: &[String],
    vmid: Vmid,
    phase: Phase,
    own: &[PathBuf],
    resolve: impl Fn(&str) -> Result<PathBuf, ResolveError>,
    mut warn: impl FnMut(&Failure),
) -> Result<(), Failure> {
    for script in scripts {
        if let Err(failure) = run_one(script, vmid, phase, own, &resolve) {
            if phase == Phase::PreStart {
                return Err(failure);
            }
            warn(&failure);
        }
    }
    Ok(())
}

fn run_one(
    script: &str,
    vmid: Vmid,
    phase: Phase,
    own: &[PathBuf],
    resolve: &impl Fn(&str) -> Result<PathBuf, ResolveError>,
) -> Result<(), Failure> {
    let path = locate(script, resolve)
        .and_then(|path| examine(&path, own))
        .map_err(Failure::NotRun)?;
    // What we printed so far stands before what the script prints.
    let _ = io::stdout().flush();
    let status = start(&path, vmid, phase).map_err(|source| {
        Failure::NotRun(ScriptError::Start {
            path: path.clone(),
            source,
        })
    })?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::Failed { path, status })
    }
}

/// Whether a script at this path would be run: for those who are about to put it into a chain.
pub fn check(path: &Path) -> Result<(), ScriptError> {
    examine(path, &[]).map(|_| ())
}

fn start(path: &Path, vmid: Vmid, phase: Phase) -> io::Result<ExitStatus> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match call(path.as_os_str(), None, vmid, phase) {
            // Someone has just written it, or a process that they started has not yet closed it.
            Err(error) if is(&error, Errno::ETXTBSY) && attempt < BUSY_ATTEMPTS => {
                std::thread::sleep(BUSY_PAUSE);
            }
            Err(error) if is(&error, Errno::ENOEXEC) => {
                return call(OsStr::new(SHELL), Some(path), vmid, phase);
            }
            other => return other,
        }
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}

/// The standard library gives the child an empty signal mask and the default action for SIGPIPE, which it ignores in
/// our own process; all descriptors that we opened are closed on exec.
fn call(
    program: &OsStr,
    script: Option<&Path>,
    vmid: Vmid,
    phase: Phase,
) -> io::Result<ExitStatus> {
    Command::new(program)
        .args(script)
        .arg(vmid.to_string())
        .arg(phase.to_string())
        .stdin(Stdio::null())
        .status()
}

fn locate(
    script: &str,
    resolve: &impl Fn(&str) -> Result<PathBuf, ResolveError>,
) -> Result<PathBuf, ScriptError> {
    if !script.starts_with('/') && !script.contains(':') {
        return Err(ScriptError::NoPath(script.to_owned()));
    }
    let path = resolve(script).map_err(|source| ScriptError::Unresolved {
        script: script.to_owned(),
        source,
    })?;
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(ScriptError::NoPath(script.to_owned()))
    }
}

/// Checks that only root could have put this file there, and returns its path without links.
fn examine(path: &Path, own: &[PathBuf]) -> Result<PathBuf, ScriptError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        |source| ScriptError::Examine { path, source }
    };
    let path = path.canonicalize().map_err(at(path))?;
    let unfit = |path: &Path, problem| ScriptError::Unfit {
        path: path.to_owned(),
        problem,
    };

    let file = path.symlink_metadata().map_err(at(&path))?;
    if !file.is_file() {
        return Err(unfit(&path, "is not a regular file"));
    }
    if file.uid() != 0 {
        return Err(unfit(&path, "does not belong to root"));
    }
    if file.mode() & 0o022 != 0 {
        return Err(unfit(&path, "can be written by users other than root"));
    }
    if file.mode() & 0o111 == 0 {
        return Err(unfit(&path, "is not executable"));
    }
    for directory in path.ancestors().skip(1) {
        let found = directory.symlink_metadata().map_err(at(directory))?;
        if found.uid() != 0 {
            return Err(unfit(directory, "does not belong to root"));
        }
        let sticky = found.mode() & 0o1000 != 0;
        if found.mode() & 0o022 != 0 && !sticky {
            return Err(unfit(directory, "can be written by users other than root"));
        }
    }
    let program = std::env::current_exe().ok();
    for ours in own.iter().chain(&program) {
        let same = ours
            .metadata()
            .is_ok_and(|ours| (ours.dev(), ours.ino()) == (file.dev(), file.ino()));
        if same {
            return Err(unfit(&path, "would call this program again without end"));
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    const OTHERS: &str = "can be written by users other than root";

    struct Bench {
        directory: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                directory: tempfile::tempdir().expect("directory"),
            }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        /// A script that appends a line to the file `log` beside it.
        fn script(&self, name: &str, body: &str) -> String {
            let path = self.path(name);
            let log = self.path("log");
            let text = format!(
                "#!/bin/sh\necho {name} \"$@\" >> {}\n{body}\n",
                log.display()
            );
            std::fs::write(&path, text).expect("script");
            self.mode(name, 0o755);
            path.to_str().expect("UTF-8").to_owned()
        }

        fn mode(&self, name: &str, mode: u32) {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(self.path(name), mode).expect("mode");
        }

        fn log(&self) -> String {
            std::fs::read_to_string(self.path("log")).unwrap_or_default()
        }

        fn run(&self, scripts: &[String], phase: Phase) -> (Result<(), Failure>, Vec<String>) {
            let vmid = Vmid::new(101).expect("a VM ID");
            let mut warnings = Vec::new();
            let resolve = |volume: &str| match volume.strip_prefix("local:snippets/") {
                Some(name) => Ok(self.path(name)),
                None if volume.starts_with('/') => Ok(PathBuf::from(volume)),
                None if volume == "odd:x" => Ok(PathBuf::from("relative")),
                None => Err("no such storage".into()),
            };
            let result = run(
                scripts,
                vmid,
                phase,
                &[self.path("own")],
                resolve,
                |failure| {
                    warnings.push(failure.to_string());
                },
            );
            (result, warnings)
        }

        fn refusal(&self, script: &str) -> ScriptError {
            match self.run(&[script.to_owned()], Phase::PreStart).0 {
                Err(failure @ Failure::NotRun(_)) => {
                    assert_eq!(failure.exit_status(), 1);
                    let Failure::NotRun(error) = failure else {
                        unreachable!()
                    };
                    error
                }
                other => panic!("{script}: {other:?}"),
            }
        }
    }

    #[test]
    fn scripts_run_in_order_with_the_same_arguments() {
        let bench = Bench::new();
        bench.script("second", "");
        let scripts = [
            bench.script("first", ""),
            "local:snippets/second".to_owned(),
        ];
        for phase in [
            Phase::PreStart,
            Phase::PostStart,
            Phase::PreStop,
            Phase::PostStop,
        ] {
            let (result, warnings) = bench.run(&scripts, phase);
            assert!(
                result.is_ok() && warnings.is_empty(),
                "{result:?} {warnings:?}"
            );
            assert!(
                bench
                    .log()
                    .ends_with(&format!("first 101 {phase}\nsecond 101 {phase}\n"))
            );
        }
        assert_eq!(bench.log().lines().count(), 8);
    }

    #[test]
    fn the_first_failure_ends_a_start_with_its_status() {
        let bench = Bench::new();
        let scripts = [
            bench.script("a", ""),
            bench.script("b", "exit 7"),
            bench.script("c", "exit 8"),
        ];
        let (result, _) = bench.run(&scripts, Phase::PreStart);
        assert_eq!(result.expect_err("failed").exit_status(), 7);
        assert_eq!(bench.log(), "a 101 pre-start\nb 101 pre-start\n");
        let scripts = [bench.script("d", "kill -9 $$")];
        let failure = bench.run(&scripts, Phase::PreStart).0.expect_err("killed");
        assert_eq!(failure.exit_status(), 128 + 9);
        assert!(
            failure.to_string().ends_with("was ended by signal 9"),
            "{failure}"
        );
    }

    #[test]
    fn in_other_phases_failures_are_warnings() {
        let bench = Bench::new();
        let missing = bench.path("missing").to_str().expect("UTF-8").to_owned();
        let scripts = [bench.script("a", "exit 7"), missing, bench.script("b", "")];
        for phase in [Phase::PostStart, Phase::PreStop, Phase::PostStop] {
            let (result, warnings) = bench.run(&scripts, phase);
            assert!(result.is_ok(), "{result:?}");
            assert_eq!(warnings.len(), 2, "{warnings:?}");
            assert!(
                bench
                    .log()
                    .ends_with(&format!("a 101 {phase}\nb 101 {phase}\n"))
            );
        }
    }

    #[test]
    fn a_script_gets_no_input_and_default_signal_actions() {
        let bench = Bench::new();
        let seen = bench.path("seen");
        let body = format!(
            "{{ readlink /proc/self/fd/0; grep -E '^Sig(Blk|Ign):' /proc/self/status; \
             readlink /proc/$$/fd/* || true; }} > {}",
            seen.display()
        );
        // A descriptor of ours that must not be passed on.
        let open = std::fs::File::open("/dev/zero").expect("file");
        let scripts = [bench.script("a", &body)];
        let (result, _) = bench.run(&scripts, Phase::PreStart);
        assert!(result.is_ok(), "{result:?}");
        drop(open);
        let seen = std::fs::read_to_string(seen).expect("seen");
        let bits = |name: &str| {
            let line = seen
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .expect("line");
            u64::from_str_radix(line.trim(), 16).expect("hexadecimal")
        };
        assert!(seen.starts_with("/dev/null\n"), "{seen}");
        assert!(!seen.contains("/dev/zero"), "{seen}");
        assert_eq!(bits("SigBlk:"), 0, "{seen}");
        assert_eq!(
            bits("SigIgn:") & (1 << (nix::sys::signal::Signal::SIGPIPE as u32 - 1)),
            0
        );
    }

    #[test]
    fn a_script_without_an_interpreter_line_goes_to_the_shell() {
        let bench = Bench::new();
        let script = bench.script("a", "");
        let text = std::fs::read_to_string(&script).expect("script");
        std::fs::write(&script, text.replace("#!/bin/sh\n", "")).expect("script");
        let (result, _) = bench.run(&[script], Phase::PreStart);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(bench.log(), "a 101 pre-start\n");
    }

    #[test]
    fn only_files_that_root_alone_controls_are_run() {
        let bench = Bench::new();
        let script = bench.script("a", "");
        let unfit = |script: &str, expected: &str| match bench.refusal(script) {
            ScriptError::Unfit { problem, .. } => assert_eq!(problem, expected),
            other => panic!("{other:?}"),
        };
        for mode in [0o775, 0o757] {
            bench.mode("a", mode);
            unfit(&script, OTHERS);
        }
        bench.mode("a", 0o644);
        unfit(&script, "is not executable");
        bench.mode("a", 0o755);
        // Only root can give files away; the tests run as root.
        chown(bench.path("a"), Some(65534), None).expect("chown");
        unfit(&script, "does not belong to root");
        chown(bench.path("a"), Some(0), None).expect("chown");

        std::fs::create_dir(bench.path("open")).expect("directory");
        std::fs::copy(bench.path("a"), bench.path("open/a")).expect("copied");
        let inside = bench.path("open/a").to_str().expect("UTF-8").to_owned();
        bench.mode("open", 0o777);
        unfit(&inside, OTHERS);
        bench.mode("open", 0o1777);
        assert!(
            bench
                .run(std::slice::from_ref(&inside), Phase::PreStart)
                .0
                .is_ok()
        );
        bench.mode("open", 0o755);
        chown(bench.path("open"), Some(65534), None).expect("chown");
        unfit(&inside, "does not belong to root");

        unfit(
            bench.directory.path().to_str().expect("UTF-8"),
            "is not a regular file",
        );
        unfit("/dev/null", "is not a regular file");
        assert_eq!(bench.log(), "a 101 pre-start\n");
    }

    #[test]
    fn what_leads_back_here_is_not_run() {
        let bench = Bench::new();
        bench.script("own", "");
        symlink(bench.path("own"), bench.path("link")).expect("link");
        std::fs::hard_link(bench.path("own"), bench.path("hard")).expect("hard link");
        let program = std::env::current_exe().expect("program");
        let own = [
            bench.path("own"),
            bench.path("link"),
            bench.path("hard"),
            program,
        ];
        for path in own {
            match bench.refusal(path.to_str().expect("UTF-8")) {
                ScriptError::Unfit { problem, .. } => {
                    assert!(problem.contains("again"), "{problem}");
                }
                other => panic!("{}: {other:?}", path.display()),
            }
        }
        assert_eq!(bench.log(), "");
    }

    #[test]
    fn what_cannot_be_found_is_told() {
        let bench = Bench::new();
        assert!(matches!(bench.refusal("relative"), ScriptError::NoPath(_)));
        assert!(matches!(bench.refusal("odd:x"), ScriptError::NoPath(_)));
        assert!(matches!(
            bench.refusal("nfs:snippets/a"),
            ScriptError::Unresolved { .. }
        ));
        assert!(matches!(
            bench.refusal("/nonexistent/a"),
            ScriptError::Examine { .. }
        ));
        std::fs::write(bench.path("a"), "#!/nonexistent/interpreter\n").expect("script");
        bench.mode("a", 0o755);
        let path = bench.path("a").to_str().expect("UTF-8").to_owned();
        assert!(matches!(bench.refusal(&path), ScriptError::Start { .. }));
    }
}
