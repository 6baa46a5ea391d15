//! The crates that the program is made of: their licences, their number, where they come from. The rules are those of
//! `deny.toml`; neither cargo-deny nor the network is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// More than this wants a reason; see the table in the design notes.
const MOST: usize = 80;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rules() -> toml::Table {
    let text = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    text.parse().expect("TOML")
}

/// The texts of a list in `deny.toml`, or one text of each of its tables.
fn list(rules: &toml::Table, section: &str, key: &str, of: &str) -> BTreeSet<String> {
    let values = rules[section][key].as_array().expect("a list");
    let text = |value: &toml::Value| {
        value
            .as_str()
            .or_else(|| value[of].as_str())
            .map(str::to_owned)
    };
    values
        .iter()
        .map(|value| text(value).expect("a text"))
        .collect()
}

/// All crates of the tests and of the program, by ID.
struct Crates {
    packages: BTreeMap<String, Value>,
    /// Those that the program itself is made of or made with, itself left out.
    program: BTreeSet<String>,
    direct: BTreeSet<String>,
}

impl Crates {
    fn read() -> Self {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--locked", "--offline"])
            .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
            .arg("--manifest-path")
            .arg(root().join("Cargo.toml"))
            .output()
            .expect("cargo runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let id = |value: &Value| value.as_str().expect("an ID").to_owned();
        let packages = metadata["packages"].as_array().expect("packages");
        let packages = packages
            .iter()
            .map(|package| (id(&package["id"]), package.clone()))
            .collect();
        let nodes = metadata["resolve"]["nodes"].as_array().expect("nodes");
        let below = |of: &str| -> Vec<String> {
            let node = nodes.iter().find(|node| node["id"] == of).expect("a node");
            let deps = node["deps"].as_array().expect("dependencies").iter();
            let needed = |dep: &&Value| {
                let kinds = dep["dep_kinds"].as_array().expect("kinds");
                kinds.iter().any(|kind| kind["kind"] != "dev")
            };
            deps.filter(needed).map(|dep| id(&dep["pkg"])).collect()
        };
        let this = id(&metadata["resolve"]["root"]);
        let direct: BTreeSet<_> = below(&this).into_iter().collect();
        let (mut program, mut rest) = (BTreeSet::new(), Vec::from_iter(direct.clone()));
        while let Some(next) = rest.pop() {
            if program.insert(next.clone()) {
                rest.extend(below(&next));
            }
        }
        Self {
            packages,
            program,
            direct,
        }
    }

    fn name(&self, id: &str) -> &str {
        self.packages[id]["name"].as_str().expect("a name")
    }
}

/// Whether an SPDX expression is satisfied by these licences. `AND` binds more than `OR`; `/` is an old `OR`.
fn satisfied(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut words: Vec<String> = Vec::new();
    for word in spaced.split_whitespace() {
        // `X WITH Y` is one licence.
        let joins = word == "WITH" || words.last().is_some_and(|last| last.ends_with(" WITH"));
        match words.last_mut().filter(|_| joins) {
            Some(last) => *last = format!("{last} {word}"),
            None => words.push(word.to_owned()),
        }
    }
    let mut words = words.iter().map(String::as_str).peekable();
    let answer = alternatives(&mut words, allowed);
    assert_eq!(words.next(), None, "{expression}");
    answer
}

fn alternatives<'a, I: Iterator<Item = &'a str>>(
    words: &mut std::iter::Peekable<I>,
    allowed: &BTreeSet<String>,
) -> bool {
    let mut answer = false;
    loop {
        let mut all = true;
        loop {
            all &= match words.next() {
                Some("(") => {
                    let inner = alternatives(words, allowed);
                    assert_eq!(words.next(), Some(")"));
                    inner
                }
                word => allowed.contains(word.unwrap_or_default()),
            };
            if words.next_if_eq(&"AND").is_none() {
                break;
            }
        }
        answer |= all;
        if words.next_if_eq(&"OR").is_none() {
            return answer;
        }
    }
}

#[test]
fn licence_expressions_are_read_as_spdx_says() {
    let allowed = ["MIT", "Unicode-3.0", "A WITH B"].map(str::to_owned).into();
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-2.0-only", false),
        ("GPL-2.0-only OR MIT", true),
        ("Apache-2.0/MIT", true),
        ("MIT AND GPL-2.0-only", false),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("(X OR Y) AND MIT", false),
        ("X AND Y OR MIT", true),
        ("A WITH B", true),
        ("A", false),
    ] {
        assert_eq!(satisfied(expression, &allowed), expected, "{expression}");
    }
}

#[test]
fn licences_go_with_ours() {
    let allowed = list(&rules(), "licenses", "allow", "");
    for package in Crates::read().packages.values() {
        let licence = package["license"].as_str().unwrap_or_default();
        assert!(
            satisfied(licence, &allowed),
            "{}: '{licence}'",
            package["name"]
        );
    }
}

#[test]
fn everything_comes_from_one_registry_with_its_checksum() {
    let mut registries = BTreeSet::new();
    for (id, package) in Crates::read().packages {
        let ours = package["name"] == env!("CARGO_PKG_NAME");
        match package["source"].as_str() {
            None => assert!(ours, "{id}"),
            Some(source) => {
                assert!(source.starts_with("registry+"), "{id}");
                registries.insert(source.to_owned());
            }
        }
    }
    assert_eq!(registries.len(), 1, "{registries:?}");
    for lock in ["Cargo.lock", "fuzz/Cargo.lock"] {
        let text = std::fs::read_to_string(root().join(lock)).expect(lock);
        let lock: toml::Table = text.parse().expect("TOML");
        for package in lock["package"].as_array().expect("packages") {
            let from_registry = package.get("source").is_some();
            assert_eq!(
                from_registry,
                package.get("checksum").is_some(),
                "{package:?}"
            );
        }
    }
}

#[test]
fn nothing_is_there_twice_that_need_not_be() {
    let crates = Crates::read();
    let known = list(&rules(), "bans", "skip", "crate");
    let mut seen = BTreeSet::new();
    let mut twice: BTreeSet<_> = crates
        .program
        .iter()
        .map(|id| crates.name(id))
        .filter(|name| !seen.insert(*name))
        .collect();
    twice.retain(|name| !known.contains(*name));
    assert!(twice.is_empty(), "{twice:?}");
    for banned in list(&rules(), "bans", "deny", "crate") {
        assert!(!seen.contains(banned.as_str()), "{banned}");
    }
}

#[test]
fn each_direct_dependency_is_accounted_for() {
    let crates = Crates::read();
    let mut design = String::new();
    for entry in std::fs::read_dir(root()).expect("list") {
        let path = entry.expect("entry").path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if name.starts_with("DESIGN") {
            design += &std::fs::read_to_string(&path).expect("text");
        }
    }
    for id in &crates.direct {
        let name = crates.name(id);
        assert!(
            design
                .lines()
                .any(|line| line.starts_with(&format!("| `{name}` |"))),
            "{name} is missing in the table of dependencies"
        );
    }
}

#[test]
fn there_are_not_too_many() {
    let crates = Crates::read();
    let names: Vec<_> = crates.program.iter().map(|id| crates.name(id)).collect();
    assert!(names.len() <= MOST, "{}: {names:?}", names.len());
}
