//! A VM configuration with only what the program uses, for a capture that may be shown to others.
//!
//! Kept are the keys below, `hostpciN` of the main section and of `[PENDING]`, and of `args` the options that add or
//! place PCI devices. Descriptions, names, tags, MAC addresses, disks, SSH keys, cloud-init, snapshots and everything
//! else become blank lines, which Proxmox skips, so that line numbers in messages stay right.

use super::HostpciIndex;
use super::args::{Options, RawDevices, shellwords};
use super::decode::Config;
use super::document::{Document, Header, Line};

/// Keys of the main section that decide something, besides `hostpciN` and `args`.
const KEPT: [&str; 8] = [
    "bios",
    "boot",
    "lock",
    "machine",
    "ostype",
    "template",
    "vga",
    "hookscript",
];
/// Options that say what a raw device is and where it sits.
const PLACING: [&str; 8] = [
    "addr",
    "bus",
    "driver",
    "fd",
    "host",
    "id",
    "multifunction",
    "sysfsdev",
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Main,
    Pending,
    Other,
}

impl Document {
    /// The text with only what the program uses.
    pub fn reduced(&self) -> Vec<u8> {
        let config = self.decode();
        let mut section = Section::Main;
        let mut text = Vec::new();
        for line in self.lines() {
            if let Line::Header(header) = Line::of(line) {
                section = match header {
                    Header::Pending => Section::Pending,
                    Header::Special(_) | Header::Snapshot(_) | Header::Unknown(_) => Section::Other,
                };
                if section == Section::Pending {
                    text.extend_from_slice(b"[PENDING]");
                }
            } else if let Some(kept) = reduced_line(line, section, &config) {
                text.extend_from_slice(&kept);
            }
            text.push(b'\n');
        }
        let end = text
            .iter()
            .rposition(|byte| *byte != b'\n')
            .map_or(0, |last| last + 2);
        text.truncate(end);
        text
    }
}

/// What is kept of a line, without its line feed.
fn reduced_line(line: &[u8], section: Section, config: &Config) -> Option<Vec<u8>> {
    let whole = || line.strip_suffix(b"\n").unwrap_or(line).to_vec();
    match (section, Line::of(line)) {
        (Section::Other, _) => None,
        (_, Line::Entry { key, .. }) if HostpciIndex::from_key(key).is_some() => Some(whole()),
        (Section::Main, Line::Entry { key, value }) if KEPT.contains(&key) => {
            // Words of other keys may have ended up here; none of these values is a text of several words.
            let taken =
                config.main.get(key).is_some() && !value.iter().any(u8::is_ascii_whitespace);
            taken.then(whole)
        }
        (Section::Main, Line::Args(_)) => {
            let reduced = reduced_args(config.main.get("args")?);
            (!reduced.is_empty()).then(|| format!("args: {reduced}").into_bytes())
        }
        (Section::Pending, Line::Delete(_)) => {
            let keys: Vec<_> = config
                .pending_deletions()
                .filter(|key| HostpciIndex::from_key(key).is_some())
                .collect();
            (!keys.is_empty()).then(|| format!("delete: {}", keys.join(",")).into_bytes())
        }
        _ => None,
    }
}

/// The options of an `args` value that add or place PCI devices.
pub fn reduced_args(args: &str) -> String {
    let Some(words) = shellwords(args) else {
        // Proxmox drops a value with an open quote; so this stays one.
        return "'".to_owned();
    };
    let mut reduced = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let name = word
            .strip_prefix("--")
            .or_else(|| word.strip_prefix('-'))
            .unwrap_or_default();
        if !matches!(
            name,
            "device" | "set" | "global" | "readconfig" | "machine" | "M"
        ) {
            continue;
        }
        let Some(value) = words.next() else {
            reduced.push(format!("-{name}"));
            break;
        };
        if let Some(value) = reduced_option(name, value) {
            reduced.push(format!("-{name} {}", quoted(&value)));
        }
    }
    reduced.join(" ")
}

fn reduced_option(name: &str, value: &str) -> Option<String> {
    match name {
        "device" if value.starts_with('{') => {
            let Some(options) = Options::from_json(value) else {
                // Not understood, and said so; whatever it is, it is not shown.
                return Some("{".to_owned());
            };
            let placing = placing(&options).map(|(key, value)| (key.to_owned(), value.into()));
            Some(serde_json::Value::Object(placing.collect()).to_string())
        }
        "device" => {
            let options = Options::parse(value, "driver");
            let placing: Vec<_> = placing(&options)
                .map(|(key, value)| format!("{key}={}", value.replace(',', ",,")))
                .collect();
            Some(placing.join(","))
        }
        "set" => {
            let (id, setting) = value.strip_prefix("device.")?.split_once('.')?;
            let (key, _) = setting.split_once('=')?;
            (PLACING.contains(&key) && !id.is_empty()).then(|| value.to_owned())
        }
        "global" => {
            let analysed = RawDevices::parse(&format!("-global {}", quoted(value)));
            (!analysed.not_analysed.is_empty()).then(|| value.to_owned())
        }
        "machine" | "M" => Options::parse(value, "type")
            .get("type")
            .map(|kind| kind.replace(',', ",,")),
        // A file that is not looked into.
        _ => Some(value.to_owned()),
    }
}

