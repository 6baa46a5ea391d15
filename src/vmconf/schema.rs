//! The keys of a VM configuration, and which values Proxmox keeps.
//!
//! The table has the keys of qemu-server 9.2's `$confdesc` and says how `PVE::QemuServer::check_type` treats each. That
//! function checks less than the schema says: limits, patterns and enumerations of plain keys do not count when a file
//! is read, only types and named formats do.

use std::borrow::Cow;

use super::formats;
use super::hostpci;
use super::patterns as is;
use super::property_string::{Format, parse_boolean};

/// How a key's value is checked.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Boolean,
    Integer,
    Number,
    /// No format: anything goes, and one pair of quotes around the whole goes away.
    Text,
    /// A named format, and what the value is not when it does not fit.
    Named(fn(&str) -> bool, &'static str),
    /// A property string.
    Properties(&'static Format),
    Hostpci,
    Cpu,
}

/// How the key is checked; `None` if Proxmox does not know the key. Spelling counts: `hostpci00` is unknown.
pub(super) fn kind(key: &str) -> Option<Kind> {
    let (base, index) = split_index(key);
    if let Some(index) = index
        && let Some((count, kind)) = indexed(base)
    {
        return (index < count).then_some(kind);
    }
    Some(match key {
        "onboot" | "autostart" | "reboot" | "numa" | "keephugepages" | "acpi" | "kvm" | "tdf"
        | "localtime" | "freeze" | "template" | "tablet" | "protection" | "ciupgrade"
        | "allow-ksm" => Kind::Boolean,
        "cpuunits" | "balloon" | "shares" | "smp" | "sockets" | "cores" | "vcpus"
        | "migrate_speed" | "snaptime" => Kind::Integer,
        "cpulimit" | "migrate_downtime" => Kind::Number,
        "lock"
        | "keyboard"
        | "scsihw"
        | "description"
        | "ostype"
        | "hugepages"
        | "startdate"
        | "args"
        | "runningcpu"
        | "running-nets-host-mtu"
        | "arch"
        | "bios"
        | "vmgenid"
        | "citype"
        | "ciuser"
        | "cipassword"
        | "searchdomain" => Kind::Text,
        "hotplug" => Kind::Named(is::is_hotplug_list, "invalid hotplug feature"),
        "memory" => Kind::Properties(&formats::MEMORY),
        "amd-sev" => Kind::Properties(&formats::SEV),
        "intel-tdx" => Kind::Properties(&formats::TDX),
        "name" => Kind::Named(is::is_dns_name, "value does not look like a valid DNS name"),
        "boot" => Kind::Properties(&formats::BOOT),
        "bootdisk" => Kind::Named(is_drive, "invalid boot disk"),
        "agent" => Kind::Properties(&formats::AGENT),
        "vga" => Kind::Properties(&formats::VGA),
        "watchdog" => Kind::Properties(&formats::WATCHDOG),
        "startup" => Kind::Named(is::is_startup_order, "unable to parse startup options"),
        "cdrom" => Kind::Properties(&formats::IDE),
        "cpu" => Kind::Cpu,
        "parent" => Kind::Named(is::is_config_id, "invalid configuration ID"),
        "vmstate" | "hookscript" => Kind::Named(is::is_volume_id, "unable to parse volume ID"),
        "vmstatestorage" => {
            Kind::Named(is::is_storage_id, "storage ID contains illegal characters")
        }
        "machine" | "runningmachine" => Kind::Properties(&formats::MACHINE),
        "smbios1" => Kind::Properties(&formats::SMBIOS),
        "ivshmem" => Kind::Properties(&formats::IVSHMEM),
        "audio0" => Kind::Properties(&formats::AUDIO),
        "spice_enhancements" => Kind::Properties(&formats::SPICE),
        "tags" => Kind::Named(is_tag_list, "invalid characters in tag"),
        "rng0" => Kind::Properties(&formats::RNG),
        "meta" => Kind::Properties(&formats::META),
        "affinity" => Kind::Named(is::is_cpu_set, "unable to parse cpuset option"),
        "cicustom" => Kind::Properties(&formats::CICUSTOM),
        "nameserver" => Kind::Named(is_address_list, "value does not look like a valid address"),
        "sshkeys" => Kind::Named(is::is_url_encoded, "invalid urlencoded string"),
        _ => return None,
    })
}

/// The keys that come with an index, and how many of each there are.
fn indexed(base: &str) -> Option<(u16, Kind)> {
    Some(match base {
        "hostpci" => (16, Kind::Hostpci),
        "net" => (32, Kind::Properties(&formats::NET)),
        "scsi" => (31, Kind::Properties(&formats::SCSI)),
        "virtio" => (16, Kind::Properties(&formats::VIRTIO)),
        "sata" => (6, Kind::Properties(&formats::SATA)),
        "ide" => (4, Kind::Properties(&formats::IDE)),
        "usb" => (14, Kind::Properties(&formats::USB)),
        "ipconfig" => (32, Kind::Properties(&formats::IPCONFIG)),
        "unused" => (256, Kind::Properties(&formats::UNUSED)),
        "numa" => (8, Kind::Properties(&formats::NUMA)),
        "virtiofs" => (10, Kind::Properties(&formats::VIRTIOFS)),
        "serial" => (4, Kind::Text),
        "parallel" => (3, Kind::Text),
        "efidisk" => (1, Kind::Properties(&formats::EFIDISK)),
        "tpmstate" => (1, Kind::Properties(&formats::TPMSTATE)),
        _ => return None,
    })
}

/// The key without its trailing number, and the number where it is spelled as Proxmox does.
fn split_index(key: &str) -> (&str, Option<u16>) {
    let base = key.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = key.get(base.len()..).unwrap_or_default();
    if digits.is_empty() || (digits.len() > 1 && digits.starts_with('0')) {
        return (base, None);
    }
    (base, digits.parse().ok())
}

/// Whether a drive can have this name.
fn is_drive(name: &str) -> bool {
    has_index(
        name,
        &["ide", "scsi", "virtio", "sata", "efidisk", "tpmstate"],
    )
}

/// Whether the guest can be told to boot from this device.
pub(super) fn is_boot_device(name: &str) -> bool {
    has_index(
        name,
        &["ide", "scsi", "virtio", "sata", "net", "usb", "hostpci"],
    )
}

fn has_index(name: &str, bases: &[&str]) -> bool {
    let (base, index) = split_index(name);
    bases.contains(&base)
        && index
            .zip(indexed(base))
            .is_some_and(|(index, (count, _))| index < count)
}

fn is_tag_list(text: &str) -> bool {
    is::split_list(text).all(is::is_tag)
}

fn is_address_list(text: &str) -> bool {
    is::split_list(text).all(is::is_address)
}

impl Kind {
    /// The value as Proxmox keeps it, or why Proxmox drops it (its own words).
    pub(super) fn check<'a>(&self, value: &'a str) -> Result<Cow<'a, str>, String> {
        if value.contains(['\n', '\r']) {
            return Err("property contains a line feed".to_owned());
        }
        let mismatch = |kind: &str| Err(format!("type check ('{kind}') failed - got '{value}'"));
        match self {
            Self::Boolean => match parse_boolean(value) {
                Some(true) => Ok(Cow::Borrowed("1")),
                Some(false) => Ok(Cow::Borrowed("0")),
                None => mismatch("boolean"),
            },
            Self::Integer if is::is_digits(value) => Ok(integer(value)),
            Self::Integer => mismatch("integer"),
            Self::Number if is::is_decimal(value) => Ok(Cow::Borrowed(value)),
            Self::Number => mismatch("number"),
            Self::Text => Ok(Cow::Borrowed(unquote(value))),
            Self::Named(fits, message) => {
                if fits(value) {
                    Ok(Cow::Borrowed(value))
                } else {
                    Err(format!("{message}: '{value}'"))
                }
            }
            Self::Properties(format) => match format.parse(value) {
                Ok(_) => Ok(Cow::Borrowed(value)),
                Err(error) => Err(error.detail()),
            },
            Self::Hostpci => match hostpci::check(value) {
                Ok(()) => Ok(Cow::Borrowed(value)),
                Err(error) => Err(error.detail()),
            },
            Self::Cpu => match formats::CPU.parse(value) {
                Ok(cpu) if cpu.get("cputype").is_some_and(|name| name != "0") => {
                    Ok(Cow::Borrowed(value))
                }
                Ok(_) => Err("CPU is missing cputype".to_owned()),
                Err(error) => Err(error.detail()),
            },
        }
    }
}

