//! What the program decodes from registers is what pciutils decodes from the same bytes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use pve_atomicops::host::Host;
use pve_atomicops::pci::express::{Express, PortType};
use pve_atomicops::pci::{Registers, Sbdf, Width, Widths};

use crate::support::{HostTree, capture, example_hosts};

/// The lines of interest for each function, in the words of `lspci`.
type Decoded = BTreeMap<String, Vec<String>>;

/// What `lspci` says about the functions of a tree.
fn by_lspci(root: &Path) -> Decoded {
    let output = Command::new("lspci")
        .arg("-O")
        .arg(format!("sysfs.path={}", root.join("sys/bus/pci").display()))
        .args(["-D", "-n", "-vv"])
        .env("LC_ALL", "C")
        .output()
        .expect("this test needs lspci: install the package pciutils");
    let errors = String::from_utf8_lossy(&output.stderr);
    // It looks for the modules of the running kernel too, which a container does not have.
    let complaints: Vec<_> = errors
        .lines()
        .filter(|line| !line.contains("libkmod"))
        .collect();
    assert!(
        output.status.success() && complaints.is_empty(),
        "lspci: {errors}"
    );

    let mut decoded = Decoded::new();
    let mut current = String::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        if line.starts_with(|letter: char| letter.is_ascii_hexdigit()) {
            line.split(' ').next().unwrap().clone_into(&mut current);
            decoded.insert(current.clone(), Vec::new());
            continue;
        }
        let text = line.trim();
        let wanted = if let Some((_, express)) = text.split_once("] Express (v") {
            // "2) Root Port (Slot+), MSI 00"
            let (version, rest) = express.split_once(") ").unwrap();
            let kind = rest.split(", MSI").next().unwrap();
            let kind = kind.split(" (Slot").next().unwrap();
            format!("v{version} {kind}")
        } else if text.starts_with("AtomicOpsCap:") || text.starts_with("AtomicOpsCtl:") {
            text.to_owned()
        } else {
            continue;
        };
        decoded
            .get_mut(&current)
            .expect("a function's first line")
            .push(wanted);
    }
    decoded
}

/// What the program says about them, in the same words.
fn by_us(host: &Host) -> Decoded {
    let names = host.pci_names().unwrap();
    let addrs = names.iter().map(|name| name.parse::<Sbdf>().unwrap());
    let topology = host.topology(addrs);
    assert_eq!(topology.iter().count(), names.len());
    topology
        .iter()
        .map(|function| {
            let lines = match &function.registers {
                Registers::Express(express) => {
                    in_words_of_lspci(express, has_memory(host, function.addr))
                }
                Registers::NotExpress => Vec::new(),
                Registers::Unreadable(reason) => panic!("{}: {reason}", function.addr),
            };
            (function.addr.to_string(), lines)
        })
        .collect()
}

fn in_words_of_lspci(express: &Express, has_memory: bool) -> Vec<String> {
    let kind = match express.port_type {
        PortType::Endpoint => "Endpoint",
        PortType::LegacyEndpoint => "Legacy Endpoint",
        PortType::RootPort => "Root Port",
        PortType::UpstreamPort => "Upstream Port",
        PortType::DownstreamPort => "Downstream Port",
        PortType::PcieToPciBridge => "PCI-Express to PCI/PCI-X Bridge",
        PortType::PciToPcieBridge => "PCI/PCI-X to PCI-Express Bridge",
        PortType::IntegratedEndpoint => "Root Complex Integrated Endpoint",
        PortType::EventCollector => "Root Complex Event Collector",
        PortType::Reserved(_) => "Unknown type",
    };
    let mut lines = vec![format!("v{} {kind}", express.version)];
    let (Some(cap), Some(ctl)) = (express.devcap2, express.devctl2) else {
        return lines;
    };
    let sign = |bit: bool| if bit { '+' } else { '-' };
    let (root_port, switch_port, endpoint) = match express.port_type {
        PortType::RootPort => (true, false, false),
        PortType::UpstreamPort | PortType::DownstreamPort => (false, true, false),
        PortType::Endpoint | PortType::LegacyEndpoint | PortType::IntegratedEndpoint => {
            (false, false, true)
        }
        _ => (false, false, false),
    };
    let mut words = vec!["AtomicOpsCap:".to_owned()];
    if root_port || switch_port {
        words.push(format!("Routing{}", sign(cap.atomic_op_routing())));
    }
    // Completing a request takes memory, so lspci looks for a BAR first.
    if root_port || has_memory {
        words.push(cap.atomic_op_completer().to_string());
    }
    if words.len() > 1 {
        lines.push(words.join(" "));
    }
    let mut words = vec!["AtomicOpsCtl:".to_owned()];
    if root_port || endpoint {
        words.push(format!("ReqEn{}", sign(ctl.atomic_op_requester_enable())));
    }
    if root_port || switch_port {
        words.push(format!(
            "EgressBlck{}",
            sign(ctl.atomic_op_egress_blocking())
        ));
    }
    if words.len() > 1 {
        lines.push(words.join(" "));
    }
    lines
}

