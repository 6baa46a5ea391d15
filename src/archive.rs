//! A host in one file: a `tar` archive, packed with `gzip` or not, read into memory.
//!
//! Archives come with bug reports, so nothing in one is trusted. [`Tree::unpack`] bounds the number of entries, their
//! sizes and the size of everything; it refuses names and links that lead out of the archive, entries below a link, and
//! everything that is no file, directory or symbolic link. Nothing is ever written: files are bytes in memory, and
//! `Tree::resolve` follows links among them as a kernel would below a `chroot`.
//!
//! Paths are absolute within the tree, without `.`, `..` or empty components: `/etc/hostname`; the top is `/`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use flate2::{Compression, GzBuilder};

/// Where a capture says what it is.
pub const MANIFEST: &str = "/manifest.json";
/// The version of captures that this program makes, and the newest that it reads.
pub const CAPTURE_VERSION: u32 = 1;
/// The most entries of an archive.
pub const MAX_ENTRIES: usize = 1 << 16;
/// The most bytes of one file.
pub const MAX_FILE: u64 = 64 << 20;
/// The most bytes of an unpacked archive, headers and padding included.
pub const MAX_TOTAL: u64 = 128 << 20;
/// The longest path and the longest target of a link, in bytes.
const MAX_PATH: usize = 4096;
/// The most links on one way, as in Linux.
const MAX_LINKS: u32 = 40;

/// Why an archive is refused.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It can't be read, or is damaged.
    #[error("cannot read the archive")]
    Read(#[from] io::Error),
    /// It unpacks to more than [`MAX_TOTAL`].
    #[error("the archive unpacks to more than {MAX_TOTAL} bytes")]
    TooLarge,
    /// More entries than [`MAX_ENTRIES`].
    #[error("the archive has more than {MAX_ENTRIES} entries")]
    TooManyEntries,
    /// A file longer than [`MAX_FILE`].
    #[error("'{}' in the archive is longer than {MAX_FILE} bytes", path.escape_debug())]
    FileTooLarge {
        /// Name of the entry.
        path: String,
    },
    /// A name that is no path below the top.
    #[error("the archive has an entry '{}', which does not lie below its top", path.escape_debug())]
    Name {
        /// Name of the entry.
        path: String,
    },
    /// A link out of the archive.
    #[error("'{}' in the archive is a link to '{}', out of the archive", path.escape_debug(), target.escape_debug())]
    LinkOut {
        /// Name of the entry.
        path: String,
        /// Where it leads.
        target: String,
    },
    /// An entry below something that is no directory.
    #[error("'{}' in the archive lies below a file or a link", path.escape_debug())]
    NotBelowDirectory {
        /// Name of the entry.
        path: String,
    },
    /// Two entries of one name.
    #[error("the archive has '{}' twice", path.escape_debug())]
    Twice {
        /// Name of the entry.
        path: String,
    },
    /// A capture of a newer program.
    #[error(
        "the archive is a capture of version {version}, newer than this program reads ({CAPTURE_VERSION})"
    )]
    Version {
        /// Its version.
        version: u64,
    },
    /// A device, FIFO, hard link or the like.
    #[error("'{}' in the archive is no file, directory or symbolic link", path.escape_debug())]
    Kind {
        /// Name of the entry.
        path: String,
    },
}

/// Links that lead in a circle, or too many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many symbolic links")]
pub struct TooManyLinks;

/// One thing of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A directory; what is in it follows from the paths.
    Directory,
    /// A regular file with its content.
    File(Vec<u8>),
    /// A symbolic link with its target, without empty components and those of one dot.
    Link(String),
}

/// Files, directories and links by path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
}

impl Default for Tree {
    /// Only the top.
    fn default() -> Self {
        Self {
            nodes: BTreeMap::from([("/".to_owned(), Node::Directory)]),
        }
    }
}

