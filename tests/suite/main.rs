//! Integration tests: one crate, one module per topic.

#[path = "../support/mod.rs"]
mod support;

mod captured;
mod examples;
mod host;
mod lab;
mod lspci;