/// Whether a function has a memory BAR, from its `resource` file: lines of start, end and flags.
fn has_memory(host: &Host, addr: Sbdf) -> bool {
    const IORESOURCE_MEM: u64 = 0x200;
    let path = format!("/sys/bus/pci/devices/{addr}/resource");
    let text = String::from_utf8(host.bytes(&path, 4096).unwrap().unwrap()).unwrap();
    text.lines().take(6).any(|line| {
        let flags = line.rsplit("0x").next().unwrap();
        u64::from_str_radix(flags, 16).unwrap() & IORESOURCE_MEM != 0
    })
}

fn assert_same(name: &str, root: &Path) -> Decoded {
    let (theirs, ours) = (by_lspci(root), by_us(&Host::at(root).unwrap()));
    for (addr, lines) in &theirs {
        assert_eq!(ours.get(addr), Some(lines), "{name}: {addr}");
    }
    assert_eq!(ours.len(), theirs.len(), "{name}");
    ours
}

#[test]
fn example_hosts_decode_as_lspci_decodes_them() {
    for (name, tree) in example_hosts::all() {
        let decoded = assert_same(name, tree.path());
        assert!(
            decoded.len() >= 10,
            "{name} has {} functions",
            decoded.len()
        );
    }
}

#[test]
fn a_captured_machine_decodes_as_lspci_decodes_it() {
    let directory = tempfile::tempdir().unwrap();
    capture::unpack(directory.path());
    let decoded = assert_same("lab-q35-switch", directory.path());
    assert_eq!(decoded.len(), 48);
    let atomic = decoded.values().filter(|lines| lines.len() == 3).count();
    assert!(atomic > 30, "only {atomic} functions have DEVCAP2");
}

/// Every bit on its own, on every kind of port.
#[test]
fn each_bit_is_the_one_that_lspci_means() {
    let widths = |width: Width| Widths::NONE.with(width);
    let mut tree = HostTree::new();
    let mut bus = 0x10;
    for (number, width) in (0..).zip(Width::ALL) {
        tree = tree
            .root_port(&format!("0000:00:{:02x}.0", 1 + number), bus, |port| {
                port.completes(widths(width)).routes(number == 0)
            })
            .upstream_port(&format!("0000:{bus:02x}:00.0"), bus + 1, |port| {
                port.routes(number == 1)
            })
            .downstream_port(&format!("0000:{:02x}:00.0", bus + 1), bus + 2, |port| {
                port.routes(number == 2).blocks_egress()
            })
            .gpu(&format!("0000:{:02x}:00.0", bus + 2), |gpu| {
                gpu.completes(widths(width)).requester_enabled()
            })
            .legacy_endpoint(&format!("0000:{:02x}:00.1", bus + 2), |device| {
                device.completes(widths(width))
            })
            .integrated_endpoint(&format!("0000:00:{:02x}.0", 0x10 + number), |device| {
                device.completes(widths(width))
            });
        bus += 3;
    }
    let tree = tree
        .root_port("0000:00:08.0", 0x30, |port| {
            port.blocks_egress().requester_enabled()
        })
        .pci_bridge("0000:30:00.0", 0x31, |bridge| bridge.devcap2(0x0000_03c0))
        .conventional("0000:31:01.0", |device| device)
        .pci_bridge("0000:00:0b.0", 0x33, |bridge| {
            bridge.memory().devcap2(0x0000_0180)
        })
        .root_port("0000:00:09.0", 0x32, |port| port.express_version(1))
        .endpoint("0000:32:00.0", |device| device.express_version(1))
        .endpoint("0000:00:0a.0", |device| {
            device.port_type(10).devcap2(0xffff_ff7f)
        })
        .endpoint("10000:e1:00.0", |device| {
            device.devcap2(0x0000_0380).devctl2(0xff40)
        });
    assert_same("single bits", tree.path());
}
