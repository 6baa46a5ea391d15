//! vfio-pci: which widths it reports to QEMU for a device.
//!
//! Source: `vfio_pci_info_atomic_cap` in `drivers/vfio/pci/vfio_pci_core.c`, Linux 6.5 and later. It tests each width on
//! its own, on the physical function where the device is a virtual one: first the function's own completer bit, then
//! [`linux::enable_atomic_ops_to_root`]. The answer is fixed when QEMU opens the device; what QEMU makes of it is in
//! [`super::qemu`].

use super::linux::{self, Kernel};
use crate::pci::roles::{self, Trace, Unreadable};
use crate::pci::{Sbdf, Topology, Width, Widths};

/// What the host offers for one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAnswer {
    /// The widths that vfio-pci reports under every revision the kernel may have.
    pub widths: Widths,
    /// Why a width is missing: the first one that the function completes itself, 32 before 64 before 128 bit. Always
    /// there when `widths` is empty, `None` if every width of the function is reported.
    pub denial: Option<HostDenial>,
    /// What the answer depends on, in a sentence for people, where that can't be seen. `widths` is then the cautious
    /// answer.
    pub uncertain: Option<String>,
}

/// Why vfio-pci does not report a width.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostDenial {
    /// The kernel does not report `AtomicOps` for any device.
    #[error("the kernel {release} is older than 6.5 and does not report AtomicOps to QEMU")]
    KernelTooOld {
        /// The function that was asked for.
        addr: Sbdf,
        /// The kernel's release.
        release: String,
    },
    /// The function has no PCI Express capability.
    #[error("{addr} is not a PCI Express device")]
    NotExpress {
        /// The function, or its physical function.
        addr: Sbdf,
    },
    /// The function's PCI Express capability is too old to have DEVCAP2.
    #[error("{addr} has a PCI Express capability of version 1, without AtomicOp bits")]
    NoDevcap2 {
        /// The function, or its physical function.
        addr: Sbdf,
    },
    /// The function completes no width itself.
    #[error("{addr} does not complete AtomicOps itself, which vfio-pci asks for")]
    EndpointNotCompleter {
        /// The function, or its physical function.
        addr: Sbdf,
    },
    /// The function itself could not be read, so the answer is not known.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The kernel refuses on the way to the host root port.
    #[error(transparent)]
    Path(#[from] linux::Denial),
}

impl HostDenial {
    /// The word for it in JSON.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::KernelTooOld { .. } => "kernel-too-old",
            Self::NotExpress { .. } | Self::Path(linux::Denial::NotExpress { .. }) => "not-pcie",
            Self::NoDevcap2 { .. } => "no-devcap2",
            Self::EndpointNotCompleter { .. } => "endpoint-not-completer",
            Self::Unreadable(_) | Self::Path(linux::Denial::Unreadable(_)) => "unreadable",
            Self::Path(
                linux::Denial::VirtualFunction { .. } | linux::Denial::DeviceType { .. },
            ) => "device-type",
            Self::Path(linux::Denial::SwitchNoRouting { .. }) => "switch-no-routing",
            Self::Path(linux::Denial::EgressBlocked { .. }) => "egress-blocked",
            Self::Path(linux::Denial::RootPortNotCompleter { .. }) => "root-port-not-completer",
            Self::Path(linux::Denial::NoRootPort { .. }) => "no-root-port",
        }
    }

    /// The function where it failed.
    pub const fn addr(&self) -> Sbdf {
        match self {
            Self::KernelTooOld { addr, .. }
            | Self::NotExpress { addr }
            | Self::NoDevcap2 { addr }
            | Self::EndpointNotCompleter { addr } => *addr,
            Self::Unreadable(unreadable) => unreadable.addr,
            Self::Path(denial) => denial.addr(),
        }
    }

    /// Whether something could not be read, so that this is no refusal at all.
    pub const fn is_unreadable(&self) -> bool {
        matches!(
            self,
            Self::Unreadable(_) | Self::Path(linux::Denial::Unreadable(_))
        )
    }
}

