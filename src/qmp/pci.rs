//! The tree that `query-pci` returns, as far as it is used. Source: QEMU's `qapi/pci.json`.

use serde::Deserialize;

/// One bus with everything on it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Bus {
    /// Its number.
    pub bus: u8,
    /// What sits on it.
    pub devices: Vec<Device>,
}

/// One function.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Device {
    /// Bus number.
    pub bus: u8,
    /// Device number on the bus.
    pub slot: u8,
    /// Function number.
    pub function: u8,
    /// Base class and subclass.
    pub class_info: Class,
    /// Vendor and device.
    pub id: Id,
    /// QEMU's `id=` of the device; empty for one without.
    pub qdev_id: String,
    /// What hangs below, if this is a bridge.
    pub pci_bridge: Option<Bridge>,
}

/// Base class and subclass of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Class {
    /// The upper 16 bits of the class code.
    pub class: u16,
}

/// Which device a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Id {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
}

/// The bus below a bridge.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Bridge {
    /// The numbers that firmware gave it.
    pub bus: BridgeNumbers,
    /// What sits on it; `None` if firmware has not numbered it, so that QEMU cannot find it by number.
    pub devices: Option<Vec<Device>>,
}

/// Bus numbers of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct BridgeNumbers {
    /// The bus right below; 0 before firmware has numbered it.
    pub secondary: u8,
}
