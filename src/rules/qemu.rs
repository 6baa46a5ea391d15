//! QEMU: which widths a guest root port advertises, decided by `vfio_pci_enable_rp_atomics`.
//!
//! When a `vfio-pci` device is realized, QEMU copies the widths that the host offers for it into DEVCAP2 of the guest
//! root port above, if every condition of [`advertised`] holds, and does nothing otherwise. The machine version does not
//! matter, the version of the QEMU binary does.
//!
//! Source: `hw/vfio/pci.c`, QEMU 8.1.0 to 11.1, unchanged. Both models of root port, `pcie-root-port` and `ioh3420`,
//! have a capability of version 2, which upstream tests as well. Entries that never get a root port, because Proxmox VE
//! puts them elsewhere, are the business of [`super::pve`].

use std::fmt;

use super::guest::{GuestPlace, Upstream};
use super::linux::number;
use crate::pci::Widths;

/// What the QEMU binary does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Revision {
    /// Before 8.1: no guest root port ever advertises `AtomicOps`.
    NoGuard,
    /// 8.1 and later: for single-function devices only.
    SingleFunction,
}

impl fmt::Display for Revision {
    /// The word for it in JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::NoGuard => "none",
            Self::SingleFunction => "single-function",
        })
    }
}

/// The version of the QEMU binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    number: Option<(u32, u32, u32)>,
}

impl Version {
    /// From a version of QEMU (`11.0.2`) or of a Debian package (`1:10.0.2+ds-2+deb13u1`).
    ///
    /// A text that is neither gives [`Version::unknown`].
    pub fn parse(text: &str) -> Self {
        Self {
            number: parse(text.trim()),
        }
    }

    /// A version that could not be read.
    pub const fn unknown() -> Self {
        Self { number: None }
    }

    /// Major, minor, micro; `None` if not known.
    pub const fn number(self) -> Option<(u32, u32, u32)> {
        self.number
    }

    /// What this version does. An unknown one is taken for a current one.
    pub fn revision(self) -> Revision {
        match self.number {
            Some(number) if number < (8, 1, 0) => Revision::NoGuard,
            _ => Revision::SingleFunction,
        }
    }

    /// Whether [`Self::revision`] was read from the source of this version, not assumed.
    pub fn verified(self) -> bool {
        self.number.is_some_and(|number| number < (11, 2, 0))
    }

    /// What was assumed, in a sentence for people.
    pub fn assumption(self) -> Option<String> {
        match self.number {
            None => {
                Some("the version of QEMU is not known and was taken to be 8.1 or later".to_owned())
            }
            Some(_) if self.verified() => None,
            Some(_) => Some(format!(
                "QEMU {self} is newer than 11.1, the last version checked, and was taken to do the same"
            )),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some((major, minor, micro)) => f.pad(&format!("{major}.{minor}.{micro}")),
            None => f.pad("unknown"),
        }
    }
}

fn parse(text: &str) -> Option<(u32, u32, u32)> {
    // Debian policy, section 5.6.12: digits before a colon are the epoch.
    let text = match text.split_once(':') {
        Some((epoch, rest)) if number(epoch)?.1.is_empty() => rest,
        Some(_) => return None,
        None => text,
    };
    let (major, rest) = number(text)?;
    let (minor, rest) = number(rest.strip_prefix('.')?)?;
    let (micro, rest) = match rest.strip_prefix('.') {
        Some(rest) => number(rest)?,
        None => (0, rest),
    };
    // What may follow: `.50` of a development version, `+ds-2`, `~rc1`, `-1`, ` (pve-qemu-kvm_...)`.
    let follows = rest.chars().next();
    follows
        .is_none_or(|c| !c.is_alphanumeric())
        .then_some((major, minor, micro))
}

/// Why a function does not make its guest root port advertise anything, in upstream's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Denial {
    /// QEMU before 8.1.
    #[error("QEMU before 8.1 never lets a guest root port advertise AtomicOps")]
    QemuTooOld,
    /// The device sits on the root bus.
    #[error("the device sits on the guest's root bus, without a guest root port above it")]
    RootBus,
    /// The device sits below something else than a root port.
    #[error(
        "the device sits behind a switch or bridge of the guest, not right at a guest root port"
    )]
    NotRootPort,
    /// The device's place is not slot 0 function 0.
    #[error("the device is not at slot 0 function 0 of its guest root port")]
    FunctionNotZero,
    /// The device has `multifunction=on`.
    #[error("the guest device is multifunction")]
    Multifunction,
    /// The port advertises widths of an earlier device.
    #[error("the guest root port already advertises what another device gets")]
    AlreadyAdvertised,
}

