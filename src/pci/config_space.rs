//! PCI configuration space as far as the program reads it: the header and the capability chain.

/// What a read of one function's configuration space gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigSpace {
    /// The header and every capability that was asked for can be told.
    Full(Vec<u8>),
    /// Only the 64 bytes of the header: the reader is not root.
    HeaderOnly(Vec<u8>),
    /// Nothing could be read, with the reason.
    Unreadable(String),
}
