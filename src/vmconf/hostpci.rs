//! The value of a `hostpciN` key.
//!
//! Reading follows the schema `pve-qm-hostpci` (qemu-server 9.2.6): what [`Hostpci::parse`] refuses, Proxmox drops with
//! a warning while it reads the file. Whether the devices exist, and whether the options suit each other, is for
//! [`crate::rules`] to say.
//!
//! The functions that make a new value from an old one work on its text, so that everything they do not mean to change
//! stays as its author wrote it, order and spelling included.

use super::patterns;
use super::property_string::{Check, Format, FormatError, Key, is_blank};

static HOSTPCI: Format = Format::new(&[
    Key::optional("host", Check::Pattern(patterns::is_host_list)).default_key(),
    Key::optional(
        "mapping",
        Check::Format(patterns::is_config_id, "invalid configuration ID"),
    ),
    Key::optional("rombar", Check::Boolean),
    Key::optional("romfile", Check::Pattern(patterns::is_rom_file)),
    Key::optional("pcie", Check::Boolean),
    Key::optional("x-vga", Check::Boolean),
    Key::optional("legacy-igd", Check::Boolean),
    Key::optional("mdev", Check::Pattern(patterns::is_mdev_type)),
    Key::optional("driver", Check::Enum(&["vfio", "keep"])),
    Key::optional("vendor-id", Check::Pattern(patterns::is_hex_id)),
    Key::optional("device-id", Check::Pattern(patterns::is_hex_id)),
    Key::optional("sub-vendor-id", Check::Pattern(patterns::is_hex_id)),
    Key::optional("sub-device-id", Check::Pattern(patterns::is_hex_id)),
]);

/// A `hostpciN` value that Proxmox's schema accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // The schema has four boolean options.
pub struct Hostpci {
    /// `host`: one address or prefix, or several joined by `;`, as written.
    pub host: Option<String>,
    /// `mapping`: name of a cluster resource mapping.
    pub mapping: Option<String>,
    /// `pcie`, default off.
    pub pcie: bool,
    /// `rombar`, default on.
    pub rombar: bool,
    /// `romfile`.
    pub romfile: Option<String>,
    /// `x-vga`, default off.
    pub x_vga: bool,
    /// `legacy-igd`, default off.
    pub legacy_igd: bool,
    /// `mdev`: type of the mediated device.
    pub mdev: Option<String>,
    /// `driver`: `vfio` or `keep`.
    pub driver: Option<String>,
    /// `vendor-id` override.
    pub vendor_id: Option<String>,
    /// `device-id` override.
    pub device_id: Option<String>,
    /// `sub-vendor-id` override.
    pub sub_vendor_id: Option<String>,
    /// `sub-device-id` override.
    pub sub_device_id: Option<String>,
}

impl Hostpci {
    /// Reads a value by Proxmox's schema.
    ///
    /// A value without any option is accepted, as the schema does; see also [`is_unset`].
    ///
    /// # Errors
    /// What the schema holds against the value; the text of the error is Proxmox's own.
    pub fn parse(value: &str) -> Result<Self, FormatError> {
        let properties = HOSTPCI.parse(value)?;
        let text = |key| properties.get(key).map(str::to_owned);
        let flag = |key, default| properties.boolean(key).unwrap_or(default);
        Ok(Self {
            host: text("host"),
            mapping: text("mapping"),
            pcie: flag("pcie", false),
            rombar: flag("rombar", true),
            romfile: text("romfile"),
            x_vga: flag("x-vga", false),
            legacy_igd: flag("legacy-igd", false),
            mdev: text("mdev"),
            driver: text("driver"),
            vendor_id: text("vendor-id"),
            device_id: text("device-id"),
            sub_vendor_id: text("sub-vendor-id"),
            sub_device_id: text("sub-device-id"),
        })
    }

    /// The addresses of `host`, as written.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.host.iter().flat_map(|list| list.split(';'))
    }
}

/// Whether the schema accepts a value.
pub(super) fn check(value: &str) -> Result<(), FormatError> {
    HOSTPCI.parse(value).map(drop)
}

