//! One VM from its configuration to its report: asks the host for what the rules need, and chains them.
//!
//! A [`Survey`] belongs to one run. What several VMs need is read once, and nothing is read that no VM needs.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::rc::Rc;

use crate::host::{Host, HostError, Mdev};
use crate::pci::express::PortType;
use crate::pci::{Function, Registers, Sbdf, Topology, Widths};
use crate::plan::{self, Candidate, Kind, Member, NoRepair, Repair};
use crate::report::model;
use crate::rules::guest::{GuestPlace, Upstream};
use crate::rules::guest_bus::GuestBus;
use crate::rules::linux::Kernel;
use crate::rules::pve::{
    self, Alternative, Composition, Entry, Form, HostFunction, HostFunctions, Inputs,
};
use crate::rules::qemu;
use crate::rules::vfio::{HostAnswer, host_answer};
use crate::settings::{Mode, Settings, Strategy, Windows};
use crate::verdict::{Reason, Verdict, judge};
use crate::vmconf::args::RawDevices;
use crate::vmconf::decode::{Config, Dropped, SectionName, Warning};
use crate::vmconf::document::Document;
use crate::vmconf::mapping::{MapEntry, Mapping, Mappings};
use crate::vmconf::{HostpciIndex, Vmid};

/// Subsystem vendor and device ID, and how a function makes mediated devices.
type Rarer = (Option<(u16, u16)>, Mdev);

/// What one run knows of the host.
pub struct Survey<'h> {
    host: &'h Host,
    node: OnceCell<String>,
    kernel: OnceCell<Kernel>,
    qemu: OnceCell<qemu::Version>,
    mappings: OnceCell<Mappings>,
    addresses: OnceCell<Vec<Sbdf>>,
    topology: RefCell<Topology>,
    /// What the host gives the functions read so far.
    answers: RefCell<BTreeMap<Sbdf, Rc<HostAnswer>>>,
    /// What only mappings and mediated devices ask for: subsystem IDs, and the way to make mediated devices.
    rarer: RefCell<BTreeMap<Sbdf, Rarer>>,
    /// The first error of a read that had to answer without one.
    trouble: RefCell<Option<HostError>>,
}

/// One VM, examined.
#[derive(Debug)]
pub struct Examined {
    /// What there is to say.
    pub report: model::Vm,
    /// The configuration's text.
    pub document: Document,
    /// The configuration as Proxmox reads it.
    pub config: Config,
    /// What could not be read and may hide a loss, one line each; empty where the policy wants no report.
    pub doubts: Vec<String>,
    /// The repair of each entry that has one.
    pub repairs: BTreeMap<HostpciIndex, Repair>,
    /// How many devices it passes that the policy counts.
    pub gpus: usize,
}

impl Examined {
    /// New values for every entry that can be repaired without a decision by a person. None for a VM that Proxmox would
    /// refuse to start: that has to be mended first, and may change what the repair is.
    pub fn edits(&self) -> BTreeMap<HostpciIndex, String> {
        if self.report.start_error.is_some() {
            return BTreeMap::new();
        }
        let repairs = self
            .repairs
            .values()
            .filter(|repair| repair.kind != Kind::Advice);
        repairs.flat_map(|repair| repair.set.clone()).collect()
    }
}

impl<'h> Survey<'h> {
    /// A survey of this host; nothing is read yet.
    pub fn new(host: &'h Host) -> Self {
        Self {
            host,
            node: OnceCell::new(),
            kernel: OnceCell::new(),
            qemu: OnceCell::new(),
            mappings: OnceCell::new(),
            addresses: OnceCell::new(),
            topology: RefCell::new(Topology::default()),
            answers: RefCell::new(BTreeMap::new()),
            rarer: RefCell::new(BTreeMap::new()),
            trouble: RefCell::new(None),
        }
    }

