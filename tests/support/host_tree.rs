//! Builds directories that look like a Proxmox VE host, with real register bytes.
//!
//! ```ignore
//! let tree = HostTree::new()
//!     .root_port("0000:00:03.1", 0x0b, |port| port.group(12))
//!     .gpu("0000:0b:00.0", |gpu| gpu.group(27))
//!     .audio("0000:0b:00.1", |audio| audio.group(28))
//!     .vm(101, "machine: q35\nhostpci0: 0000:0b:00,pcie=1\n");
//! let host = tree.host();
//! ```
//!
//! A bridge names the bus below it; a function goes under the bridge of its bus, or onto a root bus where there is none,
//! so bridges come first. Everything is written at once, and each method may be called at any time. The tree also
//! satisfies `lspci -O sysfs.path=TREE/sys/bus/pci`. All links are relative, as in `sysfs`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use pve_atomicops::host::Host;
use pve_atomicops::pci::{Sbdf, Width, Widths};

/// A host in a temporary directory, which vanishes with it.
#[derive(Debug)]
pub struct HostTree {
    directory: tempfile::TempDir,
    node: String,
    /// Bus below a bridge, and the bridge's directory relative to `sys/devices`.
    buses: Vec<(u32, u8, PathBuf)>,
    next_group: u32,
}

/// The PCI Express part of a function under construction.
#[derive(Clone, Copy, Debug)]
struct ExpressCap {
    version: u8,
    kind: u8,
    devcap2: u32,
    devctl2: u16,
}

/// A function under construction.
#[derive(Clone, Debug)]
pub struct Device {
    addr: Sbdf,
    ids: (u16, u16),
    subsystem: Option<(u16, u16)>,
    class: u32,
    revision: u8,
    secondary: Option<u8>,
    memory: bool,
    express: Option<ExpressCap>,
    group: Option<u32>,
    driver: Option<String>,
    reset_methods: Option<String>,
    physfn: Option<Sbdf>,
    mdev: Option<&'static str>,
    raw: Option<Vec<u8>>,
}

const TYPE_ENDPOINT: u8 = 0;
const TYPE_LEGACY: u8 = 1;
const TYPE_ROOT_PORT: u8 = 4;
const TYPE_UPSTREAM: u8 = 5;
const TYPE_DOWNSTREAM: u8 = 6;
const TYPE_PCI_BRIDGE: u8 = 7;
const TYPE_INTEGRATED: u8 = 9;

/// 10-bit tags and the like: what surrounds the bits of interest.
const DEVCAP2_OTHERS: u32 = 0x0070_0000;
const ROUTING: u32 = 1 << 6;
const COMPLETERS: u32 = 7 << 7;
const REQUESTER_ENABLE: u16 = 1 << 6;
const EGRESS_BLOCKING: u16 = 1 << 7;

impl Device {
    fn new(addr: &str, kind: Option<u8>) -> Self {
        Self {
            addr: addr.parse().expect("a full PCI address"),
            ids: (0x1022, 0x1483),
            subsystem: None,
            class: 0x06_0400,
            revision: 0,
            secondary: None,
            memory: false,
            express: kind.map(|kind| ExpressCap {
                version: 2,
                kind,
                devcap2: DEVCAP2_OTHERS,
                devctl2: 0,
            }),
            group: None,
            driver: None,
            reset_methods: None,
            physfn: None,
            mdev: None,
            raw: None,
        }
    }

    fn express(mut self, change: impl FnOnce(&mut ExpressCap)) -> Self {
        change(self.express.as_mut().expect("a PCI Express function"));
        self
    }

    /// Vendor and device ID.
    pub fn ids(mut self, vendor: u16, device: u16) -> Self {
        self.ids = (vendor, device);
        self
    }

    /// Subsystem vendor and device ID.
    pub fn subsystem(mut self, vendor: u16, device: u16) -> Self {
        self.subsystem = Some((vendor, device));
        self
    }

    /// Class code, 24 bit.
    pub fn class(mut self, class: u32) -> Self {
        self.class = class;
        self
    }

