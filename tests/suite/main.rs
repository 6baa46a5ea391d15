//! Integration tests: one crate, one module per topic.

#[path = "../support/mod.rs"]
mod support;

mod example_policy;
mod examples;
mod host;
mod hostpci;
mod hostpci_schema;
mod lab;
mod lspci;
mod maintainer_scripts;
mod snippet;
mod captured;
mod examples;
mod host;
mod lab;
mod rewrite;
mod vmconfig;
mod check;
mod hook;
mod lspci;
