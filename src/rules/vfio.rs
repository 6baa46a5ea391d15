//! vfio-pci: which widths it reports for a device.
