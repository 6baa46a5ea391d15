//! The snippet: the small hookscript on a storage that Proxmox calls, and that calls the program.
//!
//! The package brings its text as a file, which is what is copied; a program without a package has the same text in
//! itself. What was written where is recorded in the format of `sha256sum`, from which the package's maintenance scripts
//! tell a snippet of ours from one that somebody edited.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

use crate::host::Host;
use crate::store::install;
use crate::store::tree::Tree;
use crate::vmconf::storage::Storage;

/// The snippet's file name.
pub const NAME: &str = "pve-atomicops-hook";
/// The package's copy.
pub const SOURCE: &str = "/usr/share/pve-atomicops/pve-atomicops-hook";
/// What was written where.
pub const RECORD: &str = "/var/lib/pve-atomicops/snippets";

/// The text, for a program without a package.
const TEXT: &str = include_str!("../hook/pve-atomicops-hook");
/// Proxmox refuses to start a VM whose hookscript is not executable.
const MODE: u32 = 0o755;
/// A snippet has a kilobyte.
const LIMIT: u64 = 1 << 16;

/// The snippet's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snippet {
    storage: String,
    directory: PathBuf,
}

impl Snippet {
    /// Its place on a storage; none where that has no directory.
    pub fn of(name: &str, storage: &Storage) -> Option<Self> {
        Some(Self {
            storage: name.to_owned(),
            directory: storage.snippets_dir()?,
        })
    }

    /// Its volume ID.
    pub fn volume(&self) -> String {
        format!("{}:snippets/{NAME}", self.storage)
    }

    /// Its file.
    pub fn path(&self) -> PathBuf {
        self.directory.join(NAME)
    }
}

/// Whether a volume ID names our snippet, on whatever storage.
pub fn is_ours(volume: &str) -> bool {
    volume
        .split_once(":snippets/")
        .is_some_and(|(_, file)| file == NAME)
}

/// Puts the snippet in its place and into the record, and tells what was done. Nothing where it is there already.
///
/// # Errors
/// A file of that name that is not ours, or a step that failed.
pub fn install(host: &Host, tree: &Tree, snippet: &Snippet) -> anyhow::Result<Vec<String>> {
    let path = snippet.path();
    let shown = path.display();
    let text = host
        .bytes(SOURCE, LIMIT)?
        .unwrap_or_else(|| TEXT.as_bytes().to_vec());
    let below = |path: &Path| -> anyhow::Result<String> {
        let relative = path.strip_prefix("/").unwrap_or(path);
        let relative = relative
            .to_str()
            .context("the storage's path is not UTF-8")?;
        Ok(relative.trim_start_matches('/').to_owned())
    };
    let directory = below(&snippet.directory)?;
    let present = install::present(tree, &directory, NAME)
        .with_context(|| format!("{shown} cannot be replaced"))?;
    let record = host.bytes(RECORD, LIMIT)?.unwrap_or_default();
    let record = String::from_utf8_lossy(&record).into_owned();
    let recorded = recorded(&record, &path);
    let mut said = Vec::new();
    let refresh = match &present {
        None => true,
        Some(present) if present.content == text => present.mode != MODE,
        Some(present) if recorded.as_deref() == Some(&sum(&present.content)) => true,
        Some(present) if recorded.is_some() => {
            // Edited by somebody who knows what it was. It must run all the same.
            if present.mode & 0o111 == 0 {
                bail!(
                    "{shown} was edited and is not executable: VMs that call it do not start; `chmod 0755` it"
                );
            }
            said.push(format!("{shown} was edited, and is left as it is"));
            return Ok(said);
        }
        Some(_) => bail!(
            "{shown} is there already and is none of ours: move it away, or choose another --storage"
        ),
    };
    if refresh {
        install::install(tree, &directory, NAME, &text, MODE)
            .with_context(|| format!("cannot install {shown}"))?;
        said.push(format!("installed {shown}"));
    }
    let new = with_record(&record, &path, &sum(&text));
    if new != record {
        // The directory is the journal's, for root alone.
        crate::store::journal::Journal::create(tree, std::time::Instant::now())?;
        let file = below(Path::new(RECORD))?;
        let (directory, name) = file.rsplit_once('/').unwrap_or(("", &file));
        install::install(tree, directory, name, new.as_bytes(), 0o600)
            .with_context(|| format!("cannot write {RECORD}"))?;
    }
    Ok(said)
}

