//! The report for people: `check`'s blocks and table, and the findings of the hook's task log.

use super::escape::{short, text};
use super::model::{Bridge, Entry, Fix, Function, Report, Vm};
use super::style::Palette;
use super::wrap::{Columns, Page, width};
use crate::pci::Widths;
use crate::verdict::{Reason, Verdict};

/// Why management tools have to decide, in QEMU's maintainers' words.
pub const RATIONALE: &str =
    "https://lore.kernel.org/qemu-devel/8b3e30e6-3c3e-49ab-b9db-8296aaf819d1@app.fastmail.com/";

/// The longest name or value that is printed in one place, in characters.
const LONGEST: usize = 120;

/// A VM for people: `VM 101 (train)`.
pub fn vm_title(vm: &Vm) -> String {
    match &vm.name {
        Some(name) => format!("VM {} ({})", vm.vmid, short(name, 40)),
        None => format!("VM {}", vm.vmid),
    }
}

/// Why `AtomicOps` do not reach the guest, as the end of a sentence.
pub fn reason_words(entry: &Entry) -> String {
    let functions = entry
        .alternatives
        .iter()
        .find(|alternative| alternative.chosen)
        .map_or(0, |chosen| chosen.functions.len());
    match entry.reason {
        Some(Reason::Multifunction) => format!(
            "passed with {functions} functions it is a multifunction device, and QEMU then hides AtomicOps from the guest"
        ),
        Some(Reason::NotPcieEntry) => {
            "without pcie=1 it is a conventional PCI device in the guest".to_owned()
        }
        Some(Reason::NotQ35) => {
            "the machine is not q35, so the guest has no PCI Express".to_owned()
        }
        Some(Reason::NoRootPort) => {
            "Proxmox puts a win7 guest's device on pcie.0, without a root port".to_owned()
        }
        Some(Reason::NotRootPort) => "it sits behind a switch or bridge in the guest".to_owned(),
        Some(Reason::FunctionNotZero) => {
            "it is not function 0 of slot 0 of its guest root port".to_owned()
        }
        Some(Reason::QemuTooOld) => "QEMU before 8.1 never offers AtomicOps to a guest".to_owned(),
        None => String::new(),
    }
}

/// A function for people: address, then name or IDs.
pub fn function_title(function: &Function) -> String {
    match &function.name {
        Some(name) => format!("{} {}", function.host, short(name, LONGEST)),
        None => format!(
            "{} [{}:{}]",
            function.host,
            function.vendor.trim_start_matches("0x"),
            function.device.trim_start_matches("0x")
        ),
    }
}

/// The function on which an entry's verdict rests.
pub fn subject(entry: &Entry) -> Option<&Function> {
    let subject = entry.subject.as_deref()?;
    let chosen = entry
        .alternatives
        .iter()
        .find(|alternative| alternative.chosen)?;
    chosen
        .functions
        .iter()
        .find(|function| function.host == subject)
}

/// One bridge in words: address, type, and the bit that counts for it.
pub fn bridge_words(bridge: &Bridge) -> String {
    let Some(addr) = bridge.addr.as_deref() else {
        return "no root port above".to_owned();
    };
    let routes = |bridge: &Bridge| match bridge.routing {
        Some(true) => "routes",
        Some(false) => "does not route",
        None => "unreadable",
    };
    match bridge.kind {
        "root-port" => match bridge.completer {
            Some(completer) => format!("root port {addr} completes {}", widths_words(completer)),
            None => format!("root port {addr} unreadable"),
        },
        "upstream-port" if bridge.egress_blocking == Some(true) => {
            format!("switch port {addr} {}, blocks egress", routes(bridge))
        }
        "upstream-port" | "downstream-port" => format!("switch port {addr} {}", routes(bridge)),
        "pci-bridge" => format!("PCI bridge {addr}"),
        _ => format!("bridge {addr} of unknown type"),
    }
}

/// Widths in words: `32 and 64 bit`.
pub fn widths_words(widths: Widths) -> String {
    let bits: Vec<_> = widths
        .iter()
        .map(|width| width.bits().to_string())
        .collect();
    match bits.split_last() {
        None => "none".to_owned(),
        Some((last, [])) => format!("{last} bit"),
        Some((last, rest)) => format!("{} and {last} bit", rest.join(", ")),
    }
}