/// Digits as Perl prints the number: no leading zeros, and past 64 bits as floating point with 15 digits.
fn integer(digits: &str) -> Cow<'_, str> {
    let shorter = digits.trim_start_matches('0');
    if shorter.is_empty() {
        return Cow::Borrowed("0");
    }
    if shorter.parse::<u64>().is_ok() {
        return Cow::Borrowed(shorter);
    }
    match shorter.parse::<f64>() {
        Ok(number) if number.is_finite() => {
            let text = format!("{number:.14e}");
            let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
            Cow::Owned(format!("{mantissa}e+{exponent}"))
        }
        _ => Cow::Borrowed("Inf"),
    }
}

fn unquote(value: &str) -> &str {
    value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::{Kind, is_boot_device, kind};

    fn check(key: &str, value: &str) -> Option<String> {
        let kind = kind(key).unwrap_or_else(|| panic!("{key} is known"));
        kind.check(value).ok().map(std::borrow::Cow::into_owned)
    }

    #[test]
    fn indices_are_spelled_one_way() {
        assert!(matches!(kind("hostpci15"), Some(Kind::Hostpci)));
        for unknown in [
            "hostpci",
            "hostpci16",
            "hostpci00",
            "hostpci01",
            "hostpci99999999999999999999",
            "numa8",
            "efidisk1",
            "rng1",
            "smbios0",
            "foo",
            "digest",
        ] {
            assert!(kind(unknown).is_none(), "{unknown}");
        }
        assert!(matches!(kind("numa"), Some(Kind::Boolean)));
        assert!(matches!(kind("numa7"), Some(Kind::Properties(_))));
    }

    #[test]
    fn plain_types_are_normalised() {
        assert_eq!(check("onboot", "Yes").as_deref(), Some("1"));
        assert_eq!(check("onboot", "2"), None);
        assert_eq!(check("cores", "007").as_deref(), Some("7"));
        assert_eq!(check("cores", "0").as_deref(), Some("0"));
        assert_eq!(check("cores", "-1"), None);
        assert_eq!(
            check("cores", "20000000000000000000").as_deref(),
            Some("2e+19")
        );
        assert_eq!(check("cpulimit", "1.50").as_deref(), Some("1.50"));
        assert_eq!(check("cpulimit", ".5"), None);
        assert_eq!(check("bios", "\"ovmf\"").as_deref(), Some("ovmf"));
        assert_eq!(check("bios", "\"").as_deref(), Some("\""));
        assert_eq!(check("ostype", "a\rb"), None);
    }

    #[test]
    fn cpu_models_are_taken_on_trust_but_have_to_be_there() {
        assert!(check("cpu", "host,flags=+aes;-pcid").is_some());
        assert!(check("cpu", "custom-mine").is_some());
        assert!(check("cpu", "flags=+aes").is_none());
        assert!(check("cpu", "host,reported-model=kvm64").is_none());
    }

    #[test]
    fn boot_devices() {
        assert!(is_boot_device("scsi30") && is_boot_device("hostpci0"));
        assert!(!is_boot_device("scsi31") && !is_boot_device("efidisk0"));
        assert!(!is_boot_device("foo9") && !is_boot_device("net"));
    }
}