/// The SHA-256 in hexadecimal, as `sha256sum` prints it.
fn sum(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    Sha256::digest(bytes)
        .iter()
        .fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// The record's sum and path in one of its lines.
fn record_line(line: &str) -> Option<(&str, &str)> {
    let (sum, path) = line.split_once(' ')?;
    // The second blank is a `*` for what was read as binary.
    Some((sum, path.strip_prefix([' ', '*']).unwrap_or(path)))
}

fn recorded(record: &str, path: &Path) -> Option<String> {
    let of_path = |line| record_line(line).filter(|(_, name)| Path::new(name) == path);
    let (sum, _) = record.lines().find_map(of_path)?;
    Some(sum.to_owned())
}

/// The record with this file's line, others as they are.
fn with_record(record: &str, path: &Path, sum: &str) -> String {
    let others = record
        .lines()
        .filter(|line| record_line(line).is_none_or(|(_, name)| Path::new(name) != path));
    let own = format!("{sum}  {}", path.display());
    let lines: Vec<_> = others.chain([own.as_str(), ""]).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_volume_is_told_by_its_file() {
        assert!(is_ours("local:snippets/pve-atomicops-hook"));
        assert!(is_ours("nfs:snippets/pve-atomicops-hook"));
        for other in [
            "local:snippets/pve-atomicops-hook.sh",
            "local:iso/pve-atomicops-hook",
            "pve-atomicops-hook",
        ] {
            assert!(!is_ours(other), "{other}");
        }
    }

    #[test]
    fn the_record_keeps_other_lines() {
        let path = Path::new("/var/lib/vz/snippets/pve-atomicops-hook");
        let record = "aa  /mnt/a/pve-atomicops-hook\nbb */var/lib/vz/snippets/pve-atomicops-hook\n";
        assert_eq!(recorded(record, path).as_deref(), Some("bb"));
        assert_eq!(
            with_record(record, path, "cc"),
            "aa  /mnt/a/pve-atomicops-hook\ncc  /var/lib/vz/snippets/pve-atomicops-hook\n"
        );
        assert_eq!(recorded("", path), None);
    }

    #[test]
    fn sums_are_those_of_sha256sum() {
        assert_eq!(
            sum(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn the_package_s_text_is_installed_and_refreshed() {
        let root = tempfile::tempdir().expect("directory");
        let put = |path: &str, text: &str| {
            let path = root.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("directory");
            std::fs::write(path, text).expect("file");
        };
        let snippet = Snippet {
            storage: "local".to_owned(),
            directory: PathBuf::from("/srv/snippets"),
        };
        let tree = Tree::open(root.path()).expect("tree");
        let run = || {
            let host = Host::at(root.path()).expect("host");
            install(&host, &tree, &snippet).expect("installed");
            let installed = root.path().join("srv/snippets").join(NAME);
            std::fs::read_to_string(installed).expect("the snippet")
        };
        // Without a package the program brings the text.
        assert_eq!(run(), TEXT);
        // A newer package has another one, and what is there is ours by the record.
        put(SOURCE, "#!/bin/sh\n# newer\n");
        assert_eq!(run(), "#!/bin/sh\n# newer\n");
        let record = root.path().join(RECORD.trim_start_matches('/'));
        let record = std::fs::read_to_string(record).expect("the record");
        assert_eq!(
            record,
            format!("{}  /srv/snippets/{NAME}\n", sum(b"#!/bin/sh\n# newer\n"))
        );
    }
}
