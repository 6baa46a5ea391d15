//! Makes an edit for a person: through `qm set` on a live host, through the store in a tree below `--root`.
//!
//! `qm set` composes the file itself, so that permissions, locks and pending changes are as Proxmox users know them. It
//! gets the digest of what was read, and refuses if the file is another one by then. The journal has the intent before,
//! and the digest found afterwards; what the file says decides whether the change was made, not the exit status alone.
//!
//! The hook does not come here: Proxmox holds the VM's lock around it, and `qm set` would wait for that in vain.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};

use crate::host::Host;
use crate::invoke;
use crate::repair;
use crate::report::escape;
use crate::store::journal::{Digest, Intent, Journal, Origin};
use crate::store::tree::Tree;
use crate::vmconf::decode::Config;
use crate::vmconf::document::Document;
use crate::vmconf::edit::{Edit, LineChange};
use crate::vmconf::{HostpciIndex, Vmid};

/// How long a journal or a VM's lock in a tree is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// An edit that a person asked for.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The host.
    pub host: &'a Host,
    /// Of which VM.
    pub vmid: Vmid,
    /// By which command.
    pub origin: Origin,
    /// The number of the journal entry that it takes back.
    pub undoes: Option<u64>,
    /// What changes.
    pub edit: &'a Edit,
    /// Whether what `qm` prints is kept away.
    pub quiet: bool,
}

/// When a change takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The VM does not run: when it is started.
    NextStart,
    /// It runs, and its process has the devices that it was started with: when Proxmox starts it anew.
    Pending,
}

impl Effect {
    /// The effect in words.
    pub fn in_words(self, vmid: Vmid) -> String {
        match self {
            Self::NextStart => {
                format!("VM {vmid} does not run: the change takes effect at its next start.")
            }
            Self::Pending => format!(
                "VM {vmid} is running, so the change waits. It takes effect when Proxmox starts the VM anew: at a full \
                 stop and start (`qm shutdown {vmid}`, then `qm start {vmid}`), or at a reboot through Proxmox \
                 (`qm reboot {vmid}`, or Reboot in the web interface). A reboot from inside the guest is not enough."
            ),
        }
    }
}

/// The values of the edit's keys after it; `None` for one that goes.
fn wanted(edit: &Edit) -> Vec<(HostpciIndex, Option<String>)> {
    let after = Document::parse(&edit.after).decode();
    let mut keys: Vec<_> = edit.changes.iter().map(|change| change.key).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter()
        .map(|key| (key, after.main.get(&key.to_string()).map(str::to_owned)))
        .collect()
}

/// The `qm set` call that makes an edit, word by word.
pub fn qm_set(vmid: Vmid, edit: &Edit) -> Vec<String> {
    let mut words = vec!["qm".to_owned(), "set".to_owned(), vmid.to_string()];
    let mut deleted = Vec::new();
    for (key, value) in wanted(edit) {
        match value {
            Some(value) => words.extend([format!("--{key}"), value]),
            None => deleted.push(key.to_string()),
        }
    }
    if !deleted.is_empty() {
        words.extend(["--delete".to_owned(), deleted.join(",")]);
    }
    words.extend([
        "--digest".to_owned(),
        crate::vmconf::document::digest(&edit.before),
    ]);
    words
}

/// A pending change of one of these keys, which an edit of them would silently replace: the key.
pub fn pending_key(config: &Config, changes: &[LineChange]) -> Option<HostpciIndex> {
    let mut keys = changes.iter().map(|change| change.key);
    keys.find(|key| is_pending(config, *key))
}

fn is_pending(config: &Config, key: HostpciIndex) -> bool {
    let key = key.to_string();
    config.pending.get(&key).is_some() || config.pending_deletions().any(|deleted| deleted == key)
}

/// Whether the edit's result is what is pending already.
pub fn is_pending_already(config: &Config, edit: &Edit) -> bool {
    !edit.is_empty()
        && wanted(edit)
            .iter()
            .all(|(key, value)| pending_as(config, *key, value.as_deref()))
}

fn pending_as(config: &Config, key: HostpciIndex, value: Option<&str>) -> bool {
    let key = key.to_string();
    match value {
        Some(value) => config.pending.get(&key) == Some(value),
        None => config.pending_deletions().any(|deleted| deleted == key),
    }
}

/// What became of an edit, as the configuration tells; `None` where it was not made.
fn outcome(config: &Config, edit: &Edit) -> Option<Effect> {
    let wanted = wanted(edit);
    let reached = |(key, value): &(HostpciIndex, Option<String>)| {
        if is_pending(config, *key) {
            pending_as(config, *key, value.as_deref()).then_some(Effect::Pending)
        } else {
            (config.main.get(&key.to_string()) == value.as_deref()).then_some(Effect::NextStart)
        }
    };
    let effects: Option<Vec<_>> = wanted.iter().map(reached).collect();
    effects.map(|effects| {
        if effects.contains(&Effect::Pending) {
            Effect::Pending
        } else {
            Effect::NextStart
        }
    })
}

