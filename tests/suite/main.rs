//! Integration tests: one crate, one module per topic.

mod hostpci;
mod hostpci_schema;
#[path = "../support/mod.rs"]
mod support;

mod attach;
mod captured;
mod check;
#[path = "../support/crash.rs"]
mod crash;
mod examples;
mod fix;
#[path = "../support/fuse.rs"]
mod fuse;
mod generated;
mod hook;
mod host;
mod lab;
mod lspci;
mod qmp;
mod rewrite;
mod terminal;
mod undo;
mod vmconfig;

mod child;
mod concurrency;
mod locking;
mod pmxcfs;
