//! Integration tests: one crate, one module per topic.

mod hostpci_schema;
mod snippet;
