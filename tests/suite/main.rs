//! Integration tests: one crate, one module per topic.

mod hostpci;
mod hostpci_schema;
#[path = "../support/mod.rs"]
mod support;

mod attach;
mod captured;
mod check;
mod examples;
mod fix;
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
