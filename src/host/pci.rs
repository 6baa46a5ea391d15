//! PCI functions as `sysfs` shows them.
//!
//! A function's directory is opened once; its files and links are then read relative to it, each with as few system
//! calls as can be. The bridges above are not looked up one by one: the target of a function's link in
//! `/sys/bus/pci/devices` names them all. Configuration space is pulled by [`crate::pci::config_space::walk`].

use std::cell::OnceCell;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::unistd::read;

use super::Host;
use super::root::{self, Access, Cause, HostError, regular};
use crate::pci::config_space::{Identity, walk_and_identify};
use crate::pci::{Function, Registers, Sbdf, Topology};

const DEVICES: &str = "/sys/bus/pci/devices";
/// More than the longest attribute that is read (`reset_method`, a handful of words).
const ATTRIBUTE_LIMIT: usize = 256;
/// Configuration space has 256 or 4096 bytes; a larger file is none.
const CONFIG_LIMIT: u64 = 1 << 20;
/// All ones, as the bus says it.
const UNKNOWN_CLASS: u32 = 0xff_ffff;
/// A path through more bridges than this does not exist: buses have numbers of 8 bit.
const MAX_BRIDGES: usize = 255;

/// The opened `/sys/bus/pci/devices`.
#[derive(Debug, Default)]
pub(super) struct Devices(OnceCell<Option<root::Directory>>);

/// How a function makes mediated devices, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mdev {
    /// It does not.
    None,
    /// Through the kernel's mediated device interface (`mdev_supported_types`).
    Generic,
    /// Through the interface of NVIDIA's newer drivers (a directory `nvidia`).
    Nvidia,
}

impl Host {
    /// Names of all PCI functions, sorted as text, which is the order Proxmox uses.
    pub fn pci_names(&self) -> Result<Vec<String>, HostError> {
        if let Some(listing) = &self.listing {
            let mut names: Vec<_> = listing
                .topology
                .iter()
                .map(|function| function.addr.to_string())
                .collect();
            names.sort_unstable();
            return Ok(names);
        }
        let mut names = self.root.names(DEVICES)?.unwrap_or_default();
        names.retain(|name| name.parse::<Sbdf>().is_ok());
        Ok(names)
    }

    /// One function, `None` where the host has no such function.
    ///
    /// Registers that can't be read are [`Registers::Unreadable`] and no error. An ID that can't be read is all ones,
    /// which is what the bus says of a device that is not there.
    pub fn function(&self, addr: Sbdf) -> Result<Option<Function>, HostError> {
        let above = self.bridges_above(addr)?;
        let function = self.read_function(addr, above.first().copied(), Role::Passed)?;
        let Some(mut function) = function else {
            return Ok(None);
        };
        function.subsystem = self.subsystem(addr)?;
        Ok(Some(function))
    }

    /// Subsystem vendor and device ID of a function, where it has both.
    pub fn subsystem(&self, addr: Sbdf) -> Result<Option<(u16, u16)>, HostError> {
        if let Some(listing) = &self.listing {
            return Ok(listing
                .topology
                .get(addr)
                .and_then(|function| function.subsystem));
        }
        Ok(self.directory(addr)?.and_then(|directory| {
            let vendor = directory.number("subsystem_vendor");
            let both = vendor.zip(directory.number("subsystem_device"));
            both.map(|(vendor, device)| (id(Some(vendor)), id(Some(device))))
        }))
    }

    /// Functions, their physical functions, and every bridge above one of them, each read once and without subsystems;
    /// bridges also without what [`Self::add_places`] adds.
    ///
    /// Addresses that the host does not have are missing from the result. Whatever else goes wrong with one function is
    /// told by its registers, and does no harm to the others; so is a bridge or physical function that a link names and
    /// that is not there, since a gap would look like a function without a root port.
    pub fn topology(&self, addrs: impl IntoIterator<Item = Sbdf>) -> Topology {
        let mut topology = Topology::default();
        self.extend(&mut topology, addrs);
        topology
    }

    /// Adds functions to a topology as [`Self::topology`] reads them; what it holds already is not read again.
    pub fn extend(&self, topology: &mut Topology, addrs: impl IntoIterator<Item = Sbdf>) {
        for addr in addrs {
            self.add_with_path(topology, addr);
            if let Some(physfn) = topology.get(addr).and_then(|function| function.physfn) {
                // A physical function has none itself, so that this ends.
                self.add_with_path(topology, physfn);
                insert_if_new(topology, physfn, || missing(physfn, None));
            }
        }
    }

