//! What a process gives up before it reads anything.
//!
//! There is no way back to what is given up here, and nothing that the program reads decides about it. Everything is done
//! through safe interfaces of the system; none of it can fail in a way that matters, since each step only takes away.

use std::os::fd::RawFd;

use nix::sys::prctl::set_no_new_privs;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, umask};
use nix::unistd::close;

/// The first descriptor that has no meaning of its own.
const FIRST: RawFd = 3;

/// The hook: files it makes are closed to others, it leaves no core dump with somebody's configuration in it, and it has
/// no descriptors but the three that everybody has.
///
/// It may still run programs with more rights than its own: scripts of the chain are called as Proxmox would call them.
pub fn hook() {
    // Group may read: configurations of VMs are root:www-data 0640.
    umask(Mode::from_bits_truncate(0o027));
    command();
    close_inherited();
}

/// Any command: no core dump with somebody's configuration in it.
pub fn command() {
    // It cannot fail for a limit that only goes down.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
}

/// A command that only reads: nothing that it might be made to run gets more rights than it has itself.
pub fn reader() {
    command();
    // It fails on kernels before 3.5 only.
    let _ = set_no_new_privs();
}

/// Closes what the caller left open, so that neither a chained script nor a check in the background gets it.
///
/// It must come before the program opens anything itself.
fn close_inherited() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let open: Vec<RawFd> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|descriptor| *descriptor >= FIRST)
        .collect();
    for descriptor in open {
        // The descriptor that the list was read through is among them, and closed already.
        let _ = close(descriptor);
    }
}
