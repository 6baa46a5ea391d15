//! A capture: nothing in an archive leads out of it, whatever it holds; what was read is packed and read again as the
//! same tree; and the memory that it takes is bounded.
//!
//! Input: how the rest is made into an archive, then its bytes. Checksums of `tar` headers are set right in all but one
//! way, since no fuzzer finds them.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use pve_atomicops::archive::{MAX_FILE, MAX_TOTAL, Node, Tree};

use super::input::Input;

const BLOCK: usize = 512;
/// Where the checksum stands in a header, and how long it is.
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// The property.
pub fn holds(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.byte();
    let mut bytes = input.rest().to_vec();
    if kind % 4 != 0 {
        mend(&mut bytes);
    }
    if kind % 4 == 2 {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        bytes = match packed.write_all(&bytes).and_then(|()| packed.finish()) {
            Ok(packed) => packed,
            Err(error) => panic!("{error}"),
        };
    }
    let Ok(tree) = Tree::unpack(bytes.as_slice()) else {
        return;
    };
    inspect(&tree);
    let mut packed = Vec::new();
    assert!(tree.pack(&mut packed).is_ok());
    match Tree::unpack(packed.as_slice()) {
        Ok(again) => assert_eq!(again, tree, "packed and unpacked"),
        // An archive of nothing is refused.
        Err(error) => assert_eq!(tree, Tree::default(), "{error}"),
    }
}

/// Sets the checksums of the headers right, one after the other as their sizes say.
fn mend(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(header) = bytes.get_mut(at..at + BLOCK) {
        header[CHECKSUM].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let size = std::str::from_utf8(&header[124..136]).unwrap_or_default();
        let size = usize::from_str_radix(size.trim_matches(['\0', ' ']), 8).unwrap_or(0);
        at += BLOCK + size.min(bytes.len()).next_multiple_of(BLOCK);
    }
}

fn inspect(tree: &Tree) {
    let mut total = 0;
    for (path, node) in tree.iter() {
        assert!(path.starts_with('/') && !path.contains('\0'), "{path:?}");
        let components = path.split('/').skip(1);
        assert!(
            path == "/"
                || components
                    .clone()
                    .all(|part| !matches!(part, "" | "." | "..")),
            "{path:?}"
        );
        // Directories all the way down.
        for (end, _) in path.match_indices('/').filter(|(end, _)| *end > 0) {
            assert!(
                matches!(tree.get(&path[..end]), Ok(Some(Node::Directory))),
                "{path:?}"
            );
        }
        match node {
            Node::Directory => assert!(matches!(tree.names(path), Ok(Some(_))), "{path:?}"),
            Node::File(bytes) => {
                assert!(bytes.len() as u64 <= MAX_FILE);
                total += bytes.len() as u64;
                assert_eq!(tree.get(path), Ok(Some(node)), "{path:?}");
            }
            Node::Link(target) => {
                assert!(!target.is_empty() && !target.contains('\0'), "{path:?}");
                assert_eq!(tree.link(path), Ok(Some(target.as_str())), "{path:?}");
                // Wherever it leads, it is an end or too many links, and never a link.
                assert!(
                    !matches!(tree.get(path), Ok(Some(Node::Link(_)))),
                    "{path:?}"
                );
                let _ = tree.names(&format!("{path}/../.."));
            }
        }
    }
    assert!(total <= MAX_TOTAL);
    assert_eq!(
        tree.get("/../../.."),
        Ok(Some(&Node::Directory)),
        "above the top"
    );
}
