//! The rules against measurements: real kernels, real QEMU, the guest's root ports read.
//!
//! Each row of the vectors is one guest. Every port of it is compared, and every requester enable bit that the kernel
//! left on the host. `tests/vectors/atomicops-lab.md` describes the rows.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pve_atomicops::pci::express::{DevCap2, DevCtl2, Express, PortType};
use pve_atomicops::pci::roles::trace;
use pve_atomicops::pci::{Function, Registers, Sbdf, Topology, Width, Widths};
use pve_atomicops::rules::guest::{GuestPlace, Upstream};
use pve_atomicops::rules::linux::{Kernel, Revision, enable_atomic_ops_to_root};
use pve_atomicops::rules::qemu::{Version, advertised};
use pve_atomicops::rules::vfio::host_answer;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    kernel: String,
    qemu: String,
    host: Vec<HostFunction>,
    guest: Vec<GuestPort>,
    measured: BTreeMap<String, Completer>,
    requester_enabled: BTreeMap<String, Option<bool>>,
    error: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostFunction {
    addr: String,
    parent: Option<String>,
    port_type: String,
    exp_version: u8,
    devcap2: Option<String>,
    devctl2: Option<String>,
    /// What an Express v1 root port has there; nobody looks at it.
    #[serde(default, rename = "devcap2_raw")]
    _devcap2_raw: Option<String>,
    physfn: Option<String>,
    iommu_group: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GuestPort {
    port: String,
    port_model: String,
    functions: Vec<GuestFunction>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GuestFunction {
    host: String,
    addr: String,
    multifunction: bool,
    #[serde(default)]
    via: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(
    clippy::struct_field_names,
    reason = "these are the names in the vectors"
)]
struct Completer {
    comp32: bool,
    comp64: bool,
    comp128: bool,
}

impl Completer {
    fn widths(&self) -> Widths {
        [
            (Width::W32, self.comp32),
            (Width::W64, self.comp64),
            (Width::W128, self.comp128),
        ]
        .into_iter()
        .filter_map(|(width, set)| set.then_some(width))
        .collect()
    }
}

fn at(addr: &str) -> Sbdf {
    addr.parse().unwrap()
}

fn register(text: &str) -> u32 {
    u32::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}

fn registers(function: &HostFunction) -> Registers {
    let port_type = match function.port_type.as_str() {
        "none" => {
            assert_eq!(function.exp_version, 0);
            return Registers::NotExpress;
        }
        "endpoint" => PortType::Endpoint,
        "legacy_endpoint" => PortType::LegacyEndpoint,
        "root_port" => PortType::RootPort,
        "upstream" => PortType::UpstreamPort,
        "downstream" => PortType::DownstreamPort,
        "pci_bridge" => PortType::PcieToPciBridge,
        "rc_endpoint" => PortType::IntegratedEndpoint,
        other => panic!("port type {other}"),
    };
    let devcap2 = function.devcap2.as_deref().map(register).map(DevCap2);
    let devctl2 = function
        .devctl2
        .as_deref()
        .map(|text| DevCtl2(u16::try_from(register(text)).unwrap()));
    assert_eq!(devcap2.is_some(), function.exp_version >= 2);
    assert_eq!(devctl2.is_some(), function.exp_version >= 2);
    Registers::Express(Express {
        version: function.exp_version,
        port_type,
        devcap2,
        devctl2,
    })
}

fn topology(row: &Row) -> Topology {
    row.host
        .iter()
        .map(|function| Function {
            addr: at(&function.addr),
            vendor: 0,
            device: 0,
            subsystem: None,
            class: 0,
            parent: function.parent.as_deref().map(at),
            physfn: function.physfn.as_deref().map(at),
            iommu_group: function.iommu_group,
            driver: None,
            reset_methods: None,
            registers: registers(function),
        })
        .collect()
}

/// The guest's functions in order, each with its place.
fn guest(row: &Row) -> Vec<(GuestPlace, Sbdf)> {
    let mut functions = Vec::new();
    for port in &row.guest {
        for (number, function) in port.functions.iter().enumerate() {
            let (bus, upstream) = match function.via.last().map(String::as_str) {
                None => match port.port_model.as_str() {
                    "root_bus" => (port.port.clone(), Upstream::RootBus),
                    "pcie-root-port" | "ioh3420" => (port.port.clone(), Upstream::RootPort),
                    other => panic!("port model {other}"),
                },
                // One downstream port for each function.
                Some("xio3130-downstream") => {
                    (format!("{}-{number}", port.port), Upstream::SwitchPort)
                }
                Some("pcie-pci-bridge") => (format!("{}-bridge", port.port), Upstream::Bridge),
                Some(other) => panic!("via {other}"),
            };
            let (slot, in_slot) = function.addr.split_once('.').unwrap();
            functions.push((
                GuestPlace {
                    bus,
                    upstream,
                    slot: u8::from_str_radix(slot, 16).unwrap(),
                    function: in_slot.parse().unwrap(),
                    multifunction: function.multifunction,
                },
                at(&function.host),
            ));
        }
    }
    functions
}

/// DEVCTL2 as it was before the guest started.
fn control(topology: &Topology, addr: Sbdf) -> Option<DevCtl2> {
    match topology.get(addr).unwrap().registers {
        Registers::Express(express) => express.devctl2,
        Registers::NotExpress => None,
        Registers::Unreadable(_) => panic!("{addr}"),
    }
}

/// What vfio-pci reports under exactly this revision, from the rule below [`host_answer`].
fn reported(topology: &Topology, addr: Sbdf, revision: Revision) -> Widths {
    let pdev = topology.physical(addr);
    let Registers::Express(express) = topology.get(pdev).unwrap().registers else {
        return Widths::NONE;
    };
    express
        .devcap2
        .map_or(Widths::NONE, DevCap2::atomic_op_completer)
        .iter()
        .filter(|width| enable_atomic_ops_to_root(&trace(topology, pdev), *width, revision).is_ok())
        .collect()
}

#[derive(Default)]
struct Count {
    rows: usize,
    ports: usize,
    requesters: usize,
    failed_starts: usize,
    differences: String,
}

fn compare(vectors: &str, revision: Revision) -> Count {
    let mut count = Count::default();
    for line in vectors.lines() {
        let row: Row = serde_json::from_str(line).unwrap();
        count.rows += 1;
        if row.error.is_some() {
            // The guest did not start, so there is nothing to compare with.
            assert!(row.measured.is_empty(), "{}", row.name);
            assert!(row.requester_enabled.is_empty(), "{}", row.name);
            count.failed_starts += 1;
            continue;
        }
        let kernel = Kernel::parse(&row.kernel);
        assert_eq!(kernel.revisions(), [revision], "{}", row.kernel);
        let version = Version::parse(&row.qemu);
        assert!(version.verified(), "{}", row.qemu);
        let topology = topology(&row);

        let mut functions = Vec::new();
        for (place, host) in guest(&row) {
            let answer = host_answer(&topology, host, &kernel);
            assert_eq!(answer.uncertain, None, "{}", row.name);
            assert_eq!(
                answer.widths,
                reported(&topology, host, revision),
                "{} {host}",
                row.name
            );
            assert!(
                answer.denial.is_some() || !answer.widths.is_empty(),
                "{} {host}",
                row.name
            );
            functions.push((place, host, answer.widths));
        }

        for (port, measured) in &row.measured {
            let predicted = advertised(
                port,
                functions.iter().map(|(place, _, widths)| (place, *widths)),
                version.revision(),
            );
            count.ports += 1;
            if predicted.unwrap_or(Widths::NONE) != measured.widths() {
                let _ = writeln!(
                    count.differences,
                    "{}: {port} advertises {}, predicted {predicted:?}",
                    row.name,
                    measured.widths()
                );
            }
        }

        for (addr, enabled) in &row.requester_enabled {
            let addr = at(addr);
            let before = control(&topology, addr);
            assert_eq!(before.is_some(), enabled.is_some(), "{} {addr}", row.name);
            let (Some(before), Some(enabled)) = (before, *enabled) else {
                continue;
            };
            let predicted = before.atomic_op_requester_enable()
                || functions.iter().any(|(_, host, widths)| {
                    topology.physical(*host) == addr && !widths.is_empty()
                });
            count.requesters += 1;
            if predicted != enabled {
                let _ = writeln!(
                    count.differences,
                    "{}: requester enable of {addr} is {enabled}, predicted {predicted}",
                    row.name
                );
            }
        }
    }
    println!(
        "{revision:?}: {} rows, {} ports, {} requesters, {} starts that failed",
        count.rows, count.ports, count.requesters, count.failed_starts
    );
    count
}

#[test]
fn linux_6_12_with_qemu_10_0_agrees_in_every_row() {
    let count = compare(
        include_str!("../vectors/atomicops-lab.jsonl"),
        Revision::AlreadyEnabledAccepted,
    );
    assert_eq!(count.differences, "");
    assert_eq!((count.rows, count.failed_starts), (113, 1));
}

#[test]
fn linux_7_2_with_qemu_11_1_agrees_in_every_row() {
    let count = compare(
        include_str!("../vectors/atomicops-lab-7.2.jsonl"),
        Revision::IntegratedRefused,
    );
    assert_eq!(count.differences, "");
    assert_eq!((count.rows, count.failed_starts), (93, 1));
}

/// The rows tell the revisions apart: under any other one, some row comes out differently.
#[test]
fn other_revisions_do_not_agree() {
    for (vectors, measured) in [
        (
            include_str!("../vectors/atomicops-lab.jsonl"),
            Revision::AlreadyEnabledAccepted,
        ),
        (
            include_str!("../vectors/atomicops-lab-7.2.jsonl"),
            Revision::IntegratedRefused,
        ),
    ] {
        let rows: Vec<Row> = vectors
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        for revision in Revision::ALL {
            if revision == measured {
                continue;
            }
            let differs = rows.iter().any(|row| {
                let topology = topology(row);
                guest(row).iter().any(|(_, host)| {
                    reported(&topology, *host, revision) != reported(&topology, *host, measured)
                })
            });
            assert!(differs, "{revision:?} answers as {measured:?} everywhere");
        }
    }
}
