//! How the program is linked.
//!
//! A hook costs about what starting a program costs, and a third of that is the dynamic linker. So the programs carry
//! the unwinder themselves, in place of loading `libgcc_s.so.1` for it, and their relative relocations are packed. What
//! the hook runs of the program lies in one place, so that few pages of the file have to be mapped for it.

use std::path::Path;
use std::process::Command;

/// The functions that the hook runs; written by `benches/link-order`.
const ORDER: &str = "packaging/generated/hook.ld";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CC");
    let target = std::env::var("TARGET").unwrap_or_default();
    let here = std::env::var("HOST").unwrap_or_default();
    // Another target's compiler may have neither; then everything is linked as usual.
    if target != here || !target.ends_with("-linux-gnu") {
        return;
    }
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    if let Some(directory) = unwinder(&compiler) {
        println!("cargo:rustc-link-search=native={directory}");
        // Whole, and thus before the standard library: so the linker needs nothing from the shared one, and drops it.
        println!("cargo:rustc-link-lib=static:+whole-archive,-bundle=gcc_eh");
    }
    println!("cargo:rerun-if-changed={ORDER}");
    // Not every linker knows such scripts; GNU ld and the one that comes with Rust do.
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    if !flags.contains("fuse-ld") {
        let order = Path::new(env!("CARGO_MANIFEST_DIR")).join(ORDER);
        println!("cargo:rustc-link-arg-bins=-T");
        println!("cargo:rustc-link-arg-bins={}", order.display());
    }
    if packs_relocations(&compiler) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The directory of the compiler's `libgcc_eh.a`.
fn unwinder(compiler: &str) -> Option<String> {
    let output = Command::new(compiler)
        .arg("-print-file-name=libgcc_eh.a")
        .output()
        .ok()?;
    let file = String::from_utf8(output.stdout).ok()?;
    // A file that is not there is printed as it was asked for, without a directory.
    let directory = Path::new(file.trim()).parent()?.to_str()?;
    (!directory.is_empty()).then(|| directory.to_owned())
}

/// Whether the linker knows `-z pack-relative-relocs` (binutils 2.38; glibc reads them since 2.36).
fn packs_relocations(compiler: &str) -> bool {
    Command::new(compiler)
        .args(["-Wl,--help"])
        .output()
        .is_ok_and(|output| {
            String::from_utf8_lossy(&output.stdout).contains("pack-relative-relocs")
        })
}
