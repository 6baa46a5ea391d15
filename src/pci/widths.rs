//! Operand widths of `AtomicOp` requests.

use std::fmt;

/// One operand width. 128 bit exists for compare-and-swap only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Width {
    /// 32-bit `FetchAdd`, Swap and CAS.
    W32,
    /// 64-bit `FetchAdd`, Swap and CAS.
    W64,
    /// 128-bit CAS.
    W128,
}

impl Width {
    /// All widths, narrow to wide.
    pub const ALL: [Self; 3] = [Self::W32, Self::W64, Self::W128];

    /// The width in bits.
    pub const fn bits(self) -> u16 {
        match self {
            Self::W32 => 32,
            Self::W64 => 64,
            Self::W128 => 128,
        }
    }

    const fn mask(self) -> u8 {
        match self {
            Self::W32 => 1,
            Self::W64 => 2,
            Self::W128 => 4,
        }
    }
}

/// A set of operand widths, such as those a port completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Widths(u8);

impl Widths {
    /// No width at all.
    pub const NONE: Self = Self(0);
    /// 32 and 64 bit: what GPU drivers ask for.
    pub const W32_W64: Self = Self(3);
    /// 32, 64 and 128 bit.
    pub const ALL: Self = Self(7);

    /// Whether the set holds `width`.
    pub const fn contains(self, width: Width) -> bool {
        self.0 & width.mask() != 0
    }

    /// Whether the set holds every width of `other`.
    pub const fn contains_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The set with `width` added.
    #[must_use]
    pub const fn with(self, width: Width) -> Self {
        Self(self.0 | width.mask())
    }

    /// Widths in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Widths in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The widths, narrow to wide.
    pub fn iter(self) -> impl Iterator<Item = Width> {
        Width::ALL
            .into_iter()
            .filter(move |width| self.contains(*width))
    }
}

impl FromIterator<Width> for Widths {
    fn from_iter<I: IntoIterator<Item = Width>>(iter: I) -> Self {
        iter.into_iter().fold(Self::NONE, Self::with)
    }
}

impl fmt::Display for Widths {
    /// As `lspci` prints it: `32bit+ 64bit+ 128bitCAS-`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = |width| if self.contains(width) { '+' } else { '-' };
        write!(
            f,
            "32bit{} 64bit{} 128bitCAS{}",
            sign(Width::W32),
            sign(Width::W64),
            sign(Width::W128)
        )
    }
}

impl serde::Serialize for Widths {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(Width::bits))
    }
}
