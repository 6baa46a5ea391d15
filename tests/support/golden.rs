//! Outputs that are kept as files below `tests/goldens`. `UPDATE_GOLDENS=1` writes them anew.

use std::fs;
use std::path::{Path, PathBuf};

/// Compares a text with a file, and tells how to see the difference.
pub fn compare(name: &str, found: &str) {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/goldens")
        .join(name);
    same(&kept, found, "UPDATE_GOLDENS");
}

/// Compares a text with a file, which the variable `update` has written anew.
pub fn same(kept: &Path, found: &str, update: &str) {
    if std::env::var_os(update).is_some() {
        fs::create_dir_all(kept.parent().expect("a directory")).expect("directories");
        fs::write(kept, found).expect("a golden");
        return;
    }
    let expected = fs::read_to_string(kept).unwrap_or_default();
    if expected == found {
        return;
    }
    let new = unequal(kept);
    fs::write(&new, found).expect("the new text");
    panic!(
        "not as kept: diff -u {} {} ({update}=1 keeps the new text)",
        kept.display(),
        new.display()
    );
}

/// Where the text that differs is left.
fn unequal(kept: &Path) -> PathBuf {
    let name = kept.file_name().expect("a name").to_string_lossy();
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("new-{name}"))
}

/// No line is wider than a terminal of 80 columns, unless it is one word.
pub fn assert_fits(what: &str, output: &str) {
    for line in output.lines() {
        let words = line.trim_start_matches([' ', '│', '├', '└', '─']);
        assert!(
            line.chars().count() <= 80 || !words.contains(' '),
            "{what}: {line}"
        );
        assert_eq!(line, line.trim_end(), "{what}: blanks at the end of a line");
    }
}
