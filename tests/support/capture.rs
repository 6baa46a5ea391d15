//! The capture of a whole machine that lies below `tests/hosts`; `tests/hosts/README.md` describes it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/hosts")
        .join(name)
}

/// Unpacks the machine's `sysfs`.
pub fn unpack(into: &Path) {
    let path = place("lab-q35-switch.tar.gz");
    let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    tar::Archive::new(flate2::read::GzDecoder::new(file))
        .unpack(into)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// What was measured on it: one JSON object for each guest.
pub fn measurements() -> Vec<serde_json::Value> {
    let path = place("lab-q35-switch.jsonl");
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect()
}