/// The host path of a function in one line, root port first.
pub fn path_words(function: &Function) -> String {
    hops(function).join(" -> ")
}

/// The steps of a function's host path, root port first, and what they come to.
fn hops(function: &Function) -> Vec<String> {
    let own = match (&function.host_detail, function.host_widths.is_empty()) {
        (Some(detail), true) => format!("cannot: {detail}"),
        _ => format!("can do {}", widths_words(function.host_widths)),
    };
    let bridges = function.path.iter().map(bridge_words);
    bridges.chain([own]).collect()
}

/// The findings of the hook for one VM, one line each, without line ends. Empty where nothing is lost.
pub fn findings(vm: &Vm) -> Vec<String> {
    let lost: Vec<_> = vm
        .entries
        .iter()
        .filter(|entry| entry.verdict == Verdict::Lost)
        .collect();
    if lost.is_empty() {
        return Vec::new();
    }
    let keys: Vec<_> = lost.iter().map(|entry| entry.key.as_str()).collect();
    let mut lines = vec![format!(
        "WARN: {} will not get the PCIe AtomicOps that its host can give ({}): multi-GPU compute such as ROCm's RCCL fails \
         without them",
        vm_title(vm),
        keys.join(", ")
    )];
    for entry in lost {
        lines.push(format!("  {}: {}", entry.key, short(&entry.value, LONGEST)));
        if let Some(function) = subject(entry) {
            lines.push(format!("    card: {}", function_title(function)));
            lines.push(format!("    host path: {}", path_words(function)));
            if let Some(uncertain) = &function.uncertain {
                lines.push(format!("    note: {}", text(uncertain)));
            }
        }
        lines.push(format!("    guest: {}", guest_words(entry)));
        match (&entry.fix, &entry.no_fix) {
            (Some(fix), _) => push_fix(&mut lines, fix),
            (None, Some(reason)) => lines.push(format!("    no fix: {}", text(reason))),
            (None, None) => {}
        }
    }
    lines.push(format!("  why: {RATIONALE}"));
    lines
}

fn push_fix(lines: &mut Vec<String>, fix: &Fix) {
    let label = if fix.strategy == "advice" {
        "possible"
    } else {
        "fix"
    };
    for command in &fix.commands {
        lines.push(format!("    {label}: {command}"));
    }
    for note in &fix.notes {
        lines.push(format!("    note: {}", text(note)));
    }
}

fn guest_words(entry: &Entry) -> String {
    let shows = match &entry.guest_port {
        Some(port) => format!(
            "its root port {} will show {}",
            text(port),
            entry.guest_widths
        ),
        None => "no root port above it".to_owned(),
    };
    let reason = reason_words(entry);
    if reason.is_empty() {
        shows
    } else {
        format!("{shows}: {reason}")
    }
}

/// How to see it in the guest, below every loss and repair.
const CONFIRM: &str = "in the guest, `lspci -vv` shows `AtomicOpsCap: 32bit+ 64bit+` on the GPU's root port, and \
                       `dmesg` no longer says `PCIE atomic ops is not supported` (amdgpu).";

/// How the text of a report is to look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Its colours.
    pub palette: Palette,
    /// How long its lines are.
    pub columns: Columns,
    /// Only what is lost or could not be told.
    pub quiet: bool,
}

/// `check` for people: a block for each VM with passed-through devices.
pub fn check(report: &Report, style: Style) -> String {
    let mut page = Page::new(style.columns);
    for vm in &report.vms {
        let nothing = vm.entries.is_empty()
            && vm.args_ports.is_empty()
            && vm.start_error.is_none()
            && vm.error.is_none()
            && vm.dropped_lines.is_empty();
        if nothing {
            if !style.quiet {
                page.prose(0, &format!("{}: no passed-through devices", vm_title(vm)));
            }
            continue;
        }
        if style.quiet && vm.verdict != Verdict::Lost && vm.error.is_none() {
            continue;
        }
        page.gap();
        block(&mut page, vm, style.palette);
    }
    let lost: Vec<_> = report
        .vms
        .iter()
        .filter(|vm| vm.verdict == Verdict::Lost && vm.error.is_none())
        .collect();
    if !lost.is_empty() {
        page.gap();
        let fixable = |entry: &&Entry| {
            entry
                .fix
                .as_ref()
                .is_some_and(|fix| fix.strategy != "advice")
        };
        for vm in lost
            .iter()
            .filter(|vm| vm.entries.iter().any(|entry| fixable(&entry)))
        {
            page.labelled_verbatim(0, "To repair: ", &format!("pve-atomicops fix {}", vm.vmid));
        }
        page.labelled(0, "To confirm: ", CONFIRM);
        page.prose(0, "Why QEMU leaves this to management tools:");
        page.verbatim(0, RATIONALE);
        if let (Some(version), false) = (&report.qemu.version, report.qemu.verified) {
            page.labelled(
                0,
                "Note: ",
                &format!(
                    "QEMU {} is newer than 11.1, the newest whose rule was read; it is assumed to be the same.",
                    text(version)
                ),
            );
        }
    }
    page.into_text()
}

