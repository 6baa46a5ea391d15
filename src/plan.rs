//! From verdicts to edits: which `hostpci` values give the guest its `AtomicOps` back.
//!
//! Pure. *Explicit*: the entry keeps only the function that needs `AtomicOps`. *Split*: every other function of the
//! entry moves to a free index, on a root port of its own. *Auto*: split where enough indices are free, else explicit.
//! Mappings belong to the cluster and machine types to the guest that is installed: for those there is advice only.

use std::collections::{BTreeMap, BTreeSet};

use crate::pci::Sbdf;
use crate::report::escape;
use crate::settings::Strategy;
use crate::verdict::Reason;
use crate::vmconf::hostpci::{self, Hostpci};
use crate::vmconf::{HostpciIndex, Vmid};

/// One function of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Address on the host.
    pub addr: Sbdf,
    /// The address in the user's spelling, with or without domain.
    pub spelling: String,
    /// Whether the policy counts it as a device that needs `AtomicOps`.
    pub needs_atomic_ops: bool,
    /// IOMMU group.
    pub iommu_group: Option<u32>,
}

/// An entry that loses `AtomicOps`.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its index.
    pub index: HostpciIndex,
    /// Its value as in the configuration.
    pub value: &'a str,
    /// The same by schema.
    pub options: &'a Hostpci,
    /// Why they are lost.
    pub reason: Reason,
    /// Its functions in the guest's order.
    pub members: Vec<Member>,
    /// Which member the verdict rests on.
    pub subject: usize,
    /// Words of the subject's `reset_method`.
    pub reset_methods: Option<Vec<String>>,
}

/// What a plan has to know of the VM.
#[derive(Clone, Debug)]
pub struct Guest {
    /// The VM.
    pub vmid: Vmid,
    /// Whether its OS type is a Windows.
    pub windows: bool,
    /// Indices that are not free: those in use, those whose line Proxmox drops, and pending ones.
    pub taken: BTreeSet<HostpciIndex>,
    /// Indices whose device sits on a root port.
    pub on_port: BTreeSet<HostpciIndex>,
}

/// How an entry is repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only the function that needs `AtomicOps` stays.
    Explicit,
    /// The other functions move to indices of their own.
    Split,
    /// A person has to decide: the guest's hardware changes.
    Advice,
}

impl Kind {
    /// The word in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Explicit => "explicit",
            Self::Split => "split",
            Self::Advice => "advice",
        }
    }
}

/// The repair of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// How.
    pub kind: Kind,
    /// New values by index.
    pub set: BTreeMap<HostpciIndex, String>,
    /// Whether the machine has to become q35 as well.
    pub to_q35: bool,
    /// What to know before.
    pub notes: Vec<String>,
}

impl Repair {
    /// The `qm set` call, word by word.
    pub fn words(&self, vmid: Vmid) -> Vec<String> {
        let mut words = vec!["qm".to_owned(), "set".to_owned(), vmid.to_string()];
        if self.to_q35 {
            words.extend(["--machine".to_owned(), "q35".to_owned()]);
        }
        for (index, value) in &self.set {
            words.extend([format!("--{index}"), value.clone()]);
        }
        words
    }
}

/// Why an entry is not repaired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRepair {
    /// QEMU before 8.1.
    #[error("QEMU before 8.1 never offers AtomicOps: upgrade pve-qemu-kvm")]
    QemuTooOld,
    /// OS type win7.
    #[error(
        "Proxmox puts the devices of a win7 guest right on the root bus: only another ostype changes that"
    )]
    Win7,
    /// The place comes from somewhere else.
    #[error("this entry's place in the guest is not of its own choosing")]
    Place,
    /// Explicit form would take a device away that needs `AtomicOps` itself.
    #[error("the explicit form would take {0} from the VM; strategy split keeps it")]
    TakesDevice(Sbdf),
    /// No index for a function that would have to move.
    #[error(
        "no free hostpci index for {0}: a split needs one for each function that moves, and there are 16 in all"
    )]
    NoIndex(Sbdf),
    /// The value names no host.
    #[error("the value names no host address")]
    NoHost,
}

