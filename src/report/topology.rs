//! `topology`: the PCI Express tree from host root ports to passed functions, with the bits that `AtomicOps` depend on.
//!
//! One [`View`] holds what is shown; [`tree`], [`json`] and [`dot`] are its three forms. [`side_by_side`] is for one VM:
//! the host's path on the left, the guest's port on the right. Text is laid out for the terminal's columns and read as well
//! without colours. Nothing here judges: the answers are those of [`crate::rules::vfio`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;

use super::escape::{short, text};
use super::model;
use super::style::Palette;
use super::text::{Style, reason_words, vm_title, widths_words};
use crate::examine;
use crate::pci::express::{DevCap2, DevCtl2, Express, PortType};
use crate::pci::{Function, Registers, Sbdf, Topology, Widths};
use crate::rules::linux::Kernel;
use crate::rules::vfio::{HostAnswer, HostDenial, host_answer};
use crate::settings::Devices;
use crate::vmconf::Vmid;

/// The longest name that is printed in one place, in characters.
const LONGEST: usize = 60;

/// An entry that passes a function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Use {
    /// The VM.
    pub vmid: Vmid,
    /// `hostpciN`, or `args`.
    pub key: String,
}

/// What is shown.
#[derive(Debug)]
pub struct View<'a> {
    /// This node's name, if known.
    pub node: Option<&'a str>,
    /// The functions with the bridges above them.
    pub topology: &'a Topology,
    /// The kernel, which decides what it lets through.
    pub kernel: &'a Kernel,
    /// Names of functions.
    pub names: &'a BTreeMap<Sbdf, String>,
    /// Who passes a function.
    pub uses: &'a BTreeMap<Sbdf, Vec<Use>>,
    /// The functions to show.
    pub shown: &'a BTreeSet<Sbdf>,
    /// A sentence about what is left out.
    pub note: Option<&'a str>,
}

/// Who passes which function, alternatives of mappings included.
pub fn uses(vms: &[model::Vm]) -> BTreeMap<Sbdf, Vec<Use>> {
    let mut uses: BTreeMap<Sbdf, BTreeSet<Use>> = BTreeMap::new();
    for vm in vms {
        let entries = vm.entries.iter().flat_map(|entry| {
            let functions = entry
                .alternatives
                .iter()
                .flat_map(|alternative| &alternative.functions);
            functions.map(move |function| (function.host.as_str(), entry.key.as_str()))
        });
        let ports = vm.args_ports.iter().flat_map(|port| &port.functions);
        for (host, key) in entries.chain(ports.map(|function| (function.host.as_str(), "args"))) {
            if let Ok(addr) = host.parse() {
                uses.entry(addr).or_default().insert(Use {
                    vmid: vm.vmid,
                    key: key.to_owned(),
                });
            }
        }
    }
    uses.into_iter()
        .map(|(addr, uses)| (addr, uses.into_iter().collect()))
        .collect()
}

/// Whether a function can be passed as such: it is no bridge.
pub const fn is_passable(class: u32) -> bool {
    class >> 16 != 0x06
}

