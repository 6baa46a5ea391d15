//! Where messages go that are neither answers nor findings: standard error with `-v`, syslog for the hook.

use std::io::Write as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use log::{Level, LevelFilter, Log, Metadata, Record};

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

/// Facility `daemon` of RFC 3164, in its place.
const DAEMON: u8 = 3 << 3;

/// The kernel keeps the time limit, so that no thread is needed to watch it.
///
/// A message is `<PRIORITY>TAG[PID]: TEXT`. On the local socket the daemon adds time and host name itself.
fn send(root: &Path, level: Level, lines: &[String]) -> std::io::Result<()> {
    let start = Instant::now();
    let severity = match level {
        Level::Error | Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect(root.join("dev/log"))?;
    for line in lines {
        // No time left is an error too.
        let left = SYSLOG_LIMIT.saturating_sub(start.elapsed());
        socket.set_write_timeout(Some(left))?;
        let (priority, pid) = (DAEMON | severity, std::process::id());
        let message = format!("<{priority}>pve-atomicops[{pid}]: {line}");
        socket.send(message.as_bytes())?;
    }
    Ok(())
}
