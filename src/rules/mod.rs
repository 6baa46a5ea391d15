//! The rules of the three systems that decide, each in the file that bears its name and in upstream's order of checks.
//!
//! [`pve`]: where Proxmox VE puts each function in the guest. [`linux`]: `pci_enable_atomic_ops_to_root`. [`vfio`]: what
//! `vfio-pci` reports to QEMU. [`qemu`]: which guest root ports QEMU then lets advertise it.

pub mod guest;
pub mod guest_bus;
pub mod linux;
pub mod pve;
pub mod qemu;
pub mod vfio;

#[cfg(test)]
mod testing;
