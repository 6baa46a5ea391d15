//! The guest's PCI buses, and where each passed function ends up on them.
//!
//! [`GuestBus::new`] plays QEMU's part: it realizes Proxmox's preset ports and bridges, then the devices of the `hostpciN`
//! entries, then those of `args` (Proxmox appends them last), each on the bus it names. The order matters because a
//! device without an address takes the first free slot, and because a port advertises what the first function that
//! qualifies gives it.
//!
//! How QEMU goes about it (`qbus_find`, `pci_bridge_initfn`, `do_pci_register_device`, `pci_init_multifunction`; checked
//! with QEMU 7.2):
//!
//! - The bus behind a port is named like the port. A port without an ID has a bus `pcie.N` or `pci.N`, counted by kind.
//! - A device without `bus=` goes to the root bus, one without `addr=` to the first slot whose function 0 is free.
//! - A function above 0 needs a multifunction function 0, or none; a function 0 that is not multifunction must be
//!   alone in its slot.
//!
//! Assumptions: Proxmox puts nothing but `hostpciN` on its root ports. What else sits on the root bus is not known
//! here, so a slot that QEMU would choose there is a guess; nothing depends on it, since the root bus has no port.

use std::collections::BTreeMap;

use super::guest::{GuestPlace, Upstream};
use super::pve::{Composition, Entry};
use crate::pci::Sbdf;
use crate::vmconf::HostpciIndex;
use crate::vmconf::args::{
    GuestAddress, Options, PortModel, RawDevice, RawDevices, RawModel, Setting, VfioSource,
    parse_boolean, parse_guest_address, vfio_source,
};

/// Who put a port or a device into the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Proxmox's preset for the machine.
    Preset,
    /// A `hostpciN` entry.
    Hostpci(HostpciIndex),
    /// The `args` key.
    Args,
}

/// One bus of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bus {
    /// QEMU's name for it: what `bus=` says.
    pub name: String,
    /// Model of the device that it hangs from; empty for the root bus.
    pub model: String,
    /// What it hangs from.
    pub upstream: Upstream,
    /// Who put it there.
    pub source: Source,
    /// Index of the bus that its device sits on, as far as `args` put it there.
    parent: Option<usize>,
    /// Taken functions, and which of them have `multifunction=on`.
    taken: BTreeMap<GuestAddress, bool>,
}

/// A passed function in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestFunction {
    /// Which entry passes it.
    pub source: Source,
    /// QEMU's `id=`; empty for a raw device without one.
    pub id: String,
    /// The host's function.
    pub host: Sbdf,
    /// Where it is.
    pub place: GuestPlace,
}

/// A port that `args` concerns: a root port from there, or any other bus that a raw `vfio-pci` sits on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgsPort {
    /// Name of its bus, which is the port's ID where it has one.
    pub id: String,
    /// Model of the port; `root bus` for the root bus.
    pub model: String,
    below: Vec<String>,
}

impl ArgsPort {
    /// Whether a bus hangs from the port through switches or bridges of `args`.
    pub fn is_above(&self, bus: &str) -> bool {
        self.below.iter().any(|below| below == bus)
    }
}

/// Why QEMU would refuse to start. The text names the device's bus, model or ID as the configuration does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// No bus has this name.
    #[error("{device}: there is no bus '{bus}'")]
    NoSuchBus {
        /// The device.
        device: String,
        /// The name.
        bus: String,
    },
    /// Something is there already.
    #[error("{device}: {bus} slot {slot:x} function {function:x} is taken")]
    Taken {
        /// The device.
        device: String,
        /// The bus.
        bus: String,
        /// The slot.
        slot: u8,
        /// The function.
        function: u8,
    },
    /// The bus has no free slot.
    #[error("{device}: {bus} is full")]
    Full {
        /// The device.
        device: String,
        /// The bus.
        bus: String,
    },
    /// Function 0 without `multifunction=on` shares its slot.
    #[error("{device}: function 0 of {bus} slot {slot:x} shares the slot without multifunction=on")]
    SingleFunction {
        /// The device that finds it so.
        device: String,
        /// The bus.
        bus: String,
        /// The slot.
        slot: u8,
    },
    /// A function number that QEMU does not have.
    #[error("{device}: function {function} is above 7")]
    FunctionAbove7 {
        /// The device.
        device: String,
        /// The function.
        function: u8,
    },
    /// `-set` names a device that is not there.
    #[error("-set device.{id}: there is no such device")]
    NoSuchDevice {
        /// The ID.
        id: String,
    },
}

