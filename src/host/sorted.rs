//! Finding one record in a large text file whose records are sorted by a key, without reading all of it.
//!
//! dpkg writes its status file sorted by package name, and `pci.ids` is sorted by vendor. Both have about a megabyte;
//! a bisection reads some ten blocks. A file that turns out not to be sorted is searched from its beginning, so that
//! order is a matter of speed only.

use std::io::{self, BufRead, Seek, SeekFrom};

/// Below this distance reading on is cheaper than another bisection.
const LINEAR: u64 = 16 * 1024;

/// Moves `reader` right behind the line whose key is `wanted`, and tells whether there is one.
///
/// `key` gives the key of a line that begins a record, and `None` for every other line.
pub(super) fn seek_record<R: BufRead + Seek>(
    reader: &mut R,
    length: u64,
    wanted: &[u8],
    key: impl Fn(&[u8]) -> Option<&[u8]>,
) -> io::Result<bool> {
    let mut line = Vec::new();
    let (mut low, mut high) = (0, length);
    while high - low > LINEAR {
        let middle = low + (high - low) / 2;
        // From one byte earlier, so that a line that begins at `middle` counts.
        let mut at = reader.seek(SeekFrom::Start(middle - 1))?;
        at += next_line(reader, &mut line)?;
        let found = loop {
            let size = next_line(reader, &mut line)?;
            if size == 0 || at >= high {
                break None;
            }
            if let Some(key) = key(&line) {
                break Some(key.cmp(wanted));
            }
            at += size;
        };
        match found {
            Some(std::cmp::Ordering::Equal) => return Ok(true),
            Some(std::cmp::Ordering::Less) => low = at,
            Some(std::cmp::Ordering::Greater) | None => high = middle,
        }
    }
    Ok(scan(reader, low..high, wanted, &key)? || scan(reader, 0..length, wanted, &key)?)
}

fn scan<R: BufRead + Seek>(
    reader: &mut R,
    range: std::ops::Range<u64>,
    wanted: &[u8],
    key: &impl Fn(&[u8]) -> Option<&[u8]>,
) -> io::Result<bool> {
    let mut line = Vec::new();
    let mut at = reader.seek(SeekFrom::Start(range.start))?;
    while at < range.end {
        let size = next_line(reader, &mut line)?;
        if size == 0 {
            break;
        }
        if key(&line) == Some(wanted) {
            return Ok(true);
        }
        at += size;
    }
    Ok(false)
}

/// Reads one line without its line feed, and tells how many bytes it took.
pub(super) fn next_line<R: BufRead>(reader: &mut R, line: &mut Vec<u8>) -> io::Result<u64> {
    line.clear();
    let size = reader.read_until(b'\n', line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Ok(size as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;
    use std::io::{BufReader, Cursor};

    fn key(line: &[u8]) -> Option<&[u8]> {
        line.strip_prefix(b"Key: ")
    }

    fn after(text: &str, wanted: &str) -> Option<String> {
        let mut reader = BufReader::with_capacity(512, Cursor::new(text.as_bytes()));
        seek_record(&mut reader, text.len() as u64, wanted.as_bytes(), key)
            .unwrap()
            .then(|| {
                let mut line = Vec::new();
                next_line(&mut reader, &mut line).unwrap();
                String::from_utf8(line).unwrap()
            })
    }

    fn file(keys: impl Iterator<Item = u32>) -> String {
        keys.fold(String::new(), |mut text, number| {
            // Records of very different length, one of them longer than several blocks.
            let filler = "x".repeat(if number == 500 {
                60_000
            } else {
                number as usize % 97
            });
            write!(text, "Key: {number:05}\nvalue {number}\n {filler}\n\n").unwrap();
            text
        })
    }

    #[test]
    fn finds_every_record_of_a_sorted_file_and_no_other() {
        let text = file((1..1000).map(|number| number * 2));
        for number in 1..2002 {
            let expected = (number % 2 == 0 && number < 2000).then(|| format!("value {number}"));
            assert_eq!(after(&text, &format!("{number:05}")), expected, "{number}");
        }
    }

    #[test]
    fn order_is_a_matter_of_speed_only() {
        let text = file((1..1000).rev());
        for number in [1, 2, 499, 500, 501, 998, 999] {
            let expected = Some(format!("value {number}"));
            assert_eq!(after(&text, &format!("{number:05}")), expected);
        }
        assert_eq!(after(&text, "01000"), None);
        assert_eq!(after("", "00001"), None);
        assert_eq!(after("no newline", "00001"), None);
    }

    #[test]
    fn reads_little_of_a_large_file() {
        struct Counting<'a>(Cursor<&'a [u8]>, &'a std::cell::Cell<usize>);
        impl io::Read for Counting<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let size = self.0.read(buffer)?;
                self.1.set(self.1.get() + size);
                Ok(size)
            }
        }
        impl Seek for Counting<'_> {
            fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
                self.0.seek(position)
            }
        }
        let text = file(1000..30_000);
        assert!(text.len() > 1_000_000);
        let count = std::cell::Cell::new(0);
        let inner = Counting(Cursor::new(text.as_bytes()), &count);
        let mut reader = BufReader::with_capacity(4096, inner);
        assert!(seek_record(&mut reader, text.len() as u64, b"21000", key).unwrap());
        assert!(count.get() < 80_000, "{} bytes", count.get());
    }
}
