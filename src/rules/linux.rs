//! Linux: `pci_enable_atomic_ops_to_root`, and which revision of it a kernel has.
//!
//! The function asks whether requests of a device reach a host root port that completes them, and lets the device send
//! if so. It never looks at function numbers, nor at a root port's routing bit, nor at egress blocking anywhere but on
//! upstream ports. It was changed three times in 2026, and the changes went into stable and vendor kernels as backports,
//! so a version number seldom tells which text is running: [`Kernel::revisions`] is a set.
//!
//! Source: `drivers/pci/pci.c` of Linux 6.12 and 7.2. The revisions differ in their order of checks too, which decides
//! only the reason for a refusal, never the answer. What a kernel offers to a guest is in [`super::vfio`].

use std::fmt;

use crate::pci::express::PortType;
use crate::pci::roles::{Bridge, RootPort, SwitchPort, Trace, Unreadable, UpstreamPort};
use crate::pci::{Sbdf, Width};

/// A text of `pci_enable_atomic_ops_to_root`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// Linux 4.16 and later: no root port above is no obstacle.
    Original,
    /// "Enable `AtomicOps` only if Root Port supports them": fails without a root port.
    RootPortRequired,
    /// "Accept `AtomicOps` already enabled by the hypervisor": without a root port, the device's own requester enable
    /// decides.
    AlreadyEnabledAccepted,
    /// In addition, refuses every root complex integrated endpoint.
    IntegratedRefused,
}

impl Revision {
    /// All revisions, old to new.
    pub const ALL: [Self; 4] = [
        Self::Original,
        Self::RootPortRequired,
        Self::AlreadyEnabledAccepted,
        Self::IntegratedRefused,
    ];
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Original => "the original rule",
            Self::RootPortRequired => "\"Enable AtomicOps only if Root Port supports them\"",
            Self::AlreadyEnabledAccepted => {
                "\"Accept AtomicOps already enabled by the hypervisor\""
            }
            Self::IntegratedRefused => "the rule that refuses integrated endpoints",
        })
    }
}

/// Why the kernel refuses, one variant for each condition, with the function that fails it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// `is_virtfn`: a virtual function has no requester enable of its own.
    #[error("{addr} is a virtual function")]
    VirtualFunction {
        /// The device.
        addr: Sbdf,
    },
    /// `!pci_is_pcie`.
    #[error("{addr} is not a PCI Express device")]
    NotExpress {
        /// The device.
        addr: Sbdf,
    },
    /// The device is no endpoint, or no endpoint that this revision accepts.
    #[error("{addr} is of a type that the kernel never lets send AtomicOps ({port_type})")]
    DeviceType {
        /// The device.
        addr: Sbdf,
        /// Its type.
        port_type: PortType,
    },
    /// A switch port does not route.
    #[error("{addr}, {side} switch port, does not route AtomicOps")]
    SwitchNoRouting {
        /// The switch port.
        addr: Sbdf,
        /// Which way it looks.
        side: Side,
    },
    /// An upstream port blocks egress.
    #[error("{addr}, an upstream switch port, blocks AtomicOps on egress")]
    EgressBlocked {
        /// The upstream port.
        addr: Sbdf,
    },
    /// The host root port does not complete this width.
    #[error("{addr}, the host root port, does not complete {}-bit AtomicOps", width.bits())]
    RootPortNotCompleter {
        /// The root port.
        addr: Sbdf,
        /// The width that was asked for.
        width: Width,
    },
    /// No root port is above the device.
    #[error("{addr} has no host root port above it")]
    NoRootPort {
        /// The device.
        addr: Sbdf,
    },
    /// A function on the path could not be read, so the kernel's answer is not known.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

/// Which way a switch port looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Towards the host.
    Upstream,
    /// Towards the devices.
    Downstream,
}

impl fmt::Display for Side {
    /// With the article.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Upstream => "an upstream",
            Self::Downstream => "a downstream",
        })
    }
}

impl Denial {
    /// Where it failed.
    pub const fn addr(&self) -> Sbdf {
        match self {
            Self::VirtualFunction { addr }
            | Self::NotExpress { addr }
            | Self::DeviceType { addr, .. }
            | Self::SwitchNoRouting { addr, .. }
            | Self::EgressBlocked { addr }
            | Self::RootPortNotCompleter { addr, .. }
            | Self::NoRootPort { addr } => *addr,
            Self::Unreadable(unreadable) => unreadable.addr,
        }
    }
}

