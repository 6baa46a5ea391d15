//! `/etc/pve/storage.cfg` and `ha/resources.cfg`: a volume ID never leads out of its storage's snippet directory.
//!
//! Input: a volume's name up to NUL, then the file.

use std::path::Component;

use pve_atomicops::vmconf::ha;
use pve_atomicops::vmconf::storage::Storages;

use super::input::Input;

/// The property.
pub fn holds(data: &[u8]) {
    let mut input = Input::new(data);
    let volume = input.text();
    let bytes = input.rest();
    let (storages, warnings) = Storages::parse(bytes);
    let lines = bytes.split(|byte| *byte == b'\n').count();
    for warning in &warnings {
        assert!(warning.line >= 1 && warning.line <= lines, "{warning:?}");
        assert!(!warning.text.contains('\n'), "{warning:?}");
    }
    assert!(storages.get("local").is_some(), "there is always 'local'");
    stays_below(&storages, &volume);
    for (name, storage) in storages.iter() {
        assert!(
            !name.is_empty() && !name.contains([':', '/', '\n']),
            "{name:?}"
        );
        assert_eq!(storage.path.is_some(), storage.snippets_dir().is_some());
        for file in [&volume, "../x", "..", ".", "", "a/b", "a\0b", "hook"] {
            stays_below(&storages, &format!("{name}:snippets/{file}"));
        }
    }
    let _ = ha::managed(bytes);
}

fn stays_below(storages: &Storages, volume: &str) {
    let Ok(path) = storages.snippet_path(volume) else {
        return;
    };
    let name = volume.split(':').next().unwrap_or_default();
    let directory = storages
        .get(name)
        .and_then(|storage| storage.snippets_dir());
    let Some(directory) = directory else {
        panic!(
            "{volume:?} has no directory, and leads to {}",
            path.display()
        );
    };
    let Ok(below) = path.strip_prefix(&directory) else {
        panic!("{volume:?} leads to {}", path.display());
    };
    let components: Vec<_> = below.components().collect();
    assert!(
        matches!(components.as_slice(), [Component::Normal(_)]),
        "{volume:?}: {components:?}"
    );
}
