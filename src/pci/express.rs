//! The PCI Express capability: port type, DEVCAP2, DEVCTL2.
//!
//! Source: PCI Express Base Specification, section 7.5.3; offsets as in Linux' `pci_regs.h`.

use std::fmt;

use super::{Width, Widths};

/// The device/port type, bits 7:4 of the PCI Express Capabilities register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortType {
    /// 0: PCI Express endpoint.
    Endpoint,
    /// 1: legacy PCI Express endpoint.
    LegacyEndpoint,
    /// 4: root port.
    RootPort,
    /// 5: upstream port of a switch.
    UpstreamPort,
    /// 6: downstream port of a switch.
    DownstreamPort,
    /// 7: PCI Express to PCI bridge.
    PcieToPciBridge,
    /// 8: PCI to PCI Express bridge.
    PciToPcieBridge,
    /// 9: root complex integrated endpoint.
    IntegratedEndpoint,
    /// 10: root complex event collector.
    EventCollector,
    /// Any other number, which the specification reserves.
    Reserved(u8),
}

impl PortType {
    /// The type for the number in bits 7:4.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 0xf {
            0 => Self::Endpoint,
            1 => Self::LegacyEndpoint,
            4 => Self::RootPort,
            5 => Self::UpstreamPort,
            6 => Self::DownstreamPort,
            7 => Self::PcieToPciBridge,
            8 => Self::PciToPcieBridge,
            9 => Self::IntegratedEndpoint,
            10 => Self::EventCollector,
            other => Self::Reserved(other),
        }
    }
}

impl fmt::Display for PortType {
    /// The name that the specification gives it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Endpoint => "endpoint",
            Self::LegacyEndpoint => "legacy endpoint",
            Self::RootPort => "root port",
            Self::UpstreamPort => "upstream switch port",
            Self::DownstreamPort => "downstream switch port",
            Self::PcieToPciBridge => "PCI Express to PCI bridge",
            Self::PciToPcieBridge => "PCI to PCI Express bridge",
            Self::IntegratedEndpoint => "root complex integrated endpoint",
            Self::EventCollector => "root complex event collector",
            Self::Reserved(number) => return write!(f, "reserved type {number}"),
        })
    }
}

/// Device Capabilities 2 (offset 0x24, 32 bit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevCap2(pub u32);

impl DevCap2 {
    /// Bit 6: routes `AtomicOp` requests.
    pub const fn atomic_op_routing(self) -> bool {
        self.0 & 1 << 6 != 0
    }

    /// Bits 7, 8 and 9: completes 32-bit, 64-bit and 128-bit CAS requests.
    pub fn atomic_op_completer(self) -> Widths {
        [(Width::W32, 7), (Width::W64, 8), (Width::W128, 9)]
            .into_iter()
            .filter(|(_, bit)| self.0 & 1 << bit != 0)
            .map(|(width, _)| width)
            .collect()
    }
}

/// Device Control 2 (offset 0x28, 16 bit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevCtl2(pub u16);

impl DevCtl2 {
    /// Bit 6: may send `AtomicOp` requests.
    pub const fn atomic_op_requester_enable(self) -> bool {
        self.0 & 1 << 6 != 0
    }

    /// Bit 7: does not let `AtomicOp` requests out.
    pub const fn atomic_op_egress_blocking(self) -> bool {
        self.0 & 1 << 7 != 0
    }
}

/// The registers of one PCI Express capability that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Express {
    /// Capability version, bits 3:0 of the PCI Express Capabilities register.
    pub version: u8,
    /// Device/port type.
    pub port_type: PortType,
    /// DEVCAP2; `None` below version 2, where the register does not exist and counts as 0.
    pub devcap2: Option<DevCap2>,
    /// DEVCTL2; `None` below version 2.
    pub devctl2: Option<DevCtl2>,
}
