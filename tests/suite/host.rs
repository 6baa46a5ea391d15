//! Reading hosts: healthy ones, broken ones, and those that somebody made up.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use pve_atomicops::host::{Access, Cause, Host, Mdev, OwnershipProblem};
use pve_atomicops::pci::{Function, Registers, Sbdf, Widths};
use pve_atomicops::vmconf::Vmid;

use crate::support::host_tree::Device;
use crate::support::{HostTree, example_hosts};

const GPU: &str = "0000:0b:00.0";

fn addr(text: &str) -> Sbdf {
    text.parse().unwrap()
}

fn vmid(number: u32) -> Vmid {
    Vmid::new(number).unwrap()
}

fn function(tree: &HostTree, name: &str) -> Function {
    tree.host()
        .function(addr(name))
        .unwrap()
        .expect("the function is there")
}

fn unreadable(tree: &HostTree, name: &str) -> String {
    match function(tree, name).registers {
        Registers::Unreadable(reason) => reason,
        other => panic!("{name} was read: {other:?}"),
    }
}

/// A GPU below one root port.
fn small() -> HostTree {
    HostTree::new()
        .root_port("0000:00:03.1", 0x0b, |port| port.group(12))
        .gpu(GPU, |gpu| gpu.group(27))
}

fn device_place(name: &str) -> String {
    format!("sys/devices/pci0000:00/0000:00:03.1/{name}")
}

#[test]
fn a_function_is_read_with_all_that_belongs_to_it() {
    let tree = example_hosts::x399_two_7900xt();
    let gpu = function(&tree, GPU);
    assert_eq!((gpu.vendor, gpu.device), (0x1002, 0x744c));
    assert_eq!(gpu.subsystem, Some((0x1da2, 0xe471)));
    assert_eq!(gpu.class, 0x03_0000);
    assert_eq!(gpu.parent, Some(addr("0000:0a:00.0")));
    assert_eq!(gpu.physfn, None);
    assert_eq!(gpu.iommu_group, Some(27));
    assert_eq!(gpu.driver.as_deref(), Some("vfio-pci"));
    assert_eq!(gpu.reset_methods, Some(vec!["bus".to_owned()]));
    let Registers::Express(express) = gpu.registers else {
        panic!("{:?}", gpu.registers);
    };
    assert_eq!(
        express.devcap2.unwrap().atomic_op_completer(),
        Widths::W32_W64
    );

    assert_eq!(tree.host().function(addr("0000:0b:00.7")).unwrap(), None);
}

#[test]
fn the_bridges_above_are_read_once_even_if_several_functions_share_them() {
    let tree = example_hosts::x399_two_7900xt();
    let mut host = tree.host();
    host.record();
    let functions = [
        "0000:0b:00.0",
        "0000:0b:00.1",
        "0000:44:00.0",
        "0000:44:00.1",
    ];
    let topology = host.topology(functions.map(addr));
    let names: Vec<_> = topology
        .iter()
        .map(|function| function.addr.to_string())
        .collect();
    assert_eq!(
        names,
        [
            "0000:00:03.1",
            "0000:09:00.0",
            "0000:0a:00.0",
            "0000:0b:00.0",
            "0000:0b:00.1",
            "0000:40:03.1",
            "0000:42:00.0",
            "0000:43:00.0",
            "0000:44:00.0",
            "0000:44:00.1",
        ]
    );
    let above: Vec<_> = topology
        .above(addr("0000:44:00.1"))
        .map(|bridge| bridge.addr.to_string())
        .collect();
    assert_eq!(above, ["0000:43:00.0", "0000:42:00.0", "0000:40:03.1"]);

    let accesses = host.accesses();
    for name in &names {
        let config = format!("/sys/bus/pci/devices/{name}/config");
        let opened = accesses
            .iter()
            .filter(|access| **access == Access::File(config.clone()));
        assert_eq!(opened.count(), 1, "{config}");
    }
    let mut files: Vec<_> = accesses
        .iter()
        .filter(|access| matches!(access, Access::File(_)))
        .collect();
    assert_eq!(host.tally().files as usize, files.len());
    files.sort();
    files.dedup();
    assert_eq!(
        host.tally().files as usize,
        files.len(),
        "a file was opened twice"
    );
}

