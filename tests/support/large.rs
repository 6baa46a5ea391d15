//! Hosts with many functions, and VMs that pass them.

use super::HostTree;

/// Slots below root ports of one segment.
const SLOTS_OF_A_SEGMENT: u32 = 32;

/// Number of functions of a host with so many slots: each has a root port above, and three functions in it.
pub const fn functions(slots: u32) -> u32 {
    slots * 4
}

fn slot(number: u32) -> String {
    let (segment, bus) = (number / SLOTS_OF_A_SEGMENT, 1 + number % SLOTS_OF_A_SEGMENT);
    format!("{segment:04x}:{bus:02x}:00")
}

/// A host with so many slots, each with a GPU, its audio and its USB function below a root port of its own.
pub fn large_host(slots: u32) -> HostTree {
    (0..slots).fold(HostTree::named("pve1"), |tree, number| {
        let segment = number / SLOTS_OF_A_SEGMENT;
        let bus = u8::try_from(1 + number % SLOTS_OF_A_SEGMENT).expect("a bus");
        let port = format!("{segment:04x}:00:{:02x}.0", bus - 1);
        let slot = slot(number);
        tree.root_port(&port, bus, |port| port)
            .gpu(&format!("{slot}.0"), |gpu| gpu)
            .audio(&format!("{slot}.1"), |audio| audio)
            .endpoint(&format!("{slot}.2"), |usb| usb.class(0x0c_0330))
    })
}

/// The configuration of a VM that passes two cards, each with all its functions, on a host with so many slots.
pub fn vm_text(number: u32, slots: u32) -> String {
    let second = (number + slots / 2) % slots;
    let mut text = format!(
        "boot: order=scsi0\ncores: 4\nhostpci0: {},pcie=1\n",
        slot(number % slots)
    );
    if second != number % slots {
        text += &format!("hostpci1: {},pcie=1\n", slot(second));
    }
    text += "machine: q35\nmemory: 4096\n";
    text + &format!(
        "name: vm{number}\nnet0: virtio,bridge=vmbr0\nostype: l26\nscsi0: local-lvm:vm-disk-0,size=32G\n"
    )
}