    /// Adds the IOMMU groups and drivers of bridges, which only people want to know.
    pub fn add_places(&self, topology: &mut Topology) {
        if self.listing.is_some() {
            return;
        }
        for function in topology.iter_mut() {
            if (function.iommu_group, &function.driver) == (None, &None)
                && let Ok(Some(directory)) = self.directory(function.addr)
            {
                function.iommu_group = directory.iommu_group();
                function.driver = directory.link("driver");
            }
        }
    }

    /// Adds a function and the bridges above it.
    fn add_with_path(&self, topology: &mut Topology, addr: Sbdf) {
        if topology.get(addr).is_some() {
            return;
        }
        let above = match self.bridges_above(addr) {
            Ok(above) => above,
            Err(error) => {
                topology.insert(unreadable(addr, None, error.in_words()));
                return;
            }
        };
        let parent = above.first().copied();
        match self.read_function(addr, parent, Role::Passed) {
            Ok(Some(function)) => topology.insert(function),
            Ok(None) => return,
            Err(error) => topology.insert(unreadable(addr, parent, error.in_words())),
        }
        for (at, bridge) in above.iter().enumerate() {
            let parent = above.get(at + 1).copied();
            insert_if_new(topology, *bridge, || {
                match self.read_function(*bridge, parent, Role::Bridge) {
                    Ok(Some(function)) => function,
                    Ok(None) => missing(*bridge, parent),
                    Err(error) => unreadable(*bridge, parent, error.in_words()),
                }
            });
        }
    }

    /// How a function makes mediated devices, by the signs that Proxmox looks for.
    pub fn mdev(&self, addr: Sbdf) -> Result<Mdev, HostError> {
        for (name, kind) in [
            ("mdev_supported_types", Mdev::Generic),
            ("nvidia", Mdev::Nvidia),
        ] {
            let path = format!("{DEVICES}/{addr}/{name}");
            if self.listing.is_none() && self.root.directory(&path)?.is_some() {
                return Ok(kind);
            }
        }
        Ok(Mdev::None)
    }

    /// The bridges above a function, nearest first, as the target of its link names them.
    ///
    /// Empty for a function on a root bus, for one that does not exist, and where the tree has a directory in place of
    /// the link.
    fn bridges_above(&self, addr: Sbdf) -> Result<Vec<Sbdf>, HostError> {
        if let Some(listing) = &self.listing {
            return Ok(listing
                .topology
                .above(addr)
                .map(|bridge| bridge.addr)
                .collect());
        }
        let Some(devices) = self.devices()? else {
            return Ok(Vec::new());
        };
        let name = addr.to_string();
        let path = || format!("{DEVICES}/{name}");
        self.root.note(|| Access::Link(path()), |_| ());
        let target = self.root.link_in(devices, &name);
        let target = target.map_err(|cause| self.root.error(&path(), cause))?;
        let mut above: Vec<Sbdf> = Vec::new();
        // ../../../devices/pci0000:00/0000:00:03.1/0000:0b:00.0
        for component in target.as_deref().unwrap_or_default().rsplit('/').skip(1) {
            match component.parse() {
                // A function is above itself only in a tree that somebody made up.
                Ok(bridge) if bridge == addr || above.contains(&bridge) => break,
                Ok(bridge) if above.len() < MAX_BRIDGES => above.push(bridge),
                _ => break,
            }
        }
        Ok(above)
    }

    fn devices(&self) -> Result<Option<&root::Directory>, HostError> {
        if self.devices.0.get().is_none() {
            let opened = self.root.directory(DEVICES)?;
            // Another value can't have come in between: the cell is not shared between threads.
            let _ = self.devices.0.set(opened);
        }
        Ok(self.devices.0.get().and_then(Option::as_ref))
    }

    /// Opens the directory of a function.
    fn directory(&self, addr: Sbdf) -> Result<Option<Directory<'_>>, HostError> {
        let path = [DEVICES, "/", &addr.to_string()].concat();
        let opened = self.root.directory(&path)?;
        Ok(opened.map(|opened| Directory {
            host: self,
            path,
            opened,
        }))
    }

    fn read_function(
        &self,
        addr: Sbdf,
        parent: Option<Sbdf>,
        role: Role,
    ) -> Result<Option<Function>, HostError> {
        if let Some(listing) = &self.listing {
            return Ok(listing.topology.get(addr).cloned());
        }
        let Some(directory) = self.directory(addr)? else {
            return Ok(None);
        };
        let (registers, header) = directory.registers();
        // Of a bridge the header, which the walk reads anyway, tells enough; each attribute would cost three system
        // calls. A passed function is what Proxmox takes it for, and that is what the attributes say.
        let header = header.filter(|_| role == Role::Bridge);
        let identity = header.unwrap_or_else(|| Identity {
            vendor: id(directory.number("vendor")),
            device: id(directory.number("device")),
            class: directory.number("class").unwrap_or(UNKNOWN_CLASS),
        });
        let passed = (role == Role::Passed).then_some(&directory);
        Ok(Some(Function {
            addr,
            vendor: identity.vendor,
            device: identity.device,
            class: identity.class,
            subsystem: None,
            parent,
            physfn: passed
                .and_then(|directory| directory.link("physfn"))
                .and_then(|name| name.parse().ok()),
            iommu_group: passed.and_then(Directory::iommu_group),
            driver: passed.and_then(|directory| directory.link("driver")),
            reset_methods: passed.and_then(|directory| directory.words("reset_method")),
            registers,
        }))
    }
}

