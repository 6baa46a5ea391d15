//! Integration tests: one crate, one module per topic.

#[path = "../support/fake_qemu.rs"]
mod fake_qemu;

mod qmp;
