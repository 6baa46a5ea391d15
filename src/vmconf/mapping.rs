//! `/etc/pve/mapping/pci.cfg`: the cluster's PCI resource mappings.
//!
//! A *mapping* is a name with `map` entries, each saying where a device is on one node. Reading follows
//! `PVE::Mapping::PCI` and never fails: what does not fit is passed over with a warning that names its line, and a
//! mapping without any entry that fits does not exist, as in Proxmox.
//!
//! Whether the devices are there and match is for [`crate::rules`] to say.

use std::collections::BTreeMap;

use super::patterns;
use super::property_string::{Check, Format, FormatError, Key};
use super::section_config::{self, HeaderLine, RawSection};

pub use super::section_config::Warning;

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

/// Reads the file.
pub fn parse(bytes: &[u8]) -> (Mappings, Vec<Warning>) {
    let text = String::from_utf8_lossy(bytes);
    let (sections, mut warnings) = section_config::read(&text, header, |name| (*name).to_owned());
    let mut mappings = Mappings::new();
    for section in sections {
        let name = section.header.to_owned();
        match mapping(&section, &mut warnings) {
            Some(mapping) => mappings.insert(name, mapping),
            // A later section of the same name counts, even where nothing of it does.
            None => mappings.remove(&name),
        };
    }
    warnings.sort_by_key(|warning| warning.line);
    (mappings, warnings)
}

/// `^(\S+)\s*$`: the name alone.
fn header(line: &str) -> HeaderLine<&str> {
    let name = section_config::trim_end(line);
    if name.is_empty() || section_config::has_space(name) {
        HeaderLine::No
    } else if patterns::is_config_id(name) {
        HeaderLine::Yes(name)
    } else {
        HeaderLine::Skip(
            name.to_owned(),
            format!("invalid configuration ID '{name}'"),
        )
    }
}

fn mapping(section: &RawSection<'_, &str>, warnings: &mut Vec<Warning>) -> Option<Mapping> {
    let mut mapping = Mapping::default();
    let mut seen: Vec<&str> = Vec::new();
    for setting in &section.settings {
        let result = match setting.key {
            "map" => setting
                .value
                .ok_or_else(|| "got undefined value".to_owned())
                .and_then(|value| check_map(value).map(|()| mapping.map.push(value.to_owned()))),
            key if seen.contains(&key) => Err("duplicate attribute".to_owned()),
            "mdev" => flag(setting.value).map(|value| mapping.mdev = value),
            "live-migration-capable" => {
                flag(setting.value).map(|value| mapping.live_migration_capable = value)
            }
            "description" => description(setting.value),
            key => Err(format!("unexpected property '{key}'")),
        };
        match result {
            Ok(()) if setting.key == "map" => {}
            Ok(()) => seen.push(setting.key),
            Err(reason) => warnings.push(Warning {
                line: setting.line,
                section: Some(section.header.to_owned()),
                text: format!("unable to parse value of '{}': {reason}", setting.key),
            }),
        }
    }
    if mapping.map.is_empty() {
        warnings.push(Warning {
            line: section.line,
            section: Some(section.header.to_owned()),
            text: format!(
                "skip section '{}': missing value for required option 'map'",
                section.header
            ),
        });
        return None;
    }
    Some(mapping)
}

fn check_map(value: &str) -> Result<(), String> {
    if value.contains('\r') {
        return Err("property contains a line feed".to_owned());
    }
    match MAP.parse(value) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("invalid format - {}", error.detail())),
    }
}

/// A key alone means 1. Words such as `on` do not count here.
fn flag(value: Option<&str>) -> Result<bool, String> {
    match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(other) => Err(format!("type check ('boolean') failed - got '{other}'")),
    }
}

fn description(value: Option<&str>) -> Result<(), String> {
    match value {
        None => Err("got undefined value".to_owned()),
        Some(text) if text.contains('\r') => Err("property contains a line feed".to_owned()),
        Some(text) if text.len() > 4096 => Err("value may only be 4096 characters long".to_owned()),
        Some(_) => Ok(()),
    }
}

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

#[cfg(test)]
mod tests {
    use super::{FormatError, MapEntry, Mapping, parse};

    const MAP: &str = "node=pve1,path=0000:0b:00,id=1002:744c,iommugroup=14,subsystem-id=1da2:e471";

