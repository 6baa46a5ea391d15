//! What a running guest's root ports really advertise, read through QEMU without help from the guest.
//!
//! A q35 machine maps the configuration space of all its functions into guest-physical memory, at the base that firmware
//! writes into the chipset's PCIEXBAR register (ACPI's table MCFG hands it to the guest's system, hence QEMU's name of
//! the property). QEMU's monitor can print that memory. So a guest root port's registers can be read while the guest
//! runs: `query-pci` tells which functions there are and which `id=` QEMU knows them by, and the walk of the capability
//! chain is the one used for the host.
//!
//! [`read_ports`] is a function of values; [`readings`] is the loop around it that talks to QEMU.
//!
//! Terms: *window*, the memory-mapped configuration space; *numbered*, of a bridge: firmware has given it the number of
//! the bus below it. Source: QEMU's `hw/pci-host/q35.c`, `hw/pci/pcie_host.c`, `hw/pci/pci-hmp-cmds.c`.
//!
//! What it does not do: write anything, touch I/O ports, or judge. The comparison with the prediction is in [`compare`].

pub mod compare;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::pci::config_space::{self, ConfigSpace};
use crate::pci::express::{DevCap2, DevCtl2, Express, PortType};
use crate::pci::{Sbdf, Widths};
use crate::qmp::pci::{Bus, Device};
use crate::qmp::{Client, QmpError, Status, Version};

/// Pause before the second attempt; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Bridges below bridges that are followed; a PCI tree cannot be deeper than its 256 buses.
const DEPTH: usize = 256;

/// Everything read from one running VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readings {
    /// The QEMU that runs the VM, which may be older than the installed one.
    pub qemu: Version,
    /// Whether the guest ran at that moment.
    pub status: Status,
    /// Guest root ports, in the order of their addresses on each bus, outer ports first.
    pub ports: Vec<PortReading>,
    /// Passed functions and others with an `id=` that have no root port above them.
    pub elsewhere: Vec<FunctionReading>,
}

/// One guest root port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReading {
    /// QEMU's `id=`, empty without one.
    pub qdev_id: String,
    /// Address in the guest.
    pub address: Sbdf,
    /// DEVCAP2 as read; `None` if the port's capability has version 1 and no such register.
    pub devcap2: Option<DevCap2>,
    /// Widths that the port advertises as a completer.
    pub completes: Widths,
    /// The functions below, those below switches and bridges included; `None` if firmware has not numbered the port, so
    /// that QEMU cannot tell.
    pub behind: Option<Vec<FunctionReading>>,
}

/// One function of the guest that is no bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionReading {
    /// QEMU's `id=`: `hostpci0`, `hostpci0.1` for what Proxmox VE passes. Empty without one.
    pub qdev_id: String,
    /// Address in the guest.
    pub address: Sbdf,
    /// Vendor ID as the guest sees it.
    pub vendor: u16,
    /// Device ID as the guest sees it.
    pub device: u16,
    /// Base class and subclass.
    pub class: u16,
    /// Whether it sits right below the root port, with no switch or bridge in between.
    pub direct: bool,
    /// Requester enable in DEVCTL2, set by the guest's driver when it takes the offer. `None` where the function has no
    /// such register or does not answer.
    pub requester_enabled: Option<bool>,
}

/// Why nothing was read, though QEMU answers. All of it may pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// Firmware has not opened the window yet.
    #[error("the guest's firmware has not set up PCI configuration space yet")]
    WindowClosed,
    /// The bus numbers or the window moved while they were being used.
    #[error("the guest's PCI configuration changed during the reading")]
    Changed,
    /// A port did not read as `query-pci` describes it.
    #[error("the guest's port {port} cannot be read: {reason}")]
    Unreadable {
        /// QEMU's `id=`, or the address of a port without one.
        port: String,
        /// What the walk of its capabilities said.
        reason: String,
    },
    /// QEMU's tree does not make sense.
    #[error("QEMU lists a PCI function at an impossible place: {0}")]
    Impossible(String),
}

/// Why [`read_ports`] ended early.
#[derive(Debug)]
pub enum ReadError<E> {
    /// What was read makes no sense, at this moment at least.
    NotReady(NotReady),
    /// `read` failed.
    Failed(E),
}

