//! The patterns and named formats of Proxmox's schemas, as predicates on a whole text.
//!
//! They work on bytes, like Proxmox, and accept exactly what the pattern named in each comment matches.

use super::property_string::is_space;

/// Takes as many leading bytes as the class allows.
fn span(bytes: &[u8], class: impl Fn(u8) -> bool) -> usize {
    bytes
        .iter()
        .position(|byte| !class(*byte))
        .unwrap_or(bytes.len())
}

const fn is_lower_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// `BUS:DEVICE`, and before it the domain and a colon; how many bytes it takes.
fn slot_length(bytes: &[u8], domain: Domain) -> Option<usize> {
    let digits = span(bytes, is_lower_hex);
    let start = if digits >= 4 && bytes.get(digits) == Some(&b':') {
        digits + 1
    } else if domain == Domain::Optional {
        0
    } else {
        return None;
    };
    let rest = bytes.get(start..)?;
    match rest {
        [a, b, b':', c, d, ..] if [*a, *b, *c, *d].into_iter().all(is_lower_hex) => Some(start + 5),
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Domain {
    Optional,
    Required,
}

/// One or more addresses joined by `;`: `(?:[a-f0-9]{4,}:)?[a-f0-9]{2}:[a-f0-9]{2}(?:\.[a-f0-9])?`.
pub(super) fn is_host_list(text: &str) -> bool {
    text.split(';').all(|address| {
        let bytes = address.as_bytes();
        match slot_length(bytes, Domain::Optional) {
            Some(length) => match bytes.get(length..) {
                Some([]) => true,
                Some([b'.', function]) => is_lower_hex(*function),
                _ => false,
            },
            None => false,
        }
    })
}

/// The `path` of a mapping entry: like a host list, but the domain has to be there, and any byte may stand where the
/// dot belongs, because upstream lost the backslash before it.
pub(super) fn is_mapping_path(text: &str) -> bool {
    let mut rest = text.as_bytes();
    loop {
        let Some(length) = slot_length(rest, Domain::Required) else {
            return false;
        };
        rest = rest.get(length..).unwrap_or_default();
        if let [separator, function, tail @ ..] = rest
            && *separator != b'\n'
            && is_lower_hex(*function)
            && matches!(tail, [] | [b';', ..])
        {
            rest = tail;
        }
        match rest {
            [] => return true,
            [b';', tail @ ..] => rest = tail,
            _ => return false,
        }
    }
}

/// `pve-configid`: `[a-z][a-z0-9_-]+` in any case.
pub(super) fn is_config_id(text: &str) -> bool {
    match text.as_bytes() {
        [first, rest @ ..] => {
            first.is_ascii_alphabetic()
                && !rest.is_empty()
                && rest
                    .iter()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
        }
        [] => false,
    }
}

/// `0x[0-9a-fA-F]{4}`.
pub(super) fn is_hex_id(text: &str) -> bool {
    text.strip_prefix("0x")
        .is_some_and(|digits| digits.len() == 4 && is_hex(digits))
}

/// `[0-9A-Fa-f]{4}:[0-9A-Fa-f]{4}`.
pub(super) fn is_id_pair(text: &str) -> bool {
    text.split_once(':').is_some_and(|(vendor, device)| {
        vendor.len() == 4 && device.len() == 4 && is_hex(vendor) && is_hex(device)
    })
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// `[^,;]+`.
pub(super) fn is_rom_file(text: &str) -> bool {
    !text.is_empty() && !text.contains([',', ';'])
}

/// `[^/\.:]+`.
pub(super) fn is_mdev_type(text: &str) -> bool {
    !text.is_empty() && !text.contains(['/', '.', ':'])
}

/// `pve-node`, one label of a host name: letters, digits and inner dashes.
pub(super) fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    ends(bytes.first())
        && ends(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
}

/// `dns-name`: labels joined by dots.
pub(super) fn is_dns_name(text: &str) -> bool {
    text.split('.').all(is_label)
}

/// `[a-z][a-z0-9\-\_\.]*[a-z0-9]` in any case: storage IDs.
pub(super) fn is_storage_id(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 2
        && bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// `pve-volume-id`: a storage ID, a colon, and anything: `([a-z][a-z0-9\-\_\.]*[a-z0-9]):(.+)` in any case.
pub(super) fn is_volume_id(text: &str) -> bool {
    text.split_once(':')
        .is_some_and(|(storage, volume)| is_storage_id(storage) && !volume.is_empty())
}

/// `pve-volume-id-or-qm-path`: a drive's volume.
pub(super) fn is_drive_volume(text: &str) -> bool {
    text == "none" || text == "cdrom" || text.starts_with('/') || is_volume_id(text)
}

/// `urlencoded`.
pub(super) fn is_url_encoded(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-%_.!~*'()".contains(&byte))
}

/// `disk-size`: `(\d+(\.\d+)?)([KMGT])?`.
pub(super) fn is_disk_size(text: &str) -> bool {
    let number = text.strip_suffix(['K', 'M', 'G', 'T']).unwrap_or(text);
    is_decimal(number)
}

/// `\d+(\.\d+)?`.
pub(super) fn is_decimal(text: &str) -> bool {
    match text.split_once('.') {
        Some((whole, fraction)) => is_digits(whole) && is_digits(fraction),
        None => is_digits(text),
    }
}

/// `\d+`.
pub(super) fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `\d+(\.\d+)+`.
pub(super) fn is_version(text: &str) -> bool {
    text.contains('.') && text.split('.').all(is_digits)
}

/// The type of a `machine`: a family, or one with a version, a Proxmox revision and perhaps `.pxe`.
pub(super) fn is_machine_type(text: &str) -> bool {
    if matches!(text, "pc" | "q35") {
        return true;
    }
    if let Some(rest) = text.strip_prefix("virt") {
        let (version, revision) = split_revision(rest);
        let version_fits = version.is_empty() || version.strip_prefix('-').is_some_and(is_version);
        return version_fits && revision.is_none_or(is_digits);
    }
    let Some(rest) = ["pc-i440fx-", "pc-q35-", "pc-"]
        .iter()
        .find_map(|family| text.strip_prefix(family))
    else {
        return false;
    };
    let (version, revision) = split_revision(rest.strip_suffix(".pxe").unwrap_or(rest));
    is_version(version) && revision.is_none_or(is_digits)
}

fn split_revision(text: &str) -> (&str, Option<&str>) {
    match text.split_once("+pve") {
        Some((version, revision)) => (version, Some(revision)),
        None => (text, None),
    }
}

/// `\d+(?:-\d+)?(?:;\d+(?:-\d+)?)*`: numbers and ranges of NUMA nodes, CPUs and VLANs.
pub(super) fn is_range_list(text: &str) -> bool {
    text.split(';').all(|range| match range.split_once('-') {
        Some((first, last)) => is_digits(first) && is_digits(last),
        None => is_digits(range),
    })
}

/// `[acdn]{1,4}`.
pub(super) fn is_legacy_boot(text: &str) -> bool {
    (1..=4).contains(&text.len()) && text.bytes().all(|byte| b"acdn".contains(&byte))
}

/// `pve-tag`: `[a-z0-9_][a-z0-9_\-\+\.]*` in any case.
pub(super) fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.bytes().next().is_some_and(word)
        && text
            .bytes()
            .all(|byte| word(byte) || b"-+.".contains(&byte))
}

/// `mac-addr`: a unicast address.
pub(super) fn is_mac_address(text: &str) -> bool {
    let bytes = text.as_bytes();
    text.len() == 17
        && text.split(':').all(|part| part.len() == 2 && is_hex(part))
        && bytes
            .get(1)
            .is_some_and(|digit| b"02468aceACE".contains(digit))
}

/// `pve-bridge-id`: `[-_.\w\d]+`.
pub(super) fn is_bridge(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// `ipv4`.
pub(super) fn is_ipv4(text: &str) -> bool {
    text.parse::<std::net::Ipv4Addr>().is_ok()
}

/// `ipv6`.
pub(super) fn is_ipv6(text: &str) -> bool {
    text.parse::<std::net::Ipv6Addr>().is_ok()
}

/// `pve-ipv4-config`.
pub(super) fn is_ipv4_config(text: &str) -> bool {
    matches!(text, "dhcp" | "manual") || is_network(text, is_ipv4, 32)
}

/// `pve-ipv6-config`.
pub(super) fn is_ipv6_config(text: &str) -> bool {
    matches!(text, "auto" | "dhcp" | "manual") || is_network(text, is_ipv6, 128)
}

fn is_network(text: &str, is_address: fn(&str) -> bool, longest: u32) -> bool {
    text.split_once('/').is_some_and(|(address, length)| {
        is_address(address)
            && is_digits(length)
            && length
                .parse()
                .is_ok_and(|bits: u32| (8..=longest).contains(&bits))
    })
}

/// One of `address-list`: a host's address or name.
pub(super) fn is_address(text: &str) -> bool {
    is_ipv4(text) || is_ipv6(text) || is_dns_name(text)
}

/// `pve-startup-order`.
pub(super) fn is_startup_order(text: &str) -> bool {
    !matches!(text, "" | "0")
        && text.split(',').all(|part| {
            let number = ["order=", "up=", "down="]
                .iter()
                .find_map(|name| part.strip_prefix(name))
                .unwrap_or(part);
            part.bytes().all(is_space) || is_digits(number)
        })
}

/// `pve-hotplug-features`.
pub(super) fn is_hotplug_list(text: &str) -> bool {
    matches!(text, "0" | "1")
        || split_list(text).all(|feature| {
            matches!(
                feature,
                "network" | "disk" | "cpu" | "memory" | "usb" | "cloudinit"
            )
        })
}

/// `pve-cpuset`: numbers and ascending ranges.
pub(super) fn is_cpu_set(text: &str) -> bool {
    text.split(',').all(|part| {
        let part = part.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\u{b}');
        match part.split_once('-') {
            Some((first, last)) => {
                is_digits(first)
                    && is_digits(last)
                    && match (first.parse::<u64>(), last.parse::<u64>()) {
                        (Ok(first), Ok(last)) => first <= last,
                        _ => false,
                    }
            }
            None => is_digits(part),
        }
    })
}

/// `[A-Za-z0-9+\/]+={0,2}`: an SMBIOS string.
pub(super) fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    text.len() - digits.len() <= 2
        && !digits.is_empty()
        && digits
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(&byte))
}

/// A UUID.
pub(super) fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().all(|group| is_hex(group))
        && groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
}

/// `0x` and 16 hexadecimal digits: a drive's WWN.
pub(super) fn is_wwn(text: &str) -> bool {
    text.strip_prefix("0x")
        .is_some_and(|digits| digits.len() == 16 && is_hex(digits))
}

/// A SCSI product name, up to 16 bytes.
pub(super) fn is_scsi_product(text: &str) -> bool {
    text.len() <= 16 && text.bytes().all(is_scsi_name_byte)
}

/// A SCSI vendor name, up to 8 bytes.
pub(super) fn is_scsi_vendor(text: &str) -> bool {
    text.len() <= 8 && text.bytes().all(is_scsi_name_byte)
}

fn is_scsi_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_".contains(&byte) || is_space(byte)
}

