//! A host read from the text of the real `lspci` is the host that its `sysfs` shows.

use std::fs;
use std::path::Path;
use std::process::Command;

use pve_atomicops::host::Host;
use pve_atomicops::pci::express::PortType;
use pve_atomicops::pci::lspci::{Listing, parse};
use pve_atomicops::pci::{Function, Registers, Sbdf, Topology};
use pve_atomicops::rules::linux::Kernel;
use pve_atomicops::rules::vfio::host_answer;
use serde_json::Value;

use crate::support::program::{bare, example, program};
use crate::support::{capture, example_hosts};

/// What `lspci` says about the functions of a tree.
fn lspci(root: &Path, options: &[&str]) -> String {
    let output = Command::new("lspci")
        .arg("-O")
        .arg(format!("sysfs.path={}", root.join("sys/bus/pci").display()))
        .args(options)
        .env("LC_ALL", "C")
        .output()
        .expect("this test needs lspci: install the package pciutils");
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn by_sysfs(root: &Path) -> Topology {
    let host = Host::at(root).unwrap();
    let names = host.pci_names().unwrap();
    let topology = host.topology(names.iter().map(|name| name.parse::<Sbdf>().unwrap()));
    assert_eq!(topology.iter().count(), names.len());
    topology
        .iter()
        .cloned()
        .map(|mut function| {
            function.subsystem = host.subsystem(function.addr).unwrap();
            function
        })
        .collect()
}

/// Lines of the hexadecimal part.
fn is_hex(line: &str) -> bool {
    line.split_once(": ")
        .is_some_and(|(offset, _)| offset.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn only(text: &str, keep: impl Fn(&str) -> bool) -> String {
    let lines: Vec<_> = text
        .split_inclusive('\n')
        .filter(|line| keep(line))
        .collect();
    lines.concat()
}

/// The listing has the functions of `sysfs`, each as `expected` leaves it.
fn assert_same(what: &str, listing: &Listing, sysfs: &Topology, expected: impl Fn(&mut Function)) {
    assert_eq!(
        listing.topology.iter().count(),
        sysfs.iter().count(),
        "{what}"
    );
    for function in sysfs.iter() {
        let mut function = function.clone();
        // No lspci tells it.
        function.reset_methods = None;
        expected(&mut function);
        let mut got = listing.topology.get(function.addr).cloned();
        for function in got.iter_mut().chain([&mut function]) {
            if let Registers::Unreadable(why) = &mut function.registers {
                // Which of two reasons comes first depends on the names in the installed pci.ids.
                why.clear();
            }
        }
        assert_eq!(got, Some(function), "{what}");
    }
}

/// Keeps of the registers what decoded text tells.
fn decoded(function: &mut Function) {
    let Registers::Express(express) = &mut function.registers else {
        return;
    };
    if let (Some(cap), Some(ctl)) = (&mut express.devcap2, &mut express.devctl2) {
        cap.0 &= 0x3c0;
        ctl.0 &= 0xc0;
    }
}

/// `complete` says whether the tree has `resource` files: without memory regions, lspci prints no completer bits of
/// anything but a root port.
fn compare(name: &str, root: &Path, complete: bool) {
    let mut sysfs = by_sysfs(root);
    if !complete {
        // Physical functions of these trees end before the SR-IOV capability.
        let virtual_functions: Vec<_> = sysfs
            .iter()
            .filter(|function| function.physfn.is_some())
            .cloned()
            .collect();
        for mut function in virtual_functions {
            let why = "a virtual function, and the text does not tell of which physical function";
            function.registers = Registers::Unreadable(why.into());
            function.physfn = None;
            sysfs.insert(function);
        }
    }
    for options in [
        &["-D", "-nn", "-vvv", "-xxxx"][..],
        &["-nn", "-vvv", "-xxxx"],
        &["-D", "-n", "-vv", "-xxx"],
        &["-D", "-vvv", "-xxxx"],
    ] {
        let listing = parse(&lspci(root, options)).unwrap();
        assert_same(
            &format!("{name} {options:?}"),
            &listing,
            &sysfs,
            |function| {
                // Their configuration space reads ffff:ffff.
                let numbers = options.iter().any(|option| option.starts_with("-n"));
                if !numbers && matches!(function.registers, Registers::Unreadable(_)) {
                    function.vendor = 0xffff;
                    function.device = 0xffff;
                }
            },
        );
    }
    let full = lspci(root, &["-D", "-nn", "-vvv", "-xxxx"]);
    let titles = |line: &str| line.starts_with(|c: char| c.is_ascii_hexdigit());
    let bytes = parse(&only(&full, |line| is_hex(line) || titles(line))).unwrap();
    assert_same(&format!("{name}, bytes only"), &bytes, &sysfs, |function| {
        function.iommu_group = None;
        function.driver = None;
    });
    let told = |function: &mut Function| {
        let before = function.registers.clone();
        decoded(function);
        if let Registers::Express(express) = before
            && !complete
            && express.version > 1
            && matches!(
                express.port_type,
                PortType::Endpoint | PortType::LegacyEndpoint
            )
        {
            let why = "the text does not show AtomicOpsCap; run `lspci -D -vvv -xxxx` as root";
            function.registers = Registers::Unreadable(why.into());
        }
    };
    let text = parse(&only(&full, |line| !is_hex(line))).unwrap();
    assert_same(&format!("{name}, text only"), &text, &sysfs, told);
    // Without root, only the header can be dumped.
    let header = parse(&lspci(root, &["-D", "-nn", "-vvv", "-x"])).unwrap();
    assert_same(&format!("{name}, header and text"), &header, &sysfs, told);
    let nothing = parse(&lspci(root, &["-D", "-nn", "-x"])).unwrap();
    for function in nothing.topology.iter() {
        let known = sysfs.get(function.addr).unwrap();
        // A status without a list of capabilities says so in the header.
        let expected = known.registers == Registers::NotExpress;
        let got = matches!(function.registers, Registers::Unreadable(_));
        assert!(
            got || expected,
            "{name}: {} is {:?}",
            function.addr,
            function.registers
        );
    }
}

#[test]
fn example_hosts_are_the_same() {
    for (name, tree) in example_hosts::all() {
        compare(name, tree.path(), false);
    }
}

#[test]
fn a_captured_machine_is_the_same() {
    let directory = tempfile::tempdir().unwrap();
    capture::unpack(directory.path());
    compare("lab-q35-switch", directory.path(), true);
}

/// What the rules make of it, under every kernel.
#[test]
fn answers_are_the_same_from_text_alone() {
    let directory = tempfile::tempdir().unwrap();
    capture::unpack(directory.path());
    let sysfs = by_sysfs(directory.path());
    let full = lspci(directory.path(), &["-D", "-vvv"]);
    let listing = parse(&full).unwrap();
    for release in [
        "6.12.1",
        "6.12.100",
        "6.12.117",
        "7.2.13",
        "6.17.2-1-pve",
        "6.4.0",
    ] {
        let kernel = Kernel::parse(release);
        for function in sysfs.iter() {
            let expected = host_answer(&sysfs, function.addr, &kernel);
            assert_eq!(
                host_answer(&listing.topology, function.addr, &kernel),
                expected,
                "{release}"
            );
        }
    }
}

fn json(mut command: Command) -> Value {
    let output = command.args(["--format", "json"]).output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn check_gives_the_same_answer() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["x399-two-7900xt", "b550-chipset-slot"] {
        let root = example(name);
        let text = directory.path().join(name);
        fs::write(&text, lspci(&root, &["-D", "-nn", "-vvv", "-xxxx"])).unwrap();
        let mut with_text = program(&root);
        with_text.arg("check").arg("--lspci").arg(&text);
        let mut plain = program(&root);
        plain.arg("check");
        let mut expected = json(plain);
        // Without reset methods there is no warning about them.
        let mut got = json(with_text);
        for report in [&mut expected, &mut got] {
            for vm in report["vms"].as_array_mut().unwrap() {
                for entry in vm["entries"].as_array_mut().unwrap() {
                    if let Some(fix) = entry["fix"].as_object_mut() {
                        fix.remove("notes");
                    }
                }
            }
        }
        assert_eq!(got, expected, "{name}");
    }
}

#[test]
fn a_text_that_is_none_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("text");
    for (text, expected) in [
        ("hello\n", "not the output of lspci"),
        (
            "00:03.1 x\n00: 00\n",
            "line 2: expected 16 bytes at offset 0x000 of 0000:00:03.1",
        ),
    ] {
        fs::write(&file, text).unwrap();
        let output = bare()
            .arg("topology")
            .arg("--lspci")
            .arg(&file)
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(
            error.starts_with("error: --lspci ") && error.contains(expected),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1);
    }
    let output = bare()
        .args(["check", "--lspci"])
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--root"));
}
