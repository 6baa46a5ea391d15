//! The parts that functions play on the way of an `AtomicOp` from a device to its host root port.
//!
//! A register means something only in the hands of the right port: a root port's routing bit is about traffic between
//! root ports, and only upstream switch ports can block egress on the way up. So [`trace`] sorts the functions into
//! types that answer just the questions that make sense for them. What is decided from the answers is not its business.
//!
//! Terms: PCI Express Base Specification, section 6.15.

use super::express::{DevCap2, DevCtl2, Express, PortType};
use super::topology::{Function, Registers, Topology};
use super::{Sbdf, Width, Widths};

/// Bus numbers have 8 bits, so no path has more bridges.
const MAX_BRIDGES: usize = 256;

/// Something on the path could not be read, so nothing can be said about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{addr} could not be read: {reason}")]
pub struct Unreadable {
    /// The function.
    pub addr: Sbdf,
    /// Why, in words for people.
    pub reason: String,
}

/// The device that sends requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester {
    addr: Sbdf,
    express: Express,
}

impl Requester {
    /// Its address.
    pub const fn addr(&self) -> Sbdf {
        self.addr
    }

    /// Its device/port type.
    pub const fn port_type(&self) -> PortType {
        self.express.port_type
    }

    /// Whether it has DEVCAP2 and DEVCTL2: a capability of version 2 or later.
    pub const fn has_devcap2(&self) -> bool {
        self.express.devcap2.is_some()
    }

    /// The widths it completes itself.
    pub fn completes(&self) -> Widths {
        completes(self.express.devcap2)
    }

    /// Whether it may send requests at this moment.
    pub fn is_enabled(&self) -> bool {
        self.express
            .devctl2
            .is_some_and(DevCtl2::atomic_op_requester_enable)
    }
}

/// The host root port at the top of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootPort {
    addr: Sbdf,
    devcap2: Option<DevCap2>,
}

impl RootPort {
    /// Its address.
    pub const fn addr(&self) -> Sbdf {
        self.addr
    }

    /// Whether it completes requests of `width`.
    pub fn completes(&self, width: Width) -> bool {
        completes(self.devcap2).contains(width)
    }
}

/// A port of a switch, whichever way it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchPort {
    addr: Sbdf,
    devcap2: Option<DevCap2>,
}

impl SwitchPort {
    /// Its address.
    pub const fn addr(&self) -> Sbdf {
        self.addr
    }

    /// Whether it passes requests on.
    pub fn routes_atomic_ops(&self) -> bool {
        self.devcap2.is_some_and(DevCap2::atomic_op_routing)
    }
}

/// The port of a switch that looks towards the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamPort {
    port: SwitchPort,
    devctl2: Option<DevCtl2>,
}

impl UpstreamPort {
    /// Its address.
    pub const fn addr(&self) -> Sbdf {
        self.port.addr
    }

    /// What it has in common with a downstream port.
    pub const fn as_switch_port(&self) -> &SwitchPort {
        &self.port
    }

    /// Whether it keeps requests from leaving the switch.
    pub fn blocks_egress(&self) -> bool {
        self.devctl2.is_some_and(DevCtl2::atomic_op_egress_blocking)
    }
}

/// One bridge on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bridge {
    /// A root port.
    Root(RootPort),
    /// An upstream port of a switch.
    Upstream(UpstreamPort),
    /// A downstream port of a switch.
    Downstream(SwitchPort),
    /// A bridge from or to conventional PCI, which has no say in this.
    Other(Sbdf),
}

/// What [`trace`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The function that was asked for.
    pub addr: Sbdf,
    /// Whether it is a virtual function.
    pub is_virtual: bool,
    /// The device; `None` if it has no PCI Express capability.
    pub requester: Result<Option<Requester>, Unreadable>,
    /// The bridges above it, nearest first; the first one that could not be read otherwise.
    pub bridges: Result<Vec<Bridge>, Unreadable>,
}

/// Follows the path from one function up to the root bus.
///
/// It looks at the function itself, also where that is a virtual one.
pub fn trace(topology: &Topology, addr: Sbdf) -> Trace {
    let function = topology.get(addr);
    Trace {
        addr,
        is_virtual: function.is_some_and(|function| function.physfn.is_some()),
        requester: requester(topology, addr),
        bridges: bridges(topology, addr),
    }
}

fn requester(topology: &Topology, addr: Sbdf) -> Result<Option<Requester>, Unreadable> {
    let express = express(look_up(topology, addr)?)?;
    Ok(express.map(|express| Requester { addr, express }))
}

fn bridges(topology: &Topology, addr: Sbdf) -> Result<Vec<Bridge>, Unreadable> {
    let mut bridges = Vec::new();
    let mut below = look_up(topology, addr)?;
    while let Some(addr) = below.parent {
        if bridges.len() == MAX_BRIDGES {
            return Err(Unreadable {
                addr,
                reason: "the bridges above it run in a circle".to_owned(),
            });
        }
        let function = look_up(topology, addr)?;
        bridges.push(bridge(function)?);
        below = function;
    }
    Ok(bridges)
}

fn bridge(function: &Function) -> Result<Bridge, Unreadable> {
    let addr = function.addr;
    let Some(express) = express(function)? else {
        return Ok(Bridge::Other(addr));
    };
    let devcap2 = express.devcap2;
    Ok(match express.port_type {
        PortType::RootPort => Bridge::Root(RootPort { addr, devcap2 }),
        PortType::UpstreamPort => Bridge::Upstream(UpstreamPort {
            port: SwitchPort { addr, devcap2 },
            devctl2: express.devctl2,
        }),
        PortType::DownstreamPort => Bridge::Downstream(SwitchPort { addr, devcap2 }),
        _ => Bridge::Other(addr),
    })
}

fn look_up(topology: &Topology, addr: Sbdf) -> Result<&Function, Unreadable> {
    topology.get(addr).ok_or_else(|| Unreadable {
        addr,
        reason: "the host has no such function".to_owned(),
    })
}

fn express(function: &Function) -> Result<Option<Express>, Unreadable> {
    match &function.registers {
        Registers::Unreadable(reason) => Err(Unreadable {
            addr: function.addr,
            reason: reason.clone(),
        }),
        Registers::NotExpress => Ok(None),
        Registers::Express(express) => Ok(Some(*express)),
    }
}

fn completes(devcap2: Option<DevCap2>) -> Widths {
    devcap2.map_or(Widths::NONE, DevCap2::atomic_op_completer)
}
