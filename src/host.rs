//! The only reader of the system: configuration files, versions, `sysfs`, all beneath one root.
//!
//! The root is `/` on a live host ([`Host::live`]), or a directory or archive that holds a copy of what the program reads
//! ([`Host::at`]): a test's tree, a capture. A text of `lspci` can stand in for the PCI functions
//! ([`Host::with_listing`]). Archives are resolved in memory; below a directory, every path is opened with `openat2` and `RESOLVE_IN_ROOT`, so that
//! a symbolic link, absolute or not, leads to a place below the root and never out of it. Only regular files are read,
//! none of them beyond a limit, and opening never waits.
//!
//! A file that does not exist is `None`; everything else that goes wrong is a [`HostError`] that names the file. What the
//! bytes mean is decided elsewhere. This module writes nothing, starts no program, and keeps no content from one call
//! to the next.

mod listing;
mod pci;
mod root;
mod sorted;

use std::collections::BTreeMap;
use std::io::BufReader;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::FileStat;

use crate::archive::Tree;
use crate::pci::lspci::Listing;
use crate::vmconf::Vmid;

pub use listing::{ListingError, read_listing};
pub use pci::Mdev;
pub use root::{Access, Cause, HostError, Tally};

use root::{Root, read_all, regular};
use sorted::{next_line, seek_record};

/// pmxcfs refuses larger files.
const PVE_LIMIT: u64 = 1 << 20;
/// One line each: node name, kernel release, process ID.
const LINE_LIMIT: u64 = 4096;
/// A command line ends here on Linux (`MAX_ARG_STRLEN` times many); QEMU's has some kilobytes.
const CMDLINE_LIMIT: u64 = 2 << 20;
/// `/var/lib/dpkg/status` has about a kilobyte for each installed package.
const DPKG_LIMIT: u64 = 64 << 20;
/// A capture has some kilobytes; the limits that count are those of the archive's content.
const ARCHIVE_LIMIT: u64 = 64 << 20;
/// `pci.ids` has about 1.5 MB in 2025.
const PCI_IDS_LIMIT: u64 = 16 << 20;

const VM_DIRECTORY: &str = "/etc/pve/qemu-server";
const NODES: &str = "/etc/pve/nodes";
const DPKG_STATUS: &str = "/var/lib/dpkg/status";
const PCI_IDS: &str = "/usr/share/misc/pci.ids";

/// The packages that bring the QEMU that runs VMs, Proxmox's own first.
const QEMU_PACKAGES: [&str; 2] = ["pve-qemu-kvm", "qemu-system-x86"];

/// A host, or a tree that looks like one.
#[derive(Debug)]
pub struct Host {
    root: Root,
    live: bool,
    devices: pci::Devices,
    /// In place of `sysfs`.
    listing: Option<Listing>,
}

/// A policy file and whether it can be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFile {
    /// Its content.
    pub bytes: Vec<u8>,
    /// Why its content must not be used, if so.
    pub problem: Option<OwnershipProblem>,
}

/// Why a policy file can't be trusted: it decides whether VMs start, and which programs run as root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnershipProblem {
    /// Somebody else than root owns it (in a tree: than root or the user who runs the program).
    #[error("owned by user {0}, not by root")]
    Owner(u32),
    /// Group or others may write to it.
    #[error("writable by others than its owner (mode {0:04o})")]
    Writable(u32),
}

impl Host {
    /// The running system.
    pub fn live() -> Result<Self, HostError> {
        Self::new(Path::new("/"), true)
    }

    /// The tree below a directory, or in an archive that `path` is. Nothing outside it is read.
    pub fn at(path: &Path) -> Result<Self, HostError> {
        let error = |source: Cause| HostError {
            path: path.to_owned(),
            source,
        };
        // A directory, as it nearly always is, is opened as one at once.
        match Self::new(path, false) {
            Err(HostError {
                source: Cause::Os(Errno::ENOTDIR),
                ..
            }) => {}
            result => return result,
        }
        let flags = OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let fd = nix::fcntl::open(path, flags, nix::sys::stat::Mode::empty());
        let fd = fd.map_err(|errno| error(errno.into()))?;
        let (file, _) = regular(fd, ARCHIVE_LIMIT).map_err(error)?;
        let tree = Tree::unpack(file).map_err(|cause| error(cause.into()))?;
        Ok(Self::unpacked(tree, path))
    }

