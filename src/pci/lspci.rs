//! The text of `lspci` as a host: for machines where this program is not installed.
//!
//! Meant for `lspci -D -vvv -xxxx` run as root, and content with less: `-xxx` or `-xx` in place of `-xxxx`, with or
//! without `-D`, `-n` or `-nn`. Bytes come from the hexadecimal part; where that is missing or ends with the header,
//! registers come from the decoded `Express` and `AtomicOps` lines; where neither tells, they are
//! [`Registers::Unreadable`], never 0. DEVCAP2 and DEVCTL2 from decoded lines hold the `AtomicOps` bits only, and of
//! those only the ones that `lspci` prints for the type of port.
//!
//! The bridge above a function is the one whose secondary bus it is on, virtual functions are found by the SR-IOV
//! capability of their physical function. The text does not tell `reset_method`.
//!
//! Texts come from people, so nothing is trusted: sizes are bounded, and errors name the line. Lines that mean nothing
//! here are passed over. The wording was read from `pciutils` 3.9.0 (`lspci.c`, `ls-caps.c`, `ls-ecaps.c`).

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use super::config_space::{ConfigSpace, Fault, walk};
use super::express::{DevCap2, DevCtl2, Express, PortType};
use super::{Function, Registers, Sbdf, Topology};

/// The longest text that is looked at, in bytes. A function takes up to 18 KiB of `-vvv -xxxx`.
pub const MAX_BYTES: usize = 64 << 20;
/// The most functions in one text.
const MAX_FUNCTIONS: usize = 16_384;
/// The longest line, in bytes.
const MAX_LINE: usize = 16_384;
/// The most virtual functions that all physical functions together may claim.
const MAX_VIRTUAL: usize = 1 << 18;
/// Vendor or device ID where the text does not tell: the one value that no device has.
const NO_ID: u16 = 0xffff;
/// Class where the text does not tell: "unassigned class".
const NO_CLASS: u32 = 0x00ff_0000;
/// What to run instead.
const ADVICE: &str = "run `lspci -D -vvv -xxxx` as root";

/// What the text says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The functions.
    pub topology: Topology,
    /// What `lspci` calls each function: vendor and device in words. Empty for `lspci -n`.
    pub names: BTreeMap<Sbdf, String>,
}

/// Why a text can't be used. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LspciError {
    /// Longer than [`MAX_BYTES`].
    #[error("longer than {MAX_BYTES} bytes: not the output of lspci")]
    TooLong,
    /// A line that no `lspci` prints.
    #[error("line {line}: longer than {MAX_LINE} bytes: not the output of lspci")]
    LineTooLong {
        /// The line.
        line: usize,
    },
    /// There is no function in the text.
    #[error(
        "no line begins like '0000:0b:00.0 VGA compatible controller: ...': not the output of lspci; {ADVICE}"
    )]
    NoFunction,
    /// More than this program takes.
    #[error("line {line}: more than {MAX_FUNCTIONS} functions")]
    TooManyFunctions {
        /// The first line beyond.
        line: usize,
    },
    /// The same function twice.
    #[error("line {line}: {addr} was described in line {first} already: two outputs in one file?")]
    Twice {
        /// The function.
        addr: Sbdf,
        /// Where it is described first.
        first: usize,
        /// Where it is described again.
        line: usize,
    },
    /// A line of the hexadecimal part that is not whole, or not where it belongs.
    #[error("line {line}: expected 16 bytes at offset {expected:#05x} of {addr}")]
    Hex {
        /// The function.
        addr: Sbdf,
        /// The line.
        line: usize,
        /// Offset of the next byte.
        expected: usize,
    },
    /// A bridge that claims to lead upwards or to itself.
    #[error("line {line}: {addr} leads from bus {:02x} to bus {secondary:02x}: bus numbers only grow downwards", addr.bus())]
    Upwards {
        /// The bridge.
        addr: Sbdf,
        /// The line that describes it.
        line: usize,
        /// The bus it claims.
        secondary: u8,
    },
    /// Two bridges that claim one bus.
    #[error("line {line}: {addr} and {other} both lead to bus {secondary:02x}")]
    SharedBus {
        /// The second bridge.
        addr: Sbdf,
        /// The first bridge.
        other: Sbdf,
        /// The line that describes the second.
        line: usize,
        /// The bus that both claim.
        secondary: u8,
    },
    /// Physical functions that claim more virtual functions than there can be.
    #[error("line {line}: {addr} and those before claim more than {MAX_VIRTUAL} virtual functions")]
    TooManyVirtual {
        /// The physical function.
        addr: Sbdf,
        /// The line that describes it.
        line: usize,
    },
}

/// Reads the output of `lspci`.
pub fn parse(text: &str) -> Result<Listing, LspciError> {
    if text.len() > MAX_BYTES {
        return Err(LspciError::TooLong);
    }
    let blocks = blocks(text)?;
    if blocks.is_empty() {
        return Err(LspciError::NoFunction);
    }
    let tree = Tree::new(&blocks)?;
    let physical = physical_functions(&blocks)?;
    let mut listing = Listing::default();
    for block in blocks.values() {
        if let Some(name) = &block.name {
            listing.names.insert(block.addr, name.clone());
        }
        listing
            .topology
            .insert(function(block, &blocks, &tree, &physical));
    }
    Ok(listing)
}

fn function(
    block: &Block,
    blocks: &BTreeMap<Sbdf, Block>,
    tree: &Tree,
    physical: &BTreeMap<Sbdf, Sbdf>,
) -> Function {
    let physfn = physical.get(&block.addr).copied();
    let of_physical = physfn.and_then(|addr| blocks.get(&addr));
    // `virtfn->dev.parent = dev->dev.parent` in Linux' `pci_iov_add_virtfn`: on whatever bus a VF is, sysfs nests it
    // below the bridge of its physical function.
    let place = physfn.unwrap_or(block.addr);
    let above = tree.above(place);
    let mut registers = block.registers();
    if physfn.is_none() && block.is_virtual() {
        registers = Registers::Unreadable(
            "a virtual function, and the text does not tell of which physical function".to_owned(),
        );
    } else if let Registers::Express(express) = registers
        && above == Above::Missing
        && needs_bridge(express.port_type)
    {
        registers = Registers::Unreadable(format!(
            "the bridge to bus {:02x} is not in the text; {ADVICE}, without -s or -d",
            place.bus()
        ));
    }
    // The configuration space of a VF reads ffff:ffff.
    let (vendor, device) = block.ids().unwrap_or_else(|| {
        let vendor = of_physical.and_then(Block::ids).map(|(vendor, _)| vendor);
        let device = of_physical.and_then(Block::sriov).map(|sriov| sriov.device);
        (vendor.unwrap_or(NO_ID), device.unwrap_or(NO_ID))
    });
    Function {
        addr: block.addr,
        vendor,
        device,
        subsystem: block.subsystem(),
        class: block.class(),
        parent: match above {
            Above::Bridge(bridge) => Some(bridge),
            Above::Root | Above::Missing => None,
        },
        physfn,
        iommu_group: block.iommu_group,
        driver: block.driver.clone(),
        reset_methods: None,
        registers,
    }
}