#[test]
fn configuration_space_is_read_sparingly_and_only_where_needed() {
    let tree = example_hosts::x399_two_7900xt();
    let mut host = tree.host();
    host.record();
    let topology = host.topology([addr(GPU)]);
    assert_eq!(topology.iter().count(), 4);
    let mut total = 0;
    for function in topology.iter() {
        let name = format!("/sys/bus/pci/devices/{}/config", function.addr);
        let mut bytes = 0;
        for access in host.accesses() {
            if let Access::Config {
                path,
                offset,
                length,
            } = access
                && path == name
            {
                assert!(offset + length <= 256);
                bytes += u32::from(length);
            }
        }
        assert!((32..=128).contains(&bytes), "{name}: {bytes} bytes");
        total += bytes;
    }
    assert_eq!(host.tally().config_bytes, total);
    // The other card sleeps on.
    assert!(
        !host
            .accesses()
            .iter()
            .any(|access| format!("{access:?}").contains("0000:44:"))
    );
}

#[test]
fn a_virtual_function_brings_its_physical_function_and_the_path_of_both() {
    let tree = example_hosts::epyc_instinct_sriov();
    let topology = tree.host().topology([addr("0000:26:02.1")]);
    let names: Vec<_> = topology
        .iter()
        .map(|function| function.addr.to_string())
        .collect();
    assert_eq!(names, ["0000:20:01.1", "0000:26:00.0", "0000:26:02.1"]);
    let part = topology.get(addr("0000:26:02.1")).unwrap();
    assert_eq!(part.physfn, Some(addr("0000:26:00.0")));
    assert_eq!(part.parent, Some(addr("0000:20:01.1")));
    // Its IDs in configuration space are all ones; those that count are in files.
    let place = tree.device_directory(part.addr).join("config");
    assert_eq!(fs::read(place).unwrap()[..4], [0xff; 4]);
    assert_eq!((part.vendor, part.device), (0x1002, 0x74b5));
    let Registers::Express(express) = part.registers else {
        panic!("{:?}", part.registers);
    };
    assert_eq!(express.devcap2.unwrap().atomic_op_completer(), Widths::NONE);
}

#[test]
fn segments_may_have_more_than_16_bits() {
    let tree = HostTree::new()
        .root_port("10000:e0:01.0", 0xe1, |port| port)
        .endpoint("10000:e1:00.0", |device| device.completes(Widths::ALL))
        .endpoint("0000:e1:00.0", |device| device);
    let host = tree.host();
    assert_eq!(
        host.pci_names().unwrap(),
        ["0000:e1:00.0", "10000:e0:01.0", "10000:e1:00.0"]
    );
    let topology = host.topology([addr("10000:e1:00.0"), addr("0000:e1:00.0")]);
    assert_eq!(
        topology.get(addr("10000:e1:00.0")).unwrap().parent,
        Some(addr("10000:e0:01.0"))
    );
    assert_eq!(topology.get(addr("0000:e1:00.0")).unwrap().parent, None);
}

#[test]
fn mediated_devices_are_recognised_by_proxmox_signs() {
    let tree = HostTree::new()
        .gpu("0000:01:00.0", Device::mdev)
        .gpu("0000:02:00.0", Device::nvidia_vgpu)
        .gpu("0000:03:00.0", |gpu| gpu);
    let host = tree.host();
    for (name, expected) in [
        ("0000:01:00.0", Mdev::Generic),
        ("0000:02:00.0", Mdev::Nvidia),
        ("0000:03:00.0", Mdev::None),
        ("0000:04:00.0", Mdev::None),
    ] {
        assert_eq!(host.mdev(addr(name)).unwrap(), expected, "{name}");
    }
}

