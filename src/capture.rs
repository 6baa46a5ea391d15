//! `capture`: the files that the program reads, in one archive for a bug report or a replay with `--root`.
//!
//! It holds what decides an answer and nothing else. VM configurations are [reduced](Document::reduced), the mapping
//! file loses its descriptions, the policy its comments; of dpkg's status and of `pci.ids` there are the lines that are
//! read; of configuration space there are the bytes that are read, zeros between them. `sysfs` files are found by
//! watching the reader at work, so the archive cannot lack one. Functions are those that VMs pass, all display
//! controllers and accelerators, and what shares a slot with one of them.
//!
//! The same host gives the same bytes. The archive names the node and the VMs' IDs; it has no time, no user and no name
//! of a VM.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;

use crate::archive::{ArchiveError, CAPTURE_VERSION, MANIFEST, Node, Tree};
use crate::examine::Survey;
use crate::host::{Access, Host, HostError, Mdev};
use crate::pci::Sbdf;
use crate::settings::{CLUSTER_FILE, Devices, NODE_FILE, Policy, Settings};
use crate::vmconf::document::Document;

const DEVICES: &str = "/sys/bus/pci/devices";
/// The longest `sysfs` attribute that is taken over.
const ATTRIBUTE_LIMIT: u64 = 4096;

/// Why there is no capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// Something that everything else depends on can't be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Two files of one name: the host's `sysfs` is not one.
    #[error("cannot put it into an archive")]
    Archive(#[from] ArchiveError),
}

/// What was captured.
#[derive(Debug)]
pub struct Capture {
    /// The files.
    pub tree: Tree,
    /// What could not be taken over, one line each.
    pub left_out: Vec<String>,
}

/// The manifest: `manifest.json` at the top of the archive.
#[derive(Serialize)]
struct Manifest<'a> {
    /// [`CAPTURE_VERSION`].
    capture: u32,
    /// Version of the program that made it.
    program: &'static str,
    /// Paths of all files and links.
    files: Vec<&'a str>,
    /// What could not be taken over.
    left_out: &'a [String],
}

/// Captures a host, which has to [record](Host::record) what is read.
pub fn capture(host: &Host) -> Result<Capture, CaptureError> {
    let mut capture = Capture {
        tree: Tree::default(),
        left_out: Vec::new(),
    };
    let node = host.node()?;
    capture.file("/etc/hostname", format!("{node}\n"))?;
    match host.kernel_release() {
        Ok(release) => capture.file("/proc/sys/kernel/osrelease", format!("{release}\n"))?,
        Err(error) => capture.leave_out(&error),
    }
    match host.qemu_version() {
        Ok(Some(version)) => {
            let text = format!(
                "Package: pve-qemu-kvm\nStatus: install ok installed\nVersion: {version}\n\n"
            );
            capture.file("/var/lib/dpkg/status", text)?;
        }
        Ok(None) => {}
        Err(error) => capture.leave_out(&error),
    }
    match host.mapping_pci() {
        Ok(Some(bytes)) => capture.file(
            "/etc/pve/mapping/pci.cfg",
            mapping(&String::from_utf8_lossy(&bytes)),
        )?,
        Ok(None) => {}
        Err(error) => capture.leave_out(&error),
    }
    capture.policies(host)?;
    let survey = Survey::new(host);
    capture.vms(host, &survey, &node)?;
    let functions = functions(host, &survey)?;
    capture.names(host, &survey)?;
    capture.sysfs(host)?;
    capture.mediated(host, &functions)?;
    capture.manifest()?;
    Ok(capture)
}

impl Capture {
    fn file(&mut self, path: &str, bytes: impl Into<Vec<u8>>) -> Result<(), ArchiveError> {
        self.tree.insert(path.to_owned(), Node::File(bytes.into()))
    }

    fn leave_out(&mut self, error: &HostError) {
        self.left_out.push(error.in_words());
    }

    fn policies(&mut self, host: &Host) -> Result<(), ArchiveError> {
        for path in [CLUSTER_FILE, NODE_FILE] {
            let file = match host.policy_file(path) {
                Ok(Some(file)) => file,
                Ok(None) => continue,
                Err(error) => {
                    self.leave_out(&error);
                    continue;
                }
            };
            let text = String::from_utf8(file.bytes)
                .ok()
                .filter(|text| Policy::parse(path, text).is_ok());
            match text.as_deref().and_then(policy) {
                Some(text) if file.problem.is_none() => self.file(path, text)?,
                // Nothing of it is used then.
                _ => self
                    .left_out
                    .push(format!("{path}: it has an error, or is not trusted")),
            }
        }
        Ok(())
    }

