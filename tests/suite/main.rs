//! Integration tests: one crate, one module per topic.

#[path = "../support/mod.rs"]
mod support;

mod captured;
mod check;
mod example_policy;
mod examples;
mod hook;
mod host;
mod hostpci;
mod hostpci_schema;
mod lab;
mod lspci;
mod maintainer_scripts;
mod rewrite;
mod snippet;
mod vmconfig;
