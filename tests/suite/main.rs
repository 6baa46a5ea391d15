//! Integration tests: one crate, one module per topic.

#[path = "../support/mod.rs"]
mod support;

mod examples;
mod host;
mod lspci;
mod lab;
