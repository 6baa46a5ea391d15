//! Random configurations: after plan and edit every edited entry is `ok` or `unavailable`, a second run changes nothing,
//! and undo gives the original bytes back.

use std::collections::BTreeMap;

use proptest::prelude::*;

use pve_atomicops::examine::Survey;
use pve_atomicops::host::Host;
use pve_atomicops::pci::Widths;
use pve_atomicops::settings::{Devices, Settings, Strategy as Repair};
use pve_atomicops::verdict::Verdict;
use pve_atomicops::vmconf::document::Document;
use pve_atomicops::vmconf::{HostpciIndex, Vmid};

use crate::support::HostTree;

/// Cards of two to four functions, one of them behind a switch that does not route, one of a single function.
fn host() -> HostTree {
    HostTree::new()
        .root_port("0000:00:01.0", 0x01, |port| port.completes(Widths::ALL))
        .gpu("0000:01:00.0", |gpu| gpu.completes(Widths::ALL))
        .audio("0000:01:00.1", |audio| audio)
        .endpoint("0000:01:00.2", |usb| usb.class(0x0c_0330))
        .endpoint("0000:01:00.3", |ucsi| ucsi.class(0x0c_8000))
        .root_port("0000:00:02.0", 0x02, |port| port)
        .audio("0000:02:00.0", |audio| audio)
        .gpu("0000:02:00.1", |gpu| gpu)
        .root_port("0000:00:03.0", 0x03, |port| port)
        .upstream_port("0000:03:00.0", 0x04, |port| port)
        .downstream_port("0000:04:00.0", 0x05, |port| port.routes(false))
        .gpu("0000:05:00.0", |gpu| gpu)
        .audio("0000:05:00.1", |audio| audio)
        .root_port("0000:00:04.0", 0x06, |port| port)
        .gpu("0000:06:00.0", |gpu| gpu)
        .root_port("0001:00:01.0", 0x01, |port| port)
        .gpu("0001:01:00.0", |gpu| gpu)
        .audio("0001:01:00.1", |audio| audio)
}

fn lines() -> impl Strategy<Value = String> {
    let card = prop_oneof![
        Just("0000:01:00"),
        Just("01:00"),
        Just("0000:02:00"),
        Just("02:00"),
        Just("05:00"),
        Just("0000:06:00"),
        Just("0001:01:00"),
        Just("01:00.0"),
        Just("0000:02:00.1"),
        Just("01:00;02:00"),
        Just("0000:01:00.1;01:00.0"),
        Just("05:00.0;05:00.1"),
        Just("ff:00"),
    ];
    let option = prop_oneof![
        Just(""),
        Just(",x-vga=on"),
        Just(",romfile=a.rom"),
        Just(",rombar=0"),
        Just(",driver=keep"),
        Just(",vendor-id=0x1002"),
        Just(",nonsense=1"),
        Just(",x-vga=1,romfile=b"),
    ];
    let pcie = prop_oneof![5 => Just(",pcie=1"), 1 => Just("")];
    let entry = (0_u8..16, card, option, pcie, any::<bool>()).prop_map(
        |(index, card, option, pcie, host)| {
            let host = if host { "host=" } else { "" };
            format!("hostpci{index}: {host}{card}{option}{pcie}")
        },
    );
    let other = prop_oneof![
        Just("memory: 2048"),
        Just("# a note"),
        Just("#hostpci0: 01:00"),
        Just(""),
        Just("ostype: win11"),
        Just("ostype: l26"),
        Just("  hostpci1: 01:00"),
        Just("bogus line"),
        Just("hostpci3 : 02:00"),
        Just("machine: pc-q35-8.1"),
        Just("machine: q35,viommu=intel"),
        Just("args: -foo bar"),
    ];
    let line = prop_oneof![3 => entry, 1 => other.prop_map(str::to_owned)];
    let end = prop_oneof![9 => Just("\n"), 1 => Just("\r\n")];
    let main = prop::collection::vec((line, end), 0..10);
    let tail = prop_oneof![
        Just(""),
        Just("[PENDING]\nmemory: 1\n"),
        Just("\n[snap]\nhostpci0: 01:00,pcie=1\n"),
        Just("[PENDING]\nhostpci9: 06:00\n"),
        Just("hostpci15: 0000:06:00,pcie=1"),
    ];
    let machine = prop_oneof![8 => Just("machine: q35\n"), 1 => Just("")];
    (machine, main, tail).prop_map(|(machine, main, tail)| {
        let main: String = main
            .into_iter()
            .flat_map(|(line, end)| [line, end.to_owned()])
            .collect();
        format!("{machine}{main}{tail}")
    })
}