    /// IOMMU group. Functions that do not say get a group of their own, from 100 on.
    pub fn group(mut self, group: u32) -> Self {
        self.group = Some(group);
        self
    }

    /// The bound driver.
    pub fn driver(mut self, driver: &str) -> Self {
        self.driver = Some(driver.to_owned());
        self
    }

    /// No bound driver.
    pub fn unbound(mut self) -> Self {
        self.driver = None;
        self
    }

    /// Content of `reset_method`: `flr bus`.
    pub fn reset_methods(mut self, words: &str) -> Self {
        self.reset_methods = Some(words.to_owned());
        self
    }

    /// A memory BAR, which every function has that is no bridge.
    pub fn memory(mut self) -> Self {
        self.memory = true;
        self
    }

    /// Exactly these completer bits.
    pub fn completes(self, widths: Widths) -> Self {
        let bits: u32 = widths
            .iter()
            .map(|width| match width {
                Width::W32 => 1 << 7,
                Width::W64 => 1 << 8,
                Width::W128 => 1 << 9,
            })
            .sum();
        self.express(|cap| cap.devcap2 = cap.devcap2 & !COMPLETERS | bits)
    }

    /// The routing bit.
    pub fn routes(self, routes: bool) -> Self {
        let bit = if routes { ROUTING } else { 0 };
        self.express(|cap| cap.devcap2 = cap.devcap2 & !ROUTING | bit)
    }

    /// Egress blocking.
    pub fn blocks_egress(self) -> Self {
        self.express(|cap| cap.devctl2 |= EGRESS_BLOCKING)
    }

    /// Requester enable.
    pub fn requester_enabled(self) -> Self {
        self.express(|cap| cap.devctl2 |= REQUESTER_ENABLE)
    }

    /// All 32 bits of DEVCAP2.
    pub fn devcap2(self, value: u32) -> Self {
        self.express(|cap| cap.devcap2 = value)
    }

    /// All 16 bits of DEVCTL2.
    pub fn devctl2(self, value: u16) -> Self {
        self.express(|cap| cap.devctl2 = value)
    }

    /// Version of the PCI Express capability, 2 unless said otherwise.
    pub fn express_version(self, version: u8) -> Self {
        self.express(|cap| cap.version = version)
    }

    /// Device/port type as a number, for those that have no method of their own.
    pub fn port_type(self, kind: u8) -> Self {
        self.express(|cap| cap.kind = kind)
    }

    /// No PCI Express capability.
    pub fn conventional(mut self) -> Self {
        self.express = None;
        self
    }

    /// A directory `mdev_supported_types`.
    pub fn mdev(mut self) -> Self {
        self.mdev = Some("mdev_supported_types/nvidia-63/available_instances");
        self
    }

    /// A directory `nvidia`, as NVIDIA's newer drivers make it.
    pub fn nvidia_vgpu(mut self) -> Self {
        self.mdev = Some("nvidia/creatable_vgpu_types");
        self
    }

    /// Configuration space is exactly this.
    pub fn raw_config(mut self, bytes: Vec<u8>) -> Self {
        self.raw = Some(bytes);
        self
    }

    /// Configuration space with something changed.
    pub fn edit_config(mut self, edit: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut bytes = self.config();
        edit(&mut bytes);
        self.raw = Some(bytes);
        self
    }

    /// The device fell off the bus: every byte reads 0xff.
    pub fn gone(self) -> Self {
        self.edit_config(|bytes| bytes.fill(0xff))
    }

    /// Only the 64 bytes that everybody may read.
    pub fn header_only(self) -> Self {
        self.edit_config(|bytes| bytes.truncate(64))
    }

    /// Where its memory is: a megabyte for each function of a segment.
    fn memory_base(&self) -> u64 {
        let function = u64::from(self.addr.device()) << 3 | u64::from(self.addr.function());
        0x80_0000_0000 + ((u64::from(self.addr.bus()) << 8 | function) << 20)
    }