/// One VM, with all its entries.
pub fn block(page: &mut Page, vm: &Vm, palette: Palette) {
    page.prose(
        0,
        &format!(
            "{}, {}: {}",
            palette.head(&vm_title(vm)),
            short(&vm.machine, 40),
            verdict_word(vm.verdict, palette)
        ),
    );
    if let Some(error) = &vm.error {
        page.prose(2, &text(error));
    }
    if let Some(error) = &vm.start_error {
        let label = format!("{} ", palette.bad("Proxmox refuses to start it:"));
        page.labelled(2, &label, &text(error));
    }
    for dropped in &vm.dropped_lines {
        let label = format!(
            "{} ",
            palette.doubt(&format!("Proxmox ignores line {}:", dropped.line))
        );
        page.labelled(2, &label, &text(&dropped.text));
    }
    if let Some(skipped) = &vm.skipped {
        page.labelled(2, "the hook says nothing: ", &text(skipped));
    }
    for entry in &vm.entries {
        entry_block(page, entry, palette);
    }
    for port in &vm.args_ports {
        let functions: Vec<_> = port
            .functions
            .iter()
            .map(|function| format!("{} at {}", text(&function.host), function.addr))
            .collect();
        page.labelled(
            2,
            "args: ",
            &format!(
                "root port {} ({}) with {} will show {}",
                text(&port.port),
                text(&port.model),
                functions.join(", "),
                port.guest_widths
            ),
        );
    }
    for part in &vm.args_not_analysed {
        page.labelled(
            2,
            "args: ",
            &format!("not analysed: {}", short(part, LONGEST)),
        );
    }
}

/// One entry: its line, what comes of it, why, and the repair.
pub fn entry_block(page: &mut Page, entry: &Entry, palette: Palette) {
    entry_loss(page, entry, palette);
    if entry.error.is_some() {
        return;
    }
    if let Some(fix) = &entry.fix {
        fix_block(page, entry, fix, palette);
    }
    if let Some(reason) = &entry.no_fix {
        page.labelled(4, &format!("{} ", palette.doubt("no fix:")), &text(reason));
    }
}

/// One entry without its repair.
pub fn entry_loss(page: &mut Page, entry: &Entry, palette: Palette) {
    page.labelled_verbatim(
        2,
        &format!("{}: ", palette.head(&entry.key)),
        &short(&entry.value, LONGEST),
    );
    let (word, sentence) = verdict_words(entry.verdict);
    let word = paint(entry.verdict, &format!("{word}:"), palette);
    if let Some(error) = &entry.error {
        let what = if entry.dropped {
            "Proxmox drops this line and starts the VM without the device"
        } else {
            "Proxmox refuses it"
        };
        page.labelled(4, &format!("{word} "), &format!("{what}: {}", text(error)));
        return;
    }
    page.labelled(4, &format!("{word} "), sentence);
    for alternative in entry
        .alternatives
        .iter()
        .filter(|alternative| !alternative.chosen)
    {
        page.labelled(
            4,
            "or:    ",
            &format!("{}, if the first choice is taken", text(&alternative.path)),
        );
    }
    let Some(function) = subject(entry) else {
        return;
    };
    page.labelled(4, "card:  ", &function_title(function));
    for (at, hop) in hops(function).iter().enumerate() {
        page.labelled(4, if at == 0 { "host:  " } else { "       -> " }, hop);
    }
    if let Some(uncertain) = &function.uncertain {
        let label = format!("{} ", palette.doubt("uncertain:"));
        page.labelled(4, &label, &text(uncertain));
    }
    page.labelled(4, "guest: ", &guest_words(entry));
}