/// Why a VM could not be read.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// QEMU could not be asked.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// The machine has no memory-mapped configuration space: i440fx, where no PCI Express device can be anyway.
    #[error(
        "this VM's machine type has no memory-mapped PCI configuration space: only a q35 machine can be verified"
    )]
    NoWindow,
    /// It was tried until the deadline.
    #[error("{reason} (waited {:.1} s, the VM is '{status}')", waited.as_secs_f64())]
    NotReady {
        /// What was missing in the last attempt.
        reason: NotReady,
        /// How long it was tried.
        waited: Duration,
        /// QEMU's run state in the last attempt.
        status: String,
    },
}

/// The root ports in `tree`, read through `read`.
///
/// `base` is the window's place in guest-physical memory. `read` fills the slice with little-endian 32-bit words from a
/// guest-physical address and returns `Ok(false)` where nothing answers. Only the first 256 bytes of a function are
/// asked for, and only of bridges, of functions below a root port, and of functions with an `id=`.
pub fn read_ports<E>(
    tree: &[Bus],
    base: u64,
    read: impl FnMut(u64, &mut [u32]) -> Result<bool, E>,
) -> Result<(Vec<PortReading>, Vec<FunctionReading>), ReadError<E>> {
    let mut walk = Walk {
        base,
        read,
        ports: Vec::new(),
        elsewhere: Vec::new(),
    };
    for bus in tree {
        walk.bus(&bus.devices, Place::Root, 0)?;
    }
    Ok((walk.ports, walk.elsewhere))
}

