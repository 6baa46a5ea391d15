//! `choose_hostpci_devices`: which alternative each entry takes, while no other VM holds a device.

use std::collections::BTreeSet;

use super::{Entry, Mediated, Refusal};
use crate::pci::Sbdf;

/// Chooses for every entry that has no refusal yet, by index.
pub(super) fn choose(entries: &mut [Entry]) {
    let mut used = BTreeSet::new();
    for entry in entries {
        if entry.refusal.is_some() || entry.alternatives.is_empty() {
            continue;
        }
        // Mediated devices are allocated later, and any number of them can share a function.
        if entry.mediated == Mediated::Mdev {
            entry.chosen = Some(0);
            continue;
        }
        let free = match entry.alternatives.as_slice() {
            // The only one is taken without looking, so that a function that is in use is an error of its own.
            [_] => Some(0),
            several => several
                .iter()
                .position(|one| !one.hosts.iter().any(|host| used.contains(host))),
        };
        entry.chosen = free;
        entry.refusal = match free.and_then(|index| entry.alternatives.get(index)) {
            None => Some(Refusal::NoFreeDevice(entry.index)),
            Some(chosen) => take(&mut used, &chosen.hosts)
                .err()
                .map(|function| Refusal::AssignedTwice { function }),
        };
    }
}

/// Marks functions as used; the first that was used already is the error.
fn take(used: &mut BTreeSet<Sbdf>, hosts: &[Sbdf]) -> Result<(), Sbdf> {
    for host in hosts {
        if !used.insert(*host) {
            return Err(*host);
        }
    }
    Ok(())
}
