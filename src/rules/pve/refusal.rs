//! The errors with which Proxmox refuses to start a VM over its passed devices.
//!
//! `Display` gives the first line of Proxmox's own message.

use crate::vmconf::{FormatError, HostpciIndex};

/// Why Proxmox would refuse to start the VM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The schema refuses the value. In a file, Proxmox drops such a line instead, and starts without the device.
    #[error(transparent)]
    Format(FormatError),
    /// Both `host` and `mapping`.
    #[error("Cannot set both 'host' and 'mapping'.")]
    HostAndMapping,
    /// Neither `host` nor `mapping`.
    #[error("Either 'host' or 'mapping' must be set.")]
    NeitherHostNorMapping,
    /// No such mapping, or it has no usable line for this node.
    #[error("PCI device mapping not found for '{mapping}'")]
    MappingNotFound {
        /// Name of the mapping.
        mapping: String,
    },
    /// The mapping does not describe the hardware.
    #[error("PCI device mapping invalid (hardware probably changed): {0}")]
    MappingInvalid(MappingProblem),
    /// An address or prefix that no function of the host has.
    #[error("no PCI device found for '{path}'")]
    NoDevice {
        /// The address or prefix, as written.
        path: String,
    },
    /// `mdev` with more than one function.
    #[error("cannot use mediated device with multifunction device")]
    MdevMultifunction,
    /// `pcie=1` without a q35 machine.
    #[error("q35 machine model is not enabled")]
    NotQ35,
    /// A condition of `legacy-igd` does not hold.
    #[error(transparent)]
    Igd(IgdRefusal),
    /// A function that an earlier entry, or the same, has already.
    #[error("device '{function}' assigned more than once")]
    AssignedTwice {
        /// The function.
        function: crate::pci::Sbdf,
    },
    /// No alternative of the mapping is free.
    #[error("could not find a free device for '{0}'")]
    NoFreeDevice(HostpciIndex),
}

impl Refusal {
    /// Whether Proxmox drops the line while it reads the file, instead of refusing the start.
    pub const fn is_dropped(&self) -> bool {
        matches!(self, Self::Format(_))
    }
}

/// What a mapping's line has against the hardware.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MappingProblem {
    /// The function is not there. For a path without a function it is function 0 that has to be.
    #[error("pci device '{path}' not found")]
    NotFound {
        /// The function's address, as Proxmox builds it.
        path: String,
    },
    /// The device has a property that the line lacks.
    #[error("missing expected property '{property}' for device '{path}'")]
    Missing {
        /// Name of the property.
        property: &'static str,
        /// The function's address.
        path: String,
    },
    /// The line has a property that the device lacks.
    #[error("unexpected property '{property}' configured for device '{path}'")]
    Unexpected {
        /// Name of the property.
        property: &'static str,
        /// The function's address.
        path: String,
    },
    /// The two differ.
    #[error("'{property}' does not match for '{mapping}' ({expected} != {configured})")]
    Differs {
        /// Name of the property.
        property: &'static str,
        /// Name of the mapping.
        mapping: String,
        /// The device's.
        expected: String,
        /// The line's, or the mapping's for `mdev`.
        configured: String,
    },
}

/// Which condition of `legacy-igd` does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IgdRefusal {
    /// An earlier entry has it too.
    #[error("only one device can be assigned in legacy-igd mode")]
    SecondDevice,
    /// `vga` is not exactly `none`.
    #[error("legacy IGD assignment requires VGA mode to be 'none'")]
    VgaNotNone,
    /// `rombar=0`.
    #[error("legacy IGD assignment requires rombar to be enabled")]
    RombarOff,
    /// `x-vga=1`.
    #[error("legacy IGD assignment is not compatible with x-vga")]
    XVga,
    /// `mdev`.
    #[error("legacy IGD assignment is not compatible with mdev")]
    Mdev,
    /// A q35 machine.
    #[error("legacy IGD assignment is not compatible with q35")]
    Q35,
    /// More than one function.
    #[error("legacy IGD assignment is not compatible with multifunction devices")]
    Multifunction,
    /// A mapping with more than one line for this node.
    #[error("legacy IGD assignment is not compatible with alternate devices")]
    Alternatives,
    /// The device is not function 0 of a slot 02, on whatever bus.
    #[error("legacy IGD assignment only works for devices on host bus 00:02.0")]
    NotSlot2,
}