fn settings(strategy: Repair) -> Settings {
    Settings {
        strategy,
        min_gpus: 1,
        devices: Devices::Gpu,
        ..Settings::default()
    }
}

fn check(host: &Host, config: &str, strategy: Repair) -> Result<usize, TestCaseError> {
    let vmid = Vmid::new(100).expect("a VM ID");
    let settings = settings(strategy);
    let survey = Survey::new(host);
    let examined = survey
        .examine(vmid, config.as_bytes(), &settings)
        .expect("the host can be read");
    let edits = examined.edits();
    for (index, value) in &edits {
        // Nothing that is there is written over, but for the entries that are repaired.
        let old = examined.config.main.get(&index.to_string());
        prop_assert!(
            old.is_none() || examined.repairs.contains_key(index),
            "{index}: {value}"
        );
    }
    if edits.is_empty() {
        return Ok(0);
    }
    let set: BTreeMap<HostpciIndex, Option<String>> = edits
        .iter()
        .map(|(index, value)| (*index, Some(value.clone())))
        .collect();
    let edit = examined
        .document
        .edit(&set)
        .expect("the plan can be written");
    prop_assert_eq!(&edit.before, config.as_bytes());

    let after = survey
        .examine(vmid, &edit.after, &settings)
        .expect("the host can be read");
    for index in edits.keys() {
        let key = index.to_string();
        let entry = after
            .report
            .entries
            .iter()
            .find(|entry| entry.key == key)
            .expect("the entry is there");
        let repaired = examined.repairs.contains_key(index);
        let good = match entry.verdict {
            Verdict::Ok | Verdict::Unavailable => true,
            // What moved away needs no AtomicOps.
            Verdict::NotApplicable => !repaired,
            _ => false,
        };
        prop_assert!(
            good,
            "{key}: {:?}\n{}",
            entry,
            String::from_utf8_lossy(&edit.after)
        );
    }
    for (key, value) in examined.config.main.iter() {
        if HostpciIndex::from_key(key).is_none_or(|index| !edits.contains_key(&index)) {
            prop_assert_eq!(after.config.main.get(key), Some(value));
        }
    }
    prop_assert_eq!(&after.config.pending, &examined.config.pending);
    prop_assert_eq!(&after.config.snapshots, &examined.config.snapshots);
    prop_assert!(after.report.start_error.is_none() == examined.report.start_error.is_none());
    let again: Vec<_> = after
        .edits()
        .into_keys()
        .filter(|index| edits.contains_key(index))
        .collect();
    prop_assert!(again.is_empty(), "{again:?}");

    let undone = Document::parse(&edit.after)
        .revert(&edit.changes)
        .expect("the lines are as we left them");
    prop_assert_eq!(undone.after, config.as_bytes());
    Ok(edits.len())
}

#[test]
fn repaired_entries_get_what_the_host_gives_once_and_can_be_taken_back() {
    let tree = host();
    let host = tree.host();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(600));
    let edited = std::cell::Cell::new(0);
    runner
        .run(&lines(), |config| {
            for strategy in [Repair::Explicit, Repair::Split, Repair::Auto] {
                edited.set(edited.get() + check(&host, &config, strategy)?);
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    println!("{} values edited", edited.get());
    assert!(
        edited.get() > 300,
        "the configurations are too tame: {}",
        edited.get()
    );
}
