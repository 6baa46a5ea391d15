//! `check`: what each VM gets, what it loses and why, and the fix.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use nix::errno::Errno;

use super::{host_with, print, unless_closed};
use crate::cli::{EXIT_ERROR, Format, Global};
use crate::examine::Survey;
use crate::host::{Cause, Host, HostError};
use crate::policy::Policies;
use crate::report::{escape, model, text};
use crate::verdict::Verdict;
use crate::vmconf::Vmid;

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The VMs; without any, all of this node
    pub vmids: Vec<Vmid>,
    /// All VMs of this node, as a table
    #[arg(long, conflicts_with = "vmids")]
    pub all: bool,
    /// The output of `lspci -D -vvv -xxxx`, run as root, in place of the host's devices; needs --root for the VMs
    #[arg(long, value_name = "FILE")]
    pub lspci: Option<PathBuf>,
    /// Form of the answer
    #[arg(long, default_value = "text")]
    pub format: Format,
}

/// Runs the command. Exit status 1 where a VM loses `AtomicOps` that its host could give.
pub fn run(global: &Global, arguments: &Arguments) -> anyhow::Result<u8> {
    if arguments.lspci.is_some() && global.root.is_none() {
        // Whose VMs would they be?
        bail!(
            "--lspci needs --root DIR with the VMs' configurations as DIR/etc/pve/qemu-server/VMID.conf"
        );
    }
    let host = host_with(global, arguments.lspci.as_deref())?;
    let policies = policies(&host, global)?;
    let survey = Survey::new(&host);
    if arguments.format == Format::Json && arguments.vmids.is_empty() {
        return stream(&survey, &policies);
    }
    let (report, failed) = report(&survey, &policies, &arguments.vmids)?;
    let answer = match arguments.format {
        Format::Json => escape::json(&report).context("cannot write JSON")?,
        Format::Text if arguments.all => text::table(&report, global.style()),
        Format::Text => text::check(&report, global.style()),
    };
    print(&answer)?;
    Ok(exit_status(failed, report.vms.iter().any(loses)))
}

/// Whether a VM loses `AtomicOps` that its host could give.
fn loses(vm: &model::Vm) -> bool {
    let mut entries = vm.entries.iter();
    entries.any(|entry| entry.verdict == Verdict::Lost)
}

fn exit_status(failed: bool, loses: bool) -> u8 {
    if failed { EXIT_ERROR } else { u8::from(loses) }
}

/// Writes the report on all VMs of this node as JSON, each VM as soon as it is examined: ten thousand of them are about
/// a hundred megabytes of text, and there is no reason to hold more than one.
fn stream(survey: &Survey, policies: &Policies) -> anyhow::Result<u8> {
    let head = survey.report()?;
    let vmids = survey.host().vmids().map_err(as_root)?;
    let mut names = Names::new(survey.host());
    let (mut failed, mut lost) = (false, false);
    let vms = vmids.into_iter().filter_map(|vmid| {
        let mut vm = examined_or_why_not(survey, policies, vmid)?;
        names.fill(&mut vm);
        failed |= vm.error.is_some();
        lost |= loses(&vm);
        Some(vm)
    });
    let mut out = std::io::BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    let written = escape::write_json(&mut out, &model::Streamed::new(&head, vms));
    let written = written.and_then(|()| std::io::Write::flush(&mut out));
    unless_closed(written)?;
    Ok(exit_status(failed, lost))
}

/// The policy files; a broken one is an error, since the answer depends on it.
pub fn policies(host: &Host, global: &Global) -> anyhow::Result<Policies> {
    let policies = Policies::read(host, global.config.as_deref());
    match policies.problems.first() {
        Some(problem) => bail!("{problem}"),
        None => Ok(policies),
    }
}

/// The report on these VMs, or on all of this node. The second value tells whether one could not be examined.
pub fn report(
    survey: &Survey,
    policies: &Policies,
    vmids: &[Vmid],
) -> anyhow::Result<(model::Report, bool)> {
    let host = survey.host();
    let mut report = survey.report()?;
    let all = vmids.is_empty();
    let vmids = if all {
        host.vmids().map_err(as_root)?
    } else {
        vmids
            .iter()
            .copied()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    };
    for vmid in vmids {
        if all {
            report
                .vms
                .extend(examined_or_why_not(survey, policies, vmid));
            continue;
        }
        let Some(bytes) = host.vm_config(vmid).map_err(as_root)? else {
            bail!("{}", no_such_vm(host, vmid));
        };
        let examined = survey.examine(vmid, &bytes, &policies.of(vmid));
        let examined = examined.with_context(|| format!("VM {vmid}"))?;
        report.vms.push(examined.report);
    }
    let mut names = Names::new(host);
    report.vms.iter_mut().for_each(|vm| names.fill(vm));
    let failed = all && report.vms.iter().any(|vm| vm.error.is_some());
    Ok((report, failed))
}

