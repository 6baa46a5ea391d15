//! Proxmox VE: from `hostpciN` to QEMU's devices.
//!
//! [`compose`] does what `print_hostpci_devices` of `PVE::QemuServer::PCI` does (qemu-server 9.2.6, mappings as in
//! pve-guest-common of July 2025): it reads each entry, finds the host's functions that an entry names, chooses among
//! the alternatives of a mapping, and says where in the guest each function sits. All 16 entries are read and checked
//! before the first is chosen, so a refusal of `hostpci5` can come before one of `hostpci0`.
//!
//! An *alternative* is one way to fill an entry: an entry with `host=` has one, an entry with `mapping=` one for each
//! of the mapping's lines for this node. A *refusal* is an error with which Proxmox would not start the VM.
//!
//! Upstream stops at the first refusal. This goes on as far as it can, because a report should show every entry;
//! [`Composition::start_error`] is the one that Proxmox would stop at.
//!
//! It reserves, binds and creates nothing, assumes that no other VM holds a device, and knows x86-64 guests only.

mod addresses;
mod choose;
mod machine;
mod mapped;
mod refusal;
mod render;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::pci::Sbdf;
use crate::rules::guest::GuestPlace;
use crate::vmconf::hostpci::{Hostpci, is_unset};
use crate::vmconf::mapping::Mappings;
use crate::vmconf::{HostpciIndex, Vmid};

pub use addresses::{ExtraPort, GuestSlot};
pub use machine::{Machine, MachineFamily, windows_version};
pub use refusal::{IgdRefusal, MappingProblem, Refusal};

/// What Proxmox looks at in one function of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFunction {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Subsystem vendor and device ID, where `sysfs` has both files.
    pub subsystem: Option<(u16, u16)>,
    /// IOMMU group.
    pub iommu_group: Option<u32>,
    /// Whether it can create mediated devices (`mdev_supported_types` or `nvidia` in its directory).
    pub mdev: bool,
    /// Whether it does so through NVIDIA's newer interface (`nvidia`, and no `mdev_supported_types`).
    pub nvidia: bool,
}

/// The host's PCI functions. Names are cheap to come by, the rest is asked for only where it decides something.
pub trait HostFunctions {
    /// The functions in `/sys/bus/pci/devices` whose address is in this range, sorted. Asked for once per address that an
    /// entry names, so the directory should be read no more than once.
    fn addresses(&self, range: RangeInclusive<Sbdf>) -> Vec<Sbdf>;

    /// More about one of them; `None` where it is not there or cannot be read.
    fn details(&self, address: Sbdf) -> Option<HostFunction>;
}

impl HostFunctions for BTreeMap<Sbdf, HostFunction> {
    fn addresses(&self, range: RangeInclusive<Sbdf>) -> Vec<Sbdf> {
        self.range(range).map(|(address, _)| *address).collect()
    }

    fn details(&self, address: Sbdf) -> Option<HostFunction> {
        self.get(&address).cloned()
    }
}

/// What the composition depends on.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The VM.
    pub vmid: Vmid,
    /// The configuration's main section as Proxmox holds it after reading the file. Asked for `hostpci0` to
    /// `hostpci15`, `machine`, `ostype`, `bios`, `vga` and `boot`.
    pub conf: &'a dyn Fn(&str) -> Option<&'a str>,
    /// The cluster's mappings.
    pub mappings: &'a Mappings,
    /// Name of the node the VM starts on.
    pub node: &'a str,
    /// The host.
    pub host: &'a dyn HostFunctions,
}

/// How an entry names its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One address without a function.
    AllFunctions,
    /// One address with a function.
    Explicit,
    /// Several addresses, joined by `;`.
    List,
    /// A cluster resource mapping.
    Mapping,
    /// A mediated device, or a virtual GPU of NVIDIA's newer driver: no whole function for the guest to own.
    Mdev,
}

