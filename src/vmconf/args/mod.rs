//! The `args` key: raw options that Proxmox appends to QEMU's command line.
//!
//! Proxmox splits the value into words ([`mod@shellwords`]), and QEMU reads each `-device` as a list of options
//! ([`options`]) or as JSON. What comes out here are the PCI devices of interest: *ports* (everything with a bus of its
//! own), `vfio-pci` devices, and the other devices, which may take a slot.
//!
//! Not analysed, and said so: `-readconfig`, `-global` on these devices, another machine type. Options that neither add
//! nor place PCI devices are passed over. Where a device ends up is for [`crate::rules::guest_bus`] to say.

mod options;
mod shellwords;

use crate::pci::Sbdf;

pub use options::{Options, parse_boolean, parse_guest_address, parse_host_address};
pub use shellwords::shellwords;

/// A slot and a function on some bus of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestAddress {
    /// Slot, 0 to 31.
    pub slot: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

/// What a raw device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawModel {
    /// It has a bus behind it.
    Port(PortModel),
    /// `vfio-pci` or `vfio-pci-nohotplug`.
    Vfio(VfioSource),
    /// Anything else. If it has a bus, the program does not know what kind.
    Other,
}

/// Models with a PCI bus behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortModel {
    /// `pcie-root-port`.
    PcieRootPort,
    /// `ioh3420`, an older root port.
    Ioh3420,
    /// `x3130-upstream`, a switch's upstream port.
    X3130Upstream,
    /// `xio3130-downstream`, a switch's downstream port.
    Xio3130Downstream,
    /// `pcie-pci-bridge`.
    PciePciBridge,
    /// `pci-bridge`.
    PciBridge,
    /// `i82801b11-bridge`.
    I82801b11,
    /// `pxb-pcie`, another PCI Express root bus.
    PxbPcie,
    /// `pxb`, another host bridge with a conventional bus.
    Pxb,
}

impl PortModel {
    const ALL: [Self; 9] = [
        Self::PcieRootPort,
        Self::Ioh3420,
        Self::X3130Upstream,
        Self::Xio3130Downstream,
        Self::PciePciBridge,
        Self::PciBridge,
        Self::I82801b11,
        Self::PxbPcie,
        Self::Pxb,
    ];

    /// QEMU's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PcieRootPort => "pcie-root-port",
            Self::Ioh3420 => "ioh3420",
            Self::X3130Upstream => "x3130-upstream",
            Self::Xio3130Downstream => "xio3130-downstream",
            Self::PciePciBridge => "pcie-pci-bridge",
            Self::PciBridge => "pci-bridge",
            Self::I82801b11 => "i82801b11-bridge",
            Self::PxbPcie => "pxb-pcie",
            Self::Pxb => "pxb",
        }
    }

    /// The model with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.name() == name)
    }

    /// Whether its bus is a PCI Express bus, which decides the bus's name where the device has no ID.
    pub const fn bus_is_express(self) -> bool {
        !matches!(
            self,
            Self::PciePciBridge | Self::PciBridge | Self::I82801b11 | Self::Pxb
        )
    }
}

/// Which host device a raw `vfio-pci` passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VfioSource {
    /// A PCI function.
    Function(Sbdf),
    /// A device that is no PCI function, by its `sysfs` path: a mediated device.
    Path(String),
    /// It cannot be told from the options, with the reason.
    Unknown(String),
}

/// One `-device` of the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawDevice {
    /// QEMU's name of the model.
    pub driver: String,
    /// What the model means here.
    pub model: RawModel,
    /// `id=`.
    pub id: Option<String>,
    /// `bus=`; QEMU takes the root bus without it.
    pub bus: Option<String>,
    /// `addr=`; QEMU takes the first free slot without it.
    pub addr: Option<GuestAddress>,
    /// `multifunction=on`.
    pub multifunction: bool,
}

/// A `-set device.ID.KEY=VALUE` for a device that is not in the value itself, such as one of Proxmox's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The device's ID.
    pub id: String,
    /// The option.
    pub key: String,
    /// Its new value.
    pub value: String,
}

