//! PCI as `sysfs` shows it: addresses, configuration space, PCI Express registers, and the tree of bridges.
//!
//! Everything here is a value. Reading is the business of [`crate::host`].

mod address;
pub mod config_space;
pub mod express;
pub mod lspci;
pub mod roles;
pub mod topology;
mod widths;

pub use address::{AddressError, Sbdf};
pub use topology::{Function, Registers, Topology};
pub use widths::{Width, Widths};