impl Form {
    /// The name in reports: `all-functions`, `explicit`, `list`, `mapping`, `mdev`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AllFunctions => "all-functions",
            Self::Explicit => "explicit",
            Self::List => "list",
            Self::Mapping => "mapping",
            Self::Mdev => "mdev",
        }
    }

    fn of_host(host: &str) -> Self {
        if host.contains(';') {
            Self::List
        } else if host.contains('.') {
            Self::Explicit
        } else {
            Self::AllFunctions
        }
    }

    /// A guess for a value that the schema refuses.
    pub fn of_refused(value: &str) -> Self {
        let has = |key: &str| value.split(',').any(|part| part.starts_with(key));
        if has("mdev=") {
            Self::Mdev
        } else if has("mapping=") {
            Self::Mapping
        } else {
            let mut hosts = value
                .split(',')
                .filter_map(|part| match part.split_once('=') {
                    None => Some(part),
                    Some(("host", host)) => Some(host),
                    Some(_) => None,
                });
            hosts.next().map_or(Self::AllFunctions, Self::of_host)
        }
    }
}

/// One host function and its place in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedFunction {
    /// The host's function.
    pub host: Sbdf,
    /// Where the guest sees it.
    pub place: GuestPlace,
}

/// One way to fill an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// Addresses or prefixes as the entry or the mapping spells them, joined by `;`.
    pub path: String,
    /// The functions found for it, in guest order. Empty for a mediated device, and for a path that matches nothing.
    pub functions: Vec<PassedFunction>,
    /// Why Proxmox would refuse it, if it would.
    pub refusal: Option<Refusal>,
    /// Host functions in guest order, also for mediated devices.
    hosts: Vec<Sbdf>,
}

/// One `hostpciN` entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its N.
    pub index: HostpciIndex,
    /// Its value, as given.
    pub value: String,
    /// Its value, read; `None` where the schema refuses it.
    pub hostpci: Option<Hostpci>,
    /// How it names its devices.
    pub form: Form,
    /// The ways to fill it, in Proxmox's order of preference.
    pub alternatives: Vec<Alternative>,
    /// Index of the alternative that Proxmox takes while no other VM holds a device.
    pub chosen: Option<usize>,
    /// The guest slot of its functions; `None` where the schema refuses the value.
    pub slot: Option<GuestSlot>,
    /// The root port that Proxmox adds for it, besides the four preset ones.
    pub extra_port: Option<ExtraPort>,
    /// The first error that Proxmox would raise for it.
    pub refusal: Option<Refusal>,
    mediated: Mediated,
    live_migration_capable: bool,
    boot_index: Option<u32>,
}

impl Entry {
    /// The alternative that Proxmox takes.
    pub fn chosen_alternative(&self) -> Option<&Alternative> {
        self.alternatives.get(self.chosen?)
    }
}

/// Whether an entry passes a mediated device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Mediated {
    /// It passes whole functions.
    #[default]
    No,
    /// Through a device below `/sys/bus/mdev`.
    Mdev,
    /// Through NVIDIA's newer interface: the function is passed itself, after its type was set.
    Nvidia,
}

/// What Proxmox would make of all entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Composition {
    /// The VM.
    pub vmid: Vmid,
    /// The VM's machine.
    pub machine: Machine,
    /// The entries that are set, by index.
    pub entries: Vec<Entry>,
    /// The first error in Proxmox's order, and its entry: the VM would not start.
    pub start_error: Option<(HostpciIndex, Refusal)>,
    bios_is_ovmf: bool,
}

impl Composition {
    /// The entry with this index.
    pub fn entry(&self, index: HostpciIndex) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.index == index)
    }

    /// The functions that Proxmox passes, in the order in which QEMU realizes them.
    pub fn passed(&self) -> impl Iterator<Item = (&Entry, &PassedFunction)> {
        self.entries.iter().flat_map(|entry| {
            entry
                .chosen_alternative()
                .into_iter()
                .flat_map(move |chosen| chosen.functions.iter().map(move |passed| (entry, passed)))
        })
    }
}

