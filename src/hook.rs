//! The hookscript: which phase does what. The only place that may refuse a start.
//!
//! | phase | without rewriting | in mode `rewrite` |
//! |---|---|---|
//! | pre-start | findings; mode `abort` refuses the start | repairs, then as `after_rewrite` says |
//! | post-start | nothing; with `verify`, a check in the background | as before |
//! | pre-stop | nothing | nothing |
//! | post-stop | nothing | repairs, so that the next start needs no second one |
//!
//! Afterwards the scripts of `chain` run, in every phase. Own trouble never stops a VM: it is one `WARN:` line, and the
//! exit status is 0. A second thread watches the time, so that no file system that does not answer can hold a start up
//! for longer than `timeout_s`; and a panic, wherever it happens, is answered like any other trouble.

use std::mem::ManuallyDrop;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread, ThreadId};
use std::time::Instant;

use crate::chain::{self, ResolveError};
use crate::commands::check::Names;
use crate::examine::{Examined, Survey, is_true};
use crate::host::{Host, HostError};
use crate::logging;
use crate::policy::Policies;
use crate::repair::{self, Context, Repaired, chain_of};
use crate::report::{escape, text};
use crate::settings::{AfterRewrite, Mode, Settings};
use crate::task_log::TaskLog;
use crate::vmconf::document::Document;
use crate::vmconf::storage::Storages;
use crate::vmconf::{Phase, Vmid};

/// Exit status that refuses a start.
const REFUSED: u8 = 1;

/// One call of the hook.
#[derive(Clone, Debug)]
pub struct Call {
    /// `--root`.
    pub root: Option<PathBuf>,
    /// `--config`.
    pub config: Option<PathBuf>,
    /// The VM.
    pub vmid: Vmid,
    /// The phase.
    pub phase: Phase,
}

/// What the hook's own work came to.
#[derive(Debug, Default)]
struct Outcome {
    log: TaskLog,
    status: u8,
    /// A check in the background was asked for.
    verify: bool,
}

/// Says that nothing is done in a phase that this program does not know.
pub fn unknown_phase(phase: &str) {
    print_line(&format!(
        "WARN: pve-atomicops: unknown phase '{}'; nothing was done",
        escape::short(phase, 40)
    ));
}

/// Does what Proxmox calls the hook for, and gives the exit status.
pub fn run(call: &Call) -> u8 {
    let limit = Arc::new(Limit {
        start: Instant::now(),
        settings: Mutex::default(),
        finisher: OnceLock::new(),
    });
    crate::confine::hook();
    answer_panics(call, &limit);
    let outcome = match limit.watch(call) {
        Ok(watch) => work(call, &limit, &watch),
        Err(error) => trouble(call, &format!("cannot start a thread: {error}")),
    };
    if !limit.end() {
        wait_for_the_end();
    }
    finish(call, &limit.settings(), &outcome)
}

/// Has a panic in any thread end the process the way own trouble does.
///
/// This is done before the stack would be unwound, and the program is built so that it never is (`panic = "abort"` in
/// Cargo.toml): what an unwound stack would give back, the end of the process gives back too, and a temporary file is as
/// harmless as after a kill.
fn answer_panics(call: &Call, limit: &Arc<Limit>) {
    let (call, limit) = (call.clone(), Arc::clone(limit));
    std::panic::set_hook(Box::new(move |_| {
        let outcome = trouble(
            &call,
            "internal error; please report it with `pve-atomicops capture`",
        );
        let settings = limit.settings();
        if limit.end() {
            std::process::exit(finish(&call, &settings, &outcome).into());
        }
        if limit.finisher.get() != Some(&thread::current().id()) {
            wait_for_the_end();
        }
        // What comes after the work went wrong.
        say(&call, &settings, &outcome);
        std::process::exit(0);
    }));
}

/// The other thread speaks for the process, and ends it.
fn wait_for_the_end() -> ! {
    loop {
        thread::park();
    }
}

/// The time limit of the work, which is done in the first thread: so it waits for nobody, and the second thread's start
/// does not delay it.
struct Limit {
    start: Instant,
    /// The VM's, once they are read.
    settings: Mutex<Settings>,
    /// Who found the work done or gave it up, and finishes.
    finisher: OnceLock<ThreadId>,
}

