//! QEMU's `key=value,key=value` lists and the values that place a PCI device.

use serde_json::Value;

use super::{GuestAddress, PortModel};
use crate::pci::Sbdf;

/// The options of one device, in order. Of several with the same key, the last counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(Vec<(String, String)>);

impl Options {
    /// Reads a list as `opts_do_parse` (QEMU's `util/qemu-option.c`) does: `,,` in a value stands for one comma, the
    /// first part may leave out its key, which is then `first`, and a later part without `=` is a switch (`x` is
    /// `x=on`, `nox` is `x=off`).
    pub fn parse(text: &str, first: &str) -> Self {
        let mut options = Vec::new();
        let mut rest = text;
        let mut implied = Some(first);
        while !rest.is_empty() {
            let end = rest.find(['=', ',']).unwrap_or(rest.len());
            let (key, tail) = rest.split_at(end);
            if let Some(tail) = tail.strip_prefix('=') {
                let (value, tail) = value(tail);
                options.push((key.to_owned(), value));
                rest = tail;
            } else if let Some(key) = implied {
                let (value, tail) = value(rest);
                options.push((key.to_owned(), value));
                rest = tail;
            } else {
                let switch = match key.strip_prefix("no") {
                    Some(key) => (key.to_owned(), "off".to_owned()),
                    None => (key.to_owned(), "on".to_owned()),
                };
                options.push(switch);
                rest = tail.strip_prefix(',').unwrap_or_default();
            }
            implied = None;
        }
        Self(options)
    }

    /// Reads a JSON object; `None` where it is none. Nested values are left out.
    pub fn from_json(text: &str) -> Option<Self> {
        let Value::Object(object) = serde_json::from_str(text).ok()? else {
            return None;
        };
        let options = object.into_iter().filter_map(|(key, value)| {
            let value = match value {
                Value::String(text) => text,
                Value::Bool(flag) => if flag { "on" } else { "off" }.to_owned(),
                // QEMU takes slot and function as one number here.
                Value::Number(number) if key == "addr" => {
                    let devfn = u8::try_from(number.as_u64()?).ok()?;
                    format!("{:x}.{}", devfn >> 3, devfn & 7)
                }
                Value::Number(number) => number.to_string(),
                Value::Null | Value::Array(_) | Value::Object(_) => return None,
            };
            Some((key, value))
        });
        Some(Self(options.collect()))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0
            .iter()
            .rfind(|(known, _)| known == key)
            .map(|(_, value)| value.as_str())
    }

    /// Adds a value, which replaces earlier ones.
    pub fn set(&mut self, key: &str, value: &str) {
        self.0.push((key.to_owned(), value.to_owned()));
    }
}

/// A value up to its end, and what follows the comma after it.
fn value(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let Some((head, tail)) = rest.split_once(',') else {
            value += rest;
            return (value, "");
        };
        value += head;
        match tail.strip_prefix(',') {
            Some(tail) => {
                value.push(',');
                rest = tail;
            }
            None => return (value, tail),
        }
    }
}

/// QEMU's booleans (`qapi_bool_parse`).
pub fn parse_boolean(text: &str) -> Option<bool> {
    match text {
        "on" | "yes" | "true" | "y" => Some(true),
        "off" | "no" | "false" | "n" => Some(false),
        _ => None,
    }
}

/// `addr=` (`set_pci_devfn`): slot and optional function, both hexadecimal, perhaps with `0x`.
pub fn parse_guest_address(text: &str) -> Option<GuestAddress> {
    let (slot, function) = match text.split_once('.') {
        Some((slot, function)) => (hexadecimal(slot)?, hexadecimal(function)?),
        None => (hexadecimal(text)?, 0),
    };
    if slot > 31 || function > 7 {
        return None;
    }
    Some(GuestAddress {
        slot: u8::try_from(slot).ok()?,
        function: u8::try_from(function).ok()?,
    })
}