/// Types that are always below some port.
fn needs_bridge(port_type: PortType) -> bool {
    matches!(
        port_type,
        PortType::Endpoint
            | PortType::LegacyEndpoint
            | PortType::UpstreamPort
            | PortType::DownstreamPort
            | PortType::PcieToPciBridge
    )
}

/// What is said about one function.
#[derive(Debug)]
struct Block {
    addr: Sbdf,
    line: usize,
    name: Option<String>,
    ids: Option<(u16, u16)>,
    class: Option<u32>,
    subsystem: Option<(u16, u16)>,
    /// Whether the place of the `Subsystem` line was passed without one.
    no_subsystem: Option<bool>,
    iommu_group: Option<u32>,
    driver: Option<String>,
    /// The hexadecimal part.
    bytes: Vec<u8>,
    /// Secondary and subordinate bus, decoded.
    buses: Option<(u8, u8)>,
    /// Whether a region is `[virtual]`.
    virtual_memory: bool,
    capabilities: Capabilities,
    express: Option<Decoded>,
    sriov: DecodedSriov,
}

/// What the decoded part tells about the list of capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capabilities {
    /// Nothing.
    Untold,
    /// That there is no list.
    None,
    /// `Capabilities: [40] ...`
    Listed,
    /// `Capabilities: <access denied>`
    Denied,
    /// `<chain broken>` or `<chain looped>`
    Broken,
    /// `!!! Unknown header type 7f`: nobody answers.
    NoAnswer,
}

/// The decoded Express capability.
#[derive(Debug)]
struct Decoded {
    version: Option<u8>,
    port_type: Option<PortType>,
    routing: Option<bool>,
    completer: [Option<bool>; 3],
    requester_enable: Option<bool>,
    egress_blocking: Option<bool>,
}

/// The decoded SR-IOV capability.
#[derive(Debug, Default)]
struct DecodedSriov {
    enabled: Option<bool>,
    count: Option<u16>,
    offset: Option<u16>,
    stride: Option<u16>,
    device: Option<u16>,
}

/// A physical function's SR-IOV capability with virtual functions enabled.
#[derive(Clone, Copy)]
struct Sriov {
    count: u16,
    offset: u16,
    stride: u16,
    device: u16,
}

fn blocks(text: &str) -> Result<BTreeMap<Sbdf, Block>, LspciError> {
    let mut blocks: BTreeMap<Sbdf, Block> = BTreeMap::new();
    let mut current: Option<Block> = None;
    for (at, line) in text.lines().enumerate() {
        let number = at + 1;
        if line.len() > MAX_LINE {
            return Err(LspciError::LineTooLong { line: number });
        }
        if let Some(block) = Block::begin(line, number) {
            if blocks.len() + usize::from(current.is_some()) == MAX_FUNCTIONS {
                return Err(LspciError::TooManyFunctions { line: number });
            }
            let seen = blocks
                .get(&block.addr)
                .or(current.as_ref().filter(|last| last.addr == block.addr));
            if let Some(first) = seen {
                let (addr, first) = (block.addr, first.line);
                return Err(LspciError::Twice {
                    addr,
                    first,
                    line: number,
                });
            }
            if let Some(done) = current.replace(block) {
                blocks.insert(done.addr, done);
            }
        } else if let Some(block) = &mut current {
            block.take(line, number)?;
        }
    }
    if let Some(done) = current {
        blocks.insert(done.addr, done);
    }
    Ok(blocks)
}

impl Block {
    /// `0000:0b:00.0 VGA compatible controller [0300]: Vendor Device [1002:744c] (rev c8) (prog-if 00 [VGA controller])`
    fn begin(line: &str, number: usize) -> Option<Self> {
        let (addr, title) = line.split_once(' ')?;
        let addr = address(addr)?;
        let mut title = title.trim();
        let mut interface = 0;
        while let Some((before, extra)) = title
            .strip_suffix(')')
            .and_then(|title| title.rsplit_once(" ("))
        {
            if let Some(value) = extra.strip_prefix("prog-if ") {
                interface = value
                    .get(..2)
                    .and_then(|digits| u32::from_str_radix(digits, 16).ok())
                    .unwrap_or(0);
            } else if !extra.starts_with("rev ") {
                break;
            }
            title = before;
        }
        let (class, device) = title.split_once(": ").unwrap_or(("", title));
        let class_code = match class
            .strip_suffix(']')
            .and_then(|class| class.rsplit_once(" ["))
        {
            Some((_, code)) => hex4(code),
            None => hex4(class).or_else(|| class_code(class)),
        };
        let (name, ids) = match id_pair(device) {
            Some(ids) => (None, Some(ids)),
            None => (Some(device), None),
        };
        let (name, ids) = match name.and_then(bracketed_ids) {
            Some((name, ids)) => (Some(name), Some(ids)),
            None => (name, ids),
        };
        Some(Self {
            addr,
            line: number,
            name: name
                .map(without_vendor)
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
            ids,
            class: class_code.map(|code| u32::from(code) << 8 | interface),
            subsystem: None,
            no_subsystem: None,
            iommu_group: None,
            driver: None,
            bytes: Vec::new(),
            buses: None,
            virtual_memory: false,
            capabilities: Capabilities::Untold,
            express: None,
            sriov: DecodedSriov::default(),
        })
    }