/// The devices of an `args` value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawDevices {
    /// All devices, in the order in which QEMU realizes them: those in JSON come after the others.
    pub devices: Vec<RawDevice>,
    /// Changes to devices from elsewhere, in order.
    pub settings: Vec<Setting>,
    /// Parts that could matter and were not understood, in words for people.
    pub not_analysed: Vec<String>,
}

impl RawDevices {
    /// Reads an `args` value.
    pub fn parse(args: &str) -> Self {
        let Some(words) = shellwords(args) else {
            return Self {
                not_analysed: vec![
                    "args: unbalanced quotes: Proxmox drops the whole value".to_owned(),
                ],
                ..Self::default()
            };
        };
        Self::from_words(words)
    }

    /// Reads words of a command line, such as that of a running QEMU.
    pub fn from_words(words: impl IntoIterator<Item = String>) -> Self {
        let mut reader = Reader::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            // QEMU takes one dash or two.
            let Some(name) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
                continue;
            };
            if matches!(
                name,
                "device" | "set" | "global" | "readconfig" | "machine" | "M"
            ) {
                match words.next() {
                    Some(value) => reader.option(name, &value),
                    None => reader.note(format!("-{name} without a value")),
                }
            }
        }
        reader.finish()
    }

    /// The devices with a bus of a known kind.
    pub fn ports(&self) -> impl Iterator<Item = (&RawDevice, PortModel)> {
        self.devices.iter().filter_map(|device| match device.model {
            RawModel::Port(model) => Some((device, model)),
            RawModel::Vfio(_) | RawModel::Other => None,
        })
    }

    /// The `vfio-pci` devices.
    pub fn vfio(&self) -> impl Iterator<Item = (&RawDevice, &VfioSource)> {
        self.devices
            .iter()
            .filter_map(|device| match &device.model {
                RawModel::Vfio(source) => Some((device, source)),
                RawModel::Port(_) | RawModel::Other => None,
            })
    }
}

/// The most devices that are looked at. A guest has no more than 256 buses, and what comes of devices takes the more time
/// the more there are.
const MAX_DEVICES: usize = 256;

#[derive(Default)]
struct Reader {
    plain: Vec<Options>,
    json: Vec<Options>,
    settings: Vec<Setting>,
    not_analysed: Vec<String>,
}

impl Reader {
    fn note(&mut self, text: String) {
        self.not_analysed.push(text);
    }

    fn option(&mut self, name: &str, value: &str) {
        match name {
            "device" if self.plain.len() + self.json.len() == MAX_DEVICES => {
                let note = format!("devices after the first {MAX_DEVICES}");
                if self.not_analysed.last() != Some(&note) {
                    self.note(note);
                }
            }
            "device" if value.starts_with('{') => match Options::from_json(value) {
                Some(options) => self.json.push(options),
                None => self.note(format!("-device {value}")),
            },
            "device" => self.plain.push(Options::parse(value, "driver")),
            "set" => self.set(value),
            "global" => {
                if options::global_places_devices(value) {
                    self.note(format!("-global {value}"));
                }
            }
            "machine" | "M" => {
                let options = Options::parse(value, "type");
                if let Some(kind) = options.get("type") {
                    self.note(format!("-{name} {kind} (may change the machine type)"));
                }
            }
            _ => self.note(format!("-{name} {value}")),
        }
    }

    /// `-set GROUP.ID.KEY=VALUE`, for devices; the ID cannot have a dot. It works on what was read so far, and never on
    /// JSON.
    fn set(&mut self, text: &str) {
        let Some(rest) = text.strip_prefix("device.") else {
            return;
        };
        let parts = rest
            .split_once('.')
            .and_then(|(id, rest)| Some((id, rest.split_once('=')?)));
        let Some((id, (key, value))) = parts else {
            self.note(format!("-set {text}"));
            return;
        };
        let own = self
            .plain
            .iter_mut()
            .find(|options| options.get("id") == Some(id));
        match own {
            Some(options) => options.set(key, value),
            None => self.settings.push(Setting {
                id: id.to_owned(),
                key: key.to_owned(),
                value: value.to_owned(),
            }),
        }
    }

