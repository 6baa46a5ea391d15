//! Integration tests: one crate, one module per topic.
mod snippet;
