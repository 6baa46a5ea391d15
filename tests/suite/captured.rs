//! The whole way from a captured machine's files to what its guests were measured to show.

use pve_atomicops::host::Host;
use pve_atomicops::pci::express::PortType;
use pve_atomicops::pci::{Registers, Sbdf, Topology, Width, Widths};
use pve_atomicops::rules::guest::{GuestPlace, Upstream};
use pve_atomicops::rules::linux::Kernel;
use pve_atomicops::rules::qemu::{Version, advertised};
use pve_atomicops::rules::vfio::host_answer;
use serde_json::Value;

use crate::support::capture;

fn text(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no string"))
}

fn addr(value: &Value) -> Option<Sbdf> {
    value.as_str().map(|text| text.parse().unwrap())
}

/// What the reader found about a function, in the words of the measurements.
fn described(topology: &Topology, addr: Sbdf) -> Value {
    let function = topology
        .get(addr)
        .unwrap_or_else(|| panic!("{addr} was not read"));
    let hex = |value: u32| format!("{value:#x}");
    let (kind, version, devcap2, devctl2) = match &function.registers {
        Registers::NotExpress => ("none", 0, None, None),
        Registers::Unreadable(reason) => panic!("{addr}: {reason}"),
        Registers::Express(express) => (
            match express.port_type {
                PortType::Endpoint => "endpoint",
                PortType::LegacyEndpoint => "legacy_endpoint",
                PortType::RootPort => "root_port",
                PortType::UpstreamPort => "upstream",
                PortType::DownstreamPort => "downstream",
                PortType::PcieToPciBridge => "pci_bridge",
                PortType::IntegratedEndpoint => "rc_endpoint",
                other => panic!("{addr} is a {other:?}"),
            },
            express.version,
            express.devcap2.map(|register| hex(register.0)),
            express.devctl2.map(|register| hex(register.0.into())),
        ),
    };
    serde_json::json!({
        "addr": addr.to_string(),
        "parent": function.parent.map(|parent| parent.to_string()),
        "port_type": kind,
        "exp_version": version,
        "devcap2": devcap2,
        "devctl2": devctl2,
        "physfn": function.physfn.map(|physfn| physfn.to_string()),
        "iommu_group": function.iommu_group,
    })
}

#[test]
fn every_guest_shows_what_its_hosts_files_let_expect() {
    let directory = tempfile::tempdir().unwrap();
    capture::unpack(directory.path());
    let host = Host::at(directory.path()).unwrap();
    let (mut with, mut without) = (0, 0);
    for row in capture::measurements() {
        let name = text(&row["name"]);
        assert_eq!(row["error"], Value::Null, "{name}");
        let [port] = row["guest"].as_array().unwrap().as_slice() else {
            panic!("{name} has several ports");
        };
        assert_eq!(port["port_model"], "pcie-root-port", "{name}");
        let [passed] = port["functions"].as_array().unwrap().as_slice() else {
            panic!("{name} has several functions");
        };
        assert_eq!(
            (&passed["addr"], &passed["multifunction"]),
            (&"0.0".into(), &false.into())
        );
        let function = addr(&passed["host"]).unwrap();

        // Only the function is asked for: its path and physical function come along.
        let mut topology = host.topology([function]);
        host.add_places(&mut topology);
        let above: Vec<Sbdf> = topology.iter().map(|function| function.addr).collect();
        let mut known = 0;
        for expected in row["host"].as_array().unwrap() {
            let addr = addr(&expected["addr"]).unwrap();
            // The rows tell of neighbours in the slot and the IOMMU group too.
            if above.contains(&addr) {
                let mut expected = expected.clone();
                expected.as_object_mut().unwrap().remove("devcap2_raw");
                assert_eq!(described(&topology, addr), expected, "{name}");
                known += 1;
            }
        }
        assert_eq!(
            known,
            above.len(),
            "{name}: a function that the row does not know was read"
        );

        let answer = host_answer(&topology, function, &Kernel::parse(text(&row["kernel"])));
        let place = GuestPlace {
            bus: text(&port["port"]).to_owned(),
            upstream: Upstream::RootPort,
            slot: 0,
            function: 0,
            multifunction: false,
        };
        let qemu = Version::parse(text(&row["qemu"])).revision();
        let predicted = advertised(&place.bus, [(&place, answer.widths)], qemu).unwrap();
        let bits = &row["measured"][&place.bus];
        let measured: Widths = [
            (Width::W32, "comp32"),
            (Width::W64, "comp64"),
            (Width::W128, "comp128"),
        ]
        .into_iter()
        .filter(|(_, key)| bits[key].as_bool().unwrap())
        .map(|(width, _)| width)
        .collect();
        assert_eq!(predicted, measured, "{name}");
        if measured.is_empty() {
            without += 1;
        } else {
            with += 1;
        }
    }
    assert_eq!((with, without), (5, 4));
}
