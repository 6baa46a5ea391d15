//! The commands.

use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::connection::Connection;
use super::error::excerpt;
use super::pci::Bus;
use super::{BUSY_LIMIT, QmpError};

const GREETING: &str = "the greeting";

/// A conversation with one QEMU, in command mode.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    deadline: Instant,
    id: u64,
    version: Version,
}

/// QEMU's version as `query-version` and the greeting tell it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Version {
    qemu: Triple,
    /// The distribution's name for its build, empty for a build without one.
    #[serde(default)]
    pub package: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct Triple {
    major: u32,
    minor: u32,
    micro: u32,
}

impl Version {
    /// Major, minor and micro number.
    pub const fn numbers(&self) -> (u32, u32, u32) {
        (self.qemu.major, self.qemu.minor, self.qemu.micro)
    }
}

impl fmt::Display for Version {
    /// The three numbers, as in `11.0.2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Triple {
            major,
            minor,
            micro,
        } = self.qemu;
        write!(f, "{major}.{minor}.{micro}")
    }
}

/// What `query-status` says of the VM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Status {
    /// Whether the guest's processors run.
    pub running: bool,
    /// QEMU's run state: `running`, `paused`, `prelaunch` (not started yet), `shutdown` ...
    pub status: String,
}

impl Client {
    /// Connects to the socket at `path` and agrees on command mode, waiting while another client has it:
    /// [`BUSY_LIMIT`] at most, and not beyond `deadline`. Nothing that this client does lasts beyond `deadline`.
    pub fn connect(path: &Path, deadline: Instant) -> Result<Self, QmpError> {
        Self::connect_within(path, deadline, BUSY_LIMIT)
    }

    /// [`connect`](Self::connect) with another limit than [`BUSY_LIMIT`].
    pub fn connect_within(
        path: &Path,
        deadline: Instant,
        busy: Duration,
    ) -> Result<Self, QmpError> {
        let began = Instant::now();
        let busy_until = deadline.min(began.checked_add(busy).unwrap_or(deadline));
        let connection = Connection::open(path, busy_until)?;
        // QEMU stops accepting while it has a client, so that the next one waits in the backlog: no greeting.
        match Self::greet(connection, deadline, busy_until) {
            Err(QmpError::Timeout { during: GREETING }) => Err(QmpError::Busy {
                path: path.to_owned(),
                waited: began.elapsed(),
            }),
            other => other,
        }
    }

    /// Agrees on command mode over a socket that is connected already.
    pub fn over(stream: UnixStream, deadline: Instant) -> Result<Self, QmpError> {
        Self::greet(Connection::over(stream)?, deadline, deadline)
    }

    fn greet(
        mut connection: Connection,
        deadline: Instant,
        greeted_by: Instant,
    ) -> Result<Self, QmpError> {
        let greeting = connection.receive(GREETING, greeted_by)?;
        let greeting: Greeting = decode(&greeting, GREETING)?;
        let mut client = Self {
            connection,
            deadline,
            id: 0,
            version: greeting.qmp.version,
        };
        let _: Value = client.execute("qmp_capabilities", Value::Null)?;
        Ok(client)
    }

    /// The version that the greeting named.
    pub const fn version(&self) -> &Version {
        &self.version
    }

    /// `query-version`.
    pub fn query_version(&mut self) -> Result<Version, QmpError> {
        self.execute("query-version", Value::Null)
    }

    /// `query-status`.
    pub fn query_status(&mut self) -> Result<Status, QmpError> {
        self.execute("query-status", Value::Null)
    }

    /// `query-pci`: the root buses with everything on them. Buses that no firmware has numbered yet are missing.
    pub fn query_pci(&mut self) -> Result<Vec<Bus>, QmpError> {
        self.execute("query-pci", Value::Null)
    }

    /// Where a q35 machine's configuration window lies in guest-physical memory (property `MCFG` of `/machine/q35`).
    ///
    /// `Ok(None)`: firmware has not opened the window (all bits are ones). Other machine types have no such object:
    /// [`QmpError::Refused`] with class `DeviceNotFound`.
    pub fn mcfg_base(&mut self) -> Result<Option<u64>, QmpError> {
        let base: u64 = self.execute(
            "qom-get",
            json!({"path": "/machine/q35", "property": "MCFG"}),
        )?;
        Ok((base != u64::MAX).then_some(base))
    }

    /// Fills `words` with the little-endian 32-bit words at guest-physical `address` (HMP `xp /Nwx`).
    ///
    /// [`QmpError::NoMemory`] where nothing answers.
    pub fn read_physical(&mut self, address: u64, words: &mut [u32]) -> Result<(), QmpError> {
        const DURING: &str = "xp";
        let line = format!("xp /{}wx {address:#x}", words.len());
        let text: String = self.execute_as(
            DURING,
            "human-monitor-command",
            json!({"command-line": line}),
        )?;
        parse_words(&text, address, words)
    }

    fn execute<T: DeserializeOwned>(
        &mut self,
        command: &'static str,
        arguments: Value,
    ) -> Result<T, QmpError> {
        self.execute_as(command, command, arguments)
    }