impl Change<'_> {
    /// Makes the change, and tells when it takes effect.
    ///
    /// # Errors
    /// What `qm` or the store held against it. The journal notes whether the configuration changed all the same.
    pub fn make(&self) -> anyhow::Result<Effect> {
        if self.host.is_live() {
            self.make_live()
        } else {
            self.make_in_tree()
        }
    }

    /// When the change will take effect, as far as it can be told before it is made.
    pub fn expected_effect(&self) -> anyhow::Result<Effect> {
        Ok(if self.host.running(self.vmid)? {
            Effect::Pending
        } else {
            Effect::NextStart
        })
    }

    fn make_in_tree(&self) -> anyhow::Result<Effect> {
        let vmid = self.vmid;
        let config = Document::parse(&self.edit.before).decode();
        // As `qm set` does: whoever set the lock is at work on the VM.
        if let Some(lock) = config.main.get("lock") {
            bail!(
                "VM {vmid} is locked ({}): wait until that is done",
                escape::short(lock, 40)
            );
        }
        let node = self.host.node()?;
        let deadline = Instant::now() + PATIENCE;
        let doubts = repair::apply(
            self.host.root(),
            vmid,
            &node,
            self.origin,
            self.undoes,
            self.edit,
            deadline,
        )
        .map_err(|problem| anyhow!(problem))?;
        for doubt in doubts {
            log::warn!("{doubt}");
        }
        self.expected_effect()
    }

    fn make_live(&self) -> anyhow::Result<Effect> {
        let vmid = self.vmid;
        if !nix::unistd::geteuid().is_root() {
            bail!("changing the configuration of VM {vmid} needs root: run this as root");
        }
        let tree = Tree::open(Path::new("/"))?;
        let journal = Journal::create(&tree, Instant::now() + PATIENCE)
            .context("the change cannot be recorded, and is therefore not made")?;
        let number = journal
            .intend(&Intent {
                vmid,
                node: self.host.node()?,
                origin: self.origin,
                undoes: self.undoes,
                before: Digest::of(&self.edit.before),
                after: None,
                changes: repair::line_changes(self.edit),
            })
            .context("the change cannot be recorded, and is therefore not made")?;
        let called = invoke::run(&qm_set(vmid, self.edit), self.quiet);
        let found = self.host.vm_config(vmid)?.unwrap_or_default();
        let effect = outcome(&Document::parse(&found).decode(), self.edit);
        let concluded = journal.conclude(number, effect.map(|_| Digest::of(&found)));
        if let Err(error) = concluded {
            log::warn!(
                "the journal could not note the outcome: {}",
                repair::chain_of(&error)
            );
        }
        match (called, effect) {
            (Ok(()), Some(effect)) => Ok(effect),
            (Ok(()), None) => bail!(
                "qm set reported success, but the configuration of VM {vmid} does not show the change: look at \
                 `qm pending {vmid}`"
            ),
            (Err(error), None) => {
                Err(anyhow::Error::new(error).context(format!("VM {vmid} is unchanged")))
            }
            (Err(error), Some(_)) => Err(anyhow::Error::new(error).context(format!(
                "the configuration of VM {vmid} was changed, but then"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn edit(text: &str, set: &[(&str, Option<&str>)]) -> Edit {
        let set: BTreeMap<_, _> = set
            .iter()
            .map(|(key, value)| {
                let key = HostpciIndex::from_key(key).unwrap();
                (key, value.map(str::to_owned))
            })
            .collect();
        Document::parse(text.as_bytes()).edit(&set).unwrap()
    }

    fn vmid() -> Vmid {
        Vmid::new(101).unwrap()
    }

    #[test]
    fn qm_set_names_new_values_and_what_goes() {
        let text = "hostpci0: 0000:0b:00.0,pcie=1\nhostpci2: 0000:0b:00.1\n";
        let edit = edit(
            text,
            &[("hostpci0", Some("0000:0b:00,pcie=1")), ("hostpci2", None)],
        );
        let digest = crate::vmconf::document::digest(text.as_bytes());
        assert_eq!(
            qm_set(vmid(), &edit).join(" "),
            format!("qm set 101 --hostpci0 0000:0b:00,pcie=1 --delete hostpci2 --digest {digest}")
        );
    }

    #[test]
    fn what_the_file_says_decides_what_became_of_it() {
        let edit = edit(
            "hostpci0: 0000:0b:00\nhostpci1: 0000:0c:00\n",
            &[("hostpci0", Some("0000:0b:00.0")), ("hostpci1", None)],
        );
        let outcome = |text: &str| outcome(&Document::parse(text.as_bytes()).decode(), &edit);
        assert_eq!(outcome("hostpci0: 0000:0b:00.0\n"), Some(Effect::NextStart));
        let old = "hostpci0: 0000:0b:00\nhostpci1: 0000:0c:00\n";
        assert_eq!(outcome(old), None);
        let pending = format!("{old}[PENDING]\ndelete: hostpci1\nhostpci0: 0000:0b:00.0\n");
        assert_eq!(outcome(&pending), Some(Effect::Pending));
        let half = format!("{old}[PENDING]\nhostpci0: 0000:0b:00.0\n");
        assert_eq!(outcome(&half), None);
        let config = Document::parse(pending.as_bytes()).decode();
        assert!(is_pending_already(&config, &edit));
        assert_eq!(pending_key(&config, &edit.changes), HostpciIndex::new(0));
        let config = Document::parse(half.as_bytes()).decode();
        assert!(!is_pending_already(&config, &edit));
    }
}
