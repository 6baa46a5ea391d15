//! Integration tests: one crate, one module per topic.

mod hostpci;
mod hostpci_schema;
#[path = "../support/mod.rs"]
mod support;

mod examples;
mod host;
mod lspci;
mod lab;
mod rewrite;
mod vmconfig;