/// The guest's buses and passed functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestBus {
    buses: Vec<Bus>,
    functions: Vec<GuestFunction>,
    errors: Vec<PlaceError>,
    args_ports: Vec<ArgsPort>,
    not_analysed: Vec<String>,
    unnamed_express: u32,
    unnamed_conventional: u32,
}

impl GuestBus {
    /// Puts the chosen devices of all entries and the raw devices into the guest.
    pub fn new(composition: &Composition, args: &RawDevices) -> Self {
        let mut guest = preset(composition);
        let mut settings = Settings::new(&args.settings);
        for entry in &composition.entries {
            add_entry(&mut guest, entry, &mut settings);
        }
        for device in &args.devices {
            add_raw(&mut guest, device);
        }
        // Devices with other names are Proxmox's own and none of ours.
        for setting in &args.settings {
            if setting.id.starts_with("hostpci") && !settings.used(&setting.id) {
                guest.errors.push(PlaceError::NoSuchDevice {
                    id: setting.id.clone(),
                });
            }
        }
        guest.args_ports = guest.find_args_ports();
        guest.not_analysed.clone_from(&args.not_analysed);
        let errors = guest.errors.iter();
        let refusals: Vec<_> = errors
            .map(|error| format!("QEMU would refuse to start: {error}"))
            .collect();
        guest.not_analysed.extend(refusals);
        guest
    }

    /// All known buses, the root bus first.
    pub fn buses(&self) -> &[Bus] {
        &self.buses
    }

    /// The passed functions, in the order in which QEMU realizes them. Mediated devices, and raw devices that do not
    /// tell which function they pass, are left out.
    pub fn functions(&self) -> &[GuestFunction] {
        &self.functions
    }

    /// What QEMU would refuse.
    pub fn errors(&self) -> &[PlaceError] {
        &self.errors
    }

    /// The ports that `args` concerns, in order of creation.
    pub fn args_ports(&self) -> &[ArgsPort] {
        &self.args_ports
    }

    /// What could matter and was not understood, and what QEMU would refuse, in words for people.
    pub fn not_analysed(&self) -> &[String] {
        &self.not_analysed
    }

    /// The buses that hang from a root port: the ones that can advertise anything.
    pub fn root_ports(&self) -> impl Iterator<Item = &Bus> {
        self.buses
            .iter()
            .filter(|bus| bus.upstream == Upstream::RootPort)
    }

    fn find_args_ports(&self) -> Vec<ArgsPort> {
        let mut ports = Vec::new();
        for (index, bus) in self.buses.iter().enumerate() {
            let own = bus.source == Source::Args && bus.upstream == Upstream::RootPort;
            let used = self
                .functions
                .iter()
                .any(|function| function.source == Source::Args && function.place.bus == bus.name);
            // What hangs below a root port of `args` is shown there.
            let shown = self
                .above(index)
                .any(|above| above.source == Source::Args && above.upstream == Upstream::RootPort);
            if !own && (!used || shown) {
                continue;
            }
            let below = self
                .buses
                .iter()
                .enumerate()
                .filter(|(other, _)| self.above(*other).any(|above| std::ptr::eq(above, bus)))
                .map(|(_, other)| other.name.clone());
            ports.push(ArgsPort {
                id: bus.name.clone(),
                model: if bus.model.is_empty() {
                    "root bus".to_owned()
                } else {
                    bus.model.clone()
                },
                // The root bus is above everything, which would say nothing.
                below: if bus.upstream == Upstream::RootBus {
                    Vec::new()
                } else {
                    below.collect()
                },
            });
        }
        ports
    }

