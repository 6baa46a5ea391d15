//! `topology`: the host's PCI Express paths with their `AtomicOp` bits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::ValueEnum;

use super::{check, host_with, print};
use crate::cli::{EXIT_ERROR, Global};
use crate::examine::Survey;
use crate::host::Host;
use crate::pci::{Sbdf, Topology};
use crate::report::topology::{self, Use, View};
use crate::report::{escape, model};
use crate::vmconf::Vmid;

/// Arguments of `topology`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only these functions, slots (0000:0b:00) and what is below these bridges
    #[arg(value_name = "BDF")]
    pub addresses: Vec<String>,
    /// Only what this VM passes, with its guest ports beside the host's paths
    #[arg(long, value_name = "VMID", conflicts_with = "addresses")]
    pub vm: Option<Vmid>,
    /// Also functions that no VM passes
    #[arg(long, conflicts_with_all = ["addresses", "vm"])]
    pub all: bool,
    /// The output of `lspci -D -vvv -xxxx`, run as root, in place of this host's devices; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub lspci: Option<PathBuf>,
    /// Form of the answer
    #[arg(long, default_value = "text")]
    pub format: Format,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
    /// For Graphviz.
    Dot,
}

/// Runs the command.
pub fn run(global: &Global, arguments: &Arguments) -> anyhow::Result<u8> {
    let host = host_with(global, arguments.lspci.as_deref())?;
    let survey = Survey::new(&host);
    // A text of lspci alone knows no VMs, and no kernel.
    let alone = arguments.lspci.is_some() && global.root.is_none();
    let (report, failed) = if alone {
        (None, false)
    } else {
        let policies = check::policies(&host, global)?;
        let vmids: Vec<_> = arguments.vm.into_iter().collect();
        let (report, failed) = check::report(&survey, &policies, &vmids)?;
        (Some(report), failed)
    };
    let vms = report.map(|report| report.vms).unwrap_or_default();
    let uses = topology::uses(&vms);
    let addresses = addresses(&host)?;
    let shown = if !arguments.addresses.is_empty() {
        asked(&survey, &addresses, &arguments.addresses)?
    } else if arguments.all || alone && arguments.vm.is_none() {
        survey.read(addresses.iter().copied());
        passable(&survey.topology(), &uses)
    } else {
        uses.keys().copied().collect()
    };
    survey.read(shown.iter().copied());
    survey.read_places();
    let pci = survey.topology();
    let shown: BTreeSet<Sbdf> = shown
        .into_iter()
        .filter(|addr| pci.get(*addr).is_some())
        .collect();
    let names = names(&host, &pci, &shown);
    let view = View {
        node: survey.node().ok(),
        topology: &pci,
        kernel: survey.kernel(),
        names: &names,
        uses: &uses,
        shown: &shown,
        note: note(arguments, alone, shown.is_empty(), &uses),
    };
    let vm = arguments.vm.and_then(|_| vms.first());
    print(&answer(arguments.format, &view, vm, global)?)?;
    Ok(if failed { EXIT_ERROR } else { 0 })
}

fn answer(
    format: Format,
    view: &View,
    vm: Option<&model::Vm>,
    global: &Global,
) -> anyhow::Result<String> {
    Ok(match (format, vm) {
        (Format::Text, Some(vm)) => topology::side_by_side(view, vm, global.style()),
        (Format::Text, None) => topology::tree(view, global.style()),
        (Format::Json, vm) => {
            escape::json(&topology::json(view, vm)).context("cannot write JSON")?
        }
        (Format::Dot, vm) => topology::dot(view, vm),
    })
}

fn note(
    arguments: &Arguments,
    alone: bool,
    nothing: bool,
    uses: &BTreeMap<Sbdf, Vec<Use>>,
) -> Option<&'static str> {
    if alone {
        return Some("From the text of lspci alone: VMs and the kernel are not known.");
    }
    let selected = arguments.all || arguments.vm.is_some() || !arguments.addresses.is_empty();
    match (selected, nothing) {
        (true, _) => None,
        (false, true) if uses.is_empty() => {
            Some("No VM of this node passes a function; --all shows those that can be passed.")
        }
        (false, _) => Some("Functions that no VM passes are left out; --all shows them."),
    }
}

fn addresses(host: &Host) -> anyhow::Result<Vec<Sbdf>> {
    Ok(host
        .pci_names()?
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect())
}

/// Functions that are no bridges, and whatever a VM passes.
fn passable(pci: &Topology, uses: &BTreeMap<Sbdf, Vec<Use>>) -> BTreeSet<Sbdf> {
    let bridges: BTreeSet<_> = pci.iter().filter_map(|function| function.parent).collect();
    pci.iter()
        .filter(|function| {
            let plain = topology::is_passable(function.class) && !bridges.contains(&function.addr);
            plain || uses.contains_key(&function.addr)
        })
        .map(|function| function.addr)
        .collect()
}

/// The functions that the user named: by address, by slot, or by a bridge above them.
fn asked(survey: &Survey, all: &[Sbdf], words: &[String]) -> anyhow::Result<BTreeSet<Sbdf>> {
    let mut shown = BTreeSet::new();
    for word in words {
        let full = if word.matches(':').count() == 1 {
            format!("0000:{word}")
        } else {
            word.clone()
        };
        let prefix = format!("{full}.");
        let found: Vec<_> = all
            .iter()
            .copied()
            .filter(|addr| {
                let name = addr.to_string();
                name == full || name.starts_with(&prefix)
            })
            .collect();
        if found.is_empty() {
            bail!(
                "this host has no function '{}'; addresses look like 0000:0b:00.0 or 0b:00",
                escape::text(word)
            );
        }
        survey.read(found.iter().copied());
        let bridge = {
            let pci = survey.topology();
            let mut classes = found
                .iter()
                .filter_map(|addr| pci.get(*addr))
                .map(|function| function.class);
            classes.any(|class| !topology::is_passable(class))
        };
        if bridge {
            // What is below is only known once it was looked at.
            survey.read(all.iter().copied());
        }
        let pci = survey.topology();
        let below = pci.iter().filter(|function| {
            topology::is_passable(function.class)
                && pci
                    .path_to(function.addr)
                    .iter()
                    .any(|above| found.contains(&above.addr))
        });
        shown.extend(below.map(|function| function.addr));
        shown.extend(found.iter().copied().filter(|addr| {
            !pci.iter().any(|other| {
                pci.path_to(other.addr)
                    .iter()
                    .any(|above| above.addr == *addr)
            })
        }));
    }
    Ok(shown)
}

fn names(host: &Host, pci: &Topology, shown: &BTreeSet<Sbdf>) -> BTreeMap<Sbdf, String> {
    let functions: Vec<_> = shown.iter().filter_map(|addr| pci.get(*addr)).collect();
    let ids = functions
        .iter()
        .map(|function| (function.vendor, function.device));
    let by_id = host.device_names(ids).unwrap_or_else(|error| {
        log::debug!("{}", error.in_words());
        BTreeMap::new()
    });
    let name = |addr, ids| {
        let listed = || host.listed_name(addr).map(str::to_owned);
        by_id.get(&ids).cloned().or_else(listed)
    };
    functions
        .iter()
        .filter_map(|function| {
            Some((
                function.addr,
                name(function.addr, (function.vendor, function.device))?,
            ))
        })
        .collect()
}
