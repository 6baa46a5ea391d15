//! `/etc/pve/storage.cfg`: where a snippet's file is.
//!
//! A *volume ID* such as `local:snippets/hook.sh` names a storage and something in it. Snippets are files in a
//! directory of a storage that has one: `dir`, `btrfs`, and the network file systems, which Proxmox mounts below
//! `/mnt/pve`. Reading follows `PVE::Storage::Plugin` (libpve-storage 9.2) for the keys that matter here, and leaves the
//! others alone: storages of third-party plugins have keys of their own.
//!
//! It looks at no file: whether the storage is mounted and the file is there is for the caller to find out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::patterns;
use super::section_config::{self, HeaderLine, RawSection};

pub use super::section_config::Warning;

/// One storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// The type, such as `dir`, in lower case.
    pub kind: String,
    /// The directory it keeps its files in, if it has one.
    pub path: Option<String>,
    /// The content types it may hold, such as `snippets`.
    pub content: BTreeSet<String>,
    /// Directories below the path that are not the default ones, by content type.
    pub content_dirs: BTreeMap<String, String>,
    /// Whether it is switched off.
    pub disable: bool,
    /// The nodes that have it; `None`: all.
    pub nodes: Option<BTreeSet<String>>,
    /// Whether all those nodes see the same content.
    pub shared: bool,
}

/// The storages of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storages(BTreeMap<String, Storage>);

/// Why a volume ID leads to no snippet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// Not of the form `STORAGE:VOLUME`.
    #[error("unable to parse volume ID '{0}'")]
    NotAVolumeId(String),
    /// No such storage.
    #[error("storage '{0}' does not exist")]
    NoSuchStorage(String),
    /// The storage keeps no files.
    #[error("storage '{storage}' (type {kind}) has no directory for snippets")]
    NoDirectory {
        /// The storage.
        storage: String,
        /// Its type.
        kind: String,
    },
    /// Not of the form `snippets/FILE`.
    #[error("'{0}' is not a snippet: STORAGE:snippets/FILE")]
    NotASnippet(String),
}

impl Storage {
    /// Whether snippets may be kept here.
    pub fn holds_snippets(&self) -> bool {
        self.content.contains("snippets") && self.path.is_some()
    }

    /// Whether a node may use it.
    pub fn is_available_on(&self, node: &str) -> bool {
        !self.disable && self.nodes.as_ref().is_none_or(|nodes| nodes.contains(node))
    }

    /// The directory of its snippets, if it has one.
    pub fn snippets_dir(&self) -> Option<PathBuf> {
        let below = self.content_dirs.get("snippets");
        let below = below.map_or("snippets", String::as_str);
        // Proxmox joins the texts, so that an override with a leading slash stays below the path.
        self.path
            .as_ref()
            .map(|path| PathBuf::from(format!("{path}/{below}")))
    }
}

impl Storages {
    /// Reads the file. Nothing in it makes this fail; what does not fit is named in the warnings.
    ///
    /// There is always a storage `local` in `/var/lib/vz`, whatever the file says.
    pub fn parse(bytes: &[u8]) -> (Self, Vec<Warning>) {
        let text = String::from_utf8_lossy(bytes);
        let (sections, mut warnings) =
            section_config::read(&text, header, |(_, name)| (*name).to_owned());
        let mut storages = BTreeMap::new();
        for section in sections {
            let (_, name) = section.header;
            match storage(&section, &mut warnings) {
                Some(storage) => storages.insert(name.to_owned(), storage),
                None => storages.remove(name),
            };
        }
        let local = storages.remove("local").filter(|local| {
            local.kind == "dir" && matches!(local.path.as_deref(), None | Some(LOCAL_PATH))
        });
        let mut local = local.unwrap_or_else(default_local);
        local.path = Some(LOCAL_PATH.to_owned());
        local.nodes = None;
        storages.insert("local".to_owned(), local);
        warnings.sort_by_key(|warning| warning.line);
        (Self(storages), warnings)
    }

    /// The storage of this name.
    pub fn get(&self, name: &str) -> Option<&Storage> {
        self.0.get(name)
    }

    /// All storages, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Storage)> {
        self.0
            .iter()
            .map(|(name, storage)| (name.as_str(), storage))
    }

    /// The file that a volume ID `STORAGE:snippets/FILE` means.
    ///
    /// The content types of the storage do not matter, and neither does whether it is available: Proxmox does not ask
    /// for them either when it calls a hookscript. A `FILE` that would lead out of the directory is no snippet.
    pub fn snippet_path(&self, volume: &str) -> Result<PathBuf, VolumeError> {
        let Some((name, below)) = volume
            .split_once(':')
            .filter(|_| patterns::is_volume_id(volume))
        else {
            return Err(VolumeError::NotAVolumeId(volume.to_owned()));
        };
        let storage = self
            .get(name)
            .ok_or_else(|| VolumeError::NoSuchStorage(name.to_owned()))?;
        let file = below
            .strip_prefix("snippets/")
            .filter(|file| !matches!(*file, "" | "." | "..") && !file.contains(['/', '\0', '\n']))
            .ok_or_else(|| VolumeError::NotASnippet(volume.to_owned()))?;
        let directory = storage
            .snippets_dir()
            .ok_or_else(|| VolumeError::NoDirectory {
                storage: name.to_owned(),
                kind: storage.kind.clone(),
            })?;
        Ok(directory.join(file))
    }
}

