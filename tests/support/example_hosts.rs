//! The hosts below `examples/hosts`, as the builder makes them. Each has a `README.md` there.

use pve_atomicops::pci::Widths;

use super::host_tree::{Device, HostTree};

/// Names of the directories and what they hold.
pub fn all() -> [(&'static str, HostTree); 3] {
    [
        ("x399-two-7900xt", x399_two_7900xt()),
        ("b550-chipset-slot", b550_chipset_slot()),
        ("epyc-instinct-sriov", epyc_instinct_sriov()),
    ]
}

/// A VM's configuration as the web interface would leave it, with some lines of its own.
fn config(name: &str, machine: &str, ostype: &str, hostpci: &[&str]) -> String {
    let passed: Vec<String> = hostpci
        .iter()
        .enumerate()
        .map(|(index, value)| format!("hostpci{index}: {value}\n"))
        .collect();
    format!(
        "bios: ovmf\n\
         boot: order=scsi0;net0\n\
         cores: 16\n\
         cpu: host\n\
         efidisk0: local-lvm:vm-disk-0,efitype=4m,pre-enrolled-keys=0,size=4M\n\
         {}\
         machine: {machine}\n\
         memory: 65536\n\
         name: {name}\n\
         net0: virtio,bridge=vmbr0\n\
         numa: 0\n\
         ostype: {ostype}\n\
         scsi0: local-lvm:vm-disk-1,size=128G\n\
         scsihw: virtio-scsi-single\n\
         sockets: 1\n",
        passed.concat()
    )
}

fn stays_with(driver: &'static str, class: u32) -> impl FnOnce(Device) -> Device {
    move |device| {
        device
            .ids(0x1022, 0x43ee)
            .subsystem(0x1b21, 0x1142)
            .class(class)
            .driver(driver)
            .group(15)
    }
}

/// Two RX 7900 XT on root ports of two dies, each below the switch on its card.
pub fn x399_two_7900xt() -> HostTree {
    HostTree::named("pve1")
        .root_port("0000:00:03.1", 0x09, |port| {
            port.ids(0x1022, 0x1453).group(12)
        })
        .upstream_port("0000:09:00.0", 0x0a, |port| port.group(25))
        .downstream_port("0000:0a:00.0", 0x0b, |port| port.group(26))
        .gpu("0000:0b:00.0", |gpu| gpu.group(27))
        .audio("0000:0b:00.1", |audio| audio.group(28))
        .root_port("0000:40:03.1", 0x42, |port| {
            port.ids(0x1022, 0x1453).group(40)
        })
        .upstream_port("0000:42:00.0", 0x43, |port| port.group(52))
        .downstream_port("0000:43:00.0", 0x44, |port| port.group(53))
        .gpu("0000:44:00.0", |gpu| gpu.group(54))
        .audio("0000:44:00.1", |audio| audio.group(55))
        .mapping(
            "gpu0\n\
             \tmap id=1002:744c,iommugroup=27,node=pve1,path=0000:0b:00,subsystem-id=1da2:e471\n\
             \n\
             gpu1\n\
             \tmap id=1002:744c,iommugroup=54,node=pve1,path=0000:44:00,subsystem-id=1da2:e471\n",
        )
        .vm(
            101,
            &config(
                "train",
                "q35",
                "l26",
                &["0000:0b:00,pcie=1", "0000:44:00,pcie=1"],
            ),
        )
        .vm(
            102,
            &config(
                "train-explicit",
                "q35",
                "l26",
                &["0000:0b:00.0,pcie=1", "0000:44:00.0,pcie=1"],
            ),
        )
        .vm(
            103,
            &config(
                "train-mapped",
                "q35",
                "l26",
                &["mapping=gpu0,pcie=1", "mapping=gpu1,pcie=1"],
            ),
        )
        .vm(
            104,
            &config(
                "render",
                "pc-q35-10.0",
                "win11",
                &["0000:44:00,pcie=1,x-vga=1"],
            ),
        )
}

/// Two RX 6800 XT: one in a slot of the processor, one in a slot of the chipset, whose switch does not route.
pub fn b550_chipset_slot() -> HostTree {
    let radeon = |group| {
        move |gpu: Device| {
            gpu.ids(0x1002, 0x73bf)
                .subsystem(0x1002, 0x0e3a)
                .group(group)
        }
    };
    let sound = |group| {
        move |audio: Device| {
            audio
                .ids(0x1002, 0xab28)
                .subsystem(0x1002, 0xab28)
                .group(group)
        }
    };
    let cards = ["0000:0b:00,pcie=1", "0000:08:00,pcie=1"];
    let explicit = ["0000:0b:00.0,pcie=1", "0000:08:00.0,pcie=1"];
    HostTree::named("desk")
        .qemu("10.1.2-3")
        // The chipset hangs from the processor by its own switch. Function 2 of it is the upstream port.
        .root_port("0000:00:02.1", 0x02, |port| port.group(4))
        .endpoint("0000:02:00.0", stays_with("xhci_hcd", 0x0c_0330))
        .endpoint("0000:02:00.1", stays_with("ahci", 0x01_0601))
        .upstream_port("0000:02:00.2", 0x03, |port| {
            port.ids(0x1022, 0x43e9).group(15)
        })
        .downstream_port("0000:03:04.0", 0x05, |port| {
            port.ids(0x1022, 0x43ea).routes(false).group(15)
        })
        .upstream_port("0000:05:00.0", 0x06, |port| port.group(15))
        .downstream_port("0000:06:00.0", 0x08, |port| port.group(15))
        .gpu("0000:08:00.0", radeon(15))
        .audio("0000:08:00.1", sound(15))
        .root_port("0000:00:03.1", 0x09, |port| port.group(6))
        .upstream_port("0000:09:00.0", 0x0a, |port| port.group(16))
        .downstream_port("0000:0a:00.0", 0x0b, |port| port.group(17))
        .gpu("0000:0b:00.0", radeon(18))
        .audio("0000:0b:00.1", sound(19))
        .vm(110, &config("both", "q35", "l26", &cards))
        .vm(111, &config("both-explicit", "q35", "l26", &explicit))
        .vm(112, &config("chipset-only", "q35", "l26", &cards[1..]))
}

/// Three accelerators with SR-IOV: virtual functions in the card's own slot, in another one, and none.
pub fn epyc_instinct_sriov() -> HostTree {
    let accelerator = |group| {
        move |gpu: Device| {
            gpu.ids(0x1002, 0x74a1)
                .subsystem(0x1002, 0x74a1)
                .class(0x12_0000)
                .reset_methods("flr bus")
                .group(group)
        }
    };
    let part = |group| {
        move |function: Device| {
            function
                .ids(0x1002, 0x74b5)
                .subsystem(0x1002, 0x74a1)
                .class(0x12_0000)
                .reset_methods("flr")
                .group(group)
        }
    };
    let root =
        |group| move |port: Device| port.ids(0x1022, 0x14ab).completes(Widths::ALL).group(group);
    HostTree::named("epyc")
        .root_port("0000:00:01.1", 0x05, root(20))
        .gpu("0000:05:00.0", accelerator(60))
        .virtual_function("0000:05:00.1", "0000:05:00.0", part(61))
        .virtual_function("0000:05:00.2", "0000:05:00.0", part(62))
        .root_port("0000:20:01.1", 0x26, root(21))
        .gpu("0000:26:00.0", accelerator(63))
        .virtual_function("0000:26:02.0", "0000:26:00.0", part(64))
        .virtual_function("0000:26:02.1", "0000:26:00.0", part(65))
        .root_port("0000:40:01.1", 0x46, root(22))
        .gpu("0000:46:00.0", accelerator(66))
        .vm(
            200,
            &config(
                "prefix",
                "q35",
                "l26",
                &["0000:05:00,pcie=1", "0000:46:00,pcie=1"],
            ),
        )
        .vm(
            201,
            &config(
                "parts",
                "q35",
                "l26",
                &["0000:05:00.1,pcie=1", "0000:26:02.0,pcie=1"],
            ),
        )
        .vm(
            202,
            &config(
                "whole",
                "q35",
                "l26",
                &["0000:26:00,pcie=1", "0000:46:00,pcie=1"],
            ),
        )
        .vm(
            203,
            &config(
                "slot-of-parts",
                "q35",
                "l26",
                &["0000:26:02,pcie=1", "0000:46:00,pcie=1"],
            ),
        )
}
