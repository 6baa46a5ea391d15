//! Integration tests: one crate, one module per topic.

mod hostpci;
mod hostpci_schema;
#[path = "../support/mod.rs"]
mod support;

mod captured;
mod examples;
mod host;
mod lab;
mod lspci;
mod rewrite;
mod vmconfig;
mod check;
mod hook;
mod lspci;