impl View<'_> {
    fn answer(&self, addr: Sbdf) -> HostAnswer {
        host_answer(self.topology, addr, self.kernel)
    }

    fn functions(&self) -> impl Iterator<Item = &Function> {
        self.shown
            .iter()
            .filter_map(|addr| self.topology.get(*addr))
    }

    /// The neighbour above that a function hangs from; for a VF, the one of its physical function.
    fn above(&self, function: &Function) -> Option<Sbdf> {
        let physical = self.topology.get(self.topology.physical(function.addr));
        physical
            .unwrap_or(function)
            .parent
            .filter(|parent| self.topology.get(*parent).is_some())
    }

    /// Shown functions and the bridges above them, by the neighbour above; root buses under `None`.
    fn children(&self) -> BTreeMap<Option<Sbdf>, BTreeSet<Sbdf>> {
        let mut children: BTreeMap<Option<Sbdf>, BTreeSet<Sbdf>> = BTreeMap::new();
        for function in self.functions() {
            let mut below = function;
            loop {
                let above = self.above(below);
                if !children.entry(above).or_default().insert(below.addr) {
                    break;
                }
                match above.and_then(|above| self.topology.get(above)) {
                    Some(bridge) => below = bridge,
                    None => break,
                }
            }
        }
        children
    }

    /// Where a function is refused 32 or 64 bit.
    fn refused_at(&self, addr: Sbdf) -> Option<Sbdf> {
        let answer = self.answer(addr);
        let denial = answer.denial.filter(|denial| !denial.is_unreadable())?;
        (!answer.widths.contains_all(Widths::W32_W64)).then(|| denial.addr())
    }

    /// Where the paths of shown functions are refused, apart from the functions themselves.
    fn blocking(&self) -> BTreeSet<Sbdf> {
        let refused = self.functions().filter_map(|function| {
            let addr = self.refused_at(function.addr)?;
            (addr != self.topology.physical(function.addr)).then_some(addr)
        });
        refused.collect()
    }

    fn name(&self, function: &Function) -> String {
        match self.names.get(&function.addr) {
            Some(name) => short(name, LONGEST),
            None if function.vendor == 0xffff => format!("class {:06x}", function.class),
            None => format!(
                "[{:04x}:{:04x}] class {:06x}",
                function.vendor, function.device, function.class
            ),
        }
    }
}

/// How a word is to look.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Plain,
    Good,
    Bad,
    Doubt,
    Head,
    Faint,
}

/// Words that flow into lines.
#[derive(Default)]
struct Paragraph {
    words: Vec<(String, Mark)>,
}

impl Paragraph {
    fn push(&mut self, words: &str, mark: Mark) {
        self.words
            .extend(words.split_whitespace().map(|word| (word.to_owned(), mark)));
    }

    /// Words that stay together on a line.
    fn push_unit(&mut self, words: &str, mark: Mark) {
        self.words.push((words.to_owned(), mark));
    }

    /// Appends to the last word, without a space.
    fn close(&mut self, punctuation: &str) {
        if let Some((word, _)) = self.words.last_mut() {
            word.push_str(punctuation);
        }
    }

    /// Lines of at most `columns`, a longer word apart.
    fn lines(&self, palette: Palette, columns: usize) -> Vec<(String, usize)> {
        let mut lines = Vec::new();
        let mut line = String::new();
        let mut width = 0;
        let mut run: Option<(String, Mark)> = None;
        let flush = |line: &mut String, run: &mut Option<(String, Mark)>| {
            if let Some((words, mark)) = run.take() {
                line.push_str(&paint(palette, &words, mark));
            }
        };
        for (word, mark) in &self.words {
            let length = word.chars().count();
            if width > 0 && width + 1 + length > columns {
                flush(&mut line, &mut run);
                lines.push((std::mem::take(&mut line), width));
                width = 0;
            }
            let space = usize::from(width > 0);
            match &mut run {
                Some((words, last)) if *last == *mark => {
                    words.push(' ');
                    words.push_str(word);
                }
                _ => {
                    flush(&mut line, &mut run);
                    if space == 1 {
                        line.push(' ');
                    }
                    run = Some((word.clone(), *mark));
                }
            }
            width += space + length;
        }
        flush(&mut line, &mut run);
        if width > 0 {
            lines.push((line, width));
        }
        lines
    }
}

fn paint(palette: Palette, words: &str, mark: Mark) -> String {
    match mark {
        Mark::Plain => words.to_owned(),
        Mark::Good => palette.good(words),
        Mark::Bad => palette.bad(words),
        Mark::Doubt => palette.doubt(words),
        Mark::Head => palette.head(words),
        Mark::Faint => palette.faint(words),
    }
}

