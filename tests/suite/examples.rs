//! The trees below `examples/hosts` are what the builder makes, byte for byte.
//!
//! `UPDATE_EXAMPLES=1 cargo test --test suite examples::` writes them anew.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::support::example_hosts;

/// What git keeps of a file or link. Empty directories and most mode bits are not kept.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    File(Vec<u8>),
    Link(PathBuf),
}

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples/hosts")
        .join(name)
}

/// Everything below `root`, except for the description that stands beside it.
fn entries(root: &Path) -> BTreeMap<PathBuf, Entry> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        let list = fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        for entry in list {
            let path = entry.unwrap().path();
            let relative = path.strip_prefix(root).unwrap().to_owned();
            if path.is_symlink() {
                found.insert(relative, Entry::Link(fs::read_link(&path).unwrap()));
            } else if path.is_dir() {
                pending.push(path);
            } else if relative != Path::new("README.md") {
                found.insert(relative, Entry::File(fs::read(&path).unwrap()));
            }
        }
    }
    found
}

fn write(root: &Path, entries: &BTreeMap<PathBuf, Entry>) {
    let readme = fs::read(root.join("README.md")).ok();
    if root.exists() {
        fs::remove_dir_all(root).unwrap();
    }
    fs::create_dir_all(root).unwrap();
    if let Some(readme) = readme {
        fs::write(root.join("README.md"), readme).unwrap();
    }
    for (path, entry) in entries {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match entry {
            Entry::File(bytes) => fs::write(&path, bytes).unwrap(),
            Entry::Link(target) => symlink(target, &path).unwrap(),
        }
    }
}

#[test]
fn examples_come_out_of_the_builder() {
    let update = std::env::var_os("UPDATE_EXAMPLES").is_some();
    for (name, tree) in example_hosts::all() {
        let built = entries(tree.path());
        if update {
            write(&directory(name), &built);
        }
        let committed = entries(&directory(name));
        let different: Vec<_> = built
            .keys()
            .chain(committed.keys())
            .filter(|path| built.get(*path) != committed.get(*path))
            .collect();
        assert!(
            different.is_empty(),
            "{name} differs in {different:?}; UPDATE_EXAMPLES=1 writes it anew"
        );
        assert!(
            directory(name).join("README.md").is_file(),
            "{name} has no README.md"
        );
        assert_links(name);
    }
}

/// Links are relative and lead to a place in the tree.
fn assert_links(name: &str) {
    let root = directory(name);
    let mut links = 0;
    for (path, entry) in entries(&root) {
        if let Entry::Link(target) = entry {
            assert!(target.is_relative(), "{name}: {}", path.display());
            let end = fs::canonicalize(root.join(&path))
                .unwrap_or_else(|error| panic!("{name}: {}: {error}", path.display()));
            assert!(end.starts_with(fs::canonicalize(&root).unwrap()));
            links += 1;
        }
    }
    assert!(links > 20, "{name} has {links} links");
}