    /// The buses above one, nearest first. A bus is always newer than the one above it.
    fn above(&self, index: usize) -> impl Iterator<Item = &Bus> {
        let parent = |index: usize| self.buses.get(index).and_then(|bus| bus.parent);
        std::iter::successors(parent(index), move |index| parent(*index))
            .filter_map(|index| self.buses.get(index))
    }
}

/// The buses that Proxmox's machine templates bring: `pve-q35.cfg` and `pve-q35-4.0.cfg` for q35; for i440fx the bridges
/// that Proxmox adds for whatever uses them, of which passed devices can use `pci.2`.
fn preset(composition: &Composition) -> GuestBus {
    let bus = |name: &str, model: &str, upstream| Bus {
        name: name.to_owned(),
        model: model.to_owned(),
        upstream,
        source: Source::Preset,
        parent: None,
        taken: BTreeMap::new(),
    };
    let bridge = |name: &str| bus(name, "pci-bridge", Upstream::Bridge);
    let mut buses;
    let conventional_root = !composition.machine.is_q35();
    if conventional_root {
        buses = vec![bus("pci.0", "", Upstream::RootBus)];
        buses.extend(["pci.1", "pci.2", "pci.3", "pci.4"].map(bridge));
    } else {
        buses = vec![bus("pcie.0", "", Upstream::RootBus)];
        let model = composition.machine.preset_port_model();
        buses.extend(
            (1..=4).map(|n| bus(&format!("ich9-pcie-port-{n}"), model, Upstream::RootPort)),
        );
        buses.push(bus("pcidmi", "i82801b11-bridge", Upstream::Bridge));
        buses.extend(["pci.0", "pci.1", "pci.2", "pci.3", "pci.4"].map(bridge));
    }
    if let Some(root) = buses.first_mut() {
        // Host bridge, display and the devices of the chipset.
        for slot in [0, 1, 2, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f] {
            root.taken.insert(GuestAddress { slot, function: 0 }, true);
        }
    }
    GuestBus {
        buses,
        functions: Vec::new(),
        errors: Vec::new(),
        args_ports: Vec::new(),
        not_analysed: Vec::new(),
        // An i440fx's root bus has taken the first name of its kind.
        unnamed_express: 0,
        unnamed_conventional: u32::from(conventional_root),
    }
}

/// `-set` for the devices of `hostpciN`.
struct Settings<'a> {
    all: &'a [Setting],
    used: Vec<String>,
}

impl<'a> Settings<'a> {
    fn new(all: &'a [Setting]) -> Self {
        Self {
            all,
            used: Vec::new(),
        }
    }

    fn used(&self, id: &str) -> bool {
        self.used.iter().any(|used| used == id)
    }

    /// The changes for one device.
    fn of(&mut self, id: &str) -> Options {
        let mut options = Options::default();
        for setting in self.all.iter().filter(|setting| setting.id == id) {
            options.set(&setting.key, &setting.value);
        }
        self.used.push(id.to_owned());
        options
    }
}

fn add_entry(guest: &mut GuestBus, entry: &Entry, settings: &mut Settings<'_>) {
    if entry.refusal.is_some() {
        return;
    }
    let source = Source::Hostpci(entry.index);
    if let Some(port) = &entry.extra_port {
        guest.buses.push(Bus {
            name: port.id.clone(),
            model: PortModel::PcieRootPort.name().to_owned(),
            upstream: Upstream::RootPort,
            source,
            parent: None,
            taken: BTreeMap::new(),
        });
    }
    let Some(chosen) = entry.chosen_alternative() else {
        return;
    };
    let key = entry.index.to_string();
    if chosen.functions.is_empty() {
        // A mediated device: it takes its slot and has no function of the host.
        if let Some(slot) = &entry.slot {
            let place = GuestPlace {
                bus: slot.bus.clone(),
                upstream: slot.upstream.clone(),
                slot: slot.slot,
                function: 0,
                multifunction: false,
            };
            let changes = settings.of(&key);
            add_function(guest, source, None, &key, &key, &place, &changes);
        }
        return;
    }
    let several = chosen.functions.len() > 1;
    for (nth, passed) in chosen.functions.iter().enumerate() {
        // The ID of one function among several has a dot, which `-set` cannot name.
        let (id, changes) = if several {
            (format!("{key}.{nth}"), Options::default())
        } else {
            (key.clone(), settings.of(&key))
        };
        add_function(
            guest,
            source,
            Some(passed.host),
            &id,
            &key,
            &passed.place,
            &changes,
        );
    }
}

