//! PCI configuration space as far as the program reads it: the header and the chain of capabilities.
//!
//! The bytes come from hardware that may be broken, asleep or gone, or from a file that somebody sent. So the walk
//! trusts nothing: pointers are masked and bounded, a place is visited once, and what could not be read has an answer
//! of its own. It pulls the bytes it needs, since each four of them are one read over the bus: twenty of the header, four
//! for each capability on the way, eight more for the registers. All of that lies in the first 256 bytes; extended
//! configuration space is never touched, and no four bytes are read twice.
//!
//! Terms: PCI Local Bus Specification 3.0, sections 6.1 and 6.7; PCI Express Base Specification, section 7.5.3; the
//! limits are those of Linux' `__pci_find_next_cap_ttl`.

use super::express::{DevCap2, DevCtl2, Express, PortType};
use super::topology::Registers;

/// Bytes of the header, which everybody may read.
const HEADER: u16 = 0x40;
/// What is always needed of the header, but for the capability pointer: IDs, command and status, class, header type.
const HEADER_START: u16 = 0x10;
/// End of the space that conventional capabilities live in.
const END: u16 = 0x100;
const STATUS_CAPABILITY_LIST: u32 = 1 << 4;
const REVISION_CLASS: u16 = 0x08;
const HEADER_TYPE: u16 = 0x0e;
const CAPABILITY_POINTER: u16 = 0x34;
const CARDBUS_CAPABILITY_POINTER: u16 = 0x14;
const ID_EXPRESS: u8 = 0x10;
const EXPRESS_DEVCAP2: u16 = 0x24;
const EXPRESS_DEVCTL2: u16 = 0x28;

/// What a read of one function's configuration space gave.
///
/// A read that came out short is never a register that is 0.
#[derive(Debug, PartialEq, Eq)]
pub enum ConfigSpace<E> {
    /// The chain was followed as far as needed: the PCI Express capability, if the function has one.
    Full(Option<Express>),
    /// Only the 64 bytes of the header can be read, and the chain leads beyond: the reader is not root.
    HeaderOnly,
    /// It can't be told what the function has.
    Unreadable(Fault<E>),
}

/// Why a configuration space can't be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault<E> {
    /// The read itself failed.
    #[error("reading configuration space at {offset:#04x} failed")]
    Read {
        /// Offset in bytes.
        offset: u16,
        /// What the reader said.
        source: E,
    },
    /// The read ended early, inside the header or in the middle of the capabilities.
    #[error("configuration space ends after {length} bytes")]
    Short {
        /// Number of bytes that could be read.
        length: u16,
    },
    /// All bits are ones, which is what the bus returns when nobody answers.
    #[error("the device does not answer (configuration space reads all ones at {offset:#04x})")]
    NoAnswer {
        /// Offset in bytes.
        offset: u16,
    },
    /// The header has a layout that is not in the specification.
    #[error("unknown header type {layout:#04x}")]
    HeaderType {
        /// Bits 6:0 of the header type register.
        layout: u8,
    },
    /// A capability pointer leads into the header.
    #[error("broken capability list: {at:#04x} points to {pointer:#04x}, inside the header")]
    PointerIntoHeader {
        /// Where the pointer stands, in bytes.
        at: u16,
        /// Where it points to.
        pointer: u16,
    },
    /// The chain of capabilities runs in a circle.
    #[error("broken capability list: {at:#04x} points back to {pointer:#04x}")]
    Loop {
        /// Where the pointer stands, in bytes.
        at: u16,
        /// The capability that was visited before.
        pointer: u16,
    },
    /// The PCI Express capability starts so late that its registers do not fit.
    #[error("broken capability list: the PCI Express capability at {at:#04x} does not fit")]
    DoesNotFit {
        /// Where the capability starts, in bytes.
        at: u16,
    },
}

impl<E: std::error::Error + 'static> From<ConfigSpace<E>> for Registers {
    fn from(space: ConfigSpace<E>) -> Self {
        match space {
            ConfigSpace::Full(Some(express)) => Self::Express(express),
            ConfigSpace::Full(None) => Self::NotExpress,
            ConfigSpace::HeaderOnly => Self::Unreadable(
                "only the header of configuration space can be read; run as root".to_owned(),
            ),
            ConfigSpace::Unreadable(fault) => Self::Unreadable(match &fault {
                // Registers are plain values, so the chain of errors becomes text here.
                Fault::Read { source, .. } => format!("{fault}: {source}"),
                _ => fault.to_string(),
            }),
        }
    }
}