    /// Configurations, and with them what examining the VMs reads.
    fn vms(&mut self, host: &Host, survey: &Survey, node: &str) -> Result<(), CaptureError> {
        let directory = format!("/etc/pve/nodes/{node}/qemu-server");
        self.tree.insert(directory.clone(), Node::Directory)?;
        self.tree.insert(
            "/etc/pve/qemu-server".to_owned(),
            Node::Link(format!("nodes/{node}/qemu-server")),
        )?;
        for vmid in host.vmids()? {
            let bytes = match host.vm_config(vmid) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => continue,
                Err(error) => {
                    self.leave_out(&error);
                    continue;
                }
            };
            if let Err(error) = survey.examine(vmid, &bytes, &Settings::default()) {
                self.leave_out(&error);
            }
            self.file(
                &format!("{directory}/{vmid}.conf"),
                Document::parse(&bytes).reduced(),
            )?;
        }
        Ok(())
    }

    /// The lines of `pci.ids` for the functions that were read.
    fn names(&mut self, host: &Host, survey: &Survey) -> Result<(), ArchiveError> {
        let topology = survey.topology();
        let ids: BTreeSet<_> = topology
            .iter()
            .map(|function| (function.vendor, function.device))
            .collect();
        let names = match host.device_names(ids) {
            Ok(names) => names,
            Err(error) => {
                self.leave_out(&error);
                return Ok(());
            }
        };
        let mut text = String::new();
        let mut last = None;
        for ((vendor, device), name) in &names {
            if last.replace(*vendor) != Some(*vendor) {
                let _ = writeln!(text, "{vendor:04x}  Vendor {vendor:04x}");
            }
            let _ = writeln!(text, "\t{device:04x}  {name}");
        }
        if text.is_empty() {
            Ok(())
        } else {
            self.file("/usr/share/misc/pci.ids", text)
        }
    }

    /// What was looked at below `/sys`.
    fn sysfs(&mut self, host: &Host) -> Result<(), CaptureError> {
        let mut places = Places {
            host,
            directories: BTreeMap::new(),
        };
        let mut ranges: BTreeMap<String, BTreeSet<(u16, u16)>> = BTreeMap::new();
        let accesses: BTreeSet<Access> = host.accesses().into_iter().collect();
        for access in accesses {
            match access {
                Access::Listing(path) if path == DEVICES => {
                    for name in host.pci_names()? {
                        places.of(&name, self)?;
                    }
                }
                Access::File(path) if path.ends_with("/config") => {}
                Access::File(path) => {
                    let Some((name, file)) = attribute(&path) else {
                        continue;
                    };
                    match host.bytes(&path, ATTRIBUTE_LIMIT) {
                        Ok(Some(bytes)) => {
                            let directory = places.of(name, self)?;
                            self.file(&format!("{directory}/{file}"), bytes)?;
                        }
                        Ok(None) => {}
                        Err(error) => self.leave_out(&error),
                    }
                }
                Access::Link(path) => {
                    let Some((name, link)) = attribute(&path) else {
                        continue;
                    };
                    if let Some(target) = host.link(&path)? {
                        let directory = places.of(name, self)?;
                        let link = format!("{directory}/{link}");
                        if let Err(error) = self.tree.insert_link(link, target) {
                            self.left_out.push(error.to_string());
                        }
                    }
                }
                Access::Config {
                    path,
                    offset,
                    length,
                } => {
                    ranges.entry(path).or_default().insert((offset, length));
                }
                Access::Listing(_) => {}
            }
        }
        for (path, ranges) in ranges {
            let Some((name, file)) = attribute(&path) else {
                continue;
            };
            match config(host, &path, &ranges) {
                Ok(bytes) => {
                    let directory = places.of(name, self)?;
                    self.file(&format!("{directory}/{file}"), bytes)?;
                }
                Err(error) => self.leave_out(&error),
            }
        }
        Ok(())
    }

    /// The signs of mediated devices, which are directories.
    fn mediated(&mut self, host: &Host, functions: &BTreeSet<Sbdf>) -> Result<(), CaptureError> {
        let mut places = Places {
            host,
            directories: BTreeMap::new(),
        };
        for addr in functions {
            let sign = match host.mdev(*addr)? {
                Mdev::None => continue,
                Mdev::Generic => "mdev_supported_types",
                Mdev::Nvidia => "nvidia",
            };
            let directory = places.of(&addr.to_string(), self)?;
            self.tree
                .insert(format!("{directory}/{sign}"), Node::Directory)?;
        }
        Ok(())
    }

    fn manifest(&mut self) -> Result<(), ArchiveError> {
        self.left_out.sort();
        let files = self
            .tree
            .iter()
            .filter(|(_, node)| **node != Node::Directory)
            .map(|(path, _)| path);
        let manifest = Manifest {
            capture: CAPTURE_VERSION,
            program: concat!("pve-atomicops ", env!("CARGO_PKG_VERSION")),
            files: files.collect(),
            left_out: &self.left_out,
        };
        // Numbers and texts: nothing that JSON could not hold.
        let text = serde_json::to_string_pretty(&manifest).unwrap_or_default();
        self.file(MANIFEST, text + "\n")
    }
}