/// Adds a function where Proxmox wants it, unless `-set` wants it elsewhere.
fn add_function(
    guest: &mut GuestBus,
    source: Source,
    host: Option<Sbdf>,
    id: &str,
    key: &str,
    place: &GuestPlace,
    changes: &Options,
) {
    let addr = changes
        .get("addr")
        .and_then(parse_guest_address)
        .unwrap_or(GuestAddress {
            slot: place.slot,
            function: place.function,
        });
    let multifunction = changes
        .get("multifunction")
        .and_then(parse_boolean)
        .unwrap_or(place.multifunction);
    let bus = changes.get("bus").unwrap_or(&place.bus);
    let host = match vfio_source(changes) {
        VfioSource::Function(other) => Some(other),
        VfioSource::Path(_) => None,
        VfioSource::Unknown(_) => host,
    };
    let place = guest.realize(key, Some(bus), Some(addr), multifunction);
    if let Some(host) = host {
        guest.functions.push(GuestFunction {
            source,
            id: id.to_owned(),
            host,
            place,
        });
    }
}

fn add_raw(guest: &mut GuestBus, device: &RawDevice) {
    let label = device.id.clone().unwrap_or_else(|| device.driver.clone());
    match &device.model {
        RawModel::Vfio(source) => {
            let place = guest.realize(
                &label,
                device.bus.as_deref(),
                device.addr,
                device.multifunction,
            );
            if let VfioSource::Function(host) = source {
                guest.functions.push(GuestFunction {
                    source: Source::Args,
                    id: device.id.clone().unwrap_or_default(),
                    host: *host,
                    place,
                });
            }
        }
        RawModel::Port(model) => {
            let name = guest.bus_name(device.id.as_deref(), *model);
            // A host bridge of its own sits on no bus of interest.
            let parent = if matches!(model, PortModel::PxbPcie | PortModel::Pxb) {
                None
            } else {
                guest.realize(
                    &label,
                    device.bus.as_deref(),
                    device.addr,
                    device.multifunction,
                );
                guest.parent(device)
            };
            guest.buses.push(Bus {
                name,
                model: device.driver.clone(),
                upstream: upstream_of(*model),
                source: Source::Args,
                parent,
                taken: BTreeMap::new(),
            });
        }
        RawModel::Other => {
            // It may be no PCI device at all; it takes a slot only where it names a PCI bus.
            if let Some(bus) = device.bus.as_deref()
                && guest.find_bus(bus).is_some()
            {
                guest.realize(&label, Some(bus), device.addr, device.multifunction);
            }
            if let Some(id) = &device.id {
                guest.buses.push(Bus {
                    name: id.clone(),
                    model: device.driver.clone(),
                    upstream: Upstream::Other(device.driver.clone()),
                    source: Source::Args,
                    parent: guest.parent(device),
                    taken: BTreeMap::new(),
                });
            }
        }
    }
}

/// What the bus behind a model hangs from.
fn upstream_of(model: PortModel) -> Upstream {
    match model {
        PortModel::PcieRootPort | PortModel::Ioh3420 => Upstream::RootPort,
        PortModel::Xio3130Downstream => Upstream::SwitchPort,
        PortModel::PciePciBridge | PortModel::PciBridge | PortModel::I82801b11 | PortModel::Pxb => {
            Upstream::Bridge
        }
        PortModel::PxbPcie => Upstream::RootBus,
        // Only downstream ports belong on a switch's inner bus; for an endpoint it is no root port either.
        PortModel::X3130Upstream => Upstream::Other(model.name().to_owned()),
    }
}

impl GuestBus {
    /// The bus that QEMU finds under this name or path.
    fn find_bus(&self, name: &str) -> Option<usize> {
        // Of a path through the device tree, the end names the bus, or the device that it belongs to.
        let name = name.trim_end_matches('/').rsplit('/').next()?;
        self.buses.iter().position(|bus| bus.name == name)
    }