/// `[a-zA-Z0-9\-]+`.
pub(super) fn is_shared_memory_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// A host USB device: `vendor:product`, `bus-port.port`, or `spice`.
pub(super) fn is_usb_host(text: &str) -> bool {
    let is_id = |part: &str| {
        let digits = part.strip_prefix("0x").unwrap_or(part);
        digits.len() == 4 && is_hex(digits)
    };
    text.eq_ignore_ascii_case("spice")
        || text
            .split_once(':')
            .is_some_and(|(vendor, product)| is_id(vendor) && is_id(product))
        || text
            .split_once('-')
            .is_some_and(|(bus, port)| is_digits(bus) && port.split('.').all(is_digits))
}

/// `[a-zA-Z0-9]{1,12}`.
pub(super) fn is_hyperv_vendor(text: &str) -> bool {
    (1..=12).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// CPU flags: `[+-][a-zA-Z0-9\-_\.]+`, joined by `;`.
pub(super) fn is_cpu_flag_list(text: &str) -> bool {
    text.split(';').all(|flag| {
        flag.strip_prefix(['+', '-']).is_some_and(|name| {
            !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        })
    })
}

/// `pve-phys-bits`: 8 to 64, or `host`.
pub(super) fn is_phys_bits(text: &str) -> bool {
    text == "host"
        || (text.len() <= 2
            && is_digits(text)
            && text.parse().is_ok_and(|bits: u8| (8..=64).contains(&bits)))
}

/// The elements of a list as `PVE::Tools::split_list` finds them: apart by NUL if there is one, else by commas,
/// semicolons and white space.
pub(super) fn split_list(text: &str) -> impl Iterator<Item = &str> {
    let by_nul = text.contains('\0');
    text.split(move |c: char| {
        if by_nul {
            c == '\0'
        } else {
            c == ',' || c == ';' || u8::try_from(c).is_ok_and(is_space)
        }
    })
    .filter(move |element| by_nul || !element.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_addresses() {
        for good in [
            "0b:00",
            "0b:00.f",
            "0000:0b:00.0",
            "10000:e1:00;00:1f",
            "abcd:60:00",
        ] {
            assert!(is_host_list(good), "{good}");
        }
        for bad in [
            "",
            ";",
            "0b:00;",
            "000:0b:00",
            "0B:00",
            "0b:00.10",
            "0b:00.",
            "0b-00",
            "0b:00:0",
            "0b:00.é",
        ] {
            assert!(!is_host_list(bad), "{bad}");
        }
    }

    #[test]
    fn mapping_paths_need_a_domain_and_take_any_dot() {
        for good in [
            "0000:0b:00",
            "0000:0b:00.1;0001:0c:00",
            "0000:0b:00:0",
            "0000:0b:00;0",
            "0000:0b:00;a;0000:0c:00",
        ] {
            assert!(is_mapping_path(good), "{good}");
        }
        for bad in [
            "",
            "0b:00",
            "0000:0b:00.0;",
            "0000:0B:00",
            "0000:0b:00;;0000:0c:00",
            "0000:0b:00\n0",
        ] {
            assert!(!is_mapping_path(bad), "{bad}");
        }
    }

    #[test]
    fn identifiers() {
        assert!(is_config_id("G1") && is_config_id("a-_"));
        assert!(!is_config_id("g") && !is_config_id("1gpu") && !is_config_id("my.gpu"));
        assert!(is_storage_id("local-lvm") && !is_storage_id("l") && !is_storage_id("a-"));
        assert!(is_volume_id("local:snippets/hook.sh") && !is_volume_id("local:"));
        assert!(!is_volume_id("/srv/hook.sh") && is_volume_id("local:a b"));
        assert!(is_tag("gpu") && is_tag("_a.b-c+d") && !is_tag("-a") && !is_tag("Büro"));
        assert!(is_mac_address("BC:24:11:00:00:01") && !is_mac_address("BD:24:11:00:00:01"));
        assert!(!is_mac_address("BC:24:11:00:00") && !is_mac_address("BC-24-11-00-00-01"));
    }

    #[test]
    fn machine_types() {
        for good in [
            "pc",
            "q35",
            "virt",
            "pc-q35-9.0",
            "pc-q35-9.2+pve1",
            "pc-q35-9.2.1+pve1.pxe",
            "pc-i440fx-2.4",
            "pc-1.0",
            "virt-10.0+pve1",
            "virt+pve3",
        ] {
            assert!(is_machine_type(good), "{good}");
        }
        for bad in [
            "",
            "Q35",
            "q36",
            "q35.pxe",
            "pc-q35",
            "pc-q35-9",
            "pc-q35-9.0+pve",
            "pc-q35-9.0+pvex",
            "virt-10",
            "pc-q35-.0",
        ] {
            assert!(!is_machine_type(bad), "{bad}");
        }
    }

    #[test]
    fn small_formats() {
        assert!(is_range_list("0-3;7") && !is_range_list("0-;") && !is_range_list(""));
        assert!(is_disk_size("32G") && is_disk_size("1.5T") && !is_disk_size("G"));
        assert!(!is_disk_size("1.G") && !is_disk_size("32g"));
        assert!(is_startup_order("order=1,up=30") && is_startup_order("5, ,down=1"));
        assert!(!is_startup_order("0") && !is_startup_order("up=x"));
        assert!(is_cpu_set("0,5,8-11") && !is_cpu_set("11-8") && !is_cpu_set("0,,1"));
        assert!(is_ipv4_config("10.0.0.1/24") && is_ipv4_config("dhcp"));
        assert!(!is_ipv4_config("10.0.0.1") && !is_ipv4_config("10.0.0.1/7"));
        assert!(is_ipv6_config("fe80::1/64") && !is_ipv6_config("fe80::1/129"));
        assert!(is_usb_host("0x1234:abcd") && is_usb_host("1-2.3") && is_usb_host("Spice"));
        assert!(!is_usb_host("1-") && !is_usb_host("123:abcd"));
        assert!(is_uuid("01234567-89ab-cdef-0123-456789abcdef") && !is_uuid("0-1-2-3-4"));
        assert!(is_base64("UHJveG1veA==") && !is_base64("a===") && !is_base64("="));
        assert!(is_hotplug_list("network,disk usb") && !is_hotplug_list("network,gpu"));
        assert!(is_phys_bits("host") && is_phys_bits("40") && !is_phys_bits("65"));
        assert_eq!(
            split_list(" a,b;;c\td ").collect::<Vec<_>>(),
            ["a", "b", "c", "d"]
        );
    }
}
