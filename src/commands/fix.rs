//! `fix`: shows the repair of a VM as a diff, asks, and makes it.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};

use super::check::{Names, as_root, no_such_vm, policies};
use super::{ask, host, mapping, print};
use crate::change::{self, Change};
use crate::cli::Global;
use crate::examine::{Examined, Survey};
use crate::host::Host;
use crate::policy::Policies;
use crate::report::model::{Entry, Vm};
use crate::report::wrap::Page;
use crate::report::{diff, escape, text};
use crate::settings::{Settings, Strategy};
use crate::store::journal::Origin;
use crate::verdict::Verdict;
use crate::vmconf::edit::Edit;
use crate::vmconf::{HostpciIndex, Vmid};

/// Exit status where a loss stays.
const LOSS_STAYS: u8 = 1;

/// Arguments of `fix`.
#[derive(Debug, clap::Args)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub struct Arguments {
    /// The VM
    #[arg(required_unless_present = "all")]
    pub vmid: Option<Vmid>,
    /// How to repair; without it, as the policy says
    #[arg(long, value_name = "HOW")]
    pub strategy: Option<Strategy>,
    /// Only show what would be changed
    #[arg(long)]
    pub dry_run: bool,
    /// Make the change without asking
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Change the cluster's mappings too, where the VM passes a device through one
    #[arg(long, conflicts_with = "all")]
    pub mapping: bool,
    /// All VMs of this node, as an overview
    #[arg(long, conflicts_with = "vmid", requires = "dry_run")]
    pub all: bool,
}

/// Runs the command. Exit status 1 where a loss stays that was not to be only shown.
pub fn run(global: &Global, arguments: &Arguments) -> anyhow::Result<u8> {
    let host = host(global)?;
    let policies = policies(&host, global)?;
    let survey = Survey::new(&host);
    match arguments.vmid {
        Some(vmid) => one(global, arguments, &survey, &policies, vmid),
        None => all(global, arguments, &survey, &policies),
    }
}

fn settings(policies: &Policies, arguments: &Arguments, vmid: Vmid) -> Settings {
    let settings = policies.of(vmid);
    Settings {
        strategy: arguments.strategy.unwrap_or(settings.strategy),
        ..settings
    }
}

/// The edit of everything that can be repaired without a decision by a person.
pub fn edit_of(examined: &Examined) -> anyhow::Result<Edit> {
    let set: BTreeMap<HostpciIndex, Option<String>> = examined
        .edits()
        .into_iter()
        .map(|(index, value)| (index, Some(value)))
        .collect();
    examined
        .document
        .edit(&set)
        .context("the repair cannot be written into the configuration")
}

fn examine(survey: &Survey, vmid: Vmid, settings: &Settings) -> anyhow::Result<Option<Examined>> {
    let host = survey.host();
    let Some(bytes) = host.vm_config(vmid).map_err(as_root)? else {
        return Ok(None);
    };
    let mut examined = survey
        .examine(vmid, &bytes, settings)
        .map_err(as_root)
        .with_context(|| format!("VM {vmid}"))?;
    Names::new(host).fill(&mut examined.report);
    Ok(Some(examined))
}