/// Reads the VM behind the QMP socket at `socket`, again and again until it can be read or `deadline` has passed.
///
/// A guest whose firmware is not done, or that reboots meanwhile, is tried again. Between attempts the socket is free for
/// others. If all that is missing at the deadline is the number of some bridge (firmware passes by a port whose slot has
/// no function 0), the readings come without what is behind it.
pub fn readings(socket: &Path, deadline: Instant) -> Result<Readings, VerifyError> {
    let began = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut incomplete = None;
    loop {
        let (status, reason) = match attempt(socket, deadline) {
            Ok(Attempt::Complete(readings)) => return Ok(readings),
            Ok(Attempt::Unnumbered(readings)) => {
                let status = readings.status.status.clone();
                incomplete = Some(readings);
                (status, NotReady::WindowClosed)
            }
            Ok(Attempt::NotReady(status, reason)) => {
                incomplete = None;
                (status.status, reason)
            }
            Err(error) => {
                // The deadline may cut an attempt short; what an earlier one read still stands.
                return match (incomplete, error) {
                    (Some(readings), VerifyError::Qmp(QmpError::Timeout { .. })) => Ok(readings),
                    (_, error) => Err(error),
                };
            }
        };
        if deadline.saturating_duration_since(Instant::now()) <= pause {
            return incomplete.ok_or(VerifyError::NotReady {
                reason,
                waited: began.elapsed(),
                status,
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

enum Attempt {
    Complete(Readings),
    /// Some bridge has no number yet.
    Unnumbered(Readings),
    NotReady(Status, NotReady),
}

fn attempt(socket: &Path, deadline: Instant) -> Result<Attempt, VerifyError> {
    let mut client = Client::connect(socket, deadline)?;
    let qemu = client.query_version()?;
    let status = client.query_status()?;
    let Some(base) = window(&mut client)? else {
        return Ok(Attempt::NotReady(status, NotReady::WindowClosed));
    };
    let tree = client.query_pci()?;
    let read = read_ports(&tree, base, |address, words| {
        match client.read_physical(address, words) {
            Ok(()) => Ok(true),
            Err(QmpError::NoMemory { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    });
    let read = match read {
        Ok(read) => Ok(read),
        Err(ReadError::NotReady(reason)) => Err(reason),
        Err(ReadError::Failed(error)) => return Err(error.into()),
    };
    // A reboot in the middle makes any of this nonsense, also what looks fine.
    if window(&mut client)? != Some(base) || client.query_pci()? != tree {
        return Ok(Attempt::NotReady(status, NotReady::Changed));
    }
    let (ports, elsewhere) = match read {
        Ok(read) => read,
        Err(reason) => return Ok(Attempt::NotReady(status, reason)),
    };
    let readings = Readings {
        qemu,
        status,
        ports,
        elsewhere,
    };
    Ok(if tree.iter().all(|bus| numbered(&bus.devices)) {
        Attempt::Complete(readings)
    } else {
        Attempt::Unnumbered(readings)
    })
}

fn window(client: &mut Client) -> Result<Option<u64>, VerifyError> {
    client.mcfg_base().map_err(|error| match error {
        QmpError::Refused { ref class, .. } if class == "DeviceNotFound" => VerifyError::NoWindow,
        error => VerifyError::Qmp(error),
    })
}

/// Whether every bridge has a number.
fn numbered(devices: &[Device]) -> bool {
    devices
        .iter()
        .filter_map(|device| device.pci_bridge.as_ref())
        .all(|bridge| bridge.devices.as_deref().is_some_and(numbered))
}

/// Where a bus hangs.
#[derive(Clone, Copy)]
enum Place {
    /// No root port above.
    Root,
    /// Right below the root port with this index.
    Port(usize),
    /// Further below that root port.
    Below(usize),
}

struct Walk<R> {
    base: u64,
    read: R,
    ports: Vec<PortReading>,
    elsewhere: Vec<FunctionReading>,
}

impl<R, E> Walk<R>
where
    R: FnMut(u64, &mut [u32]) -> Result<bool, E>,
{
    fn bus(&mut self, devices: &[Device], place: Place, depth: usize) -> Result<(), ReadError<E>> {
        for device in devices {
            let address =
                Sbdf::new(0, device.bus, device.slot, device.function).ok_or_else(|| {
                    let (bus, slot, function) = (device.bus, device.slot, device.function);
                    ReadError::NotReady(NotReady::Impossible(format!("{bus}/{slot}/{function}")))
                })?;
            match &device.pci_bridge {
                Some(bridge) if depth < DEPTH => {
                    let express = self.express(device, address)?.map_err(|reason| {
                        let port = if device.qdev_id.is_empty() {
                            address.to_string()
                        } else {
                            device.qdev_id.escape_debug().to_string()
                        };
                        ReadError::NotReady(NotReady::Unreadable { port, reason })
                    })?;
                    let below = match (express, place) {
                        (Some(express), _) if express.port_type == PortType::RootPort => {
                            self.ports.push(PortReading {
                                qdev_id: device.qdev_id.clone(),
                                address,
                                devcap2: express.devcap2,
                                completes: express
                                    .devcap2
                                    .map_or(Widths::NONE, DevCap2::atomic_op_completer),
                                behind: bridge.devices.as_ref().map(|_| Vec::new()),
                            });
                            Place::Port(self.ports.len() - 1)
                        }
                        (_, Place::Root) => Place::Root,
                        (_, Place::Port(port) | Place::Below(port)) => Place::Below(port),
                    };
                    let devices = bridge.devices.as_deref().unwrap_or_default();
                    self.bus(devices, below, depth + 1)?;
                }
                Some(_) => {
                    return Err(ReadError::NotReady(NotReady::Impossible(format!(
                        "{address}, below {DEPTH} bridges"
                    ))));
                }
                None => self.function(device, address, place)?,
            }
        }
        Ok(())
    }

    fn function(
        &mut self,
        device: &Device,
        address: Sbdf,
        place: Place,
    ) -> Result<(), ReadError<E>> {
        if matches!(place, Place::Root) && device.qdev_id.is_empty() {
            return Ok(()); // part of the chipset
        }
        let requester_enabled = match self.express(device, address)? {
            Ok(Some(express)) => express.devctl2.map(DevCtl2::atomic_op_requester_enable),
            // A passed device that does not answer, in reset for instance, says nothing about the port above it.
            Ok(None) | Err(_) => None,
        };
        let reading = FunctionReading {
            qdev_id: device.qdev_id.clone(),
            address,
            vendor: device.id.vendor,
            device: device.id.device,
            class: device.class_info.class,
            direct: matches!(place, Place::Port(_)),
            requester_enabled,
        };
        match place {
            Place::Root => self.elsewhere.push(reading),
            Place::Port(port) | Place::Below(port) => {
                if let Some(port) = self.ports.get_mut(port) {
                    port.behind.get_or_insert_default().push(reading);
                }
            }
        }
        Ok(())
    }

    /// The function's PCI Express capability; in words what is wrong if it cannot be told.
    fn express(
        &mut self,
        device: &Device,
        address: Sbdf,
    ) -> Result<Result<Option<Express>, String>, ReadError<E>> {
        let place = u64::from(address.bus()) << 20
            | u64::from(address.device()) << 15
            | u64::from(address.function()) << 12;
        let Some(start) = self.base.checked_add(place) else {
            return Ok(Err("the window does not fit into memory".to_owned()));
        };
        let mut id = None;
        let mut failed = None;
        let space = config_space::walk(|offset, bytes: &mut [u8]| {
            let mut words = vec![0; bytes.len().div_ceil(4)];
            match (self.read)(start.saturating_add(u64::from(offset)), &mut words) {
                Ok(true) => {}
                Ok(false) => return Err(Unread),
                Err(error) => {
                    failed = Some(error);
                    return Err(Unread);
                }
            }
            if offset == 0 {
                id = words.first().copied();
            }
            let little_endian = words.iter().flat_map(|word| word.to_le_bytes());
            for (byte, value) in bytes.iter_mut().zip(little_endian) {
                *byte = value;
            }
            Ok(bytes.len())
        });
        if let Some(error) = failed {
            return Err(ReadError::Failed(error));
        }
        let expected = u32::from(device.id.device) << 16 | u32::from(device.id.vendor);
        Ok(match (space, id) {
            (ConfigSpace::Full(express), Some(id)) if id == expected => Ok(express),
            (ConfigSpace::Full(_), id) => Err(format!(
                "device ID {:#010x} instead of {expected:#010x}",
                id.unwrap_or(u32::MAX)
            )),
            (ConfigSpace::HeaderOnly, _) => Err("its configuration space is cut off".to_owned()),
            (ConfigSpace::Unreadable(fault), _) => Err(fault.to_string()),
        })
    }
}

/// Nothing answered, or the reader failed with an error that is kept elsewhere.
#[derive(Debug, thiserror::Error)]
#[error("nothing answers")]
struct Unread;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use super::*;
    use crate::qmp::pci::{Bridge, BridgeNumbers, Class, Id};

    const BASE: u64 = 0xb000_0000;

    /// Guest-physical memory with configuration spaces in it: the capability at 0x40, chain ends there.
    #[derive(Default)]
    struct Memory(BTreeMap<u64, u32>);

    impl Memory {
        fn function(&mut self, at: &Device, port_type: u32, devcap2: u32, devctl2: u32) {
            let start = BASE
                + (u64::from(at.bus) << 20
                    | u64::from(at.slot) << 15
                    | u64::from(at.function) << 12);
            for word in 0..64 {
                self.0.insert(start + word * 4, 0);
            }
            for (offset, word) in [
                (0, u32::from(at.id.device) << 16 | u32::from(at.id.vendor)),
                (4, 1 << 20),
                (0x34, 0x40),
                (0x40, (port_type << 4 | 2) << 16 | 0x10),
                (0x64, devcap2),
                (0x68, devctl2),
            ] {
                self.0.insert(start + offset, word);
            }
        }

        fn read(&self, tree: &[Bus]) -> Result<(Vec<PortReading>, Vec<FunctionReading>), NotReady> {
            let result = read_ports(tree, BASE, |address, words| {
                for (word, at) in words.iter_mut().zip((address..).step_by(4)) {
                    match self.0.get(&at) {
                        Some(value) => *word = *value,
                        None => return Ok::<_, Infallible>(false),
                    }
                }
                Ok(true)
            });
            result.map_err(|error| match error {
                ReadError::NotReady(reason) => reason,
                ReadError::Failed(never) => match never {},
            })
        }
    }

    fn device(bus: u8, slot: u8, function: u8, qdev_id: &str) -> Device {
        Device {
            bus,
            slot,
            function,
            class_info: Class { class: 0x0300 },
            id: Id {
                vendor: 0x1002,
                device: 0x744c,
            },
            qdev_id: qdev_id.to_owned(),
            pci_bridge: None,
        }
    }

    fn bridge(mut device: Device, secondary: u8, devices: Option<Vec<Device>>) -> Device {
        device.pci_bridge = Some(Bridge {
            bus: BridgeNumbers { secondary },
            devices,
        });
        device
    }

    fn root(devices: Vec<Device>) -> Vec<Bus> {
        vec![Bus { bus: 0, devices }]
    }

    #[test]
    fn a_function_is_told_by_the_port_above_it() {
        let card = device(3, 0, 0, "hostpci1");
        let down = bridge(device(2, 0, 0, ""), 3, Some(vec![card.clone()]));
        let up = bridge(device(1, 0, 0, "up"), 2, Some(vec![down.clone()]));
        let near = device(1, 1, 0, "");
        let port = bridge(
            device(0, 0x1c, 0, "rp"),
            1,
            Some(vec![up.clone(), near.clone()]),
        );
        let conventional = device(4, 5, 0, "hostpci2");
        let pci = bridge(
            device(0, 0x1e, 0, "pci.0"),
            4,
            Some(vec![conventional.clone()]),
        );
        let chipset = device(0, 0x1f, 0, "");

        let mut memory = Memory::default();
        memory.function(&port, 4, 0x380, 0);
        memory.function(&up, 5, 0x40, 0);
        memory.function(&down, 6, 0x40, 0);
        memory.function(&card, 0, 0x180, 0x40);
        memory.function(&near, 0, 0, 0);
        memory.function(&pci, 7, 0x380, 0);
        memory.function(&conventional, 0, 0, 0);
        // The chipset's own functions are not read at all: there is no memory for this one.
        let (ports, elsewhere) = memory.read(&root(vec![port, pci, chipset])).unwrap();

        assert_eq!(ports.len(), 1);
        assert_eq!(ports[0].completes, Widths::ALL);
        let behind: Vec<_> = ports[0]
            .behind
            .iter()
            .flatten()
            .map(|f| (f.qdev_id.as_str(), f.direct, f.requester_enabled))
            .collect();
        assert_eq!(
            behind,
            [("hostpci1", false, Some(true)), ("", true, Some(false))]
        );
        assert_eq!(elsewhere.len(), 1);
        assert_eq!(elsewhere[0].qdev_id, "hostpci2");
    }

    #[test]
    fn a_port_that_is_another_device_by_now_is_not_read() {
        let mut port = bridge(device(0, 0x1c, 0, "rp"), 1, Some(vec![]));
        let mut memory = Memory::default();
        memory.function(&port, 4, 0x180, 0);
        port.id.device = 0x000c;
        match memory.read(&root(vec![port])) {
            Err(NotReady::Unreadable { port, reason }) => {
                assert_eq!(port, "rp");
                assert!(reason.contains("744c"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_port_of_all_ones_is_not_read_as_one_with_all_bits() {
        let port = bridge(device(0, 0x1c, 0, ""), 1, Some(vec![]));
        let mut memory = Memory::default();
        memory.function(&port, 4, u32::MAX, 0);
        assert!(matches!(
            memory.read(&root(vec![port.clone()])),
            Err(NotReady::Unreadable { .. })
        ));
        for word in memory.0.values_mut() {
            *word = u32::MAX;
        }
        assert!(matches!(
            memory.read(&root(vec![port])),
            Err(NotReady::Unreadable { .. })
        ));
    }

    #[test]
    fn a_silent_device_does_not_hide_its_port() {
        let gpu = device(1, 0, 0, "hostpci0");
        let port = bridge(device(0, 0x1c, 0, "rp"), 1, Some(vec![gpu]));
        let mut memory = Memory::default();
        memory.function(&port, 4, 0x180, 0);
        let (ports, _) = memory.read(&root(vec![port])).unwrap();
        assert_eq!(ports[0].completes, Widths::W32_W64);
        assert_eq!(ports[0].behind.as_ref().unwrap()[0].requester_enabled, None);
    }

    #[test]
    fn an_impossible_tree_is_refused() {
        let memory = Memory::default();
        let far = root(vec![device(0, 32, 0, "hostpci0")]);
        assert!(matches!(memory.read(&far), Err(NotReady::Impossible(_))));
        // A window at the end of memory, where the address would wrap.
        let port = bridge(device(255, 31, 7, "rp"), 1, Some(vec![]));
        let result = read_ports(&root(vec![port]), u64::MAX - 0xfff, |_, _| {
            Err::<bool, _>("not to be read")
        });
        assert!(matches!(
            result,
            Err(ReadError::NotReady(NotReady::Unreadable { .. }))
        ));
    }
}
