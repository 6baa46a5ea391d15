//! What several test modules share.

#![allow(dead_code, reason = "each test needs a part of it")]

pub mod capture;
pub mod example_hosts;
pub mod fake_qemu;
pub mod golden;
pub mod host_tree;
pub mod large;
pub mod live;
pub mod program;
pub mod silent;

pub use host_tree::HostTree;
