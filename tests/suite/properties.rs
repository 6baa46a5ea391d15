//! The fuzzer's properties over its seeds and over every input that once broke one.

use std::path::{Path, PathBuf};

#[path = "../../fuzz/src/lib.rs"]
#[allow(dead_code, reason = "the fuzzer's list is for the fuzzer too")]
pub mod fuzzed;

fn inputs(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("entry").path()).collect();
    paths.sort();
    paths
}

#[test]
fn hold_for_seeds_and_for_what_once_broke_them() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    for (target, holds) in fuzzed::TARGETS {
        let seeds = inputs(&fuzz.join("seeds").join(target));
        assert!(
            seeds.len() >= 3,
            "{target} has no seeds; run fuzz/make-seeds"
        );
        for input in seeds
            .into_iter()
            .chain(inputs(&fuzz.join("regressions").join(target)))
        {
            let bytes = std::fs::read(&input).expect("input");
            let held = std::panic::catch_unwind(|| holds(&bytes));
            assert!(held.is_ok(), "{} breaks its property", input.display());
        }
    }
}

#[test]
fn every_target_is_one_program_of_the_fuzzer() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/Cargo.toml");
    let manifest = std::fs::read_to_string(manifest).expect("manifest");
    let programs: Vec<_> = manifest
        .lines()
        .filter_map(|line| {
            line.strip_prefix("path = \"targets/")?
                .strip_suffix(".rs\"")
        })
        .collect();
    for (target, _) in fuzzed::TARGETS {
        assert!(
            programs.contains(&target),
            "{target} is missing in fuzz/Cargo.toml"
        );
    }
    assert_eq!(programs.len(), fuzzed::TARGETS.len());
}