/// What vfio-pci reports for one function on this kernel.
pub fn host_answer(topology: &Topology, addr: Sbdf, kernel: &Kernel) -> HostAnswer {
    if kernel.reports_atomic_ops() == Some(false) {
        return refuse(HostDenial::KernelTooOld {
            addr,
            release: kernel.release().unwrap_or_default().to_owned(),
        });
    }
    let path = roles::trace(topology, topology.physical(addr));
    let own = match own_widths(&path) {
        Ok(own) => own,
        Err(denial) => return refuse(denial),
    };

    let mut denial = None;
    let mut answers = vec![Widths::NONE; kernel.revisions().len()];
    for width in own.iter() {
        for (revision, answer) in kernel.revisions().iter().zip(&mut answers) {
            match linux::enable_atomic_ops_to_root(&path, width, *revision) {
                Ok(()) => *answer = answer.with(width),
                Err(error) => {
                    denial.get_or_insert(HostDenial::Path(error));
                }
            }
        }
    }
    let widths = answers.iter().copied().fold(own, Widths::intersection);
    HostAnswer {
        widths,
        denial,
        uncertain: uncertain(kernel, &answers),
    }
}

const fn refuse(denial: HostDenial) -> HostAnswer {
    HostAnswer {
        widths: Widths::NONE,
        denial: Some(denial),
        uncertain: None,
    }
}

/// The completer bits of the function itself, of which there is at least one.
fn own_widths(path: &Trace) -> Result<Widths, HostDenial> {
    let addr = path.addr;
    let requester = path.requester.as_ref().map_err(Clone::clone)?;
    let requester = requester.ok_or(HostDenial::NotExpress { addr })?;
    if !requester.has_devcap2() {
        return Err(HostDenial::NoDevcap2 { addr });
    }
    let own = requester.completes();
    if own.is_empty() {
        return Err(HostDenial::EndpointNotCompleter { addr });
    }
    Ok(own)
}

/// `answers` holds one entry for each of the kernel's revisions.
fn uncertain(kernel: &Kernel, answers: &[Widths]) -> Option<String> {
    let release = kernel.release().unwrap_or("unknown");
    if answers.windows(2).any(|pair| pair[0] != pair[1]) {
        let each: Vec<_> = kernel
            .revisions()
            .iter()
            .zip(answers)
            .map(|(revision, widths)| format!("{} with {revision}", words(*widths)))
            .collect();
        return Some(format!(
            "depends on the kernel's revision, which its release ({release}) does not tell: {}",
            each.join("; ")
        ));
    }
    if kernel.reports_atomic_ops().is_none() && answers.iter().any(|widths| !widths.is_empty()) {
        return Some(format!(
            "the kernel's version ({release}) is not known and was taken to be 6.5 or later"
        ));
    }
    None
}

