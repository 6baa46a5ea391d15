//! The text files of Proxmox VE: VM configurations, property strings, mappings, storages, HA resources.
//!
//! Everything here turns bytes into values, or bytes into other bytes. Nothing touches a file.

pub mod args;
pub mod decode;
pub mod document;
pub mod edit;
mod formats;
pub mod ha;
pub mod hostpci;
mod ids;
pub mod mapping;
mod patterns;
pub mod property_string;
pub mod reduce;
mod schema;
mod section_config;
pub mod storage;

pub use decode::{Config, Section};
pub use document::Document;
pub use edit::{Edit, LineChange};
pub use ids::{HostpciIndex, Phase, Vmid};
pub use property_string::FormatError;
