//! The text files of Proxmox VE: VM configurations, property strings, mappings, storages.

pub mod document;
pub mod hostpci;
mod ids;
pub mod mapping;

pub use ids::{HostpciIndex, Phase, Vmid};