    fn take(&mut self, line: &str, number: usize) -> Result<(), LspciError> {
        if let Some((offset, bytes)) = hex_line(line) {
            let expected = self.bytes.len();
            let error = LspciError::Hex {
                addr: self.addr,
                line: number,
                expected,
            };
            if offset != expected || expected >= 4096 {
                return Err(error);
            }
            self.bytes.extend(bytes.ok_or(error)?);
            return Ok(());
        }
        let line = line.trim();
        if line.starts_with("Control: ") || line.starts_with("Flags: ") {
            self.no_subsystem.get_or_insert(true);
        }
        if let Some(rest) = line.strip_prefix("Capabilities: ") {
            self.capability(rest);
        } else if let Some(rest) = line.strip_prefix("Subsystem: ") {
            let ids = bracketed_ids(rest).map(|(_, ids)| ids);
            self.subsystem = self.subsystem.or(ids).or_else(|| id_pair(rest));
            self.no_subsystem = Some(false);
        } else if line.starts_with("Region ") && line.contains("[virtual]") {
            self.virtual_memory = true;
        } else if let Some(rest) = line.strip_prefix("IOMMU group: ") {
            self.iommu_group = rest.parse().ok();
        } else if let Some(rest) = line.strip_prefix("Flags: ") {
            let group = rest
                .split(", ")
                .find_map(|flag| flag.strip_prefix("IOMMU group "));
            self.iommu_group = self
                .iommu_group
                .or(group.and_then(|group| group.parse().ok()));
        } else if let Some(rest) = line.strip_prefix("Status: Cap") {
            // The status of the power management capability begins otherwise.
            if rest.starts_with('-') && self.capabilities == Capabilities::Untold {
                self.capabilities = Capabilities::None;
            }
        } else if let Some(rest) = line.strip_prefix("Kernel driver in use: ") {
            self.driver = Some(rest.to_owned()).filter(|name| !name.is_empty());
        } else if let Some(rest) = line.strip_prefix("Bus: primary=") {
            let number = |key| {
                let value = rest.split(", ").find_map(|part| part.strip_prefix(key))?;
                u8::from_str_radix(value, 16).ok()
            };
            self.buses = number("secondary=").zip(number("subordinate="));
        } else if line.starts_with("!!! Unknown header type") {
            self.capabilities = Capabilities::NoAnswer;
        } else if let Some(rest) = line.strip_prefix("AtomicOpsCap:") {
            if let Some(express) = &mut self.express {
                express.routing = sign(rest, "Routing");
                express.completer = ["32bit", "64bit", "128bitCAS"].map(|name| sign(rest, name));
            }
        } else if let Some(rest) = line.strip_prefix("AtomicOpsCtl:") {
            if let Some(express) = &mut self.express {
                express.requester_enable = sign(rest, "ReqEn");
                express.egress_blocking = sign(rest, "EgressBlck");
            }
        } else if let Some(rest) = line.strip_prefix("IOVCtl:") {
            self.sriov.enabled = sign(rest, "Enable");
        } else if line.starts_with("Initial VFs: ") {
            self.sriov.count = value(line, "Number of VFs: ");
        } else if line.starts_with("VF offset: ") {
            self.sriov.offset = value(line, "VF offset: ");
            self.sriov.stride = value(line, "stride: ");
            self.sriov.device = line
                .split(", ")
                .find_map(|part| hex4(part.strip_prefix("Device ID: ")?));
        }
        Ok(())
    }

    fn capability(&mut self, rest: &str) {
        if rest.contains("<access denied>") {
            self.capabilities = Capabilities::Denied;
            return;
        }
        if rest.contains("<chain ") {
            self.capabilities = Capabilities::Broken;
            return;
        }
        if !matches!(
            self.capabilities,
            Capabilities::Denied | Capabilities::Broken
        ) {
            self.capabilities = Capabilities::Listed;
        }
        let title = rest.split_once("] ").map_or("", |(_, title)| title);
        let Some(title) = title.strip_prefix("Express ") else {
            return;
        };
        let (version, kind) = match title
            .strip_prefix("(v")
            .and_then(|title| title.split_once(") "))
        {
            Some((version, kind)) => (version.parse().ok().filter(|version| *version < 16), kind),
            None => (None, title),
        };
        if self.express.is_none() {
            self.express = Some(Decoded {
                version,
                port_type: port_type(kind),
                routing: None,
                completer: [None; 3],
                requester_enable: None,
                egress_blocking: None,
            });
        }
    }

    fn ids(&self) -> Option<(u16, u16)> {
        let word = |at| Some(u16::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?));
        let from_bytes = || word(0).zip(word(2)).filter(|ids| *ids != (NO_ID, NO_ID));
        self.ids.or_else(from_bytes)
    }

    fn class(&self) -> u32 {
        let revision_and_class = self.bytes.get(8..).and_then(<[u8]>::first_chunk);
        match revision_and_class.map(|dword| u32::from_le_bytes(*dword)) {
            // A device that is gone; `lspci` names its class from what the kernel remembers.
            None | Some(u32::MAX) => self.class.unwrap_or(NO_CLASS),
            Some(dword) => dword >> 8,
        }
    }

    fn subsystem(&self) -> Option<(u16, u16)> {
        if self.subsystem.is_some() {
            return self.subsystem;
        }
        // `sysfs` has zeros where a device has none, and `lspci` no line.
        let untold = (self.no_subsystem == Some(true)).then_some((0, 0));
        let at = match self.bytes.get(0x0e).map(|layout| layout & 0x7f) {
            Some(0) => 0x2c,
            // Linux takes a bridge's from the capability (`PCI_CAP_ID_SSVID`).
            Some(1) if self.bytes.len() >= 256 => match self.find_capability(0x0d) {
                Some(at) => usize::from(at) + 4,
                None => return Some((0, 0)),
            },
            _ => return untold,
        };
        let word = |at| Some(u16::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?));
        word(at).zip(word(at + 2))
    }

    fn find_capability(&self, id: u8) -> Option<u8> {
        if self.bytes.get(6)? & 0x10 == 0 {
            return None;
        }
        let mut at = *self.bytes.get(0x34)? & !3;
        for _ in 0..48 {
            if at < 0x40 {
                return None;
            }
            if *self.bytes.get(usize::from(at))? == id {
                return Some(at);
            }
            at = *self.bytes.get(usize::from(at) + 1)? & !3;
        }
        None
    }

    /// Secondary and subordinate bus of a bridge that was set up.
    fn buses(&self) -> Option<(u8, u8)> {
        let from_bytes = || {
            let bridge = matches!(self.bytes.get(0x0e)? & 0x7f, 1 | 2);
            Some((*self.bytes.get(0x19)?, *self.bytes.get(0x1a)?)).filter(|_| bridge)
        };
        self.buses
            .or_else(from_bytes)
            .filter(|(secondary, _)| *secondary != 0)
    }

    /// Whether this seems to be a virtual function: by its hidden IDs, by its name, or by memory that the kernel knows of
    /// and its own registers do not.
    fn is_virtual(&self) -> bool {
        let hidden = self
            .bytes
            .first_chunk()
            .is_some_and(|ids| *ids == [0xff; 4])
            && self
                .bytes
                .get(4..8)
                .is_some_and(|status| status != [0xff; 4]);
        let named = |name: &String| {
            name.contains("Virtual Function") || name.trim_end_matches(']').ends_with(" VF")
        };
        // Also legacy IDE controllers have such regions.
        let express = matches!(self.registers(), Registers::Express(_));
        hidden || self.name.as_ref().is_some_and(named) || self.virtual_memory && express
    }

    fn sriov(&self) -> Option<Sriov> {
        let decoded = &self.sriov;
        let from_text = || {
            (decoded.enabled == Some(true)).then_some(())?;
            Some(Sriov {
                count: decoded.count?,
                offset: decoded.offset?,
                stride: decoded.stride?,
                device: decoded.device?,
            })
        };
        self.sriov_from_bytes().or_else(from_text)
    }

    /// The SR-IOV extended capability: PCI Express Base Specification, section 9.3.3.
    fn sriov_from_bytes(&self) -> Option<Sriov> {
        let word = |at| Some(u16::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?));
        let mut at = 0x100;
        // Each capability takes four bytes at least, so a longer chain runs in a circle.
        for _ in 0..(4096 - 0x100) / 4 {
            if at < 0x100 {
                return None;
            }
            if word(at)? == 0x0010 {
                let enabled = word(at + 0x08)? & 1 != 0;
                return Some(Sriov {
                    count: word(at + 0x10)?,
                    offset: word(at + 0x14)?,
                    stride: word(at + 0x16)?,
                    device: word(at + 0x1a)?,
                })
                .filter(|_| enabled);
            }
            at = usize::from(word(at + 2)? >> 4) & !3;
        }
        None
    }

    fn registers(&self) -> Registers {
        if self.bytes.is_empty() {
            return self.decoded();
        }
        let space = walk(|offset, into| {
            let rest = self.bytes.get(usize::from(offset)..).unwrap_or_default();
            let got = rest.len().min(into.len());
            for (to, from) in into.iter_mut().zip(rest) {
                *to = *from;
            }
            Ok::<_, Infallible>(got)
        });
        match space {
            ConfigSpace::HeaderOnly | ConfigSpace::Unreadable(Fault::Short { .. }) => {
                self.decoded()
            }
            space => space.into(),
        }
    }

    /// The registers as far as the decoded part tells.
    fn decoded(&self) -> Registers {
        let unreadable = |why: &str| Registers::Unreadable(why.to_owned());
        if let Some(express) = &self.express {
            return match express.registers() {
                Ok(express) => Registers::Express(express),
                Err(missing) => {
                    Registers::Unreadable(format!("the text does not show {missing}; {ADVICE}"))
                }
            };
        }
        match self.capabilities {
            Capabilities::None | Capabilities::Listed => Registers::NotExpress,
            Capabilities::NoAnswer => {
                unreadable("the device does not answer (unknown header type)")
            }
            Capabilities::Broken => unreadable("broken capability list"),
            Capabilities::Denied => Registers::Unreadable(format!(
                "lspci was not allowed to read the capabilities; {ADVICE}"
            )),
            Capabilities::Untold => {
                Registers::Unreadable(format!("the text does not show the capabilities; {ADVICE}"))
            }
        }
    }
}

