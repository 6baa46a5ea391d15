//! The text of `lspci` in place of `sysfs`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::Host;
use crate::pci::Sbdf;
use crate::pci::lspci::{self, Listing, LspciError};

/// Why a text of `lspci` can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ListingError {
    /// It can't be read.
    #[error("cannot read it")]
    Read(#[from] io::Error),
    /// It is not what it should be.
    #[error(transparent)]
    Text(#[from] LspciError),
}

/// Reads the text of `lspci` from a file, packed with `gzip` or not, or from standard input where `path` is `-`.
///
/// The file may lie anywhere. Bytes that are not UTF-8 can only be in names, and are replaced there.
pub fn read_listing(path: &Path) -> Result<Listing, ListingError> {
    let bytes = if path == Path::new("-") {
        bounded(io::stdin().lock())?
    } else {
        bounded(File::open(path)?)?
    };
    let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
        bounded(MultiGzDecoder::new(bytes.as_slice()))?
    } else {
        bytes
    };
    Ok(lspci::parse(&String::from_utf8_lossy(&bytes))?)
}

/// Everything, but not much more than is accepted: the parser refuses the rest.
fn bounded(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader
        .take(lspci::MAX_BYTES as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Host {
    /// The same host with this listing in place of its PCI functions.
    #[must_use]
    pub fn with_listing(mut self, listing: Listing) -> Self {
        self.listing = Some(listing);
        self
    }

    /// What the listing calls a function.
    pub fn listed_name(&self, addr: Sbdf) -> Option<&str> {
        self.listing.as_ref()?.names.get(&addr).map(String::as_str)
    }
}
