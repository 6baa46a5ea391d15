//! What a hook costs, as a whole process, beside what else Proxmox could call.
//!
//! `cargo bench --bench hook` prints the table of docs/performance.md. `ROUNDS=1001` changes the number of rounds.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the table is what it is for"
)]

mod measure;
#[path = "../tests/support/mod.rs"]
mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;

use measure::{Program, instructions, quantile, reads, system_calls, trace, usage, wall};

/// The least that a hook in Perl can do: it says where it is.
const PERL: &str = r#"#!/usr/bin/perl
use strict;
use warnings;
my ($vmid, $phase) = @ARGV;
print "VM $vmid: $phase\n";
exit(0);
"#;

/// What people write by hand: asks lspci for both cards.
const BASH: &str = r#"#!/bin/bash
vmid=$1 phase=$2
[ "$phase" = pre-start ] || exit 0
for function in 0000:0b:00.0 0000:44:00.0; do
    if ! lspci -O sysfs.path="$TREE/sys/bus/pci" -A linux-sysfs -vv -s "$function" | grep -q 'AtomicOpsCap: 32bit+ 64bit+'; then
        echo "VM $vmid: $function has no AtomicOps"
    fi
done
exit 0
"#;

fn main() {
    measure::runner();
    // Cargo asks every bench for its tests too.
    if std::env::args().any(|word| word == "--test" || word == "--list") {
        return;
    }
    let rounds = std::env::var("ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok());
    let rounds = rounds.unwrap_or(301);
    let tree = support::program::copy_of(&support::program::example("x399-two-7900xt"));
    std::fs::create_dir(tree.path().join("dev")).expect("directory");
    let socket = UnixDatagram::bind(tree.path().join("dev/log")).expect("socket");
    // A log that is read, as on a host.
    std::thread::spawn(move || while socket.recv(&mut [0; 8192]).is_ok() {});
    let root = tree.path().to_str().expect("a path in UTF-8");
    let script = |name: &str, text: &str| {
        let path = tree.path().join(name);
        std::fs::write(&path, text).expect("script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("mode");
        path.to_str().expect("a path in UTF-8").to_owned()
    };
    let perl = script("perl-hook", PERL);
    let bash = script("bash-hook", &BASH.replace("$TREE", root));
    // As dpkg would write it: pages that a linker wrote one by one are mapped one by one.
    let own = tree.path().join("pve-atomicops");
    std::fs::copy(env!("CARGO_BIN_EXE_pve-atomicops"), &own).expect("a copy");
    let own = own.to_str().expect("a path in UTF-8");
    let hook = |vmid: &str, phase: &str| {
        let words = [own, "--root", root, "hook", vmid, phase];
        Program::new(&format!("hook {vmid} {phase}"), &words)
    };
    let programs = [
        Program::new("/bin/true", &["/bin/true"]),
        hook("101", "pre-start"),
        hook("102", "pre-start"),
        hook("101", "post-start"),
        hook("101", "pre-stop"),
        hook("101", "post-stop"),
        Program::new("Perl hook, prints a line", &[&perl, "101", "pre-start"]),
        Program::new(
            "bash hook, lspci -vv of two functions",
            &[&bash, "101", "pre-start"],
        ),
    ];
    // Valgrind knows openat2 since 3.25 only, and an archive is read without it.
    let archive = tree.path().join("host.tar.gz");
    let archive = archive.to_str().expect("a path in UTF-8");
    let capture = Program::new("capture", &[own, "--root", root, "capture", "-o", archive]);
    capture.run();
    // The last one runs apart: it empties the processor's caches, and whoever comes next would have to pay for it.
    let (large, small) = programs.split_last().expect("programs");
    let mut times = wall(small, rounds);
    let apart = [small[0].clone(), large.clone()];
    times.extend(wall(&apart, rounds.min(50)).pop());
    println!(
        "{rounds} rounds; wall time as the median, and in ratio to /bin/true: medians, and tenth percentiles\n"
    );
    println!("| program | µs | ratio | ratio, p10 | system calls | instructions | peak KiB |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    for (program, own) in programs.iter().zip(&times) {
        let ratio =
            |part| quantile(own, part).as_secs_f64() / quantile(&times[0], part).as_secs_f64();
        let number =
            |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
        println!(
            "| {} | {} | {:.2} | {:.2} | {} | {} | {} |",
            program.name,
            quantile(own, 0.5).as_micros(),
            ratio(0.5),
            ratio(0.1),
            number(system_calls(program)),
            number(instructions(&program.with(root, archive))),
            usage(program).peak,
        );
    }
    println!("\nInstructions of a hook are those on a capture of the host, and its unpacking.\n");
    for program in &programs[1..3] {
        if let Some(lines) = trace(program) {
            let (files, bytes) = reads(&lines, tree.path());
            println!(
                "{}: {} opened, {bytes} bytes of configuration space",
                program.name,
                files.len()
            );
        }
    }
}
