//! Integration tests: one crate, one module per topic.

#[path = "../support/fake_qemu.rs"]
mod fake_qemu;

mod qmp;
mod hostpci;
mod hostpci_schema;
#[path = "../support/mod.rs"]
mod support;

mod examples;
mod host;
mod lspci;
mod lab;
mod vmconfig;