/// What the header says of a function's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Class code, 24 bit.
    pub class: u32,
}

/// Follows one function's chain of capabilities to the PCI Express capability.
///
/// `read` fills the slice from a byte offset and returns how many bytes it got, fewer only at the end of what it may
/// read, like `pread`. It is asked for at most 256 bytes altogether, and for none at or above offset 256.
pub fn walk<E>(read: impl FnMut(u16, &mut [u8]) -> Result<usize, E>) -> ConfigSpace<E> {
    walk_and_identify(read).0
}

/// The same, and what the function is, from bytes that the walk needs anyway.
///
/// There is no identity where the header could not be read or its vendor ID is all ones, as it is on healthy virtual
/// functions too.
pub fn walk_and_identify<E>(
    read: impl FnMut(u16, &mut [u8]) -> Result<usize, E>,
) -> (ConfigSpace<E>, Option<Identity>) {
    let mut window = Window {
        read,
        bytes: [0; END as usize],
        known: 0,
    };
    let space = match window.express_of_whole_header() {
        Ok(express) => ConfigSpace::Full(express),
        Err(Fault::Short { length: HEADER }) => ConfigSpace::HeaderOnly,
        Err(fault) => ConfigSpace::Unreadable(fault),
    };
    (space, window.identity())
}

/// The first 256 bytes, read as needed.
struct Window<R> {
    read: R,
    bytes: [u8; END as usize],
    /// One bit for each four bytes.
    known: u64,
}