/// Composes the guest's passed devices.
pub fn compose(inputs: &Inputs<'_>) -> Composition {
    let machine = Machine::read((inputs.conf)("machine"));
    let windows = windows_version((inputs.conf)("ostype").unwrap_or_default());
    let boot = boot_indices((inputs.conf)("boot").unwrap_or_default());
    let mut legacy_igd_seen = false;
    let mut entries: Vec<Entry> = HostpciIndex::all()
        .filter_map(|index| {
            let key = index.to_string();
            let value = (inputs.conf)(&key).filter(|value| !is_unset(value))?;
            let mut entry = read_entry(inputs, index, value);
            if let Some(hostpci) = &entry.hostpci {
                let slot = GuestSlot::of(index, hostpci, &machine, windows);
                entry.extra_port = ExtraPort::of(index, &slot);
                slot.fill(&mut entry);
                entry.slot = Some(slot);
            }
            entry.boot_index = boot.get(&key).copied();
            let refusal = entry
                .refusal
                .take()
                .or_else(|| check(inputs, &machine, &entry, &mut legacy_igd_seen));
            entry.refusal = refusal;
            Some(entry)
        })
        .collect();
    let mut start_error = first_refusal(&entries);
    choose::choose(&mut entries);
    if start_error.is_none() {
        start_error = first_refusal(&entries);
    }
    Composition {
        vmid: inputs.vmid,
        machine,
        entries,
        start_error,
        bios_is_ovmf: (inputs.conf)("bios") == Some("ovmf"),
    }
}

fn first_refusal(entries: &[Entry]) -> Option<(HostpciIndex, Refusal)> {
    entries
        .iter()
        .find_map(|entry| Some((entry.index, entry.refusal.clone()?)))
}

/// `parse_hostpci`: the value, and the functions that it names.
fn read_entry(inputs: &Inputs<'_>, index: HostpciIndex, value: &str) -> Entry {
    let mut entry = Entry {
        index,
        value: value.to_owned(),
        hostpci: None,
        form: Form::of_refused(value),
        alternatives: Vec::new(),
        chosen: None,
        slot: None,
        extra_port: None,
        refusal: None,
        mediated: Mediated::No,
        live_migration_capable: false,
        boot_index: None,
    };
    let hostpci = match Hostpci::parse(value) {
        Ok(hostpci) => hostpci,
        Err(error) => {
            entry.refusal = Some(Refusal::Format(error));
            return entry;
        }
    };
    match (&hostpci.host, &hostpci.mapping) {
        (Some(_), Some(_)) => entry.refusal = Some(Refusal::HostAndMapping),
        (None, None) => entry.refusal = Some(Refusal::NeitherHostNorMapping),
        (Some(host), None) => {
            entry.form = Form::of_host(host);
            entry.alternatives.push(Alternative::of_path(host));
        }
        (None, Some(name)) => {
            entry.form = Form::Mapping;
            let found = mapped::alternatives(inputs, name);
            if found.alternatives.is_empty() {
                entry.refusal = Some(Refusal::MappingNotFound {
                    mapping: name.clone(),
                });
            }
            entry.live_migration_capable = found.live_migration_capable;
            entry.alternatives = found.alternatives;
        }
    }
    if entry.refusal.is_none() {
        entry.refusal = entry
            .alternatives
            .iter()
            .find_map(|alternative| alternative.refusal.clone());
    }
    let found = find_functions(inputs.host, hostpci.mdev.as_deref(), &mut entry);
    if entry.refusal.is_none() {
        entry.refusal = found;
    }
    if entry.mediated != Mediated::No {
        entry.form = Form::Mdev;
    }
    entry.hostpci = Some(hostpci);
    entry
}

/// Looks up the functions of each alternative and settles what a `mdev` option means for them. Returns the first
/// refusal.
fn find_functions(
    host: &dyn HostFunctions,
    mdev: Option<&str>,
    entry: &mut Entry,
) -> Option<Refusal> {
    // Upstream asks whether these texts are true, and Perl's `0` is not: neither `mdev=0` nor the number of `nvidia-0`.
    let mut mdev = mdev.filter(|kind| *kind != "0");
    let mut nvidia = false;
    let mut first = None;
    for alternative in &mut entry.alternatives {
        let mut refusal = None;
        for path in alternative.path.split(';') {
            let found = matching(host, path);
            if found.is_empty() && refusal.is_none() {
                refusal = Some(Refusal::NoDevice {
                    path: path.to_owned(),
                });
            }
            alternative.hosts.extend(found);
        }
        if alternative.hosts.len() > 1 {
            if mdev.is_some() || nvidia {
                refusal = refusal.or(Some(Refusal::MdevMultifunction));
            }
        } else if let Some(number) = mdev.and_then(nvidia_type)
            && let Some(only) = alternative.hosts.first()
            && host.details(*only).is_some_and(|details| details.nvidia)
        {
            nvidia = number != "0";
            mdev = None;
        }
        if first.is_none() {
            first.clone_from(&refusal);
        }
        if alternative.refusal.is_none() {
            alternative.refusal = refusal;
        }
    }
    entry.mediated = match (mdev, nvidia) {
        (Some(_), _) => Mediated::Mdev,
        (None, true) => Mediated::Nvidia,
        (None, false) => Mediated::No,
    };
    first
}