fn words(widths: Widths) -> String {
    let bits: Vec<_> = widths
        .iter()
        .map(Width::bits)
        .map(|bits| bits.to_string())
        .collect();
    if bits.is_empty() {
        "nothing".to_owned()
    } else {
        format!("{} bit", bits.join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::{HostAnswer, HostDenial, host_answer};
    use crate::pci::{Width, Widths};
    use crate::rules::linux::Kernel;
    use crate::rules::testing::*;

    const GPU: &str = "0000:0b:00.0";
    const PVE: &str = "6.17.2-1-pve";

    fn answer(host: &Host, release: &str) -> HostAnswer {
        host_answer(&host.0, at(GPU), &Kernel::parse(release))
    }

    fn refusal(host: &Host, release: &str) -> (&'static str, String) {
        let answer = answer(host, release);
        assert!(answer.widths.is_empty());
        let denial = answer.denial.unwrap();
        (denial.reason(), denial.addr().to_string())
    }

    #[test]
    fn reports_what_the_device_and_the_path_complete() {
        for host in [direct(), switched()] {
            let answer = answer(&host, PVE);
            assert_eq!(
                answer,
                HostAnswer {
                    widths: Widths::W32_W64,
                    denial: None,
                    uncertain: None
                }
            );
        }
        // Some only on one side: the missing width keeps its reason.
        let host = direct().with(GPU, "0000:00:03.1", ENDPOINT, C64 | C128, 0);
        let answer = answer(&host, PVE);
        assert_eq!(answer.widths, Widths::NONE.with(Width::W64));
        assert_eq!(answer.denial.unwrap().reason(), "root-port-not-completer");
        assert_eq!(answer.uncertain, None);
    }

    #[test]
    fn every_reason_names_its_place() {
        let root = |devcap2| direct().with("0000:00:03.1", "", ROOT_PORT, devcap2, 0);
        let gpu = |flags, devcap2| direct().with(GPU, "0000:00:03.1", flags, devcap2, 0);
        let up = "0000:01:00.0";
        for (host, release, reason, addr) in [
            (direct(), "6.2.16-20-pve", "kernel-too-old", GPU),
            (gpu(0, 0), PVE, "not-pcie", GPU),
            (gpu(0x0001, C32), PVE, "no-devcap2", GPU),
            (gpu(ENDPOINT, ROUTES), PVE, "endpoint-not-completer", GPU),
            (gpu(EVENT_COLLECTOR, C32), PVE, "device-type", GPU),
            (
                switched().with(up, "0000:00:03.1", UPSTREAM_PORT, 0, 0),
                PVE,
                "switch-no-routing",
                up,
            ),
            (
                switched().with(up, "0000:00:03.1", UPSTREAM_PORT, ROUTES, BLOCKS),
                PVE,
                "egress-blocked",
                up,
            ),
            (root(0), PVE, "root-port-not-completer", "0000:00:03.1"),
            // Disjoint: the device does complete something, so the root port is to blame.
            (root(C128), PVE, "root-port-not-completer", "0000:00:03.1"),
            (
                direct().with(GPU, "", ENDPOINT, C32, 0),
                "6.12.94",
                "no-root-port",
                GPU,
            ),
            (
                direct().with_bytes("0000:00:03.1", "", &[0xff; 256]),
                PVE,
                "unreadable",
                "0000:00:03.1",
            ),
            (
                direct().with_bytes(GPU, "0000:00:03.1", &config(ENDPOINT, C32, 0)[..64]),
                PVE,
                "unreadable",
                GPU,
            ),
        ] {
            assert_eq!(refusal(&host, release), (reason, addr.to_owned()));
            assert_eq!(
                answer(&host, release).denial.unwrap().is_unreadable(),
                reason == "unreadable"
            );
        }
    }

    #[test]
    fn a_virtual_function_is_answered_by_its_physical_function() {
        let pf = "0000:0a:00.0";
        let host = |pf_completes, vf_completes| {
            direct()
                .with(pf, "0000:00:03.1", ENDPOINT, pf_completes, 0)
                .with(GPU, "0000:00:03.1", ENDPOINT, vf_completes, 0)
                .virtual_of(GPU, pf)
        };
        assert_eq!(answer(&host(C32 | C64, 0), PVE).widths, Widths::W32_W64);
        assert_eq!(
            refusal(&host(0, C32 | C64), PVE),
            ("endpoint-not-completer", pf.to_owned())
        );
        let missing = direct().virtual_of(GPU, pf);
        assert_eq!(refusal(&missing, PVE), ("unreadable", pf.to_owned()));
    }

    #[test]
    fn says_where_the_revision_decides() {
        let integrated = |control| Host::default().with(GPU, "", INTEGRATED, C32 | C64, control);
        // One known revision: no doubt.
        for (release, control, widths) in [
            ("6.12.93", 0, Widths::W32_W64),
            ("6.12.94", REQUESTER, Widths::NONE),
            ("6.12.117+deb13-amd64", REQUESTER, Widths::W32_W64),
            ("6.12.117+deb13-amd64", 0, Widths::NONE),
            ("7.2.13", REQUESTER, Widths::NONE),
        ] {
            let answer = answer(&integrated(control), release);
            assert_eq!(
                (answer.widths, answer.uncertain),
                (widths, None),
                "{release}"
            );
        }
        // Any revision: the cautious answer, and a sentence.
        let answer = answer(&integrated(0), PVE);
        assert_eq!(answer.widths, Widths::NONE);
        assert_eq!(answer.denial.unwrap().reason(), "no-root-port");
        let text = answer.uncertain.unwrap();
        assert!(
            text.starts_with(
                "depends on the kernel's revision, which its release (6.17.2-1-pve) does not tell: \
                 32 and 64 bit with the original rule; nothing with "
            ),
            "{text}"
        );
    }

    #[test]
    fn says_where_the_kernel_is_not_known() {
        let doubt = |host: &Host| host_answer(&host.0, at(GPU), &Kernel::unknown());
        let answer = doubt(&direct());
        assert_eq!(answer.widths, Widths::W32_W64);
        assert!(answer.uncertain.unwrap().contains("taken to be 6.5"));
        // Nothing is nothing under any kernel.
        let host = direct().with("0000:00:03.1", "", ROOT_PORT, 0, 0);
        assert_eq!(doubt(&host).uncertain, None);
    }

    #[test]
    fn names_the_old_kernel() {
        let denial = answer(&direct(), "6.2.16-20-pve").denial.unwrap();
        assert!(matches!(denial, HostDenial::KernelTooOld { .. }));
        assert!(denial.to_string().contains("6.2.16-20-pve"));
    }
}
