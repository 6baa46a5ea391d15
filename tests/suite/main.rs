//! Integration tests: one crate, one module per topic.

mod example_policy;
mod hostpci_schema;
mod snippet;
mod hostpci;
mod hostpci_schema;
#[path = "../support/mod.rs"]
mod support;

mod examples;
mod host;
mod lspci;
mod lab;
mod vmconfig;