impl Limit {
    /// Ends the work. `false` where that has been done.
    fn end(&self) -> bool {
        self.finisher.set(thread::current().id()).is_ok()
    }

    fn settings(&self) -> Settings {
        let settings = self.settings.lock();
        settings.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes over the VM's settings; `watch` looks at the time anew.
    fn set(&self, settings: &Settings, watch: &Thread) {
        let mut own = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let same = own.timeout == settings.timeout;
        own.clone_from(settings);
        drop(own);
        if !same {
            watch.unpark();
        }
    }

    /// Starts the thread that finishes in the other one's place when the time is over.
    fn watch(self: &Arc<Self>, call: &Call) -> std::io::Result<Thread> {
        let (limit, call) = (Arc::clone(self), call.clone());
        let watch = thread::Builder::new().spawn(move || {
            loop {
                let settings = limit.settings();
                let left = settings.timeout.saturating_sub(limit.start.elapsed());
                if !left.is_zero() {
                    thread::park_timeout(left);
                } else if limit.end() {
                    let seconds = settings.timeout.as_secs();
                    let problem = format!("not done within {seconds} s (timeout_s in the policy)");
                    let status = finish(&call, &settings, &trouble(&call, &problem));
                    std::process::exit(status.into());
                } else {
                    return;
                }
            }
        })?;
        Ok(watch.thread().clone())
    }
}

/// Says what the work came to, and does what comes after it.
fn finish(call: &Call, settings: &Settings, outcome: &Outcome) -> u8 {
    say(call, settings, outcome);
    if outcome.status != 0 {
        return outcome.status;
    }
    if outcome.verify {
        verify_in_background(call);
    }
    chained(call, &settings.chain)
}

/// Starts a comparison of the running guest with the prediction, which waits for the guest's firmware and reports to
/// syslog. It has its own process group and none of our descriptors, so that Proxmox does not wait for it.
fn verify_in_background(call: &Call) {
    let mut command = Command::new("/proc/self/exe");
    command.args([
        "verify",
        &call.vmid.to_string(),
        "--wait",
        "120",
        "--syslog",
    ]);
    if let Some(config) = &call.config {
        command.arg("--config").arg(config);
    }
    if let Some(root) = &call.root {
        command.arg("--root").arg(root);
    }
    command
        .env_clear()
        .envs(crate::invoke::PLAIN_ENVIRONMENT)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    if let Err(error) = command.spawn() {
        print_line(&format!(
            "WARN: pve-atomicops: cannot start the check of the running guest: {error}"
        ));
    }
}

/// Runs the scripts of the chain, and gives the exit status.
fn chained(call: &Call, scripts: &[String]) -> u8 {
    if scripts.is_empty() {
        return 0;
    }
    let resolve = |script: &str| resolve(call, script);
    let own = own_scripts(call);
    let warn = |failure: &chain::Failure| {
        print_line(&format!("WARN: {}", escape::text(&chain_of(failure))));
    };
    match chain::run(scripts, call.vmid, call.phase, &own, resolve, warn) {
        Ok(()) => 0,
        Err(failure) => {
            warn(&failure);
            failure.exit_status()
        }
    }
}

fn host(call: &Call) -> Result<Host, HostError> {
    match &call.root {
        Some(root) => Host::at(root),
        None => Host::live(),
    }
}

/// Where a script lies, given as a volume ID or as an absolute path.
///
/// Below `--root` that is a file of the tree: a policy that is replayed must not run what lies at its paths on this
/// host, neither directly nor through a link that leads out.
fn resolve(call: &Call, script: &str) -> Result<PathBuf, ResolveError> {
    let path = if script.starts_with('/') {
        PathBuf::from(script)
    } else {
        let storages = host(call)?.storage_cfg()?.unwrap_or_default();
        Storages::parse(&storages).0.snippet_path(script)?
    };
    let Some(root) = &call.root else {
        return Ok(path);
    };
    let below = root.join(path.strip_prefix("/").unwrap_or(&path));
    let found = below.canonicalize().map_err(|error| {
        let below = below.display();
        ResolveError::from(format!("cannot examine {below}: {error}"))
    })?;
    if found.starts_with(root.canonicalize()?) {
        Ok(found)
    } else {
        Err(format!("{} leads out of {}", below.display(), root.display()).into())
    }
}

/// The VM's own hookscript, which leads back here.
fn own_scripts(call: &Call) -> Vec<PathBuf> {
    let config = host(call)
        .ok()
        .and_then(|host| host.vm_config(call.vmid).ok().flatten());
    let hookscript = config.and_then(|bytes| {
        let config = Document::parse(&bytes).decode();
        config.main.get("hookscript").map(str::to_owned)
    });
    hookscript
        .and_then(|volume| resolve(call, &volume).ok())
        .into_iter()
        .collect()
}

/// Prints a line into the task log, if somebody reads it: `println!` would panic where nobody does, and its exit status
/// would stop the VM.
fn print_line(line: &str) {
    use std::io::Write as _;
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}

/// Prints the outcome into the task log, and sends it to syslog.
fn say(call: &Call, settings: &Settings, outcome: &Outcome) {
    use std::io::Write as _;
    if outcome.log.is_empty() {
        return;
    }
    let text = outcome.log.text();
    // A task log that nobody reads is no reason to stop a VM, nor to go on without syslog.
    let _ = std::io::stdout().write_all(text.as_bytes());
    if settings.syslog {
        // The indented lines are for whoever looks into the task log.
        let lines = outcome
            .log
            .lines()
            .iter()
            .filter(|line| !line.starts_with(' '));
        let lines: Vec<_> = lines
            .map(|line| format!("VM {} {}: {line}", call.vmid, call.phase))
            .collect();
        logging::to_syslog(call.root.as_deref(), log::Level::Warn, &lines);
    }
}

/// Own trouble: one line, and the VM goes on.
fn trouble(call: &Call, problem: &str) -> Outcome {
    let mut log = TaskLog::default();
    log.warning(format!(
        "pve-atomicops: {}; VM {} goes on unchecked",
        escape::text(problem),
        call.vmid
    ));
    Outcome {
        log,
        ..Outcome::default()
    }
}

/// Everything that reads and decides.
fn work(call: &Call, limit: &Limit, watch: &Thread) -> Outcome {
    match host(call) {
        Ok(host) => {
            // The process ends soon: what was read for it need not be given back piece by piece.
            let host = ManuallyDrop::new(host);
            let policies = ManuallyDrop::new(Policies::read(&host, call.config.as_deref()));
            let settings = policies.of(call.vmid);
            limit.set(&settings, watch);
            phase(call, limit.start, &host, &policies, &settings)
        }
        Err(error) => trouble(call, &error.in_words()),
    }
}

fn phase(
    call: &Call,
    start: Instant,
    host: &Host,
    policies: &Policies,
    settings: &Settings,
) -> Outcome {
    let mut outcome = match (call.phase, settings.mode) {
        (_, Mode::Off) | (Phase::PreStop, _) => Outcome::default(),
        (Phase::PostStart, _) => {
            if settings.mode == Mode::Rewrite && settings.after_rewrite == AfterRewrite::Restart {
                let root = call.root.as_deref().unwrap_or(Path::new("/"));
                repair::start_went_through(root, call.vmid);
            }
            Outcome {
                verify: settings.verify,
                ..Outcome::default()
            }
        }
        (Phase::PostStop, Mode::Rewrite) | (Phase::PreStart, _) => examine(call, host, settings)
            .map_or_else(
                |problem| trouble(call, &problem),
                |examined| {
                    examined
                        .map(ManuallyDrop::new)
                        .map(|examined| decide(call, start, host, settings, &examined))
                        .unwrap_or_default()
                },
            ),
        (Phase::PostStop, _) => Outcome::default(),
    };
    if call.phase == Phase::PreStart && !policies.problems.is_empty() && settings.mode != Mode::Off
    {
        let mut log = TaskLog::default();
        for problem in &policies.problems {
            log.warning(format!(
                "pve-atomicops: {}; this file is not used",
                escape::text(problem)
            ));
        }
        log.extend(outcome.log.lines().iter().cloned());
        outcome.log = log;
    }
    outcome
}

/// Reads and examines the VM; `None` where its configuration is not here.
fn examine(call: &Call, host: &Host, settings: &Settings) -> Result<Option<Examined>, String> {
    let bytes = match host.vm_config(call.vmid) {
        Ok(Some(bytes)) => bytes,
        // It is still on the node that the VM comes from.
        Ok(None) if incoming_migration() => return Ok(None),
        Ok(None) => {
            return Err(format!(
                "there is no configuration of VM {} on this node",
                call.vmid
            ));
        }
        Err(error) => return Err(error.in_words()),
    };
    let survey = ManuallyDrop::new(Survey::new(host));
    let mut examined = survey
        .examine(call.vmid, &bytes, settings)
        .map_err(|error| error.in_words())?;
    if examined.report.reported {
        Names::new(host).fill(&mut examined.report);
    }
    Ok(Some(examined))
}

fn incoming_migration() -> bool {
    std::env::var_os("PVE_MIGRATED_FROM").is_some_and(|from| !from.is_empty())
}

/// Why this start must neither be refused nor followed by a rewrite.
fn hands_off(examined: &Examined) -> Option<String> {
    let main = &examined.config.main;
    if incoming_migration() {
        return Some("it is migrated to this node".to_owned());
    }
    if let Some(lock) = main.get("lock") {
        return Some(format!("it is locked ({})", escape::short(lock, 40)));
    }
    if main.get("vmstate").is_some() {
        return Some("it resumes from hibernation".to_owned());
    }
    if is_true(main.get("template")) {
        return Some("it is a template".to_owned());
    }
    let running = main
        .iter()
        .map(|(key, _)| key)
        .find(|key| key.starts_with("running"));
    running.map(|key| format!("'{}' is left over from a saved state", escape::text(key)))
}

/// What follows from a finding.
fn decide(
    call: &Call,
    start: Instant,
    host: &Host,
    settings: &Settings,
    examined: &Examined,
) -> Outcome {
    let mut outcome = Outcome::default();
    if !examined.report.reported {
        // A repair is not missed for long: the next pre-start looks again.
        return match examined.doubts.first() {
            Some(doubt) if call.phase == Phase::PreStart => trouble(call, doubt),
            _ => outcome,
        };
    }
    let findings = text::findings(&examined.report);
    let hands_off = hands_off(examined);
    match (settings.mode, hands_off) {
        (Mode::Off, _) => {}
        (Mode::Warn, _) => outcome.log.extend(findings),
        (Mode::Abort, Some(reason)) => {
            outcome.log.extend(findings);
            outcome
                .log
                .line(format!("  the start goes on in mode abort: {reason}"));
        }
        (Mode::Abort, None) => {
            outcome.log.extend(findings);
            outcome.log.line(format!(
                "start of VM {} refused (mode = \"abort\" in the policy): use the fix above, or allow it with \
                 mode = \"warn\" under [vm.{}]",
                call.vmid, call.vmid
            ));
            outcome.status = REFUSED;
        }
        (Mode::Rewrite, Some(reason)) => not_rewritten(call, &mut outcome, findings, &reason),
        (Mode::Rewrite, None) => {
            let context = Context {
                call,
                host,
                settings,
                deadline: start + settings.timeout,
            };
            match repair::rewrite(&context, examined) {
                Err(reason) => not_rewritten(call, &mut outcome, findings, &reason),
                Ok(repaired) => after_rewrite(&context, &mut outcome, findings, &repaired),
            }
        }
    }
    outcome
}

/// The finding stands, with the reason why it was not repaired.
fn not_rewritten(call: &Call, outcome: &mut Outcome, findings: Vec<String>, reason: &str) {
    // After the stop nobody waits for findings; the next pre-start has them.
    if call.phase == Phase::PreStart {
        outcome.log.extend(findings);
    }
    outcome.log.line(format!(
        "  VM {} is not rewritten: {}",
        call.vmid,
        escape::text(reason)
    ));
}

fn after_rewrite(
    context: &Context,
    outcome: &mut Outcome,
    findings: Vec<String>,
    repaired: &Repaired,
) {
    let (call, vmid) = (context.call, context.call.vmid);
    if call.phase == Phase::PreStart {
        outcome.log.extend(findings);
    }
    outcome.log.extend(repaired.lines());
    if call.phase != Phase::PreStart {
        outcome
            .log
            .line(format!("VM {vmid}: repaired for its next start"));
        return;
    }
    match context.settings.after_rewrite {
        AfterRewrite::Continue => {
            outcome.log.line(format!(
                "VM {vmid}: repaired; this start still uses the old configuration, the next one uses the new"
            ));
        }
        AfterRewrite::Stop => {
            outcome.log.line(format!(
                "VM {vmid}: repaired, and this start stopped because Proxmox has read the old configuration: start it \
                 again with `qm start {vmid}`"
            ));
            outcome.status = REFUSED;
        }
        AfterRewrite::Restart => {
            outcome.log.line(repair::restart(context));
            outcome.status = REFUSED;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;
    use std::sync::{Arc, Mutex, OnceLock};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{Call, Limit, answer_panics};
    use crate::settings::Settings;
    use crate::vmconf::{Phase, Vmid};

    /// Says where the process below panics, and below which directory it finds no syslog.
    const WHERE: &str = "PVE_ATOMICOPS_TEST_PANIC";

    /// Not a test: a process that panics, started by the tests below.
    #[test]
    fn panicking_process() {
        let Some((place, root)) = std::env::var(WHERE).ok().and_then(|value| {
            let (place, root) = value.split_once(' ')?;
            Some((place.to_owned(), root.to_owned()))
        }) else {
            return;
        };
        // The test harness has begun a line with this test's name.
        println!();
        let call = Call {
            root: Some(root.into()),
            config: None,
            vmid: Vmid::new(101).unwrap(),
            phase: Phase::PreStart,
        };
        let limit = Arc::new(Limit {
            start: Instant::now(),
            settings: Mutex::new(Settings {
                chain: vec!["/script".to_owned()],
                ..Settings::default()
            }),
            finisher: OnceLock::new(),
        });
        answer_panics(&call, &limit);
        match place.as_str() {
            "work" => {}
            "finish" => assert!(limit.end()),
            "late" => {
                let limit = Arc::clone(&limit);
                let (ended, wait) = std::sync::mpsc::channel();
                thread::spawn(move || {
                    ended.send(limit.end()).unwrap();
                    thread::sleep(Duration::from_millis(200));
                    println!("the other thread has ended the process");
                    std::process::exit(0);
                });
                assert!(wait.recv().unwrap());
            }
            _ => unreachable!(),
        }
        panic!("on purpose");
    }

    /// What a process says that panics in this place, and its exit status.
    fn panicked(place: &str, root: &Path) -> (String, Option<i32>) {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "hook::tests::panicking_process", "--nocapture"])
            .env(WHERE, format!("{place} {}", root.display()))
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        // Two lines are the test harness'.
        let said = said.lines().skip_while(|line| !line.is_empty());
        let own = said.filter(|line| !line.is_empty() && !line.starts_with("running "));
        (
            own.filter(|line| !line.starts_with("test "))
                .map(|line| format!("{line}\n"))
                .collect(),
            output.status.code(),
        )
    }

    const ANSWER: &str = "WARN: pve-atomicops: internal error; please report it with `pve-atomicops capture`; VM 101 \
                          goes on unchecked\n";

    #[test]
    fn a_panic_of_the_work_is_one_line_and_the_chain_goes_on() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().unwrap();
        let script = root.path().join("script");
        std::fs::write(&script, "#!/bin/sh\necho chained $1 $2\n").unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (said, status) = panicked("work", root.path());
        assert_eq!(said, format!("{ANSWER}chained 101 pre-start\n"));
        assert_eq!(status, Some(0));
    }

    #[test]
    fn a_panic_after_the_work_is_one_line() {
        let root = tempfile::tempdir().unwrap();
        let said = panicked("finish", root.path());
        assert_eq!(said, (ANSWER.to_owned(), Some(0)));
    }

    #[test]
    fn a_panic_after_the_time_limit_leaves_the_process_to_the_other_thread() {
        let root = tempfile::tempdir().unwrap();
        let said = panicked("late", root.path());
        let other = "the other thread has ended the process\n";
        assert_eq!(said, (other.to_owned(), Some(0)));
    }
}
