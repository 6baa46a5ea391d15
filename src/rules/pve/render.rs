//! The values of QEMU's `-device` options, as `print_hostpci_devices` writes them.

use std::fmt::Write;

use super::{Composition, Entry, Mediated};
use crate::vmconf::hostpci::Hostpci;

impl Composition {
    /// The `-device` values for all entries that Proxmox does not refuse, in order.
    ///
    /// Where [`Composition::start_error`] is set, Proxmox would not get that far.
    pub fn devices(&self) -> Vec<String> {
        let mut devices = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.refusal.is_none()) {
            if let Some(port) = &entry.extra_port {
                devices.push(format!(
                    "pcie-root-port,id={},addr={:x}.{},x-speed=16,x-width=32,multifunction=on,bus=pcie.0,port={number},chassis={number}",
                    port.id,
                    port.slot,
                    port.function,
                    number = port.number,
                ));
            }
            self.push_functions(entry, &mut devices);
        }
        devices
    }

    fn push_functions(&self, entry: &Entry, devices: &mut Vec<String>) {
        let (Some(hostpci), Some(slot), Some(chosen)) =
            (&entry.hostpci, &entry.slot, entry.chosen_alternative())
        else {
            return;
        };
        let migration = if entry.live_migration_capable {
            ",enable-migration=on"
        } else {
            ""
        };
        let at = format!("bus={},addr={:#x}", slot.bus, slot.slot);
        if entry.mediated == Mediated::Mdev {
            let uuid = format!(
                "{:08}-0000-0000-0000-{:012}",
                entry.index.get(),
                self.vmid.get()
            );
            devices.push(format!(
                "vfio-pci,sysfsdev=/sys/bus/mdev/devices/{uuid}{migration},id={},{at}{}",
                entry.index,
                self.first_function_options(entry, hostpci, false)
            ));
            return;
        }
        let several = chosen.functions.len() > 1;
        for (nth, passed) in chosen.functions.iter().enumerate() {
            let function = if several {
                format!(".{nth}")
            } else {
                String::new()
            };
            let mut device = format!(
                "vfio-pci,host={}{migration},id={}{function},{at}{function}",
                passed.host, entry.index
            );
            if nth == 0 {
                device += &self.first_function_options(entry, hostpci, several);
            }
            devices.push(device);
        }
    }

    /// The options that only function 0 gets.
    fn first_function_options(&self, entry: &Entry, hostpci: &Hostpci, several: bool) -> String {
        let mut options = String::new();
        if !hostpci.rombar {
            options += ",rombar=0";
        }
        if hostpci.x_vga && !self.bios_is_ovmf {
            options += ",x-vga=on";
        }
        if several {
            options += ",multifunction=on";
        }
        let mut push = |key: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = write!(options, ",{key}={value}");
        };
        // Upstream asks whether the name is true, not whether it is there.
        if let Some(file) = hostpci.romfile.as_deref().filter(|file| *file != "0") {
            push("romfile", &format!("/usr/share/kvm/{file}"));
        }
        if let Some(index) = entry.boot_index {
            push("bootindex", &index.to_string());
        }
        for (key, value) in [
            ("x-pci-vendor-id", &hostpci.vendor_id),
            ("x-pci-device-id", &hostpci.device_id),
            ("x-pci-sub-vendor-id", &hostpci.sub_vendor_id),
            ("x-pci-sub-device-id", &hostpci.sub_device_id),
        ] {
            if let Some(value) = value {
                push(key, value);
            }
        }
        options
    }
}
