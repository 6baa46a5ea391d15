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
    /// Subsystem vendor and device ID; `None` where the device has none, or where they were not asked for.
    pub subsystem: Option<(u16, u16)>,
    /// Class code, 24 bit.
    pub class: u32,
    /// The bridge above; `None` right on a root bus. For a VF, the bridge above its bus as `sysfs` nests it.
    pub parent: Option<Sbdf>,
    /// The physical function, if this is an SR-IOV virtual function.
    pub physfn: Option<Sbdf>,
    /// IOMMU group; `None` where it has none, or where it was not asked for.
    pub iommu_group: Option<u32>,
    /// Name of the bound driver; `None` where it has none, or where it was not asked for.
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

    /// All functions, by address, to be completed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Function> {
        self.functions.values_mut()
    }

    /// The bridges above a function, nearest first.
    pub fn above(&self, addr: Sbdf) -> impl Iterator<Item = &Function> {
        std::iter::successors(self.parent(addr), |bridge| self.parent(bridge.addr)).take(64)
    }

    /// The bridges from the topmost down to the upstream neighbour of a function: a root port first, if there is one.
    ///
    /// For a VF it is the path of its physical function, which is the one that counts.
    pub fn path_to(&self, addr: Sbdf) -> Vec<&Function> {
        let mut path: Vec<_> = self.above(self.physical(addr)).collect();
        path.reverse();
        path
    }

    /// The other functions in the slot of a function, by address.
    pub fn siblings(&self, addr: Sbdf) -> impl Iterator<Item = &Function> {
        self.iter()
            .filter(move |other| other.addr != addr && other.addr.same_slot(addr))
    }

    /// The physical function behind a VF, the function itself otherwise.
    pub fn physical(&self, addr: Sbdf) -> Sbdf {
        self.get(addr)
            .and_then(|function| function.physfn)
            .unwrap_or(addr)
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

#[cfg(test)]
mod tests {
    use super::{Function, Registers, Sbdf, Topology};

    fn at(addr: &str) -> Sbdf {
        addr.parse().unwrap()
    }

    fn function(addr: &str, parent: &str, physfn: &str) -> Function {
        Function {
            addr: at(addr),
            vendor: 0x1002,
            device: 0x744c,
            subsystem: None,
            class: 0x03_0000,
            parent: parent.parse().ok(),
            physfn: physfn.parse().ok(),
            iommu_group: None,
            driver: None,
            reset_methods: None,
            registers: Registers::NotExpress,
        }
    }

    fn host() -> Topology {
        [
            function("0000:00:03.1", "", ""),
            function("0000:01:00.0", "0000:00:03.1", ""),
            function("0000:02:01.0", "0000:01:00.0", ""),
            function("0000:0b:00.0", "0000:02:01.0", ""),
            function("0000:0b:00.1", "0000:02:01.0", ""),
            function("0000:0b:10.0", "", "0000:0b:00.0"),
            function("0001:0b:00.2", "", ""),
        ]
        .into_iter()
        .collect()
    }

    fn names<'a>(functions: impl IntoIterator<Item = &'a Function>) -> Vec<String> {
        functions.into_iter().map(|f| f.addr.to_string()).collect()
    }

    #[test]
    fn a_path_runs_from_the_top_down() {
        let host = host();
        let path = ["0000:00:03.1", "0000:01:00.0", "0000:02:01.0"];
        assert_eq!(names(host.path_to(at("0000:0b:00.1"))), path);
        // A virtual function goes the way of its physical function.
        assert_eq!(names(host.path_to(at("0000:0b:10.0"))), path);
        assert!(host.path_to(at("0000:00:03.1")).is_empty());
        assert!(host.path_to(at("0000:ff:00.0")).is_empty());
    }

    #[test]
    fn siblings_are_the_rest_of_the_slot() {
        let host = host();
        assert_eq!(names(host.siblings(at("0000:0b:00.1"))), ["0000:0b:00.0"]);
        assert!(names(host.siblings(at("0001:0b:00.2"))).is_empty());
    }
}
