//! Cluster resource mappings: `PVE::Mapping::PCI`, `find_on_current_node` and `assert_valid`.

use super::{Alternative, HostFunctions, Inputs, MappingProblem, Refusal};
use crate::vmconf::mapping::{MapEntry, Mapping};

/// What a mapping offers on this node.
pub(super) struct Mapped {
    /// One per line for this node, each with the refusal of its check.
    pub(super) alternatives: Vec<Alternative>,
    pub(super) live_migration_capable: bool,
}

/// The alternatives of the mapping `name`; none where there is no such mapping. Lines that the schema refuses do not
/// count.
pub(super) fn alternatives(inputs: &Inputs<'_>, name: &str) -> Mapped {
    let Some(mapping) = inputs.mappings.get(name) else {
        return Mapped {
            alternatives: Vec::new(),
            live_migration_capable: false,
        };
    };
    let alternatives = mapping
        .map
        .iter()
        .filter_map(|line| MapEntry::parse(line).ok())
        .filter(|line| line.node == inputs.node)
        .map(|line| {
            let mut alternative = Alternative::of_path(&line.path);
            alternative.refusal =
                problem(inputs.host, name, mapping, &line).map(Refusal::MappingInvalid);
            alternative
        })
        .collect();
    Mapped {
        alternatives,
        live_migration_capable: mapping.live_migration_capable,
    }
}

/// `assert_valid`: the first problem. Each path is compared with the line's properties, by name of the property; the
/// IOMMU group only for the first path.
fn problem(
    host: &dyn HostFunctions,
    name: &str,
    mapping: &Mapping,
    line: &MapEntry,
) -> Option<MappingProblem> {
    for (position, path) in line.path.split(';').enumerate() {
        let path = if path.contains('.') {
            path.to_owned()
        } else {
            format!("{path}.0")
        };
        let Some(found) = path.parse().ok().and_then(|address| host.details(address)) else {
            return Some(MappingProblem::NotFound { path });
        };
        let pair = |(vendor, device): (u16, u16)| format!("{vendor:04x}:{device:04x}");
        let flag = |set: bool| Some(if set { "1" } else { "0" }.to_owned());
        let properties = [
            (
                "id",
                Some(pair((found.vendor, found.device))),
                Some(line.id.clone()),
            ),
            (
                "iommugroup",
                found.iommu_group.map(|group| group.to_string()),
                line.iommugroup.clone(),
            ),
            ("mdev", flag(found.mdev), flag(mapping.mdev)),
            (
                "subsystem-id",
                found.subsystem.map(pair),
                line.subsystem_id.clone(),
            ),
        ];
        for (property, expected, configured) in properties {
            if property == "iommugroup" && position > 0 {
                continue;
            }
            match (expected, configured) {
                (Some(_), None) => return Some(MappingProblem::Missing { property, path }),
                (None, Some(_)) => return Some(MappingProblem::Unexpected { property, path }),
                (Some(expected), Some(configured)) if expected != configured => {
                    return Some(MappingProblem::Differs {
                        property,
                        mapping: name.to_owned(),
                        expected,
                        configured,
                    });
                }
                _ => {}
            }
        }
    }
    None
}