/// The tree for people.
pub fn tree(view: &View, style: Style) -> String {
    let mut out = String::new();
    let mut head = Paragraph::default();
    head.push(
        &format!(
            "Host {}",
            view.node
                .map_or_else(|| "of unknown name".to_owned(), |node| short(node, 40))
        ),
        Mark::Head,
    );
    head.close(",");
    match view.kernel.release() {
        Some(release) => head.push(&format!("Linux {}", short(release, 40)), Mark::Plain),
        None => head.push("kernel unknown", Mark::Doubt),
    }
    push_lines(&mut out, &head, style, "", "");
    let children = view.children();
    let drawing = Drawing {
        view,
        style,
        children: &children,
        blocking: view.blocking(),
    };
    for addr in children.get(&None).into_iter().flatten() {
        out.push('\n');
        drawing.draw(&mut out, *addr, "", "", 0);
    }
    if let Some(note) = view.note {
        let mut paragraph = Paragraph::default();
        paragraph.push(note, Mark::Faint);
        out.push('\n');
        push_lines(&mut out, &paragraph, style, "", "");
    }
    out
}

fn push_lines(out: &mut String, paragraph: &Paragraph, style: Style, first: &str, rest: &str) {
    let indent = first.chars().count().max(rest.chars().count());
    // Below a deep tree, a line too long reads better than a column of single words.
    let columns = style.columns.get().saturating_sub(indent).max(30);
    let lines = paragraph.lines(style.palette, columns);
    for (at, (line, _)) in lines.iter().enumerate() {
        let prefix = if at == 0 { first } else { rest };
        let _ = writeln!(out, "{}{line}", style.palette.faint_if_any(prefix));
    }
}

struct Drawing<'a> {
    view: &'a View<'a>,
    style: Style,
    children: &'a BTreeMap<Option<Sbdf>, BTreeSet<Sbdf>>,
    blocking: BTreeSet<Sbdf>,
}

impl Drawing<'_> {
    fn draw(&self, out: &mut String, addr: Sbdf, first: &str, rest: &str, depth: usize) {
        // A loop in a made-up tree ends here; bus numbers allow no deeper one.
        let Some(function) = self.view.topology.get(addr).filter(|_| depth < 256) else {
            return;
        };
        let children = self.children.get(&Some(addr));
        let mut title = Paragraph::default();
        title.push(&addr.to_string(), Mark::Head);
        let below = if children.is_some() {
            format!("{rest}│    ")
        } else {
            format!("{rest}     ")
        };
        if self.view.shown.contains(&addr) {
            title.push(&self.view.name(function), Mark::Plain);
            push_lines(out, &title, self.style, first, &below);
            push_lines(out, &self.function(function), self.style, &below, &below);
        } else {
            self.bridge(&mut title, function);
            push_lines(out, &title, self.style, first, &below);
        }
        let count = children.map_or(0, BTreeSet::len);
        for (at, child) in children.into_iter().flatten().enumerate() {
            let (branch, under) = if at + 1 == count {
                ("└─ ", "   ")
            } else {
                ("├─ ", "│  ")
            };
            self.draw(
                out,
                *child,
                &format!("{rest}{branch}"),
                &format!("{rest}{under}"),
                depth + 1,
            );
        }
    }

    fn bridge(&self, line: &mut Paragraph, bridge: &Function) {
        let (kind, words, mark) = port_words(bridge);
        line.push(kind, Mark::Plain);
        line.close(":");
        line.push(&words, mark);
        if self.blocking.contains(&bridge.addr) {
            line.push_unit("<== blocks", Mark::Bad);
        }
        place(line, bridge);
    }

    fn function(&self, function: &Function) -> Paragraph {
        let mut line = Paragraph::default();
        let answer = self.view.answer(function.addr);
        let (words, mark) = answer_words(&answer, function.class);
        line.push(&words, mark);
        if let Some(uncertain) = &answer.uncertain {
            line.close(";");
            line.push(&format!("uncertain: {}", text(uncertain)), Mark::Doubt);
        }
        if let Some(physfn) = function.physfn {
            line.close(",");
            line.push(&format!("virtual function of {physfn}"), Mark::Plain);
        }
        place(&mut line, function);
        for used in self.view.uses.get(&function.addr).into_iter().flatten() {
            line.close(",");
            line.push_unit(&format!("VM {} {}", used.vmid, used.key), Mark::Head);
        }
        line
    }
}

