//! `attach` and `detach`: have Proxmox call the hook for a VM, or no longer.
//!
//! Proxmox calls one *hookscript* per VM, a volume ID of a *snippet*: a file in a storage's directory. `attach` puts ours
//! there, records it for the package's maintenance scripts, and sets it by `qm set`. A hookscript that the VM has
//! already goes to the front of `[vm.VMID] chain` in the node's policy, from where the hook calls it; `detach` puts it
//! back. Both do nothing where nothing is left to do.
//!
//! A tree below `--root` has no `qm`: there both only print what they would run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};

use super::check::{as_root, no_such_vm, policies};
use super::{host, print};
use crate::chain;
use crate::cli::Global;
use crate::examine::{Survey, is_true};
use crate::host::Host;
use crate::invoke;
use crate::policy::Policies;
use crate::report::escape;
use crate::report::wrap::Page;
use crate::settings::chain as policy_chain;
use crate::settings::{Devices, NODE_FILE, Policy, Settings};
use crate::snippet::{self, Snippet};
use crate::store::install;
use crate::store::tree::Tree;
use crate::vmconf::Vmid;
use crate::vmconf::decode::Config;
use crate::vmconf::document::Document;
use crate::vmconf::storage::{Storage, Storages};

/// How many GPUs a VM has to pass for `--all-gpu`.
const ALL_GPU_MINIMUM: usize = 2;

/// Arguments of `attach`.
#[derive(Debug, clap::Args)]
pub struct AttachArguments {
    /// The VMs
    #[arg(required_unless_present = "all_gpu")]
    pub vmids: Vec<Vmid>,
    /// The storage for the snippet; without it, the first one of this node that allows snippets
    #[arg(long, value_name = "STORAGE")]
    pub storage: Option<String>,
    /// Every VM of this node that passes two or more GPUs
    #[arg(long, conflicts_with = "vmids")]
    pub all_gpu: bool,
}

/// Arguments of `detach`.
#[derive(Debug, clap::Args)]
pub struct DetachArguments {
    /// The VMs
    #[arg(required = true)]
    pub vmids: Vec<Vmid>,
}

/// One VM whose hookscript is to be changed.
struct Target {
    vmid: Vmid,
    config: Config,
    digest: String,
}

impl Target {
    fn read(host: &Host, vmid: Vmid) -> anyhow::Result<Self> {
        let Some(bytes) = host.vm_config(vmid).map_err(as_root)? else {
            bail!("{}", no_such_vm(host, vmid));
        };
        let document = Document::parse(&bytes);
        Ok(Self {
            vmid,
            config: document.decode(),
            digest: document.digest(),
        })
    }

    /// The hookscript that will be called at the VM's next start.
    fn hookscript(&self) -> Option<&str> {
        let deleted = |key: &str| self.config.pending_deletions().any(|gone| gone == key);
        match self.config.pending.get("hookscript") {
            Some(pending) => Some(pending),
            None if deleted("hookscript") => None,
            None => self.config.main.get("hookscript"),
        }
    }

    fn qm_set(&self, option: &str, value: &str) -> Vec<String> {
        let words = ["qm", "set", &self.vmid.to_string(), option, value];
        let guard = ["--digest", &self.digest];
        words
            .iter()
            .chain(&guard)
            .map(ToString::to_string)
            .collect()
    }
}

/// The VMs, each once and all of them before anything is changed.
fn targets(host: &Host, vmids: &[Vmid]) -> anyhow::Result<Vec<Target>> {
    let vmids: BTreeSet<Vmid> = vmids.iter().copied().collect();
    vmids
        .into_iter()
        .map(|vmid| Target::read(host, vmid))
        .collect()
}

/// What both commands work with.
struct Bench<'a> {
    global: &'a Global,
    host: &'a Host,
    policies: &'a Policies,
    storages: &'a Storages,
}

/// Runs `attach`.
pub fn attach(global: &Global, arguments: &AttachArguments) -> anyhow::Result<u8> {
    let host = host(global)?;
    let policies = node_policies(&host, global)?;
    let (storages, _) = Storages::parse(&host.storage_cfg().map_err(as_root)?.unwrap_or_default());
    let vmids = if arguments.all_gpu {
        let vmids = with_gpus(&host, &policies)?;
        if vmids.is_empty() && !global.quiet {
            print("no VM of this node passes two or more GPUs\n")?;
        }
        vmids
    } else {
        arguments.vmids.clone()
    };
    let targets = targets(&host, &vmids)?;
    if targets.is_empty() {
        return Ok(0);
    }
    let node = host.node()?;
    let (name, storage) = pick(&storages, arguments.storage.as_deref(), &node)?;
    let snippet = Snippet::of(name, storage)
        .with_context(|| format!("storage '{name}' has no directory for snippets"))?;
    let bench = Bench {
        global,
        host: &host,
        policies: &policies,
        storages: &storages,
    };
    if !host.is_live() {
        return bench.print_attach(&snippet, &targets);
    }
    need_root("installing a snippet")?;
    let tree = Tree::open(Path::new("/"))?;
    for line in snippet::install(&host, &tree, &snippet)? {
        bench.say(&line)?;
    }
    for target in &targets {
        bench.attach_one(&tree, &snippet, target)?;
    }
    bench.elsewhere(&node, name, storage, &snippet)?;
    Ok(0)
}

