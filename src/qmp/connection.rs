//! Lines over a Unix socket, with a deadline for everything.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use super::QmpError;

/// How long a client tries while another one has the socket.
pub const BUSY_LIMIT: Duration = Duration::from_secs(5);

/// The longest line that is read, in bytes. `query-pci` for a guest with 200 functions has about 150 kB.
pub const REPLY_LIMIT: usize = 4 << 20;

/// Pause between attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);

/// A connected socket that never blocks.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    /// Bytes that were read and not yet returned as a line.
    pending: Vec<u8>,
    /// How many bytes of `pending` are known to hold no line feed.
    searched: usize,
}

impl Connection {
    /// Takes a socket that is connected already.
    pub(super) fn over(stream: UnixStream) -> Result<Self, QmpError> {
        stream
            .set_nonblocking(true)
            .map_err(|source| QmpError::Io {
                during: "setting the socket up",
                source,
            })?;
        Ok(Self {
            stream,
            pending: Vec::new(),
            searched: 0,
        })
    }

    /// Connects, trying again until `busy_until` while the backlog is full or nobody listens yet.
    pub(super) fn open(path: &Path, busy_until: Instant) -> Result<Self, QmpError> {
        let began = Instant::now();
        loop {
            let error = match attempt(path) {
                Ok(stream) => {
                    return Ok(Self {
                        stream,
                        pending: Vec::new(),
                        searched: 0,
                    });
                }
                Err(error) => error,
            };
            let left = busy_until.saturating_duration_since(Instant::now());
            match error {
                Errno::EAGAIN | Errno::ECONNREFUSED | Errno::EINTR if !left.is_zero() => {
                    std::thread::sleep(PAUSE.min(left));
                }
                Errno::EAGAIN | Errno::EINTR => {
                    return Err(QmpError::Busy {
                        path: path.to_owned(),
                        waited: began.elapsed(),
                    });
                }
                Errno::ENOENT | Errno::ECONNREFUSED => {
                    return Err(QmpError::Absent {
                        path: path.to_owned(),
                        source: error.into(),
                    });
                }
                _ => {
                    return Err(QmpError::Connect {
                        path: path.to_owned(),
                        source: error.into(),
                    });
                }
            }
        }
    }

    /// Sends one line; `line` ends with a line feed.
    pub(super) fn send(
        &mut self,
        mut line: &[u8],
        during: &'static str,
        deadline: Instant,
    ) -> Result<(), QmpError> {
        while !line.is_empty() {
            match self.stream.write(line) {
                Ok(0) => return Err(QmpError::Closed { during }),
                Ok(sent) => line = line.get(sent..).unwrap_or_default(),
                Err(error) => self.settle(error, PollFlags::POLLOUT, during, deadline)?,
            }
        }
        Ok(())
    }

    /// Receives one line, without its line feed.
    pub(super) fn receive(
        &mut self,
        during: &'static str,
        deadline: Instant,
    ) -> Result<Vec<u8>, QmpError> {
        let mut chunk = [0; 16 << 10];
        loop {
            let fresh = self.pending.get(self.searched..).unwrap_or_default();
            if let Some(end) = fresh.iter().position(|byte| *byte == b'\n') {
                let rest = self.pending.split_off(self.searched + end + 1);
                let mut line = std::mem::replace(&mut self.pending, rest);
                self.searched = 0;
                line.pop();
                return Ok(line);
            }
            self.searched = self.pending.len();
            if self.searched > REPLY_LIMIT {
                return Err(QmpError::TooLong {
                    during,
                    limit: REPLY_LIMIT,
                });
            }
            // Also a QEMU that sends without a pause has to end in time.
            if Instant::now() >= deadline {
                return Err(QmpError::Timeout { during });
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(QmpError::Closed { during }),
                Ok(length) => self
                    .pending
                    .extend_from_slice(chunk.get(..length).unwrap_or_default()),
                Err(error) => self.settle(error, PollFlags::POLLIN, during, deadline)?,
            }
        }
    }

    /// After a failed read or write: waits until it is worth another try, or says why it is not.
    fn settle(
        &self,
        error: io::Error,
        events: PollFlags,
        during: &'static str,
        deadline: Instant,
    ) -> Result<(), QmpError> {
        match error.kind() {
            io::ErrorKind::Interrupted => return Ok(()),
            io::ErrorKind::WouldBlock => {}
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                return Err(QmpError::Closed { during });
            }
            _ => {
                return Err(QmpError::Io {
                    during,
                    source: error,
                });
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(QmpError::Timeout { during });
        }
        // One more millisecond than rounding down gives, so that the last wait does not become a busy loop.
        let millis = u16::try_from(left.as_millis())
            .unwrap_or(u16::MAX)
            .saturating_add(1);
        let mut watched = [PollFd::new(self.stream.as_fd(), events)];
        match poll(&mut watched, PollTimeout::from(millis)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(QmpError::Io {
                during,
                source: error.into(),
            }),
        }
    }
}

fn attempt(path: &Path) -> Result<UnixStream, Errno> {
    let address = UnixAddr::new(path)?;
    // Not UnixStream::connect, which waits without limit when the backlog is full.
    let socket = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?;
    connect(socket.as_raw_fd(), &address)?;
    Ok(UnixStream::from(socket))
}
