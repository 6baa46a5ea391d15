//! One module for each command that a person calls.

pub mod check;
pub mod config;

use anyhow::Context as _;

use crate::cli::Global;
use crate::host::Host;

/// The host that the global options name.
pub fn host(global: &Global) -> anyhow::Result<Host> {
    match &global.root {
        Some(root) => Host::at(root).with_context(|| format!("--root {}", root.display())),
        None => Host::live().context("cannot open /"),
    }
}

/// Prints an answer. A reader that has gone away, such as `head`, is no error.
pub fn print(answer: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    match out.write_all(answer.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write the answer")
        }
        _ => Ok(()),
    }
}
