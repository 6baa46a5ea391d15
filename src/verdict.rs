//! Chains the rules for one entry: what the host gives, what the guest gets, and what that means.
//!
//! Pure: takes the composed guest, the host's answers and QEMU's revision.

use serde::Serialize;

use crate::pci::Widths;

/// What one entry or one VM gets. The order is from harmless to bad; a VM's verdict is the worst of its entries'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Outside what this program judges: a mediated device, a template, a device that needs no `AtomicOps`.
    NotApplicable,
    /// The guest gets what the host gives, at least 32 and 64 bit.
    Ok,
    /// The host path cannot.
    Unavailable,
    /// Could not be read.
    Unknown,
    /// The host gives, the guest's layout hides it.
    Lost,
    /// Proxmox would refuse or drop the entry.
    Error,
}

impl Verdict {
    /// The word in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotApplicable => "not-applicable",
            Self::Ok => "ok",
            Self::Unavailable => "unavailable",
            Self::Unknown => "unknown",
            Self::Lost => "lost",
            Self::Error => "error",
        }
    }
}

/// Why `AtomicOps` that the host gives do not reach the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The guest device has several functions.
    Multifunction,
    /// `pcie=1` is missing.
    NotPcieEntry,
    /// The machine is not q35.
    NotQ35,
    /// Right on the root bus.
    NoRootPort,
    /// Behind a switch or bridge in the guest.
    NotRootPort,
    /// Not function 0 of slot 0.
    FunctionNotZero,
    /// QEMU before 8.1.
    QemuTooOld,
}

/// Judges widths: what the host gives for the function that needs them, and what its guest port advertises.
pub fn judge(host: Widths, guest: Widths) -> Verdict {
    if !host.contains_all(Widths::W32_W64) {
        Verdict::Unavailable
    } else if guest == host {
        Verdict::Ok
    } else {
        Verdict::Lost
    }
}