    #[test]
    fn reads_what_proxmox_writes() {
        let text = format!(
            "gpu\n\tdescription left slot\n\tmap {MAP}\n\tmap node=pve2,path=0000:0c:00.0,id=1002:744c\n\n\
             # the network\nvf-pool\n\tlive-migration-capable 1\n\tmap {MAP}\n\tmdev\n\n"
        );
        let (mappings, warnings) = parse(text.as_bytes());
        assert_eq!(warnings, []);
        assert_eq!(
            mappings["gpu"].map,
            [MAP, "node=pve2,path=0000:0c:00.0,id=1002:744c"]
        );
        assert!(!mappings["gpu"].mdev && !mappings["gpu"].live_migration_capable);
        assert_eq!(
            mappings["vf-pool"],
            Mapping {
                map: vec![MAP.to_owned()],
                mdev: true,
                live_migration_capable: true,
            }
        );
    }

    #[test]
    fn what_does_not_fit_is_named_by_line() {
        let text = format!(
            "gpu\n\tmap {MAP}\n\tmap node=pve1\n\tmdev yes\n\tmdev 0\n\tmdev 1\n\tfoo bar\n\tid gpu\nstray\n\n\
             g\n\tmap {MAP}\n\nempty\n\tmap\n\ntwo words\n"
        );
        let (mappings, warnings) = parse(text.as_bytes());
        assert_eq!(mappings.keys().collect::<Vec<_>>(), ["gpu"]);
        assert_eq!(mappings["gpu"].map.len(), 1);
        assert!(!mappings["gpu"].mdev);
        let lines: Vec<usize> = warnings.iter().map(|warning| warning.line).collect();
        assert_eq!(lines, [3, 4, 6, 7, 8, 9, 11, 14, 15, 17]);
        let first = &warnings[0];
        assert_eq!(first.section.as_deref(), Some("gpu"));
        assert!(
            first
                .text
                .starts_with("unable to parse value of 'map': invalid format - format error: id: property is missing"),
            "{}",
            first.text
        );
    }

    #[test]
    fn a_later_section_of_the_same_name_counts() {
        let text = format!("gpu\n\tmap {MAP}\n\ngpu\n\tmap nonsense\n");
        assert!(parse(text.as_bytes()).0.is_empty());
        let text = format!("gpu\n\tmap {MAP}\n\ngpu\n\tmap {MAP}\n\tmdev 1\n");
        assert!(parse(text.as_bytes()).0["gpu"].mdev);
    }

    #[test]
    fn hostile_bytes_are_survived() {
        for bytes in [
            b"".as_slice(),
            b"\xff\xfe\n\tmap \xff\n",
            b"\n\n\t\n\tmap x",
            b"0\n\0\n",
        ] {
            assert!(parse(bytes).0.is_empty());
        }
        let many = format!("gpu\n{}", "\tmap x\n".repeat(10_000));
        assert_eq!(parse(many.as_bytes()).1.len(), 10_001);
    }

    #[test]
    fn entries_keep_their_texts() {
        let entry = MapEntry::parse(
            "subsystem-id=1da2:E471,path=0000:0b:00;0001:0c:00.1,iommugroup=014,id=1002:744C,node=PVE1,description=left, ",
        )
        .unwrap();
        assert_eq!(entry.path, "0000:0b:00;0001:0c:00.1");
        assert_eq!(entry.id, "1002:744C");
        assert_eq!(entry.node, "PVE1");
        assert_eq!(entry.iommugroup.as_deref(), Some("014"));
        assert_eq!(entry.subsystem_id.as_deref(), Some("1da2:E471"));
        assert_eq!(entry.description.as_deref(), Some("left"));
        for bad in [
            "node=pve1,path=0b:00.0,id=1002:744c",
            "node=pve1,path=0000:0b:00,id=0x1002:0x744c",
            "node=pve1,path=0000:0b:00",
            "path=0000:0b:00,id=1002:744c",
            "node=-,path=0000:0b:00,id=1002:744c",
            "node=pve1,path=0000:0b:00,id=1002:744c,foo=1",
        ] {
            assert!(
                matches!(MapEntry::parse(bad), Err(FormatError::Schema { .. })),
                "{bad}"
            );
        }
    }
}
