//! `check`: what each VM gets, what it loses and why, and the fix.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use nix::errno::Errno;

use super::{host_with, print};
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
    let (report, failed) = report(&survey, &policies, &arguments.vmids)?;
    let answer = match arguments.format {
        Format::Json => escape::json(&report).context("cannot write JSON")?,
        Format::Text if arguments.all => text::table(&report, global.style()),
        Format::Text => text::check(&report, global.style()),
    };
    print(&answer)?;
    Ok(if failed {
        EXIT_ERROR
    } else {
        u8::from(loses(&report))
    })
}

/// Whether some VM loses `AtomicOps` that its host could give.
pub fn loses(report: &model::Report) -> bool {
    let mut entries = report.vms.iter().flat_map(|vm| &vm.entries);
    entries.any(|entry| entry.verdict == Verdict::Lost)
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
    let mut failed = false;
    for vmid in vmids {
        let bytes = match host.vm_config(vmid) {
            Ok(Some(bytes)) => bytes,
            // Deleted since it was listed.
            Ok(None) if all => continue,
            Ok(None) => bail!("{}", no_such_vm(host, vmid)),
            Err(error) if all => {
                failed = true;
                report.vms.push(unexamined(vmid, error.in_words()));
                continue;
            }
            Err(error) => return Err(as_root(error)),
        };
        let settings = policies.of(vmid);
        match survey.examine(vmid, &bytes, &settings) {
            Ok(examined) => report.vms.push(examined.report),
            Err(error) if all => {
                failed = true;
                report.vms.push(unexamined(vmid, error.in_words()));
            }
            Err(error) => return Err(error).with_context(|| format!("VM {vmid}")),
        }
    }
    name_functions(host, &mut report.vms);
    Ok((report, failed))
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

/// Fills in the names of functions from `pci.ids`.
pub fn name_functions(host: &Host, vms: &mut [model::Vm]) {
    let id = |text: &str| u16::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let pair = |function: &model::Function| Some((id(&function.vendor)?, id(&function.device)?));
    let functions = |vms: &mut [model::Vm], visit: &mut dyn FnMut(&mut model::Function)| {
        for vm in vms {
            for alternative in vm
                .entries
                .iter_mut()
                .flat_map(|entry| &mut entry.alternatives)
            {
                alternative.functions.iter_mut().for_each(&mut *visit);
            }
        }
    };
    let mut wanted = BTreeSet::new();
    functions(vms, &mut |function| wanted.extend(pair(function)));
    let names = host.device_names(wanted).unwrap_or_else(|error| {
        log::debug!("{}", error.in_words());
        BTreeMap::new()
    });
    functions(vms, &mut |function| {
        let by_id = pair(function).and_then(|pair| names.get(&pair).cloned());
        let listed = || {
            host.listed_name(function.host.parse().ok()?)
                .map(str::to_owned)
        };
        function.name = by_id.or_else(listed);
    });
}
