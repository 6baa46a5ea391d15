//! The report for people: `check`'s blocks and table, and the findings of the hook's task log.

use std::fmt::Write as _;

use super::escape::{short, text};
use super::model::{Bridge, Entry, Fix, Function, Report, Vm};
use super::style::Palette;
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
    let bridges: Vec<_> = function.path.iter().map(bridge_words).collect();
    let own = match (&function.host_detail, function.host_widths.is_empty()) {
        (Some(detail), true) => format!("cannot: {detail}"),
        _ => format!("can do {}", widths_words(function.host_widths)),
    };
    format!("{} -> {own}", bridges.join(" -> "))
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
                       `dmesg` no longer says `PCIE atomic ops is not supported` (amdgpu)";

/// `check` for people: a block for each VM with passed-through devices.
pub fn check(report: &Report, palette: Palette, quiet: bool) -> String {
    let mut out = String::new();
    for vm in &report.vms {
        let nothing = vm.entries.is_empty()
            && vm.args_ports.is_empty()
            && vm.start_error.is_none()
            && vm.error.is_none()
            && vm.dropped_lines.is_empty();
        if nothing {
            if !quiet {
                let _ = writeln!(out, "{}: no passed-through devices", vm_title(vm));
            }
            continue;
        }
        if quiet && vm.verdict != Verdict::Lost && vm.error.is_none() {
            continue;
        }
        if !out.is_empty() {
            out.push('\n');
        }
        block(&mut out, vm, palette);
    }
    if report
        .vms
        .iter()
        .any(|vm| vm.verdict == Verdict::Lost && vm.error.is_none())
    {
        let _ = writeln!(
            out,
            "\nTo confirm: {CONFIRM}.\nWhy QEMU leaves this to us: {RATIONALE}"
        );
        if let (Some(version), false) = (&report.qemu.version, report.qemu.verified) {
            let _ = writeln!(
                out,
                "QEMU {} is newer than 11.1, the newest whose rule was read; it is assumed to be the same.",
                text(version)
            );
        }
    }
    out
}

fn block(out: &mut String, vm: &Vm, palette: Palette) {
    let _ = writeln!(
        out,
        "{}, {}: {}",
        palette.head(&vm_title(vm)),
        short(&vm.machine, 40),
        verdict_words(vm.verdict, palette)
    );
    if let Some(error) = &vm.error {
        let _ = writeln!(out, "  {}", text(error));
    }
    if let Some(error) = &vm.start_error {
        let _ = writeln!(
            out,
            "  {} {}",
            palette.bad("Proxmox refuses to start it:"),
            text(error)
        );
    }
    for dropped in &vm.dropped_lines {
        let _ = writeln!(
            out,
            "  {} line {}: {}",
            palette.doubt("Proxmox ignores"),
            dropped.line,
            text(&dropped.text)
        );
    }
    if let Some(skipped) = &vm.skipped {
        let _ = writeln!(out, "  the hook says nothing: {}", text(skipped));
    }
    for entry in &vm.entries {
        entry_block(out, entry, palette);
    }
    for port in &vm.args_ports {
        let functions: Vec<_> = port
            .functions
            .iter()
            .map(|function| format!("{} at {}", text(&function.host), function.addr))
            .collect();
        let _ = writeln!(
            out,
            "  args: root port {} ({}) with {}: will show {}",
            text(&port.port),
            text(&port.model),
            functions.join(", "),
            port.guest_widths
        );
    }
    for part in &vm.args_not_analysed {
        let _ = writeln!(out, "  args: not analysed: {}", short(part, LONGEST));
    }
}

