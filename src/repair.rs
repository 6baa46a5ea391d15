//! The hook's repair: whether it may, the rewrite itself, and what follows.

use std::path::Path;
use std::time::Instant;

use crate::examine::{Examined, is_windows};
use crate::hook::Call;
use crate::host::Host;
use crate::report::escape;
use crate::restart::{self, Arranged};
use crate::settings::{Settings, Windows};
use crate::store::journal::{LineChange, Origin};
use crate::store::tree::Tree;
use crate::store::{self, Rewrite};
use crate::vmconf::edit::Edit;
use crate::vmconf::{HostpciIndex, Vmid};

/// What a repair by the hook depends on.
pub struct Context<'a> {
    /// The call.
    pub call: &'a Call,
    /// The host.
    pub host: &'a Host,
    /// The policy for this VM.
    pub settings: &'a Settings,
    /// When the hook's own work has to be done.
    pub deadline: Instant,
}

/// A repair that took place.
#[derive(Debug)]
pub struct Repaired {
    lines: Vec<String>,
}

impl Repaired {
    /// What was changed, for the task log.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.lines.iter().cloned()
    }
}

/// Why the policy or the VM's state forbids a rewrite, beyond what forbids to refuse a start.
fn forbidden(settings: &Settings, examined: &Examined) -> Option<String> {
    let config = &examined.config;
    if is_windows(config.main.get("ostype")) && settings.windows != Windows::Rewrite {
        return Some(
            "it is a Windows guest, and the policy does not say windows = \"rewrite\"".to_owned(),
        );
    }
    let pending = config.pending.hostpci().map(|(index, _)| index).next();
    let deleted = config.pending_deletions().find_map(HostpciIndex::from_key);
    pending
        .or(deleted)
        .map(|index| format!("a change of {index} is pending"))
}

/// Repairs the VM's configuration, or says why not.
///
/// # Errors
/// The reason in one line, for the task log.
pub fn rewrite(context: &Context, examined: &Examined) -> Result<Repaired, String> {
    if let Some(reason) = forbidden(context.settings, examined) {
        return Err(reason);
    }
    let set = examined.edits();
    if set.is_empty() {
        return Err(why_no_edit(examined));
    }
    let set = set
        .into_iter()
        .map(|(index, value)| (index, Some(value)))
        .collect();
    let edit = examined
        .document
        .edit(&set)
        .map_err(|error| chain_of(&error))?;
    let node = context.host.node().map_err(|error| error.in_words())?;
    let root = context.call.root.as_deref().unwrap_or(Path::new("/"));
    let doubts = apply(
        root,
        context.call.vmid,
        &node,
        Origin::Hook,
        None,
        &edit,
        context.deadline,
    )?;
    let mut lines: Vec<_> = edit.changes.iter().map(change_line).collect();
    let doubts = doubts.iter().map(|doubt| escape::text(doubt));
    lines.extend(doubts.map(|doubt| format!("WARN: {doubt}")));
    lines.push(format!(
        "  take it back with `pve-atomicops undo {}`",
        context.call.vmid
    ));
    Ok(Repaired { lines })
}

/// Makes an edit through the store, and gives what is doubtful about it.
///
/// # Errors
/// The whole chain of causes in one line; the configuration is unchanged then.
pub fn apply(
    root: &Path,
    vmid: Vmid,
    node: &str,
    origin: Origin,
    undoes: Option<u64>,
    edit: &Edit,
    deadline: Instant,
) -> Result<Vec<String>, String> {
    let tree = Tree::open(root).map_err(|error| chain_of(&error))?;
    let changes = line_changes(edit);
    let rewrite = Rewrite {
        vmid,
        node,
        origin,
        undoes,
        before: &edit.before,
        after: &edit.after,
        changes,
    };
    let rewritten = store::rewrite(&tree, rewrite, deadline).map_err(|error| chain_of(&error))?;
    Ok(rewritten
        .doubts
        .iter()
        .map(|doubt| chain_of(doubt))
        .collect())
}

/// An edit's lines as the journal keeps them.
pub fn line_changes(edit: &Edit) -> Vec<LineChange> {
    let changes = edit.changes.iter().map(|change| LineChange {
        key: change.key.to_string(),
        line: change.line_number,
        old: change.old.clone(),
        new: change.new.clone(),
    });
    changes.collect()
}

fn change_line(change: &crate::vmconf::edit::LineChange) -> String {
    let shown = |line: &Option<Vec<u8>>| match line {
        Some(line) => format!(
            "`{}`",
            escape::text(String::from_utf8_lossy(line).trim_end())
        ),
        None => "nothing".to_owned(),
    };
    format!(
        "  rewritten: {} -> {}",
        shown(&change.old),
        shown(&change.new)
    )
}

/// An error and its causes in one line.
pub fn chain_of(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

fn why_no_edit(examined: &Examined) -> String {
    if let Some(error) = &examined.report.start_error {
        return format!("Proxmox refuses to start it ({error})");
    }
    let mut reasons = examined.report.entries.iter().filter_map(|entry| {
        let why = match (&entry.no_fix, &entry.fix) {
            (Some(reason), _) => reason.clone(),
            (None, Some(fix)) if fix.strategy == "mapping" => {
                "its mapping belongs to the cluster".to_owned()
            }
            (None, Some(fix)) if fix.strategy == "advice" => {
                "the fix changes the guest's hardware".to_owned()
            }
            _ => return None,
        };
        Some(format!("{}: {why}", entry.key))
    });
    reasons
        .next()
        .unwrap_or_else(|| "there is no repair".to_owned())
}

/// Arranges a new start, and says what came of it.
pub fn restart(context: &Context) -> String {
    let vmid = context.call.vmid;
    let by_hand = |why: &str| {
        format!(
            "VM {vmid}: repaired, and this start stopped; start it again with `qm start {vmid}` ({why})"
        )
    };
    if context.call.root.is_some() {
        return by_hand("a tree below --root has no VMs to start");
    }
    let resources = match context.host.ha_resources() {
        Ok(resources) => resources.unwrap_or_default(),
        Err(error) => return by_hand(&escape::text(&error.in_words())),
    };
    if crate::vmconf::ha::managed(&resources).contains(&vmid) {
        return format!("VM {vmid}: repaired, and this start stopped; HA tries again by itself");
    }
    let arranged = Tree::open(Path::new("/"))
        .map_err(|error| chain_of(&error))
        .and_then(|tree| {
            restart::arrange(&tree, vmid, |command| {
                restart::run(command, context.deadline)
            })
            .map_err(|error| chain_of(&error))
        });
    match arranged {
        Ok(Arranged::Scheduled) => {
            format!(
                "VM {vmid}: repaired, and this start stopped; a new start follows in two seconds"
            )
        }
        Ok(Arranged::AlreadyTried) => {
            by_hand("one restart was arranged already and no start went through since")
        }
        Err(error) => by_hand(&escape::text(&error)),
    }
}

/// Notes that a start went through: a restart may be arranged again.
pub fn start_went_through(root: &Path, vmid: Vmid) {
    let noted = Tree::open(root).and_then(|tree| restart::started(&tree, vmid));
    if let Err(error) = noted {
        log::debug!("{}", chain_of(&error));
    }
}
