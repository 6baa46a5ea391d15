//! PCI addresses: segment (domain), bus, device, function.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The full address of one PCI function.
///
/// The segment has 32 bits: Linux numbers some host bridges above 0xffff. The order is segment, bus, device, function,
/// which is also the order of the names in `/sys/bus/pci/devices` as long as all segments have four digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sbdf {
    segment: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// A text that is not a full PCI address such as `0000:0b:00.0`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a PCI address such as 0000:0b:00.0")]
pub struct AddressError(String);

impl Sbdf {
    /// An address from its numbers; `None` where device is above 31 or function above 7.
    pub const fn new(segment: u32, bus: u8, device: u8, function: u8) -> Option<Self> {
        if device < 32 && function < 8 {
            Some(Self {
                segment,
                bus,
                device,
                function,
            })
        } else {
            None
        }
    }

    /// PCI segment, which Linux calls domain.
    pub const fn segment(self) -> u32 {
        self.segment
    }

    /// Bus number.
    pub const fn bus(self) -> u8 {
        self.bus
    }

    /// Device number, 0 to 31.
    pub const fn device(self) -> u8 {
        self.device
    }

    /// Function number, 0 to 7.
    pub const fn function(self) -> u8 {
        self.function
    }

    /// Segment, bus and device as `0000:0b:00`.
    pub fn slot(self) -> String {
        format!("{:04x}:{:02x}:{:02x}", self.segment, self.bus, self.device)
    }

    /// All addresses there can be.
    pub const ALL: RangeInclusive<Self> = Self {
        segment: 0,
        bus: 0,
        device: 0,
        function: 0,
    }..=Self {
        segment: u32::MAX,
        bus: u8::MAX,
        device: 31,
        function: 7,
    };

    /// All addresses in this function's slot.
    pub const fn slot_range(self) -> RangeInclusive<Self> {
        Self {
            function: 0,
            ..self
        }..=Self {
            function: 7,
            ..self
        }
    }

    /// Whether both functions sit in the same slot.
    pub fn same_slot(self, other: Self) -> bool {
        (self.segment, self.bus, self.device) == (other.segment, other.bus, other.device)
    }
}

impl fmt::Display for Sbdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            segment,
            bus,
            device,
            function,
        } = *self;
        let Ok(segment) = u16::try_from(segment) else {
            return f.pad(&format!("{segment:x}:{bus:02x}:{device:02x}.{function:x}"));
        };
        // In one piece: addresses are most of what is formatted, and a string that takes one grows once.
        let [high, low] = segment.to_be_bytes().map(hex);
        let ([bus0, bus1], [device0, device1], [_, function]) =
            (hex(bus), hex(device), hex(function));
        let text = [
            high[0], high[1], low[0], low[1], b':', bus0, bus1, b':', device0, device1, b'.',
            function,
        ];
        f.pad(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

/// The two digits of a byte, in ASCII.
const fn hex(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [DIGITS[(byte >> 4) as usize], DIGITS[(byte & 15) as usize]]
}

impl FromStr for Sbdf {
    type Err = AddressError;

    /// Reads a name as `sysfs` spells it: lower-case hexadecimal, at least four digits of segment, no leading zeros
    /// beyond those four.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| AddressError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Sbdf> {
    let (segment, rest) = text.as_bytes().split_last_chunk()?;
    let &[b':', bus1, bus0, b':', device1, device0, b'.', function] = rest else {
        return None;
    };
    let padded = segment.len() == 4 || segment.len() > 4 && segment[0] != b'0';
    if !padded || segment.len() > 8 {
        return None;
    }
    let segment = segment.iter().try_fold(0, |number, byte| {
        Some(number << 4 | u32::from(digit(*byte)?))
    })?;
    let byte = |high, low| Some(digit(high)? << 4 | digit(low)?);
    Sbdf::new(
        segment,
        byte(bus1, bus0)?,
        byte(device1, device0)?,
        digit(function)?,
    )
}

/// A lower-case hexadecimal digit's value.
const fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::Sbdf;

    #[test]
    fn writes_what_sysfs_writes() {
        for segment in [0, 0x12, 0x9abc, 0xffff, 0x1_0000, u32::MAX] {
            for byte in 0..=u8::MAX {
                let (device, function) = (byte >> 3, byte & 7);
                let addr = Sbdf::new(segment, byte, device, function).unwrap();
                let text = format!("{segment:04x}:{byte:02x}:{device:02x}.{function:x}");
                assert_eq!(addr.to_string(), text);
                assert_eq!(format!("{addr:>14}|"), format!("{text:>14}|"));
            }
        }
    }

    #[test]
    fn reads_only_what_sysfs_writes() {
        for good in [
            "0000:0b:00.0",
            "0001:ff:1f.7",
            "10000:00:00.0",
            "ffffffff:00:00.1",
        ] {
            assert_eq!(good.parse::<Sbdf>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "0b:00.0",
            "00000:0b:00.0",
            "0000:0B:00.0",
            "0000:0b:20.0",
            "0000:0b:00.8",
            "0000:0b:00",
            "+000:0b:00.0",
            "0000:0b:00.0 ",
            "000:0b:00.0",
            "100000000:0b:00.0",
            "0000:0b:0g.0",
            "é00:0b:00.0",
        ] {
            assert!(bad.parse::<Sbdf>().is_err(), "{bad}");
        }
    }
}
