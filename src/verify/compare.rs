//! The readings of a running guest beside the prediction for it: what `verify` says, as values (schema 1).
//!
//! Pure. The prediction is made for the guest that runs, from the command line of its QEMU, which is what Proxmox made of
//! the configuration at the start. What the configuration says today is compared with it, and only named.
//!
//! Terms: *read*, the widths that a guest root port advertises as a completer by its DEVCAP2; *predicted*, the widths that
//! the rules of Linux and QEMU give it for the functions right below.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{FunctionReading, PortReading, Readings};
use crate::pci::{Sbdf, Widths};
use crate::rules::guest_bus::{GuestBus, GuestFunction};
use crate::rules::pve::{Composition, Entry as ConfigEntry, Form};
use crate::rules::qemu;
use crate::rules::vfio::HostAnswer;
use crate::verdict::{Verdict, judge};
use crate::vmconf::{HostpciIndex, Vmid};

/// The version of the JSON's shape.
pub const SCHEMA: u32 = 1;

/// What the host says of one passed function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSide {
    /// The widths that vfio-pci offers for it.
    pub answer: HostAnswer,
    /// Requester enable in DEVCTL2, of the physical function where it is a virtual one. `None` without that register.
    pub requester_enabled: Option<bool>,
    /// Whether the policy counts it as a device that needs `AtomicOps`.
    pub needs: bool,
}

/// Where the prediction comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The command line of the QEMU that runs.
    Running,
    /// The configuration as it is now, because there is no command line to be read.
    Config,
}

/// What the comparison works on.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The VM.
    pub vmid: Vmid,
    /// What was read; `None` where the machine has no PCI Express.
    pub readings: Option<&'a Readings>,
    /// The guest that the prediction is for.
    pub guest: &'a GuestBus,
    /// Where [`Self::guest`] comes from.
    pub source: Source,
    /// What today's configuration would make.
    pub config: (&'a Composition, &'a GuestBus),
    /// The host's functions that either of both guests has.
    pub host: &'a BTreeMap<Sbdf, HostSide>,
    /// The rule of the QEMU that runs.
    pub revision: qemu::Revision,
}

/// The whole answer.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The VM.
    pub vmid: Vmid,
    /// Version of the QEMU that runs it; `None` where nothing was read.
    pub qemu: Option<String>,
    /// QEMU's run state: `running`, `paused`, `prelaunch` ...
    pub status: Option<String>,
    /// Whether the guest has PCI Express, and so root ports that can be read: a q35 has, an i440fx has not.
    pub pci_express: bool,
    /// Where the prediction comes from.
    pub predicted_from: Source,
    /// What the configuration says today and the running guest does not have, or the other way round, in words.
    pub config_changed: Vec<String>,
    /// The guest root ports.
    pub ports: Vec<Port>,
    /// Devices with an `id=` that have no root port above them.
    pub elsewhere: Vec<Function>,
    /// What each `hostpciN`, and each other passed device, comes to.
    pub entries: Vec<Entry>,
    /// Whether every port reads as predicted.
    pub agrees: bool,
}

impl Comparison {
    /// Whether a device loses `AtomicOps` that the host could give.
    pub fn loses(&self) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.verdict == Verdict::Lost)
    }
}

/// One guest root port.
#[derive(Clone, Debug, Serialize)]
pub struct Port {
    /// QEMU's `id=`; empty without one.
    pub port: String,
    /// Address in the guest.
    pub address: String,
    /// DEVCAP2 as read; `None` where there is no such register.
    pub devcap2: Option<String>,
    /// The widths that it advertises.
    pub read: Widths,
    /// The widths that it should advertise; `None` where that cannot be told.
    pub predicted: Option<Widths>,
    /// What the prediction depends on, where that can't be seen.
    pub uncertain: Option<String>,
    /// Whether both are equal; `None` where nothing was predicted for certain.
    pub agrees: Option<bool>,
    /// The functions below it; `None` where firmware has not numbered the port, so that QEMU cannot tell.
    pub functions: Option<Vec<Function>>,
}