/// The number in `nvidia-N`.
fn nvidia_type(mdev: &str) -> Option<&str> {
    mdev.strip_prefix("nvidia-")
        .filter(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `PVE::SysFSTools::lspci`: the functions whose name begins with `prefix`, domain 0000 optional, sorted by name.
///
/// A prefix nearly always holds a whole bus and device, so that only one slot has to be compared, and names there sort
/// like addresses.
fn matching(host: &dyn HostFunctions, prefix: &str) -> Vec<Sbdf> {
    let mut found = host.addresses(slot_of_prefix(prefix).unwrap_or(Sbdf::ALL));
    found.retain(|address| {
        let name = address.to_string();
        name.starts_with(prefix)
            || name
                .strip_prefix("0000:")
                .is_some_and(|short| short.starts_with(prefix))
    });
    found
}

/// The slot that all names with this prefix are in; `None` where it does not hold a whole bus and device, as parts of a
/// mapping's path need not.
fn slot_of_prefix(prefix: &str) -> Option<RangeInclusive<Sbdf>> {
    let slot = prefix.split_once('.').map_or(prefix, |(slot, _)| slot);
    let domain = if slot.matches(':').count() == 1 {
        "0000:"
    } else {
        ""
    };
    let function: Sbdf = format!("{domain}{slot}.0").parse().ok()?;
    Some(function.slot_range())
}

/// The checks of `parse_hostpci_devices`, in its order.
fn check(
    inputs: &Inputs<'_>,
    machine: &Machine,
    entry: &Entry,
    legacy_igd_seen: &mut bool,
) -> Option<Refusal> {
    let hostpci = entry.hostpci.as_ref()?;
    let q35 = machine.is_q35();
    if hostpci.pcie && !q35 {
        return Some(Refusal::NotQ35);
    }
    if !hostpci.legacy_igd {
        return None;
    }
    if std::mem::replace(legacy_igd_seen, true) {
        return Some(Refusal::Igd(IgdRefusal::SecondDevice));
    }
    // The first function of the first alternative stands for all.
    let first = entry
        .alternatives
        .first()
        .and_then(|alternative| alternative.hosts.first());
    let igd = if (inputs.conf)("vga") != Some("none") {
        IgdRefusal::VgaNotNone
    } else if !hostpci.rombar {
        IgdRefusal::RombarOff
    } else if hostpci.x_vga {
        IgdRefusal::XVga
    } else if entry.mediated != Mediated::No {
        IgdRefusal::Mdev
    } else if q35 {
        IgdRefusal::Q35
    } else if entry.alternatives.iter().any(|one| one.hosts.len() > 1) {
        IgdRefusal::Multifunction
    } else if entry.alternatives.len() > 1 {
        IgdRefusal::Alternatives
    } else if first.is_none_or(|address| (address.device(), address.function()) != (2, 0)) {
        IgdRefusal::NotSlot2
    } else {
        return None;
    };
    Some(Refusal::Igd(igd))
}

/// `device_bootorder`, as far as it concerns passed devices: the boot index by key. The older kind of `boot` value
/// never names one.
fn boot_indices(boot: &str) -> BTreeMap<String, u32> {
    let mut order = None;
    for part in boot.split(',').filter(|part| !part.trim().is_empty()) {
        match part.split_once('=') {
            Some(("order", list)) => order = Some(list),
            Some(("legacy", _)) | None => return BTreeMap::new(),
            Some(_) => {}
        }
    }
    // Proxmox's `split_list`. A key that stands there twice has its later place.
    order
        .unwrap_or_default()
        .split([',', ';', ' ', '\t', '\n', '\r', '\x0b', '\x0c', '\0'])
        .filter(|key| !key.is_empty())
        .map(str::to_owned)
        .zip(100..)
        .collect()
}

impl Alternative {
    fn of_path(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            functions: Vec::new(),
            refusal: None,
            hosts: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
