//! A thread that plays QEMU on a Unix socket: recorded sessions, and everything that can go wrong.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// One step of a conversation, seen from QEMU.
#[derive(Clone, Debug)]
pub enum Step {
    /// Receives this line; the thread panics on another one.
    Expect(String),
    /// Receives any line.
    Receive,
    /// Sends this, with no line feed added.
    Send(Vec<u8>),
    /// Sends this again and again until the client leaves.
    Flood(Vec<u8>),
    /// Says nothing until the client leaves.
    Wait,
}

impl Step {
    /// Sends one line.
    pub fn line(text: &str) -> Self {
        Self::Send(format!("{text}\n").into_bytes())
    }
}

/// The steps of a recorded session.
pub fn session(name: &str) -> Vec<Step> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/qmp")
        .join(name);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines()
        .map(|line| match line.split_once(' ') {
            Some((">", sent)) => Step::Expect(sent.to_owned()),
            Some(("<", answer)) => Step::line(answer),
            _ => panic!("{}: {line:?}", path.display()),
        })
        .collect()
}

/// Changes what QEMU says.
pub fn replace(steps: &mut [Step], from: &str, to: &str) {
    let mut hits = 0;
    for step in steps {
        if let Step::Send(bytes) = step {
            let text = String::from_utf8(bytes.clone()).unwrap();
            hits += usize::from(text.contains(from));
            *bytes = text.replace(from, to).into_bytes();
        }
    }
    assert_ne!(hits, 0, "{from:?} is in the session");
}

/// The session up to the answer to the first `qom-get`, which says that firmware is not done.
pub fn window_closed() -> Vec<Step> {
    let mut steps = session("q35.session");
    steps.truncate(9);
    replace(&mut steps, "2952790016", "18446744073709551615");
    steps
}

/// Greeting and agreement on command mode.
pub fn hello() -> Vec<Step> {
    session("q35.session").into_iter().take(3).collect()
}

/// A QEMU that serves one client after the other.
pub struct FakeQemu {
    /// The socket.
    pub path: PathBuf,
    thread: JoinHandle<()>,
    last: Arc<AtomicBool>,
    _directory: Option<tempfile::TempDir>,
}

impl FakeQemu {
    /// Serves as many clients as there are scripts, one script each, and sees to it that they keep to them.
    pub fn start(scripts: Vec<Vec<Step>>) -> Self {
        Self::start_at(None, scripts)
    }

    /// The same on a socket at this path.
    pub fn start_at(path: Option<PathBuf>, scripts: Vec<Vec<Step>>) -> Self {
        Self::serve(path, move |listener, _| {
            for script in scripts {
                let (stream, _) = listener.accept().unwrap();
                assert!(play(&stream, &script), "the client left early");
            }
        })
    }

    /// Serves clients with the same script each until [`finish`](Self::finish). They may leave early.
    pub fn repeat(script: Vec<Step>) -> Self {
        Self::repeat_at(None, script)
    }

    /// The same on a socket at this path.
    pub fn repeat_at(path: Option<PathBuf>, script: Vec<Step>) -> Self {
        Self::serve(path, move |listener, last| {
            loop {
                let (stream, _) = listener.accept().unwrap();
                if last.load(Ordering::Relaxed) {
                    break;
                }
                play(&stream, &script);
            }
        })
    }

    fn serve(
        path: Option<PathBuf>,
        body: impl FnOnce(UnixListener, &AtomicBool) + Send + 'static,
    ) -> Self {
        let (path, directory) = if let Some(path) = path {
            (path, None)
        } else {
            let directory = tempfile::tempdir().unwrap();
            (directory.path().join("101.qmp"), Some(directory))
        };
        let listener = UnixListener::bind(&path).unwrap();
        let last = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&last);
        let thread = std::thread::spawn(move || body(listener, &seen));
        Self {
            path,
            thread,
            last,
            _directory: directory,
        }
    }

    /// Waits until every script has been played; panics if a client did not keep to its script.
    pub fn finish(self) {
        self.last.store(true, Ordering::Relaxed);
        // Wakes a repeating thread; the others have gone or are busy with their script.
        drop(UnixStream::connect(&self.path));
        self.thread.join().expect("the client kept to the script");
    }
}

/// Plays a script for one client. Whether it stayed for the whole of it.
pub fn play(mut stream: &UnixStream, script: &[Step]) -> bool {
    let mut lines = BufReader::new(stream);
    for step in script {
        match step {
            Step::Expect(expected) => {
                let mut line = String::new();
                if lines.read_line(&mut line).unwrap_or_default() == 0 {
                    return false;
                }
                assert_eq!(line.trim_end(), expected);
            }
            Step::Receive => {
                let mut line = String::new();
                if lines.read_line(&mut line).unwrap_or_default() == 0 {
                    return false;
                }
            }
            // The client may leave at any time; that is what some tests are about.
            Step::Send(bytes) => drop(stream.write_all(bytes)),
            Step::Flood(bytes) => while stream.write_all(bytes).is_ok() {},
            Step::Wait => {
                while !lines.fill_buf().unwrap_or_default().is_empty() {
                    let length = lines.buffer().len();
                    lines.consume(length);
                }
            }
        }
    }
    true
}