/// One function of the guest.
#[derive(Clone, Debug, Serialize)]
pub struct Function {
    /// QEMU's `id=`; empty without one.
    pub id: String,
    /// Address in the guest.
    pub guest: String,
    /// Vendor ID as the guest sees it.
    pub vendor: String,
    /// Device ID as the guest sees it.
    pub device: String,
    /// Base class and subclass.
    pub class: String,
    /// Whether it sits right below the root port.
    pub direct: bool,
    /// Requester enable in the guest: whether the guest's driver took the offer. `None` without that register.
    pub requester_enabled: Option<bool>,
    /// The host's function behind it, where it is a passed one.
    pub host: Option<String>,
    /// What the host offers for it.
    pub host_widths: Option<Widths>,
    /// Requester enable on the host, which vfio-pci sets whenever it offers a width: no evidence of any use.
    pub host_requester_enabled: Option<bool>,
}

/// What one entry comes to.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// `hostpciN`, or the `id=` of a device that `args` adds; without one its host address.
    pub key: String,
    /// The function on which the verdict rests.
    pub host: String,
    /// Its bus in the guest.
    pub bus: String,
    /// What the host offers for it.
    pub host_widths: Widths,
    /// What the guest root port right above it advertises.
    pub guest_widths: Widths,
    /// What that means.
    pub verdict: Verdict,
}

/// Compares.
pub fn compare(inputs: &Inputs) -> Comparison {
    let (ports, elsewhere) = inputs.readings.map_or((&[][..], &[][..]), |readings| {
        (&readings.ports, &readings.elsewhere)
    });
    let ports: Vec<_> = ports.iter().map(|port| inputs.port(port)).collect();
    Comparison {
        schema: SCHEMA,
        vmid: inputs.vmid,
        qemu: inputs.readings.map(|readings| readings.qemu.to_string()),
        status: inputs
            .readings
            .map(|readings| readings.status.status.clone()),
        pci_express: inputs.readings.is_some(),
        predicted_from: inputs.source,
        config_changed: inputs.changes(),
        agrees: ports.iter().all(|port| port.agrees != Some(false)),
        entries: inputs.entries(&ports),
        elsewhere: elsewhere.iter().map(|read| inputs.function(read)).collect(),
        ports,
    }
}