    fn finish(self) -> RawDevices {
        let mut raw = RawDevices {
            settings: self.settings,
            not_analysed: self.not_analysed,
            ..RawDevices::default()
        };
        for options in self.plain.iter().chain(&self.json) {
            let (device, notes) = device(options);
            raw.devices.extend(device);
            raw.not_analysed.extend(notes);
        }
        raw
    }
}

/// A device, and what its options left unclear.
fn device(options: &Options) -> (Option<RawDevice>, Vec<String>) {
    let mut notes = Vec::new();
    let Some(driver) = options.get("driver") else {
        return (None, vec!["-device without a driver".to_owned()]);
    };
    let addr = options.get("addr").and_then(|text| {
        let addr = parse_guest_address(text);
        if addr.is_none() {
            notes.push(format!("-device {driver}: addr={text} is no address"));
        }
        addr
    });
    let multifunction = options.get("multifunction").is_some_and(|text| {
        parse_boolean(text).unwrap_or_else(|| {
            notes.push(format!(
                "-device {driver}: multifunction={text} is neither on nor off"
            ));
            false
        })
    });
    let text = |key| options.get(key).map(str::to_owned);
    let model = if matches!(driver, "vfio-pci" | "vfio-pci-nohotplug") {
        let source = vfio_source(options);
        if let VfioSource::Unknown(reason) = &source {
            notes.push(format!("-device {driver}: {reason}"));
        }
        RawModel::Vfio(source)
    } else {
        PortModel::from_name(driver).map_or(RawModel::Other, RawModel::Port)
    };
    let device = RawDevice {
        driver: driver.to_owned(),
        model,
        id: text("id"),
        bus: text("bus"),
        addr,
        multifunction,
    };
    (Some(device), notes)
}

