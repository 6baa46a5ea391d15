//! Where messages go that are neither answers nor findings: standard error with `-v`, syslog for the hook.

use std::path::Path;

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
            eprintln!("{}: {text}", record.level().as_str().to_lowercase());
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

/// Sends lines to the system log below `root`, as `daemon.warning` or `daemon.info`.
///
/// Where there is no socket, or it does not take them, nothing happens: the task log has the same lines.
pub fn to_syslog<'a>(root: Option<&Path>, level: Level, lines: impl IntoIterator<Item = &'a str>) {
    let formatter = Formatter3164 {
        facility: Facility::LOG_DAEMON,
        hostname: None,
        process: "pve-atomicops".to_owned(),
        pid: std::process::id(),
    };
    let socket = root.unwrap_or(Path::new("/")).join("dev/log");
    let Ok(mut logger) = syslog::unix_custom(formatter, socket) else {
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