/// Reads the functions that nobody passes yet and somebody may ask about; gives all that were read.
fn functions(host: &Host, survey: &Survey) -> Result<BTreeSet<Sbdf>, CaptureError> {
    let all: Vec<Sbdf> = host
        .pci_names()?
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    let mut wanted: BTreeSet<Sbdf> = survey
        .topology()
        .iter()
        .map(|function| function.addr)
        .collect();
    wanted.extend(
        all.iter()
            .filter(|addr| class(host, **addr).is_some_and(|class| Devices::Gpu.includes(class))),
    );
    let siblings: Vec<_> = all
        .iter()
        .copied()
        .filter(|addr| wanted.iter().any(|other| other.same_slot(*addr)))
        .collect();
    wanted.extend(siblings);
    survey.read(wanted);
    survey.read_places();
    Ok(survey
        .topology()
        .iter()
        .map(|function| function.addr)
        .collect())
}

/// Where the directories of functions really are.
struct Places<'h> {
    host: &'h Host,
    directories: BTreeMap<String, String>,
}

impl Places<'_> {
    /// The directory of a function, which is put into the capture with the link to it.
    fn of(&mut self, name: &str, capture: &mut Capture) -> Result<String, CaptureError> {
        if let Some(known) = self.directories.get(name) {
            return Ok(known.clone());
        }
        let path = format!("{DEVICES}/{name}");
        let target = self.host.link(&path)?;
        let directory = match target.as_deref().and_then(|target| joined(DEVICES, target)) {
            Some(directory) => {
                if capture.tree.link(&path).ok().flatten().is_none() {
                    capture
                        .tree
                        .insert(path, Node::Link(target.unwrap_or_default()))?;
                }
                directory
            }
            // A tree without links, or with one that leads somewhere else.
            None => path,
        };
        capture.tree.insert(directory.clone(), Node::Directory)?;
        self.directories.insert(name.to_owned(), directory.clone());
        Ok(directory)
    }
}

/// Where a relative link in `directory` leads by its words, if that is below `/sys`.
fn joined(directory: &str, target: &str) -> Option<String> {
    if target.starts_with('/') {
        return None;
    }
    let mut path: Vec<&str> = directory.split('/').skip(1).collect();
    for component in target.split('/') {
        match component {
            "" | "." => {}
            ".." => drop(path.pop()?),
            component => path.push(component),
        }
    }
    (path.first() == Some(&"sys") && path.len() > 1).then(|| format!("/{}", path.join("/")))
}

/// Function and name of an attribute: `/sys/bus/pci/devices/0000:0b:00.0/vendor`.
fn attribute(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix(DEVICES)?
        .strip_prefix('/')?
        .split_once('/')
        .filter(|(_, name)| !name.contains('/'))
}