impl Tree {
    /// Reads an archive.
    pub fn unpack(reader: impl Read) -> Result<Self, ArchiveError> {
        let mut reader = io::BufReader::new(reader);
        let packed = io::BufRead::fill_buf(&mut reader)?.starts_with(&[0x1f, 0x8b]);
        if packed {
            Self::from_tar(MultiGzDecoder::new(reader))
        } else {
            Self::from_tar(reader)
        }
    }

    fn from_tar(reader: impl Read) -> Result<Self, ArchiveError> {
        // The names of GNU and pax headers, which the tar reader collects itself, count too.
        let mut limited = Limited {
            inner: reader,
            left: MAX_TOTAL,
            exceeded: false,
        };
        let read = Self::entries(&mut limited);
        if limited.exceeded {
            return Err(ArchiveError::TooLarge);
        }
        let (tree, stored) = read?;
        // A file that ends early must not read as a smaller host.
        if stored == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it holds nothing").into());
        }
        match tree.version() {
            Some(version) if version > u64::from(CAPTURE_VERSION) => {
                Err(ArchiveError::Version { version })
            }
            _ => Ok(tree),
        }
    }

    /// The version of the capture, if it is one: a tree that somebody packed has no manifest.
    fn version(&self) -> Option<u64> {
        let Ok(Some(Node::File(bytes))) = self.get(MANIFEST) else {
            return None;
        };
        serde_json::from_slice::<serde_json::Value>(bytes)
            .ok()?
            .get("capture")?
            .as_u64()
    }

    fn entries(reader: &mut impl Read) -> Result<(Self, usize), ArchiveError> {
        let mut tree = Self::default();
        let mut count = 0;
        let mut archive = tar::Archive::new(reader);
        for entry in archive.entries()? {
            let entry = entry?;
            count += 1;
            if count > MAX_ENTRIES {
                return Err(ArchiveError::TooManyEntries);
            }
            let kind = entry.header().entry_type();
            if kind.is_pax_global_extensions() {
                continue;
            }
            let raw = String::from_utf8(entry.path_bytes().into_owned());
            let raw = raw.map_err(|error| ArchiveError::Name {
                path: String::from_utf8_lossy(error.as_bytes()).into_owned(),
            })?;
            let path = within(&raw).ok_or_else(|| ArchiveError::Name { path: raw.clone() })?;
            let node = match kind {
                tar::EntryType::Directory => Node::Directory,
                tar::EntryType::Symlink => {
                    let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                    let target = String::from_utf8_lossy(&target).into_owned();
                    if !stays_within(&path, &target) {
                        return Err(ArchiveError::LinkOut { path, target });
                    }
                    Node::Link(target)
                }
                tar::EntryType::Regular | tar::EntryType::Continuous => {
                    let size = entry.size();
                    let mut bytes = Vec::new();
                    entry.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
                    if size > MAX_FILE || bytes.len() as u64 > MAX_FILE {
                        return Err(ArchiveError::FileTooLarge { path });
                    }
                    if bytes.len() as u64 != size {
                        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                    }
                    Node::File(bytes)
                }
                _ => return Err(ArchiveError::Kind { path }),
            };
            tree.insert(path, node)?;
        }
        Ok((tree, count))
    }

    /// Adds something, and the directories above it.
    pub fn insert(&mut self, path: String, node: Node) -> Result<(), ArchiveError> {
        let node = match node {
            Node::Link(target) => Node::Link(tidy(&target)),
            node => node,
        };
        let mut above = path.as_str();
        while let Some((parent, _)) = above
            .rsplit_once('/')
            .filter(|(parent, _)| !parent.is_empty())
        {
            match self.nodes.get(parent) {
                None => drop(self.nodes.insert(parent.to_owned(), Node::Directory)),
                // So are those above it.
                Some(Node::Directory) => break,
                Some(_) => return Err(ArchiveError::NotBelowDirectory { path }),
            }
            above = parent;
        }
        match self.nodes.get(&path) {
            Some(Node::Directory) if node == Node::Directory => Ok(()),
            Some(_) => Err(ArchiveError::Twice { path }),
            None => {
                self.nodes.insert(path, node);
                Ok(())
            }
        }
    }

    /// Adds a link, if it stays within the tree.
    pub fn insert_link(&mut self, path: String, target: String) -> Result<(), ArchiveError> {
        if !stays_within(&path, &target) {
            return Err(ArchiveError::LinkOut { path, target });
        }
        self.insert(path, Node::Link(target))
    }

    /// Everything, by path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.nodes.iter().map(|(path, node)| (path.as_str(), node))
    }

    /// What is at a path, with all links followed; `None` where there is nothing.
    pub fn get(&self, path: &str) -> Result<Option<&Node>, TooManyLinks> {
        let Some(path) = self.resolve(path, true)? else {
            return Ok(None);
        };
        Ok(self.nodes.get(&path))
    }

    /// The target of the link at a path; `None` where there is no link. Links on the way to it are followed.
    pub fn link(&self, path: &str) -> Result<Option<&str>, TooManyLinks> {
        let Some(path) = self.resolve(path, false)? else {
            return Ok(None);
        };
        Ok(match self.nodes.get(&path) {
            Some(Node::Link(target)) => Some(target),
            _ => None,
        })
    }

    /// Names in a directory, sorted; `None` where there is no directory.
    pub fn names(&self, path: &str) -> Result<Option<Vec<String>>, TooManyLinks> {
        let Some(path) = self.resolve(path, true)? else {
            return Ok(None);
        };
        if self.nodes.get(&path) != Some(&Node::Directory) {
            return Ok(None);
        }
        let prefix = if path == "/" { path } else { path + "/" };
        let below = self.nodes.range(prefix.clone()..);
        let below = below.map_while(|(path, _)| path.strip_prefix(&prefix));
        let names: BTreeSet<_> = below
            .filter_map(|rest| rest.split('/').next())
            .filter(|name| !name.is_empty())
            .collect();
        Ok(Some(names.into_iter().map(str::to_owned).collect()))
    }

    /// The path of what `path` leads to, a link at its end included if `last` says so. `None` where there is nothing.
    ///
    /// `..` at the top stays there, and an absolute target begins there.
    fn resolve(&self, path: &str, last: bool) -> Result<Option<String>, TooManyLinks> {
        let mut pending: Vec<String> = path.rsplit('/').map(str::to_owned).collect();
        let mut at = String::new();
        let mut links = 0;
        while let Some(component) = pending.pop() {
            match component.as_str() {
                "" | "." => continue,
                ".." => {
                    at.truncate(at.rfind('/').unwrap_or(0));
                    continue;
                }
                _ => {}
            }
            let here = format!("{at}/{component}");
            match self.nodes.get(&here) {
                None => return Ok(None),
                Some(Node::File(_)) if !pending.iter().all(String::is_empty) => return Ok(None),
                Some(Node::Link(target)) if last || !pending.iter().all(String::is_empty) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(TooManyLinks);
                    }
                    if target.starts_with('/') {
                        at.clear();
                    }
                    pending.extend(target.rsplit('/').map(str::to_owned));
                }
                Some(_) => at = here,
            }
        }
        Ok(Some(if at.is_empty() { "/".to_owned() } else { at }))
    }

    /// The archive: the same bytes for the same tree, whoever packs it whenever.
    pub fn pack(&self, writer: impl Write) -> io::Result<()> {
        // No name, no time, and "unknown" as the system.
        let packed = GzBuilder::new()
            .operating_system(255)
            .write(writer, Compression::best());
        let mut archive = tar::Builder::new(packed);
        for (path, node) in &self.nodes {
            let name = path.trim_start_matches('/');
            if name.is_empty() {
                continue;
            }
            let mut header = tar::Header::new_gnu();
            header.set_mtime(0);
            header.set_uid(0);
            header.set_gid(0);
            match node {
                Node::Directory => {
                    header.set_entry_type(tar::EntryType::Directory);
                    header.set_mode(0o755);
                    header.set_size(0);
                    archive.append_data(&mut header, format!("{name}/"), io::empty())?;
                }
                Node::File(bytes) => {
                    header.set_entry_type(tar::EntryType::Regular);
                    header.set_mode(0o644);
                    header.set_size(bytes.len() as u64);
                    archive.append_data(&mut header, name, bytes.as_slice())?;
                }
                Node::Link(target) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_size(0);
                    archive.append_link(&mut header, name, target)?;
                }
            }
        }
        archive.into_inner()?.finish()?.flush()
    }
}