impl<R, E> Window<R>
where
    R: FnMut(u16, &mut [u8]) -> Result<usize, E>,
{
    /// [`Self::express`], and never an answer from a header that is cut off.
    fn express_of_whole_header(&mut self) -> Result<Option<Express>, Fault<E>> {
        let express = self.express();
        // What lies behind the header was readable, so the header is.
        if self.known >> (HEADER / 4) == 0
            && !matches!(express, Err(Fault::Short { .. } | Fault::Read { .. }))
        {
            self.dword(HEADER - 4)?;
        }
        express
    }

    fn identity(&self) -> Option<Identity> {
        let id = self.known_dword(0)?;
        let [a, b, c, d] = id.to_le_bytes();
        let (vendor, device) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        (vendor != 0xffff).then_some(Identity {
            vendor,
            device,
            class: self.known_dword(REVISION_CLASS)? >> 8,
        })
    }

    fn express(&mut self) -> Result<Option<Express>, Fault<E>> {
        self.fill(0, HEADER_START)?;
        let id = self.dword(0)?;
        let command_status = self.dword(4)?;
        // A virtual function's vendor ID reads all ones on healthy hardware (SR-IOV, section 3.4.1.1); a status
        // register of all ones can't be.
        if id & 0xffff == 0xffff && command_status == u32::MAX {
            return Err(Fault::NoAnswer { offset: 0 });
        }
        if command_status >> 16 & STATUS_CAPABILITY_LIST == 0 {
            return Ok(None);
        }
        let mut at = match self.byte(HEADER_TYPE)? & 0x7f {
            0 | 1 => CAPABILITY_POINTER,
            2 => CARDBUS_CAPABILITY_POINTER,
            layout => return Err(Fault::HeaderType { layout }),
        };
        let mut visited = 0u64;
        // Not a counter: 48 places are 4-byte aligned and outside the header, and none is visited twice.
        loop {
            let pointer = u16::from(self.byte(at)? & !3);
            if pointer == 0 {
                return Ok(None);
            }
            if pointer < HEADER {
                return Err(Fault::PointerIntoHeader { at, pointer });
            }
            let bit = 1u64 << (pointer / 4);
            if visited & bit != 0 {
                return Err(Fault::Loop { at, pointer });
            }
            visited |= bit;
            match self.byte(pointer)? {
                ID_EXPRESS => return self.registers(pointer).map(Some),
                0xff => return Err(Fault::NoAnswer { offset: pointer }),
                _ => at = pointer + 1,
            }
        }
    }

    fn registers(&mut self, at: u16) -> Result<Express, Fault<E>> {
        let flags = self.dword(at)? >> 16;
        if flags == 0xffff {
            return Err(Fault::NoAnswer { offset: at + 2 });
        }
        let mut express = Express {
            version: (flags & 0xf) as u8,
            port_type: PortType::from_bits((flags >> 4 & 0xf) as u8),
            devcap2: None,
            devctl2: None,
        };
        if express.version >= 2 {
            if at + EXPRESS_DEVCTL2 + 4 > END {
                return Err(Fault::DoesNotFit { at });
            }
            // They are neighbours: one system call.
            self.fill(at + EXPRESS_DEVCAP2, 8)?;
            let devcap2 = self.dword(at + EXPRESS_DEVCAP2)?;
            if devcap2 == u32::MAX {
                return Err(Fault::NoAnswer {
                    offset: at + EXPRESS_DEVCAP2,
                });
            }
            let devctl2 = self.dword(at + EXPRESS_DEVCTL2)? & 0xffff;
            express.devcap2 = Some(DevCap2(devcap2));
            express.devctl2 = Some(DevCtl2(devctl2 as u16));
        }
        Ok(express)
    }

    fn byte(&mut self, offset: u16) -> Result<u8, Fault<E>> {
        let dword = self.dword(offset & !3)?;
        Ok(dword.to_le_bytes()[usize::from(offset & 3)])
    }

    /// The four bytes at an aligned offset below 256.
    fn dword(&mut self, offset: u16) -> Result<u32, Fault<E>> {
        if !self.is_known(offset) {
            self.fill(offset, 4)?;
        }
        let start = usize::from(offset);
        let mut dword = [0; 4];
        dword.copy_from_slice(&self.bytes[start..start + 4]);
        Ok(u32::from_le_bytes(dword))
    }

    /// The four bytes at an aligned offset, if they were read.
    fn known_dword(&self, offset: u16) -> Option<u32> {
        let start = usize::from(offset);
        let dword = self.bytes.get(start..start + 4)?.try_into().ok()?;
        self.is_known(offset).then(|| u32::from_le_bytes(dword))
    }

    /// Whether the four bytes at an aligned offset below 256 were read.
    const fn is_known(&self, offset: u16) -> bool {
        self.known & 1 << (offset / 4) != 0
    }

    /// Reads from an aligned offset what is not known yet.
    fn fill(&mut self, offset: u16, length: u16) -> Result<(), Fault<E>> {
        let words = || (offset..offset + length).step_by(4);
        if words().any(|at| self.is_known(at)) {
            // The chain has been through here: only the rest is read.
            for at in words() {
                if !self.is_known(at) {
                    self.fill(at, 4)?;
                }
            }
            return Ok(());
        }
        let got = self.pull(offset, length)?;
        if got == length {
            return Ok(());
        }
        let beyond_header = self.known >> (HEADER / 4) != 0;
        if got > 0 || beyond_header {
            return Err(Fault::Short {
                length: offset + got,
            });
        }
        // A reader that got nothing tells where its space ends only after everything before was read.
        for before in (0..offset.min(HEADER)).step_by(4) {
            if !self.is_known(before) {
                let got = self.pull(before, 4)?;
                if got < 4 {
                    return Err(Fault::Short {
                        length: before + got,
                    });
                }
            }
        }
        Err(Fault::Short {
            length: offset.min(HEADER),
        })
    }

    /// One read; says how many bytes it got.
    fn pull(&mut self, offset: u16, length: u16) -> Result<u16, Fault<E>> {
        let range = usize::from(offset)..usize::from(offset + length);
        let got = (self.read)(offset, &mut self.bytes[range])
            .map_err(|source| Fault::Read { offset, source })?;
        let got = u16::try_from(got).unwrap_or(0).min(length);
        for dword in offset / 4..(offset + got) / 4 {
            self.known |= 1 << dword;
        }
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io;

    use proptest::prelude::*;

    use super::{ConfigSpace, Fault, Identity, walk, walk_and_identify};
    use crate::pci::Registers;
    use crate::pci::express::{DevCap2, DevCtl2, Express, PortType};

    /// Offset and new bytes.
    type Change = (usize, &'static [u8]);

    /// A header of type 0 with a capability list at 0x40.
    fn header() -> Vec<u8> {
        let mut bytes = vec![0; 256];
        bytes[..8].copy_from_slice(&[0x02, 0x10, 0x4c, 0x74, 0x07, 0x04, 0x10, 0x08]);
        bytes[0x34] = 0x40;
        bytes
    }

    fn with(mut bytes: Vec<u8>, places: &[(usize, &[u8])]) -> Vec<u8> {
        for (offset, new) in places {
            bytes[*offset..offset + new.len()].copy_from_slice(new);
        }
        bytes
    }

    /// Power management at 0x40, MSI at 0x50, then an Express v2 root port at 0x58.
    fn root_port() -> Vec<u8> {
        with(
            header(),
            &[
                (0x40, &[0x01, 0x50, 0x03, 0x00]),
                (0x50, &[0x05, 0x58, 0x00, 0x00]),
                (0x58, &[0x10, 0x00, 0x42, 0x01]),
                (0x58 + 0x24, &[0x80, 0x01, 0x70, 0x00]),
                (0x58 + 0x28, &[0x40, 0x00, 0xff, 0xff]),
            ],
        )
    }

    fn read(bytes: &[u8]) -> ConfigSpace<io::Error> {
        walk(|offset, into| {
            assert!(usize::from(offset) + into.len() <= 256);
            let rest = bytes.get(usize::from(offset)..).unwrap_or_default();
            let got = rest.len().min(into.len());
            into[..got].copy_from_slice(&rest[..got]);
            Ok(got)
        })
    }

    fn fault(bytes: &[u8]) -> String {
        match read(bytes) {
            ConfigSpace::Unreadable(fault) => fault.to_string(),
            other => panic!("{other:?}"),
        }
    }

    fn express(bytes: &[u8]) -> Option<Express> {
        match read(bytes) {
            ConfigSpace::Full(express) => express,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn reads_the_registers_of_a_version_2_capability() {
        let expected = Express {
            version: 2,
            port_type: PortType::RootPort,
            devcap2: Some(DevCap2(0x0070_0180)),
            devctl2: Some(DevCtl2(0x0040)),
        };
        assert_eq!(express(&root_port()), Some(expected));
        // Pointers carry two reserved bits.
        let bytes = with(root_port(), &[(0x34, &[0x43]), (0x41, &[0x52])]);
        assert_eq!(express(&bytes), Some(expected));
        // Bit 7 of the header type says multifunction, and a bridge has its pointer at the same place.
        let bytes = with(root_port(), &[(0x0e, &[0x81])]);
        assert_eq!(express(&bytes), Some(expected));
        // A CardBus bridge has it elsewhere.
        let bytes = with(
            root_port(),
            &[(0x0e, &[0x02]), (0x14, &[0x40]), (0x34, &[0])],
        );
        assert_eq!(express(&bytes), Some(expected));
        // The vendor ID of a virtual function reads all ones.
        let bytes = with(root_port(), &[(0, &[0xff; 4])]);
        assert_eq!(express(&bytes), Some(expected));
    }

    #[test]
    fn version_1_has_no_second_registers() {
        let expected = Express {
            version: 1,
            port_type: PortType::Endpoint,
            devcap2: None,
            devctl2: None,
        };
        let bytes = with(root_port(), &[(0x5a, &[0x01])]);
        assert_eq!(express(&bytes), Some(expected));
        // It fits where a version 2 capability does not.
        let bytes = with(
            header(),
            &[(0x34, &[0xec]), (0xec, &[0x10, 0x00, 0x01, 0x00])],
        );
        assert_eq!(express(&bytes), Some(expected));
    }

    #[test]
    fn no_capability_list_or_none_of_that_id_is_not_express() {
        assert_eq!(express(&with(root_port(), &[(6, &[0x00])])), None);
        assert_eq!(express(&with(root_port(), &[(0x34, &[0x00])])), None);
        assert_eq!(express(&with(root_port(), &[(0x51, &[0x00])])), None);
        // Without a list, the header alone is enough, for everybody.
        assert_eq!(express(&with(root_port(), &[(6, &[0x00])])[..64]), None);
        assert_eq!(
            Registers::from(read(&with(root_port(), &[(6, &[0x00])]))),
            Registers::NotExpress
        );
    }

    #[test]
    fn a_device_that_does_not_answer_is_unreadable() {
        assert_eq!(
            fault(&[0xff; 256]),
            "the device does not answer (configuration space reads all ones at 0x00)"
        );
        // It went away while it was read.
        for (offset, length) in [(0x50, 2), (0x5a, 2), (0x7c, 4)] {
            let bytes = with(root_port(), &[(offset, &[0xff; 4][..length])]);
            assert_eq!(
                fault(&bytes),
                format!(
                    "the device does not answer (configuration space reads all ones at {offset:#04x})"
                )
            );
        }
    }

    #[test]
    fn broken_lists_are_reported() {
        let cases: [(&[Change], &str); 5] = [
            (
                &[(0x34, &[0x3c])],
                "broken capability list: 0x34 points to 0x3c, inside the header",
            ),
            (
                &[(0x41, &[0x04])],
                "broken capability list: 0x41 points to 0x04, inside the header",
            ),
            (
                &[(0x51, &[0x40])],
                "broken capability list: 0x51 points back to 0x40",
            ),
            (
                &[(0x51, &[0xd8]), (0xd8, &[0x10, 0x00, 0x02, 0x00])],
                "broken capability list: the PCI Express capability at 0xd8 does not fit",
            ),
            (&[(0x0e, &[0x83])], "unknown header type 0x03"),
        ];
        for (places, expected) in cases {
            assert_eq!(fault(&with(root_port(), places)), expected);
        }
        // The last place where it does fit.
        let last: &[Change] = &[(0x51, &[0xd4]), (0xd4, &[0x10, 0x00, 0x02, 0x00])];
        assert!(express(&with(root_port(), last)).is_some());
    }

    #[test]
    fn a_short_read_is_never_a_zero() {
        assert!(matches!(read(&root_port()[..64]), ConfigSpace::HeaderOnly));
        assert_eq!(
            Registers::from(read(&root_port()[..64])),
            Registers::Unreadable(
                "only the header of configuration space can be read; run as root".into()
            )
        );
        assert_eq!(fault(&[]), "configuration space ends after 0 bytes");
        assert_eq!(
            fault(&root_port()[..63]),
            "configuration space ends after 63 bytes"
        );
        assert_eq!(
            fault(&root_port()[..0x7e]),
            "configuration space ends after 126 bytes"
        );
    }

    #[test]
    fn a_failed_read_keeps_its_cause() {
        let failing = |from: u16| {
            walk(move |offset, into| {
                if offset >= from {
                    return Err(io::Error::from_raw_os_error(5));
                }
                into.copy_from_slice(&root_port()[usize::from(offset)..][..into.len()]);
                Ok(into.len())
            })
        };
        for from in [0, 0x34, 0x40, 0x7c] {
            let ConfigSpace::Unreadable(Fault::Read { offset, source }) = failing(from) else {
                panic!("{from:#x} was read");
            };
            assert_eq!((offset, source.raw_os_error()), (from, Some(5)));
        }
        let Registers::Unreadable(text) = failing(0x50).into() else {
            panic!("was read");
        };
        assert!(
            text.starts_with("reading configuration space at 0x50 failed: "),
            "{text}"
        );
    }

    #[test]
    fn reads_no_more_than_it_needs() {
        let count = Cell::new(0);
        let bytes = root_port();
        let space = walk(|offset, into| {
            count.set(count.get() + into.len());
            into.copy_from_slice(&bytes[usize::from(offset)..][..into.len()]);
            Ok::<_, io::Error>(into.len())
        });
        assert!(matches!(space, ConfigSpace::Full(Some(_))));
        assert_eq!(count.get(), 16 + 4 + 3 * 4 + 8);
    }

    #[test]
    fn the_header_says_what_a_function_is() {
        let identify = |bytes: &[u8]| {
            walk_and_identify(|offset, into| {
                let rest = bytes.get(usize::from(offset)..).unwrap_or_default();
                let got = rest.len().min(into.len());
                into[..got].copy_from_slice(&rest[..got]);
                Ok::<_, io::Error>(got)
            })
            .1
        };
        let bytes = with(root_port(), &[(8, &[0xc1, 0x00, 0x04, 0x06])]);
        let expected = Identity {
            vendor: 0x1002,
            device: 0x744c,
            class: 0x06_0400,
        };
        assert_eq!(identify(&bytes), Some(expected));
        // Everybody may read it.
        assert_eq!(identify(&bytes[..64]), Some(expected));
        assert_eq!(identify(&bytes[..8]), None);
        // A virtual function, or nobody.
        assert_eq!(identify(&with(bytes, &[(0, &[0xff; 4])])), None);
    }

    proptest! {
        /// Whatever the bytes are, the walk ends, stays inside 256 bytes and reads none twice.
        #[test]
        fn any_bytes_are_walked_within_bounds(
            mut bytes in prop::collection::vec(any::<u8>(), 0..300),
            list in any::<bool>(),
        ) {
            if let Some(status) = bytes.get_mut(6).filter(|_| list) {
                *status |= 0x10;
            }
            let mut seen = [false; 256];
            let space = walk(|offset, into| {
                let start = usize::from(offset);
                let got = bytes.len().saturating_sub(start).min(into.len());
                for (at, byte) in into.iter_mut().enumerate().take(got) {
                    assert!(!std::mem::replace(&mut seen[start + at], true));
                    *byte = bytes[start + at];
                }
                Ok::<_, io::Error>(got)
            });
            if bytes.len() < 64 {
                let short = matches!(space, ConfigSpace::Unreadable(Fault::Short { .. }));
                prop_assert!(short);
            }
        }
    }
}