impl Denial {
    /// The word for it in JSON.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::QemuTooOld => "qemu-too-old",
            Self::RootBus => "no-root-port",
            Self::NotRootPort => "not-root-port",
            Self::FunctionNotZero => "function-not-zero",
            Self::Multifunction | Self::AlreadyAdvertised => "multifunction",
        }
    }
}

/// The guard for one device; `port` is what its root port advertises so far.
fn guard(place: &GuestPlace, port: Widths, revision: Revision) -> Result<(), Denial> {
    if revision == Revision::NoGuard {
        return Err(Denial::QemuTooOld);
    }
    match place.upstream {
        Upstream::RootBus => return Err(Denial::RootBus),
        Upstream::RootPort => {}
        Upstream::SwitchPort | Upstream::Bridge | Upstream::Other(_) => {
            return Err(Denial::NotRootPort);
        }
    }
    if place.slot != 0 || place.function != 0 {
        return Err(Denial::FunctionNotZero);
    }
    if place.multifunction {
        return Err(Denial::Multifunction);
    }
    if !port.is_empty() {
        return Err(Denial::AlreadyAdvertised);
    }
    Ok(())
}

/// What the guest port with the bus `port` advertises.
///
/// `functions` are passed functions in the order in which QEMU realizes them, each with the widths that the host offers
/// for it; those on other buses are passed over. If no function satisfies the guard, the error is that of the function
/// that came closest. A port without functions advertises nothing.
pub fn advertised<'a>(
    port: &str,
    functions: impl IntoIterator<Item = (&'a GuestPlace, Widths)>,
    revision: Revision,
) -> Result<Widths, Denial> {
    let mut widths = Widths::NONE;
    let mut passed = false;
    let mut denial = None;
    for (place, host) in functions {
        if place.bus != port {
            continue;
        }
        match guard(place, widths, revision) {
            Ok(()) => {
                widths = host;
                passed = true;
            }
            Err(error) => denial = denial.max(Some(error)),
        }
    }
    match denial {
        Some(denial) if !passed => Err(denial),
        _ => Ok(widths),
    }
}

#[cfg(test)]
mod tests {
    use super::{Denial, Revision, Version, advertised};
    use crate::pci::{Width, Widths};
    use crate::rules::guest::{GuestPlace, Upstream};

    const PORT: &str = "ich9-pcie-port-1";

    fn place(slot: u8, function: u8, multifunction: bool) -> GuestPlace {
        GuestPlace {
            bus: PORT.to_owned(),
            upstream: Upstream::RootPort,
            slot,
            function,
            multifunction,
        }
    }

    fn below(upstream: Upstream) -> GuestPlace {
        GuestPlace {
            upstream,
            ..place(0, 0, false)
        }
    }

    fn ask(functions: &[(GuestPlace, Widths)], revision: Revision) -> Result<Widths, Denial> {
        let functions = functions.iter().map(|(place, widths)| (place, *widths));
        advertised(PORT, functions, revision)
    }

    fn one(place: GuestPlace) -> Result<Widths, Denial> {
        ask(&[(place, Widths::W32_W64)], Revision::SingleFunction)
    }

    #[test]
    fn a_single_function_brings_what_the_host_offers() {
        assert_eq!(one(place(0, 0, false)), Ok(Widths::W32_W64));
        let narrow = Widths::NONE.with(Width::W32);
        for widths in [Widths::NONE, narrow, Widths::ALL] {
            assert_eq!(
                ask(&[(place(0, 0, false), widths)], Revision::SingleFunction),
                Ok(widths)
            );
        }
    }