fn placing(options: &Options) -> impl Iterator<Item = (&'static str, &str)> {
    PLACING
        .into_iter()
        .filter_map(|key| Some((key, options.get(key)?)))
}

/// One word for [`shellwords`].
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./_-".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    // In double quotes a backslash makes the next character plain.
    let mut quoted = String::from("\"");
    for c in word.chars() {
        if matches!(c, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::reduced_args;
    use crate::vmconf::args::RawDevices;
    use crate::vmconf::document::Document;

    fn reduced(text: &str) -> String {
        String::from_utf8(Document::parse(text.as_bytes()).reduced()).unwrap()
    }

    #[test]
    fn only_what_is_used_stays() {
        let text = "#my notes: hunter2\n\
                    agent: 1\n\
                    args: -device pcie-root-port,id=rp1 -smbios type=1,serial=SECRET\n\
                    cipassword: $5$secret\n\
                    description: secret\n\
                    hostpci0: 0000:0b:00,pcie=1\n\
                    hostpci1: bogus,,\n\
                    machine: q35\n\
                    name: secret\n\
                    net0: virtio=BC:24:11:00:00:01,bridge=vmbr0\n\
                    ostype: nonsense secret\n\
                    sshkeys: ssh-ed25519%20AAAA\n\
                    template: yes\n\
                    \n\
                    [special:cloudinit]\n\
                    cipassword: secret\n\
                    hostpci3: 0000:0c:00\n\
                    \n\
                    [PENDING]\n\
                    delete: net0,hostpci1\n\
                    hostpci2: 0000:44:00\n\
                    name: other\n\
                    \n\
                    [secret-snapshot]\n\
                    hostpci0: 0000:0b:00\n";
        let expected = "\n\n\
                        args: -device driver=pcie-root-port,id=rp1\n\
                        \n\n\
                        hostpci0: 0000:0b:00,pcie=1\n\
                        hostpci1: bogus,,\n\
                        machine: q35\n\
                        \n\n\n\n\
                        template: yes\n\
                        \n\n\n\n\n\
                        [PENDING]\n\
                        delete: hostpci1\n\
                        hostpci2: 0000:44:00\n";
        assert_eq!(reduced(text), expected);
        assert_eq!(reduced(expected), expected);
        assert_eq!(reduced(""), "");
        assert_eq!(reduced("name: x\n"), "");
        assert_eq!(reduced("hostpci0: 0b:00.0"), "hostpci0: 0b:00.0\n");
    }

    #[test]
    fn what_it_means_stays_the_same() {
        for args in [
            "-device pcie-root-port,id=rp1,bus=pcie.0,addr=0x15,chassis=21 -device vfio-pci,host=0b:00.0,bus=rp1,addr=0x0.0",
            "--device 'vfio-pci,host=0b:00.0,multifunction=on,id=gpu' -set device.gpu.addr=1.0 -set device.gpu.x-vga=on",
            r#"-device '{"driver":"vfio-pci","host":"0000:0b:00.0","bus":"a \"b\" \\ c","addr":"0.1","multifunction":true}'"#,
            r#"-device '{"driver":"vfio-pci","host":"0000:0b:00.0","addr":9}'"#,
            "-device vfio-pci,sysfsdev=/sys/bus/pci/devices/0000:0b:00.1,bus=a,,b,noaddr",
            "-device vfio-pci,fd=3 -device vfio-pci,host=0b:00.0,host=0c:00.0",
            "-global vfio-pci.addr=3 -global vfio-pci.x-msix=1 -readconfig '/a b' -machine q35,accel=kvm -M pc",
            "-device",
            "-device x -set",
            "-set device.gpu.bus=rp1",
            "it's",
            "-device nonsense,addr=77 -device ,",
        ] {
            let short = reduced_args(args);
            assert_eq!(
                RawDevices::parse(&short),
                RawDevices::parse(args),
                "{args} -> {short}"
            );
            assert_eq!(reduced_args(&short), short);
        }
        // What is not understood is not shown.
        let secret = "-device '{secret' -fw_cfg name=opt/x,string=secret -vnc :1,password=secret \
                      -device virtio-net-pci,mac=secret,bus=rp1 -drive file=secret -set drive.x.file=secret secret";
        let short = reduced_args(secret);
        assert!(!short.contains("secret"), "{short}");
        assert_eq!(
            RawDevices::parse(&short).devices,
            RawDevices::parse(secret).devices
        );
    }

    proptest::proptest! {
        /// Whatever stands there, reading the reduced text gives the same devices.
        #[test]
        fn devices_survive(args in r#"(-(device|set|machine) ?["'{a-z=,. \\]{0,12}[ '"]{0,2}){0,4}"#) {
            let (short, long) = (RawDevices::parse(&reduced_args(&args)), RawDevices::parse(&args));
            proptest::prop_assert_eq!(short.devices, long.devices);
            proptest::prop_assert_eq!(short.settings.len() <= long.settings.len(), true);
        }
    }
}
