//! Where messages go that are neither answers nor findings: standard error with `-v`, syslog for the hook.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use log::{Level, LevelFilter, Log, Metadata, Record};
use syslog::{Facility, Formatter3164};

use crate::report::escape;

/// Log lines on standard error.
struct Terminal;

impl Log for Terminal {
    fn enabled(&self, metadata: &Metadata) -> bool {
        metadata.level() <= Level::Debug
    }

    fn log(&self, record: &Record) {
        if self.enabled(record.metadata()) {
            let text = escape::text(&record.args().to_string());
            let level = record.level().as_str().to_lowercase();
            // A standard error that takes nothing is no reason to fail.
            let _ = writeln!(std::io::stderr(), "{level}: {text}");
        }
    }

    fn flush(&self) {}
}

/// Starts logging for a command at a terminal. Without `verbose` only warnings are printed.
pub fn start(verbose: bool) {
    static TERMINAL: Terminal = Terminal;
    // Fails only where a logger is set already, which then stays.
    if log::set_logger(&TERMINAL).is_ok() {
        log::set_max_level(if verbose {
            LevelFilter::Debug
        } else {
            LevelFilter::Warn
        });
    }
}

/// How long the system log may take. Its socket has room for a few messages, and then waits for the daemon.
const SYSLOG_LIMIT: Duration = Duration::from_millis(500);

/// Sends lines to the system log below `root`, as messages of the facility daemon.
///
/// Where there is no socket, or it does not take them in time, nothing happens: the task log has the same lines.
pub fn to_syslog(root: Option<PathBuf>, level: Level, lines: Vec<String>) {
    let (done, wait) = mpsc::channel();
    let sender = std::thread::Builder::new().spawn(move || {
        send(root.as_deref().unwrap_or(Path::new("/")), level, &lines);
        // Nobody waits any more where the limit was passed.
        let _ = done.send(());
    });
    if sender.is_ok() {
        let _ = wait.recv_timeout(SYSLOG_LIMIT);
    }
}

fn send(root: &Path, level: Level, lines: &[String]) {
    let formatter = Formatter3164 {
        facility: Facility::LOG_DAEMON,
        hostname: None,
        process: "pve-atomicops".to_owned(),
        pid: std::process::id(),
    };
    let Ok(mut logger) = syslog::unix_custom(formatter, root.join("dev/log")) else {
        return;
    };
    for line in lines {
        let sent = match level {
            Level::Error | Level::Warn => logger.warning(line),
            Level::Info => logger.info(line),
            Level::Debug | Level::Trace => logger.debug(line),
        };
        if sent.is_err() {
            return;
        }
    }
}