    /// The tree that was unpacked from an archive; `shown` is what messages call it.
    pub fn unpacked(tree: Tree, shown: &Path) -> Self {
        Self::below(Root::archive(tree, shown), false)
    }

    /// A host of which only this listing is known.
    pub fn listed(listing: Listing) -> Self {
        Self::unpacked(Tree::default(), Path::new("/")).with_listing(listing)
    }

    fn new(directory: &Path, live: bool) -> Result<Self, HostError> {
        Ok(Self::below(Root::new(directory)?, live))
    }

    fn below(root: Root, live: bool) -> Self {
        Self {
            root,
            live,
            devices: pci::Devices::default(),
            listing: None,
        }
    }

    /// Whether this is the running system, and not a tree.
    pub const fn is_live(&self) -> bool {
        self.live
    }

    /// The directory below which everything is read, or the archive.
    pub fn root(&self) -> &Path {
        self.root.shown()
    }

    /// Keeps a list of everything that is looked at from now on; see [`Host::accesses`].
    pub fn record(&mut self) {
        self.root.record();
    }

    /// What was looked at since [`Host::record`], in order.
    pub fn accesses(&self) -> Vec<Access> {
        self.root.accesses()
    }

    /// How much was read so far.
    pub fn tally(&self) -> Tally {
        self.root.tally()
    }

