//! The only writer: changes a VM's configuration and remembers how to take that back.
//!
//! - [`lock`]: Proxmox's lock of the VM, ours or our caller's.
//! - [`replace`]: the exchange of the file, old or new at any moment.
//! - [`tree`]: paths beneath the root.
//!
//! What is written is decided elsewhere: this module gets the bytes before and after.

pub mod lock;
pub mod replace;
pub mod tree;