/// Whether the kernel lets the device at the lower end of a path send requests of one width.
///
/// Any bridge above it that could not be read makes the answer [`Denial::Unreadable`], even where another one refuses.
pub fn enable_atomic_ops_to_root(
    path: &Trace,
    width: Width,
    revision: Revision,
) -> Result<(), Denial> {
    let addr = path.addr;
    if path.is_virtual {
        return Err(Denial::VirtualFunction { addr });
    }
    let requester = path.requester.as_ref().map_err(Clone::clone)?;
    let requester = requester.as_ref().ok_or(Denial::NotExpress { addr })?;
    let port_type = requester.port_type();
    match port_type {
        PortType::Endpoint | PortType::LegacyEndpoint => {}
        PortType::IntegratedEndpoint if revision < Revision::IntegratedRefused => {}
        _ => return Err(Denial::DeviceType { addr, port_type }),
    }
    let bridges = path.bridges.as_ref().map_err(Clone::clone)?;

    if revision == Revision::Original {
        for bridge in bridges {
            match bridge {
                Bridge::Upstream(port) => {
                    upstream_port_routes(port)?;
                    lets_out(port)?;
                }
                Bridge::Downstream(port) => routes(port, Side::Downstream)?,
                Bridge::Root(port) => completes(port, width)?,
                Bridge::Other(_) => {}
            }
        }
        return Ok(());
    }

    let root = bridges.iter().enumerate().find_map(|(at, bridge)| {
        let Bridge::Root(port) = bridge else {
            return None;
        };
        Some((at, port))
    });
    let Some((at, root)) = root else {
        return if revision >= Revision::AlreadyEnabledAccepted && requester.is_enabled() {
            Ok(())
        } else {
            Err(Denial::NoRootPort { addr })
        };
    };
    completes(root, width)?;
    for bridge in bridges.iter().take(at) {
        match bridge {
            Bridge::Upstream(port) => {
                lets_out(port)?;
                upstream_port_routes(port)?;
            }
            Bridge::Downstream(port) => routes(port, Side::Downstream)?,
            Bridge::Root(_) | Bridge::Other(_) => {}
        }
    }
    Ok(())
}

fn completes(port: &RootPort, width: Width) -> Result<(), Denial> {
    if port.completes(width) {
        Ok(())
    } else {
        Err(Denial::RootPortNotCompleter {
            addr: port.addr(),
            width,
        })
    }
}

fn routes(port: &SwitchPort, side: Side) -> Result<(), Denial> {
    if port.routes_atomic_ops() {
        Ok(())
    } else {
        Err(Denial::SwitchNoRouting {
            addr: port.addr(),
            side,
        })
    }
}

fn upstream_port_routes(port: &UpstreamPort) -> Result<(), Denial> {
    routes(port.as_switch_port(), Side::Upstream)
}

fn lets_out(port: &UpstreamPort) -> Result<(), Denial> {
    if port.blocks_egress() {
        Err(Denial::EgressBlocked { addr: port.addr() })
    } else {
        Ok(())
    }
}

/// A running kernel, as far as its release text tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    release: Option<String>,
    version: Option<(u32, u32, u32)>,
    /// Whether the release is spelled as upstream or Debian spell theirs.
    vanilla: bool,
}

impl Kernel {
    /// From the text of `/proc/sys/kernel/osrelease`, such as `6.17.2-1-pve`.
    pub fn parse(text: &str) -> Self {
        let release = text.trim();
        let parsed = version(release);
        Self {
            release: (!release.is_empty()).then(|| release.to_owned()),
            version: parsed.map(|(version, _)| version),
            vanilla: parsed.is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with("+deb")),
        }
    }

    /// A kernel whose release could not be read.
    pub const fn unknown() -> Self {
        Self {
            release: None,
            version: None,
            vanilla: false,
        }
    }

    /// The release text.
    pub fn release(&self) -> Option<&str> {
        self.release.as_deref()
    }

    /// Whether its vfio-pci reports `AtomicOps` at all (6.5 and later); `None` if the version is not known.
    pub fn reports_atomic_ops(&self) -> Option<bool> {
        self.version.map(|version| version >= (6, 5, 0))
    }

    /// The revisions it may have, old to new, never none.
    ///
    /// Only kernels of upstream or Debian in series whose change logs were read have exactly one.
    pub fn revisions(&self) -> &'static [Revision] {
        match self.version.filter(|_| self.vanilla) {
            Some((6, 12, 0..=93)) => &[Revision::Original],
            Some((6, 12, 94..=112)) => &[Revision::RootPortRequired],
            Some((6, 12, _)) => &[Revision::AlreadyEnabledAccepted],
            Some(version) if version >= (7, 2, 13) => &[Revision::IntegratedRefused],
            _ => &Revision::ALL,
        }
    }
}

