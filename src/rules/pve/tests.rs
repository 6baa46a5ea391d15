//! Each branch of the rule that one small configuration can show; the vectors show the rest.

use std::collections::BTreeMap;

use super::{
    Composition, Form, HostFunction, IgdRefusal, Inputs, MappingProblem, Refusal, boot_indices,
    compose,
};
use crate::pci::Sbdf;
use crate::rules::guest::Upstream;
use crate::vmconf::mapping::{Mapping, Mappings};
use crate::vmconf::{HostpciIndex, Vmid};

fn host(functions: &[(&str, bool, bool)]) -> BTreeMap<Sbdf, HostFunction> {
    functions
        .iter()
        .map(|(address, mdev, nvidia)| {
            let function = HostFunction {
                vendor: 0x10de,
                device: 0x2236,
                subsystem: Some((0x10de, 0x1482)),
                iommu_group: Some(7),
                mdev: *mdev,
                nvidia: *nvidia,
            };
            (address.parse().unwrap(), function)
        })
        .collect()
}

fn run(
    conf: &[(&str, &str)],
    mappings: &Mappings,
    functions: &[(&str, bool, bool)],
) -> Composition {
    let host = host(functions);
    let conf: BTreeMap<&str, &str> = conf.iter().copied().collect();
    compose(&Inputs {
        vmid: Vmid::new(100).unwrap(),
        conf: &|key| conf.get(key).copied(),
        mappings,
        node: "pve1",
        host: &host,
    })
}

fn mapping(lines: &[&str], mdev: bool) -> Mappings {
    let mapping = Mapping {
        map: lines
            .iter()
            .map(|line| format!("node=pve1,id=10de:2236,subsystem-id=10de:1482,{line}"))
            .collect(),
        mdev,
        live_migration_capable: false,
    };
    BTreeMap::from([("gpu".to_owned(), mapping)])
}

const CARD: &[(&str, bool, bool)] = &[
    ("0000:0b:00.1", false, false),
    ("0000:0b:00.0", false, false),
    ("0000:0c:00.0", false, false),
];

#[test]
fn all_functions_share_a_slot_and_the_first_is_multifunction() {
    let composition = run(
        &[("hostpci0", "0b:00,pcie=1"), ("machine", "q35")],
        &Mappings::new(),
        CARD,
    );
    assert_eq!(composition.start_error, None);
    let places: Vec<_> = composition
        .passed()
        .map(|(_, passed)| {
            let place = &passed.place;
            (
                passed.host.to_string(),
                place.bus.as_str(),
                place.upstream.clone(),
                (place.slot, place.function, place.multifunction),
            )
        })
        .collect();
    assert_eq!(
        places,
        [
            (
                "0000:0b:00.0".to_owned(),
                "ich9-pcie-port-1",
                Upstream::RootPort,
                (0, 0, true)
            ),
            (
                "0000:0b:00.1".to_owned(),
                "ich9-pcie-port-1",
                Upstream::RootPort,
                (0, 1, false)
            ),
        ]
    );
}

#[test]
fn forms() {
    let mappings = mapping(&["path=0000:0c:00.0,iommugroup=7"], false);
    let composition = run(
        &[
            ("hostpci0", "0c:00"),
            ("hostpci1", "0b:00.0,rombar=0"),
            ("hostpci2", "0b:00.0;0b:00.1"),
            ("hostpci3", "mapping=gpu"),
            ("hostpci4", "0b:00.1,mdev=i915"),
            ("hostpci5", "host=0b:00.0,foo=1"),
            ("hostpci6", "mapping=gpu,foo=1"),
            ("hostpci7", "mdev=x,foo=1"),
            ("hostpci8", "0"),
        ],
        &mappings,
        CARD,
    );
    let forms: Vec<_> = composition.entries.iter().map(|entry| entry.form).collect();
    assert_eq!(
        forms,
        [
            Form::AllFunctions,
            Form::Explicit,
            Form::List,
            Form::Mapping,
            Form::Mdev,
            Form::Explicit,
            Form::Mapping,
            Form::Mdev,
        ]
    );
    assert!(
        composition
            .entry(HostpciIndex::new(4).unwrap())
            .unwrap()
            .alternatives
            .iter()
            .all(|one| one.functions.is_empty())
    );
}

