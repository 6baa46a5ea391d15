//! Configuration space: the walk ends, reads at most 256 bytes, none twice and none beyond; what was not read is never
//! an answer; and bridges in any arrangement are followed to an end.
//!
//! Input: how the reader fails, then 256 bytes; the rest are functions and the bridges above them.

use pve_atomicops::pci::config_space::{ConfigSpace, walk};
use pve_atomicops::pci::express::{DevCap2, DevCtl2, Express, PortType};
use pve_atomicops::pci::roles::trace;
use pve_atomicops::pci::{Function, Registers, Sbdf, Topology};
use pve_atomicops::rules::linux::Kernel;
use pve_atomicops::rules::vfio::host_answer;

use super::input::Input;

/// The header is read at once, then each capability costs one read, and the last one two more.
const MAX_READS: usize = 1 + 48 + 3;

#[derive(Debug, PartialEq, Eq)]
struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("broken")
    }
}

impl std::error::Error for Broken {}

/// The property.
pub fn holds(data: &[u8]) {
    let mut input = Input::new(data);
    let length = match input.byte() {
        0..128 => 256,
        128 => 64,
        other => usize::from(other - 128) * 2,
    };
    let fails_at = match input.byte() {
        0..224 => usize::MAX,
        other => usize::from(other - 224),
    };
    let mut space = [0; 256];
    for byte in &mut space {
        *byte = input.byte();
    }
    let found = read(&space, length, fails_at);
    if fails_at == usize::MAX && length == 256 {
        let shorter = read(&space, 64, usize::MAX);
        if let ConfigSpace::Full(shorter) = shorter {
            assert_eq!(
                ConfigSpace::Full(shorter),
                found,
                "fewer bytes, another answer"
            );
        }
    }
    topology(&mut input, found.into());
}

fn read(space: &[u8; 256], length: usize, fails_at: usize) -> ConfigSpace<Broken> {
    let (mut reads, mut seen) = (0, [false; 256]);
    let found = walk(|offset, buffer: &mut [u8]| {
        reads += 1;
        assert!(reads <= MAX_READS, "{reads} reads");
        if reads > fails_at {
            return Err(Broken);
        }
        let offset = usize::from(offset);
        assert!(offset + buffer.len() <= 256, "beyond the end");
        for seen in &mut seen[offset..offset + buffer.len()] {
            assert!(
                !std::mem::replace(seen, true),
                "a byte of {offset:#x} twice"
            );
        }
        let there = space.get(offset..length.min(offset + buffer.len()).max(offset));
        let there = there.unwrap_or_default();
        buffer[..there.len()].copy_from_slice(there);
        Ok(there.len())
    });
    if let ConfigSpace::Full(Some(express)) = &found {
        // Some place holds exactly these registers, and was read.
        let there = (0x40..=0xfc).step_by(4).any(|at| {
            space[at] == 0x10
                && seen[at]
                && express.version == space[at + 2] & 15
                && express.devcap2.is_none_or(|devcap2| {
                    space.get(at + 0x24..at + 0x28) == Some(&devcap2.0.to_le_bytes())
                })
        });
        assert!(there, "{express:?} is nowhere");
    }
    found
}

fn topology(input: &mut Input<'_>, first: Registers) {
    let address = |byte: u8| Sbdf::new(0, byte >> 4, byte >> 1 & 7, byte & 1);
    let mut topology = Topology::default();
    let mut registers = Some(first);
    let mut addresses = Vec::new();
    while !input.rest().is_empty() && addresses.len() < 12 {
        let Some(addr) = address(input.byte()) else {
            continue;
        };
        let kind = input.byte();
        let parent = address(input.byte()).filter(|_| kind & 0x80 == 0);
        let physfn = address(input.byte()).filter(|_| kind & 0x60 == 0x60);
        let express = Express {
            version: 2,
            port_type: PortType::from_bits(kind & 15),
            devcap2: Some(DevCap2(u32::from(input.byte()) << 2)),
            devctl2: Some(DevCtl2(u16::from(input.byte()))),
        };
        topology.insert(Function {
            addr,
            vendor: 0x1002,
            device: 0x744c,
            subsystem: None,
            class: 0x03_0000,
            parent,
            physfn,
            iommu_group: None,
            driver: None,
            reset_methods: None,
            registers: registers.take().unwrap_or(Registers::Express(express)),
        });
        addresses.push(addr);
    }
    let kernels = ["6.1.0", "6.12.94", "6.17.2-1-pve", "7.2.13"];
    let kernel = Kernel::parse(kernels[addresses.len() % 4]);
    for addr in addresses {
        assert!(topology.path_to(addr).len() <= 64);
        let traced = trace(&topology, addr);
        if let Ok(bridges) = &traced.bridges {
            assert!(bridges.len() <= 64, "{} bridges", bridges.len());
        }
        let answer = host_answer(&topology, addr, &kernel);
        assert!(
            !answer.widths.is_empty() || answer.denial.is_some(),
            "{answer:?}"
        );
    }
}