#[test]
fn registers_that_cannot_be_read_are_no_zeros() {
    let tree = HostTree::new()
        .gpu("0000:01:00.0", Device::gone)
        .gpu("0000:02:00.0", Device::header_only)
        .gpu("0000:03:00.0", |gpu| {
            gpu.edit_config(|bytes| bytes[0x65] = 0x50)
        })
        .gpu("0000:04:00.0", |gpu| {
            gpu.port_type(0).edit_config(|bytes| bytes[0x51] = 0x3c)
        })
        .gpu("0000:05:00.0", |gpu| gpu.raw_config(Vec::new()))
        .gpu("0000:06:00.0", |gpu| gpu)
        .without("sys/devices/pci0000:06/0000:06:00.0/config");
    for (name, expected) in [
        ("0000:01:00.0", "does not answer"),
        ("0000:02:00.0", "run as root"),
        ("0000:04:00.0", "0x51 points to 0x3c"),
        ("0000:05:00.0", "ends after 0 bytes"),
        ("0000:06:00.0", "0000:06:00.0/config: No such file"),
    ] {
        let reason = unreadable(&tree, name);
        assert!(reason.contains(expected), "{name}: {reason}");
        // What the other files say stays known.
        assert_eq!(function(&tree, name).vendor, 0x1002);
    }
    // The loop lies behind the capability that was looked for.
    assert!(matches!(
        function(&tree, "0000:03:00.0").registers,
        Registers::Express(_)
    ));
    let tree = tree.gpu("0000:03:00.0", |gpu| {
        gpu.edit_config(|bytes| (bytes[0x64], bytes[0x65]) = (0x09, 0x50))
    });
    let reason = unreadable(&tree, "0000:03:00.0");
    assert!(reason.contains("0x65 points back to 0x50"), "{reason}");
}

#[test]
fn attributes_that_make_no_sense_are_all_ones_or_unknown() {
    let tree = small()
        .file(&device_place(&format!("{GPU}/vendor")), "0x10020\n")
        .file(&device_place(&format!("{GPU}/device")), "rubbish")
        .file(&device_place(&format!("{GPU}/class")), [0xff; 300])
        .file(
            &device_place(&format!("{GPU}/reset_method")),
            "x".repeat(5000),
        )
        .without(&device_place(&format!("{GPU}/subsystem_vendor")))
        .link(
            &device_place(&format!("{GPU}/iommu_group")),
            "../../nowhere/noble",
        )
        .link(&device_place(&format!("{GPU}/driver")), "/");
    let gpu = function(&tree, GPU);
    assert_eq!(
        (gpu.vendor, gpu.device, gpu.class),
        (0xffff, 0xffff, 0xff_ffff)
    );
    assert_eq!(gpu.subsystem, None);
    assert_eq!(gpu.reset_methods, None);
    assert_eq!(gpu.iommu_group, None);
    assert_eq!(gpu.driver, None);
    assert!(matches!(gpu.registers, Registers::Express(_)));
}

#[test]
fn a_fifo_a_directory_or_a_socket_is_refused_at_once() {
    let tree = small();
    let directory = tree.device_directory(addr(GPU));
    let config = directory.join("config");
    fs::remove_file(&config).unwrap();
    nix::unistd::mkfifo(&config, Mode::from_bits_truncate(0o600)).unwrap();
    assert!(unreadable(&tree, GPU).ends_with("config: not a regular file"));
    fs::remove_file(&config).unwrap();
    fs::create_dir(&config).unwrap();
    assert!(unreadable(&tree, GPU).ends_with("config: not a regular file"));
    fs::remove_dir(&config).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(&config).unwrap();
    assert!(unreadable(&tree, GPU).contains("config: No such device or address"));

    let vendor = directory.join("vendor");
    fs::remove_file(&vendor).unwrap();
    nix::unistd::mkfifo(&vendor, Mode::from_bits_truncate(0o600)).unwrap();
    assert_eq!(function(&tree, GPU).vendor, 0xffff);

    let hostname = tree.at("etc/hostname");
    fs::remove_file(&hostname).unwrap();
    nix::unistd::mkfifo(&hostname, Mode::from_bits_truncate(0o600)).unwrap();
    let error = tree.host().node().unwrap_err();
    assert!(matches!(error.source, Cause::NotRegular));
    assert_eq!(error.path, hostname);
}