#[test]
fn every_entry_is_read_before_the_first_is_chosen() {
    let composition = run(
        &[("hostpci0", "0b:00.0;0b:00.0"), ("hostpci9", "ff:00")],
        &Mappings::new(),
        CARD,
    );
    let (index, refusal) = composition.start_error.clone().unwrap();
    assert_eq!(index.get(), 9);
    assert_eq!(refusal.to_string(), "no PCI device found for 'ff:00'");
    // The entry's own error is still there for the report.
    assert_eq!(
        composition.entries[0].refusal,
        Some(Refusal::AssignedTwice {
            function: "0000:0b:00.0".parse().unwrap()
        })
    );
}

#[test]
fn a_mapping_problem_comes_before_missing_functions_and_machine() {
    let mappings = mapping(
        &["path=0000:0c:00.0,iommugroup=7", "path=0000:0b:00"],
        false,
    );
    let composition = run(&[("hostpci0", "mapping=gpu,pcie=1")], &mappings, CARD);
    assert_eq!(
        composition.start_error.unwrap().1,
        Refusal::MappingInvalid(MappingProblem::Missing {
            property: "iommugroup",
            path: "0000:0b:00.0".to_owned()
        })
    );
    let entry = &composition.entries[0];
    assert_eq!(entry.alternatives.len(), 2);
    assert_eq!(entry.alternatives[0].refusal, None);
    assert_eq!(entry.alternatives[1].functions.len(), 2);
    assert_eq!(entry.chosen, None);
}

#[test]
fn properties_are_compared_by_name_and_the_group_only_once() {
    // `mdev` sorts before `subsystem-id`.
    let lines = ["path=0000:0b:00.0;0000:0c:00.0,iommugroup=7"];
    let composition = run(&[("hostpci0", "mapping=gpu")], &mapping(&lines, true), CARD);
    assert_eq!(
        composition.start_error.unwrap().1.to_string(),
        "PCI device mapping invalid (hardware probably changed): 'mdev' does not match for 'gpu' (0 != 1)"
    );
    let mut other_group = host(CARD);
    other_group
        .get_mut(&"0000:0c:00.0".parse().unwrap())
        .unwrap()
        .iommu_group = None;
    let composition = compose(&Inputs {
        vmid: Vmid::new(100).unwrap(),
        conf: &|key| (key == "hostpci0").then_some("mapping=gpu"),
        mappings: &mapping(&lines, false),
        node: "pve1",
        host: &other_group,
    });
    assert_eq!(composition.start_error, None);
}

#[test]
fn a_false_text_counts_as_absent() {
    // Perl takes "0" for false: no mediated device, no number of an NVIDIA type, no ROM file.
    let nvidia = &[("0000:62:00.0", true, true)];
    for value in ["62:00.0,mdev=0,romfile=0", "62:00.0,mdev=nvidia-0"] {
        let composition = run(&[("hostpci0", value)], &Mappings::new(), nvidia);
        assert_eq!(
            composition.devices(),
            ["vfio-pci,host=0000:62:00.0,id=hostpci0,bus=pci.0,addr=0x10"],
            "{value}"
        );
        assert_eq!(composition.entries[0].form, Form::Explicit, "{value}");
    }
    let composition = run(
        &[("hostpci0", "62:00.0,mdev=nvidia-00")],
        &Mappings::new(),
        nvidia,
    );
    assert_eq!(composition.entries[0].form, Form::Mdev);
}

#[test]
fn an_nvidia_type_forbids_later_multifunction_alternatives() {
    let functions = &[
        ("0000:62:00.0", true, true),
        ("0000:63:00.0", true, false),
        ("0000:63:00.1", true, false),
    ];
    let mappings = mapping(
        &[
            "path=0000:62:00.0,iommugroup=7",
            "path=0000:63:00,iommugroup=7",
        ],
        true,
    );
    for (mdev, refused) in [("nvidia-12", true), ("nvidia-0", false)] {
        let value = format!("mapping=gpu,mdev={mdev}");
        let composition = run(&[("hostpci0", &value)], &mappings, functions);
        let refusal = composition.start_error.map(|(_, refusal)| refusal);
        assert_eq!(
            refusal,
            refused.then_some(Refusal::MdevMultifunction),
            "{mdev}"
        );
    }
}

