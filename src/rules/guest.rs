//! Places in the guest's PCI topology: the common language of [`super::pve`], [`super::qemu`] and `args:`.

/// What a guest bus hangs from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// The root bus: `pcie.0` on q35, `pci.0` on i440fx.
    RootBus,
    /// A PCI Express root port (`pcie-root-port`, `ioh3420`).
    RootPort,
    /// A downstream port of a switch in the guest (`xio3130-downstream`).
    SwitchPort,
    /// A conventional PCI bus (`pci-bridge`, `pcie-pci-bridge`).
    Bridge,
    /// A device that the program does not know.
    Other(String),
}

/// Where a passed function sits in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestPlace {
    /// QEMU's `bus=`.
    pub bus: String,
    /// What that bus hangs from.
    pub upstream: Upstream,
    /// Slot on that bus.
    pub slot: u8,
    /// Function in that slot.
    pub function: u8,
    /// Whether the device has `multifunction=on`.
    pub multifunction: bool,
}
