//! `capture`: the files that the program reads, in one archive.

use std::fs::OpenOptions;
use std::io::{IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::{check, complain, host, print};
use crate::capture::{self, CaptureError};
use crate::cli::Global;
use crate::report::escape;

/// Arguments of `capture`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The archive to write, which must not exist; `-` is standard output. Without it: pve-atomicops-NODE.tar.gz
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Runs the command.
pub fn run(global: &Global, arguments: &Arguments) -> anyhow::Result<u8> {
    let mut host = host(global)?;
    host.record();
    let capture = capture::capture(&host).map_err(|error| match error {
        CaptureError::Host(error) => check::as_root(error),
        error @ CaptureError::Archive(_) => error.into(),
    })?;
    let mut bytes = Vec::new();
    capture
        .tree
        .pack(&mut bytes)
        .context("cannot pack the archive")?;
    for line in &capture.left_out {
        complain(&format!("left out: {}", escape::text(line)));
    }
    if !nix::unistd::geteuid().is_root() && host.is_live() {
        complain("not run as root: without the registers of the devices; run this as root");
    }
    let default = || {
        PathBuf::from(format!(
            "pve-atomicops-{}.tar.gz",
            host.node().unwrap_or_default()
        ))
    };
    let path = arguments.output.clone().unwrap_or_else(default);
    if path == Path::new("-") {
        let mut out = std::io::stdout().lock();
        if out.is_terminal() {
            bail!("this would write an archive to the terminal; name a file with -o FILE");
        }
        out.write_all(&bytes)
            .and_then(|()| out.flush())
            .context("cannot write the archive")?;
        return Ok(0);
    }
    write(&path, &bytes).with_context(|| format!("cannot write {}", path.display()))?;
    if !global.quiet {
        let files = capture
            .tree
            .iter()
            .filter(|(_, node)| matches!(node, crate::archive::Node::File(_)))
            .count();
        print(&format!(
            "{}: {files} files, {} bytes; `tar tzf` lists them, --root replays them\n",
            escape::text(&path.display().to_string()),
            bytes.len()
        ))?;
    }
    Ok(0)
}

/// A new file that only its owner may read: root's directories are full of links that others could have made.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