#[test]
fn no_link_leads_out_of_the_root() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "hostname-of-another-world\n").unwrap();
    let ways_out = [
        secret.clone(),
        PathBuf::from("../../../../../../../../..").join(secret.strip_prefix("/").unwrap()),
    ];
    for target in &ways_out {
        let tree = small()
            .link("etc/hostname", target)
            .link("etc/pve/storage.cfg", target)
            .link(&device_place(&format!("{GPU}/config")), target)
            .link(&device_place(&format!("{GPU}/vendor")), target);
        let host = tree.host();
        assert_eq!(host.storage_cfg().unwrap(), None, "{}", target.display());
        assert!(host.node().is_err());
        assert_eq!(function(&tree, GPU).vendor, 0xffff);
        assert!(unreadable(&tree, GPU).ends_with("No such file or directory"));
    }
    // A whole directory that lies elsewhere, and a link to itself.
    let tree = small()
        .link("etc/pve", outside.path())
        .link("sys/bus/pci/devices/0000:0c:00.0", "0000:0c:00.0");
    assert_eq!(tree.host().vmids().unwrap(), []);
    let error = tree.host().function(addr("0000:0c:00.0")).unwrap_err();
    assert!(matches!(error.source, Cause::Os(nix::errno::Errno::ELOOP)));
}

#[test]
fn links_inside_the_root_are_followed_as_if_it_were_the_root() {
    let tree = small()
        .file("real/hostname", "linked.example.org\n")
        .link("etc/hostname", "/real/hostname")
        .file("real/vendor", "0xabcd\n")
        .link(&device_place(&format!("{GPU}/vendor")), "/real/vendor");
    assert_eq!(tree.host().node().unwrap(), "linked");
    assert_eq!(function(&tree, GPU).vendor, 0xabcd);
}

#[test]
fn paths_that_run_in_circles_end() {
    let tree = small().link(
        "sys/bus/pci/devices/0000:0c:00.0",
        "../../../devices/0000:0b:00.0/0000:00:03.1/0000:0b:00.0/0000:0c:00.0",
    );
    fs::create_dir_all(tree.at("sys/devices/0000:0b:00.0/0000:00:03.1/0000:0b:00.0/0000:0c:00.0"))
        .unwrap();
    let topology = tree.host().topology([addr("0000:0c:00.0")]);
    let above: Vec<_> = topology
        .above(addr("0000:0c:00.0"))
        .map(|bridge| bridge.addr.to_string())
        .collect();
    assert_eq!(above, ["0000:0b:00.0", "0000:00:03.1"]);
    // It is above itself.
    let tree = small().link(
        &format!("sys/bus/pci/devices/{GPU}"),
        format!("../../../devices/pci0000:00/{GPU}/0000:00:03.1/{GPU}"),
    );
    let place = format!("sys/devices/pci0000:00/{GPU}/0000:00:03.1/{GPU}");
    fs::create_dir_all(tree.at(&place)).unwrap();
    let topology = tree.host().topology([addr(GPU)]);
    assert_eq!(topology.above(addr(GPU)).count(), 1);
}

