//! The functions that matter to one run and the bridges above them.

use std::collections::BTreeMap;

use super::Sbdf;
use super::express::Express;

/// What is known of a function's PCI Express registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registers {
    /// Could not be read, with the reason in words for people. Never counts as "bit is 0".
    Unreadable(String),
    /// Was read, and has no PCI Express capability.
    NotExpress,
    /// Was read.
    Express(Express),
}

/// One PCI function of the host as `sysfs` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its address.
    pub addr: Sbdf,
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Subsystem vendor and device ID, where the device has them.
    pub subsystem: Option<(u16, u16)>,
    /// Class code, 24 bit.
    pub class: u32,
    /// The bridge above; `None` right on a root bus. For a VF, the bridge above its bus as `sysfs` nests it.
    pub parent: Option<Sbdf>,
    /// The physical function, if this is an SR-IOV virtual function.
    pub physfn: Option<Sbdf>,
    /// IOMMU group.
    pub iommu_group: Option<u32>,
    /// Name of the bound driver.
    pub driver: Option<String>,
    /// Words of `reset_method`, in order; `None` where the file is missing or was not read.
    pub reset_methods: Option<Vec<String>>,
    /// PCI Express registers.
    pub registers: Registers,
}

/// Functions by address, with every bridge above each of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    functions: BTreeMap<Sbdf, Function>,
}

impl Topology {
    /// Adds a function, or replaces the one with this address.
    pub fn insert(&mut self, function: Function) {
        self.functions.insert(function.addr, function);
    }

    /// The function with this address, if it was read.
    pub fn get(&self, addr: Sbdf) -> Option<&Function> {
        self.functions.get(&addr)
    }

    /// All functions, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Function> {
        self.functions.values()
    }

    /// The bridges above a function, nearest first.
    pub fn above(&self, addr: Sbdf) -> impl Iterator<Item = &Function> {
        std::iter::successors(self.parent(addr), |bridge| self.parent(bridge.addr)).take(64)
    }

    fn parent(&self, addr: Sbdf) -> Option<&Function> {
        self.get(self.get(addr)?.parent?)
    }
}

impl FromIterator<Function> for Topology {
    fn from_iter<I: IntoIterator<Item = Function>>(iter: I) -> Self {
        let mut topology = Self::default();
        for function in iter {
            topology.insert(function);
        }
        topology
    }
}
