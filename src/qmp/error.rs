//! What can go wrong between this program and a QEMU.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why QMP gave no answer. Each cause has its variant, since callers treat them differently.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// No socket at this path, or nobody listens on it: there is no running VM.
    #[error("no VM is running here: {path}")]
    Absent {
        /// The socket.
        path: PathBuf,
        /// `ENOENT` or `ECONNREFUSED`.
        source: io::Error,
    },
    /// The path cannot be connected to for another reason, permissions for instance.
    #[error("cannot connect to {path}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another client held the socket all the time.
    #[error("{path} is busy: another client has held it for {} ms", waited.as_millis())]
    Busy {
        /// The socket.
        path: PathBuf,
        /// How long this client tried.
        waited: Duration,
    },
    /// QEMU closed the connection; most likely the VM has ended.
    #[error("QEMU closed the connection during {during}: has the VM stopped?")]
    Closed {
        /// The command that was waiting for its answer.
        during: &'static str,
    },
    /// The deadline passed.
    #[error("QEMU did not answer {during} in time")]
    Timeout {
        /// The command that was waiting for its answer.
        during: &'static str,
    },
    /// A line longer than any answer has to be.
    #[error("QEMU's answer to {during} is longer than {limit} bytes")]
    TooLong {
        /// The command that was waiting for its answer.
        during: &'static str,
        /// The limit in bytes.
        limit: usize,
    },
    /// The answer does not have the form that the protocol, or this command, has.
    #[error("cannot understand QEMU's answer to {during}: {what}")]
    Garbage {
        /// The command that was waiting for its answer.
        during: &'static str,
        /// What was wrong, with an excerpt where that helps; control characters are escaped.
        what: String,
    },
    /// QEMU reported an error.
    #[error("QEMU refused {during}: {desc} ({class})")]
    Refused {
        /// The command.
        during: &'static str,
        /// The error's class: `DeviceNotFound`, `CommandNotFound`, `GenericError` ...
        class: String,
        /// QEMU's words, with control characters escaped.
        desc: String,
    },
    /// Guest-physical memory that is not there.
    #[error("nothing answers at guest-physical address {address:#x}")]
    NoMemory {
        /// The address.
        address: u64,
    },
    /// Reading from or writing to the socket failed.
    #[error("the connection failed during {during}")]
    Io {
        /// The command.
        during: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl QmpError {
    pub(super) fn garbage(during: &'static str, what: impl Into<String>) -> Self {
        Self::Garbage {
            during,
            what: what.into(),
        }
    }
}

/// The beginning of a text from outside, fit for a message: control characters escaped, 80 characters at most.
pub(super) fn excerpt(text: &[u8]) -> String {
    const LENGTH: usize = 80;
    let text = String::from_utf8_lossy(text);
    let mut short: String = text
        .trim_end()
        .chars()
        .take(LENGTH)
        .flat_map(char::escape_debug)
        .collect();
    if text.trim_end().chars().nth(LENGTH).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::excerpt;

    #[test]
    fn an_excerpt_is_short_and_harmless() {
        assert_eq!(excerpt(b"{\"a\x1b[31m\"}\r\n"), "{\\\"a\\u{1b}[31m\\\"}");
        assert_eq!(excerpt(&[b'x'; 81]).chars().count(), 81);
        assert!(excerpt(&[b'x'; 81]).ends_with('…'));
        assert_eq!(excerpt(&[b'x'; 80]), "x".repeat(80));
    }
}