    fn execute_as<T: DeserializeOwned>(
        &mut self,
        during: &'static str,
        command: &str,
        arguments: Value,
    ) -> Result<T, QmpError> {
        self.id += 1;
        let mut request = json!({"execute": command, "id": self.id});
        if let (Value::Object(arguments), Value::Object(request)) = (arguments, &mut request) {
            request.insert("arguments".to_owned(), Value::Object(arguments));
        }
        let line = format!("{request}\n");
        self.connection
            .send(line.as_bytes(), during, self.deadline)?;
        loop {
            let line = self.connection.receive(during, self.deadline)?;
            let reply: Reply = decode(&line, during)?;
            if reply.event.is_some() {
                continue;
            }
            if let Some(error) = reply.error {
                return Err(QmpError::Refused {
                    during,
                    class: excerpt(error.class.as_bytes()),
                    desc: excerpt(error.desc.as_bytes()),
                });
            }
            return match reply.value {
                Some(value) if reply.id == Some(self.id) => {
                    serde_json::from_value(value).map_err(|error| {
                        QmpError::garbage(during, excerpt(error.to_string().as_bytes()))
                    })
                }
                Some(_) => Err(QmpError::garbage(during, "the answer to another command")),
                None => Err(QmpError::garbage(during, excerpt(&line))),
            };
        }
    }
}

#[derive(Deserialize)]
struct Greeting {
    #[serde(rename = "QMP")]
    qmp: Hello,
}

#[derive(Deserialize)]
struct Hello {
    version: Version,
}

/// One line from QEMU: an event, an error or a value.
#[derive(Deserialize)]
struct Reply {
    event: Option<String>,
    error: Option<Refusal>,
    #[serde(default, rename = "return", deserialize_with = "present")]
    value: Option<Value>,
    id: Option<u64>,
}

#[derive(Deserialize)]
struct Refusal {
    class: String,
    desc: String,
}

/// A value that is there, be it `null`.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

fn decode<T: DeserializeOwned>(line: &[u8], during: &'static str) -> Result<T, QmpError> {
    serde_json::from_slice(line)
        .map_err(|error| QmpError::garbage(during, format!("{error}: {}", excerpt(line))))
}

/// Reads what `xp /Nwx` prints: lines of `ADDRESS: 0xWORD 0xWORD ...`, in order.
///
/// A line is only believed if it names the address that is due.
fn parse_words(text: &str, address: u64, words: &mut [u32]) -> Result<(), QmpError> {
    let garbage = || QmpError::garbage("xp", excerpt(text.as_bytes()));
    let mut due = address;
    let mut rest = words.iter_mut();
    for line in text.lines() {
        let (at, values) = line.split_once(':').ok_or_else(garbage)?;
        if u64::from_str_radix(at, 16) != Ok(due) {
            return Err(garbage());
        }
        if values.trim() == "Cannot access memory" {
            return Err(QmpError::NoMemory { address: due });
        }
        for value in values.split_ascii_whitespace() {
            let word = value
                .strip_prefix("0x")
                .and_then(|digits| u32::from_str_radix(digits, 16).ok())
                .ok_or_else(garbage)?;
            *rest.next().ok_or_else(garbage)? = word;
            due = due.wrapping_add(4);
        }
    }
    match rest.next() {
        None => Ok(()),
        Some(_) => Err(garbage()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_taken_from_the_lines_that_name_their_address() {
        let mut words = [0; 5];
        let text = "00000000e00e0000: 0x000c1b36 0x00100007 0x06040000 0x00810000\r\n\
                    00000000e00e0010: 0xfea10000\r\n";
        parse_words(text, 0xe00e_0000, &mut words).unwrap();
        assert_eq!(
            words,
            [
                0x000c_1b36,
                0x0010_0007,
                0x0604_0000,
                0x0081_0000,
                0xfea1_0000
            ]
        );
    }

    #[test]
    fn nothing_else_counts_as_words() {
        for text in [
            "",
            "00000000e0000000: 0x1\r\n",
            "00000000e0000000: 0x1 0x2 0x3\r\n",
            "00000000e0000004: 0x1 0x2\r\n",
            "00000000e0000000: 0x1 2\r\n",
            "00000000e0000000: 0x1 0x100000000\r\n",
            "0x1 0x2\r\n",
            "unknown command: 'xp'\r\n",
        ] {
            let result = parse_words(text, 0xe000_0000, &mut [0; 2]);
            assert!(matches!(result, Err(QmpError::Garbage { .. })), "{text:?}");
        }
        let text = "00000000e0000000: Cannot access memory\r\n";
        assert!(matches!(
            parse_words(text, 0xe000_0000, &mut [0; 2]),
            Err(QmpError::NoMemory {
                address: 0xe000_0000
            })
        ));
    }

    #[test]
    fn a_null_is_a_value() {
        let reply: Reply = serde_json::from_str(r#"{"return": null, "id": 3}"#).unwrap();
        assert_eq!((reply.value, reply.id), (Some(Value::Null), Some(3)));
        let reply: Reply = serde_json::from_str(r#"{"id": 3}"#).unwrap();
        assert_eq!(reply.value, None);
    }
}
