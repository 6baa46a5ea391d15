//! Hosts for the tests of the rules, made from the bytes that hardware would show.

use crate::pci::config_space::walk;
use crate::pci::{Function, Registers, Sbdf, Topology};

/// PCI Express Capabilities registers: version in bits 3:0, type in bits 7:4.
pub const ENDPOINT: u16 = 0x0002;
pub const LEGACY_ENDPOINT: u16 = 0x0012;
pub const ROOT_PORT: u16 = 0x0142;
pub const UPSTREAM_PORT: u16 = 0x0052;
pub const DOWNSTREAM_PORT: u16 = 0x0162;
pub const PCI_BRIDGE: u16 = 0x0072;
pub const INTEGRATED: u16 = 0x0092;
pub const EVENT_COLLECTOR: u16 = 0x00a2;

/// DEVCAP2: bit 6 routing, bits 7 to 9 completer of 32, 64 and 128 bit.
pub const ROUTES: u32 = 0x0000_0040;
pub const C32: u32 = 0x0000_0080;
pub const C64: u32 = 0x0000_0100;
pub const C128: u32 = 0x0000_0200;
/// DEVCTL2: bit 6 requester enable, bit 7 egress blocking.
pub const REQUESTER: u16 = 0x0040;
pub const BLOCKS: u16 = 0x0080;

/// The configuration space of a function: power management at 0x40, PCI Express at 0x50.
///
/// `flags` of 0 leaves the PCI Express capability out. The second registers are there in any version, as some hardware
/// has it.
pub fn config(flags: u16, devcap2: u32, devctl2: u16) -> Vec<u8> {
    let mut bytes = vec![0; 0x100];
    let mut put = |at: usize, new: &[u8]| bytes[at..at + new.len()].copy_from_slice(new);
    put(0x00, &[0x02, 0x10, 0x4c, 0x74, 0x07, 0x04, 0x10, 0x00]);
    put(0x34, &[0x40]);
    put(0x40, &[0x01, if flags == 0 { 0 } else { 0x50 }, 0x03, 0x00]);
    put(0x50, &[0x10, 0x00]);
    put(0x52, &flags.to_le_bytes());
    put(0x74, &devcap2.to_le_bytes());
    put(0x78, &devctl2.to_le_bytes());
    bytes
}

/// A host under construction.
#[derive(Clone, Default)]
pub struct Host(pub Topology);

impl Host {
    /// Adds a function with the given registers; `parent` is empty on a root bus.
    pub fn with(self, addr: &str, parent: &str, flags: u16, devcap2: u32, devctl2: u16) -> Self {
        self.with_bytes(addr, parent, &config(flags, devcap2, devctl2))
    }

    /// Adds a function with this configuration space.
    pub fn with_bytes(mut self, addr: &str, parent: &str, bytes: &[u8]) -> Self {
        let space = walk(|offset, into| {
            let rest = bytes.get(usize::from(offset)..).unwrap_or_default();
            let got = rest.len().min(into.len());
            into[..got].copy_from_slice(&rest[..got]);
            Ok::<_, std::io::Error>(got)
        });
        self.0.insert(Function {
            addr: at(addr),
            vendor: 0x1002,
            device: 0x744c,
            subsystem: None,
            class: 0x03_0000,
            parent: (!parent.is_empty()).then(|| at(parent)),
            physfn: None,
            iommu_group: None,
            driver: None,
            reset_methods: None,
            registers: Registers::from(space),
        });
        self
    }

    /// Makes a function a VF of `physfn`.
    pub fn virtual_of(mut self, addr: &str, physfn: &str) -> Self {
        let mut function = self.0.get(at(addr)).unwrap().clone();
        function.physfn = Some(at(physfn));
        self.0.insert(function);
        self
    }
}

/// An address from its text.
pub fn at(addr: &str) -> Sbdf {
    addr.parse().unwrap()
}

/// A device at `0000:0b:00.0` right below a root port at `0000:00:03.1`, both completing 32 and 64 bit.
pub fn direct() -> Host {
    Host::default()
        .with("0000:00:03.1", "", ROOT_PORT, C32 | C64, 0)
        .with("0000:0b:00.0", "0000:00:03.1", ENDPOINT, C32 | C64, 0)
}

/// The same device behind a switch: upstream port `0000:01:00.0`, downstream port `0000:02:01.0`.
pub fn switched() -> Host {
    Host::default()
        .with("0000:00:03.1", "", ROOT_PORT, C32 | C64, 0)
        .with("0000:01:00.0", "0000:00:03.1", UPSTREAM_PORT, ROUTES, 0)
        .with("0000:02:01.0", "0000:01:00.0", DOWNSTREAM_PORT, ROUTES, 0)
        .with("0000:0b:00.0", "0000:02:01.0", ENDPOINT, C32 | C64, 0)
}