    /// The bus that a raw device sits on.
    fn parent(&self, device: &RawDevice) -> Option<usize> {
        match device.bus.as_deref() {
            None => Some(0),
            Some(name) => self.find_bus(name),
        }
    }

    /// The name of the bus behind a new port.
    fn bus_name(&mut self, id: Option<&str>, model: PortModel) -> String {
        if let Some(id) = id {
            return id.to_owned();
        }
        let (kind, counter) = if model.bus_is_express() {
            ("pcie", &mut self.unnamed_express)
        } else {
            ("pci", &mut self.unnamed_conventional)
        };
        let name = format!("{kind}.{counter}");
        *counter += 1;
        name
    }

    /// Puts a device on a bus. Where QEMU would refuse, the error is kept, and the place is what was asked for.
    fn realize(
        &mut self,
        device: &str,
        bus: Option<&str>,
        addr: Option<GuestAddress>,
        multifunction: bool,
    ) -> GuestPlace {
        let index = match bus {
            None => Some(0),
            Some(name) => self.find_bus(name),
        };
        let asked = addr.unwrap_or(GuestAddress {
            slot: 0,
            function: 0,
        });
        let Some(bus) = index.and_then(|index| self.buses.get_mut(index)) else {
            let bus = bus.unwrap_or_default().to_owned();
            self.errors.push(PlaceError::NoSuchBus {
                device: device.to_owned(),
                bus: bus.clone(),
            });
            return GuestPlace {
                upstream: Upstream::Other(bus.clone()),
                bus,
                slot: asked.slot,
                function: asked.function,
                multifunction,
            };
        };
        let addr = match bus.take(device, addr, multifunction) {
            Ok(addr) => addr,
            Err(error) => {
                self.errors.push(error);
                asked
            }
        };
        GuestPlace {
            bus: bus.name.clone(),
            upstream: bus.upstream.clone(),
            slot: addr.slot,
            function: addr.function,
            multifunction,
        }
    }
}

