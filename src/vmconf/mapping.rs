//! `/etc/pve/mapping/pci.cfg`: the cluster's PCI resource mappings.

use std::collections::BTreeMap;

/// One resource mapping, as Proxmox keeps it after reading the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// `map` values in order, each a property string (`node=…,path=…,id=…`).
    pub map: Vec<String>,
    /// `mdev`: the mapping is for mediated devices.
    pub mdev: bool,
    /// `live-migration-capable`.
    pub live_migration_capable: bool,
}

/// Mappings by name.
pub type Mappings = BTreeMap<String, Mapping>;