    /// The host.
    pub const fn host(&self) -> &'h Host {
        self.host
    }

    /// This node's name.
    pub fn node(&self) -> Result<&str, HostError> {
        cached(&self.node, || self.host.node()).map(String::as_str)
    }

    /// The kernel. One that cannot be read is unknown, which is an answer of its own.
    pub fn kernel(&self) -> &Kernel {
        self.kernel
            .get_or_init(|| match self.host.kernel_release() {
                Ok(release) => Kernel::parse(&release),
                Err(error) => {
                    log::debug!("{}", error.in_words());
                    Kernel::unknown()
                }
            })
    }

    /// QEMU as installed.
    pub fn qemu(&self) -> qemu::Version {
        *self.qemu.get_or_init(|| match self.host.qemu_version() {
            Ok(Some(version)) => qemu::Version::parse(&version),
            Ok(None) => qemu::Version::unknown(),
            Err(error) => {
                log::debug!("{}", error.in_words());
                qemu::Version::unknown()
            }
        })
    }

    /// The functions read so far, and the bridges above them.
    pub fn topology(&self) -> std::cell::Ref<'_, Topology> {
        self.topology.borrow()
    }

    /// Reads functions, each once in a run.
    pub fn read(&self, addrs: impl IntoIterator<Item = Sbdf>) {
        self.host.extend(&mut self.topology.borrow_mut(), addrs);
    }

    /// Reads what only people want to know of the bridges read so far.
    pub fn read_places(&self) {
        self.host.add_places(&mut self.topology.borrow_mut());
    }

    fn mappings(&self) -> Result<&Mappings, HostError> {
        cached(&self.mappings, || {
            let bytes = self.host.mapping_pci()?.unwrap_or_default();
            Ok(crate::vmconf::mapping::parse(&bytes).0)
        })
    }

    /// The head of a report, without VMs.
    pub fn report(&self) -> Result<model::Report, HostError> {
        let qemu = self.qemu();
        Ok(model::Report {
            schema: model::SCHEMA,
            node: self.node()?.to_owned(),
            kernel: self.kernel().release().map(str::to_owned),
            qemu: model::Qemu {
                version: qemu.number().map(|_| qemu.to_string()),
                guard: match qemu.revision() {
                    qemu::Revision::NoGuard => "none",
                    qemu::Revision::SingleFunction => "single-function",
                },
                verified: qemu.verified(),
            },
            vms: Vec::new(),
        })
    }

    /// What Proxmox makes of a configuration, and where in the guest that ends up.
    pub fn compose(
        &self,
        vmid: Vmid,
        config: &Config,
    ) -> Result<(Composition, GuestBus), HostError> {
        let main = &config.main;
        let has_mapping = main.hostpci().any(|(_, value)| value.contains("mapping="));
        let none = Mappings::new();
        let any = main.hostpci().next().is_some() || main.get("args").is_some();
        let inputs = Inputs {
            vmid,
            conf: &|key| main.get(key),
            mappings: if has_mapping { self.mappings()? } else { &none },
            node: if has_mapping { self.node()? } else { "" },
            host: self,
        };
        if any {
            // A listing that fails must not read as a host without devices.
            self.addresses()?;
        }
        let composition = pve::compose(&inputs);
        if let Some(error) = self.trouble.take() {
            return Err(error);
        }
        let raw = main.get("args").map(RawDevices::parse).unwrap_or_default();
        let bus = GuestBus::new(&composition, &raw);
        Ok((composition, bus))
    }

    /// Where the functions are in the guest that a QEMU with this command line runs.
    pub fn running(&self, vmid: Vmid, command: Vec<String>) -> GuestBus {
        let machine = machine_of(&command);
        let composition = pve::compose(&Inputs {
            vmid,
            conf: &|key| machine.filter(|_| key == "machine").map(String::as_str),
            mappings: &Mappings::new(),
            node: "",
            host: self,
        });
        GuestBus::new(&composition, &RawDevices::from_words(command))
    }

    /// What the host offers for one function.
    pub fn answer(&self, addr: Sbdf) -> HostAnswer {
        self.read([addr]);
        host_answer(&self.topology(), addr, self.kernel())
    }

    /// Examines the VM with this configuration.
    pub fn examine(
        &self,
        vmid: Vmid,
        bytes: &[u8],
        settings: &Settings,
    ) -> Result<Examined, HostError> {
        let document = Document::parse(bytes);
        let config = document.decode();
        let main = &config.main;
        let (composition, bus) = self.compose(vmid, &config)?;
        let passed: BTreeSet<Sbdf> = composition
            .entries
            .iter()
            .flat_map(|entry| &entry.alternatives)
            .flat_map(|alternative| alternative.functions.iter().map(|function| function.host))
            .chain(bus.functions().iter().map(|function| function.host))
            .collect();
        self.read(passed);
        let topology = self.topology();
        let chain = Chain {
            survey: self,
            topology: &topology,
            settings,
            composition: &composition,
            bus: &bus,
            template: is_true(main.get("template")),
        };
        let judged: Vec<_> = composition
            .entries
            .iter()
            .map(|entry| chain.entry(entry))
            .collect();
        let (repairs, no_repair) = plan_repairs(
            vmid,
            &config,
            &composition,
            &judged,
            &topology,
            settings.strategy,
        );
        let report = chain.vm(vmid, &config, &judged, &repairs, &no_repair);
        let gpus = chain.counted().len();
        let doubts = match chain.silence(config.main.get("ostype")) {
            None => judged
                .iter()
                .filter_map(|judged| judged.doubt.clone())
                .collect(),
            Some(_) => Vec::new(),
        };
        drop(topology);
        Ok(Examined {
            report,
            document,
            config,
            doubts,
            repairs,
            gpus,
        })
    }
}