/// `vfio_pci_realize`: `sysfsdev` comes before `host`; a file descriptor hides the device.
pub fn vfio_source(options: &Options) -> VfioSource {
    if let Some(path) = options.get("sysfsdev") {
        let name = path.trim_end_matches('/').rsplit('/').next();
        return match name.and_then(|name| name.parse().ok()) {
            Some(address) => VfioSource::Function(address),
            None => VfioSource::Path(path.to_owned()),
        };
    }
    if let Some(text) = options.get("host") {
        return match parse_host_address(text) {
            Some(address) => VfioSource::Function(address),
            None => VfioSource::Unknown(format!("host={text} is no PCI address")),
        };
    }
    VfioSource::Unknown(if options.get("fd").is_some() {
        "fd= does not say which device it is".to_owned()
    } else {
        "neither host= nor sysfsdev=".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::{GuestAddress, PortModel, RawDevices, RawModel, Setting, VfioSource};

    fn function(address: &str) -> VfioSource {
        VfioSource::Function(address.parse().unwrap())
    }

    #[test]
    fn ports_and_devices() {
        let raw = RawDevices::parse(
            "-device pcie-root-port,id=rp1,bus=pcie.0,addr=0x15,chassis=21 \
             --device 'vfio-pci,host=0b:00.0,bus=rp1,addr=0x0.0,multifunction=on,id=gpu' \
             -device vfio-pci-nohotplug,sysfsdev=/sys/bus/pci/devices/0000:0b:00.1,bus=rp1,addr=0.1 \
             -cpu host,hidden=1 -device virtio-rng-pci,bus=rp1",
        );
        assert!(raw.not_analysed.is_empty(), "{:?}", raw.not_analysed);
        let ports: Vec<_> = raw.ports().collect();
        let [(port, PortModel::PcieRootPort)] = ports.as_slice() else {
            panic!("{ports:?}")
        };
        assert_eq!(port.id.as_deref(), Some("rp1"));
        assert_eq!(port.bus.as_deref(), Some("pcie.0"));
        assert_eq!(
            port.addr,
            Some(GuestAddress {
                slot: 0x15,
                function: 0
            })
        );
        let vfio: Vec<_> = raw.vfio().collect();
        assert_eq!(*vfio[0].1, function("0000:0b:00.0"));
        assert!(vfio[0].0.multifunction);
        assert_eq!(*vfio[1].1, function("0000:0b:00.1"));
        assert_eq!(
            vfio[1].0.addr,
            Some(GuestAddress {
                slot: 0,
                function: 1
            })
        );
        assert_eq!(raw.devices.len(), 4);
        assert_eq!(raw.devices[3].model, RawModel::Other);
    }

    #[test]
    fn which_host_device() {
        let source = |options: &str| {
            let raw = RawDevices::parse(&format!("-device vfio-pci,{options}"));
            raw.vfio().next().unwrap().1.clone()
        };
        assert_eq!(
            source("host=1:2:3.4,sysfsdev=/sys/devices/pci0000:00/0000:00:01.0/0000:0c:00.0/"),
            function("0000:0c:00.0")
        );
        assert_eq!(
            source("sysfsdev=/sys/bus/mdev/devices/00000000-0000-0000-0000-000000000100"),
            VfioSource::Path(
                "/sys/bus/mdev/devices/00000000-0000-0000-0000-000000000100".to_owned()
            )
        );
        // The last of several counts.
        assert_eq!(source("host=b:0.0,host=c:0.1"), function("0000:0c:00.1"));
        assert!(matches!(source("fd=7,iommufd=i"), VfioSource::Unknown(_)));
        assert!(matches!(source("host=0b:00"), VfioSource::Unknown(_)));
        assert!(matches!(source("id=x"), VfioSource::Unknown(_)));
    }

    #[test]
    fn json_devices_come_last() {
        let raw = RawDevices::parse(
            r#"-device '{"driver":"vfio-pci","host":"0000:0b:00.0","bus":"rp1","addr":"0.0","multifunction":true}'
               -device '{"driver":"vfio-pci","host":"0000:0c:00.0","bus":"rp1","addr":8}'
               -device pcie-root-port,id=rp1"#,
        );
        assert_eq!(raw.devices[0].driver, "pcie-root-port");
        assert!(raw.devices[1].multifunction);
        assert_eq!(
            raw.devices[2].addr,
            Some(GuestAddress {
                slot: 1,
                function: 0
            })
        );
        assert!(raw.not_analysed.is_empty());
        let broken = RawDevices::parse("-device '{driver:x}' -device '{\"id\":\"x\"}'");
        assert_eq!(broken.not_analysed.len(), 2);
    }

    #[test]
    fn settings() {
        let raw = RawDevices::parse(
            "-set device.hostpci0.multifunction=off -device vfio-pci,id=a,host=0b:00.0 \
             -set device.a.addr=0x3 -set device.a.bus=x -set drive.d.file=x -set device.a",
        );
        assert_eq!(
            raw.settings,
            [Setting {
                id: "hostpci0".to_owned(),
                key: "multifunction".to_owned(),
                value: "off".to_owned()
            }]
        );
        assert_eq!(raw.devices[0].bus.as_deref(), Some("x"));
        assert_eq!(raw.devices[0].addr.unwrap().slot, 3);
        assert_eq!(raw.not_analysed, ["-set device.a"]);
    }

    #[test]
    fn what_is_not_analysed_is_said() {
        for (args, notes) in [
            ("-readconfig /root/x.cfg", 1),
            ("-global vfio-pci.multifunction=on", 1),
            ("-global driver=vfio-pci,property=addr,value=1", 1),
            ("-global kvm-pit.lost_tick_policy=discard", 0),
            ("-global vfio-pci.x-igd-gms=2", 0),
            ("-machine q35", 1),
            ("-M type=pc,kernel_irqchip=on", 1),
            ("-machine kernel_irqchip=on", 0),
            ("-device vfio-pci,host=0b:00.0,addr=zz", 1),
            ("-device vfio-pci,host=0b:00.0,multifunction=maybe", 1),
            ("-device", 1),
            ("-device \"vfio-pci,host=0b:00.0", 1),
            ("-smbios type=1,serial=x -append '-device x'", 0),
            ("", 0),
        ] {
            let raw = RawDevices::parse(args);
            assert_eq!(raw.not_analysed.len(), notes, "{args}: {raw:?}");
        }
    }
}
