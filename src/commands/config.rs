//! `config`: a VM's configuration as Proxmox reads it.

use std::fmt::Write as _;

use anyhow::{Context as _, bail};

use super::check::{as_root, no_such_vm};
use super::{host, print};
use crate::cli::{Format, Global};
use crate::report::escape;
use crate::report::style::Palette;
use crate::vmconf::Vmid;
use crate::vmconf::decode::{Config, Section};
use crate::vmconf::document::Document;

/// Arguments of `config`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The VM
    pub vmid: Vmid,
    /// Form of the answer
    #[arg(long, default_value = "text")]
    pub format: Format,
}

/// The JSON's shape.
#[derive(serde::Serialize)]
struct Answer<'a> {
    schema: u32,
    vmid: Vmid,
    main: &'a Section,
    pending: &'a Section,
    pending_delete: Vec<&'a str>,
    snapshots: &'a [String],
    warnings: Vec<Line<'a>>,
}

#[derive(serde::Serialize)]
struct Line<'a> {
    line: usize,
    text: &'a str,
}

/// Runs the command.
pub fn run(global: &Global, arguments: &Arguments) -> anyhow::Result<u8> {
    let host = host(global)?;
    let vmid = arguments.vmid;
    let Some(bytes) = host
        .vm_config(vmid)
        .map_err(|error| as_root(error.into()))?
    else {
        bail!("{}", no_such_vm(&host, vmid));
    };
    let config = Document::parse(&bytes).decode();
    let answer = match arguments.format {
        Format::Json => escape::json(&Answer {
            schema: 1,
            vmid,
            main: &config.main,
            pending: &config.pending,
            pending_delete: config.pending_deletions().collect(),
            snapshots: &config.snapshots,
            warnings: config
                .warnings
                .iter()
                .map(|warning| Line {
                    line: warning.line,
                    text: &warning.text,
                })
                .collect(),
        })
        .context("cannot write JSON")?,
        Format::Text => text(&config, global.palette()),
    };
    print(&answer)?;
    Ok(0)
}

fn text(config: &Config, palette: Palette) -> String {
    let mut out = String::new();
    let section = |out: &mut String, section: &Section| {
        for (key, value) in section.iter() {
            let _ = writeln!(
                out,
                "{}: {}",
                palette.head(&escape::text(key)),
                escape::text(value)
            );
        }
    };
    section(&mut out, &config.main);
    let deletions: Vec<_> = config.pending_deletions().collect();
    if config.pending.iter().next().is_some() || !deletions.is_empty() {
        let _ = writeln!(out, "\n{}", palette.head("[PENDING]"));
        if !deletions.is_empty() {
            let _ = writeln!(out, "delete: {}", escape::text(&deletions.join(",")));
        }
        section(&mut out, &config.pending);
    }
    if !config.snapshots.is_empty() {
        let _ = writeln!(
            out,
            "\nsnapshots: {}",
            escape::text(&config.snapshots.join(", "))
        );
    }
    for (at, warning) in config.warnings.iter().enumerate() {
        let gap = if at == 0 { "\n" } else { "" };
        let _ = writeln!(
            out,
            "{gap}{} line {}: {}",
            palette.doubt("Proxmox ignores"),
            warning.line,
            escape::text(&warning.text)
        );
    }
    out
}