fn one(
    global: &Global,
    arguments: &Arguments,
    survey: &Survey,
    policies: &Policies,
    vmid: Vmid,
) -> anyhow::Result<u8> {
    let host = survey.host();
    let settings = settings(policies, arguments, vmid);
    let Some(examined) = examine(survey, vmid, &settings)? else {
        bail!("{}", no_such_vm(host, vmid));
    };
    let vm = &examined.report;
    let lost: Vec<&Entry> = vm
        .entries
        .iter()
        .filter(|entry| entry.verdict == Verdict::Lost)
        .collect();
    if lost.is_empty() {
        return nothing_lost(global, vm);
    }
    let edit = edit_of(&examined)?;
    let config = &examined.config;
    if change::is_pending_already(config, &edit) {
        let mut page = Page::new(global.style().columns);
        let title = text::vm_title(vm);
        page.prose(
            0,
            &format!("{title}: the repair is made already, and pending."),
        );
        page.prose(0, &change::Effect::Pending.in_words(vmid));
        print(&page.into_text())?;
        return Ok(0);
    }
    let change = Change {
        host,
        vmid,
        origin: Origin::Fix,
        undoes: None,
        edit: &edit,
        quiet: global.quiet,
    };
    let mappings = if arguments.mapping {
        mapping::changes(&lost)
    } else {
        Vec::new()
    };
    let mut page = Page::new(global.style().columns);
    loss(&mut page, global, vm, &lost, arguments.mapping);
    if !edit.is_empty() {
        shown_edit(&mut page, global, &change)?;
    }
    for mapping in &mappings {
        page.gap();
        mapping.show(&mut page, global.palette(), host)?;
    }
    print(&page.into_text())?;
    if edit.is_empty() && mappings.is_empty() {
        print("\nThere is nothing here to change without a decision of yours.\n")?;
        return Ok(if arguments.dry_run { 0 } else { LOSS_STAYS });
    }
    if let Some(key) = change::pending_key(config, &edit.changes) {
        bail!(
            "a change of {key} is pending already, and would be replaced: take it back with `qm set {vmid} --revert \
             {key}`, or stop and start the VM so that it takes effect"
        );
    }
    if arguments.dry_run {
        print("\nNothing was changed (--dry-run).\n")?;
        return Ok(0);
    }
    if !mappings.is_empty() && !host.is_live() {
        bail!("a mapping is changed by pvesh on a live host only, and this is a tree below --root");
    }
    print("\n")?;
    if !arguments.yes && !ask::agreed("Make this change?")? {
        print("Nothing was changed.\n")?;
        return Ok(LOSS_STAYS);
    }
    let mut page = Page::new(global.style().columns);
    if !edit.is_empty() {
        let effect = change.make()?;
        page.prose(0, &format!("Changed. {}", effect.in_words(vmid)));
        page.labelled_verbatim(
            0,
            "To take it back: ",
            &format!("pve-atomicops undo {vmid}"),
        );
    }
    for mapping in &mappings {
        mapping.make(host, global.quiet)?;
        mapping.done(&mut page);
    }
    if !global.quiet {
        print(&page.into_text())?;
    }
    let repaired = |entry: &&Entry| {
        entry.fix.as_ref().is_some_and(|fix| match fix.strategy {
            "mapping" => arguments.mapping,
            strategy => strategy != "advice",
        })
    };
    Ok(if lost.iter().all(repaired) {
        0
    } else {
        LOSS_STAYS
    })
}

/// What there is to say where no entry is lost. That is only known of what could be read, and of what
/// Proxmox takes.
fn nothing_lost(global: &Global, vm: &Vm) -> anyhow::Result<u8> {
    let unclear = vm
        .entries
        .iter()
        .find(|entry| matches!(entry.verdict, Verdict::Unknown | Verdict::Error));
    if let Some(entry) = unclear {
        let mut page = Page::new(global.style().columns);
        text::block(&mut page, vm, global.palette());
        print(&page.into_text())?;
        let (key, vmid) = (&entry.key, vm.vmid);
        if entry.verdict == Verdict::Error {
            bail!(
                "{key} of VM {vmid} has to be mended by hand first: Proxmox itself does not take it"
            );
        }
        bail!(
            "{key} of VM {vmid} could not be judged, so there is nothing to repair{}",
            super::check::root_advice()
        );
    }
    if !global.quiet {
        let title = text::vm_title(vm);
        let mut page = Page::new(global.style().columns);
        page.prose(
            0,
            &format!("{title}: nothing is lost, so there is nothing to repair"),
        );
        print(&page.into_text())?;
    }
    Ok(0)
}

/// What is lost and why; for what can't be repaired here, the advice.
fn loss(page: &mut Page, global: &Global, vm: &Vm, lost: &[&Entry], with_mapping: bool) {
    let palette = global.palette();
    page.prose(
        0,
        &format!(
            "{}, {}: {}",
            palette.head(&text::vm_title(vm)),
            escape::short(&vm.machine, 40),
            palette.bad("lost")
        ),
    );
    for entry in lost {
        match &entry.fix {
            Some(fix) if fix.strategy == "mapping" && with_mapping => {
                text::entry_loss(page, entry, palette);
            }
            Some(fix) if fix.strategy == "mapping" => {
                text::entry_block(page, entry, palette);
                page.labelled(
                    4,
                    "       ",
                    "(`--mapping` shows who uses it, and changes it)",
                );
            }
            Some(fix) if fix.strategy != "advice" => {
                text::entry_loss(page, entry, palette);
                text::notes(page, &fix.notes);
            }
            _ => text::entry_block(page, entry, palette),
        }
    }
}