const LOCAL_PATH: &str = "/var/lib/vz";

fn default_local() -> Storage {
    let content = ["backup", "images", "iso", "rootdir", "snippets", "vztmpl"];
    Storage {
        kind: "dir".to_owned(),
        content: content.map(str::to_owned).into(),
        ..Storage::default()
    }
}

fn header(line: &str) -> HeaderLine<(&str, &str)> {
    match section_config::type_and_name(line) {
        Some((kind, name)) if patterns::is_storage_id(name) => HeaderLine::Yes((kind, name)),
        Some((_, name)) => HeaderLine::Skip(
            name.to_owned(),
            format!("storage ID '{name}' contains illegal characters"),
        ),
        None => HeaderLine::No,
    }
}

fn storage(section: &RawSection<'_, (&str, &str)>, warnings: &mut Vec<Warning>) -> Option<Storage> {
    let (kind, name) = section.header;
    let mut storage = Storage {
        kind: kind.to_ascii_lowercase(),
        ..Storage::default()
    };
    let mut seen: Vec<&str> = Vec::new();
    let mut content_set = false;
    for setting in &section.settings {
        let key = setting.key;
        let value = setting
            .value
            .ok_or_else(|| "got undefined value".to_owned());
        let result = match key {
            "path" | "content" | "content-dirs" | "disable" | "nodes" | "shared"
                if seen.contains(&key) =>
            {
                Err("duplicate attribute".to_owned())
            }
            "path" => value
                .and_then(absolute_path)
                .map(|path| storage.path = Some(path.to_owned())),
            "content" => value.map(|list| {
                content_set = true;
                storage.content = patterns::split_list(list).map(str::to_owned).collect();
            }),
            "content-dirs" => value
                .and_then(directories)
                .map(|directories| storage.content_dirs = directories),
            "disable" => flag(setting.value).map(|flag| storage.disable = flag),
            "shared" => flag(setting.value).map(|flag| storage.shared = flag),
            "nodes" => value
                .and_then(nodes)
                .map(|nodes| storage.nodes = Some(nodes)),
            _ => continue,
        };
        match result {
            Ok(()) => seen.push(key),
            Err(reason) => warnings.push(Warning {
                line: setting.line,
                section: Some(name.to_owned()),
                text: format!("unable to parse value of '{key}': {reason}"),
            }),
        }
    }
    if !content_set {
        storage.content = BTreeSet::from(["images".to_owned(), "rootdir".to_owned()]);
    }
    match storage.kind.as_str() {
        "nfs" | "cifs" | "cephfs" | "glusterfs" => {
            storage.shared = true;
            storage
                .path
                .get_or_insert_with(|| format!("/mnt/pve/{name}"));
        }
        // `local` gets its path in any case.
        "dir" | "btrfs" if storage.path.is_none() && name != "local" => {
            warnings.push(Warning {
                line: section.line,
                section: Some(name.to_owned()),
                text: format!("skip section '{name}': missing value for required option 'path'"),
            });
            return None;
        }
        _ => {}
    }
    Some(storage)
}

/// `pve-storage-path`: `^/[^;\(\)]+`.
fn absolute_path(text: &str) -> Result<&str, String> {
    let rest = text.strip_prefix('/').unwrap_or_default();
    if rest.is_empty() || rest.starts_with([';', '(', ')']) || rest.contains(['\r', '\0']) {
        return Err("value does not look like a valid absolute path".to_owned());
    }
    Ok(text)
}

/// `pve-dir-override-list`: a path below the storage's, without `..`.
fn directories(list: &str) -> Result<BTreeMap<String, String>, String> {
    let mut directories = BTreeMap::new();
    for entry in patterns::split_list(list) {
        let fits = |path: &str| {
            !path.is_empty()
                && !path.ends_with('.')
                && !path.contains("..")
                && path.len() < 1023
                && path.split('/').all(|part| part.len() < 255)
        };
        match entry.split_once('=') {
            Some((content, path))
                if !content.is_empty()
                    && content.bytes().all(|byte| byte.is_ascii_lowercase())
                    && fits(path) =>
            {
                directories.insert(content.to_owned(), path.to_owned());
            }
            _ => return Err(format!("invalid override '{entry}'")),
        }
    }
    Ok(directories)
}

