//! What QEMU sends: reading ends, whatever it is; a tree of guest buses is followed to an end, and only the
//! configuration of functions on it is asked for.
//!
//! Input: which question comes first, a seed for memory, then the stream.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use pve_atomicops::qmp::{Client, QmpError};
use pve_atomicops::report::escape;
use pve_atomicops::verify::read_ports;

use super::escape::assert_harmless;
use super::input::Input;

const BASE: u64 = 0xe000_0000;
/// A window of 256 buses.
const WINDOW: u64 = 256 << 20;

/// The property.
pub fn holds(data: &[u8]) {
    let mut input = Input::new(data);
    let (first, seed) = (input.byte(), input.word());
    let Ok((ours, mut qemus)) = UnixStream::pair() else {
        panic!("a pair of sockets");
    };
    // More does not fit into the socket while nobody reads.
    let stream = input.rest().get(..100_000).unwrap_or(input.rest());
    let sent = qemus
        .write_all(stream)
        .and_then(|()| qemus.shutdown(Shutdown::Write));
    assert!(sent.is_ok(), "a socket that takes no data");
    // Too far away to be reached: what ends here ends by itself.
    let deadline = Instant::now() + Duration::from_secs(3600);
    match Client::over(ours, deadline) {
        Ok(mut client) => ask(&mut client, first, seed),
        Err(error) => complain(&error),
    }
}

fn ask(client: &mut Client, first: u8, seed: u32) {
    for question in first..first.saturating_add(6) {
        let answer = match question % 5 {
            0 => client.query_version().map(drop),
            1 => client.query_status().map(drop),
            2 => client.mcfg_base().map(drop),
            3 => client.query_pci().map(|tree| {
                let mut reads = 0;
                let walked = read_ports(&tree, BASE, |address, words: &mut [u32]| {
                    reads += 1;
                    assert!(reads < 10_000, "without end");
                    assert!((BASE..BASE + WINDOW).contains(&address), "{address:#x}");
                    assert!(
                        address % 4096 + 4 * words.len() as u64 <= 256,
                        "{address:#x}"
                    );
                    for (at, word) in words.iter_mut().enumerate() {
                        *word = made_up(seed, address + 4 * at as u64);
                    }
                    Ok::<bool, ()>(seed & 1 == 0 || address % 8192 < 4096)
                });
                if let Ok((ports, functions)) = walked {
                    assert!(ports.len() + functions.len() <= 65536);
                }
            }),
            _ => client.read_physical(BASE, &mut [0; 6]),
        };
        if let Err(error) = answer {
            complain(&error);
        }
    }
}

fn complain(error: &QmpError) {
    assert!(error.to_string().len() < 2000, "{error}");
    assert_harmless(&escape::text(&error.to_string()), "");
}

/// Words that look like a bridge's or a device's registers often enough.
fn made_up(seed: u32, address: u64) -> u32 {
    let offset = u32::try_from(address % 4096).unwrap_or(0);
    match (seed >> 1 & 3, offset) {
        (0, _) => seed.rotate_left(offset),
        (_, 0x00) => 0x000c_1b36,
        (_, 0x04) => 0x0010_0007,
        (_, 0x0c) => (seed >> 3 & 1) << 16,
        (_, 0x34) => 0x54,
        (_, 0x54) => 0x0042_0010 | (seed & 0xf0) << 16,
        (1, _) => seed,
        (_, _) => seed.wrapping_mul(offset | 1),
    }
}