/// Runs `detach`.
pub fn detach(global: &Global, arguments: &DetachArguments) -> anyhow::Result<u8> {
    let host = host(global)?;
    let policies = node_policies(&host, global)?;
    let (storages, _) = Storages::parse(&host.storage_cfg().map_err(as_root)?.unwrap_or_default());
    let targets = targets(&host, &arguments.vmids)?;
    let bench = Bench {
        global,
        host: &host,
        policies: &policies,
        storages: &storages,
    };
    if host.is_live() {
        need_root("setting a hookscript")?;
        let tree = Tree::open(Path::new("/"))?;
        for target in &targets {
            bench.detach_one(&tree, target)?;
        }
    } else {
        let mut page = Page::new(global.style().columns);
        for target in &targets {
            if target.hookscript().is_some_and(snippet::is_ours) {
                if page.is_empty() {
                    page.prose(0, NO_COMMANDS);
                }
                let (words, _) = bench.detaching(target)?;
                page.verbatim(2, &escape::command(words));
            } else {
                bench.say(&format!("VM {}: not attached", target.vmid))?;
            }
        }
        print(&page.into_text())?;
    }
    Ok(0)
}

/// What stands above the commands that a tree cannot run.
const NO_COMMANDS: &str =
    "A tree below --root has no qm, so nothing is changed. On its host this would run:";

/// The node's policy files. A named one takes the place of both, and would not be what the hook reads.
fn node_policies(host: &Host, global: &Global) -> anyhow::Result<Policies> {
    if global.config.is_some() {
        bail!(
            "--config has no meaning here: the chain goes into {NODE_FILE}, which the hook reads"
        );
    }
    policies(host, global)
}

fn need_root(what: &str) -> anyhow::Result<()> {
    if nix::unistd::geteuid().is_root() {
        Ok(())
    } else {
        Err(anyhow!("{what} needs root: run this as root"))
    }
}

/// The VMs of this node that pass two or more GPUs.
fn with_gpus(host: &Host, policies: &Policies) -> anyhow::Result<Vec<Vmid>> {
    let survey = Survey::new(host);
    let mut found = Vec::new();
    for vmid in host.vmids().map_err(as_root)? {
        let Some(bytes) = host.vm_config(vmid).map_err(as_root)? else {
            continue;
        };
        let settings = Settings {
            devices: Devices::Gpu,
            ..policies.of(vmid)
        };
        let examined = survey
            .examine(vmid, &bytes, &settings)
            .map_err(as_root)
            .with_context(|| format!("VM {vmid}"))?;
        if is_true(examined.config.main.get("template")) {
            continue;
        }
        if examined.gpus >= ALL_GPU_MINIMUM {
            found.push(vmid);
        }
    }
    Ok(found)
}

/// The storage that gets the snippet.
fn pick<'s>(
    storages: &'s Storages,
    named: Option<&'s str>,
    node: &str,
) -> anyhow::Result<(&'s str, &'s Storage)> {
    let Some(name) = named else {
        return storages
            .iter()
            .find(|(_, storage)| storage.holds_snippets() && storage.is_available_on(node))
            .ok_or_else(|| no_storage(storages));
    };
    let storage = storages.get(name).ok_or_else(|| {
        let all: Vec<_> = storages.iter().map(|(id, _)| id).collect();
        anyhow!(
            "there is no storage '{}'; there are: {}",
            escape::text(name),
            all.join(", ")
        )
    })?;
    if !storage.is_available_on(node) {
        bail!("storage '{name}' is disabled, or not for node '{node}'");
    }
    if !storage.holds_snippets() {
        bail!(
            "storage '{name}' does not allow snippets{}",
            allow(name, storage)
        );
    }
    Ok((name, storage))
}

fn no_storage(storages: &Storages) -> anyhow::Error {
    let advice = storages
        .get("local")
        .map(|local| allow("local", local))
        .unwrap_or_default();
    anyhow!("no enabled storage of this node allows snippets{advice}")
}

/// The command that allows snippets on a storage with directories.
fn allow(name: &str, storage: &Storage) -> String {
    if storage.path.is_none() {
        return String::new();
    }
    let content: Vec<_> = storage
        .content
        .iter()
        .map(String::as_str)
        .filter(|content| *content != "none")
        .chain(["snippets"])
        .collect();
    let words = ["pvesm", "set", name, "--content", &content.join(",")];
    format!("; to allow them: {}", escape::command(words))
}

