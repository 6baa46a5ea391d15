//! From a VM's configuration to everything that is printed about it: no control character comes through, a line of the
//! task log is a warning or is indented, JSON reads back, and a command for copying has one program and plain words.
//!
//! Input: the policy's choices, a device's name up to NUL, the mapping file up to NUL, and the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pve_atomicops::archive::{Node, Tree};
use pve_atomicops::commands::check::Names;
use pve_atomicops::examine::Survey;
use pve_atomicops::host::Host;
use pve_atomicops::pci::express::{DevCap2, DevCtl2, Express, PortType};
use pve_atomicops::pci::lspci::Listing;
use pve_atomicops::pci::{Function, Registers, Sbdf, Topology};
use pve_atomicops::report::text::Style;
use pve_atomicops::report::topology::{self, View};
use pve_atomicops::report::{escape, text};
use pve_atomicops::settings::{Devices, Settings, Strategy};
use pve_atomicops::vmconf::Vmid;

use super::escape::assert_harmless;
use super::input::Input;
use super::shell;

/// The property.
pub fn holds(data: &[u8]) {
    let mut input = Input::new(data);
    let choices = input.byte();
    let name = input.text();
    let mapping = input.until_nul();
    let config = input.rest();
    let Some(vmid) = Vmid::new(101) else {
        panic!("101 is an ID");
    };
    let settings = Settings {
        strategy: [Strategy::Explicit, Strategy::Split, Strategy::Auto][usize::from(choices % 3)],
        devices: if choices & 64 == 0 {
            Devices::Gpu
        } else {
            Devices::Any
        },
        min_gpus: u32::from(choices >> 7),
        ..Settings::default()
    };
    let listing = listing(&name);
    let host = Host::unpacked(tree(mapping), Path::new("host")).with_listing(listing.clone());
    let survey = Survey::new(&host);
    let Ok(examined) = survey.examine(vmid, config, &settings) else {
        return;
    };
    let mut vm = examined.report.clone();
    Names::new(&host).fill(&mut vm);

    for line in text::findings(&vm) {
        assert_harmless(&line, "");
        assert!(
            line.starts_with("WARN: VM 101") || line.starts_with("  "),
            "{line}"
        );
    }
    for entry in &vm.entries {
        for command in entry.fix.iter().flat_map(|fix| &fix.commands) {
            let words = shell::split(command);
            let program = words
                .as_ref()
                .map(|words| words.first().map(String::as_str));
            assert!(
                matches!(program, Ok(Some("qm" | "pvesh"))),
                "{command}: {words:?}"
            );
        }
    }
    let Ok(mut report) = survey.report() else {
        panic!("a host with a name and a kernel");
    };
    let uses = topology::uses(std::slice::from_ref(&vm));
    report.vms.push(vm);
    let style = Style::default();
    for shown in [text::check(&report, style), text::table(&report, style)] {
        assert_harmless(&shown, "\n");
    }
    json(&report);
    let shown: BTreeSet<_> = listing
        .topology
        .iter()
        .map(|function| function.addr)
        .collect();
    let view = View {
        node: survey.node().ok(),
        topology: &listing.topology,
        kernel: survey.kernel(),
        names: &listing.names,
        uses: &uses,
        shown: &shown,
        note: None,
    };
    for vm in &report.vms {
        assert_harmless(&topology::tree(&view, style), "\n");
        assert_harmless(&topology::side_by_side(&view, vm, style), "\n");
        assert_harmless(&topology::dot(&view, Some(vm)), "\n");
        json(&topology::json(&view, Some(vm)));
    }
}

fn json(value: &impl serde::Serialize) {
    let Ok(written) = escape::json(value) else {
        panic!("no JSON");
    };
    assert_harmless(&written, "\n");
    let read: Result<serde_json::Value, _> = serde_json::from_str(&written);
    assert_eq!(read.ok(), serde_json::to_value(value).ok());
}

fn tree(mapping: &[u8]) -> Tree {
    let mut tree = Tree::default();
    for (path, content) in [
        ("/etc/hostname", b"pve1\n".as_slice()),
        ("/proc/sys/kernel/osrelease", b"6.17.2-1-pve\n"),
        (
            "/var/lib/dpkg/status",
            b"Package: pve-qemu-kvm\nStatus: install ok installed\nVersion: 11.0.2-1\n",
        ),
        ("/etc/pve/mapping/pci.cfg", mapping),
    ] {
        assert!(
            tree.insert(path.to_owned(), Node::File(content.to_vec()))
                .is_ok()
        );
    }
    tree
}

/// Two cards of two functions, each below a root port of its own, and one behind a switch that does not route.
fn listing(name: &str) -> Listing {
    let mut topology = Topology::default();
    let mut names = BTreeMap::new();
    for (addr, parent, class, port_type, devcap2) in [
        ("0000:00:03.1", None, 0x06_0400, PortType::RootPort, 0x180),
        (
            "0000:0b:00.0",
            Some("0000:00:03.1"),
            0x03_0000,
            PortType::LegacyEndpoint,
            0x380,
        ),
        (
            "0000:0b:00.1",
            Some("0000:00:03.1"),
            0x04_0300,
            PortType::Endpoint,
            0x380,
        ),
        ("0000:40:03.1", None, 0x06_0400, PortType::RootPort, 0x180),
        (
            "0000:44:00.0",
            Some("0000:40:03.1"),
            0x03_0000,
            PortType::LegacyEndpoint,
            0x180,
        ),
        (
            "0000:44:00.1",
            Some("0000:40:03.1"),
            0x04_0300,
            PortType::Endpoint,
            0x180,
        ),
        ("0000:50:01.0", None, 0x06_0400, PortType::RootPort, 0x080),
        (
            "0000:51:00.0",
            Some("0000:50:01.0"),
            0x06_0400,
            PortType::UpstreamPort,
            0x000,
        ),
        (
            "0000:52:00.0",
            Some("0000:51:00.0"),
            0x06_0400,
            PortType::DownstreamPort,
            0x040,
        ),
        (
            "0000:53:00.0",
            Some("0000:52:00.0"),
            0x12_0000,
            PortType::Endpoint,
            0x380,
        ),
    ] {
        let at = |addr: &str| addr.parse::<Sbdf>().ok();
        let Some(addr) = at(addr) else {
            panic!("an address");
        };
        topology.insert(Function {
            addr,
            vendor: 0x1002,
            device: 0x744c,
            subsystem: Some((0x1da2, 0xe471)),
            class,
            parent: parent.and_then(at),
            physfn: None,
            iommu_group: Some(u32::from(addr.bus())),
            driver: Some("vfio-pci".to_owned()),
            reset_methods: Some(vec!["bus".to_owned()]),
            registers: Registers::Express(Express {
                version: 2,
                port_type,
                devcap2: Some(DevCap2(devcap2)),
                devctl2: Some(DevCtl2(0)),
            }),
        });
        names.insert(addr, name.to_owned());
    }
    Listing { topology, names }
}