/// IOMMU group and driver.
fn place(line: &mut Paragraph, function: &Function) {
    if let Some(group) = function.iommu_group {
        line.close(",");
        line.push_unit(&format!("group {group}"), Mark::Plain);
    }
    if let Some(driver) = &function.driver {
        line.close(",");
        line.push(&short(driver, 32), Mark::Plain);
    }
}

/// A bridge's type, and the bits that count for it.
fn port_words(bridge: &Function) -> (&'static str, String, Mark) {
    let express = match &bridge.registers {
        Registers::Unreadable(why) => {
            return (
                "bridge",
                format!("unknown: {}", short(why, 200)),
                Mark::Doubt,
            );
        }
        Registers::NotExpress => return ("PCI bridge", "has no say".to_owned(), Mark::Plain),
        Registers::Express(express) => express,
    };
    let (kind, words, mark) = match express.port_type {
        PortType::RootPort => {
            let widths = completer(express);
            (
                "root port",
                format!("completes {}", widths_words(widths)),
                shade(widths),
            )
        }
        PortType::UpstreamPort | PortType::DownstreamPort => {
            let upstream = express.port_type == PortType::UpstreamPort;
            let kind = if upstream {
                "upstream port"
            } else {
                "downstream port"
            };
            let routes = express.devcap2.is_some_and(DevCap2::atomic_op_routing);
            let blocks = upstream
                && express
                    .devctl2
                    .is_some_and(DevCtl2::atomic_op_egress_blocking);
            let words = match (routes, blocks) {
                (true, false) => "routes",
                (false, false) => "does not route",
                (true, true) => "routes, but blocks egress",
                (false, true) => "does not route, blocks egress",
            };
            (
                kind,
                words.to_owned(),
                if routes && !blocks {
                    Mark::Good
                } else {
                    Mark::Bad
                },
            )
        }
        PortType::PcieToPciBridge | PortType::PciToPcieBridge => {
            ("PCI bridge", "has no say".to_owned(), Mark::Plain)
        }
        _ => ("bridge", "has no say".to_owned(), Mark::Plain),
    };
    let old = if express.version < 2 {
        " (capability version 1)"
    } else {
        ""
    };
    (kind, words + old, mark)
}

fn completer(express: &Express) -> Widths {
    express
        .devcap2
        .map_or(Widths::NONE, DevCap2::atomic_op_completer)
}

fn shade(widths: Widths) -> Mark {
    if widths.contains_all(Widths::W32_W64) {
        Mark::Good
    } else if widths.is_empty() {
        Mark::Bad
    } else {
        Mark::Doubt
    }
}

/// What a function gets from its host.
fn answer_words(answer: &HostAnswer, class: u32) -> (String, Mark) {
    match &answer.denial {
        Some(denial) if denial.is_unreadable() => (
            format!("unknown: {}", text(&denial.to_string())),
            Mark::Doubt,
        ),
        // Most functions beside GPUs and network cards never use them.
        Some(HostDenial::EndpointNotCompleter { .. } | HostDenial::NotExpress { .. })
            if !Devices::Gpu.includes(class) =>
        {
            ("no AtomicOps of its own".to_owned(), Mark::Faint)
        }
        Some(denial) if answer.widths.is_empty() => (
            format!("gets none: {}", text(&denial.to_string())),
            Mark::Bad,
        ),
        Some(denial) if !answer.widths.contains_all(Widths::W32_W64) => {
            let words = format!(
                "gets {} only: {}",
                widths_words(answer.widths),
                text(&denial.to_string())
            );
            (words, Mark::Doubt)
        }
        _ => (
            format!("gets {}", widths_words(answer.widths)),
            shade(answer.widths),
        ),
    }
}

/// The JSON of `topology`.
#[derive(Debug, Serialize)]
pub struct Answer<'a> {
    /// [`model::SCHEMA`].
    pub schema: u32,
    /// Name of the node, if known.
    pub node: Option<&'a str>,
    /// The kernel's release; `None` where it cannot be told.
    pub kernel: Option<&'a str>,
    /// The functions, by address.
    pub functions: Vec<Shown<'a>>,
    /// With `--vm`: the VM as in the JSON of `check`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<&'a model::Vm>,
}

