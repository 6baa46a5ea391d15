//! The text files of Proxmox VE: VM configurations, property strings, mappings, storages.

pub mod document;
pub mod hostpci;
mod ids;
pub mod mapping;
mod patterns;
pub mod property_string;

pub use ids::{HostpciIndex, Phase, Vmid};
pub use property_string::FormatError;