/// What a function is read for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// For itself: a VM gets it, or a virtual function of it.
    Passed,
    /// As a bridge on the way to another one.
    Bridge,
}

fn insert_if_new(topology: &mut Topology, addr: Sbdf, function: impl FnOnce() -> Function) {
    if topology.get(addr).is_none() {
        topology.insert(function());
    }
}

fn missing(addr: Sbdf, parent: Option<Sbdf>) -> Function {
    unreadable(addr, parent, format!("{DEVICES}/{addr} is missing"))
}

/// A function of which nothing is known but its place.
fn unreadable(addr: Sbdf, parent: Option<Sbdf>, reason: String) -> Function {
    Function {
        addr,
        vendor: id(None),
        device: id(None),
        subsystem: None,
        class: UNKNOWN_CLASS,
        parent,
        physfn: None,
        iommu_group: None,
        driver: None,
        reset_methods: None,
        registers: Registers::Unreadable(reason),
    }
}

/// An ID of 16 bit; all ones if unknown.
fn id(number: Option<u32>) -> u16 {
    number
        .and_then(|number| u16::try_from(number).ok())
        .unwrap_or(0xffff)
}

/// The opened directory of one function.
struct Directory<'a> {
    host: &'a Host,
    path: String,
    opened: root::Directory,
}

impl Directory<'_> {
    fn open(&self, name: &str) -> Result<Option<OwnedFd>, Cause> {
        self.host.root.open_in(&self.opened, &self.path, name)
    }

    fn note_file(&self, name: &str) {
        let access = || Access::File(format!("{}/{name}", self.path));
        self.host.root.note(access, |tally| tally.files += 1);
    }

    /// What is made of a short attribute. One bounded read and no look at the file's type: from a FIFO or a directory
    /// nothing comes.
    fn attribute<T>(&self, name: &str, make: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let fd = self.open(name).ok()??;
        self.note_file(name);
        let mut buffer = [0; ATTRIBUTE_LIMIT];
        let length = read(&fd, &mut buffer)
            .ok()
            .filter(|length| *length < ATTRIBUTE_LIMIT)?;
        let text = std::str::from_utf8(buffer.get(..length)?).ok()?;
        make(text.trim_ascii())
    }

    /// A number as `sysfs` writes it: `0x1002`.
    fn number(&self, name: &str) -> Option<u32> {
        self.attribute(name, |text| {
            u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
        })
    }

    /// The words of an attribute.
    fn words(&self, name: &str) -> Option<Vec<String>> {
        self.attribute(name, |text| {
            Some(text.split_ascii_whitespace().map(str::to_owned).collect())
        })
    }

    /// The last component of a link's target.
    fn link(&self, name: &str) -> Option<String> {
        self.host
            .root
            .note(|| Access::Link(format!("{}/{name}", self.path)), |_| ());
        let mut target = self.host.root.link_in(&self.opened, name).ok()??;
        let last = target.rfind('/').map_or(0, |slash| slash + 1);
        target.drain(..last);
        (!target.is_empty()).then_some(target)
    }

    fn iommu_group(&self) -> Option<u32> {
        self.link("iommu_group")?.parse().ok()
    }

    /// The registers, and what the header says of the function.
    fn registers(&self) -> (Registers, Option<Identity>) {
        let file = match self.open("config") {
            Ok(Some(fd)) => regular(fd, CONFIG_LIMIT),
            Ok(None) => Err(Errno::ENOENT.into()),
            Err(cause) => Err(cause),
        };
        let file = match file {
            Ok((file, _)) => file,
            Err(cause) => {
                let reason = format!("{}/config: {cause}", self.path);
                return (Registers::Unreadable(reason), None);
            }
        };
        self.note_file("config");
        let (space, identity) = walk_and_identify(|offset, buffer: &mut [u8]| {
            let length = u16::try_from(buffer.len()).unwrap_or(u16::MAX);
            let access = || Access::Config {
                path: format!("{}/config", self.path),
                offset,
                length,
            };
            self.host
                .root
                .note(access, |tally| tally.config_bytes += u32::from(length));
            file.read_at(buffer, offset.into()).map_err(Cause::from)
        });
        (space.into(), identity)
    }
}