impl Decoded {
    /// The registers, or what is missing. What `lspci` does not print for a type of port is not asked for.
    fn registers(&self) -> Result<Express, &'static str> {
        let version = self.version.ok_or("the capability's version")?;
        let port_type = self.port_type.ok_or("a known type of port")?;
        if version < 2 {
            return Ok(Express {
                version,
                port_type,
                devcap2: None,
                devctl2: None,
            });
        }
        let [w32, w64, w128] = self.completer;
        let cap = "AtomicOpsCap";
        let ctl = "AtomicOpsCtl";
        let routes = matches!(
            port_type,
            PortType::RootPort | PortType::UpstreamPort | PortType::DownstreamPort
        );
        // Those who send requests, and the one who completes them. `lspci` looks for memory before it prints the completer
        // bits of anything but a root port; nobody asks a bridge.
        let requests = matches!(
            port_type,
            PortType::RootPort
                | PortType::Endpoint
                | PortType::LegacyEndpoint
                | PortType::IntegratedEndpoint
        );
        if routes && self.routing.is_none()
            || requests && (w32.is_none() || w64.is_none() || w128.is_none())
        {
            return Err(cap);
        }
        if routes && self.egress_blocking.is_none() || requests && self.requester_enable.is_none() {
            return Err(ctl);
        }
        let bit = |set: Option<bool>, place: u32| u32::from(set == Some(true)) << place;
        let devcap2 = bit(self.routing, 6) | bit(w32, 7) | bit(w64, 8) | bit(w128, 9);
        let devctl2 = u16::from(self.requester_enable == Some(true)) << 6
            | u16::from(self.egress_blocking == Some(true)) << 7;
        Ok(Express {
            version,
            port_type,
            devcap2: Some(DevCap2(devcap2)),
            devctl2: Some(DevCtl2(devctl2)),
        })
    }
}

/// Where a bus hangs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Above {
    /// Below this bridge.
    Bridge(Sbdf),
    /// Nowhere: a root bus.
    Root,
    /// Below a bridge that the text lacks.
    Missing,
}

/// The bridges of a text.
struct Tree {
    /// By segment and secondary bus.
    bridges: BTreeMap<(u32, u8), Sbdf>,
    /// Segment and bus of root buses.
    roots: BTreeSet<(u32, u8)>,
}

impl Tree {
    fn new(blocks: &BTreeMap<Sbdf, Block>) -> Result<Self, LspciError> {
        let mut bridges = BTreeMap::new();
        let mut roots = BTreeSet::new();
        for block in blocks.values() {
            let (addr, line) = (block.addr, block.line);
            if block.class() >> 8 == 0x0600 || on_root_bus(&block.registers()) || addr.bus() == 0 {
                roots.insert((addr.segment(), addr.bus()));
            }
            let Some((secondary, _)) = block.buses() else {
                continue;
            };
            if secondary <= addr.bus() {
                return Err(LspciError::Upwards {
                    addr,
                    line,
                    secondary,
                });
            }
            if let Some(other) = bridges.insert((addr.segment(), secondary), addr) {
                return Err(LspciError::SharedBus {
                    addr,
                    other,
                    line,
                    secondary,
                });
            }
        }
        Ok(Self { bridges, roots })
    }

    fn above(&self, addr: Sbdf) -> Above {
        let bus = (addr.segment(), addr.bus());
        match self.bridges.get(&bus) {
            Some(bridge) => Above::Bridge(*bridge),
            None if self.roots.contains(&bus) => Above::Root,
            None => Above::Missing,
        }
    }
}

/// Whether the function shows that its bus is a root bus.
fn on_root_bus(registers: &Registers) -> bool {
    matches!(registers, Registers::Express(express) if matches!(
        express.port_type,
        PortType::RootPort | PortType::IntegratedEndpoint | PortType::EventCollector
    ))
}