/// The leading `major.minor[.patch]` of a release, and what follows it.
fn version(release: &str) -> Option<((u32, u32, u32), &str)> {
    let (major, rest) = number(release)?;
    let (minor, rest) = number(rest.strip_prefix('.')?)?;
    let Some(after) = rest.strip_prefix('.') else {
        return Some(((major, minor, 0), rest));
    };
    let (patch, rest) = number(after)?;
    Some(((major, minor, patch), rest))
}

/// The decimal number that a text begins with, and what follows it.
pub(super) fn number(text: &str) -> Option<(u32, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    Some((digits.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::{Denial, Kernel, Revision, Side, enable_atomic_ops_to_root};
    use crate::pci::Width;
    use crate::pci::express::PortType;
    use crate::pci::roles;
    use crate::rules::testing::*;

    const GPU: &str = "0000:0b:00.0";

    fn ask(host: &Host, width: Width, revision: Revision) -> Result<(), Denial> {
        enable_atomic_ops_to_root(&roles::trace(&host.0, at(GPU)), width, revision)
    }

    /// The answer for 32 bit, which has to be the same under every revision.
    fn always(host: &Host) -> Result<(), Denial> {
        let answers = Revision::ALL.map(|revision| ask(host, Width::W32, revision));
        for answer in &answers {
            assert_eq!(answer, &answers[0]);
        }
        answers[0].clone()
    }

    #[test]
    fn succeeds_below_a_root_port_and_behind_switches() {
        assert_eq!(always(&direct()), Ok(()));
        assert_eq!(always(&switched()), Ok(()));
        let legacy = direct().with(GPU, "0000:00:03.1", LEGACY_ENDPOINT, 0, 0);
        assert_eq!(always(&legacy), Ok(()));
        // A bridge from or to conventional PCI is passed over, with or without a capability.
        for flags in [PCI_BRIDGE, 0] {
            let host = direct()
                .with("0000:0a:00.0", "0000:00:03.1", flags, 0, BLOCKS)
                .with(GPU, "0000:0a:00.0", ENDPOINT, 0, 0);
            assert_eq!(always(&host), Ok(()));
        }
    }

    #[test]
    fn asks_each_width_on_its_own() {
        let host = direct().with("0000:00:03.1", "", ROOT_PORT, C64, 0);
        for revision in Revision::ALL {
            assert_eq!(ask(&host, Width::W64, revision), Ok(()));
            for width in [Width::W32, Width::W128] {
                let addr = at("0000:00:03.1");
                assert_eq!(
                    ask(&host, width, revision),
                    Err(Denial::RootPortNotCompleter { addr, width })
                );
            }
        }
    }

    #[test]
    fn ignores_what_upstream_ignores() {
        // Routing of the root port, egress blocking of root and downstream ports, bits of the device.
        let host = switched()
            .with("0000:00:03.1", "", ROOT_PORT, C32, BLOCKS)
            .with(
                "0000:02:01.0",
                "0000:01:00.0",
                DOWNSTREAM_PORT,
                ROUTES,
                BLOCKS,
            )
            .with(GPU, "0000:02:01.0", ENDPOINT, 0, BLOCKS);
        assert_eq!(always(&host), Ok(()));
    }

    #[test]
    fn refuses_virtual_functions() {
        let host = direct().virtual_of(GPU, "0000:00:03.1");
        assert_eq!(
            always(&host),
            Err(Denial::VirtualFunction { addr: at(GPU) })
        );
    }

    #[test]
    fn refuses_conventional_devices() {
        let host = direct().with(GPU, "0000:00:03.1", 0, 0, 0);
        assert_eq!(always(&host), Err(Denial::NotExpress { addr: at(GPU) }));
    }

    #[test]
    fn refuses_other_types_than_endpoints() {
        for (flags, port_type) in [
            (EVENT_COLLECTOR, PortType::EventCollector),
            (UPSTREAM_PORT, PortType::UpstreamPort),
            (PCI_BRIDGE, PortType::PcieToPciBridge),
            (0x00f2, PortType::Reserved(15)),
        ] {
            let host = direct().with(GPU, "0000:00:03.1", flags, C32, REQUESTER);
            let addr = at(GPU);
            assert_eq!(always(&host), Err(Denial::DeviceType { addr, port_type }));
        }
    }

    #[test]
    fn refuses_switch_ports_that_do_not_route() {
        for (port, parent, flags, side) in [
            (
                "0000:01:00.0",
                "0000:00:03.1",
                UPSTREAM_PORT,
                Side::Upstream,
            ),
            (
                "0000:02:01.0",
                "0000:01:00.0",
                DOWNSTREAM_PORT,
                Side::Downstream,
            ),
        ] {
            let denied = Err(Denial::SwitchNoRouting {
                addr: at(port),
                side,
            });
            let host = switched().with(port, parent, flags, C32 | C64 | C128, 0);
            assert_eq!(always(&host), denied);
            // A version 1 capability has no such bit, whatever the bytes there are.
            let host = switched().with(port, parent, flags & !3 | 1, ROUTES, 0);
            assert_eq!(always(&host), denied);
        }
    }

    #[test]
    fn refuses_an_upstream_port_that_blocks_egress() {
        let port = "0000:01:00.0";
        let blocking = switched().with(port, "0000:00:03.1", UPSTREAM_PORT, ROUTES, BLOCKS);
        assert_eq!(
            always(&blocking),
            Err(Denial::EgressBlocked { addr: at(port) })
        );
    }

    #[test]
    fn refuses_a_root_port_that_does_not_complete() {
        let denied = Err(Denial::RootPortNotCompleter {
            addr: at("0000:00:03.1"),
            width: Width::W32,
        });
        let host = direct().with("0000:00:03.1", "", ROOT_PORT, ROUTES | C64 | C128, 0);
        assert_eq!(always(&host), denied);
        // Bits where DEVCAP2 would be, in a version 1 capability.
        let host = direct().with("0000:00:03.1", "", 0x0141, C32, 0);
        assert_eq!(always(&host), denied);
    }

    #[test]
    fn without_a_root_port_the_revision_decides() {
        use Revision::{AlreadyEnabledAccepted, IntegratedRefused, Original, RootPortRequired};
        let none = Err(Denial::NoRootPort { addr: at(GPU) });
        let integrated = Err(Denial::DeviceType {
            addr: at(GPU),
            port_type: PortType::IntegratedEndpoint,
        });
        for (flags, control, expected) in [
            (
                ENDPOINT,
                0,
                [Ok(()), none.clone(), none.clone(), none.clone()],
            ),
            (ENDPOINT, REQUESTER, [Ok(()), none.clone(), Ok(()), Ok(())]),
            (
                INTEGRATED,
                0,
                [Ok(()), none.clone(), none.clone(), integrated.clone()],
            ),
            (
                INTEGRATED,
                REQUESTER,
                [Ok(()), none.clone(), Ok(()), integrated.clone()],
            ),
            // Version 1 has no requester enable to be set.
            (
                ENDPOINT & !3 | 1,
                REQUESTER,
                [Ok(()), none.clone(), none.clone(), none.clone()],
            ),
        ] {
            let host = Host::default().with(GPU, "", flags, C32, control);
            for (revision, expected) in [
                Original,
                RootPortRequired,
                AlreadyEnabledAccepted,
                IntegratedRefused,
            ]
            .into_iter()
            .zip(expected)
            {
                assert_eq!(
                    ask(&host, Width::W32, revision),
                    expected,
                    "{flags:#06x} {control:#06x} {revision:?}"
                );
            }
        }
    }

    #[test]
    fn an_integrated_endpoint_below_a_root_port_depends_on_the_revision() {
        let host = direct().with(GPU, "0000:00:03.1", INTEGRATED, C32, REQUESTER);
        for revision in &Revision::ALL[..3] {
            assert_eq!(ask(&host, Width::W32, *revision), Ok(()));
        }
        assert!(matches!(
            ask(&host, Width::W32, Revision::IntegratedRefused),
            Err(Denial::DeviceType { .. })
        ));
    }

    #[test]
    fn the_first_condition_that_fails_is_named_in_the_order_of_the_revision() {
        // Everything fails: the downstream port, the upstream port twice, the root port.
        let host = switched()
            .with("0000:00:03.1", "", ROOT_PORT, 0, 0)
            .with("0000:01:00.0", "0000:00:03.1", UPSTREAM_PORT, 0, BLOCKS)
            .with("0000:02:01.0", "0000:01:00.0", DOWNSTREAM_PORT, 0, 0);
        let place = |host: &Host, revision| ask(host, Width::W32, revision).unwrap_err().addr();
        assert_eq!(place(&host, Revision::Original), at("0000:02:01.0"));
        assert_eq!(place(&host, Revision::RootPortRequired), at("0000:00:03.1"));
        // On one upstream port: routing first in the original, egress first later.
        let host = switched().with("0000:01:00.0", "0000:00:03.1", UPSTREAM_PORT, 0, BLOCKS);
        assert!(matches!(
            ask(&host, Width::W32, Revision::Original),
            Err(Denial::SwitchNoRouting { .. })
        ));
        assert!(matches!(
            ask(&host, Width::W32, Revision::RootPortRequired),
            Err(Denial::EgressBlocked { .. })
        ));
    }

    #[test]
    fn what_could_not_be_read_is_never_a_no() {
        let gone = [0xff; 256];
        let header = config(ROOT_PORT, C32 | C64, 0);
        for (host, addr) in [
            (
                direct().with_bytes("0000:00:03.1", "", &gone),
                "0000:00:03.1",
            ),
            (
                direct().with_bytes("0000:00:03.1", "", &header[..64]),
                "0000:00:03.1",
            ),
            (
                switched().with_bytes("0000:01:00.0", "0000:00:03.1", &gone),
                "0000:01:00.0",
            ),
            (direct().with_bytes(GPU, "0000:00:03.1", &gone), GPU),
            // A bridge that is not there at all.
            (
                direct().with(GPU, "0000:00:01.0", ENDPOINT, C32, 0),
                "0000:00:01.0",
            ),
            (Host::default(), GPU),
            // Another port refuses, but the one that can't be read comes with it.
            (
                switched().with_bytes("0000:00:03.1", "", &gone).with(
                    "0000:02:01.0",
                    "0000:01:00.0",
                    DOWNSTREAM_PORT,
                    0,
                    0,
                ),
                "0000:00:03.1",
            ),
        ] {
            let denial = always(&host).unwrap_err();
            assert!(matches!(denial, Denial::Unreadable(_)), "{denial:?}");
            assert_eq!(denial.addr(), at(addr));
        }
    }

    #[test]
    fn bridges_in_a_circle_end() {
        let host = direct()
            .with("0000:01:00.0", "0000:02:01.0", UPSTREAM_PORT, ROUTES, 0)
            .with("0000:02:01.0", "0000:01:00.0", DOWNSTREAM_PORT, ROUTES, 0)
            .with(GPU, "0000:02:01.0", ENDPOINT, C32, 0);
        assert!(matches!(always(&host), Err(Denial::Unreadable(_))));
    }

    #[test]
    fn names_the_place_for_people() {
        let host = switched().with("0000:02:01.0", "0000:01:00.0", DOWNSTREAM_PORT, 0, 0);
        assert_eq!(
            always(&host).unwrap_err().to_string(),
            "0000:02:01.0, a downstream switch port, does not route AtomicOps"
        );
    }

    #[test]
    fn kernels_tell_their_revision_only_where_change_logs_were_read() {
        use Revision::{AlreadyEnabledAccepted, IntegratedRefused, Original, RootPortRequired};
        for (release, reports, revisions) in [
            ("6.12.0", Some(true), &[Original][..]),
            ("6.12.93+deb13-amd64\n", Some(true), &[Original]),
            ("6.12.94+deb13-amd64", Some(true), &[RootPortRequired]),
            ("6.12.112", Some(true), &[RootPortRequired]),
            (
                "6.12.113+deb13-rt-amd64",
                Some(true),
                &[AlreadyEnabledAccepted],
            ),
            (
                "6.12.117+deb13-amd64",
                Some(true),
                &[AlreadyEnabledAccepted],
            ),
            ("7.2.12", Some(true), &Revision::ALL),
            ("7.2.13+deb14-amd64", Some(true), &[IntegratedRefused]),
            ("7.10", Some(true), &[IntegratedRefused]),
            ("7.3.0-rc5", Some(true), &Revision::ALL),
            ("6.12.20-1-pve", Some(true), &Revision::ALL),
            ("6.17.2-1-pve", Some(true), &Revision::ALL),
            ("6.8.0-138-generic", Some(true), &Revision::ALL),
            ("6.5.0", Some(true), &Revision::ALL),
            ("6.4.99-1-pve", Some(false), &Revision::ALL),
            ("6.2.16-20-pve", Some(false), &Revision::ALL),
            ("5.15.108-1-pve", Some(false), &Revision::ALL),
            ("10.0.1-1-pve", Some(true), &Revision::ALL),
            ("", None, &Revision::ALL),
            ("6", None, &Revision::ALL),
            ("6.", None, &Revision::ALL),
            ("v6.12.1", None, &Revision::ALL),
            ("6.99999999999.1", None, &Revision::ALL),
        ] {
            let kernel = Kernel::parse(release);
            assert_eq!(kernel.reports_atomic_ops(), reports, "{release}");
            assert_eq!(kernel.revisions(), revisions, "{release}");
        }
        assert_eq!(
            Kernel::parse("6.17.2-1-pve\n").release(),
            Some("6.17.2-1-pve")
        );
        assert_eq!(Kernel::parse("\n"), Kernel::unknown());
    }
}