/// Whether Proxmox takes a value for "not set" when it composes the command line: Perl's false values. Only the empty
/// one can get that far from a file, since the schema refuses `0`.
pub fn is_unset(value: &str) -> bool {
    value.is_empty() || value == "0"
}

/// The value with another `host`, every other option kept in text and order.
///
/// `None` where the value names no host (a mapping, or options only).
pub fn with_host(value: &str, host: &str) -> Option<String> {
    // Of `host=0,ADDRESS`, the one case with two, the later one counts.
    let (start, end) = parts(value)
        .filter(|(_, part)| !is_blank(part) && (!part.contains('=') || part.starts_with("host=")))
        .last()
        .map(|(start, part)| {
            let start_of_host = start + part.strip_prefix("host=").map_or(0, |_| "host=".len());
            (start_of_host, start + part.len())
        })?;
    Some(format!(
        "{}{host}{}",
        value.get(..start)?,
        value.get(end..)?
    ))
}

/// The value for a function that moves to an index of its own: `pcie=1` and `driver=keep` stay as they are the
/// entry's, the rest (ROM, display, IDs) belongs to the first function.
pub fn split_value(original: &Hostpci, host: &str) -> String {
    let mut value = host.to_owned();
    if original.pcie {
        value.push_str(",pcie=1");
    }
    if original.driver.as_deref() == Some("keep") {
        value.push_str(",driver=keep");
    }
    value
}

/// The comma-separated parts and where each starts.
fn parts(value: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut start = 0;
    value.split(',').map(move |part| {
        let at = start;
        start += part.len() + 1;
        (at, part)
    })
}

#[cfg(test)]
mod tests {
    use super::{Hostpci, split_value, with_host};

    #[test]
    fn reads_options_and_defaults() {
        let plain = Hostpci::parse("0b:00").unwrap();
        assert_eq!(plain.host.as_deref(), Some("0b:00"));
        assert!(!plain.pcie && plain.rombar && !plain.x_vga && !plain.legacy_igd);
        let full = Hostpci::parse(
            "x-vga=On,romfile=a=b.rom,rombar=no,host=0b:00.0;0b:00.1,pcie=TRUE,driver=keep,mdev=t,\
             vendor-id=0xabcd,device-id=0x1234,sub-vendor-id=0x0001,sub-device-id=0x0002,legacy-igd=0",
        )
        .unwrap();
        assert!(full.pcie && !full.rombar && full.x_vga && !full.legacy_igd);
        assert_eq!(full.romfile.as_deref(), Some("a=b.rom"));
        assert_eq!(full.hosts().collect::<Vec<_>>(), ["0b:00.0", "0b:00.1"]);
        assert_eq!(full.driver.as_deref(), Some("keep"));
        assert_eq!(full.mdev.as_deref(), Some("t"));
        assert_eq!(full.sub_device_id.as_deref(), Some("0x0002"));
    }

    #[test]
    fn another_host_leaves_the_rest_alone() {
        for (before, after) in [
            ("0b:00,pcie=1", Some("NEW,pcie=1")),
            (
                "pcie=YES,,host=0b:00, ,x-vga=1,",
                Some("pcie=YES,,host=NEW, ,x-vga=1,"),
            ),
            ("pcie=1,0b:00", Some("pcie=1,NEW")),
            ("host=0,0b:00", Some("host=0,NEW")),
            ("romfile=host=x,0b:00", Some("romfile=host=x,NEW")),
            ("0b:00.0;0c:00", Some("NEW")),
            ("mapping=gpu,pcie=1", None),
            (" ,pcie=1", None),
        ] {
            assert_eq!(with_host(before, "NEW").as_deref(), after, "{before}");
        }
    }

    #[test]
    fn a_moved_sibling_takes_only_what_is_the_entrys() {
        let original =
            Hostpci::parse("0b:00,x-vga=1,romfile=a.rom,pcie=on,driver=keep,device-id=0x1234")
                .unwrap();
        assert_eq!(
            split_value(&original, "0000:0b:00.1"),
            "0000:0b:00.1,pcie=1,driver=keep"
        );
        let plain = Hostpci::parse("0b:00,driver=vfio").unwrap();
        assert_eq!(split_value(&plain, "0b:00.1"), "0b:00.1");
    }
}
