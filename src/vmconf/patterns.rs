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

/// `pve-volume-id`: a storage ID, a colon, and something without white space at either end.
pub(super) fn is_volume_id(text: &str) -> bool {
    text.split_once(':').is_some_and(|(storage, volume)| {
        is_storage_id(storage) && !volume.is_empty() && !volume.bytes().any(is_space)
    })
}

#[cfg(test)]
mod tests {
    use super::{is_config_id, is_host_list, is_mapping_path, is_storage_id, is_volume_id};

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
        assert!(!is_volume_id("/srv/hook.sh") && !is_volume_id("local:a b"));
    }
}
