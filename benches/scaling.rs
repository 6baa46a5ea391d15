//! What grows with the host, and what must not.
//!
//! `cargo bench --bench scaling` prints the tables of docs/performance.md: the hook on hosts of 8, 512 and 4,096
//! functions, and `check --all` for 10 to 10,000 VMs on the largest.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the table is what it is for"
)]

mod measure;
#[path = "../tests/support/mod.rs"]
mod support;

use measure::{Program, reads, system_calls, trace, usage};
use support::large::{functions, large_host, vm_text};

fn main() {
    measure::runner();
    if std::env::args().any(|word| word == "--test" || word == "--list") {
        return;
    }
    let own = env!("CARGO_BIN_EXE_pve-atomicops");
    println!("| functions of the host | opened | bytes of configuration space | system calls |");
    println!("| ---: | ---: | ---: | ---: |");
    let mut lists = Vec::new();
    let mut largest = None;
    for slots in [2, 128, 1024] {
        let tree = large_host(slots).vm(100, &vm_text(0, 1));
        let root = tree.path().to_str().expect("a path in UTF-8").to_owned();
        let hook = Program::new("hook", &[own, "--root", &root, "hook", "100", "pre-start"]);
        let lines = trace(&hook).expect("strace is installed");
        let (files, bytes) = reads(&lines, tree.path());
        println!(
            "| {} | {} | {bytes} | {} |",
            functions(slots),
            files.len(),
            system_calls(&hook).expect("strace is installed")
        );
        lists.push(files);
        largest = Some((tree, slots));
    }
    let same = lists.windows(2).all(|pair| pair[0] == pair[1]);
    println!(
        "\nThe lists of opened files are {}.\n",
        if same { "the same" } else { "NOT the same" }
    );

    let (tree, slots) = largest.expect("a host");
    let root = tree.path().to_str().expect("a path in UTF-8").to_owned();
    println!(
        "| VMs | CPU ms | ms, all but one | µs each VM | peak KiB | listings of the devices |"
    );
    println!("| ---: | ---: | ---: | ---: | ---: | ---: |");
    let mut present = 0;
    let mut base = None;
    for count in [1, 10, 100, 1000, 10_000] {
        for number in present..count {
            tree.put(
                &format!("etc/pve/nodes/pve1/qemu-server/{}.conf", 100 + number),
                vm_text(number, slots),
            );
        }
        present = count;
        let words = [own, "--root", &root, "check", "--all", "--format", "json"];
        let check = Program::new("check", &words);
        let mut runs: Vec<_> = (0..5).map(|_| usage(&check)).collect();
        runs.sort_unstable_by_key(|run| run.cpu);
        let middle = runs[2];
        let base = *base.get_or_insert(middle.cpu);
        let others = middle.cpu.saturating_sub(base).as_secs_f64() * 1000.0;
        let lines = trace(&check).expect("strace is installed");
        let listings = lines
            .iter()
            .filter(|line| line.contains("getdents64(") && line.contains("bus/pci/devices>"))
            .filter(|line| line.ends_with(" = 0"));
        println!(
            "| {count} | {:.1} | {others:.1} | {:.0} | {} | {} |",
            middle.cpu.as_secs_f64() * 1000.0,
            others * 1000.0 / f64::from((count - 1).max(1)),
            middle.peak,
            listings.count()
        );
    }
}