/// Physical functions by their virtual functions, as far as the text has both.
fn physical_functions(blocks: &BTreeMap<Sbdf, Block>) -> Result<BTreeMap<Sbdf, Sbdf>, LspciError> {
    let mut physical = BTreeMap::new();
    let mut claimed = 0;
    for block in blocks.values() {
        let Some(sriov) = block.sriov() else { continue };
        let addr = block.addr;
        claimed += usize::from(sriov.count);
        if claimed > MAX_VIRTUAL {
            return Err(LspciError::TooManyVirtual {
                addr,
                line: block.line,
            });
        }
        let first = routing_id(addr) + u32::from(sriov.offset);
        // Without an offset or a stride, the functions would fall together.
        if sriov.offset == 0 || sriov.stride == 0 && sriov.count > 1 {
            continue;
        }
        for index in 0..u32::from(sriov.count) {
            let virtual_function =
                with_routing_id(addr.segment(), first + index * u32::from(sriov.stride));
            let Some(virtual_function) = virtual_function else {
                break;
            };
            if blocks.contains_key(&virtual_function) {
                physical.entry(virtual_function).or_insert(addr);
            }
        }
    }
    Ok(physical)
}

fn routing_id(addr: Sbdf) -> u32 {
    u32::from(addr.bus()) << 8 | u32::from(addr.device()) << 3 | u32::from(addr.function())
}

fn with_routing_id(segment: u32, id: u32) -> Option<Sbdf> {
    let [high, bus, rest, ..] = [id >> 16, id >> 8 & 0xff, id & 0xff];
    if high != 0 {
        return None;
    }
    let byte = |number: u32| u8::try_from(number).ok();
    Sbdf::new(segment, byte(bus)?, byte(rest >> 3)?, byte(rest & 7)?)
}

/// An address with or without segment.
fn address(text: &str) -> Option<Sbdf> {
    match text.len() {
        7 => format!("0000:{text}").parse().ok(),
        12.. => text.parse().ok(),
        _ => None,
    }
}