/// The report on one of many VMs, with the error where there is one; `None` where it was deleted since it was listed.
fn examined_or_why_not(survey: &Survey, policies: &Policies, vmid: Vmid) -> Option<model::Vm> {
    let examine = || -> Result<_, HostError> {
        let Some(bytes) = survey.host().vm_config(vmid)? else {
            return Ok(None);
        };
        let examined = survey.examine(vmid, &bytes, &policies.of(vmid))?;
        Ok(Some(examined.report))
    };
    examine().unwrap_or_else(|error| Some(unexamined(vmid, error.in_words())))
}

/// An error of reading, with the advice that helps a user who is not root.
pub fn as_root(error: HostError) -> anyhow::Error {
    let denied = matches!(error.source, Cause::Os(Errno::EACCES | Errno::EPERM));
    if denied && !nix::unistd::geteuid().is_root() {
        anyhow::anyhow!(
            "{}: only root may read VM configurations and the registers of devices: run this as root",
            error.in_words()
        )
    } else {
        error.into()
    }
}

/// The end of a message about something that could not be read: what helps a user who is not root.
pub fn root_advice() -> &'static str {
    if nix::unistd::geteuid().is_root() {
        ""
    } else {
        ": only root may read the registers of devices, run this as root"
    }
}

fn unexamined(vmid: Vmid, error: String) -> model::Vm {
    model::Vm {
        vmid,
        name: None,
        machine: String::new(),
        verdict: Verdict::Unknown,
        reported: false,
        skipped: None,
        start_error: None,
        entries: Vec::new(),
        args_ports: Vec::new(),
        args_not_analysed: Vec::new(),
        dropped_lines: Vec::new(),
        error: Some(error),
    }
}

/// Why there is no such VM here, with the node it is on, or with IDs that are near.
pub fn no_such_vm(host: &Host, vmid: Vmid) -> String {
    if let Ok(Some(node)) = host.node_of(vmid) {
        return format!(
            "VM {vmid} is on node '{}': run this there",
            escape::text(&node)
        );
    }
    let mut near = host.vmids().unwrap_or_default();
    near.sort_by_key(|other| other.get().abs_diff(vmid.get()));
    near.truncate(3);
    near.sort_unstable();
    let near: Vec<_> = near.iter().map(ToString::to_string).collect();
    if near.is_empty() {
        format!("there is no VM {vmid}, and no other VM on this node")
    } else {
        format!(
            "there is no VM {vmid} on this node; the nearest IDs are {}",
            near.join(", ")
        )
    }
}

/// Names of functions from `pci.ids`, or from the listing in place of the host's devices; each looked up once.
pub struct Names<'h> {
    host: &'h Host,
    known: BTreeMap<(u16, u16), Option<String>>,
}

impl<'h> Names<'h> {
    /// No name is known yet.
    pub const fn new(host: &'h Host) -> Self {
        Self {
            host,
            known: BTreeMap::new(),
        }
    }

    /// Fills in the names of a VM's functions.
    pub fn fill(&mut self, vm: &mut model::Vm) {
        let mut functions: Vec<_> = vm
            .entries
            .iter_mut()
            .flat_map(|entry| &mut entry.alternatives)
            .flat_map(|alternative| &mut alternative.functions)
            .collect();
        let wanted: BTreeSet<_> = functions
            .iter()
            .filter_map(|function| pair(function))
            .filter(|pair| !self.known.contains_key(pair))
            .collect();
        if !wanted.is_empty() {
            let found = self.host.device_names(wanted.iter().copied());
            let mut found = found.unwrap_or_else(|error| {
                log::debug!("{}", error.in_words());
                BTreeMap::new()
            });
            let known = wanted.into_iter().map(|pair| (pair, found.remove(&pair)));
            self.known.extend(known);
        }
        for function in &mut functions {
            let by_id = pair(function).and_then(|pair| self.known.get(&pair).cloned().flatten());
            let listed = || {
                let addr = function.host.parse().ok()?;
                self.host.listed_name(addr).map(str::to_owned)
            };
            let name = by_id.or_else(listed);
            function.name = name;
        }
    }
}

/// Vendor and device ID of a function of the report.
fn pair(function: &model::Function) -> Option<(u16, u16)> {
    let id = |text: &str| u16::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    Some((id(&function.vendor)?, id(&function.device)?))
}