impl Bench<'_> {
    fn say(&self, line: &str) -> anyhow::Result<()> {
        if self.global.quiet {
            return Ok(());
        }
        let mut page = Page::new(self.global.style().columns);
        page.prose(0, line);
        print(&page.into_text())
    }

    fn attach_one(&self, tree: &Tree, snippet: &Snippet, target: &Target) -> anyhow::Result<()> {
        let vmid = target.vmid;
        let volume = snippet.volume();
        let words = target.qm_set("--hookscript", &volume);
        let own = match target.hookscript() {
            Some(present) if present == volume => {
                return self.say(&format!("VM {vmid}: attached already ({volume})"));
            }
            // Ours on another storage: only the place changes.
            Some(present) if snippet::is_ours(present) => None,
            other => other,
        };
        let policy = NodePolicy::read(self.host)?;
        let changed = match own {
            Some(script) => self.chained(&policy, vmid, script)?,
            None => None,
        };
        if let Some(new) = &changed {
            NodePolicy::write(tree, new)?;
        }
        if let Err(error) = invoke::run(&words, self.global.quiet) {
            if changed.is_some() {
                policy.restore(tree)?;
            }
            return Err(anyhow::Error::new(error).context(format!("VM {vmid} is unchanged")));
        }
        self.say(&format!(
            "VM {vmid}: attached ({volume}), from its next start on"
        ))?;
        if let Some(script) = own {
            self.say(&format!(
                "VM {vmid}: its hookscript '{}' is called by the hook now: chain of [vm.{vmid}] in {NODE_FILE}",
                escape::text(script)
            ))?;
        }
        Ok(())
    }

    /// The node's policy with the VM's own hookscript in the chain; none where it is there already.
    ///
    /// # Errors
    /// The hook would not run that script, and so refuse the VM's start.
    fn chained(
        &self,
        policy: &NodePolicy,
        vmid: Vmid,
        script: &str,
    ) -> anyhow::Result<Option<String>> {
        let path = self
            .storages
            .snippet_path(script)
            .with_context(|| format!("the hookscript of VM {vmid} is no snippet"))?;
        let refused = || {
            format!(
                "VM {vmid} is unchanged: its hookscript '{}' would have to be chained, and the hook runs only what \
                 root alone can write",
                escape::text(script)
            )
        };
        chain::check(&path).with_context(refused)?;
        let inherited = self.policies.of(vmid).chain;
        policy_chain::prepend(&policy.text, vmid, script, &inherited)
            .with_context(|| format!("cannot change {NODE_FILE}"))
    }

    fn detach_one(&self, tree: &Tree, target: &Target) -> anyhow::Result<()> {
        let vmid = target.vmid;
        if !target.hookscript().is_some_and(snippet::is_ours) {
            return self.say(&format!("VM {vmid}: not attached"));
        }
        let (words, back) = self.detaching(target)?;
        invoke::run(&words, self.global.quiet)
            .with_context(|| format!("VM {vmid} is unchanged"))?;
        self.say(&format!("VM {vmid}: detached"))?;
        let policy = NodePolicy::read(self.host)?;
        if let Some(script) = &back {
            let inherited = inherited_without(&policy.text, self.host, vmid)?;
            let new = policy_chain::remove(&policy.text, vmid, script, &inherited)
                .with_context(|| format!("cannot change {NODE_FILE}"))?;
            if let Some(new) = new {
                NodePolicy::write(tree, &new)?;
            }
            self.say(&format!(
                "VM {vmid}: '{}' is its hookscript again",
                escape::text(script)
            ))?;
        }
        let left = Policies::read(self.host, None).of(vmid).chain;
        if !left.is_empty() {
            self.say(&format!(
                "VM {vmid}: not called any more, since the hook called them: {}",
                escape::text(&left.join(", "))
            ))?;
        }
        Ok(())
    }

    /// The call that detaches a VM, and the hookscript that it gets back: the first volume ID of its own chain.
    fn detaching(&self, target: &Target) -> anyhow::Result<(Vec<String>, Option<String>)> {
        let policy = NodePolicy::read(self.host)?;
        let own = policy_chain::own(&policy.text, target.vmid)
            .with_context(|| format!("cannot read {NODE_FILE}"))?
            .unwrap_or_default();
        let back = own
            .into_iter()
            .find(|script| !script.starts_with('/') && !snippet::is_ours(script));
        let words = match &back {
            Some(script) => target.qm_set("--hookscript", script),
            None => target.qm_set("--delete", "hookscript"),
        };
        Ok((words, back))
    }

    /// Tells which nodes of the cluster a snippet on a storage of this node alone is missing from.
    fn elsewhere(
        &self,
        node: &str,
        name: &str,
        storage: &Storage,
        snippet: &Snippet,
    ) -> anyhow::Result<()> {
        if storage.shared {
            return Ok(());
        }
        let others: Vec<_> = self
            .host
            .nodes()?
            .into_iter()
            .filter(|other| other != node)
            .collect();
        if others.is_empty() || self.global.quiet {
            return Ok(());
        }
        let without: Vec<_> = others
            .iter()
            .filter(|other| !storage.is_available_on(other))
            .map(|other| escape::text(other))
            .collect();
        let others: Vec<_> = others.iter().map(|other| escape::text(other)).collect();
        let mut page = Page::new(self.global.style().columns);
        page.gap();
        page.labelled(
            0,
            "note: ",
            &format!(
                "storage '{name}' is not shared. A VM that moves to another node does not start there without {}; put \
                 it there too, executable and owned by root, or name a shared storage with --storage. The other nodes: {}",
                snippet.path().display(),
                others.join(", ")
            ),
        );
        if !without.is_empty() {
            page.labelled(
                6,
                "",
                &format!(
                    "These do not have the storage at all: {}",
                    without.join(", ")
                ),
            );
        }
        print(&page.into_text())
    }

    fn print_attach(&self, snippet: &Snippet, targets: &[Target]) -> anyhow::Result<u8> {
        let mut page = Page::new(self.global.style().columns);
        page.prose(0, NO_COMMANDS);
        let path = snippet.path();
        let install = [
            PathBuf::from("install"),
            PathBuf::from("-D"),
            PathBuf::from("-m"),
            PathBuf::from("0755"),
            PathBuf::from(snippet::SOURCE),
            path,
        ];
        page.verbatim(
            2,
            &escape::command(install.iter().map(|word| word.to_string_lossy())),
        );
        let volume = snippet.volume();
        for target in targets {
            if target.hookscript() != Some(&volume) {
                page.verbatim(2, &escape::command(target.qm_set("--hookscript", &volume)));
            }
        }
        for target in targets {
            let own = target
                .hookscript()
                .filter(|script| !snippet::is_ours(script));
            if let Some(script) = own {
                page.prose(
                    0,
                    &format!(
                        "and put '{}' into the chain of [vm.{}] in {NODE_FILE}",
                        escape::text(script),
                        target.vmid
                    ),
                );
            }
        }
        print(&page.into_text())?;
        Ok(0)
    }
}

