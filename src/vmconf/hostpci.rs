//! The value of a `hostpciN` key.

/// A `hostpciN` value that Proxmox's schema accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hostpci {
    /// `host`: one address or prefix, or several joined by `;`, as written.
    pub host: Option<String>,
    /// `mapping`: name of a cluster resource mapping.
    pub mapping: Option<String>,
    /// `pcie`, default off.
    pub pcie: bool,
    /// `rombar`, default on.
    pub rombar: bool,
    /// `romfile`.
    pub romfile: Option<String>,
    /// `x-vga`, default off.
    pub x_vga: bool,
    /// `legacy-igd`, default off.
    pub legacy_igd: bool,
    /// `mdev`: type of the mediated device.
    pub mdev: Option<String>,
    /// `driver`: `vfio` or `keep`.
    pub driver: Option<String>,
    /// `vendor-id` override.
    pub vendor_id: Option<String>,
    /// `device-id` override.
    pub device_id: Option<String>,
    /// `sub-vendor-id` override.
    pub sub_vendor_id: Option<String>,
    /// `sub-device-id` override.
    pub sub_device_id: Option<String>,
}