/// The repair of each entry that has one, and why the others have none.
fn plan_repairs(
    vmid: Vmid,
    config: &Config,
    composition: &Composition,
    judged: &[Judged],
    topology: &Topology,
    strategy: Strategy,
) -> (
    BTreeMap<HostpciIndex, Repair>,
    BTreeMap<HostpciIndex, NoRepair>,
) {
    let lost: Vec<_> = judged
        .iter()
        .filter(|judged| judged.verdict == Verdict::Lost)
        .collect();
    let candidates: Vec<Candidate> = lost
        .iter()
        .filter(|judged| judged.entry.form != Form::Mapping)
        .filter_map(|judged| judged.candidate(topology))
        .collect();
    let pending = config.pending.hostpci().map(|(index, _)| index);
    let dropped = config
        .warnings
        .iter()
        .filter_map(|warning| HostpciIndex::from_key(&warning.dropped.as_ref()?.key));
    let guest = plan::Guest {
        vmid,
        windows: is_windows(config.main.get("ostype")),
        taken: config
            .main
            .hostpci()
            .map(|(index, _)| index)
            .chain(pending)
            .chain(dropped)
            .collect(),
        on_port: composition
            .entries
            .iter()
            .filter(|entry| {
                entry
                    .slot
                    .as_ref()
                    .is_some_and(|slot| slot.upstream == Upstream::RootPort)
            })
            .map(|entry| entry.index)
            .collect(),
    };
    let mut repairs = BTreeMap::new();
    let mut none = BTreeMap::new();
    for (candidate, planned) in candidates
        .iter()
        .zip(plan::plan(&guest, &candidates, strategy))
    {
        match planned {
            Ok(repair) => drop(repairs.insert(candidate.index, repair)),
            Err(why) => drop(none.insert(candidate.index, why)),
        }
    }
    (repairs, none)
}

/// The value of the last `-machine` that names a type; QEMU merges several.
fn machine_of(command: &[String]) -> Option<&String> {
    let values = command.iter().zip(command.iter().skip(1));
    let values =
        values.filter(|(word, _)| matches!(word.as_str(), "-machine" | "--machine" | "-M"));
    let mut typed = values.map(|(_, value)| value).filter(|value| {
        value
            .split(',')
            .any(|part| !part.contains('=') || part.starts_with("type="))
    });
    typed.next_back()
}

/// The value of a cell, filled by `read` at first use.
fn cached<T>(
    cell: &OnceCell<T>,
    read: impl FnOnce() -> Result<T, HostError>,
) -> Result<&T, HostError> {
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    let value = read()?;
    Ok(cell.get_or_init(|| value))
}

impl Survey<'_> {
    /// The host's functions, sorted; listed once in a run.
    fn addresses(&self) -> Result<&[Sbdf], HostError> {
        cached(&self.addresses, || {
            let names = self.host.pci_names()?;
            let mut addresses: Vec<_> = names.iter().filter_map(|name| name.parse().ok()).collect();
            addresses.sort_unstable();
            Ok(addresses)
        })
        .map(Vec::as_slice)
    }

    fn rarer(&self, addr: Sbdf) -> Result<Rarer, HostError> {
        if let Some(known) = self.rarer.borrow().get(&addr) {
            return Ok(*known);
        }
        let read = (self.host.subsystem(addr)?, self.host.mdev(addr)?);
        self.rarer.borrow_mut().insert(addr, read);
        Ok(read)
    }
}

impl HostFunctions for Survey<'_> {
    fn addresses(&self, range: RangeInclusive<Sbdf>) -> Vec<Sbdf> {
        // Read before the composition starts, so that an error was seen there.
        let addresses = self.addresses.get().map_or(&[][..], Vec::as_slice);
        let start = addresses.partition_point(|address| address < range.start());
        let end = addresses.partition_point(|address| address <= range.end());
        addresses.get(start..end).unwrap_or_default().to_vec()
    }

    fn details(&self, address: Sbdf) -> Option<HostFunction> {
        self.read([address]);
        let (subsystem, mdev) = match self.rarer(address) {
            Ok(rarer) => rarer,
            Err(error) => {
                self.trouble.borrow_mut().get_or_insert(error);
                return None;
            }
        };
        let topology = self.topology();
        let function = topology.get(address)?;
        Some(HostFunction {
            vendor: function.vendor,
            device: function.device,
            subsystem,
            iommu_group: function.iommu_group,
            mdev: mdev != Mdev::None,
            nvidia: mdev == Mdev::Nvidia,
        })
    }
}