    /// The lines of `resource`: start, end and flags of each BAR, window and option ROM.
    fn resource(&self) -> String {
        let mut bars = [(0, 0, 0); 13];
        if self.memory {
            bars[0] = (self.memory_base(), self.memory_base() + 0xf_ffff, 0x14_220c);
        }
        bars.map(|(start, end, flags)| format!("{start:#018x} {end:#018x} {flags:#018x}\n"))
            .concat()
    }

    fn is_bridge(&self) -> bool {
        self.secondary.is_some()
    }

    /// The bytes of configuration space: 4096 with PCI Express, else 256.
    fn config(&self) -> Vec<u8> {
        if let Some(raw) = &self.raw {
            return raw.clone();
        }
        let mut bytes = vec![0; if self.express.is_some() { 4096 } else { 256 }];
        let mut put = |offset: usize, new: &[u8]| {
            bytes[offset..offset + new.len()].copy_from_slice(new);
        };
        let (vendor, device) = match self.physfn {
            Some(_) => (0xffff, 0xffff),
            None => self.ids,
        };
        put(0x00, &vendor.to_le_bytes());
        put(0x02, &device.to_le_bytes());
        put(0x04, &[0x06, 0x00, 0x10, 0x00]);
        put(0x08, &[self.revision]);
        put(0x09, &self.class.to_le_bytes()[..3]);
        let multifunction = if self.addr.function() > 0 { 0x80 } else { 0 };
        put(0x0e, &[multifunction | u8::from(self.is_bridge())]);
        if let Some(secondary) = self.secondary {
            put(0x18, &[self.addr.bus(), secondary, secondary]);
            // Windows that are closed: base above limit.
            put(0x1c, &[0xf0, 0x00]);
            put(0x20, &[0xf0, 0xff, 0x00, 0x00, 0xf1, 0xff, 0x01, 0x00]);
        }
        if self.memory && self.physfn.is_none() {
            // A 64-bit prefetchable BAR.
            put(0x10, &(self.memory_base() | 0xc).to_le_bytes());
        }
        if let Some((vendor, device)) = self.subsystem.filter(|_| !self.is_bridge()) {
            put(0x2c, &vendor.to_le_bytes());
            put(0x2e, &device.to_le_bytes());
        }
        put(0x34, &[0x50]);
        let express_at: u8 = if self.is_bridge() { 0x58 } else { 0x64 };
        let after_power = if self.express.is_some() {
            express_at
        } else {
            0xa0
        };
        // Power management version 3, then PCI Express, then MSI with 64-bit addresses.
        put(
            0x50,
            &[0x01, after_power, 0x03, 0x00, 0x08, 0x00, 0x00, 0x00],
        );
        put(0xa0, &[0x05, 0x00, 0x80, 0x00]);
        if let Some(cap) = self.express {
            let at = usize::from(express_at);
            // Ports with something below them have a slot.
            let slot = matches!(cap.kind, TYPE_ROOT_PORT | TYPE_DOWNSTREAM);
            put(
                at,
                &[0x10, 0xa0, cap.kind << 4 | cap.version, u8::from(slot)],
            );
            put(at + 0x04, &0x0000_8fa1_u32.to_le_bytes());
            put(at + 0x08, &[0x10, 0x29, 0x00, 0x00]);
            if cap.kind != TYPE_INTEGRATED {
                // 16 GT/s, 16 lanes, both as capability and as status.
                put(at + 0x0c, &0x0047_0d04_u32.to_le_bytes());
                put(at + 0x12, &0x1104_u16.to_le_bytes());
            }
            if cap.version >= 2 {
                put(at + 0x24, &cap.devcap2.to_le_bytes());
                put(at + 0x28, &cap.devctl2.to_le_bytes());
            }
        }
        bytes
    }
}

impl Default for HostTree {
    fn default() -> Self {
        Self::new()
    }
}

impl HostTree {
    /// Node `pve1` with Linux 6.17.2-1-pve and QEMU 11.0.2, without VMs and PCI devices.
    pub fn new() -> Self {
        Self::named("pve1")
    }

