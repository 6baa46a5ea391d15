//! `/etc/pve/mapping/pci.cfg`: the cluster's PCI resource mappings.

use std::collections::BTreeMap;

use super::patterns;
use super::property_string::{Check, Format, FormatError, Key};

static MAP: Format = Format::new(&[
    Key::required(
        "node",
        Check::Format(
            patterns::is_label,
            "value does not look like a valid node name",
        ),
    ),
    Key::required("id", Check::Pattern(patterns::is_id_pair)),
    Key::optional("subsystem-id", Check::Pattern(patterns::is_id_pair)),
    Key::required("path", Check::Pattern(patterns::is_mapping_path)),
    Key::optional("iommugroup", Check::Integer(None, None)),
    Key::optional("description", Check::Text).max_length(4096),
]);

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

/// One `map` value: where the device is on one node. All texts are as written, since Proxmox compares them as texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// `node`: the node's name.
    pub node: String,
    /// `path`: addresses with domain, joined by `;`; without a function, all functions.
    pub path: String,
    /// `id`: vendor and device ID as `1002:744c`.
    pub id: String,
    /// `iommugroup`.
    pub iommugroup: Option<String>,
    /// `subsystem-id`.
    pub subsystem_id: Option<String>,
    /// `description`.
    pub description: Option<String>,
}

impl MapEntry {
    /// Reads a `map` value by Proxmox's schema (`PVE::Mapping::PCI`, pve-guest-common of July 2025).
    ///
    /// # Errors
    /// What the schema holds against the value. Proxmox then warns and passes over the entry.
    pub fn parse(value: &str) -> Result<Self, FormatError> {
        let properties = MAP.parse(value)?;
        let text = |key| properties.get(key).map(str::to_owned);
        // The schema requires these three: parsing has failed where one is missing.
        let required = |key| properties.get(key).unwrap_or_default().to_owned();
        Ok(Self {
            node: required("node"),
            path: required("path"),
            id: required("id"),
            iommugroup: text("iommugroup"),
            subsystem_id: text("subsystem-id"),
            description: text("description"),
        })
    }
}
