//! Integration tests: one crate, one module per topic.

mod example_policy;
mod hostpci_schema;
mod snippet;