impl Inputs<'_> {
    fn widths(&self, addr: Sbdf) -> Widths {
        self.host
            .get(&addr)
            .map_or(Widths::NONE, |side| side.answer.widths)
    }

    /// The passed functions on a bus, in the order of realization.
    fn on_bus<'b>(&'b self, bus: &'b str) -> impl Iterator<Item = &'b GuestFunction> {
        let functions = self.guest.functions().iter();
        functions.filter(move |function| function.place.bus == bus)
    }

    /// The passed function with this ID.
    fn passed(&self, id: &str) -> Option<&GuestFunction> {
        let mut functions = self.guest.functions().iter();
        functions.find(|function| !id.is_empty() && function.id == id)
    }

    fn port(&self, read: &PortReading) -> Port {
        let behind = read.behind.as_deref();
        // The bus behind a port is named like the port. That of one without an ID is known by what sits on it.
        let bus = if read.qdev_id.is_empty() {
            let mut direct = behind
                .unwrap_or_default()
                .iter()
                .filter(|function| function.direct);
            direct.find_map(|function| Some(self.passed(&function.qdev_id)?.place.bus.as_str()))
        } else {
            Some(read.qdev_id.as_str())
        };
        let (predicted, uncertain) = match bus {
            Some(bus) => self.predicted(bus),
            // Nothing can be passed through a port that nothing sits on.
            None if behind.is_some_and(<[_]>::is_empty) => (Some(Widths::NONE), None),
            None => (
                None,
                Some("neither the port nor a passed device right below it has an id".to_owned()),
            ),
        };
        Port {
            port: read.qdev_id.clone(),
            address: read.address.to_string(),
            devcap2: read.devcap2.map(|devcap2| format!("{:#010x}", devcap2.0)),
            read: read.completes,
            predicted,
            agrees: predicted
                .map(|predicted| predicted == read.completes)
                // A cautious answer that comes true is as good as any.
                .filter(|agrees| *agrees || uncertain.is_none()),
            uncertain,
            functions: behind.map(|behind| behind.iter().map(|read| self.function(read)).collect()),
        }
    }

    /// What the port with this bus should advertise, and what that depends on.
    fn predicted(&self, bus: &str) -> (Option<Widths>, Option<String>) {
        let functions = || self.on_bus(bus);
        let widths = qemu::advertised(
            bus,
            functions().map(|function| (&function.place, self.widths(function.host))),
            self.revision,
        )
        .unwrap_or_default();
        let sides = || functions().filter_map(|function| self.host.get(&function.host));
        let unreadable = sides().find_map(|side| {
            let denial = side.answer.denial.as_ref()?;
            denial.is_unreadable().then(|| denial.to_string())
        });
        match unreadable {
            Some(why) => (None, Some(why)),
            None => (
                Some(widths),
                sides().find_map(|side| side.answer.uncertain.clone()),
            ),
        }
    }

    fn function(&self, read: &FunctionReading) -> Function {
        let passed = self.passed(&read.qdev_id);
        let side = passed.and_then(|passed| self.host.get(&passed.host));
        Function {
            id: read.qdev_id.clone(),
            guest: read.address.to_string(),
            vendor: format!("{:#06x}", read.vendor),
            device: format!("{:#06x}", read.device),
            class: format!("{:#06x}", read.class),
            direct: read.direct,
            requester_enabled: read.requester_enabled,
            host: passed.map(|passed| passed.host.to_string()),
            host_widths: side.map(|side| side.answer.widths),
            host_requester_enabled: side.and_then(|side| side.requester_enabled),
        }
    }

    /// A verdict for each entry, from the function in it that needs `AtomicOps` most.
    fn entries(&self, ports: &[Port]) -> Vec<Entry> {
        let mut groups: Vec<(String, Vec<&GuestFunction>)> = Vec::new();
        for function in self.guest.functions() {
            let key = key_of(function);
            match groups.iter_mut().find(|(other, _)| *other == key) {
                Some((_, group)) => group.push(function),
                None => groups.push((key, vec![function])),
            }
        }
        groups
            .into_iter()
            .filter_map(|(key, group)| {
                let side = |function: &GuestFunction| self.host.get(&function.host);
                let gives = |function: &GuestFunction| {
                    self.widths(function.host).contains_all(Widths::W32_W64)
                };
                let subject = group.iter().copied().min_by_key(|function| {
                    (
                        !side(function).is_some_and(|side| side.needs),
                        !gives(function),
                    )
                })?;
                let host_widths = self.widths(subject.host);
                // Only what sits right at a port gets what it advertises.
                let guest_widths = ports
                    .iter()
                    .find(|port| port.port == subject.place.bus)
                    .map_or(Widths::NONE, |port| port.read);
                let verdict = match side(subject) {
                    Some(side) if !side.needs => Verdict::NotApplicable,
                    Some(side)
                        if side
                            .answer
                            .denial
                            .as_ref()
                            .is_some_and(|denial| denial.is_unreadable()) =>
                    {
                        Verdict::Unknown
                    }
                    Some(_) => judge(host_widths, guest_widths),
                    None => Verdict::Unknown,
                };
                Some(Entry {
                    key,
                    host: subject.host.to_string(),
                    bus: subject.place.bus.clone(),
                    host_widths,
                    guest_widths,
                    verdict,
                })
            })
            .collect()
    }

    /// How today's configuration differs from what runs.
    fn changes(&self) -> Vec<String> {
        let (composition, bus) = self.config;
        if self.source == Source::Config {
            return self.unlike_the_readings(bus);
        }
        let mut keys: Vec<String> = Vec::new();
        for function in bus.functions().iter().chain(self.guest.functions()) {
            let key = key_of(function);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys.iter()
            .filter_map(|key| {
                let of = |bus: &GuestBus| -> Vec<GuestFunction> {
                    let functions = bus.functions().iter();
                    functions
                        .filter(|function| key_of(function) == *key)
                        .cloned()
                        .collect()
                };
                let (config, running) = (of(bus), of(self.guest));
                let same = config.len() == running.len()
                    && config.iter().zip(&running).all(|(config, running)| {
                        config.host == running.host && same_place(config, running)
                    });
                let entry = HostpciIndex::from_key(key).and_then(|index| composition.entry(index));
                if same || entry.is_some_and(|entry| is_alternative(entry, &config, &running)) {
                    return None;
                }
                Some(format!(
                    "{key}: the configuration has {}, the running guest {}",
                    in_words(&config),
                    in_words(&running)
                ))
            })
            .collect()
    }

    /// Without a command line only the devices' IDs tell.
    fn unlike_the_readings(&self, bus: &GuestBus) -> Vec<String> {
        let Some(readings) = self.readings else {
            return Vec::new();
        };
        // What is behind an unnumbered port is not seen.
        if readings.ports.iter().any(|port| port.behind.is_none()) {
            return Vec::new();
        }
        let behind = readings
            .ports
            .iter()
            .flat_map(|port| port.behind.iter().flatten());
        let plugged: BTreeSet<&str> = behind
            .chain(&readings.elsewhere)
            .map(|read| read.qdev_id.as_str())
            .filter(|id| id.starts_with("hostpci"))
            .collect();
        let config: BTreeSet<&str> = bus
            .functions()
            .iter()
            .map(|function| function.id.as_str())
            .filter(|id| id.starts_with("hostpci"))
            .collect();
        let missing = config.difference(&plugged);
        let added = plugged.difference(&config);
        missing
            .map(|id| format!("{id}: in the configuration, not in the running guest"))
            .chain(added.map(|id| format!("{id}: in the running guest, not in the configuration")))
            .collect()
    }
}