    #[test]
    fn each_condition_refuses() {
        for (at, denial, reason) in [
            (below(Upstream::RootBus), Denial::RootBus, "no-root-port"),
            (
                below(Upstream::SwitchPort),
                Denial::NotRootPort,
                "not-root-port",
            ),
            (
                below(Upstream::Bridge),
                Denial::NotRootPort,
                "not-root-port",
            ),
            (
                below(Upstream::Other("thing".to_owned())),
                Denial::NotRootPort,
                "not-root-port",
            ),
            (
                place(0, 1, false),
                Denial::FunctionNotZero,
                "function-not-zero",
            ),
            (
                place(0, 1, true),
                Denial::FunctionNotZero,
                "function-not-zero",
            ),
            (
                place(1, 0, false),
                Denial::FunctionNotZero,
                "function-not-zero",
            ),
            // Even alone in its slot.
            (place(0, 0, true), Denial::Multifunction, "multifunction"),
        ] {
            assert_eq!(one(at), Err(denial));
            assert_eq!(denial.reason(), reason);
        }
        let old = ask(&[(place(0, 0, false), Widths::W32_W64)], Revision::NoGuard);
        assert_eq!(old, Err(Denial::QemuTooOld));
        assert_eq!(Denial::QemuTooOld.reason(), "qemu-too-old");
    }

    #[test]
    fn a_multifunction_device_is_named_as_one_in_any_order() {
        let gpu = (place(0, 0, true), Widths::W32_W64);
        let audio = (place(0, 1, false), Widths::NONE);
        let revision = Revision::SingleFunction;
        assert_eq!(
            ask(&[gpu.clone(), audio.clone()], revision),
            Err(Denial::Multifunction)
        );
        assert_eq!(ask(&[audio, gpu], revision), Err(Denial::Multifunction));
    }

    #[test]
    fn the_first_one_realized_wins() {
        let narrow = Widths::NONE.with(Width::W32);
        let same = |widths| (place(0, 0, false), widths);
        let revision = Revision::SingleFunction;
        assert_eq!(
            ask(&[same(narrow), same(Widths::ALL)], revision),
            Ok(narrow)
        );
        assert_eq!(
            ask(&[same(Widths::NONE), same(narrow)], revision),
            Ok(narrow)
        );
    }

    #[test]
    fn looks_at_one_port_only() {
        let elsewhere = GuestPlace {
            bus: "ich9-pcie-port-2".to_owned(),
            ..place(0, 0, false)
        };
        assert_eq!(one(elsewhere), Ok(Widths::NONE));
        assert_eq!(ask(&[], Revision::NoGuard), Ok(Widths::NONE));
    }

    #[test]
    fn reads_versions_of_qemu_and_of_packages() {
        use Revision::{NoGuard, SingleFunction};
        for (text, number, revision, verified) in [
            ("11.0.2", "11.0.2", SingleFunction, true),
            ("10.0.13", "10.0.13", SingleFunction, true),
            ("11.0.2-1", "11.0.2", SingleFunction, true),
            ("1:10.0.2+ds-2+deb13u1\n", "10.0.2", SingleFunction, true),
            ("11.1.3", "11.1.3", SingleFunction, true),
            ("11.2.0", "11.2.0", SingleFunction, false),
            ("11.1.50", "11.1.50", SingleFunction, true),
            ("12.0.0~rc1-1", "12.0.0", SingleFunction, false),
            ("8.1.0", "8.1.0", SingleFunction, true),
            ("8.1", "8.1.0", SingleFunction, true),
            ("8.0.5-1", "8.0.5", NoGuard, true),
            ("7.2.10", "7.2.10", NoGuard, true),
            ("", "unknown", SingleFunction, false),
            ("11", "unknown", SingleFunction, false),
            ("eleven", "unknown", SingleFunction, false),
            ("11.0.2beta", "unknown", SingleFunction, false),
            (":11.0.2", "unknown", SingleFunction, false),
            ("x:11.0.2", "unknown", SingleFunction, false),
            ("99999999999.1.1", "unknown", SingleFunction, false),
        ] {
            let version = Version::parse(text);
            assert_eq!(version.to_string(), number, "{text:?}");
            assert_eq!(version.revision(), revision, "{text:?}");
            assert_eq!(version.verified(), verified, "{text:?}");
            assert_eq!(version.assumption().is_none(), verified, "{text:?}");
        }
    }
}
