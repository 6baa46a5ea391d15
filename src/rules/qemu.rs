//! QEMU: `vfio_pci_enable_rp_atomics`.