/// Plans the repair of each candidate, in order: indices that one takes are not free for the next.
pub fn plan(
    guest: &Guest,
    candidates: &[Candidate],
    strategy: Strategy,
) -> Vec<Result<Repair, NoRepair>> {
    let mut indices = Indices {
        taken: guest.taken.clone(),
        on_port: guest.on_port.clone(),
    };
    candidates
        .iter()
        .map(|candidate| repair(guest, candidate, strategy, &mut indices))
        .collect()
}

fn repair(
    guest: &Guest,
    candidate: &Candidate,
    strategy: Strategy,
    indices: &mut Indices,
) -> Result<Repair, NoRepair> {
    let advice = match candidate.reason {
        Reason::Multifunction => false,
        Reason::NotPcieEntry | Reason::NotQ35 => true,
        Reason::QemuTooOld => return Err(NoRepair::QemuTooOld),
        Reason::NoRootPort => return Err(NoRepair::Win7),
        Reason::NotRootPort | Reason::FunctionNotZero => return Err(NoRepair::Place),
    };
    let mut repair = match strategy {
        Strategy::Explicit => explicit(guest, candidate)?,
        Strategy::Split => split(guest, candidate, indices)?,
        Strategy::Auto => match split(guest, candidate, indices) {
            Err(NoRepair::NoIndex(_)) => explicit(guest, candidate)?,
            other => other?,
        },
    };
    if advice {
        repair.kind = Kind::Advice;
        repair.to_q35 = candidate.reason == Reason::NotQ35;
        for value in repair.set.values_mut() {
            *value = with_pcie(value);
        }
        repair.notes.insert(0, if repair.to_q35 {
            "another machine type changes the guest's whole hardware (network names, Windows activation): \
             make a backup first"
                .to_owned()
        } else {
            "pcie=1 moves the device to another place in the guest".to_owned()
        });
    }
    Ok(repair)
}

/// The candidate's value with only this function as host.
fn narrowed(candidate: &Candidate, member: &Member) -> Result<String, NoRepair> {
    hostpci::with_host(candidate.value, &member.spelling).ok_or(NoRepair::NoHost)
}

fn explicit(guest: &Guest, candidate: &Candidate) -> Result<Repair, NoRepair> {
    let (subject, others) = subject_and_others(candidate)?;
    if let Some(other) = others.iter().find(|other| other.needs_atomic_ops) {
        return Err(NoRepair::TakesDevice(other.addr));
    }
    let mut notes = Vec::new();
    if !others.is_empty() {
        let (stay, them) = if others.len() == 1 {
            ("stays", "it")
        } else {
            ("stay", "them")
        };
        notes.push(format!(
            "{} {stay} on the host; strategy split keeps {them} in the VM",
            list(&others)
        ));
    }
    let only_bus = candidate
        .reset_methods
        .as_ref()
        .is_some_and(|methods| matches!(methods.as_slice(), [only] if only == "bus"));
    let apart = |other: &&&Member| other.iommu_group != subject.iommu_group;
    if let Some(other) = others.iter().find(apart).filter(|_| only_bus) {
        notes.push(format!(
            "{} can be reset only with its whole bus, and {} stays outside the VM in another IOMMU group: the card may \
             not be reset between two starts; strategy split is recommended",
            subject.addr, other.addr
        ));
    }
    if guest.windows && !others.is_empty() {
        notes.push("some Windows drivers refuse to work without the other functions; strategy split keeps them".to_owned());
    }
    if candidate.subject != 0 {
        notes.push(format!(
            "{} gets another address in the guest",
            subject.addr
        ));
    }
    let set = BTreeMap::from([(candidate.index, narrowed(candidate, subject)?)]);
    Ok(Repair {
        kind: Kind::Explicit,
        set,
        to_q35: false,
        notes,
    })
}

