//! A small client of QEMU's monitor protocol (QMP): the commands that `verify` needs, and only those that read.
//!
//! A running VM has one QMP socket, which serves one client at a time and which Proxmox VE needs itself. So a [`Client`]
//! is meant to live for milliseconds: connect, ask, drop. Another client on the socket shows as a greeting that does
//! not come, or as a full backlog; both are waited for, [`BUSY_LIMIT`] at most.
//!
//! Nothing here can hang or grow without bound: every read and write has the deadline that the client was made with,
//! and a reply has at most [`REPLY_LIMIT`] bytes. What QEMU says is input from outside: a guest may have taken it over.
//!
//! Terms: QEMU's `docs/interop/qmp-spec.rst`; *HMP* is the monitor for people, reached through
//! `human-monitor-command`; `xp` is its command that prints physical memory.
//!
//! What it does not do: change anything in the VM, follow events, or touch I/O ports. (`0xcf8` and `0xcfc` are two
//! steps, and the guest may come in between.)

mod client;
mod connection;
mod error;
pub mod pci;

pub use client::{Client, Status, Version};
pub use connection::{BUSY_LIMIT, REPLY_LIMIT};
pub use error::QmpError;
