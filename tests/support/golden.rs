//! Expected outputs, kept as files below `tests/goldens`.

use std::fs;
use std::path::{Path, PathBuf};

/// Compares an output with the file of this name. `UPDATE_GOLDENS=1` writes it anew.
///
/// A difference leaves the output in a file of its own, and tells the command that shows both.
pub fn assert_golden(name: &str, output: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/goldens")
        .join(name);
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        fs::create_dir_all(file.parent().expect("a directory")).expect("directories");
        fs::write(&file, output).expect("write");
        return;
    }
    let expected = fs::read_to_string(&file).unwrap_or_default();
    if expected != output {
        let got = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name.replace('/', "-"));
        fs::write(&got, output).expect("write");
        panic!(
            "{name} differs: diff -u {} {}",
            file.display(),
            got.display()
        );
    }
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