/// A reader that ends in an error when more than `left` bytes come.
struct Limited<R> {
    inner: R,
    left: u64,
    exceeded: bool,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        let Some(left) = self.left.checked_sub(length as u64) else {
            self.exceeded = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        };
        self.left = left;
        Ok(length)
    }
}

/// The path for the name of an entry.
fn within(name: &str) -> Option<String> {
    if name.len() > MAX_PATH || name.starts_with('/') || name.contains('\0') {
        return None;
    }
    let mut path = String::new();
    for component in name.split('/') {
        match component {
            "" | "." => {}
            ".." => return None,
            component => {
                path.push('/');
                path.push_str(component);
            }
        }
    }
    Some(if path.is_empty() {
        "/".to_owned()
    } else {
        path
    })
}

/// A link's target without what means nothing in it (`.//x` is `./x`), as it is written into an archive.
fn tidy(target: &str) -> String {
    let tidy: PathBuf = Path::new(target).components().collect();
    tidy.to_str().unwrap_or(target).to_owned()
}

/// Whether a link's target, read by its words alone, lies below the top. Absolute targets begin there.
fn stays_within(path: &str, target: &str) -> bool {
    if target.is_empty() || target.len() > MAX_PATH || target.contains('\0') {
        return false;
    }
    let above = path.matches('/').count().saturating_sub(1);
    let mut depth = if target.starts_with('/') { 0 } else { above };
    for component in target.split('/') {
        match component {
            "" | "." => {}
            ".." if depth == 0 => return false,
            ".." => depth -= 1,
            _ => depth += 1,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read, Write};

    use super::{ArchiveError, MAX_FILE, Node, TooManyLinks, Tree};

    /// An archive with these entries, names and targets as given.
    fn tar(entries: &[(&str, tar::EntryType, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, kind, content) in entries {
            let link = matches!(kind, tar::EntryType::Symlink | tar::EntryType::Link);
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            header.set_size(if link { 0 } else { content.len() as u64 });
            // Past the checks of the writer.
            let old = header.as_old_mut();
            old.name[..name.len()].copy_from_slice(name.as_bytes());
            if link {
                old.linkname[..content.len()].copy_from_slice(content);
            }
            header.set_cksum();
            bytes.extend_from_slice(header.as_bytes());
            if !link {
                bytes.extend_from_slice(content);
                bytes.resize(bytes.len().next_multiple_of(512), 0);
            }
        }
        bytes.resize(bytes.len() + 1024, 0);
        bytes
    }

    fn refused(entries: &[(&str, tar::EntryType, &[u8])]) -> String {
        Tree::unpack(tar(entries).as_slice())
            .unwrap_err()
            .to_string()
    }

    const FILE: tar::EntryType = tar::EntryType::Regular;
    const LINK: tar::EntryType = tar::EntryType::Symlink;
    const DIRECTORY: tar::EntryType = tar::EntryType::Directory;

    fn sample() -> Tree {
        Tree::unpack(
            tar(&[
                ("./", DIRECTORY, b""),
                ("./sys/devices/pci0/0000:00:01.0/vendor", FILE, b"0x1002\n"),
                ("./sys/devices/pci0/0000:00:01.0/config", FILE, b""),
                (
                    "./sys/bus/pci/devices/0000:00:01.0",
                    LINK,
                    b"../../../devices/pci0/0000:00:01.0",
                ),
                ("./sys/bus/pci/devices/gone", LINK, b"../../../devices/none"),
                ("./etc/pve/", DIRECTORY, b""),
                ("./etc/pve/local", LINK, b"/etc/pve/nodes/pve1"),
                ("./etc/pve/nodes/pve1/", DIRECTORY, b""),
                ("./circle", LINK, b"circle"),
                ("./empty", DIRECTORY, b""),
            ])
            .as_slice(),
        )
        .unwrap()
    }

    #[test]
    fn links_are_followed_within() {
        let tree = sample();
        let vendor = Node::File(b"0x1002\n".to_vec());
        assert_eq!(
            tree.get("/sys/bus/pci/devices/0000:00:01.0/vendor"),
            Ok(Some(&vendor))
        );
        assert_eq!(
            tree.get("/sys/bus/pci/devices/0000:00:01.0"),
            Ok(Some(&Node::Directory))
        );
        assert_eq!(tree.get("/sys/bus/pci/devices/gone"), Ok(None));
        assert_eq!(
            tree.get("/sys/bus/pci/devices/0000:00:01.0/vendor/x"),
            Ok(None)
        );
        assert_eq!(tree.get("/../../sys/./bus/.."), Ok(Some(&Node::Directory)));
        assert_eq!(tree.get("/circle"), Err(TooManyLinks));
        assert_eq!(tree.get("/circle/x"), Err(TooManyLinks));
        assert_eq!(tree.link("/circle"), Ok(Some("circle")));
        assert_eq!(
            tree.link("/sys/bus/pci/devices/gone"),
            Ok(Some("../../../devices/none"))
        );
        assert_eq!(tree.link("/sys"), Ok(None));
        assert_eq!(
            tree.names("/"),
            Ok(Some(
                ["circle", "empty", "etc", "sys"]
                    .map(str::to_owned)
                    .to_vec()
            ))
        );
        assert_eq!(tree.names("/etc/pve/local"), Ok(Some(Vec::new())));
        assert_eq!(
            tree.names("/sys/bus/pci/devices/0000:00:01.0")
                .unwrap()
                .unwrap(),
            ["config", "vendor"]
        );
        assert_eq!(tree.names("/nothing"), Ok(None));
        assert_eq!(
            tree.names("/sys/devices/pci0/0000:00:01.0/vendor"),
            Ok(None)
        );
    }

    #[test]
    fn packing_is_deterministic_and_reads_back() {
        let tree = sample();
        let pack = || {
            let mut bytes = Vec::new();
            tree.pack(&mut bytes).unwrap();
            bytes
        };
        let first = pack();
        assert_eq!(first, pack());
        assert_eq!(Tree::unpack(first.as_slice()).unwrap(), tree);
        let mut newer = sample();
        newer
            .insert(
                "/manifest.json".to_owned(),
                Node::File(b"{\"capture\": 2}".to_vec()),
            )
            .unwrap();
        let mut bytes = Vec::new();
        newer.pack(&mut bytes).unwrap();
        assert!(matches!(
            Tree::unpack(bytes.as_slice()),
            Err(ArchiveError::Version { version: 2 })
        ));
        // The time in the gzip header.
        assert_eq!(first[4..8], [0; 4]);
        let long = format!(
            "/{}/name",
            "directory-of-a-long-name/".repeat(10).trim_end_matches('/')
        );
        let mut tree = Tree::default();
        tree.insert(long.clone(), Node::File(b"x".to_vec()))
            .unwrap();
        tree.insert("/link".to_owned(), Node::Link(long[1..].to_owned()))
            .unwrap();
        let mut bytes = Vec::new();
        tree.pack(&mut bytes).unwrap();
        assert_eq!(Tree::unpack(bytes.as_slice()).unwrap(), tree);
    }

    #[test]
    fn what_leads_out_is_refused() {
        for name in ["../etc/passwd", "a/../../b", "/etc/passwd", "a/.."] {
            assert!(
                refused(&[(name, FILE, b"x")]).contains("does not lie below its top"),
                "{name}"
            );
        }
        for (path, target) in [
            ("a", "../x"),
            ("a/b", "../../x"),
            ("a", "/../x"),
            ("a/b", "c/../../../x"),
            ("a", ""),
        ] {
            assert!(
                refused(&[(path, LINK, target.as_bytes())]).contains("out of the archive"),
                "{path} -> {target}"
            );
        }
        assert!(Tree::unpack(tar(&[("a/b", LINK, b"../x")]).as_slice()).is_ok());
        // Through a link, or through a file.
        for first in [("a", LINK, b"/etc".as_slice()), ("a", FILE, b"")] {
            assert!(refused(&[first, ("a/b", FILE, b"x")]).contains("lies below a file or a link"));
        }
        assert!(refused(&[("a", FILE, b""), ("./a", LINK, b"b")]).contains("twice"));
        assert!(refused(&[("a/b", FILE, b""), ("a", LINK, b"b")]).contains("twice"));
    }

    #[test]
    fn only_files_directories_and_links_are_taken() {
        for kind in [
            tar::EntryType::Link,
            tar::EntryType::Fifo,
            tar::EntryType::Char,
            tar::EntryType::Block,
        ] {
            assert!(refused(&[("a", kind, b"")]).contains("no file, directory or symbolic link"));
        }
    }

    #[test]
    fn damaged_archives_are_refused() {
        let bytes = tar(&[("a", FILE, &[b'x'; 2000])]);
        assert!(Tree::unpack(&bytes[..1024]).is_err());
        assert!(Tree::unpack(&b""[..]).is_err());
        assert!(Tree::unpack(&[0; 4096][..]).is_err());
        assert!(Tree::unpack(&b"hello, world"[..]).is_err());
        let mut packed = Vec::new();
        sample().pack(&mut packed).unwrap();
        assert!(Tree::unpack(&packed[..packed.len() / 2]).is_err());
        assert!(Tree::unpack(&[0x1f, 0x8b, 8, 0, 1, 2][..]).is_err());
    }

    /// A gzip file of a header and very many zeros.
    fn bomb(size: u64, unpacked: u64) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        header.set_path("a").unwrap();
        header.set_size(size);
        header.set_mode(0o644);
        header.set_cksum();
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(header.as_bytes()).unwrap();
        io::copy(&mut io::repeat(0).take(unpacked), &mut packed).unwrap();
        packed.finish().unwrap()
    }

    #[test]
    fn bombs_are_refused() {
        let size = MAX_FILE + 1024;
        let error = Tree::unpack(bomb(size, size).as_slice()).unwrap_err();
        assert!(
            matches!(error, ArchiveError::FileTooLarge { .. }),
            "{error}"
        );
        // A size that is a lie.
        let error = Tree::unpack(bomb(1 << 40, 4096).as_slice()).unwrap_err();
        assert!(
            matches!(
                error,
                ArchiveError::FileTooLarge { .. } | ArchiveError::Read(_)
            ),
            "{error}"
        );
        // A long name, as long as the archive may be.
        let mut header = tar::Header::new_gnu();
        header.set_path("././@LongLink").unwrap();
        header.set_entry_type(tar::EntryType::GNULongName);
        header.set_size(1 << 40);
        header.set_cksum();
        let endless = header.as_bytes().chain(io::repeat(b'a'));
        assert!(matches!(Tree::unpack(endless), Err(ArchiveError::TooLarge)));
        let many: Vec<_> = (0..=super::MAX_ENTRIES)
            .map(|number| number.to_string())
            .collect();
        let many: Vec<_> = many
            .iter()
            .map(|name| (name.as_str(), DIRECTORY, b"".as_slice()))
            .collect();
        assert!(matches!(
            Tree::unpack(tar(&many).as_slice()),
            Err(ArchiveError::TooManyEntries)
        ));
    }

    proptest::proptest! {
        /// Whatever the bytes are, nothing panics.
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..2048)) {
            let _ = Tree::unpack(bytes.as_slice());
        }
    }
}