/// Whether the guest is a Windows by its `ostype`.
pub fn is_windows(ostype: Option<&str>) -> bool {
    matches!(
        ostype,
        Some("wxp" | "w2k" | "w2k3" | "w2k8" | "wvista" | "win7" | "win8" | "win10" | "win11")
    )
}

/// Whether a boolean of the configuration is set, as Perl sees it.
pub fn is_true(value: Option<&str>) -> bool {
    !matches!(value, None | Some("" | "0"))
}

/// One entry between the rules and the report.
struct Judged<'a> {
    entry: &'a Entry,
    verdict: Verdict,
    reason: Option<Reason>,
    /// Index of the function that needs `AtomicOps` in the chosen alternative.
    subject: Option<usize>,
    guest_port: Option<String>,
    guest_widths: Widths,
    host_widths: Widths,
    intersection: Option<Widths>,
    needs: Vec<bool>,
    /// Why a loss cannot be told, where the guest's layout would hide what the host may give.
    doubt: Option<String>,
}

impl<'a> Judged<'a> {
    const fn plain(entry: &'a Entry, verdict: Verdict) -> Self {
        Self {
            entry,
            verdict,
            reason: None,
            subject: None,
            guest_port: None,
            guest_widths: Widths::NONE,
            host_widths: Widths::NONE,
            intersection: None,
            needs: Vec::new(),
            doubt: None,
        }
    }

    fn candidate(&self, topology: &Topology) -> Option<Candidate<'a>> {
        let alternative = self.entry.chosen_alternative()?;
        let subject = self.subject?;
        let members = alternative
            .functions
            .iter()
            .zip(&self.needs)
            .map(|(function, needs)| Member {
                addr: function.host,
                spelling: spelling(&alternative.path, function.host),
                needs_atomic_ops: *needs,
                iommu_group: topology
                    .get(function.host)
                    .and_then(|function| function.iommu_group),
            });
        let addr = alternative.functions.get(subject)?.host;
        Some(Candidate {
            index: self.entry.index,
            value: &self.entry.value,
            options: self.entry.hostpci.as_ref()?,
            reason: self.reason?,
            members: members.collect(),
            subject,
            reset_methods: topology
                .get(addr)
                .and_then(|function| function.reset_methods.clone()),
        })
    }
}

/// A function's address as the user spells addresses in `path`: with the domain, or without.
fn spelling(path: &str, function: Sbdf) -> String {
    let full = function.to_string();
    let by = path.split(';').find(|element| {
        full.starts_with(element)
            || full
                .strip_prefix("0000:")
                .is_some_and(|short| short.starts_with(element))
    });
    match (by, full.strip_prefix("0000:")) {
        (Some(element), Some(short)) if !full.starts_with(element) => short.to_owned(),
        _ => full,
    }
}

/// The rules for one VM.
struct Chain<'a> {
    survey: &'a Survey<'a>,
    topology: &'a Topology,
    settings: &'a Settings,
    composition: &'a Composition,
    bus: &'a GuestBus,
    template: bool,
}

impl<'a> Chain<'a> {
    /// What the host gives one function: asked for several times in a report, and by every VM that has the function.
    fn answer(&self, addr: Sbdf) -> Rc<HostAnswer> {
        let decide = || Rc::new(host_answer(self.topology, addr, self.survey.kernel()));
        if self.topology.get(addr).is_none() {
            // It may be read later.
            return decide();
        }
        let mut answers = self.survey.answers.borrow_mut();
        Rc::clone(answers.entry(addr).or_insert_with(decide))
    }

    fn class(&self, addr: Sbdf) -> u32 {
        self.topology.get(addr).map_or(0, |function| function.class)
    }

    fn needs(&self, addr: Sbdf) -> bool {
        let class = self.class(addr);
        self.topology.get(addr).is_some()
            && (class == UNKNOWN_CLASS || self.settings.devices.includes(class))
    }

    /// What a guest port advertises with everything that sits on it.
    fn advertised(&self, bus: &str) -> Result<Widths, qemu::Denial> {
        let here = self
            .bus
            .functions()
            .iter()
            .filter(|function| function.place.bus == bus);
        let functions = here.map(|function| (&function.place, self.answer(function.host).widths));
        qemu::advertised(bus, functions, self.survey.qemu().revision())
    }

