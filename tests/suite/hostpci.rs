//! `compose` gives QEMU what Proxmox gives it: every row of `hostpci.jsonl`, devices and refusals in full text.

use std::collections::BTreeMap;

use pve_atomicops::pci::Sbdf;
use pve_atomicops::rules::guest::Upstream;
use pve_atomicops::rules::pve::{Composition, Form, HostFunction, Inputs, compose};
use pve_atomicops::vmconf::Vmid;
use pve_atomicops::vmconf::mapping::{Mapping, Mappings};
use serde_json::Value;

const ROWS: &str = include_str!("../vectors/hostpci.jsonl");

fn hex<T: TryFrom<u32>>(value: &Value) -> Option<T> {
    let digits = value.as_str()?.strip_prefix("0x").unwrap();
    u32::from_str_radix(digits, 16).unwrap().try_into().ok()
}

fn host(row: &Value) -> BTreeMap<Sbdf, HostFunction> {
    let functions = row["host"].as_array().unwrap();
    let host: BTreeMap<Sbdf, HostFunction> = functions
        .iter()
        .map(|function| {
            let subsystem = Option::zip(
                hex(&function["subsystem_vendor"]),
                hex(&function["subsystem_device"]),
            );
            let address = function["id"].as_str().unwrap().parse().unwrap();
            let details = HostFunction {
                vendor: hex(&function["vendor"]).unwrap(),
                device: hex(&function["device"]).unwrap(),
                subsystem,
                iommu_group: function["iommugroup"].as_i64().unwrap().try_into().ok(),
                mdev: function["mdev"] == 1,
                nvidia: function["nvidia"] == 1,
            };
            (address, details)
        })
        .collect();
    assert_eq!(host.len(), functions.len(), "{}", row["name"]);
    host
}

fn mappings(row: &Value) -> Mappings {
    let mappings = row["mappings"].as_object().unwrap();
    mappings
        .iter()
        .map(|(name, mapping)| {
            let lines = mapping["map"].as_array().unwrap();
            let mapping = Mapping {
                map: lines
                    .iter()
                    .map(|line| line.as_str().unwrap().to_owned())
                    .collect(),
                mdev: mapping["mdev"] == 1,
                live_migration_capable: mapping["live-migration-capable"] == 1,
            };
            (name.clone(), mapping)
        })
        .collect()
}

fn composition(row: &Value) -> Composition {
    compose(&Inputs {
        vmid: Vmid::new(100).unwrap(),
        conf: &|key| row["conf"][key].as_str(),
        mappings: &mappings(row),
        node: row["node"].as_str().unwrap(),
        host: &host(row),
    })
}

/// What QEMU's options say about the place of each function: bus, slot, function, multifunction.
fn places(devices: &[&str]) -> Vec<(String, String, u8, u8, bool)> {
    let places = devices.iter().filter_map(|device| {
        let options: BTreeMap<&str, &str> = device
            .split(',')
            .filter_map(|option| option.split_once('='))
            .collect();
        let addr = options["addr"].strip_prefix("0x")?;
        let (slot, function) = addr.split_once('.').unwrap_or((addr, "0"));
        Some((
            (*options.get("host")?).to_owned(),
            options["bus"].to_owned(),
            u8::from_str_radix(slot, 16).unwrap(),
            function.parse().unwrap(),
            options.get("multifunction") == Some(&"on"),
        ))
    });
    places.collect()
}

#[test]
fn every_vector() {
    let (mut rows, mut refused) = (0, 0);
    let mut failed = Vec::new();
    for line in ROWS.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let name = row["name"].as_str().unwrap();
        let composition = composition(&row);
        let got = composition
            .start_error
            .as_ref()
            .map(|(_, refusal)| refusal.to_string());
        rows += 1;
        if let Some(error) = row["result"]["error"].as_str() {
            refused += 1;
            if got.as_deref() != Some(error) {
                failed.push(format!("{name}: expected '{error}', got {got:?}"));
            }
            continue;
        }
        let expected: Vec<&str> = row["result"]["devices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|device| device.as_str().unwrap())
            .collect();
        if got.is_some() || composition.devices() != expected {
            failed.push(format!(
                "{name}: expected {expected:#?}, got {got:?} {:#?}",
                composition.devices()
            ));
        }
        // The places are what the other rules go by, so they have to agree with the text as well.
        let got: Vec<_> = composition
            .passed()
            .map(|(_, passed)| {
                let place = passed.place.clone();
                (
                    passed.host.to_string(),
                    place.bus,
                    place.slot,
                    place.function,
                    place.multifunction,
                )
            })
            .collect();
        if got != places(&expected) {
            failed.push(format!("{name}: places {got:#?}"));
        }
    }
    println!("{rows} rows, {refused} of them refusals");
    assert!(
        failed.is_empty(),
        "{} of {rows} rows differ:\n{}",
        failed.len(),
        failed.join("\n")
    );
    assert_eq!((rows, refused), (449, 173));
}

#[test]
fn every_vector_has_a_consistent_composition() {
    for line in ROWS.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let name = row["name"].as_str().unwrap();
        let composition = composition(&row);
        for entry in &composition.entries {
            let chosen = entry.chosen_alternative();
            if entry.refusal.is_none() {
                assert!(chosen.is_some(), "{name}");
            }
            for alternative in &entry.alternatives {
                for passed in &alternative.functions {
                    let on_port = passed.place.bus.starts_with("ich9-pcie-port-");
                    assert_eq!(
                        passed.place.upstream == Upstream::RootPort,
                        on_port,
                        "{name}"
                    );
                }
                assert!(
                    entry.form != Form::Explicit || alternative.functions.len() <= 1,
                    "{name}"
                );
            }
            if composition.start_error.is_none() {
                assert_eq!(entry.refusal, None, "{name}");
            }
        }
    }
}