/// One function.
#[derive(Debug, Serialize)]
pub struct Shown<'a> {
    /// Address on the host.
    pub host: String,
    /// Vendor ID, `0x1002`.
    pub vendor: String,
    /// Device ID.
    pub device: String,
    /// Class code, `0x030000`.
    pub class: String,
    /// Name.
    pub name: Option<&'a str>,
    /// IOMMU group.
    pub iommu_group: Option<u32>,
    /// Bound driver.
    pub driver: Option<&'a str>,
    /// Physical function, for a virtual one.
    pub physfn: Option<String>,
    /// Bridges above, host root port first.
    pub path: Vec<model::Bridge>,
    /// Its own completer bits; `None` where they cannot be read.
    pub completer: Option<Widths>,
    /// What `vfio-pci` reports for it.
    pub host_widths: Widths,
    /// Why `host_widths` is empty.
    pub host_reason: Option<&'static str>,
    /// Where the path is denied.
    pub host_denied_at: Option<String>,
    /// What cannot be seen and decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncertain: Option<String>,
    /// Who passes it.
    pub vms: &'a [Use],
}

/// The answer for programs.
pub fn json<'a>(view: &'a View<'a>, vm: Option<&'a model::Vm>) -> Answer<'a> {
    let shown = |function: &'a Function| {
        let answer = view.answer(function.addr);
        let denial = answer.denial.as_ref().filter(|_| answer.widths.is_empty());
        Shown {
            host: function.addr.to_string(),
            vendor: format!("{:#06x}", function.vendor),
            device: format!("{:#06x}", function.device),
            class: format!("{:#08x}", function.class),
            name: view.names.get(&function.addr).map(String::as_str),
            iommu_group: function.iommu_group,
            driver: function.driver.as_deref(),
            physfn: function.physfn.map(|addr| addr.to_string()),
            path: examine::path(view.topology, function.addr),
            completer: match &function.registers {
                Registers::Unreadable(_) => None,
                Registers::NotExpress => Some(Widths::NONE),
                Registers::Express(express) => Some(completer(express)),
            },
            host_reason: denial.map(HostDenial::reason),
            host_denied_at: denial.map(|denial| denial.addr().to_string()),
            host_widths: answer.widths,
            uncertain: answer.uncertain,
            vms: view
                .uses
                .get(&function.addr)
                .map(Vec::as_slice)
                .unwrap_or_default(),
        }
    };
    Answer {
        schema: model::SCHEMA,
        node: view.node,
        kernel: view.kernel.release(),
        functions: view.functions().map(shown).collect(),
        vm,
    }
}

/// A graph for Graphviz. With a VM, its guest ports are a cluster of their own.
pub fn dot(view: &View, vm: Option<&model::Vm>) -> String {
    let mut out = String::from(
        "digraph topology {\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\", style=filled, fillcolor=white];\n",
    );
    let children = view.children();
    let blocking = view.blocking();
    for addr in children.values().flatten() {
        let Some(function) = view.topology.get(*addr) else {
            continue;
        };
        let (lines, mark) = if view.shown.contains(addr) {
            let answer = view.answer(*addr);
            let (words, mark) = answer_words(&answer, function.class);
            let uses = view.uses.get(addr).into_iter().flatten();
            let uses = uses.map(|used| format!("VM {} {}", used.vmid, used.key));
            (
                std::iter::once(view.name(function))
                    .chain([words])
                    .chain(uses)
                    .collect(),
                mark,
            )
        } else {
            let (kind, words, mark) = port_words(function);
            (vec![kind.to_owned(), words], mark)
        };
        let label: Vec<_> = std::iter::once(addr.to_string())
            .chain(lines)
            .map(|line| quoted(&line))
            .collect();
        let border = if blocking.contains(addr) {
            ", color=red, penwidth=3"
        } else {
            ""
        };
        let _ = writeln!(
            out,
            "  \"{addr}\" [label=\"{}\", fillcolor={}{border}];",
            label.join("\\n"),
            fill(mark)
        );
    }
    for (above, below) in &children {
        for below in below {
            if let Some(above) = above {
                let _ = writeln!(out, "  \"{above}\" -> \"{below}\";");
            }
        }
    }
    if let Some(vm) = vm {
        guest_cluster(&mut out, vm);
    }
    out.push_str("}\n");
    out
}