/// The class code of a function, from the one file, so that nothing has to wake up.
fn class(host: &Host, addr: Sbdf) -> Option<u32> {
    let bytes = host
        .bytes(&format!("{DEVICES}/{addr}/class"), ATTRIBUTE_LIMIT)
        .ok()??;
    let text = std::str::from_utf8(&bytes).ok()?.trim();
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// The bytes of configuration space that were read, in a file that ends where reading ended.
fn config(host: &Host, path: &str, ranges: &BTreeSet<(u16, u16)>) -> Result<Vec<u8>, HostError> {
    let mut bytes = Vec::new();
    for (offset, length) in ranges {
        let part = host.bytes_at(path, *offset, *length)?.unwrap_or_default();
        let start = usize::from(*offset);
        // A read that got nothing lies behind the end.
        if !part.is_empty() {
            if bytes.len() < start + part.len() {
                bytes.resize(start + part.len(), 0);
            }
            if let Some(place) = bytes.get_mut(start..start + part.len()) {
                place.copy_from_slice(&part);
            }
        }
    }
    Ok(bytes)
}

/// The mapping file without descriptions and comments.
fn mapping(text: &str) -> String {
    let mut kept = String::new();
    for line in text.lines() {
        let property = line.starts_with(char::is_whitespace) && !line.trim().is_empty();
        let (name, value) = line
            .trim_start()
            .split_once(char::is_whitespace)
            .unwrap_or((line.trim_start(), ""));
        if line.starts_with('#')
            || property && !matches!(name, "map" | "mdev" | "live-migration-capable")
        {
            continue;
        }
        if property && name == "map" {
            let parts: Vec<_> = value
                .split(',')
                .filter(|part| !part.trim_start().starts_with("description="))
                .collect();
            let _ = writeln!(kept, "\tmap {}", parts.join(","));
        } else {
            let _ = writeln!(kept, "{line}");
        }
    }
    kept
}

/// A policy without comments.
fn policy(text: &str) -> Option<String> {
    let document: toml_edit::DocumentMut = text.parse().ok()?;
    let mut plain = toml_edit::DocumentMut::new();
    *plain.as_table_mut() = without_comments(document.as_table());
    Some(plain.to_string())
}

fn without_comments(table: &dyn toml_edit::TableLike) -> toml_edit::Table {
    let mut plain = toml_edit::Table::new();
    plain.set_implicit(true);
    for (key, item) in table.iter() {
        if let Some(below) = item.as_table_like() {
            plain.insert(key, toml_edit::Item::Table(without_comments(below)));
        } else if let Some(value) = item.as_value() {
            plain.insert(key, toml_edit::value(plain_value(value)));
        }
    }
    plain
}

fn plain_value(value: &toml_edit::Value) -> toml_edit::Value {
    match value {
        toml_edit::Value::Array(array) => array
            .iter()
            .map(plain_value)
            .collect::<toml_edit::Array>()
            .into(),
        toml_edit::Value::String(text) => text.value().as_str().into(),
        other => other.clone().decorated(" ", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::{joined, mapping, policy};

    #[test]
    fn policies_lose_their_comments_only() {
        let text = "# secret\nmode = \"abort\" # secret\nchain = [ # secret\n  \"/a b\", # secret\n]\n\n[vm.101] # secret\nmin_gpus = 1 # secret\n\n[vm]\n102 = { mode = 'off' }\n";
        // The last table would be there twice; so without it.
        let text = text.split("\n[vm]").next().unwrap();
        let plain = policy(text).unwrap();
        assert!(!plain.contains("secret"), "{plain}");
        let parse = |text: &str| text.parse::<toml::Table>().unwrap();
        assert_eq!(parse(&plain), parse(text));
        assert_eq!(policy(&plain).unwrap(), plain);
    }

    #[test]
    fn mappings_lose_their_descriptions_only() {
        let text = "# secret\ngpu0\n\tdescription secret words\n\tmap id=1002:744c,node=pve1,path=0000:0b:00\n\tmdev 0\n\n\
                    gpu1\n    map description=secret,node=pve1,path=0000:0c:00\n\tcolour secret\n";
        let expected = "gpu0\n\tmap id=1002:744c,node=pve1,path=0000:0b:00\n\tmdev 0\n\n\
                        gpu1\n\tmap node=pve1,path=0000:0c:00\n";
        assert_eq!(mapping(text), expected);
    }

    #[test]
    fn links_are_joined_by_their_words() {
        let devices = "/sys/bus/pci/devices";
        assert_eq!(
            joined(devices, "../../../devices/pci0000:00/x").as_deref(),
            Some("/sys/devices/pci0000:00/x")
        );
        for target in [
            "../../../../etc",
            "/sys/x",
            "../../../../../../x",
            "../../..",
        ] {
            assert_eq!(joined(devices, target), None, "{target}");
        }
    }
}
