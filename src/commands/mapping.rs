//! The part of `fix` that changes a mapping of the cluster, through `pvesh`.
//!
//! A mapping is used by VMs on all nodes, so everyone who uses it is named before. The change is not in the journal, which
//! is about VM configurations: the command that takes it back is printed instead.

use anyhow::{Context as _, bail};

use crate::host::Host;
use crate::invoke;
use crate::plan;
use crate::report::model::{Entry, MappingChange};
use crate::report::style::Palette;
use crate::report::wrap::Page;
use crate::report::{diff, escape};
use crate::vmconf::Vmid;
use crate::vmconf::document::{self, Document};
use crate::vmconf::hostpci::Hostpci;
use crate::vmconf::mapping;

/// The mapping file as people know it.
const FILE: &str = "/etc/pve/mapping/pci.cfg";

/// A VM that passes devices through a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
struct User {
    node: String,
    vmid: Vmid,
    name: Option<String>,
    keys: Vec<String>,
}

/// The change of one mapping.
#[derive(Clone, Debug)]
pub struct Change<'a> {
    mapping: &'a MappingChange,
}

/// The changes that lost entries need, each mapping once.
pub fn changes<'a>(lost: &[&'a Entry]) -> Vec<Change<'a>> {
    let mut changes: Vec<Change> = Vec::new();
    let mappings = lost
        .iter()
        .filter_map(|entry| entry.fix.as_ref()?.mapping.as_ref());
    for mapping in mappings {
        if !changes
            .iter()
            .any(|other| other.mapping.name == mapping.name)
        {
            changes.push(Change { mapping });
        }
    }
    changes
}

impl Change<'_> {
    /// Shows who uses the mapping, and what changes.
    pub fn show(&self, page: &mut Page, palette: Palette, host: &Host) -> anyhow::Result<()> {
        let name = escape::text(&self.mapping.name);
        page.prose(
            0,
            &format!(
                "{} belongs to the cluster. It is used by:",
                palette.head(&format!("mapping '{name}'"))
            ),
        );
        for user in users(host, &self.mapping.name)? {
            let title = user.name.map_or_else(String::new, |name| {
                format!(" ({})", escape::short(&name, 40))
            });
            page.prose(
                2,
                &format!(
                    "VM {}{title} on node '{}': {}",
                    user.vmid,
                    escape::text(&user.node),
                    user.keys.join(", ")
                ),
            );
        }
        page.prose(
            0,
            "From its next start each gets the one function only, where its node's line changes:",
        );
        page.gap();
        page.lines(&diff::unified(
            FILE,
            section(&self.mapping.name, &self.mapping.before).as_bytes(),
            section(&self.mapping.name, &self.mapping.after).as_bytes(),
            palette,
        ));
        page.gap();
        page.labelled_verbatim(
            0,
            "by: ",
            &plan::command(&plan::mapping_words(
                &self.mapping.name,
                &self.mapping.after,
            )),
        );
        Ok(())
    }

    /// Makes the change.
    ///
    /// # Errors
    /// The mapping is not what it was when it was shown, or `pvesh` fails.
    pub fn make(&self, host: &Host, quiet: bool) -> anyhow::Result<()> {
        let MappingChange {
            name,
            before,
            after,
        } = self.mapping;
        // Read again: an earlier mapping of the same run has changed the file.
        let bytes = host.mapping_pci()?.unwrap_or_default();
        let (mappings, _) = mapping::parse(&bytes);
        if mappings.get(name).map(|mapping| &mapping.map) != Some(before) {
            bail!(
                "mapping '{name}' was changed by someone else meanwhile; it is unchanged, try again"
            );
        }
        let mut words = plan::mapping_words(name, after);
        words.extend(["--digest".to_owned(), document::digest(&bytes)]);
        invoke::run(&words, quiet).with_context(|| format!("mapping '{name}' is unchanged"))
    }

    /// What to say afterwards.
    pub fn done(&self, page: &mut Page) {
        let name = escape::text(&self.mapping.name);
        page.prose(
            0,
            &format!("Changed mapping '{name}'. It takes effect at the next start of each VM that uses it."),
        );
        page.labelled_verbatim(
            0,
            "To take it back: ",
            &plan::command(&plan::mapping_words(
                &self.mapping.name,
                &self.mapping.before,
            )),
        );
    }
}

/// A mapping as its section of the file.
fn section(name: &str, values: &[String]) -> String {
    let lines = values.iter().map(|value| format!("\tmap {value}\n"));
    format!("{name}\n{}", lines.collect::<String>())
}

/// Every VM of the cluster that passes a device through the mapping, now or by a pending change.
fn users(host: &Host, mapping: &str) -> anyhow::Result<Vec<User>> {
    let mut users = Vec::new();
    for node in host.nodes()? {
        for vmid in host.vmids_on(&node)? {
            // Moved or deleted since it was listed.
            let Some(bytes) = host.vm_config_on(&node, vmid)? else {
                continue;
            };
            let config = Document::parse(&bytes).decode();
            let mut keys: Vec<_> = config
                .main
                .hostpci()
                .chain(config.pending.hostpci())
                .filter(|(_, value)| {
                    Hostpci::parse(value)
                        .is_ok_and(|value| value.mapping.as_deref() == Some(mapping))
                })
                .map(|(index, _)| index.to_string())
                .collect();
            keys.dedup();
            if !keys.is_empty() {
                users.push(User {
                    node: node.clone(),
                    vmid,
                    name: config.main.get("name").map(str::to_owned),
                    keys,
                });
            }
        }
    }
    Ok(users)
}
