//! Integration tests: one crate, one module per topic.

#[path = "../support/crash.rs"]
mod crash;
#[path = "../support/fuse.rs"]
mod fuse;

mod child;
mod concurrency;
mod locking;
mod pmxcfs;