fn guest_cluster(out: &mut String, vm: &model::Vm) {
    let _ = writeln!(
        out,
        "  subgraph cluster_guest {{\n    label=\"{}\";",
        quoted(&vm_title(vm))
    );
    let mut edges = BTreeSet::new();
    for (port, widths, functions) in guest_ports(vm) {
        let _ = writeln!(
            out,
            "    \"guest {0}\" [label=\"{0}\\nadvertises {1}\", fillcolor={2}];",
            quoted(&port),
            widths_words(widths),
            fill(shade(widths)),
        );
        edges.extend(functions.into_iter().map(|host| (host, port.clone())));
    }
    out.push_str("  }\n");
    for (host, port) in edges {
        let _ = writeln!(
            out,
            "  \"{}\" -> \"guest {}\" [style=dashed];",
            quoted(&host),
            quoted(&port)
        );
    }
}

/// The buses of a guest that passed functions sit on, each once, with what it advertises.
fn guest_ports(vm: &model::Vm) -> Vec<(String, Widths, Vec<String>)> {
    let mut ports: BTreeMap<String, (Widths, Vec<String>)> = BTreeMap::new();
    for entry in &vm.entries {
        for function in chosen(entry)
            .into_iter()
            .flat_map(|alternative| &alternative.functions)
        {
            let port = ports.entry(function.guest.bus.clone()).or_default();
            if entry.guest_port.as_ref() == Some(&function.guest.bus) {
                port.0 = port.0.union(entry.guest_widths);
            }
            port.1.push(function.host.clone());
        }
    }
    for port in &vm.args_ports {
        let known = ports.entry(port.port.clone()).or_default();
        known.0 = known.0.union(port.guest_widths);
        known
            .1
            .extend(port.functions.iter().map(|function| function.host.clone()));
    }
    ports
        .into_iter()
        .map(|(port, (widths, functions))| (port, widths, functions))
        .collect()
}

fn fill(mark: Mark) -> &'static str {
    match mark {
        Mark::Good => "palegreen",
        Mark::Bad => "mistyrose",
        Mark::Doubt => "lightyellow",
        Mark::Plain | Mark::Head => "white",
        Mark::Faint => "whitesmoke",
    }
}

