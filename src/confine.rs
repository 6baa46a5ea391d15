//! What a process gives up before it reads anything.
//!
//! There is no way back to what is given up here, and nothing that the program reads decides about it. Everything is done
//! through safe interfaces of the system; none of it can fail in a way that matters, since each step only takes away.

use std::os::fd::{AsFd as _, IntoRawFd as _, RawFd};

use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_no_new_privs;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, stat, umask};
use nix::unistd::close;

/// The first descriptor that has no meaning of its own.
const FIRST: RawFd = 3;

/// Any program, before it opens anything: where it was started without standard input, output or error, it gets
/// `/dev/null` in their place. Else the first file that it opens would become its standard output.
pub fn standard_descriptors() {
    let (input, output, error) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let nothing = PollFlags::empty();
    let mut standard = [
        PollFd::new(input.as_fd(), nothing),
        PollFd::new(output.as_fd(), nothing),
        PollFd::new(error.as_fd(), nothing),
    ];
    // It fails only where no descriptor can be watched, and where the kernel has no memory.
    let _ = poll(&mut standard, PollTimeout::ZERO);
    let closed = standard
        .iter()
        .filter(|one| one.revents() == Some(PollFlags::POLLNVAL));
    for _ in closed {
        // The lowest free number is the closed one's. It stays open to the end.
        let _ = open("/dev/null", OFlag::O_RDWR, Mode::empty()).map(|null| null.into_raw_fd());
    }
}

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
/// It must come before the program opens anything itself, and after [`standard_descriptors`].
fn close_inherited() {
    // Since Linux 6.2 the size of this directory is the number of its entries. Usually there are three.
    if stat("/proc/self/fd").is_ok_and(|directory| directory.st_size == i64::from(FIRST)) {
        return;
    }
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