    /// The same with another node name.
    pub fn named(node: &str) -> Self {
        let tree = Self {
            directory: tempfile::tempdir().expect("a temporary directory"),
            node: node.to_owned(),
            buses: Vec::new(),
            next_group: 100,
        };
        tree.directory_at(&format!("etc/pve/nodes/{node}/qemu-server"));
        tree.directory_at("sys/bus/pci/devices");
        tree.directory_at("var/lock/qemu-server");
        tree.directory_at("run/qemu-server");
        tree.link("etc/pve/local", format!("nodes/{node}"))
            .link("etc/pve/qemu-server", format!("nodes/{node}/qemu-server"))
            .file("etc/hostname", format!("{node}\n"))
            .kernel("6.17.2-1-pve")
            .qemu("11.0.2-1")
            .storage_cfg("dir: local\n\tpath /var/lib/vz\n\tcontent iso,vztmpl,backup,snippets\n")
            .file("usr/share/misc/pci.ids", PCI_IDS)
    }

    /// Where the tree is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The tree as the program sees it.
    pub fn host(&self) -> Host {
        Host::at(self.path()).expect("the tree's root")
    }

    /// Path of a place in the tree. `place` may begin with a slash.
    pub fn at(&self, place: &str) -> PathBuf {
        self.path().join(place.trim_start_matches('/'))
    }

    /// Content of a text file in the tree.
    pub fn text(&self, place: &str) -> String {
        fs::read_to_string(self.at(place)).unwrap_or_else(|error| panic!("{place}: {error}"))
    }

    /// Writes a file, in place of whatever was there; directories above it are made.
    pub fn file(self, place: &str, content: impl AsRef<[u8]>) -> Self {
        self.put(place, content);
        self
    }

