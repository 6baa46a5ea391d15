//! `/etc/pve/ha/resources.cfg`: which VMs the cluster's high availability manages.
//!
//! A VM that it manages is started and stopped by it, not by the one who asks. `state ignored` switches that off for a
//! VM, as in `PVE::HA::Config` (pve-ha-manager).

use std::collections::BTreeSet;

use super::Vmid;
use super::section_config::{self, HeaderLine};

/// The VMs that high availability manages. What does not fit is passed over: it manages nothing.
pub fn managed(bytes: &[u8]) -> BTreeSet<Vmid> {
    let text = String::from_utf8_lossy(bytes);
    let header = |line| match section_config::type_and_name(line) {
        Some(header) => HeaderLine::Yes(header),
        None => HeaderLine::No,
    };
    let (sections, _) = section_config::read(&text, header, |(_, name)| (*name).to_owned());
    let mut managed = BTreeSet::new();
    for section in sections {
        let (kind, name) = section.header;
        let Ok(vmid) = name.parse::<Vmid>() else {
            continue;
        };
        if !kind.eq_ignore_ascii_case("vm") {
            continue;
        }
        let state = section
            .settings
            .iter()
            .find(|setting| setting.key == "state")
            .and_then(|setting| setting.value);
        // A later section of the same VM counts.
        if state == Some("ignored") {
            managed.remove(&vmid);
        } else {
            managed.insert(vmid);
        }
    }
    managed
}

#[cfg(test)]
mod tests {
    use super::{Vmid, managed};

    fn numbers(text: &[u8]) -> Vec<u32> {
        managed(text).into_iter().map(Vmid::get).collect()
    }

    #[test]
    fn vms_are_listed_unless_ignored() {
        let text = b"vm: 101\n\tgroup a\n\tstate started\n\nct: 102\n\nvm:103\n\tstate ignored\n\n\
            VM: 104\n\nvm: 0105\n\nvm: 99\n\nvm: 106\n\tstate stopped\n";
        assert_eq!(numbers(text), [101, 104, 106]);
    }

    #[test]
    fn anything_else_manages_nothing() {
        for text in [
            b"".as_slice(),
            b"vm 101\n",
            b"# vm: 101\n",
            b"vm: 101x\n",
            b"\xff\n",
        ] {
            assert_eq!(numbers(text), [0_u32; 0], "{text:?}");
        }
    }
}
