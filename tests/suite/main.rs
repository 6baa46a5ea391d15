//! Integration tests: one crate, one module per topic.

mod hostpci;
mod hostpci_schema;
mod lab;
mod vmconfig;