/// For a quoted string of the dot language: a backslash begins an escape there.
fn quoted(words: &str) -> String {
    let safe: String = words
        .chars()
        .map(|c| {
            if super::escape::is_unsafe(c) {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect();
    safe.replace('\\', "\\\\").replace('"', "\\\"")
}

fn chosen(entry: &model::Entry) -> Option<&model::Alternative> {
    entry
        .alternatives
        .iter()
        .find(|alternative| alternative.chosen)
}

/// One VM for people: host paths on the left, guest ports on the right.
pub fn side_by_side(view: &View, vm: &model::Vm, style: Style) -> String {
    let mut out = String::new();
    let mut head = Paragraph::default();
    head.push(&vm_title(vm), Mark::Head);
    head.close(",");
    head.push(&short(&vm.machine, 40), Mark::Plain);
    push_lines(&mut out, &head, style, "", "");
    for problem in vm.error.iter().chain(&vm.start_error) {
        let mut line = Paragraph::default();
        line.push(&text(problem), Mark::Bad);
        push_lines(&mut out, &line, style, "  ", "  ");
    }
    if vm.entries.is_empty() && vm.args_ports.is_empty() {
        out.push_str("  no passed-through devices\n");
    }
    for entry in &vm.entries {
        out.push('\n');
        entry_columns(&mut out, view, entry, style);
    }
    for port in &vm.args_ports {
        out.push('\n');
        let mut line = Paragraph::default();
        line.push("args:", Mark::Head);
        line.push(&format!("root port {}", short(&port.port, 40)), Mark::Plain);
        push_lines(&mut out, &line, style, "", "  ");
        let mut columns = Columns {
            out: &mut out,
            style,
        };
        columns.heads();
        let mut right = vec![port_cell(&port.port, port.guest_widths)];
        let mut last = None;
        for function in &port.functions {
            let mut guest = Paragraph::default();
            guest.push(
                &format!(
                    "at {}{}",
                    text(&function.addr),
                    multifunction(function.multifunction)
                ),
                Mark::Plain,
            );
            right.push(vec![guest]);
            columns.function(
                view,
                function.host.parse().ok(),
                &function.host,
                None,
                &mut last,
                &mut right,
            );
        }
        columns.rest(right);
    }
    out
}

fn entry_columns(out: &mut String, view: &View, entry: &model::Entry, style: Style) {
    let mut line = Paragraph::default();
    line.push(&format!("{}:", entry.key), Mark::Head);
    line.push(&short(&entry.value, 120), Mark::Plain);
    push_lines(out, &line, style, "", "  ");
    let mut verdict = Paragraph::default();
    let mark = match entry.verdict {
        crate::verdict::Verdict::Ok => Mark::Good,
        crate::verdict::Verdict::Lost | crate::verdict::Verdict::Error => Mark::Bad,
        crate::verdict::Verdict::NotApplicable => Mark::Faint,
        crate::verdict::Verdict::Unavailable | crate::verdict::Verdict::Unknown => Mark::Doubt,
    };
    verdict.push(entry.verdict.as_str(), mark);
    let why = entry
        .error
        .as_deref()
        .map_or_else(|| reason_words(entry), text);
    if !why.is_empty() {
        verdict.close(":");
        verdict.push(&why, Mark::Plain);
    }
    push_lines(out, &verdict, style, "  ", "  ");
    let Some(alternative) = chosen(entry).filter(|alternative| !alternative.functions.is_empty())
    else {
        return;
    };
    let mut columns = Columns { out, style };
    columns.heads();
    let mut right = Vec::new();
    let mut buses = BTreeSet::new();
    let mut last = None;
    for function in &alternative.functions {
        let bus = &function.guest.bus;
        if buses.insert(bus) {
            if entry.guest_port.as_ref() == Some(bus) {
                let mut cell = port_cell(bus, entry.guest_widths);
                if entry.guest_widths != entry.possible_widths {
                    let mut could = Paragraph::default();
                    could.push(
                        &format!("could advertise {}", widths_words(entry.possible_widths)),
                        Mark::Doubt,
                    );
                    cell.push(could);
                }
                right.push(cell);
            } else {
                let mut cell = Paragraph::default();
                cell.push(&format!("bus {}", text(bus)), Mark::Head);
                right.push(vec![cell]);
            }
        }
        let place = &function.guest;
        let mut guest = Paragraph::default();
        let words = format!(
            "slot {} function {}{}",
            place.slot,
            place.function,
            multifunction(place.multifunction)
        );
        guest.push(&words, Mark::Plain);
        right.push(vec![guest]);
        columns.function(
            view,
            function.host.parse().ok(),
            &function.host,
            function.name.as_deref(),
            &mut last,
            &mut right,
        );
    }
    columns.rest(right);
}

fn multifunction(set: bool) -> &'static str {
    if set { ", multifunction=on" } else { "" }
}

fn port_cell(port: &str, widths: Widths) -> Cell {
    let mut name = Paragraph::default();
    name.push(&format!("guest port {}", short(port, 60)), Mark::Head);
    let mut bits = Paragraph::default();
    bits.push(
        &format!("advertises {}", widths_words(widths)),
        shade(widths),
    );
    vec![name, bits]
}

/// Paragraphs of one thing: its title, then what there is to say about it.
type Cell = Vec<Paragraph>;

struct Columns<'a> {
    out: &'a mut String,
    style: Style,
}

impl Columns<'_> {
    const INDENT: usize = 2;
    const GAP: usize = 2;

    /// Columns of one side.
    fn side(&self) -> usize {
        (self.style.columns.get() - Self::INDENT - Self::GAP) / 2
    }

    fn heads(&mut self) {
        let cell = |word: &str| {
            let mut title = Paragraph::default();
            title.push(word, Mark::Faint);
            vec![title]
        };
        self.row(&cell("HOST"), &cell("GUEST"));
    }

    /// The bridges above a function as far as they differ from those of the last one, and the function; beside them
    /// what is in `right`, the function's own place last.
    fn function(
        &mut self,
        view: &View,
        addr: Option<Sbdf>,
        host: &str,
        name: Option<&str>,
        last: &mut Option<Vec<Sbdf>>,
        right: &mut Vec<Cell>,
    ) {
        let own = right.pop();
        let found = addr.and_then(|addr| view.topology.get(addr));
        let bridges = found
            .map(|function| view.topology.path_to(function.addr))
            .unwrap_or_default();
        let path: Vec<_> = bridges.iter().map(|bridge| bridge.addr).collect();
        let mut waiting = std::mem::take(right).into_iter();
        let denial = found.and_then(|function| view.refused_at(function.addr));
        if last.as_ref() != Some(&path) {
            for bridge in &bridges {
                let (kind, words, mark) = port_words(bridge);
                let mut title = Paragraph::default();
                title.push(&format!("{} {kind}", bridge.addr), Mark::Plain);
                let mut bits = Paragraph::default();
                bits.push(&words, mark);
                if denial == Some(bridge.addr) {
                    bits.push_unit("<== blocks", Mark::Bad);
                }
                self.row(&vec![title, bits], &waiting.next().unwrap_or_default());
            }
        }
        for cell in waiting {
            self.row(&Vec::new(), &cell);
        }
        *last = Some(path);
        let mut title = Paragraph::default();
        title.push(&text(host), Mark::Head);
        let mut cell = Vec::new();
        if let Some(function) = found {
            let given = name.map(|name| short(name, LONGEST));
            title.push(&given.unwrap_or_else(|| view.name(function)), Mark::Plain);
            let (words, mark) = answer_words(&view.answer(function.addr), function.class);
            let mut bits = Paragraph::default();
            bits.push(&words, mark);
            cell.extend([title, bits]);
        } else {
            title.push("not on this host", Mark::Doubt);
            cell.push(title);
        }
        self.row(&cell, &own.unwrap_or_default());
    }

    fn rest(&mut self, right: Vec<Cell>) {
        for cell in right {
            self.row(&Vec::new(), &cell);
        }
    }

    fn row(&mut self, left: &Cell, right: &Cell) {
        let left = self.lines(left, self.side());
        let right = self.lines(right, self.side());
        for at in 0..left.len().max(right.len()) {
            let empty = (String::new(), 0);
            let (left, width) = left.get(at).unwrap_or(&empty);
            let (right, _) = right.get(at).unwrap_or(&empty);
            if right.is_empty() {
                let _ = writeln!(self.out, "{:1$}{left}", "", Self::INDENT);
            } else {
                let padding = (self.side() + Self::GAP).saturating_sub(*width).max(1);
                let _ = writeln!(
                    self.out,
                    "{:2$}{left}{:padding$}{right}",
                    "",
                    "",
                    Self::INDENT
                );
            }
        }
    }

    /// A cell's lines with their widths: titles from the left, everything else and continued lines indented.
    fn lines(&self, cell: &Cell, columns: usize) -> Vec<(String, usize)> {
        let mut lines = Vec::new();
        for (at, paragraph) in cell.iter().enumerate() {
            for (number, (line, width)) in paragraph
                .lines(self.style.palette, columns - 2)
                .into_iter()
                .enumerate()
            {
                let indent = if at == 0 && number == 0 { 0 } else { 2 };
                lines.push((format!("{:indent$}{line}", ""), width + indent));
            }
        }
        lines
    }
}
