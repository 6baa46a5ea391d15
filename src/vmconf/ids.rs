//! Small checked types: VM IDs, `hostpci` indices, hook phases.

use std::fmt;
use std::str::FromStr;

/// A VM's ID: 100 to 999999999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct Vmid(u32);

/// A text that is not a VM ID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a VM ID: a number from 100 to 999999999, without leading zeros")]
pub struct VmidError(String);

impl Vmid {
    /// The ID with this number, if it is one.
    pub const fn new(number: u32) -> Option<Self> {
        if number >= 100 && number <= 999_999_999 {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl FromStr for Vmid {
    type Err = VmidError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || VmidError(text.to_owned());
        if text.starts_with('0') || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(error());
        }
        text.parse().ok().and_then(Self::new).ok_or_else(error)
    }
}

impl fmt::Display for Vmid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The N of `hostpciN`: 0 to 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostpciIndex(u8);

impl HostpciIndex {
    /// The index with this number, if there is one.
    pub const fn new(number: u8) -> Option<Self> {
        if number < 16 {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// All indices, ascending.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..16).map(Self)
    }

    /// The index of a key such as `hostpci3`. `hostpci03` is no such key: Proxmox does not know it.
    pub fn from_key(key: &str) -> Option<Self> {
        let digits = key.strip_prefix("hostpci")?;
        if digits.len() > 1 && digits.starts_with('0')
            || !digits.bytes().all(|byte| byte.is_ascii_digit())
        {
            return None;
        }
        digits.parse().ok().and_then(Self::new)
    }
}

impl fmt::Display for HostpciIndex {
    /// The key: `hostpci3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hostpci{}", self.0)
    }
}

impl serde::Serialize for HostpciIndex {
    /// As the key.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for HostpciIndex {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let key = String::deserialize(deserializer)?;
        Self::from_key(&key).ok_or_else(|| {
            serde::de::Error::custom(format_args!("'{key}' is not one of hostpci0 to hostpci15"))
        })
    }
}

/// A phase in which Proxmox calls a hookscript.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before the VM starts; a nonzero exit stops the start.
    PreStart,
    /// After it has started.
    PostStart,
    /// Before it is shut down.
    PreStop,
    /// After it has stopped.
    PostStop,
}

/// A text that is not a phase.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a hook phase: pre-start, post-start, pre-stop or post-stop")]
pub struct PhaseError(String);

impl FromStr for Phase {
    type Err = PhaseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "pre-start" => Self::PreStart,
            "post-start" => Self::PostStart,
            "pre-stop" => Self::PreStop,
            "post-stop" => Self::PostStop,
            other => return Err(PhaseError(other.to_owned())),
        })
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PreStart => "pre-start",
            Self::PostStart => "post-start",
            Self::PreStop => "pre-stop",
            Self::PostStop => "post-stop",
        })
    }
}