fn entry_block(out: &mut String, entry: &Entry, palette: Palette) {
    let _ = writeln!(
        out,
        "  {}: {}",
        palette.head(&entry.key),
        short(&entry.value, LONGEST)
    );
    if let Some(error) = &entry.error {
        let (what, paint) = if entry.dropped {
            (
                "Proxmox drops this line and starts the VM without the device",
                palette.bad("error"),
            )
        } else {
            ("Proxmox refuses it", palette.bad("error"))
        };
        let _ = writeln!(out, "    {paint}: {what}: {}", text(error));
        return;
    }
    for alternative in entry
        .alternatives
        .iter()
        .filter(|alternative| !alternative.chosen)
    {
        let _ = writeln!(
            out,
            "    or, if the first choice is taken: {}",
            text(&alternative.path)
        );
    }
    let Some(function) = subject(entry) else {
        let _ = writeln!(out, "    {}", verdict_words(entry.verdict, palette));
        return;
    };
    let _ = writeln!(out, "    card: {}", function_title(function));
    let _ = writeln!(out, "    host: {}", path_words(function));
    if let Some(uncertain) = &function.uncertain {
        let _ = writeln!(
            out,
            "    {}: {}",
            palette.doubt("uncertain"),
            text(uncertain)
        );
    }
    let _ = writeln!(out, "    guest: {}", guest_words(entry));
    let _ = writeln!(out, "    {}", verdict_words(entry.verdict, palette));
    if let Some(fix) = &entry.fix {
        fix_block(out, entry, fix, palette);
    }
    if let Some(reason) = &entry.no_fix {
        let _ = writeln!(out, "    {}: {}", palette.doubt("no fix"), text(reason));
    }
}

/// The repair the three ways people know it.
fn fix_block(out: &mut String, entry: &Entry, fix: &Fix, palette: Palette) {
    let label = if fix.strategy == "advice" {
        "possible"
    } else {
        "fix"
    };
    for command in &fix.commands {
        let _ = writeln!(out, "    {}: {}", palette.good(label), command);
    }
    for (key, value) in &fix.set {
        let value = value.as_str().unwrap_or_default();
        let _ = writeln!(out, "      in the config file: {key}: {}", text(value));
    }
    if entry.reason == Some(Reason::Multifunction) && fix.strategy != "mapping" {
        let _ = writeln!(
            out,
            "      in the web interface: Hardware > PCI Device ({}): untick \"All Functions\"",
            entry.key
        );
    }
    for note in &fix.notes {
        let _ = writeln!(out, "      note: {}", text(note));
    }
}

fn verdict_words(verdict: Verdict, palette: Palette) -> String {
    match verdict {
        Verdict::Ok => palette.good("ok: the guest gets AtomicOps"),
        Verdict::Lost => palette.bad("lost: the host can, the guest will not see it"),
        Verdict::Unavailable => palette.doubt("unavailable: the host path cannot"),
        Verdict::Unknown => palette.doubt("unknown: the host could not be read"),
        Verdict::NotApplicable => palette.faint("not applicable: nothing here needs AtomicOps"),
        Verdict::Error => palette.bad("error"),
    }
}

/// `check --all` for people: a line for each VM with passed-through devices.
pub fn table(report: &Report, palette: Palette) -> String {
    let rows: Vec<_> = report
        .vms
        .iter()
        .filter(|vm| !vm.entries.is_empty() || vm.error.is_some())
        .collect();
    if rows.is_empty() {
        return "no VM of this node has passed-through devices\n".to_owned();
    }
    let name = |vm: &Vm| {
        vm.name
            .as_deref()
            .map(|name| short(name, 20))
            .unwrap_or_default()
    };
    let width = rows
        .iter()
        .map(|vm| name(vm).chars().count())
        .max()
        .unwrap_or(0)
        .max(4);
    let mut out = format!(
        "{}\n",
        palette.head(&format!(
            "{:>9}  {:<width$}  {:<14}  entries",
            "VMID", "name", "verdict"
        ))
    );
    for vm in rows {
        let entries: Vec<_> = vm
            .entries
            .iter()
            .map(|entry| format!("{} {}", entry.key, entry.verdict.as_str()))
            .collect();
        let padding = " ".repeat(width.saturating_sub(name(vm).chars().count()));
        let word = format!("{:<14}", vm.verdict.as_str());
        let verdict = match vm.verdict {
            Verdict::Ok => palette.good(&word),
            Verdict::Lost | Verdict::Error => palette.bad(&word),
            Verdict::Unavailable | Verdict::Unknown => palette.doubt(&word),
            Verdict::NotApplicable => palette.faint(&word),
        };
        let _ = writeln!(
            out,
            "{:>9}  {}{padding}  {verdict}  {}",
            vm.vmid,
            name(vm),
            entries.join(", ")
        );
    }
    out
}