/// A gap in the path would look like a function without a root port.
#[test]
fn a_bridge_or_physical_function_that_is_missing_is_unreadable() {
    let tree = HostTree::new()
        .root_port("0000:00:03.1", 0x05, |port| port)
        .upstream_port("0000:05:00.0", 0x06, |port| port)
        .downstream_port("0000:06:00.0", 0x07, |port| port)
        .gpu("0000:07:00.0", |gpu| gpu)
        .virtual_function("0000:07:00.1", "0000:07:00.0", |function| function)
        .without("sys/bus/pci/devices/0000:05:00.0")
        .without("sys/bus/pci/devices/0000:07:00.0")
        .link("sys/bus/pci/devices/0000:06:00.0", "0000:06:00.0");
    let topology = tree.host().topology([addr("0000:07:00.1")]);
    let reasons: Vec<_> = topology
        .iter()
        .map(|function| match &function.registers {
            Registers::Unreadable(reason) => reason.replace(tree.path().to_str().unwrap(), ""),
            other => format!("{other:?}"),
        })
        .collect();
    assert!(reasons[0].starts_with("Express"), "{reasons:?}");
    assert_eq!(reasons[1], "/sys/bus/pci/devices/0000:05:00.0 is missing");
    assert_eq!(
        reasons[2],
        "/sys/bus/pci/devices/0000:06:00.0: Too many symbolic links encountered"
    );
    assert_eq!(reasons[3], "/sys/bus/pci/devices/0000:07:00.0 is missing");
    assert!(reasons[4].starts_with("Express"), "{reasons:?}");
    assert_eq!(topology.above(addr("0000:07:00.1")).count(), 3);
}

#[test]
fn a_directory_in_place_of_a_link_is_a_function_on_a_root_bus() {
    let tree = small();
    let real = tree.device_directory(addr(GPU));
    let link = tree.at(&format!("sys/bus/pci/devices/{GPU}"));
    fs::remove_file(&link).unwrap();
    fs::rename(real, &link).unwrap();
    let gpu = function(&tree, GPU);
    assert_eq!(gpu.parent, None);
    assert!(matches!(gpu.registers, Registers::Express(_)));
}

#[test]
fn a_tree_without_anything_is_empty_and_no_error() {
    let directory = tempfile::tempdir().unwrap();
    let host = Host::at(directory.path()).unwrap();
    assert_eq!(host.pci_names().unwrap(), Vec::<String>::new());
    assert_eq!(host.function(addr(GPU)).unwrap(), None);
    assert_eq!(host.topology([addr(GPU)]).iter().count(), 0);
    assert_eq!(host.vmids().unwrap(), []);
    assert_eq!(host.vm_config(vmid(100)).unwrap(), None);
    assert_eq!(host.node_of(vmid(100)).unwrap(), None);
    assert_eq!(host.qemu_version().unwrap(), None);
    assert_eq!(host.policy_file("/etc/pve/atomicops.toml").unwrap(), None);
    assert!(host.device_names([(0x1002, 0x744c)]).unwrap().is_empty());
    assert!(!host.running(vmid(100)).unwrap());
    let error = host.kernel_release().unwrap_err();
    assert_eq!(
        error.path,
        directory.path().join("proc/sys/kernel/osrelease")
    );
    assert!(
        error
            .in_words()
            .ends_with("osrelease: No such file or directory")
    );

    let error = Host::at(Path::new("/nonexistent")).unwrap_err();
    assert_eq!(error.to_string(), "cannot read /nonexistent");
}

#[test]
fn names_and_versions() {
    let tree = HostTree::named("pve1")
        .kernel("6.17.2-1-pve")
        .qemu("11.0.2-1");
    let host = tree.host();
    assert_eq!(host.node().unwrap(), "pve1");
    assert_eq!(host.kernel_release().unwrap(), "6.17.2-1-pve");
    assert_eq!(host.qemu_version().unwrap().as_deref(), Some("11.0.2"));

    let tree = tree.file("etc/hostname", "pve7.example.org\n");
    assert_eq!(tree.host().node().unwrap(), "pve7");
    for bad in ["", "\n", ".x\n", "../../x\n"] {
        let tree = HostTree::new().file("etc/hostname", bad);
        assert!(tree.host().node().is_err(), "{bad:?}");
    }
}

