//! Proxmox VE: from `hostpciN` to QEMU's devices.
