//! What `machine` and `ostype` mean for passed devices.

/// Which of QEMU's machines a VM has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineFamily {
    /// `pc`, Proxmox's default.
    I440fx,
    /// `q35`.
    Q35,
    /// `virt`, which an x86-64 VM cannot really have.
    Virt,
}

/// The VM's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Which machine.
    pub family: MachineFamily,
    /// Major and minor version, where the configuration pins one.
    pub version: Option<(u32, u32)>,
}

impl Machine {
    /// Reads a `machine` value that Proxmox's schema accepts; `None` means that the key is not set.
    ///
    /// `type` may be written without its key, and may be missing.
    pub fn read(value: Option<&str>) -> Self {
        let kind = value
            .unwrap_or_default()
            .split(',')
            .filter_map(|part| match part.split_once('=') {
                None => Some(part),
                Some(("type", kind)) => Some(kind),
                Some(_) => None,
            })
            .find(|kind| !kind.trim().is_empty())
            .unwrap_or_default();
        let family = if kind.contains("q35") {
            MachineFamily::Q35
        } else if kind.starts_with("virt") {
            MachineFamily::Virt
        } else {
            MachineFamily::I440fx
        };
        Self {
            family,
            version: version(kind),
        }
    }

    /// Whether the machine is a q35, the one with PCI Express.
    pub fn is_q35(&self) -> bool {
        self.family == MachineFamily::Q35
    }

    /// Model of the four preset root ports of a q35: Proxmox includes `pve-q35-4.0.cfg` from machine version 4.0 on,
    /// and `pve-q35.cfg` below it.
    pub fn preset_port_model(&self) -> &'static str {
        if self.version.is_some_and(|version| version < (4, 0)) {
            "ioh3420"
        } else {
            "pcie-root-port"
        }
    }
}

/// `extract_version_parts`: the version in `pc-q35-9.2+pve1`, the patch level aside.
fn version(kind: &str) -> Option<(u32, u32)> {
    let rest = ["pc-i440fx-", "pc-q35-", "pc-", "virt-"]
        .iter()
        .find_map(|prefix| kind.strip_prefix(prefix))?;
    let (major, rest) = rest.split_once('.')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    Some((major.parse().ok()?, rest.get(..digits)?.parse().ok()?))
}

/// The Windows version that Proxmox takes an `ostype` for, 0 if none: 5 for XP and 2000/2003, 6 for Vista and 2008,
/// N for `winN`, leading zeros included.
pub fn windows_version(ostype: &str) -> u32 {
    match ostype {
        "wxp" | "w2k3" | "w2k" => 5,
        "w2k8" | "wvista" => 6,
        other => match other.strip_prefix("win") {
            Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().unwrap_or(u32::MAX)
            }
            _ => 0,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{Machine, MachineFamily, windows_version};

    #[test]
    fn reads_machines() {
        for (value, family, version, port) in [
            (None, MachineFamily::I440fx, None, "pcie-root-port"),
            (Some("pc"), MachineFamily::I440fx, None, "pcie-root-port"),
            (Some("q35"), MachineFamily::Q35, None, "pcie-root-port"),
            (
                Some("viommu=virtio,type=pc-q35-9.0"),
                MachineFamily::Q35,
                Some((9, 0)),
                "pcie-root-port",
            ),
            (
                Some("pc-q35-3.1"),
                MachineFamily::Q35,
                Some((3, 1)),
                "ioh3420",
            ),
            (
                Some("pc-q35-2.10.1"),
                MachineFamily::Q35,
                Some((2, 10)),
                "ioh3420",
            ),
            (
                Some("pc-q35-10.0+pve1,viommu=intel"),
                MachineFamily::Q35,
                Some((10, 0)),
                "pcie-root-port",
            ),
            (
                Some("viommu=virtio"),
                MachineFamily::I440fx,
                None,
                "pcie-root-port",
            ),
            (
                Some("pc-8.1.pxe"),
                MachineFamily::I440fx,
                Some((8, 1)),
                "pcie-root-port",
            ),
            (
                Some("virt-6.0"),
                MachineFamily::Virt,
                Some((6, 0)),
                "pcie-root-port",
            ),
        ] {
            let machine = Machine::read(value);
            assert_eq!((machine.family, machine.version), (family, version));
            assert_eq!(machine.preset_port_model(), port, "{value:?}");
        }
    }

    #[test]
    fn windows_versions() {
        for (ostype, version) in [
            ("win7", 7),
            ("win07", 7),
            ("win10", 10),
            ("wxp", 5),
            ("w2k8", 6),
            ("WIN7", 0),
            ("win7x", 0),
            ("win", 0),
            ("win+7", 0),
            ("l26", 0),
            ("", 0),
            ("win99999999999", u32::MAX),
        ] {
            assert_eq!(windows_version(ostype), version, "{ostype}");
        }
    }
}
