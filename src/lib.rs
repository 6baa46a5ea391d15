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

#![forbid(unsafe_code)]

pub mod archive;
pub mod capture;
pub mod chain;
pub mod change;
pub mod cli;
pub mod commands;
pub mod confine;
pub mod examine;
pub mod hook;
pub mod host;
pub mod invoke;
pub mod logging;
pub mod manual;
pub mod pci;
pub mod plan;
pub mod policy;
pub mod qmp;
pub mod repair;
pub mod report;
pub mod restart;
pub mod rules;
pub mod settings;
pub mod snippet;
pub mod store;
pub mod task_log;
pub mod verdict;
pub mod verify;
pub mod vmconf;