#[test]
fn a_type_of_the_newer_interface_needs_a_function_that_has_it() {
    // The first alternative is of the older kind; the second turns the whole entry.
    let functions = &[("0000:62:00.0", true, false), ("0000:63:00.0", true, true)];
    let mappings = mapping(
        &[
            "path=0000:62:00.0,iommugroup=7",
            "path=0000:63:00.0,iommugroup=7",
        ],
        true,
    );
    let composition = run(
        &[("hostpci0", "mapping=gpu,mdev=nvidia-12")],
        &mappings,
        functions,
    );
    assert_eq!(
        composition.devices(),
        ["vfio-pci,host=0000:62:00.0,id=hostpci0,bus=pci.0,addr=0x10"]
    );
    let older = run(
        &[(
            "hostpci3",
            "62:00.0,mdev=nvidia-12,x-vga=1,device-id=0xABCD",
        )],
        &Mappings::new(),
        functions,
    );
    assert_eq!(
        older.devices(),
        [
            "vfio-pci,sysfsdev=/sys/bus/mdev/devices/00000003-0000-0000-0000-000000000100,id=hostpci3,bus=pci.0,addr=0x1c,x-vga=on,x-pci-device-id=0xABCD"
        ]
    );
}

#[test]
fn legacy_igd_conditions_in_upstreams_order() {
    let functions = &[
        ("0000:00:02.0", true, false),
        ("0000:00:03.0", false, false),
        ("0000:00:03.1", false, false),
    ];
    let refusal = |conf: &[(&str, &str)]| match run(conf, &Mappings::new(), functions).start_error {
        Some((_, Refusal::Igd(refusal))) => Some(refusal),
        None => None,
        Some((_, other)) => panic!("{other}"),
    };
    let all = "00:03,legacy-igd=1,rombar=0,x-vga=1";
    assert_eq!(refusal(&[("hostpci0", all)]), Some(IgdRefusal::VgaNotNone));
    assert_eq!(
        refusal(&[("hostpci0", all), ("vga", "none")]),
        Some(IgdRefusal::RombarOff)
    );
    for (value, machine, expected) in [
        ("00:03,legacy-igd=1,x-vga=1", "q35", Some(IgdRefusal::XVga)),
        ("00:02.0,legacy-igd=1,mdev=t", "q35", Some(IgdRefusal::Mdev)),
        ("00:03,legacy-igd=1", "q35", Some(IgdRefusal::Q35)),
        ("00:03,legacy-igd=1", "pc", Some(IgdRefusal::Multifunction)),
        ("00:03.0,legacy-igd=1", "pc", Some(IgdRefusal::NotSlot2)),
        ("00:02.0,legacy-igd=1", "pc", None),
    ] {
        let conf = [("hostpci0", value), ("machine", machine), ("vga", "none")];
        assert_eq!(refusal(&conf), expected, "{value} {machine}");
    }
    let second = [
        ("hostpci0", "00:02.0,legacy-igd=1"),
        ("hostpci7", "00:03.0,legacy-igd=1"),
        ("vga", "none"),
    ];
    assert_eq!(refusal(&second), Some(IgdRefusal::SecondDevice));
}

#[test]
fn a_long_list_does_not_overflow() {
    let list = vec!["0c:00.0"; 300].join(";");
    let composition = run(&[("hostpci0", &list)], &Mappings::new(), CARD);
    assert_eq!(composition.entries[0].alternatives[0].functions.len(), 300);
    assert!(composition.start_error.is_some());
}

#[test]
fn boot_order() {
    let order = boot_indices("order=scsi0;hostpci1;net0;hostpci1");
    assert_eq!(order.get("scsi0"), Some(&100));
    assert_eq!(order.get("hostpci1"), Some(&103));
    assert!(boot_indices("cdn").is_empty());
    assert!(boot_indices("order=hostpci0,legacy=c").is_empty());
    assert!(boot_indices("").is_empty());
}
