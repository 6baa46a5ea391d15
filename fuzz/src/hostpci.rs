//! A `hostpciN` value: another host leaves every other option alone, and what is made here fits Proxmox's schema.

use pve_atomicops::vmconf::hostpci::{Hostpci, split_value, with_host};

const HOST: &str = "0000:0b:00.0";

/// The property.
pub fn holds(data: &[u8]) {
    let value = String::from_utf8_lossy(data);
    let read = match Hostpci::parse(&value) {
        Ok(read) => read,
        Err(error) => {
            assert!(!error.to_string().is_empty() && !error.detail().is_empty());
            return;
        }
    };
    assert_eq!(read.hosts().count() == 0, read.host.is_none());
    let changed = with_host(&value, HOST);
    assert_eq!(changed.is_some(), read.host.is_some(), "{value:?}");
    if let Some(changed) = changed {
        let expected = Hostpci {
            host: Some(HOST.to_owned()),
            ..read.clone()
        };
        assert_eq!(
            Hostpci::parse(&changed),
            Ok(expected),
            "{value:?} -> {changed:?}"
        );
    }
    let split = split_value(&read, HOST);
    let Ok(moved) = Hostpci::parse(&split) else {
        panic!("{split:?} does not fit the schema");
    };
    assert_eq!(moved.host.as_deref(), Some(HOST));
    assert_eq!(moved.pcie, read.pcie);
    assert_eq!(
        moved.driver.as_deref() == Some("keep"),
        read.driver.as_deref() == Some("keep")
    );
    assert_eq!(
        (moved.mapping, moved.mdev, moved.x_vga),
        (None, None, false)
    );
}