/// The repair the three ways people know it.
fn fix_block(page: &mut Page, entry: &Entry, fix: &Fix, palette: Palette) {
    let label = if fix.strategy == "advice" {
        "possible: "
    } else {
        "fix:   "
    };
    for command in &fix.commands {
        page.labelled_verbatim(4, &palette.good(label), command);
    }
    if !fix.set.is_empty() {
        page.prose(11, "or in the config file:");
        for (key, value) in &fix.set {
            page.verbatim(13, &format!("{key}: {}", text(value)));
        }
    }
    if entry.reason == Some(Reason::Multifunction) && fix.strategy == "explicit" {
        page.prose(
            11,
            &format!(
                "or in the web interface: Hardware > PCI Device ({}), untick \"All Functions\"",
                entry.key
            ),
        );
    }
    notes(page, &fix.notes);
}

/// What to know before a repair.
pub fn notes(page: &mut Page, notes: &[String]) {
    for note in notes {
        page.labelled(4, "note:  ", &text(note));
    }
}

/// A verdict as a word and what it means.
const fn verdict_words(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Ok => ("ok", "the guest gets AtomicOps"),
        Verdict::Lost => ("lost", "the host can, the guest will not see it"),
        Verdict::Unavailable => ("unavailable", "the host path cannot"),
        Verdict::Unknown => ("unknown", "the host could not be read"),
        Verdict::NotApplicable => ("not applicable", "nothing here needs AtomicOps"),
        Verdict::Error => ("error", "Proxmox refuses it"),
    }
}

fn verdict_word(verdict: Verdict, palette: Palette) -> String {
    paint(verdict, verdict_words(verdict).0, palette)
}

fn paint(verdict: Verdict, words: &str, palette: Palette) -> String {
    match verdict {
        Verdict::Ok => palette.good(words),
        Verdict::Lost | Verdict::Error => palette.bad(words),
        Verdict::Unavailable | Verdict::Unknown => palette.doubt(words),
        Verdict::NotApplicable => palette.faint(words),
    }
}

/// `check --all` for people: a line for each VM with passed-through devices.
pub fn table(report: &Report, style: Style) -> String {
    let Style {
        palette,
        columns,
        quiet,
    } = style;
    let rows: Vec<_> = report
        .vms
        .iter()
        .filter(|vm| !vm.entries.is_empty() || vm.error.is_some())
        .filter(|vm| !quiet || vm.verdict == Verdict::Lost || vm.error.is_some())
        .collect();
    if rows.is_empty() {
        return if quiet {
            String::new()
        } else {
            "no VM of this node has passed-through devices\n".to_owned()
        };
    }
    let name = |vm: &Vm| {
        vm.name
            .as_deref()
            .map(|name| short(name, 20))
            .unwrap_or_default()
    };
    let longest = rows
        .iter()
        .map(|vm| width(&name(vm)))
        .max()
        .unwrap_or(0)
        .max(4);
    let mut page = Page::new(columns);
    page.verbatim(
        0,
        &palette.head(&format!(
            "{:>9}  {:<longest$}  {:<14}  entries",
            "VMID", "name", "verdict"
        )),
    );
    for vm in rows {
        let padding = " ".repeat(longest.saturating_sub(width(&name(vm))));
        let word = format!("{:<14}", vm.verdict.as_str());
        let label = format!(
            "{:>9}  {}{padding}  {}  ",
            vm.vmid,
            name(vm),
            paint(vm.verdict, &word, palette)
        );
        page.labelled(0, &label, &entries_words(vm));
    }
    page.into_text()
}

/// The entries of a VM by verdict: `hostpci0 hostpci1 lost, hostpci2 ok`.
fn entries_words(vm: &Vm) -> String {
    if let Some(error) = &vm.error {
        return text(error);
    }
    let mut groups: Vec<(Verdict, Vec<&str>)> = Vec::new();
    for entry in &vm.entries {
        match groups
            .iter_mut()
            .find(|(verdict, _)| *verdict == entry.verdict)
        {
            Some((_, keys)) => keys.push(&entry.key),
            None => groups.push((entry.verdict, vec![&entry.key])),
        }
    }
    let words: Vec<_> = groups
        .iter()
        .map(|(verdict, keys)| format!("{} {}", keys.join(" "), verdict.as_str()))
        .collect();
    words.join(", ")
}