/// The edit as a diff, the command, and when it will take effect.
fn shown_edit(page: &mut Page, global: &Global, change: &Change) -> anyhow::Result<()> {
    let Change {
        host, vmid, edit, ..
    } = *change;
    page.gap();
    let file = format!("/etc/pve/qemu-server/{vmid}.conf");
    page.lines(&diff::unified(
        &file,
        &edit.before,
        &edit.after,
        global.palette(),
    ));
    page.gap();
    if host.is_live() {
        page.labelled_verbatim(0, "by: ", &escape::command(change::qm_set(vmid, edit)));
    }
    page.prose(0, &change.expected_effect()?.in_words(vmid));
    Ok(())
}

/// The overview of all VMs.
fn all(
    global: &Global,
    arguments: &Arguments,
    survey: &Survey,
    policies: &Policies,
) -> anyhow::Result<u8> {
    let host: &Host = survey.host();
    let palette = global.palette();
    let mut page = Page::new(global.style().columns);
    let mut silent = Vec::new();
    let mut failed = false;
    for vmid in host.vmids().map_err(as_root)? {
        let settings = settings(policies, arguments, vmid);
        let examined = match examine(survey, vmid, &settings) {
            Ok(Some(examined)) => examined,
            // Deleted since it was listed.
            Ok(None) => continue,
            Err(error) => {
                failed = true;
                page.gap();
                page.labelled(
                    0,
                    &format!("VM {vmid}: "),
                    &escape::text(&format!("{error:#}")),
                );
                continue;
            }
        };
        let vm = &examined.report;
        if !vm
            .entries
            .iter()
            .any(|entry| entry.verdict == Verdict::Lost)
        {
            continue;
        }
        if !vm.reported {
            silent.push(vmid.to_string());
            continue;
        }
        page.gap();
        page.prose(0, &palette.head(&text::vm_title(vm)));
        overview(&mut page, global, &examined)?;
    }
    if page.is_empty() && !global.quiet {
        page.prose(
            0,
            "no VM of this node loses anything that the hook would report",
        );
    }
    if !silent.is_empty() && !global.quiet {
        page.gap();
        page.labelled(
            0,
            "note: ",
            &format!(
                "the policy has the hook say nothing about a loss of {}; `check VMID` tells why, `fix VMID` repairs it \
                 all the same",
                silent.join(", ")
            ),
        );
    }
    print(&page.into_text())?;
    Ok(if failed { crate::cli::EXIT_ERROR } else { 0 })
}

/// One VM of the overview: the lines that would change, and what needs a decision.
fn overview(page: &mut Page, global: &Global, examined: &Examined) -> anyhow::Result<()> {
    let palette = global.palette();
    let line = |line: &[u8]| escape::text(String::from_utf8_lossy(line).trim());
    for change in &edit_of(examined)?.changes {
        if let Some(old) = &change.old {
            page.verbatim(2, &palette.bad(&format!("-{}", line(old))));
        }
        if let Some(new) = &change.new {
            page.verbatim(2, &palette.good(&format!("+{}", line(new))));
        }
    }
    for entry in &examined.report.entries {
        let label = format!("{}: ", entry.key);
        match (&entry.fix, &entry.no_fix) {
            (Some(fix), _) if fix.strategy == "mapping" => {
                let name = fix.mapping.as_ref().map_or("", |mapping| &mapping.name);
                let what = format!(
                    "passed by mapping '{}', which belongs to the cluster: `fix {} --mapping`",
                    escape::text(name),
                    examined.report.vmid
                );
                page.labelled(2, &label, &what);
            }
            (Some(fix), _) if fix.strategy == "advice" => {
                page.labelled(2, &label, "needs a decision; possible:");
                for command in &fix.commands {
                    page.verbatim(4, command);
                }
            }
            (None, Some(why)) => {
                page.labelled(2, &label, &format!("no fix: {}", escape::text(why)));
            }
            _ => {}
        }
    }
    Ok(())
}