impl Bus {
    fn take(
        &mut self,
        device: &str,
        addr: Option<GuestAddress>,
        multifunction: bool,
    ) -> Result<GuestAddress, PlaceError> {
        let device = || device.to_owned();
        let bus = || self.name.clone();
        let free = (0..32)
            .map(|slot| GuestAddress { slot, function: 0 })
            .find(|addr| !self.taken.contains_key(addr));
        let Some(addr) = addr.or(free) else {
            return Err(PlaceError::Full {
                device: device(),
                bus: bus(),
            });
        };
        let GuestAddress { slot, function } = addr;
        if function > 7 {
            return Err(PlaceError::FunctionAbove7 {
                device: device(),
                function,
            });
        }
        // What sits on the root bus is only a guess, so nothing there counts as taken.
        let guessed = self.upstream == Upstream::RootBus;
        if self.taken.contains_key(&addr) && !guessed {
            return Err(PlaceError::Taken {
                device: device(),
                bus: bus(),
                slot,
                function,
            });
        }
        let shares = if function == 0 {
            !multifunction && self.taken.keys().any(|other| other.slot == slot)
        } else {
            self.taken.get(&GuestAddress { slot, function: 0 }) == Some(&false)
        };
        if shares && !guessed {
            return Err(PlaceError::SingleFunction {
                device: device(),
                bus: bus(),
                slot,
            });
        }
        self.taken.insert(addr, multifunction);
        Ok(addr)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{GuestBus, GuestFunction, PlaceError, Source};
    use crate::pci::Sbdf;
    use crate::rules::pve::{HostFunction, Inputs, compose};
    use crate::vmconf::args::RawDevices;
    use crate::vmconf::mapping::Mappings;
    use crate::vmconf::{HostpciIndex, Vmid};

    fn guest(conf: &[(&str, &str)], args: &str) -> GuestBus {
        let function = HostFunction {
            vendor: 0x1002,
            device: 0x744c,
            subsystem: None,
            iommu_group: Some(1),
            mdev: false,
            nvidia: false,
        };
        let addresses = ["0b:00.0", "0b:00.1", "0c:00.0", "0d:00.0"].map(str::to_owned);
        let eight = (0..8).map(|function| format!("0e:00.{function}"));
        let host: BTreeMap<Sbdf, HostFunction> = addresses
            .into_iter()
            .chain(eight)
            .map(|address| (format!("0000:{address}").parse().unwrap(), function.clone()))
            .collect();
        let conf: BTreeMap<&str, &str> = conf.iter().copied().collect();
        let composition = compose(&Inputs {
            vmid: Vmid::new(100).unwrap(),
            conf: &|key| conf.get(key).copied(),
            mappings: &Mappings::new(),
            node: "pve1",
            host: &host,
        });
        assert_eq!(composition.start_error, None);
        GuestBus::new(&composition, &RawDevices::parse(args))
    }

    /// `HOST BUS UPSTREAM SLOT.FUNCTION[+]` per function.
    fn places(guest: &GuestBus) -> Vec<String> {
        let describe = |realized: &GuestFunction| {
            let place = &realized.place;
            format!(
                "{} {} {:?} {:x}.{:x}{}",
                realized.host,
                place.bus,
                place.upstream,
                place.slot,
                place.function,
                if place.multifunction { "+" } else { "" }
            )
        };
        guest.functions.iter().map(describe).collect()
    }

    const Q35: (&str, &str) = ("machine", "q35");

    #[test]
    fn proxmox_ports() {
        let topology = guest(
            &[
                ("machine", "pc-q35-3.1"),
                ("hostpci0", "0b:00,pcie=1"),
                ("hostpci9", "0c:00,pcie=1"),
                ("hostpci10", "0d:00"),
            ],
            "",
        );
        assert_eq!(
            places(&topology),
            [
                "0000:0b:00.0 ich9-pcie-port-1 RootPort 0.0+",
                "0000:0b:00.1 ich9-pcie-port-1 RootPort 0.1",
                "0000:0c:00.0 ich9-pcie-port-10 RootPort 0.0",
                "0000:0d:00.0 pci.2 Bridge 13.0",
            ]
        );
        assert!(topology.errors.is_empty(), "{:?}", topology.errors);
        let ports: Vec<_> = topology
            .root_ports()
            .map(|port| (port.name.as_str(), port.model.as_str(), port.source))
            .collect();
        assert_eq!(ports.len(), 5);
        assert_eq!(ports[0], ("ich9-pcie-port-1", "ioh3420", Source::Preset));
        assert_eq!(
            ports[4],
            (
                "ich9-pcie-port-10",
                "pcie-root-port",
                Source::Hostpci(HostpciIndex::new(9).unwrap())
            )
        );
    }

    #[test]
    fn places_agree_with_the_composition() {
        for machine in ["q35", "pc"] {
            let topology = guest(
                &[
                    ("machine", machine),
                    ("hostpci0", "0b:00"),
                    ("hostpci7", "0c:00"),
                ],
                "",
            );
            let root = if machine == "q35" {
                "Bridge"
            } else {
                "RootBus"
            };
            assert_eq!(
                places(&topology),
                [
                    format!("0000:0b:00.0 pci.0 {root} 10.0+"),
                    format!("0000:0b:00.1 pci.0 {root} 10.1"),
                    "0000:0c:00.0 pci.2 Bridge 10.0".to_owned(),
                ]
            );
        }
        let win7 = guest(&[Q35, ("ostype", "win7"), ("hostpci0", "0c:00,pcie=1")], "");
        assert_eq!(places(&win7), ["0000:0c:00.0 pcie.0 RootBus 10.0"]);
    }

    #[test]
    fn raw_root_port_switch_and_bridges() {
        let topology = guest(
            &[Q35],
            "-device pcie-root-port,id=rp1,chassis=21 \
             -device vfio-pci,host=0b:00.0,bus=rp1 \
             -device ioh3420,id=rp2,chassis=22 -device x3130-upstream,id=up,bus=rp2 \
             -device xio3130-downstream,id=down,bus=up,chassis=23 -device vfio-pci,host=0c:00.0,bus=down \
             -device pcie-pci-bridge,id=br,bus=pcie.0 -device vfio-pci,host=0d:00.0,bus=br,addr=3.0 \
             -device vfio-pci,host=0b:00.1,bus=up -device vfio-pci,host=0e:00.0",
        );
        assert_eq!(
            places(&topology),
            [
                "0000:0b:00.0 rp1 RootPort 0.0",
                "0000:0c:00.0 down SwitchPort 0.0",
                "0000:0d:00.0 br Bridge 3.0",
                "0000:0b:00.1 up Other(\"x3130-upstream\") 1.0",
                "0000:0e:00.0 pcie.0 RootBus 6.0",
            ]
        );
        assert!(topology.errors.is_empty(), "{:?}", topology.errors);
        assert_eq!(topology.root_ports().count(), 6);
        let ports: Vec<_> = topology
            .args_ports()
            .iter()
            .map(|port| (port.id.as_str(), port.model.as_str()))
            .collect();
        assert_eq!(
            ports,
            [
                ("pcie.0", "root bus"),
                ("rp1", "pcie-root-port"),
                ("rp2", "ioh3420"),
                ("br", "pcie-pci-bridge"),
            ]
        );
        let [root, first, second, bridge] = topology.args_ports() else {
            panic!()
        };
        assert!(second.is_above("up") && second.is_above("down") && !second.is_above("br"));
        assert!(!root.is_above("rp1") && !first.is_above("rp1") && !bridge.is_above("down"));
    }

    #[test]
    fn raw_devices_on_proxmox_ports() {
        // A device without an address goes behind the one that Proxmox put there.
        let topology = guest(
            &[
                Q35,
                ("hostpci0", "0b:00.0,pcie=1"),
                ("hostpci5", "0c:00,pcie=1"),
            ],
            "-device vfio-pci,host=0b:00.1,bus=ich9-pcie-port-1 \
             -device vfio-pci,host=0d:00.0,bus=ich9-pcie-port-2 \
             -device e1000e,bus=ich9-pcie-port-3 -device vfio-pci,host=0e:00.0,bus=ich9-pcie-port-3 \
             -device vfio-pci,host=0f:00.0,bus=ich9-pcie-port-6,addr=1",
        );
        assert_eq!(
            places(&topology),
            [
                "0000:0b:00.0 ich9-pcie-port-1 RootPort 0.0",
                "0000:0c:00.0 ich9-pcie-port-6 RootPort 0.0",
                "0000:0b:00.1 ich9-pcie-port-1 RootPort 1.0",
                "0000:0d:00.0 ich9-pcie-port-2 RootPort 0.0",
                "0000:0e:00.0 ich9-pcie-port-3 RootPort 1.0",
                "0000:0f:00.0 ich9-pcie-port-6 RootPort 1.0",
            ]
        );
        assert_eq!(topology.functions[2].source, Source::Args, "args come last");
        assert!(topology.errors.is_empty(), "{:?}", topology.errors);
    }

    #[test]
    fn buses_of_ports_without_an_id() {
        let q35 = guest(
            &[Q35],
            "-device pcie-root-port,chassis=21 -device pcie-root-port,chassis=22 \
             -device vfio-pci,host=0b:00.0,bus=pcie.1 -device vfio-pci,host=0c:00.0,bus=pcie.0",
        );
        assert_eq!(
            places(&q35)[..1],
            ["0000:0b:00.0 pcie.1 RootPort 0.0".to_owned()]
        );
        // The first one's bus is called like the root bus, which QEMU finds first.
        assert!(places(&q35)[1].starts_with("0000:0c:00.0 pcie.0 RootBus"));
        let i440fx = guest(
            &[],
            "-device i82801b11-bridge -device vfio-pci,host=0b:00.0,bus=pci.1",
        );
        assert!(places(&i440fx)[0].starts_with("0000:0b:00.0 pci.1 Bridge"));
    }

    #[test]
    fn refusals_of_qemu() {
        let errors = |conf: &[(&str, &str)], args: &str| guest(conf, args).errors;
        let taken = errors(
            &[Q35, ("hostpci0", "0b:00.0,pcie=1")],
            "-device vfio-pci,host=0c:00.0,bus=ich9-pcie-port-1,addr=0x0",
        );
        assert_eq!(
            taken,
            [PlaceError::Taken {
                device: "vfio-pci".to_owned(),
                bus: "ich9-pcie-port-1".to_owned(),
                slot: 0,
                function: 0
            }]
        );
        let single = |device: &str| PlaceError::SingleFunction {
            device: device.to_owned(),
            bus: "ich9-pcie-port-1".to_owned(),
            slot: 0,
        };
        assert_eq!(
            errors(
                &[Q35, ("hostpci0", "0b:00.0,pcie=1")],
                "-device vfio-pci,host=0b:00.1,id=audio,bus=ich9-pcie-port-1,addr=0.1",
            ),
            [single("audio")]
        );
        assert_eq!(
            errors(
                &[Q35],
                "-device vfio-pci,host=0b:00.1,bus=ich9-pcie-port-1,addr=0.1 \
                 -device vfio-pci,host=0b:00.0,id=gpu,bus=ich9-pcie-port-1",
            ),
            [single("gpu")]
        );
        assert_eq!(
            errors(
                &[Q35],
                "-device vfio-pci,host=0b:00.0,bus=rp1 -device pcie-root-port,id=rp1"
            ),
            [PlaceError::NoSuchBus {
                device: "vfio-pci".to_owned(),
                bus: "rp1".to_owned()
            }],
            "a port has to come before what sits on it"
        );
        assert_eq!(
            errors(
                &[Q35],
                "-device '{\"driver\":\"vfio-pci\",\"host\":\"0b:00.0\",\"bus\":\"rp1\"}' -device pcie-root-port,id=rp1",
            ),
            [],
            "JSON comes last"
        );
        assert_eq!(
            errors(&[Q35], "-set device.hostpci0.multifunction=off"),
            [PlaceError::NoSuchDevice {
                id: "hostpci0".to_owned()
            }]
        );
        let many = (0..33)
            .map(|_| "-device pci-bridge,bus=pci.3")
            .collect::<Vec<_>>()
            .join(" ");
        assert!(matches!(
            errors(&[Q35], &many).as_slice(),
            [PlaceError::Full { .. }]
        ));
    }

    #[test]
    fn settings_move_proxmox_devices() {
        let topology = guest(
            &[
                Q35,
                ("hostpci0", "0c:00,pcie=1"),
                ("hostpci1", "0d:00,pcie=1"),
                ("hostpci2", "0b:00,pcie=1"),
            ],
            "-set device.hostpci0.multifunction=on -set device.hostpci1.addr=0x1 \
             -set device.hostpci1.x-igd-opregion=on -set device.hostpci1.bus=ich9-pcie-port-4",
        );
        assert_eq!(
            places(&topology),
            [
                "0000:0c:00.0 ich9-pcie-port-1 RootPort 0.0+",
                "0000:0d:00.0 ich9-pcie-port-4 RootPort 1.0",
                "0000:0b:00.0 ich9-pcie-port-3 RootPort 0.0+",
                "0000:0b:00.1 ich9-pcie-port-3 RootPort 0.1",
            ]
        );
        assert!(topology.errors.is_empty(), "{:?}", topology.errors);
    }

    #[test]
    fn a_mediated_device_takes_its_slot() {
        let topology = guest(
            &[Q35, ("hostpci0", "0c:00,pcie=1,mdev=t")],
            "-device vfio-pci,host=0d:00.0,bus=ich9-pcie-port-1",
        );
        assert_eq!(
            places(&topology),
            ["0000:0d:00.0 ich9-pcie-port-1 RootPort 1.0",]
        );
    }

    #[test]
    fn more_functions_than_a_slot_has() {
        let topology = guest(&[Q35, ("hostpci0", "0e:00;0d:00.0,pcie=1")], "");
        assert_eq!(topology.functions.len(), 9);
        assert_eq!(
            topology.errors,
            [PlaceError::FunctionAbove7 {
                device: "hostpci0".to_owned(),
                function: 8
            }]
        );
    }
}
