//! The steps between a VM's configuration and its report, each alone and in memory.
//!
//! `cargo bench --bench micro`; `-- plan` for one of them.

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::hint::black_box;

use pve_atomicops::examine::Survey;
use pve_atomicops::host::Host;
use pve_atomicops::pci::config_space::walk;
use pve_atomicops::pci::{Sbdf, Topology};
use pve_atomicops::plan::{self, Candidate, Guest, Member};
use pve_atomicops::report::{escape, text};
use pve_atomicops::rules::linux::Kernel;
use pve_atomicops::rules::vfio::host_answer;
use pve_atomicops::settings::{Settings, Strategy};
use pve_atomicops::verdict::Reason;
use pve_atomicops::vmconf::document::Document;
use pve_atomicops::vmconf::hostpci::Hostpci;
use pve_atomicops::vmconf::{HostpciIndex, Vmid};
use support::program::example;

fn main() {
    divan::main();
}

const VALUE: &str = "host=0000:0b:00,pcie=1,x-vga=1,rombar=0,romfile=card.rom";

fn config() -> Vec<u8> {
    std::fs::read(example("x399-two-7900xt").join("etc/pve/nodes/pve1/qemu-server/101.conf"))
        .expect("an example")
}

fn host() -> Host {
    Host::at(&example("x399-two-7900xt")).expect("an example")
}

fn at(addr: &str) -> Sbdf {
    addr.parse().expect("an address")
}

fn vmid() -> Vmid {
    Vmid::new(101).expect("a VM")
}

fn topology() -> Topology {
    host().topology(["0000:0b:00.0", "0000:0b:00.1"].map(at))
}

/// Reading a configuration as Proxmox does.
#[divan::bench]
fn parse(bencher: divan::Bencher) {
    let bytes = config();
    bencher.bench(|| Document::parse(black_box(&bytes)).decode());
}

/// One `hostpciN` value by its schema.
#[divan::bench]
fn property_string() -> bool {
    Hostpci::parse(black_box(VALUE)).is_ok()
}

/// From the header of a GPU to its PCI Express registers.
#[divan::bench]
fn capability_walk(bencher: divan::Bencher) {
    let device =
        "sys/devices/pci0000:00/0000:00:03.1/0000:09:00.0/0000:0a:00.0/0000:0b:00.0/config";
    let bytes = std::fs::read(example("x399-two-7900xt").join(device)).expect("an example");
    bencher.bench(|| {
        walk(|offset, into: &mut [u8]| {
            let rest = black_box(&bytes)
                .get(usize::from(offset)..)
                .unwrap_or_default();
            let got = rest.len().min(into.len());
            into[..got].copy_from_slice(&rest[..got]);
            Ok::<_, std::io::Error>(got)
        })
    });
}

/// What vfio-pci would report of one GPU, under each revision of the kernel.
#[divan::bench]
fn rules(bencher: divan::Bencher) {
    let (topology, kernel) = (topology(), Kernel::parse("6.17.2-1-pve"));
    bencher.bench(|| host_answer(black_box(&topology), at("0000:0b:00.0"), &kernel));
}

/// The repair of one entry.
#[divan::bench(args = [Strategy::Explicit, Strategy::Split])]
fn plan(bencher: divan::Bencher, strategy: Strategy) {
    let options = Hostpci::parse(VALUE).expect("a value");
    let index = HostpciIndex::from_key("hostpci0").expect("an index");
    let topology = topology();
    let member = |addr: &str, needs_atomic_ops| Member {
        addr: at(addr),
        spelling: addr.to_owned(),
        needs_atomic_ops,
        iommu_group: topology
            .get(at(addr))
            .and_then(|function| function.iommu_group),
    };
    let guest = Guest {
        vmid: vmid(),
        windows: false,
        taken: BTreeSet::from([index]),
        on_port: BTreeSet::from([index]),
    };
    let candidates = [Candidate {
        index,
        value: VALUE,
        options: &options,
        reason: Reason::Multifunction,
        members: vec![member("0000:0b:00.0", true), member("0000:0b:00.1", false)],
        subject: 0,
        reset_methods: Some(vec!["bus".to_owned()]),
    }];
    bencher.bench(|| plan::plan(black_box(&guest), &candidates, strategy));
}

/// Everything for one VM on a host that is read already.
#[divan::bench]
fn examine(bencher: divan::Bencher) {
    let (host, bytes, settings) = (host(), config(), Settings::default());
    let survey = Survey::new(&host);
    bencher.bench_local(|| survey.examine(vmid(), black_box(&bytes), &settings));
}

/// The same, and all that is read of the host for it.
#[divan::bench]
fn read_and_examine(bencher: divan::Bencher) {
    let (bytes, settings) = (config(), Settings::default());
    bencher.bench_local(|| {
        let host = host();
        Survey::new(&host).examine(vmid(), black_box(&bytes), &settings)
    });
}

/// The report of one VM as JSON, and as lines of the task log.
#[divan::bench(args = ["json", "text"])]
fn report(bencher: divan::Bencher, form: &str) {
    let host = host();
    let examined = Survey::new(&host).examine(vmid(), &config(), &Settings::default());
    let vm = examined.expect("a report").report;
    bencher.bench(|| match form {
        "json" => escape::json(black_box(&vm)).expect("JSON").len(),
        _ => text::findings(black_box(&vm)).len(),
    });
}
