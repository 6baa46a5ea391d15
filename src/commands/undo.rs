//! `undo`: takes the last edit of `fix` or the hook back, where the lines still read as it left them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::check::{as_root, no_such_vm};
use super::{host, print};
use crate::change::{self, Change};
use crate::cli::Global;
use crate::host::Host;
use crate::report::wrap::Page;
use crate::report::{diff, escape};
use crate::store::journal::{self, Digest, Journal, Origin};
use crate::store::tree::Tree;
use crate::vmconf::decode::Config;
use crate::vmconf::document::Document;
use crate::vmconf::edit::LineChange;
use crate::vmconf::{HostpciIndex, Vmid};

/// How long another run that writes the journal is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Arguments of `undo`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The VM
    pub vmid: Vmid,
    /// Only show what would be changed
    #[arg(long)]
    pub dry_run: bool,
}

/// Runs the command.
pub fn run(global: &Global, arguments: &Arguments) -> anyhow::Result<u8> {
    let host = host(global)?;
    let vmid = arguments.vmid;
    let Some(bytes) = host.vm_config(vmid).map_err(as_root)? else {
        bail!("{}", no_such_vm(&host, vmid));
    };
    let document = Document::parse(&bytes);
    let config = document.decode();
    let Some(entry) = last_edit(&host, vmid, &bytes, &config)? else {
        if !global.quiet {
            print(&format!(
                "VM {vmid}: no edit of `fix` or the hook on this node is left to take back\n"
            ))?;
        }
        return Ok(0);
    };
    let changes = line_changes(&entry)?;
    if let Some(pending) = change::pending_key(&config, &changes) {
        bail!(
            "VM {vmid} is unchanged: a change of {pending} is pending. If it is the edit itself, `qm set {vmid} --revert \
             {}` takes it back before it takes effect",
            keys(&changes)
        );
    }
    let edit = document
        .revert(&changes)
        .with_context(|| format!("VM {vmid} is unchanged"))?;
    if edit.is_empty() {
        bail!(
            "VM {vmid} is unchanged: {} read as they did before the last edit already",
            keys(&changes)
        );
    }
    let change = Change {
        host: &host,
        vmid,
        origin: Origin::Undo,
        undoes: Some(entry.number),
        edit: &edit,
        quiet: global.quiet,
    };
    let mut page = Page::new(global.style().columns);
    show(&mut page, global, &change, &entry);
    print(&page.into_text())?;
    if arguments.dry_run {
        print("\nNothing was changed (--dry-run).\n")?;
        return Ok(0);
    }
    let effect = change.make()?;
    if !global.quiet {
        let mut page = Page::new(global.style().columns);
        page.prose(0, &format!("Taken back. {}", effect.in_words(vmid)));
        print(&page.into_text())?;
    }
    Ok(0)
}

/// The edit that is to be taken back.
fn last_edit(
    host: &Host,
    vmid: Vmid,
    bytes: &[u8],
    config: &Config,
) -> anyhow::Result<Option<journal::Entry>> {
    let tree = Tree::open(host.root())?;
    let journal = Journal::open(&tree, Instant::now() + PATIENCE)
        .context("the journal of edits cannot be read")?;
    let Some(journal) = journal else {
        return Ok(None);
    };
    let history = journal.history(vmid);
    let history = match history {
        Err(journal::JournalError::Step(error))
            if error.errno == nix::errno::Errno::EACCES && !nix::unistd::geteuid().is_root() =>
        {
            bail!("{error}: only root may read the journal of edits, run this as root")
        }
        other => other.context("the journal of edits cannot be read")?,
    };
    if history.unreadable > 0 {
        log::warn!(
            "{} lines of the journal could not be read",
            history.unreadable
        );
    }
    let left = |entry: &journal::Entry| reads_as_left(entry, config);
    Ok(history.last_edit(Digest::of(bytes), left).cloned())
}

/// Whether the configuration has the values that an edit was to give it, in force or pending.
fn reads_as_left(entry: &journal::Entry, config: &Config) -> bool {
    entry.intent.changes.iter().all(|change| {
        let wanted = change.new.as_ref().and_then(|line| {
            let line = Document::parse(line).decode();
            line.main.get(&change.key).map(str::to_owned)
        });
        let pending = config.pending.get(&change.key);
        let found = pending.or_else(|| config.main.get(&change.key));
        found == wanted.as_deref()
    })
}

/// An edit's lines, from the journal.
fn line_changes(entry: &journal::Entry) -> anyhow::Result<Vec<LineChange>> {
    let changes = entry.intent.changes.iter().map(|change| {
        let key = HostpciIndex::from_key(&change.key).with_context(|| {
            format!(
                "edit {} in the journal is about '{}', which is no hostpci key",
                entry.number,
                escape::text(&change.key)
            )
        })?;
        Ok(LineChange {
            key,
            line_number: change.line,
            old: change.old.clone(),
            new: change.new.clone(),
        })
    });
    changes.collect()
}

fn keys(changes: &[LineChange]) -> String {
    let mut keys: Vec<_> = changes.iter().map(|change| change.key).collect();
    keys.sort_unstable();
    keys.dedup();
    let keys: Vec<_> = keys.iter().map(ToString::to_string).collect();
    keys.join(",")
}

fn show(page: &mut Page, global: &Global, change: &Change, entry: &journal::Entry) {
    let by = match entry.intent.origin {
        Origin::Hook => "the hook",
        Origin::Fix => "`fix`",
        Origin::Undo => "`undo`",
    };
    let vmid = change.vmid;
    page.prose(
        0,
        &format!(
            "VM {vmid}: takes back edit {} of {} by {by}",
            entry.number,
            escape::text(&entry.time)
        ),
    );
    page.gap();
    page.lines(&diff::unified(
        &format!("/etc/pve/qemu-server/{vmid}.conf"),
        &change.edit.before,
        &change.edit.after,
        global.palette(),
    ));
    page.gap();
    if change.host.is_live() {
        page.labelled_verbatim(
            0,
            "by: ",
            &escape::command(change::qm_set(vmid, change.edit)),
        );
    }
}

/// Where the journal is, for the manual.
pub const JOURNAL: &str = "/var/lib/pve-atomicops/journal";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_where_the_manual_says() {
        let root = tempfile::tempdir().expect("directory");
        let tree = Tree::open(root.path()).expect("tree");
        let journal = Journal::create(&tree, Instant::now()).expect("journal");
        journal.conclude(1, None).expect("a line");
        let path = std::path::Path::new(JOURNAL);
        assert!(
            root.path()
                .join(path.strip_prefix("/").expect("absolute"))
                .exists()
        );
    }
}