fn nodes(list: &str) -> Result<BTreeSet<String>, String> {
    let mut nodes = BTreeSet::new();
    for node in patterns::split_list(list) {
        if !patterns::is_label(node) {
            return Err("value does not look like a valid node name".to_owned());
        }
        nodes.insert(node.to_owned());
    }
    Ok(nodes)
}

fn flag(value: Option<&str>) -> Result<bool, String> {
    match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(other) => Err(format!("type check ('boolean') failed - got '{other}'")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Storages, VolumeError};

    const FILE: &str = "\
dir: local
\tpath /var/lib/vz
\tcontent iso,vztmpl,backup,snippets

lvmthin: local-lvm
\tthinpool data
\tvgname pve
\tcontent rootdir,images

nfs: share
\texport /srv
\tserver 192.0.2.1
\tcontent snippets
\tcontent-dirs snippets=hooks/vm,iso=a
\tnodes pve1,pve2

dir: other
\tpath /srv/other
\tdisable
";

    #[test]
    fn volumes_lead_to_files() {
        let (storages, warnings) = Storages::parse(FILE.as_bytes());
        assert_eq!(warnings, []);
        for (volume, path) in [
            ("local:snippets/hook.sh", "/var/lib/vz/snippets/hook.sh"),
            ("share:snippets/a b", "/mnt/pve/share/hooks/vm/a b"),
            ("other:snippets/...", "/srv/other/snippets/..."),
        ] {
            assert_eq!(
                storages.snippet_path(volume).as_deref(),
                Ok(Path::new(path))
            );
        }
    }

    #[test]
    fn what_leads_to_no_snippet_is_refused() {
        let (storages, _) = Storages::parse(FILE.as_bytes());
        for volume in [
            "local:iso/x.iso",
            "local:snippets/",
            "local:snippets/.",
            "local:snippets/..",
            "local:snippets/../x",
            "local:snippets/a/b",
            "local:x",
        ] {
            assert!(
                matches!(
                    storages.snippet_path(volume),
                    Err(VolumeError::NotASnippet(_))
                ),
                "{volume}"
            );
        }
        for volume in ["/srv/hook.sh", "local:", "local", "l:snippets/x"] {
            assert!(
                matches!(
                    storages.snippet_path(volume),
                    Err(VolumeError::NotAVolumeId(_))
                ),
                "{volume}"
            );
        }
        assert!(matches!(
            storages.snippet_path("nope:snippets/x"),
            Err(VolumeError::NoSuchStorage(name)) if name == "nope"
        ));
        assert!(matches!(
            storages.snippet_path("local-lvm:snippets/x"),
            Err(VolumeError::NoDirectory { kind, .. }) if kind == "lvmthin"
        ));
    }

    #[test]
    fn availability_and_content() {
        let (storages, _) = Storages::parse(FILE.as_bytes());
        let share = storages.get("share").unwrap();
        assert!(share.shared && share.holds_snippets());
        assert!(share.is_available_on("pve1") && !share.is_available_on("pve3"));
        let other = storages.get("other").unwrap();
        assert!(!other.is_available_on("pve1") && !other.holds_snippets());
        assert!(!storages.get("local-lvm").unwrap().holds_snippets());
        let names: Vec<&str> = storages.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["local", "local-lvm", "other", "share"]);
    }

    #[test]
    fn local_is_always_there() {
        for text in [
            "",
            "nfs: local\n\tcontent images\n",
            "dir: local\n\tpath /somewhere/else\n\tcontent iso\n",
        ] {
            let (storages, _) = Storages::parse(text.as_bytes());
            let local = storages.get("local").unwrap();
            assert_eq!(local.path.as_deref(), Some("/var/lib/vz"));
            assert!(local.holds_snippets(), "{text}");
        }
        let (storages, warnings) =
            Storages::parse(b"DIR: local\n\tcontent iso\n\tnodes pve9\n\tdisable 1\n");
        let local = storages.get("local").unwrap();
        assert_eq!(warnings, []);
        assert_eq!(local.path.as_deref(), Some("/var/lib/vz"));
        assert!(!local.holds_snippets() && local.nodes.is_none() && local.disable);
    }

    #[test]
    fn what_does_not_fit_is_named_by_line() {
        let text = b"dir: a1\n\tpath relative\n\ndir: b1\n\tpath /b\n\tpath /c\n\tcontent-dirs snippets=../..\n\
            \tdisable maybe\n\tnodes a_b\n\tunknown-key x\n\ndir: 1x\n\tpath /x\n\nstray line\n";
        let (storages, warnings) = Storages::parse(text);
        let lines: Vec<usize> = warnings.iter().map(|warning| warning.line).collect();
        assert_eq!(lines, [1, 2, 6, 7, 8, 9, 12, 15]);
        assert!(storages.get("a1").is_none());
        let b1 = storages.get("b1").unwrap();
        assert_eq!(b1.path.as_deref(), Some("/b"));
        assert!(b1.content_dirs.is_empty() && b1.nodes.is_none() && !b1.disable);
    }
}