    /// The bytes of any regular file of at most `limit` bytes.
    pub fn bytes(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, HostError> {
        Ok(self.root.read(path, limit)?.map(|(bytes, _)| bytes))
    }

    /// Bytes of a regular file from `offset` on, fewer than `length` where it ends before; of a function's configuration
    /// space for example.
    pub fn bytes_at(
        &self,
        path: &str,
        offset: u16,
        length: u16,
    ) -> Result<Option<Vec<u8>>, HostError> {
        let Some((file, _)) = self.root.open_file(path, PVE_LIMIT)? else {
            return Ok(None);
        };
        let mut bytes = vec![0; usize::from(length)];
        let got = file.read_at(&mut bytes, offset.into());
        bytes.truncate(got.map_err(|error| self.root.error(path, error))?);
        Ok(Some(bytes))
    }

    /// The target of a symbolic link; `None` where there is no link.
    pub fn link(&self, path: &str) -> Result<Option<String>, HostError> {
        let Some((directory, name)) = path.rsplit_once('/') else {
            return Ok(None);
        };
        let Some(directory) = self.root.directory(directory)? else {
            return Ok(None);
        };
        let target = self.root.link_in(&directory, name);
        target.map_err(|cause| self.root.error(path, cause))
    }

    /// This node's name as Proxmox uses it: the host name up to its first dot.
    ///
    /// From the kernel on a live host, from `/etc/hostname` in a tree.
    pub fn node(&self) -> Result<String, HostError> {
        const HOSTNAME: &str = "/etc/hostname";
        let name = if self.live {
            nix::unistd::gethostname()
                .map_err(|errno| self.root.error(HOSTNAME, errno))?
                .into_string()
                .ok()
        } else {
            self.line(HOSTNAME)?
        };
        name.as_deref()
            .and_then(|name| name.split('.').next())
            // It becomes part of paths.
            .filter(|name| !name.is_empty() && !name.contains('/'))
            .map(str::to_owned)
            .ok_or_else(|| self.root.error(HOSTNAME, Cause::Content("a host name")))
    }

    /// The kernel's release, as `uname -r` prints it.
    pub fn kernel_release(&self) -> Result<String, HostError> {
        const OSRELEASE: &str = "/proc/sys/kernel/osrelease";
        self.line(OSRELEASE)?
            .ok_or_else(|| self.root.error(OSRELEASE, nix::errno::Errno::ENOENT))
    }

    /// The first line of a small text file, without white space around it.
    fn line(&self, path: &str) -> Result<Option<String>, HostError> {
        let Some(bytes) = self.bytes(path, LINE_LIMIT)? else {
            return Ok(None);
        };
        let text = String::from_utf8(bytes)
            .map_err(|_| self.root.error(path, Cause::Content("UTF-8 text")))?;
        Ok(Some(
            text.lines().next().unwrap_or_default().trim().to_owned(),
        ))
    }

    /// The version of the installed QEMU, digits and dots only (`11.0.2`), from dpkg's status file.
    ///
    /// `None` where none is installed by dpkg. The packages are `pve-qemu-kvm` and, without it, `qemu-system-x86`.
    pub fn qemu_version(&self) -> Result<Option<String>, HostError> {
        let Some((file, status)) = self.root.open_file(DPKG_STATUS, DPKG_LIMIT)? else {
            return Ok(None);
        };
        let length = u64::try_from(status.st_size).unwrap_or(0);
        let mut reader = BufReader::with_capacity(4096, file);
        for package in QEMU_PACKAGES {
            let version = installed_version(&mut reader, length, package)
                .map_err(|error| self.root.error(DPKG_STATUS, error))?;
            if version.is_some() {
                return Ok(version);
            }
        }
        Ok(None)
    }

    /// A VM's configuration on this node, `None` where this node has no such VM.
    pub fn vm_config(&self, vmid: Vmid) -> Result<Option<Vec<u8>>, HostError> {
        let bytes = self.bytes(&format!("{VM_DIRECTORY}/{vmid}.conf"), PVE_LIMIT)?;
        if bytes.is_some() || self.live {
            return Ok(bytes);
        }
        // A tree may come without the link.
        match self.node() {
            Ok(node) => self.bytes(
                &format!("{NODES}/{node}/qemu-server/{vmid}.conf"),
                PVE_LIMIT,
            ),
            Err(_) => Ok(None),
        }
    }

    /// IDs of all VMs on this node, ascending.
    pub fn vmids(&self) -> Result<Vec<Vmid>, HostError> {
        let mut names = self.root.names(VM_DIRECTORY)?;
        if names.is_none() && !self.live {
            if let Ok(node) = self.node() {
                names = self.root.names(&format!("{NODES}/{node}/qemu-server"))?;
            }
        }
        Ok(vmids_of(&names.unwrap_or_default()))
    }

    /// Names of the cluster's nodes, sorted.
    pub fn nodes(&self) -> Result<Vec<String>, HostError> {
        Ok(self.root.names(NODES)?.unwrap_or_default())
    }

    /// IDs of all VMs on a node of the cluster, ascending.
    pub fn vmids_on(&self, node: &str) -> Result<Vec<Vmid>, HostError> {
        let names = self.root.names(&format!("{NODES}/{node}/qemu-server"))?;
        Ok(vmids_of(&names.unwrap_or_default()))
    }

    /// A VM's configuration on a node of the cluster.
    pub fn vm_config_on(&self, node: &str, vmid: Vmid) -> Result<Option<Vec<u8>>, HostError> {
        self.bytes(
            &format!("{NODES}/{node}/qemu-server/{vmid}.conf"),
            PVE_LIMIT,
        )
    }

    /// The node of the cluster that holds a VM's configuration.
    pub fn node_of(&self, vmid: Vmid) -> Result<Option<String>, HostError> {
        for node in self.nodes()? {
            let path = format!("{NODES}/{node}/qemu-server/{vmid}.conf");
            if self.root.exists(&path)? {
                return Ok(Some(node));
            }
        }
        Ok(None)
    }

    /// Whether a VM runs, as far as its PID file tells; on a live host the process must be that VM's too.
    pub fn running(&self, vmid: Vmid) -> Result<bool, HostError> {
        if self.live {
            return Ok(self.command_line(vmid)?.is_some());
        }
        Ok(self.line(&pid_file(vmid))?.is_some())
    }

    /// The command line of the QEMU that runs a VM, its program first. `None` where the VM does not run, and in a tree
    /// that has no copy of it.
    ///
    /// It is what Proxmox made of the configuration when the VM was started. Bytes that are not UTF-8 are replaced.
    pub fn command_line(&self, vmid: Vmid) -> Result<Option<Vec<String>>, HostError> {
        let Some(pid) = self.line(&pid_file(vmid))? else {
            return Ok(None);
        };
        let Ok(pid) = pid.parse::<u32>() else {
            return Ok(None);
        };
        let Some(command) = self.bytes(&format!("/proc/{pid}/cmdline"), CMDLINE_LIMIT)? else {
            return Ok(None);
        };
        if !is_command_of(vmid, &command) {
            return Ok(None);
        }
        let command = command.strip_suffix(b"\0").unwrap_or(&command);
        let words = command.split(|byte| *byte == 0);
        Ok(Some(
            words
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect(),
        ))
    }

    /// Where the QEMU that runs a VM listens for QMP.
    pub fn qmp_socket(&self, vmid: Vmid) -> PathBuf {
        // `/var/run` is a link to `/run` on every Proxmox VE.
        self.root().join(format!("run/qemu-server/{vmid}.qmp"))
    }

    /// `/etc/pve/mapping/pci.cfg`: the cluster's PCI resource mappings.
    pub fn mapping_pci(&self) -> Result<Option<Vec<u8>>, HostError> {
        self.bytes("/etc/pve/mapping/pci.cfg", PVE_LIMIT)
    }

    /// `/etc/pve/storage.cfg`: the cluster's storages.
    pub fn storage_cfg(&self) -> Result<Option<Vec<u8>>, HostError> {
        self.bytes("/etc/pve/storage.cfg", PVE_LIMIT)
    }

    /// `/etc/pve/ha/resources.cfg`: what the HA manager looks after.
    pub fn ha_resources(&self) -> Result<Option<Vec<u8>>, HostError> {
        self.bytes("/etc/pve/ha/resources.cfg", PVE_LIMIT)
    }

    /// A policy file below the root.
    ///
    /// The file must belong to root and be writable by its owner only. In a tree it may also belong to the user who runs
    /// the program, since trees are made by ordinary users.
    pub fn policy_file(&self, path: &str) -> Result<Option<PolicyFile>, HostError> {
        Ok(self
            .root
            .read(path, PVE_LIMIT)?
            .map(|(bytes, status)| PolicyFile {
                bytes,
                problem: ownership_problem(&status, self.live),
            }))
    }

    /// A policy file that the user named, which may lie anywhere and is not resolved below the root.
    ///
    /// The same rules of ownership hold.
    pub fn named_policy_file(&self, path: &Path) -> Result<Option<PolicyFile>, HostError> {
        let error = |source: Cause| HostError {
            path: path.to_owned(),
            source,
        };
        let flags = OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let fd = nix::fcntl::open(path, flags, nix::sys::stat::Mode::empty());
        let Some(fd) = root::present(fd).map_err(|errno| error(errno.into()))? else {
            return Ok(None);
        };
        let (file, status) = regular(fd, PVE_LIMIT).map_err(error)?;
        Ok(Some(PolicyFile {
            bytes: read_all(file, &status, PVE_LIMIT).map_err(error)?,
            problem: ownership_problem(&status, self.live),
        }))
    }

    /// Names of devices from `pci.ids`, for the given vendor and device IDs only.
    ///
    /// Pairs that the file does not know are missing from the result; so is everything where there is no such file.
    pub fn device_names(
        &self,
        wanted: impl IntoIterator<Item = (u16, u16)>,
    ) -> Result<BTreeMap<(u16, u16), String>, HostError> {
        let mut vendors: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
        for (vendor, device) in wanted {
            vendors.entry(vendor).or_default().push(device);
        }
        let mut names = BTreeMap::new();
        if vendors.is_empty() {
            return Ok(names);
        }
        let Some((file, status)) = self.root.open_file(PCI_IDS, PCI_IDS_LIMIT)? else {
            return Ok(names);
        };
        let length = u64::try_from(status.st_size).unwrap_or(0);
        let mut reader = BufReader::with_capacity(4096, file);
        for (vendor, devices) in vendors {
            names_of_vendor(&mut reader, length, vendor, &devices, &mut names)
                .map_err(|error| self.root.error(PCI_IDS, error))?;
        }
        Ok(names)
    }
}

/// Where Proxmox keeps the process ID of the QEMU that runs a VM.
fn pid_file(vmid: Vmid) -> String {
    format!("/run/qemu-server/{vmid}.pid")
}

/// The IDs in names of configuration files, ascending.
fn vmids_of(names: &[String]) -> Vec<Vmid> {
    let mut vmids: Vec<Vmid> = names
        .iter()
        .filter_map(|name| name.strip_suffix(".conf")?.parse().ok())
        .collect();
    vmids.sort_unstable();
    vmids
}

/// Whether a command line, words ended by NUL, is that of QEMU for this VM.
///
/// A PID file may outlive its process, and the number be taken by another one. Proxmox starts QEMU with `-id VMID`.
fn is_command_of(vmid: Vmid, command: &[u8]) -> bool {
    let id = vmid.to_string();
    let mut words = command.split(|byte| *byte == 0);
    words.any(|word| word == b"-id") && words.next() == Some(id.as_bytes())
}

/// Looks one package up in dpkg's status file, and gives its version if its files are on disk.
fn installed_version(
    reader: &mut (impl std::io::BufRead + std::io::Seek),
    length: u64,
    package: &str,
) -> std::io::Result<Option<String>> {
    if !seek_record(reader, length, package.as_bytes(), package_key)? {
        return Ok(None);
    }
    let (mut line, mut present, mut version) = (Vec::new(), false, None);
    while next_line(reader, &mut line)? > 0 && !line.is_empty() {
        if let Some(status) = line.strip_prefix(b"Status: ") {
            // Want, error, state. The states from "unpacked" on have the files in place.
            present = status
                .split(|byte| *byte == b' ')
                .nth(2)
                .is_some_and(|state| {
                    !matches!(
                        state,
                        b"not-installed" | b"config-files" | b"half-installed"
                    )
                });
        } else if let Some(value) = line.strip_prefix(b"Version: ") {
            version = upstream_version(value);
        }
    }
    Ok(version.filter(|_| present))
}

/// The name of the package whose paragraph a line begins.
fn package_key(line: &[u8]) -> Option<&[u8]> {
    line.strip_prefix(b"Package: ").map(<[u8]>::trim_ascii_end)
}

/// `1:10.0.13+ds-0+deb13u1` is `10.0.13`: no epoch, no Debian revision, no suffix.
fn upstream_version(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?.trim();
    let text = text.split_once(':').map_or(text, |(_, rest)| rest);
    let end = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(text.len());
    let version = text[..end].trim_end_matches('.');
    (!version.is_empty()).then(|| version.to_owned())
}

/// Adds the names of some devices of one vendor.
fn names_of_vendor(
    reader: &mut (impl std::io::BufRead + std::io::Seek),
    length: u64,
    vendor: u16,
    devices: &[u16],
    names: &mut BTreeMap<(u16, u16), String>,
) -> std::io::Result<()> {
    if !seek_record(
        reader,
        length,
        format!("{vendor:04x}").as_bytes(),
        vendor_key,
    )? {
        return Ok(());
    }
    let mut line = Vec::new();
    while next_line(reader, &mut line)? > 0 && vendor_key(&line).is_none() {
        // "\tdddd  name"; two tabs begin a subsystem.
        let Some((id, name)) = line
            .strip_prefix(b"\t")
            .and_then(|rest| rest.split_at_checked(4))
        else {
            continue;
        };
        let id = std::str::from_utf8(id)
            .ok()
            .and_then(|id| u16::from_str_radix(id, 16).ok());
        if let Some(id) = id.filter(|id| devices.contains(id)) {
            let name = String::from_utf8_lossy(name.trim_ascii()).into_owned();
            names.insert((vendor, id), name);
        }
    }
    Ok(())
}

/// The vendor ID with which a vendor's part of `pci.ids` begins.
fn vendor_key(line: &[u8]) -> Option<&[u8]> {
    let (id, rest) = line.split_at_checked(4)?;
    (id.iter().all(u8::is_ascii_hexdigit) && rest.starts_with(b" ")).then_some(id)
}

fn ownership_problem(status: &FileStat, live: bool) -> Option<OwnershipProblem> {
    let trusted = status.st_uid == 0 || !live && status.st_uid == nix::unistd::geteuid().as_raw();
    if !trusted {
        Some(OwnershipProblem::Owner(status.st_uid))
    } else if status.st_mode & 0o022 != 0 {
        Some(OwnershipProblem::Writable(status.st_mode & 0o7777))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{is_command_of, upstream_version};
    use crate::vmconf::Vmid;

    #[test]
    fn a_process_belongs_to_a_vm_by_its_id_option() {
        let command = b"/usr/bin/kvm\x00-id\x00101\x00-name\x00guest,debug-threads=on\x00";
        for (vmid, command, expected) in [
            (101, &command[..], true),
            (102, command, false),
            (101, b"/usr/bin/less\x00101\x00", false),
            (101, b"/usr/bin/kvm\x00-id", false),
            (101, b"/usr/bin/kvm\x00-id\x001010\x00", false),
            (101, b"", false),
        ] {
            assert_eq!(is_command_of(Vmid::new(vmid).unwrap(), command), expected);
        }
    }

    #[test]
    fn a_package_version_is_cut_down_to_upstreams() {
        for (package, expected) in [
            ("11.0.2-1", Some("11.0.2")),
            ("1:10.0.13+ds-0+deb13u1", Some("10.0.13")),
            ("8.0~rc2", Some("8.0")),
            ("9.", Some("9")),
            ("", None),
            ("1:", None),
            ("unknown", None),
        ] {
            let version = upstream_version(package.as_bytes());
            assert_eq!(version.as_deref(), expected, "{package}");
        }
        assert_eq!(upstream_version(b"\xff"), None);
    }
}