/// The entry that a function belongs to: `hostpci0.1` to `hostpci0`.
fn key_of(function: &GuestFunction) -> String {
    match function.id.split_once('.') {
        Some((key, _)) if HostpciIndex::from_key(key).is_some() => key.to_owned(),
        _ if function.id.is_empty() => function.host.to_string(),
        _ => function.id.clone(),
    }
}

/// What hangs from the bus aside, which a configuration cannot change without changing its name.
fn same_place(one: &GuestFunction, other: &GuestFunction) -> bool {
    let (one, other) = (&one.place, &other.place);
    one.bus == other.bus
        && one.slot == other.slot
        && one.function == other.function
        && one.multifunction == other.multifunction
}

/// Whether what runs is another of the mapping's devices than the one that would be chosen first.
fn is_alternative(
    entry: &ConfigEntry,
    config: &[GuestFunction],
    running: &[GuestFunction],
) -> bool {
    let places = |functions: &[GuestFunction]| -> BTreeSet<String> {
        let buses = functions.iter();
        buses.map(|function| function.place.bus.clone()).collect()
    };
    entry.form == Form::Mapping
        && places(config) == places(running)
        && entry.alternatives.iter().any(|alternative| {
            let hosts = alternative.functions.iter().map(|passed| passed.host);
            hosts.eq(running.iter().map(|function| function.host))
        })
}

fn in_words(functions: &[GuestFunction]) -> String {
    if functions.is_empty() {
        return "nothing".to_owned();
    }
    let words: Vec<_> = functions
        .iter()
        .map(|function| {
            let place = &function.place;
            format!(
                "{} on {} at {:x}.{:x}{}",
                function.host,
                place.bus,
                place.slot,
                place.function,
                if place.multifunction {
                    " multifunction"
                } else {
                    ""
                }
            )
        })
        .collect();
    words.join(", ")
}
