//! What several test modules share.

#![allow(dead_code, reason = "each test needs a part of it")]

pub mod capture;
pub mod example_hosts;
pub mod host_tree;
pub mod program;

pub use host_tree::HostTree;