#[test]
fn the_version_of_qemu_is_that_of_the_installed_package() {
    const INSTALLED: &str = "install ok installed";
    type Packages = &'static [(&'static str, &'static str, &'static str)];
    let cases: &[(Packages, Option<&str>)] = &[
        (&[("pve-qemu-kvm", INSTALLED, "10.1.2-3")], Some("10.1.2")),
        (
            &[("pve-qemu-kvm", "hold ok installed", "10.1.2-3")],
            Some("10.1.2"),
        ),
        (
            &[("pve-qemu-kvm", "install ok unpacked", "9.2.0-5")],
            Some("9.2.0"),
        ),
        (
            &[("pve-qemu-kvm", "deinstall ok config-files", "9.2.0-5")],
            None,
        ),
        (
            &[("qemu-system-x86", INSTALLED, "1:10.0.13+ds-0+deb13u1")],
            Some("10.0.13"),
        ),
        (
            &[
                ("pve-qemu-kvm", "deinstall ok config-files", "9.2.0-5"),
                ("qemu-system-x86", INSTALLED, "1:8.0~rc2+dfsg-1"),
            ],
            Some("8.0"),
        ),
        (
            // Not sorted, and names that only begin alike.
            &[
                ("qemu-system-x86", INSTALLED, "1:7.2"),
                ("pve-qemu-kvm-dbgsym", INSTALLED, "5.0"),
                ("pve-qemu-kvm", INSTALLED, "8.1.5-6"),
            ],
            Some("8.1.5"),
        ),
        (&[("pve-qemu-kvm", INSTALLED, "unknown")], None),
        (&[], None),
    ];
    for (packages, expected) in cases {
        let tree = HostTree::new().packages(packages);
        assert_eq!(
            tree.host().qemu_version().unwrap().as_deref(),
            *expected,
            "{packages:?}"
        );
    }
}

#[test]
fn virtual_machines_of_this_node_and_of_others() {
    let tree = HostTree::named("pve1")
        .vm(1000, "name: thousand\n")
        .vm(101, "name: here\n")
        .vm_on("pve2", 102, "name: there\n")
        .file("etc/pve/nodes/pve1/qemu-server/101.conf.tmp.4242", "")
        .file("etc/pve/nodes/pve1/qemu-server/099.conf", "")
        .running(101);
    let host = tree.host();
    assert_eq!(host.vmids().unwrap(), [vmid(101), vmid(1000)]);
    assert_eq!(
        host.vm_config(vmid(101)).unwrap().as_deref(),
        Some(&b"name: here\n"[..])
    );
    assert_eq!(host.vm_config(vmid(102)).unwrap(), None);
    assert_eq!(host.node_of(vmid(102)).unwrap().as_deref(), Some("pve2"));
    assert_eq!(host.node_of(vmid(101)).unwrap().as_deref(), Some("pve1"));
    assert_eq!(host.node_of(vmid(103)).unwrap(), None);
    assert!(host.running(vmid(101)).unwrap());
    assert!(!host.running(vmid(1000)).unwrap());

    // The link may be a directory, or missing altogether.
    let tree = tree.without("etc/pve/qemu-server");
    assert_eq!(tree.host().vmids().unwrap(), [vmid(101), vmid(1000)]);
    assert!(tree.host().vm_config(vmid(101)).unwrap().is_some());
    let tree = tree.file("etc/pve/qemu-server/105.conf", "name: flat\n");
    assert_eq!(tree.host().vmids().unwrap(), [vmid(105)]);
    assert_eq!(
        tree.host().vm_config(vmid(105)).unwrap().as_deref(),
        Some(&b"name: flat\n"[..])
    );
}

