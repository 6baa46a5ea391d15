//! Predicts whether a VM's guest root ports advertise PCIe `AtomicOps`, explains a loss and repairs it.
//!
//! Data flows one way:
//!
//! ```text
//! host -> (Document, Topology) -> rules -> Verdict -> Plan -> store | report
//! ```
//!
//! `host` is the only reader of the system, `store` the only writer. Everything between works on values: nothing in
//! `vmconf`, `pci`, `rules`, `verdict` and `plan` touches files, environment, clocks or output.

pub mod cli;
pub mod host;
pub mod pci;
pub mod rules;
pub mod settings;
pub mod vmconf;
