//! Linux: `pci_enable_atomic_ops_to_root`.