/// The chain that would be in force for a VM if the node's file had none for it alone.
fn inherited_without(text: &str, host: &Host, vmid: Vmid) -> anyhow::Result<Vec<String>> {
    let mut bare: toml_edit::DocumentMut = text
        .parse()
        .with_context(|| format!("cannot read {NODE_FILE}"))?;
    let id = vmid.to_string();
    if let Some(vm) = bare
        .get_mut("vm")
        .and_then(|vms| vms.get_mut(&id))
        .and_then(toml_edit::Item::as_table_like_mut)
    {
        vm.remove("chain");
    }
    let policy = Policy::parse(NODE_FILE, &bare.to_string())?;
    let cluster = Policies::read_cluster(host);
    Ok(crate::settings::resolve(cluster.iter().chain([&policy]), vmid).chain)
}

/// The node's policy file as it is, to be changed and put back.
struct NodePolicy {
    text: String,
    existed: bool,
}

impl NodePolicy {
    const DIRECTORY: &str = "etc/pve-atomicops";
    const NAME: &str = "config.toml";
    const MODE: u32 = 0o644;

    fn read(host: &Host) -> anyhow::Result<Self> {
        let file = host.policy_file(NODE_FILE)?;
        let existed = file.is_some();
        let bytes = file.map(|file| file.bytes).unwrap_or_default();
        let text = String::from_utf8(bytes).map_err(|_| anyhow!("{NODE_FILE} is not UTF-8"))?;
        Ok(Self { text, existed })
    }

    fn write(tree: &Tree, new: &str) -> anyhow::Result<()> {
        Policy::parse(NODE_FILE, new)?;
        install::install(
            tree,
            Self::DIRECTORY,
            Self::NAME,
            new.as_bytes(),
            Self::MODE,
        )
        .with_context(|| format!("cannot write {NODE_FILE}"))
    }

    /// Puts the text back that was read.
    fn restore(&self, tree: &Tree) -> anyhow::Result<()> {
        if self.existed {
            return install::install(
                tree,
                Self::DIRECTORY,
                Self::NAME,
                self.text.as_bytes(),
                Self::MODE,
            )
            .with_context(|| format!("cannot put {NODE_FILE} back"));
        }
        install::remove(tree, Self::DIRECTORY, Self::NAME)
            .with_context(|| format!("cannot remove {NODE_FILE}"))
    }
}