/// `00: 86 80 ...` or `100: 01 00 ...`: the offset, and the bytes if they are 16.
fn hex_line(line: &str) -> Option<(usize, Option<Vec<u8>>)> {
    let (offset, rest) = line.split_once(": ")?;
    if !matches!(offset.len(), 2 | 3) || !is_hex(offset) {
        return None;
    }
    let offset = usize::from_str_radix(offset, 16).ok()?;
    let bytes: Option<Vec<u8>> = rest
        .split_ascii_whitespace()
        .map(|pair| {
            (pair.len() == 2 && is_hex(pair))
                .then(|| u8::from_str_radix(pair, 16).ok())
                .flatten()
        })
        .collect();
    Some((offset, bytes.filter(|bytes| bytes.len() == 16)))
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn hex4(text: &str) -> Option<u16> {
    (text.len() == 4 && is_hex(text))
        .then(|| u16::from_str_radix(text, 16).ok())
        .flatten()
}

/// `1002:744c`
fn id_pair(text: &str) -> Option<(u16, u16)> {
    let (vendor, device) = text.split_once(':')?;
    hex4(vendor).zip(hex4(device))
}

/// `Name [1002:744c]`
fn bracketed_ids(text: &str) -> Option<(&str, (u16, u16))> {
    let (name, ids) = text.strip_suffix(']')?.rsplit_once(" [")?;
    Some((name, id_pair(ids)?))
}

/// The name without its vendor, for vendors whose devices are known by a name of their own.
fn without_vendor(name: &str) -> &str {
    [
        "Advanced Micro Devices, Inc. [AMD/ATI] ",
        "Advanced Micro Devices, Inc. [AMD] ",
        "NVIDIA Corporation ",
    ]
    .into_iter()
    .find_map(|vendor| name.strip_prefix(vendor))
    .unwrap_or(name)
}

/// `Name+` is yes and `Name-` is no.
fn sign(text: &str, name: &str) -> Option<bool> {
    text.split([' ', ',', '\t'])
        .find_map(|word| match word.strip_prefix(name)? {
            "+" => Some(true),
            "-" => Some(false),
            _ => None,
        })
}

/// The decimal number behind a key in `Key: 1, Other key: 2`.
fn value(line: &str, key: &str) -> Option<u16> {
    line.split(", ")
        .find_map(|part| part.strip_prefix(key))?
        .parse()
        .ok()
}

fn port_type(text: &str) -> Option<PortType> {
    let name = text.split([',', '(']).next()?.trim();
    Some(match name {
        "Endpoint" => PortType::Endpoint,
        "Legacy Endpoint" => PortType::LegacyEndpoint,
        "Root Port" => PortType::RootPort,
        "Upstream Port" => PortType::UpstreamPort,
        "Downstream Port" => PortType::DownstreamPort,
        "PCI-Express to PCI/PCI-X Bridge" => PortType::PcieToPciBridge,
        "PCI/PCI-X to PCI-Express Bridge" => PortType::PciToPcieBridge,
        "Root Complex Integrated Endpoint" => PortType::IntegratedEndpoint,
        "Root Complex Event Collector" => PortType::EventCollector,
        _ => return None,
    })
}

/// Base class and subclass for the words of the PCI Code and ID Assignment Specification as `lspci` writes them: those
/// that a decision or the drawing of a tree depends on.
fn class_code(name: &str) -> Option<u16> {
    Some(match name {
        "RAID bus controller" => 0x0104,
        "SATA controller" => 0x0106,
        "Serial Attached SCSI controller" => 0x0107,
        "Non-Volatile memory controller" => 0x0108,
        "Ethernet controller" => 0x0200,
        "Infiniband controller" => 0x0207,
        "Network controller" => 0x0280,
        "VGA compatible controller" => 0x0300,
        "XGA compatible controller" => 0x0301,
        "3D controller" => 0x0302,
        "Display controller" => 0x0380,
        "Multimedia audio controller" => 0x0401,
        "Audio device" => 0x0403,
        "Host bridge" => 0x0600,
        "ISA bridge" => 0x0601,
        "PCI bridge" => 0x0604,
        "Serial bus controller" => 0x0c80,
        "USB controller" => 0x0c03,
        "SMBus" => 0x0c05,
        "Processing accelerators" => 0x1200,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{LspciError, parse};
    use crate::pci::express::{DevCap2, DevCtl2, Express, PortType};
    use crate::pci::{Function, Registers, Sbdf};

    const ROOT_PORT: &str = "\
0000:00:03.1 PCI bridge [0604]: Advanced Micro Devices, Inc. [AMD] Starship/Matisse GPP Bridge [1022:1483] (prog-if 00 [Normal decode])
\tStatus: Cap+ 66MHz- UDF-
\tIOMMU group: 17
\tBus: primary=00, secondary=0b, subordinate=0b, sec-latency=0
\tCapabilities: [50] Power Management version 3
\t\tStatus: D0 NoSoftRst- PME-Enable- DSel=0 DScale=0 PME-
\tCapabilities: [58] Express (v2) Root Port (Slot+), MSI 00
\t\tDevCap2: Completion Timeout: Range ABCD, TimeoutDis+ NROPrPrP- LTR+
\t\t\t AtomicOpsCap: Routing- 32bit+ 64bit+ 128bitCAS-
\t\tDevCtl2: Completion Timeout: 65ms to 210ms, TimeoutDis- LTR+ 10BitTagReq- OBFF Disabled, ARIFwd+
\t\t\t AtomicOpsCtl: ReqEn- EgressBlck-
\tKernel driver in use: pcieport

";
    const CARD: &str = "\
0000:0b:00.0 VGA compatible controller [0300]: Advanced Micro Devices, Inc. [AMD/ATI] Navi 31 [Radeon RX 7900 XT/7900 XTX] [1002:744c] (rev cc) (prog-if 00 [VGA controller])
\tSubsystem: Sapphire Technology Limited Device [1da2:471e]
\tIOMMU group: 27
\tCapabilities: [48] Vendor Specific Information: Len=08 <?>
\tCapabilities: [64] Express (v2) Legacy Endpoint, IntMsgNum 0
\t\t\t AtomicOpsCap: 32bit+ 64bit+ 128bitCAS-
\t\t\t AtomicOpsCtl: ReqEn+
\tKernel driver in use: vfio-pci
\tKernel modules: amdgpu
";

    fn function(text: &str, addr: &str) -> Function {
        let addr: Sbdf = addr.parse().unwrap();
        parse(text).unwrap().topology.get(addr).unwrap().clone()
    }

    fn why(function: &Function) -> &str {
        match &function.registers {
            Registers::Unreadable(why) => why,
            other => panic!("{other:?}"),
        }
    }

    fn error(text: &str) -> String {
        parse(text).err().unwrap().to_string()
    }

    /// The hexadecimal part for these bytes.
    fn dump(bytes: &[u8]) -> String {
        let line = |(at, line): (usize, &[u8])| {
            let bytes: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{:02x}: {}\n", at * 16, bytes.join(" "))
        };
        bytes.chunks(16).enumerate().map(line).collect()
    }

    /// Configuration space with places overwritten.
    fn config(length: usize, places: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; length];
        for (at, new) in places {
            bytes[*at..at + new.len()].copy_from_slice(new);
        }
        bytes
    }

    #[test]
    fn decoded_lines_are_read() {
        let text =
            format!("pcilib: sysfs_read_vpd: read failed: No such device\n{ROOT_PORT}{CARD}");
        let listing = parse(&text).unwrap();
        let port = function(&text, "0000:00:03.1");
        assert_eq!(
            port,
            Function {
                addr: "0000:00:03.1".parse().unwrap(),
                vendor: 0x1022,
                device: 0x1483,
                subsystem: None,
                class: 0x0006_0400,
                parent: None,
                physfn: None,
                iommu_group: Some(17),
                driver: Some("pcieport".into()),
                reset_methods: None,
                registers: Registers::Express(Express {
                    version: 2,
                    port_type: PortType::RootPort,
                    devcap2: Some(DevCap2(0x180)),
                    devctl2: Some(DevCtl2(0)),
                }),
            }
        );
        let card = function(&text, "0000:0b:00.0");
        assert_eq!(card.subsystem, Some((0x1da2, 0x471e)));
        assert_eq!(
            (card.vendor, card.device, card.class),
            (0x1002, 0x744c, 0x0003_0000)
        );
        assert_eq!((card.parent, card.iommu_group), (Some(port.addr), Some(27)));
        assert_eq!(card.driver.as_deref(), Some("vfio-pci"));
        let expected = Express {
            version: 2,
            port_type: PortType::LegacyEndpoint,
            devcap2: Some(DevCap2(0x180)),
            devctl2: Some(DevCtl2(0x40)),
        };
        assert_eq!(card.registers, Registers::Express(expected));
        assert_eq!(
            listing.names[&card.addr],
            "Navi 31 [Radeon RX 7900 XT/7900 XTX]"
        );
        assert_eq!(listing.names[&port.addr], "Starship/Matisse GPP Bridge");
    }

    #[test]
    fn indentation_line_ends_and_segments_do_not_matter() {
        let text = format!("{ROOT_PORT}{CARD}");
        let other = text
            .replace('\t', "   ")
            .replace('\n', "\r\n")
            .replace("0000:0", "0");
        assert_eq!(parse(&other).unwrap(), parse(&text).unwrap());
        let moved = text.replace("0000:0", "10001:0");
        let card = function(&moved, "10001:0b:00.0");
        assert_eq!(card.parent.unwrap().to_string(), "10001:00:03.1");
    }

    #[test]
    fn classes_come_from_words_too() {
        let class = |title: &str| function(&format!("00:02.0 {title}\n"), "0000:00:02.0").class;
        assert_eq!(
            class("VGA compatible controller: NVIDIA Corporation GA102 (rev a1)"),
            0x0003_0000
        );
        assert_eq!(
            class("3D controller: NVIDIA Corporation GH100 (rev a1)"),
            0x0003_0200
        );
        assert_eq!(
            class("USB controller: NVIDIA Corporation X (rev a1) (prog-if 30 [XHCI])"),
            0x000c_0330
        );
        assert_eq!(class("0300: 10de:2204 (rev a1)"), 0x0003_0000);
        assert_eq!(class("Something new: Vendor Device"), 0x00ff_0000);
        let numbers = function("00:02.0 0300: 10de:2204 (rev a1)\n", "0000:00:02.0");
        assert_eq!((numbers.vendor, numbers.device), (0x10de, 0x2204));
        let words = function(
            "00:02.0 3D controller: NVIDIA Corporation GH100\n",
            "0000:00:02.0",
        );
        assert_eq!((words.vendor, words.device), (0xffff, 0xffff));
    }

    #[test]
    fn what_the_text_does_not_show_is_unknown() {
        let unknown = |from: &str, to: &str| {
            let text = format!("{ROOT_PORT}{CARD}");
            assert!(text.contains(from));
            function(&text.replacen(from, to, 1), "0000:00:03.1")
        };
        for (from, to, expected) in [
            (
                "AtomicOpsCap: Routing- 32bit+ 64bit+ 128bitCAS-",
                "",
                "does not show AtomicOpsCap",
            ),
            (" 64bit+", "", "does not show AtomicOpsCap"),
            ("Routing-", "", "does not show AtomicOpsCap"),
            (
                "AtomicOpsCtl: ReqEn- EgressBlck-",
                "",
                "does not show AtomicOpsCtl",
            ),
            (" EgressBlck-", "", "does not show AtomicOpsCtl"),
            (
                "Express (v2)",
                "Express",
                "does not show the capability's version",
            ),
            (
                "Root Port (Slot+)",
                "Unknown type 11",
                "does not show a known type of port",
            ),
        ] {
            let port = unknown(from, to);
            assert!(why(&port).contains(expected), "{from}: {}", why(&port));
            assert!(why(&port).contains("lspci -D -vvv -xxxx"));
        }
        // Without root.
        let text =
            "00:03.1 PCI bridge: AMD Bridge\n\tStatus: Cap+\n\tCapabilities: <access denied>\n";
        assert!(why(&function(text, "0000:00:03.1")).contains("as root"));
        // Without -v.
        assert!(
            why(&function("00:03.1 PCI bridge: AMD Bridge", "0000:00:03.1")).contains("as root")
        );
        let text = "00:03.1 PCI bridge: AMD Bridge (rev ff)\n\t!!! Unknown header type 7f\n";
        assert!(why(&function(text, "0000:00:03.1")).contains("does not answer"));
        let text = "00:03.1 PCI bridge: AMD Bridge\n\tCapabilities: [40] Null\n\tCapabilities: [40] <chain looped>\n";
        assert!(why(&function(text, "0000:00:03.1")).contains("broken"));
    }

    #[test]
    fn no_express_capability_is_no_doubt() {
        for text in [
            "00:07.0 Ethernet controller: Intel\n\tStatus: Cap- 66MHz-\n",
            "00:07.0 Ethernet controller: Intel\n\tStatus: Cap+\n\tCapabilities: [dc] Power Management version 2\n",
        ] {
            assert_eq!(
                function(text, "0000:00:07.0").registers,
                Registers::NotExpress
            );
        }
        let text = ROOT_PORT.replace("(v2)", "(v1)");
        let expected = Express {
            version: 1,
            port_type: PortType::RootPort,
            devcap2: None,
            devctl2: None,
        };
        assert_eq!(
            function(&text, "0000:00:03.1").registers,
            Registers::Express(expected)
        );
    }

    #[test]
    fn bytes_count_more_than_words() {
        let bytes = config(
            256,
            &[
                (0, &[0x22, 0x10, 0x83, 0x14, 0, 0, 0x10, 0]),
                (0x08, &[0, 0, 0x04, 0x06]),
                (0x0e, &[0x81]),
                (0x18, &[0, 0x0b, 0x0c]),
                (0x34, &[0x58]),
                (0x58, &[0x10, 0xc0, 0x42, 0x01]),
                (0x7c, &[0x40, 0, 0x70, 0]),
                (0x80, &[0xc0, 0]),
                (0xc0, &[0x0d, 0, 0, 0, 0x22, 0x10, 0x53, 0x14]),
            ],
        );
        let text = format!("{}{}", ROOT_PORT.trim_end(), "\n") + &dump(&bytes);
        let port = function(&text, "0000:00:03.1");
        let expected = Express {
            version: 2,
            port_type: PortType::RootPort,
            devcap2: Some(DevCap2(0x0070_0040)),
            devctl2: Some(DevCtl2(0xc0)),
        };
        assert_eq!(port.registers, Registers::Express(expected));
        assert_eq!(port.subsystem, Some((0x1022, 0x1453)));
        // Only the header: the words have to do.
        let text = format!("{}{}", ROOT_PORT.trim_end(), "\n") + &dump(&bytes[..64]);
        let decoded = function(&text, "0000:00:03.1");
        assert_eq!(
            decoded.registers,
            function(ROOT_PORT, "0000:00:03.1").registers
        );
        // Neither.
        let text = format!("00:03.1 PCI bridge: AMD Bridge\n{}", dump(&bytes[..64]));
        assert!(why(&function(&text, "0000:00:03.1")).contains("as root"));
        // Bytes alone are enough for the tree.
        let text = format!("00:03.1 x\n{}\n{CARD}", dump(&bytes));
        assert_eq!(function(&text, "0000:0b:00.0").parent, Some(port.addr));
        // All ones.
        let text = format!(
            "00:03.1 PCI bridge: AMD Bridge (rev ff)\n{}",
            dump(&[0xff; 256])
        );
        let gone = function(&text, "0000:00:03.1");
        assert!(why(&gone).contains("does not answer"));
        assert_eq!(gone.class, 0x0006_0400);
    }

    #[test]
    fn a_function_without_its_bridge_is_unknown() {
        let card = function(CARD, "0000:0b:00.0");
        assert!(
            why(&card).contains("the bridge to bus 0b is not in the text"),
            "{}",
            why(&card)
        );
        // On a root bus other than 0, a device is integrated.
        let integrated = CARD.replace("Legacy Endpoint", "Root Complex Integrated Endpoint");
        let card = function(&integrated, "0000:0b:00.0");
        assert!(matches!(card.registers, Registers::Express(_)));
        // A guest may hide the ports of bus 0.
        let hidden = CARD.replace("0b:00.0", "00:10.0");
        assert!(matches!(
            function(&hidden, "0000:00:10.0").registers,
            Registers::Express(_)
        ));
    }

    #[test]
    fn virtual_functions_are_found_by_their_physical_function() {
        let words = "\tCapabilities: [160 v1] Single Root I/O Virtualization (SR-IOV)\n\
            \t\tIOVCtl:\tEnable+ Migration- Interrupt- MSE+ ARIHierarchy-\n\
            \t\tInitial VFs: 8, Total VFs: 8, Number of VFs: 2, Function Dependency Link: 00\n\
            \t\tVF offset: 384, stride: 2, Device ID: 73ae\n";
        let virtual_function = |addr: &str| {
            let bytes = config(
                256,
                &[(0, &[0xff; 4]), (0x06, &[0x10]), (0x08, &[0, 0, 0, 3])],
            );
            format!(
                "\n{addr} VGA compatible controller: AMD Navi [Radeon] VF\n{}",
                dump(&bytes)
            )
        };
        let rest: String = ["0c:10.0", "0c:10.2", "0c:10.4"]
            .map(virtual_function)
            .concat();
        let text = format!("{ROOT_PORT}{CARD}{words}{rest}");
        let first = function(&text, "0000:0c:10.0");
        assert_eq!(first.physfn, Some("0000:0b:00.0".parse().unwrap()));
        // On a bus without a bridge of its own.
        assert_eq!(first.parent, Some("0000:00:03.1".parse().unwrap()));
        assert_eq!((first.vendor, first.device), (0x1002, 0x73ae));
        assert_eq!(first.registers, Registers::NotExpress);
        assert!(function(&text, "0000:0c:10.2").physfn.is_some());
        // One more than there are.
        let beyond = function(&text, "0000:0c:10.4");
        assert!(
            why(&beyond).contains("virtual function"),
            "{}",
            why(&beyond)
        );
        let text = text.replace("Enable+ Migration-", "Enable- Migration-");
        assert!(why(&function(&text, "0000:0c:10.0")).contains("virtual function"));
        // The same from bytes.
        let physical = config(
            4096,
            &[
                (0, &[0x02, 0x10, 0x4c, 0x74, 0, 0, 0x10, 0]),
                (0x34, &[0x64]),
                (0x64, &[0x10, 0, 0x02, 0]),
                (0x100, &[0x0b, 0, 0x01, 0x16]),
                (0x160, &[0x10, 0, 0x01, 0, 0, 0, 0, 0, 1, 0]),
                (0x170, &[2, 0, 0, 0, 0x80, 1, 2, 0, 0, 0, 0xae, 0x73]),
            ],
        );
        let title = CARD.lines().next().unwrap();
        let text = format!("{ROOT_PORT}{title}\n{}{rest}", dump(&physical));
        assert_eq!(function(&text, "0000:0c:10.2").physfn, first.physfn);
        assert_eq!(function(&text, "0000:0c:10.2").device, 0x73ae);
        assert!(function(&text, "0000:0c:10.4").physfn.is_none());
    }

    #[test]
    fn a_virtual_function_without_its_physical_one_is_unknown() {
        let no_bits = CARD.replace("32bit+ 64bit+", "32bit- 64bit-");
        let whole = format!("{ROOT_PORT}{no_bits}");
        assert!(matches!(
            function(&whole, "0000:0b:00.0").registers,
            Registers::Express(_)
        ));
        for (from, to) in [
            (
                "Navi 31 [Radeon RX 7900 XT/7900 XTX]",
                "Navi 31 Virtual Function",
            ),
            (
                "Navi 31 [Radeon RX 7900 XT/7900 XTX]",
                "Aqua Vanjaram [Instinct MI300X VF]",
            ),
            (
                "\tIOMMU",
                "\tRegion 0: Memory at 1000 (64-bit, prefetchable) [virtual] [size=16K]\n\tIOMMU",
            ),
        ] {
            let text = format!("{ROOT_PORT}{}", no_bits.replacen(from, to, 1));
            let card = function(&text, "0000:0b:00.0");
            assert!(why(&card).contains("virtual function"), "{to}");
        }
    }

    #[test]
    fn errors_name_the_line() {
        assert_eq!(parse(""), Err(LspciError::NoFunction));
        assert_eq!(parse("hello\n\nthere"), Err(LspciError::NoFunction));
        assert_eq!(
            error(&format!("{CARD}\n{CARD}")),
            "line 11: 0000:0b:00.0 was described in line 1 already: two outputs in one file?"
        );
        let good = "00:03.1 a\n00: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n";
        assert!(parse(good).is_ok());
        for bad in [
            good.replace("00: 00", "10: 00"),
            good.replace(" 00\n", "\n"),
            good.replace(" 00\n", " 0g\n"),
            good.replace(" 00\n", " +0\n"),
            good.replace(" 00\n", " 00 00\n"),
        ] {
            assert_eq!(
                error(&bad),
                "line 2: expected 16 bytes at offset 0x000 of 0000:00:03.1"
            );
        }
        let text = format!(
            "{}{}",
            good, "00: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n"
        );
        assert_eq!(
            error(&text),
            "line 3: expected 16 bytes at offset 0x010 of 0000:00:03.1"
        );
        assert_eq!(
            error(&ROOT_PORT.replace("0000:00:03.1", "0000:0b:03.1")),
            "line 1: 0000:0b:03.1 leads from bus 0b to bus 0b: bus numbers only grow downwards"
        );
        let second = ROOT_PORT.replace("0000:00:03.1", "0000:00:03.2");
        assert_eq!(
            error(&format!("{ROOT_PORT}{second}")),
            "line 14: 0000:00:03.2 and 0000:00:03.1 both lead to bus 0b"
        );
        assert_eq!(
            error(&format!("00:03.1 {}", "x".repeat(20_000))),
            "line 1: longer than 16384 bytes: not the output of lspci"
        );
    }

    #[test]
    fn sizes_are_bounded() {
        assert_eq!(
            parse(&" ".repeat(super::MAX_BYTES + 1)),
            Err(LspciError::TooLong)
        );
        let line = |number| format!("{:04x}:{:02x}:00.0 x\n", number / 256, number % 256);
        let lines: Vec<_> = (0..=super::MAX_FUNCTIONS).map(line).collect();
        let text = lines.concat();
        assert_eq!(error(&text), "line 16385: more than 16384 functions");
        let greedy = |addr: &str| {
            format!(
                "{addr} x\nIOVCtl: Enable+\nInitial VFs: 1, Number of VFs: 65535\nVF offset: 1, stride: 1, Device ID: 0001\n"
            )
        };
        let text: String = (0..5)
            .map(|number| greedy(&format!("00:0{number}.0")))
            .collect();
        assert!(error(&text).starts_with("line 17: 0000:00:04.0 and those before claim"));
    }

    proptest::proptest! {
        /// Whatever is read, nothing panics, and the tree has no loop.
        #[test]
        fn any_lines_are_survived(lines in proptest::collection::vec(proptest::sample::select(vec![
            "00:01.0 PCI bridge: x", "01:00.0 PCI bridge: x", "02:00.0 VGA compatible controller: y [1002:744c]",
            "\tBus: primary=00, secondary=01, subordinate=02", "\tBus: primary=01, secondary=02, subordinate=02",
            "\tCapabilities: [40] Express (v2) Root Port (Slot+)", "\t\tAtomicOpsCap: Routing+ 32bit+",
            "00: ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff", "10: 00 00 00 00 00 00 00 00 00 00 01 02 00 00 00 00",
            "\tIOVCtl: Enable+", "\tInitial VFs: 8, Number of VFs: 9", "\tVF offset: 8, stride: 65535, Device ID: 1",
            "", "\u{2028}: :", "[ (prog-if \u{fc}", "00:02.0 \u{fc} [\u{fc}]: [] ()",
        ]), 0..40)) {
            if let Ok(listing) = parse(&lines.join("\n")) {
                for function in listing.topology.iter() {
                    proptest::prop_assert!(listing.topology.above(function.addr).count() < 3);
                }
            }
        }
    }
}
