//! Integration tests: one crate, one module per topic.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "counts are shown with the results"
)]

#[path = "../support/mod.rs"]
mod support;

mod attach;
mod capture;
mod captured;
mod check;
mod confined;
#[path = "../support/crash.rs"]
mod crash;
mod dependencies;
mod examples;
mod fix;
#[path = "../support/fuse.rs"]
mod fuse;
mod generated;
mod guards;
mod hook;
mod host;
mod hostile;
mod lab;
mod load;
mod lspci;
mod lspci_text;
mod properties;
mod qmp;
mod rewrite;
mod terminal;
mod topology;
mod undo;
mod verify;
mod vmconfig;

mod child;
mod concurrency;
mod example_policy;
mod hook_faults;
mod hostpci;
mod hostpci_schema;
mod locking;
mod maintainer_scripts;
mod pmxcfs;
mod repairs;
mod rewrite_mode;
mod snippet;
