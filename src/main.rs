//! The program: where the C library starts it.
//!
//! This is the one file with `unsafe` in it: it exports `main` itself. Rust's own entry, which would call a `fn main`,
//! first reads `/proc/self/maps` to find the guard page of the stack, and sets up a second stack for a message about an
//! overflow of the first. That takes an eighth of all that `/bin/true` takes, at every start and stop of a VM; without it
//! an overflow ends the program all the same, only without a message. The rest of what that entry does is done here.

#![no_main]
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use nix::sys::signal::{SigHandler, Signal, signal};

/// What the C library calls. The arguments need not be passed on: the standard library of a glibc target has them.
// SAFETY: no other function of this name is linked in; the standard library has one for `fn main` only.
#[unsafe(no_mangle)]
pub extern "C" fn main(_count: c_int, _arguments: *const *const c_char) -> c_int {
    pve_atomicops::confine::standard_descriptors();
    // A reader that goes away is an error of the writing, and not the end of a VM's start. The system's library resets
    // this in programs that are run.
    // SAFETY: nothing is called at the signal, which is ignored.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) };
    let status = pve_atomicops::cli::main();
    // It writes what is still buffered.
    std::process::exit(status.into())
}
