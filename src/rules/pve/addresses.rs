//! Where Proxmox puts each `hostpciN`: the tables behind `print_pci_addr`, `print_pcie_addr` and
//! `print_pcie_root_port`.

use super::{Entry, Machine, Mediated, PassedFunction};
use crate::rules::guest::{GuestPlace, Upstream};
use crate::vmconf::HostpciIndex;
use crate::vmconf::hostpci::Hostpci;

/// The guest slot of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSlot {
    /// QEMU's `bus=`.
    pub bus: String,
    /// What that bus hangs from.
    pub upstream: Upstream,
    /// Slot on that bus.
    pub slot: u8,
}

/// A root port that Proxmox adds for a `pcie=1` entry above the four preset ones. Always a `pcie-root-port` on
/// `pcie.0`, whatever the machine's version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraPort {
    /// QEMU's `id=`, and the name of its bus.
    pub id: String,
    /// QEMU's `port=` and `chassis=`.
    pub number: u8,
    /// Slot on `pcie.0`.
    pub slot: u8,
    /// Function in that slot.
    pub function: u8,
}

/// Slots of `hostpciN` on the conventional buses: 0 to 3 on `pci.0`, the others on `pci.2`.
const PCI_SLOTS: [u8; 16] = [
    16, 17, 27, 28, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,
];

/// Slots of `hostpciN` right on `pcie.0`, for Windows 7.
const PCIE_ROOT_BUS_SLOTS: [u8; 16] = [
    16, 17, 18, 19, 9, 10, 11, 12, 13, 14, 15, 21, 22, 23, 24, 25,
];

/// Slot of the display on `pci.0`, which a device with `legacy-igd` takes.
const LEGACY_IGD_SLOT: u8 = 2;

/// First index whose root port is not among the preset ones.
const FIRST_EXTRA_PORT: u8 = 4;

impl GuestSlot {
    pub(super) fn of(
        index: HostpciIndex,
        hostpci: &Hostpci,
        machine: &Machine,
        windows: u32,
    ) -> Self {
        let n = index.get();
        let from = |table: &[u8; 16]| table.get(usize::from(n)).copied().unwrap_or_default();
        if hostpci.pcie && windows == 7 {
            return Self {
                bus: "pcie.0".to_owned(),
                upstream: Upstream::RootBus,
                slot: from(&PCIE_ROOT_BUS_SLOTS),
            };
        }
        if hostpci.pcie {
            return Self {
                bus: port_name(index),
                upstream: Upstream::RootPort,
                slot: 0,
            };
        }
        let (bus, slot) = if hostpci.legacy_igd {
            ("pci.0", LEGACY_IGD_SLOT)
        } else if n < 4 {
            ("pci.0", from(&PCI_SLOTS))
        } else {
            ("pci.2", from(&PCI_SLOTS))
        };
        // A q35 has no conventional root bus: its `pci.0` is a bridge too.
        let upstream = if bus == "pci.0" && !machine.is_q35() {
            Upstream::RootBus
        } else {
            Upstream::Bridge
        };
        Self {
            bus: bus.to_owned(),
            upstream,
            slot,
        }
    }

    /// Gives every function of an entry's alternatives its place in this slot.
    pub(super) fn fill(&self, entry: &mut Entry) {
        if entry.mediated == Mediated::Mdev {
            return;
        }
        for alternative in &mut entry.alternatives {
            let several = alternative.hosts.len() > 1;
            alternative.functions = alternative
                .hosts
                .iter()
                .enumerate()
                .map(|(nth, host)| PassedFunction {
                    host: *host,
                    place: GuestPlace {
                        bus: self.bus.clone(),
                        upstream: self.upstream.clone(),
                        slot: self.slot,
                        // Proxmox counts on past 7 and leaves the refusal to QEMU.
                        function: u8::try_from(nth).unwrap_or(u8::MAX),
                        multifunction: several && nth == 0,
                    },
                })
                .collect();
        }
    }
}

impl ExtraPort {
    pub(super) fn of(index: HostpciIndex, slot: &GuestSlot) -> Option<Self> {
        let nth = index.get().checked_sub(FIRST_EXTRA_PORT)?;
        (slot.upstream == Upstream::RootPort).then(|| Self {
            id: port_name(index),
            number: index.get() + 1,
            slot: 0x10 + nth / 8,
            function: nth % 8,
        })
    }
}

/// Name of the root port that a `pcie=1` entry sits on.
fn port_name(index: HostpciIndex) -> String {
    format!("ich9-pcie-port-{}", index.get() + 1)
}