    /// Like [`HostTree::file`], between two runs of the program.
    pub fn put(&self, place: &str, content: impl AsRef<[u8]>) {
        let path = self.fresh(place);
        fs::write(&path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mode = fs::Permissions::from_mode(0o644);
        fs::set_permissions(&path, mode).expect("permissions of a file just written");
    }

    /// Makes a symbolic link, in place of whatever was there.
    pub fn link(self, place: &str, target: impl AsRef<Path>) -> Self {
        self.put_link(place, target.as_ref());
        self
    }

    fn put_link(&self, place: &str, target: &Path) {
        let path = self.fresh(place);
        symlink(target, &path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Removes a file, a link or a directory with all that is in it.
    pub fn without(self, place: &str) -> Self {
        remove(&self.at(place));
        self
    }

    /// Changes a file's permission bits.
    pub fn mode(self, place: &str, mode: u32) -> Self {
        fs::set_permissions(self.at(place), fs::Permissions::from_mode(mode)).expect(place);
        self
    }

    fn directory_at(&self, place: &str) -> PathBuf {
        let path = self.at(place);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// A place where nothing is yet.
    fn fresh(&self, place: &str) -> PathBuf {
        let path = self.at(place);
        let parent = path.parent().expect("a place below the root");
        fs::create_dir_all(parent).unwrap_or_else(|error| panic!("{}: {error}", parent.display()));
        remove(&path);
        path
    }

    /// The kernel's release.
    pub fn kernel(self, release: &str) -> Self {
        self.file("proc/sys/kernel/osrelease", format!("{release}\n"))
    }

    /// Version of the package `pve-qemu-kvm`.
    pub fn qemu(self, version: &str) -> Self {
        self.packages(&[
            ("base-files", "install ok installed", "13.8+deb13u1"),
            ("pve-qemu-kvm", "install ok installed", version),
            ("qemu-server", "install ok installed", "9.2.6"),
            (
                "zlib1g",
                "install ok installed",
                "1:1.3.dfsg+really1.3.1-1+b1",
            ),
        ])
    }

    /// The packages that dpkg knows, each with its status and version.
    pub fn packages(self, packages: &[(&str, &str, &str)]) -> Self {
        let text: Vec<String> = packages
            .iter()
            .map(|(name, status, version)| {
                format!(
                    "Package: {name}\nStatus: {status}\nPriority: optional\nSection: admin\nArchitecture: amd64\n\
                     Version: {version}\nDescription: one of several packages\n More words about it.\n\n"
                )
            })
            .collect();
        self.file("var/lib/dpkg/status", text.concat())
    }

    /// A VM's configuration on this node.
    pub fn vm(self, vmid: u32, config: &str) -> Self {
        let node = self.node.clone();
        self.vm_on(&node, vmid, config)
    }

    /// A VM's configuration on any node of the cluster.
    pub fn vm_on(self, node: &str, vmid: u32, config: &str) -> Self {
        self.file(
            &format!("etc/pve/nodes/{node}/qemu-server/{vmid}.conf"),
            config,
        )
    }

    /// The text of a VM's configuration on this node.
    pub fn vm_text(&self, vmid: u32) -> String {
        self.text(&format!(
            "etc/pve/nodes/{}/qemu-server/{vmid}.conf",
            self.node
        ))
    }

    /// A VM that runs, as far as its PID file tells.
    pub fn running(self, vmid: u32) -> Self {
        self.file(&format!("run/qemu-server/{vmid}.pid"), "4242\n")
    }

    /// `mapping/pci.cfg`.
    pub fn mapping(self, text: &str) -> Self {
        self.file("etc/pve/mapping/pci.cfg", text)
    }

    /// `storage.cfg`.
    pub fn storage_cfg(self, text: &str) -> Self {
        self.file("etc/pve/storage.cfg", text)
    }

    /// VMs that the HA manager looks after.
    pub fn ha(self, vmids: &[u32]) -> Self {
        let text: Vec<String> = vmids
            .iter()
            .map(|vmid| format!("vm: {vmid}\n\tstate started\n\n"))
            .collect();
        self.file("etc/pve/ha/resources.cfg", text.concat())
    }

    /// The cluster's policy file.
    pub fn policy(self, toml: &str) -> Self {
        self.file("etc/pve/atomicops.toml", toml)
    }

    /// This node's policy file.
    pub fn node_policy(self, toml: &str) -> Self {
        self.file("etc/pve-atomicops/config.toml", toml)
    }

    /// A root port: completes 32 and 64 bit, does not route between root ports.
    pub fn root_port(self, addr: &str, bus: u8, change: impl FnOnce(Device) -> Device) -> Self {
        let port = Device::new(addr, Some(TYPE_ROOT_PORT)).completes(Widths::W32_W64);
        self.bridge(port.driver("pcieport"), bus, change)
    }

    /// An upstream port of a switch: routes.
    pub fn upstream_port(self, addr: &str, bus: u8, change: impl FnOnce(Device) -> Device) -> Self {
        let port = Device::new(addr, Some(TYPE_UPSTREAM))
            .ids(0x1002, 0x1478)
            .routes(true);
        self.bridge(port.driver("pcieport"), bus, change)
    }

    /// A downstream port of a switch: routes.
    pub fn downstream_port(
        self,
        addr: &str,
        bus: u8,
        change: impl FnOnce(Device) -> Device,
    ) -> Self {
        let port = Device::new(addr, Some(TYPE_DOWNSTREAM))
            .ids(0x1002, 0x1479)
            .routes(true);
        self.bridge(port.driver("pcieport"), bus, change)
    }

    /// A bridge from PCI Express to conventional PCI.
    pub fn pci_bridge(self, addr: &str, bus: u8, change: impl FnOnce(Device) -> Device) -> Self {
        let bridge = Device::new(addr, Some(TYPE_PCI_BRIDGE)).ids(0x1b21, 0x1080);
        self.bridge(bridge, bus, change)
    }

    fn bridge(self, device: Device, bus: u8, change: impl FnOnce(Device) -> Device) -> Self {
        let device = Device {
            secondary: Some(bus),
            ..device
        };
        self.add(&change(device))
    }

    /// A GPU: completes 32 and 64 bit, bound to vfio-pci, can only be reset through its bus.
    pub fn gpu(self, addr: &str, change: impl FnOnce(Device) -> Device) -> Self {
        let gpu = Device::new(addr, Some(TYPE_ENDPOINT))
            .memory()
            .ids(0x1002, 0x744c)
            .subsystem(0x1da2, 0xe471)
            .class(0x03_0000)
            .completes(Widths::W32_W64)
            .driver("vfio-pci")
            .reset_methods("bus");
        self.add(&change(gpu))
    }

    /// A GPU's audio function: PCI Express without completer bits.
    pub fn audio(self, addr: &str, change: impl FnOnce(Device) -> Device) -> Self {
        let audio = Device::new(addr, Some(TYPE_ENDPOINT))
            .memory()
            .ids(0x1002, 0xab30)
            .subsystem(0x1002, 0xab30)
            .class(0x04_0300)
            .driver("vfio-pci")
            .reset_methods("bus");
        self.add(&change(audio))
    }

    /// An endpoint without completer bits: a network card.
    pub fn endpoint(self, addr: &str, change: impl FnOnce(Device) -> Device) -> Self {
        self.add(&change(plain(addr, Some(TYPE_ENDPOINT))))
    }

    /// The same as a legacy endpoint.
    pub fn legacy_endpoint(self, addr: &str, change: impl FnOnce(Device) -> Device) -> Self {
        self.add(&change(plain(addr, Some(TYPE_LEGACY))))
    }

    /// The same as a root complex integrated endpoint.
    pub fn integrated_endpoint(self, addr: &str, change: impl FnOnce(Device) -> Device) -> Self {
        self.add(&change(plain(addr, Some(TYPE_INTEGRATED))))
    }

    /// A conventional PCI device.
    pub fn conventional(self, addr: &str, change: impl FnOnce(Device) -> Device) -> Self {
        self.add(&change(plain(addr, None)))
    }

    /// A virtual function of `physfn`, which must be there: IDs of all ones in configuration space, no completer bits.
    pub fn virtual_function(
        self,
        addr: &str,
        physfn: &str,
        change: impl FnOnce(Device) -> Device,
    ) -> Self {
        let physfn = physfn.parse().expect("a full PCI address");
        let function = Device {
            physfn: Some(physfn),
            ..plain(addr, Some(TYPE_ENDPOINT))
        };
        let tree = self.add(&change(function));
        let physical = tree.device_directory(physfn);
        let number = fs::read_dir(&physical)
            .expect("the physical function's directory")
            .filter(|entry| {
                let name = entry.as_ref().expect("an entry of it").file_name();
                name.as_encoded_bytes().starts_with(b"virtfn")
            })
            .count();
        let function: Sbdf = addr.parse().expect("a full PCI address");
        symlink(
            format!("../{function}"),
            physical.join(format!("virtfn{number}")),
        )
        .expect("a link to the virtual function");
        fs::write(physical.join("sriov_numvfs"), format!("{}\n", number + 1))
            .expect("the number of virtual functions");
        tree
    }

    /// The directory of a function below `sys/devices`.
    pub fn device_directory(&self, addr: Sbdf) -> PathBuf {
        fs::canonicalize(self.at(&format!("sys/bus/pci/devices/{addr}")))
            .unwrap_or_else(|error| panic!("{addr}: {error}"))
    }

    fn add(mut self, device: &Device) -> Self {
        let addr = device.addr;
        let above = self
            .buses
            .iter()
            .find(|(segment, bus, _)| (*segment, *bus) == (addr.segment(), addr.bus()))
            .map_or_else(
                || PathBuf::from(format!("pci{:04x}:{:02x}", addr.segment(), addr.bus())),
                |(_, _, path)| path.clone(),
            );
        let path = above.join(addr.to_string());
        if let Some(secondary) = device.secondary {
            self.buses.push((addr.segment(), secondary, path.clone()));
        }
        let group = device.group.unwrap_or_else(|| {
            self.next_group += 1;
            self.next_group - 1
        });

        let place = format!("sys/devices/{}", path.display());
        let depth = path.components().count();
        let to_sys = "../".repeat(depth + 1);
        let put = |name: &str, content: String| self.put(&format!("{place}/{name}"), content);
        self.put(&format!("{place}/config"), device.config());
        put("vendor", format!("0x{:04x}\n", device.ids.0));
        put("device", format!("0x{:04x}\n", device.ids.1));
        let subsystem = device.subsystem.unwrap_or((0, 0));
        put("subsystem_vendor", format!("0x{:04x}\n", subsystem.0));
        put("subsystem_device", format!("0x{:04x}\n", subsystem.1));
        put("class", format!("0x{:06x}\n", device.class));
        put("revision", format!("0x{:02x}\n", device.revision));
        put("irq", "0\n".to_owned());
        put(
            "resource",
            format!("{0} {0} {0}\n", "0x0000000000000000").repeat(13),
        );
        if let Some(words) = &device.reset_methods {
            put("reset_method", format!("{words}\n"));
        }
        if let Some(name) = device.mdev {
            put(name, "1\n".to_owned());
        }

        let link = |name: &str, target: String| {
            self.put_link(&format!("{place}/{name}"), Path::new(&target));
        };
        link(
            "iommu_group",
            format!("{to_sys}kernel/iommu_groups/{group}"),
        );
        if let Some(driver) = &device.driver {
            link("driver", format!("{to_sys}bus/pci/drivers/{driver}"));
            self.put_link(
                &format!("sys/bus/pci/drivers/{driver}/{addr}"),
                &Path::new("../../../../devices").join(&path),
            );
        }
        if let Some(physfn) = device.physfn {
            link("physfn", format!("../{physfn}"));
        }
        self.put_link(
            &format!("sys/kernel/iommu_groups/{group}/devices/{addr}"),
            &Path::new("../../../../devices").join(&path),
        );
        self.put_link(
            &format!("sys/bus/pci/devices/{addr}"),
            &Path::new("../../../devices").join(&path),
        );
        self.mark_multifunction(addr);
        self
    }

    /// Function 0 of a slot says whether there are more.
    fn mark_multifunction(&self, addr: Sbdf) {
        let first = self.at(&format!("sys/bus/pci/devices/{}.0/config", addr.slot()));
        if addr.function() > 0
            && let Ok(mut bytes) = fs::read(&first)
            && let Some(header_type) = bytes.get_mut(0x0e)
        {
            *header_type |= 0x80;
            fs::write(&first, bytes).expect("configuration space of function 0");
        }
    }
}

/// A network card.
fn plain(addr: &str, kind: Option<u8>) -> Device {
    Device::new(addr, kind)
        .memory()
        .ids(0x8086, 0x10c9)
        .subsystem(0x8086, 0xa03c)
        .class(0x02_0000)
        .driver("vfio-pci")
        .reset_methods("flr bus")
}

fn remove(path: &Path) {
    if path.is_dir() && !path.is_symlink() {
        fs::remove_dir_all(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    } else if path.exists() || path.is_symlink() {
        fs::remove_file(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// The devices of the examples; the full file has more than thirty thousand lines.
const PCI_IDS: &str = "\
# Names of PCI devices, as far as the trees need them.
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t1478  Navi 10 XL Upstream Port of PCI Express Switch
\t1479  Navi 10 XL Downstream Port of PCI Express Switch
\t73bf  Navi 21 [Radeon RX 6800/6800 XT / 6900 XT]
\t744c  Navi 31 [Radeon RX 7900 XT/7900 XTX]
\t\t1da2 e471  NITRO+ RX 7900 XTX Vapor-X
\t74a1  Aqua Vanjaram [Instinct MI300X]
\t74b5  Aqua Vanjaram [Instinct MI300X VF]
\tab28  Navi 21/23 HDMI/DP Audio Controller
\tab30  Navi 31 HDMI/DP Audio
1022  Advanced Micro Devices, Inc. [AMD]
\t1483  Starship/Matisse GPP Bridge
\t43e9  500 Series Chipset Switch Upstream Port
\t43ea  500 Series Chipset Switch Downstream Port
8086  Intel Corporation
\t10c9  82576 Gigabit Network Connection
C 03  Display controller
\t00  VGA compatible controller
";
