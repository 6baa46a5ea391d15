//! One module for each command that a person calls.

pub mod ask;
pub mod attach;
pub mod capture;
pub mod check;
pub mod config;
pub mod fix;
pub mod generated;
pub mod mapping;
pub mod topology;
pub mod undo;
pub mod verify;

use std::path::Path;

use anyhow::Context as _;

use crate::cli::Global;
use crate::host::{Host, read_listing};

/// The host that the global options name, with the PCI functions from a text of `lspci` if there is one.
///
/// Without `--root`, nothing but the text is known then: this machine need not be the one that it describes.
pub fn host_with(global: &Global, lspci: Option<&Path>) -> anyhow::Result<Host> {
    let Some(path) = lspci else {
        return host(global);
    };
    let listing = read_listing(path).with_context(|| format!("--lspci {}", path.display()))?;
    Ok(match &global.root {
        Some(_) => host(global)?.with_listing(listing),
        None => Host::listed(listing),
    })
}

/// The host that the global options name.
pub fn host(global: &Global) -> anyhow::Result<Host> {
    match &global.root {
        Some(root) => Host::at(root).with_context(|| format!("--root {}", root.display())),
        None => Host::live().context("cannot open /"),
    }
}

/// Prints a line on standard error, if it takes one.
pub fn complain(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints an answer. A reader that has gone away, such as `head`, is no error.
pub fn print(answer: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    unless_closed(out.write_all(answer.as_bytes()).and_then(|()| out.flush()))
}

/// What writing an answer came to, where nobody may be reading any more.
pub fn unless_closed(written: std::io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write the answer")
        }
        _ => Ok(()),
    }
}