    fn entry(&self, entry: &'a Entry) -> Judged<'a> {
        if entry.refusal.is_some() {
            return Judged::plain(entry, Verdict::Error);
        }
        let Some(alternative) = entry.chosen_alternative() else {
            return Judged::plain(entry, Verdict::NotApplicable);
        };
        if self.template || entry.form == Form::Mdev || alternative.functions.is_empty() {
            return Judged::plain(entry, Verdict::NotApplicable);
        }
        let functions = &alternative.functions;
        let needs: Vec<_> = functions
            .iter()
            .map(|function| self.needs(function.host))
            .collect();
        let answers: Vec<_> = functions
            .iter()
            .map(|function| self.answer(function.host))
            .collect();
        let intersection = (functions.len() > 1).then(|| {
            answers
                .iter()
                .fold(Widths::ALL, |all, answer| all.intersection(answer.widths))
        });
        let gpu = |at: usize| {
            functions
                .get(at)
                .is_some_and(|function| is_gpu(self.class(function.host)))
        };
        let gives = |at: usize| {
            answers
                .get(at)
                .is_some_and(|answer| answer.widths.contains_all(Widths::W32_W64))
        };
        let subject = (0..functions.len())
            .filter(|at| needs.get(*at).copied().unwrap_or(false))
            .min_by_key(|at| (!gpu(*at), !gives(*at), *at));
        let (Some(subject), Some(place)) =
            (subject, functions.first().map(|function| &function.place))
        else {
            return Judged {
                intersection,
                needs,
                ..Judged::plain(entry, Verdict::NotApplicable)
            };
        };
        let answer = answers.get(subject);
        let host_widths = answer.map_or(Widths::NONE, |answer| answer.widths);
        let advertised = self.advertised(&place.bus);
        let guest_widths = advertised.unwrap_or_default();
        let unreadable = answer
            .and_then(|answer| answer.denial.as_ref())
            .is_some_and(|denial| denial.is_unreadable());
        let verdict = match judge(host_widths, guest_widths) {
            Verdict::Unavailable if unreadable => Verdict::Unknown,
            verdict => verdict,
        };
        let doubt = answer
            .and_then(|answer| answer.denial.as_ref())
            .filter(|_| verdict == Verdict::Unknown && advertised.is_err())
            .map(|denial| {
                format!(
                    "cannot tell whether {} loses AtomicOps: {denial}",
                    entry.index
                )
            });
        let reason =
            (verdict == Verdict::Lost).then(|| self.reason(entry, place, advertised.err()));
        Judged {
            entry,
            verdict,
            reason,
            subject: Some(subject),
            guest_port: (place.upstream == Upstream::RootPort).then(|| place.bus.clone()),
            guest_widths,
            host_widths,
            intersection,
            needs,
            doubt,
        }
    }

    fn reason(&self, entry: &Entry, place: &GuestPlace, denial: Option<qemu::Denial>) -> Reason {
        if self.survey.qemu().revision() == qemu::Revision::NoGuard {
            return Reason::QemuTooOld;
        }
        if !self.composition.machine.is_q35() {
            return Reason::NotQ35;
        }
        if !entry.hostpci.as_ref().is_some_and(|hostpci| hostpci.pcie) {
            return Reason::NotPcieEntry;
        }
        if place.upstream == Upstream::RootBus {
            return Reason::NoRootPort;
        }
        denial.map_or(Reason::Multifunction, reason_of)
    }

    fn vm(
        &self,
        vmid: Vmid,
        config: &Config,
        judged: &[Judged],
        repairs: &BTreeMap<HostpciIndex, Repair>,
        no_repair: &BTreeMap<HostpciIndex, NoRepair>,
    ) -> model::Vm {
        let main = &config.main;
        let mut entries: Vec<_> = judged
            .iter()
            .map(|judged| {
                self.entry_report(
                    vmid,
                    judged,
                    repairs.get(&judged.entry.index),
                    no_repair.get(&judged.entry.index),
                )
            })
            .collect();
        let set: BTreeSet<_> = main.hostpci().map(|(index, _)| index).collect();
        let dropped = config
            .warnings
            .iter()
            .filter_map(|warning| warning.dropped.as_ref());
        for dropped in dropped.filter(|dropped| dropped.section == SectionName::Main) {
            if HostpciIndex::from_key(&dropped.key).is_some_and(|index| !set.contains(&index)) {
                entries.push(dropped_entry(dropped));
            }
        }
        // A key may be dropped more than once: the last line is the one Proxmox tried last.
        entries.reverse();
        entries.sort_by_key(|entry| HostpciIndex::from_key(&entry.key));
        entries.dedup_by(|later, earlier| later.key == earlier.key);
        let verdict = entries
            .iter()
            .map(|entry| entry.verdict)
            .max()
            .unwrap_or(Verdict::NotApplicable);
        let lost = entries.iter().any(|entry| entry.verdict == Verdict::Lost);
        let silence = if self.template {
            Some("it is a template".to_owned())
        } else {
            lost.then(|| self.silence(main.get("ostype"))).flatten()
        };
        model::Vm {
            vmid,
            name: main.get("name").map(str::to_owned),
            machine: main
                .get("machine")
                .map_or("i440fx", |machine| machine)
                .to_owned(),
            verdict,
            reported: lost && silence.is_none(),
            skipped: silence,
            start_error: self
                .composition
                .start_error
                .as_ref()
                .map(|(index, refusal)| format!("{index}: {refusal}")),
            entries,
            args_ports: self.args_ports(),
            args_not_analysed: self.bus.not_analysed().to_vec(),
            dropped_lines: config
                .warnings
                .iter()
                .filter(|warning| concerns_devices(warning))
                .map(|warning| model::DroppedLine {
                    line: warning.line,
                    text: warning.text.clone(),
                })
                .collect(),
            error: None,
        }
    }

    /// The passed functions that the policy counts.
    fn counted(&self) -> BTreeSet<Sbdf> {
        let passed = self.bus.functions().iter().map(|function| function.host);
        passed.filter(|addr| self.needs(*addr)).collect()
    }

    /// Why the policy has the hook say nothing about a loss.
    fn silence(&self, ostype: Option<&str>) -> Option<String> {
        let settings = self.settings;
        let gpus = u32::try_from(self.counted().len()).unwrap_or(u32::MAX);
        if settings.mode == Mode::Off {
            Some("mode = \"off\" in the policy".to_owned())
        } else if gpus < settings.min_gpus {
            Some(format!(
                "it passes {gpus}, the policy's min_gpus is {}",
                settings.min_gpus
            ))
        } else if settings.windows == Windows::Skip && is_windows(ostype) {
            Some("a Windows guest, and windows = \"skip\" in the policy".to_owned())
        } else {
            None
        }
    }

    fn entry_report(
        &self,
        vmid: Vmid,
        judged: &Judged,
        repair: Option<&Repair>,
        no_repair: Option<&NoRepair>,
    ) -> model::Entry {
        let entry = judged.entry;
        let subject = judged
            .subject
            .and_then(|at| Some(entry.chosen_alternative()?.functions.get(at)?.host));
        let (fix, no_fix) = match (judged.verdict == Verdict::Lost, entry.form) {
            (false, _) => (None, None),
            (true, Form::Mapping) => self.mapping_fix(judged),
            (true, _) => (
                repair.map(|repair| fix(vmid, repair)),
                no_repair.map(ToString::to_string),
            ),
        };
        model::Entry {
            key: entry.index.to_string(),
            value: entry.value.clone(),
            form: entry.form.as_str(),
            verdict: judged.verdict,
            reason: judged.reason,
            error: entry.refusal.as_ref().map(ToString::to_string),
            dropped: false,
            alternatives: entry
                .alternatives
                .iter()
                .enumerate()
                .filter(|_| entry.form != Form::Mdev)
                .map(|(at, alternative)| self.alternative(alternative, entry.chosen == Some(at)))
                .collect(),
            guest_port: judged.guest_port.clone(),
            guest_widths: judged.guest_widths,
            possible_widths: judged.host_widths,
            intersection_widths: judged.intersection,
            subject: subject.map(|addr| addr.to_string()),
            fix,
            no_fix,
        }
    }

    /// The repair of an entry that names a mapping: a command for the cluster's administrator.
    fn mapping_fix(&self, judged: &Judged) -> (Option<model::Fix>, Option<String>) {
        let name = judged
            .entry
            .hostpci
            .as_ref()
            .and_then(|hostpci| hostpci.mapping.as_deref());
        let (Some(name), Ok(mappings), Ok(node)) =
            (name, self.survey.mappings(), self.survey.node())
        else {
            return (None, None);
        };
        let Some(mapping) = mappings.get(name) else {
            return (None, None);
        };
        if judged.reason != Some(Reason::Multifunction) {
            return (
                None,
                Some("the entry itself has to change, not only the mapping".to_owned()),
            );
        }
        let after = self.narrowed(mapping, node);
        if after == mapping.map {
            let why = format!(
                "mapping '{name}' lists several addresses in one value: a person has to divide it"
            );
            return (None, Some(why));
        }
        let words = plan::mapping_words(name, &after);
        let fix = model::Fix {
            strategy: "mapping",
            set: BTreeMap::new(),
            commands: vec![plan::command(&words)],
            mapping: Some(model::MappingChange {
                name: name.to_owned(),
                before: mapping.map.clone(),
                after,
            }),
            notes: vec![format!(
                "mapping '{name}' belongs to the cluster: every VM that uses it gets the one function only"
            )],
        };
        (Some(fix), None)
    }

    /// A mapping's values, this node's narrowed to the function that needs `AtomicOps`.
    fn narrowed(&self, mapping: &Mapping, node: &str) -> Vec<String> {
        mapping
            .map
            .iter()
            .map(|value| {
                self.narrowed_value(value, node)
                    .unwrap_or_else(|| value.clone())
            })
            .collect()
    }

    fn narrowed_value(&self, value: &str, node: &str) -> Option<String> {
        let entry = MapEntry::parse(value)
            .ok()
            .filter(|entry| entry.node == node)?;
        if entry.path.contains('.') || entry.path.contains(';') {
            return None;
        }
        let functions: Vec<_> = self
            .topology
            .iter()
            .filter(|function| {
                function
                    .addr
                    .to_string()
                    .starts_with(&format!("{}.", entry.path))
            })
            .collect();
        let gpu = functions
            .iter()
            .filter(|function| self.needs(function.addr))
            .min_by_key(|function| !is_gpu(function.class))?;
        let id = format!("{:04x}:{:04x}", gpu.vendor, gpu.device);
        let rarer = self.survey.rarer(gpu.addr).ok();
        let subsystem = rarer
            .and_then(|(subsystem, _)| subsystem)
            .map(|(vendor, device)| format!("{vendor:04x}:{device:04x}"));
        let has_subsystem = entry.subsystem_id.is_some();
        let group = gpu.iommu_group.filter(|_| entry.iommugroup.is_some());
        Some(plan::narrow_mapping(
            value,
            &gpu.addr.to_string(),
            &id,
            subsystem.as_deref().filter(|_| has_subsystem),
            group,
        ))
    }

    fn alternative(&self, alternative: &Alternative, chosen: bool) -> model::Alternative {
        let functions = alternative.functions.iter();
        model::Alternative {
            path: alternative.path.clone(),
            chosen,
            functions: functions
                .filter_map(|passed| {
                    Some(self.function(self.topology.get(passed.host)?, &passed.place))
                })
                .collect(),
        }
    }

    fn function(&self, function: &Function, place: &GuestPlace) -> model::Function {
        let answer = self.answer(function.addr);
        let denial = answer.denial.as_ref().filter(|_| answer.widths.is_empty());
        model::Function {
            host: function.addr.to_string(),
            vendor: format!("{:#06x}", function.vendor),
            device: format!("{:#06x}", function.device),
            class: format!("{:#08x}", function.class),
            name: None,
            guest: model::Place {
                bus: place.bus.clone(),
                slot: place.slot,
                function: place.function,
                multifunction: place.multifunction,
            },
            iommu_group: function.iommu_group,
            driver: function.driver.clone(),
            path: path(self.topology, function.addr),
            completer: match &function.registers {
                Registers::Express(express) => express
                    .devcap2
                    .map(|devcap2| devcap2.atomic_op_completer())
                    .unwrap_or_default(),
                _ => Widths::NONE,
            },
            host_widths: answer.widths,
            host_reason: denial.map(|denial| denial.reason()),
            host_detail: denial.map(ToString::to_string),
            host_denied_at: denial.map(|denial| denial.addr().to_string()),
            uncertain: answer.uncertain.clone(),
        }
    }

    fn args_ports(&self) -> Vec<model::ArgsPort> {
        self.bus
            .args_ports()
            .iter()
            .map(|port| {
                let advertised = self.advertised(&port.id);
                let functions: Vec<_> = self
                    .bus
                    .functions()
                    .iter()
                    .filter(|function| {
                        function.place.bus == port.id || port.is_above(&function.place.bus)
                    })
                    .collect();
                let gives = functions.iter().any(|function| {
                    self.answer(function.host)
                        .widths
                        .contains_all(Widths::W32_W64)
                });
                let widths = advertised.unwrap_or_default();
                let reason = if gives && widths.is_empty() {
                    Some(advertised.err().map_or(Reason::NotRootPort, reason_of))
                } else {
                    None
                };
                model::ArgsPort {
                    port: port.id.clone(),
                    model: port.model.clone(),
                    functions: functions
                        .iter()
                        .map(|function| model::ArgsFunction {
                            host: function.host.to_string(),
                            addr: format!(
                                "{:x}.{:x}",
                                function.place.slot, function.place.function
                            ),
                            multifunction: function.place.multifunction,
                        })
                        .collect(),
                    guest_widths: widths,
                    reason,
                }
            })
            .collect()
    }
}

/// The class code of a function whose class cannot be read: it may be a GPU.
const UNKNOWN_CLASS: u32 = 0xff_ffff;

/// Whether a class code is that of a display controller or a processing accelerator.
const fn is_gpu(class: u32) -> bool {
    crate::settings::Devices::Gpu.includes(class)
}

const fn reason_of(denial: qemu::Denial) -> Reason {
    match denial {
        qemu::Denial::QemuTooOld => Reason::QemuTooOld,
        qemu::Denial::RootBus => Reason::NoRootPort,
        qemu::Denial::NotRootPort => Reason::NotRootPort,
        qemu::Denial::FunctionNotZero => Reason::FunctionNotZero,
        qemu::Denial::Multifunction | qemu::Denial::AlreadyAdvertised => Reason::Multifunction,
    }
}

/// Whether a warning of Proxmox is about passed-through devices: a line of that name, however it is mistyped, or the
/// machine's.
fn concerns_devices(warning: &Warning) -> bool {
    let mut names = ["hostpci", "machine"].iter();
    names.any(|name| {
        warning.text.contains(name)
            || warning
                .dropped
                .as_ref()
                .is_some_and(|dropped| dropped.key.contains(name))
    })
}

/// An entry that Proxmox drops while it reads the file.
fn dropped_entry(dropped: &Dropped) -> model::Entry {
    model::Entry {
        key: dropped.key.clone(),
        value: dropped.value.clone(),
        form: Form::of_refused(&dropped.value).as_str(),
        verdict: Verdict::Error,
        reason: None,
        error: Some(dropped.reason.clone()),
        dropped: true,
        alternatives: Vec::new(),
        guest_port: None,
        guest_widths: Widths::NONE,
        possible_widths: Widths::NONE,
        intersection_widths: None,
        subject: None,
        fix: None,
        no_fix: None,
    }
}

fn fix(vmid: Vmid, repair: &Repair) -> model::Fix {
    let automatic = repair.kind != Kind::Advice;
    model::Fix {
        strategy: repair.kind.as_str(),
        set: if automatic {
            repair.set.clone()
        } else {
            BTreeMap::new()
        },
        commands: vec![plan::command(&repair.words(vmid))],
        notes: repair.notes.clone(),
        mapping: None,
    }
}

/// The bridges above a function, or above its physical function, host root port first.
pub fn path(topology: &Topology, addr: Sbdf) -> Vec<model::Bridge> {
    let above = topology.path_to(topology.physical(addr));
    let mut path: Vec<_> = above.iter().map(|function| bridge(function)).collect();
    if path
        .first()
        .is_none_or(|first| first.kind != "root-port" && first.kind != "unknown")
    {
        path.insert(
            0,
            model::Bridge {
                addr: None,
                kind: "none",
                devcap2: None,
                devctl2: None,
                routing: None,
                completer: None,
                egress_blocking: None,
            },
        );
    }
    path
}

/// One bridge for a report.
fn bridge(function: &Function) -> model::Bridge {
    let (kind, express) = match &function.registers {
        Registers::Unreadable(_) => ("unknown", None),
        Registers::NotExpress => ("pci-bridge", None),
        Registers::Express(express) => match express.port_type {
            PortType::RootPort => ("root-port", Some(express)),
            PortType::UpstreamPort => ("upstream-port", Some(express)),
            PortType::DownstreamPort => ("downstream-port", Some(express)),
            PortType::PcieToPciBridge | PortType::PciToPcieBridge => ("pci-bridge", Some(express)),
            _ => ("unknown", Some(express)),
        },
    };
    let devcap2 = express.and_then(|express| express.devcap2);
    let devctl2 = express.and_then(|express| express.devctl2);
    model::Bridge {
        addr: Some(function.addr.to_string()),
        kind,
        devcap2: devcap2.map(|register| format!("{:#010x}", register.0)),
        devctl2: devctl2.map(|register| format!("{:#06x}", register.0)),
        routing: express.map(|_| devcap2.is_some_and(|register| register.atomic_op_routing())),
        completer: express.map(|_| {
            devcap2
                .map(|register| register.atomic_op_completer())
                .unwrap_or_default()
        }),
        egress_blocking: express
            .map(|_| devctl2.is_some_and(|register| register.atomic_op_egress_blocking())),
    }
}
