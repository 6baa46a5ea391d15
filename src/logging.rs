//! Where messages go that are neither answers nor findings: standard error with `-v`, syslog for the hook.

use std::io::Write as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use log::{Level, LevelFilter, Log, Metadata, Record};
use syslog::{Facility, Formatter3164, Logger, LoggerBackend};

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
pub fn to_syslog(root: Option<&Path>, level: Level, lines: &[String]) {
    // What goes wrong is not worth a word: see above.
    let _ = send(root.unwrap_or(Path::new("/")), level, lines);
}

/// The kernel keeps the time limit, so that no thread is needed to watch it.
fn send(root: &Path, level: Level, lines: &[String]) -> Result<(), syslog::Error> {
    let start = Instant::now();
    let formatter = Formatter3164 {
        facility: Facility::LOG_DAEMON,
        hostname: None,
        process: "pve-atomicops".to_owned(),
        pid: std::process::id(),
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect(root.join("dev/log"))?;
    let mut logger = Logger::new(LoggerBackend::Unix(socket), formatter);
    for line in lines {
        if let LoggerBackend::Unix(socket) = &logger.backend {
            // No time left is an error too.
            let left = SYSLOG_LIMIT.saturating_sub(start.elapsed());
            socket.set_write_timeout(Some(left))?;
        }
        match level {
            Level::Error | Level::Warn => logger.warning(line)?,
            Level::Info => logger.info(line)?,
            Level::Debug | Level::Trace => logger.debug(line)?,
        }
    }
    Ok(())
}