/// `host=` (`set_pci_host_devaddr`): the domain may be left out, and so may leading zeros; the function is needed, and
/// decimal.
pub fn parse_host_address(text: &str) -> Option<Sbdf> {
    let (rest, function) = text.rsplit_once('.')?;
    let numbers: Vec<u32> = rest.split(':').map(hexadecimal).collect::<Option<_>>()?;
    let (segment, bus, device) = match numbers.as_slice() {
        [bus, device] => (0, *bus, *device),
        [segment, bus, device] => (*segment, *bus, *device),
        _ => return None,
    };
    let function = digits(function).then(|| function.parse().ok())??;
    Sbdf::new(
        segment,
        bus.try_into().ok()?,
        device.try_into().ok()?,
        function,
    )
}

fn hexadecimal(text: &str) -> Option<u32> {
    let text = text.trim_start();
    let bare = text
        .strip_prefix("0x")
        .or_else(|| text.strip_prefix("0X"))
        .unwrap_or(text);
    // `from_str_radix` alone would take a sign.
    bare.bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then(|| u32::from_str_radix(bare, 16).ok())?
}

fn digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a `-global` changes where devices of interest sit: `DRIVER.PROPERTY=VALUE` or the same as a list.
pub(super) fn global_places_devices(text: &str) -> bool {
    let short = text
        .split_once('=')
        .and_then(|(name, _)| name.split_once('.'));
    let list = Options::parse(text, "driver");
    let (driver, property) = match short {
        Some(pair) => pair,
        None => match (list.get("driver"), list.get("property")) {
            (Some(driver), Some(property)) => (driver, property),
            _ => return false,
        },
    };
    let known = matches!(driver, "vfio-pci" | "vfio-pci-nohotplug" | "pci-device")
        || PortModel::from_name(driver).is_some();
    known && matches!(property, "addr" | "multifunction")
}

#[cfg(test)]
mod tests {
    use super::{Options, parse_boolean, parse_guest_address, parse_host_address};
    use crate::vmconf::args::GuestAddress;

    #[test]
    fn lists() {
        let options = Options::parse("vfio-pci,id=a,,b,,,host=x,noshpc,foo,id=c=d", "driver");
        assert_eq!(options.get("driver"), Some("vfio-pci"));
        assert_eq!(options.get("id"), Some("c=d"));
        assert_eq!(options.0[1].1, "a,b,");
        assert_eq!(options.get("host"), Some("x"));
        assert_eq!(options.get("shpc"), Some("off"));
        assert_eq!(options.get("foo"), Some("on"));
        assert_eq!(
            Options::parse("id=x,driver=y", "driver").get("driver"),
            Some("y")
        );
        assert_eq!(Options::parse("a,,b", "driver").get("driver"), Some("a,b"));
        assert_eq!(Options::parse("", "driver"), Options::default());
        assert_eq!(Options::parse("x,", "driver").0.len(), 1);
    }

    #[test]
    fn guest_addresses() {
        for (text, expected) in [
            ("1d.2", Some((0x1d, 2))),
            ("0x0", Some((0, 0))),
            ("0.1", Some((0, 1))),
            ("0x1f.0x7", Some((31, 7))),
            ("10", Some((16, 0))),
            ("20", None),
            ("0.8", None),
            ("", None),
            ("0.", None),
            ("-1", None),
            ("0.0.0", None),
        ] {
            let address = parse_guest_address(text);
            let expected = expected.map(|(slot, function)| GuestAddress { slot, function });
            assert_eq!(address, expected, "{text}");
        }
    }

    #[test]
    fn host_addresses() {
        for (text, expected) in [
            ("0b:00.0", Some("0000:0b:00.0")),
            ("b:0.1", Some("0000:0b:00.1")),
            ("0000:0b:00.0", Some("0000:0b:00.0")),
            ("10000:e1:1f.7", Some("10000:e1:1f.7")),
            ("0B:1F.0", Some("0000:0b:1f.0")),
            ("0b:00", None),
            ("0b:00.8", None),
            ("0b:20.0", None),
            ("100:00.0", None),
            ("1:2:3:4.0", None),
            ("0b:00.a", None),
            ("", None),
            (":.", None),
        ] {
            let address = parse_host_address(text).map(|address| address.to_string());
            assert_eq!(address.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn booleans() {
        assert_eq!(parse_boolean("yes"), Some(true));
        assert_eq!(parse_boolean("off"), Some(false));
        assert_eq!(parse_boolean("1"), None);
    }
}