fn split(guest: &Guest, candidate: &Candidate, indices: &mut Indices) -> Result<Repair, NoRepair> {
    let (subject, others) = subject_and_others(candidate)?;
    let mut trial = indices.clone();
    let mut set = BTreeMap::from([(candidate.index, narrowed(candidate, subject)?)]);
    let mut moves = Vec::new();
    for other in &others {
        let index = trial.take().ok_or(NoRepair::NoIndex(other.addr))?;
        set.insert(
            index,
            hostpci::split_value(candidate.options, &other.spelling),
        );
        moves.push(format!("{} to {index}", other.addr));
    }
    *indices = trial;
    let mut notes = Vec::new();
    if !moves.is_empty() {
        notes.push(format!(
            "moves {}: the guest sees other PCI addresses for what moves",
            moves.join(", ")
        ));
    }
    if guest.windows && !moves.is_empty() {
        notes.push("Windows installs its drivers anew for functions that move".to_owned());
    }
    Ok(Repair {
        kind: Kind::Split,
        set,
        to_q35: false,
        notes,
    })
}

fn subject_and_others<'a>(
    candidate: &'a Candidate,
) -> Result<(&'a Member, Vec<&'a Member>), NoRepair> {
    let subject = candidate
        .members
        .get(candidate.subject)
        .ok_or(NoRepair::NoHost)?;
    let others = candidate
        .members
        .iter()
        .filter(|member| member.addr != subject.addr)
        .collect();
    Ok((subject, others))
}

fn list(members: &[&Member]) -> String {
    let addresses: Vec<_> = members
        .iter()
        .map(|member| member.addr.to_string())
        .collect();
    match addresses.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// The value with `pcie=1`, whatever it says now.
fn with_pcie(value: &str) -> String {
    let kept: Vec<_> = value
        .split(',')
        .filter(|part| !part.starts_with("pcie="))
        .collect();
    format!("{},pcie=1", kept.join(","))
}

/// The `hostpci` indices of a VM while a plan is made.
#[derive(Clone)]
struct Indices {
    taken: BTreeSet<HostpciIndex>,
    on_port: BTreeSet<HostpciIndex>,
}

impl Indices {
    /// Takes the lowest free index whose root port firmware will find.
    ///
    /// Proxmox adds the ports of indices 4 to 11 as functions of one slot and those of 12 to 15 as functions of another.
    /// Firmware looks for further functions only where function 0 is there, so 5 is no place without 4.
    fn take(&mut self) -> Option<HostpciIndex> {
        let found = HostpciIndex::all().find(|index| {
            let first = match index.get() {
                5..=11 => HostpciIndex::new(4),
                13..=15 => HostpciIndex::new(12),
                _ => None,
            };
            !self.taken.contains(index) && first.is_none_or(|first| self.on_port.contains(&first))
        })?;
        self.taken.insert(found);
        self.on_port.insert(found);
        Some(found)
    }
}

/// The command that repairs a cluster mapping, word by word: the mapping's values with new paths.
///
/// `pvesh set` replaces the whole list, so the other nodes' values are repeated as they are.
pub fn mapping_words<S: AsRef<str>>(
    name: &str,
    values: impl IntoIterator<Item = S>,
) -> Vec<String> {
    let mut words = vec![
        "pvesh".to_owned(),
        "set".to_owned(),
        format!("/cluster/mapping/pci/{name}"),
    ];
    for value in values {
        words.extend(["--map".to_owned(), value.as_ref().to_owned()]);
    }
    words
}

/// A mapping's value for one function instead of all: path, and what Proxmox compares with the hardware.
pub fn narrow_mapping(
    value: &str,
    path: &str,
    id: &str,
    subsystem: Option<&str>,
    group: Option<u32>,
) -> String {
    let parts = value
        .split(',')
        .filter_map(|part| match part.split_once('=') {
            Some(("path", _)) => Some(format!("path={path}")),
            Some(("id", _)) => Some(format!("id={id}")),
            Some(("subsystem-id", _)) => {
                subsystem.map(|subsystem| format!("subsystem-id={subsystem}"))
            }
            Some(("iommugroup", _)) => group.map(|group| format!("iommugroup={group}")),
            _ => Some(part.to_owned()),
        });
    parts.collect::<Vec<_>>().join(",")
}

/// The command of a repair for copying.
pub fn command(words: &[String]) -> String {
    escape::command(words)
}
