//! Integration tests: one crate, one module per topic.

mod hostpci;
mod hostpci_schema;
#[path = "../support/mod.rs"]
mod support;

mod captured;
mod check;
mod examples;
mod hook;
mod host;
mod lab;
mod lspci;
mod rewrite;
mod vmconfig;
