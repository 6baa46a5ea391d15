//! What must hold whatever bytes come: one module for each fuzz target, with a function `holds` that panics where it
//! does not.
//!
//! The fuzzer calls these functions with bytes that it makes up, and the tests of the main crate call the same
//! functions with the seeds and with every input that once broke one. They know nothing of the fuzzer.

pub mod archive;
pub mod args;
pub mod capability_walk;
pub mod escape;
pub mod hostpci;
pub mod input;
pub mod lspci;
pub mod mapping;
pub mod policy;
pub mod qmp;
pub mod report;
pub mod shell;
pub mod storage;
pub mod vmconf;

/// A property over bytes.
pub type Property = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Property); 12] = [
    ("archive", archive::holds),
    ("args", args::holds),
    ("capability_walk", capability_walk::holds),
    ("escape", escape::holds),
    ("hostpci", hostpci::holds),
    ("lspci", lspci::holds),
    ("mapping", mapping::holds),
    ("policy", policy::holds),
    ("qmp", qmp::holds),
    ("report", report::holds),
    ("storage", storage::holds),
    ("vmconf", vmconf::holds),
];