#[test]
fn files_beyond_their_limit_are_refused() {
    let tree = HostTree::new()
        .vm(101, &"x".repeat(1 << 20))
        .vm(102, &"x".repeat((1 << 20) + 1));
    let host = tree.host();
    assert_eq!(
        host.vm_config(vmid(101)).unwrap().map(|bytes| bytes.len()),
        Some(1 << 20)
    );
    let error = host.vm_config(vmid(102)).unwrap_err();
    assert!(
        error
            .in_words()
            .ends_with("102.conf: larger than 1048576 bytes")
    );
}

#[test]
fn a_policy_file_must_belong_to_root_and_be_closed_to_others() {
    let place = "/etc/pve/atomicops.toml";
    let problem = |tree: &HostTree| tree.host().policy_file(place).unwrap().unwrap().problem;
    let tree = HostTree::new().policy("mode = \"abort\"\n");
    let file = tree.host().policy_file(place).unwrap().unwrap();
    assert_eq!(
        (file.bytes.as_slice(), file.problem),
        (&b"mode = \"abort\"\n"[..], None)
    );
    for mode in [0o664, 0o646, 0o666, 0o620] {
        let tree = HostTree::new().policy("").mode(place, mode);
        assert_eq!(problem(&tree), Some(OwnershipProblem::Writable(mode)));
    }
    for mode in [0o600, 0o640, 0o644, 0o444] {
        assert_eq!(problem(&HostTree::new().policy("").mode(place, mode)), None);
    }
    // The same rules for a file that was named, wherever it is.
    let named = tree.at(place);
    assert_eq!(
        tree.host()
            .named_policy_file(&named)
            .unwrap()
            .unwrap()
            .problem,
        None
    );
    assert_eq!(
        tree.host()
            .named_policy_file(&tree.at("none.toml"))
            .unwrap(),
        None
    );
    assert!(tree.host().named_policy_file(tree.path()).is_err());
    // Giving a file away takes root.
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&named, Some(4242), None).unwrap();
        let expected = Some(OwnershipProblem::Owner(4242));
        assert_eq!(problem(&tree), expected);
        assert_eq!(
            tree.host()
                .named_policy_file(&named)
                .unwrap()
                .unwrap()
                .problem,
            expected
        );
    }
}

#[test]
fn names_of_devices_come_from_the_right_vendor() {
    let tree = HostTree::new();
    let host = tree.host();
    let names = host
        .device_names([
            (0x1002, 0x744c),
            (0x1022, 0x1483),
            (0x1022, 0x744c),
            (0xdead, 0xbeef),
        ])
        .unwrap();
    let names: Vec<_> = names.into_iter().collect();
    assert_eq!(
        names,
        [
            (
                (0x1002, 0x744c),
                "Navi 31 [Radeon RX 7900 XT/7900 XTX]".to_owned()
            ),
            ((0x1022, 0x1483), "Starship/Matisse GPP Bridge".to_owned()),
        ]
    );
    // A subsystem's line is none of a device.
    assert!(host.device_names([(0x1002, 0x1da2)]).unwrap().is_empty());
    let mut host = tree.host();
    host.record();
    assert!(host.device_names([]).unwrap().is_empty());
    assert_eq!(host.accesses(), []);
}

#[test]
fn the_running_system_can_be_read() {
    let host = Host::live().unwrap();
    assert!(host.is_live());
    assert!(!host.node().unwrap().contains('.'));
    assert!(!host.kernel_release().unwrap().is_empty());
    // Whatever the machine has: every function that is listed can be read.
    let names = host.pci_names().unwrap();
    let topology = host.topology(names.iter().map(|name| addr(name)));
    for name in &names {
        let function = topology
            .get(addr(name))
            .expect("listed functions are there");
        assert_ne!(function.vendor, 0xffff, "{name}");
    }
}
