//! The property-string formats of a VM configuration's keys, except `hostpciN`'s.
//!
//! They decide which values Proxmox keeps when it reads a file (qemu-server 9.2). Two things are left out because they
//! depend on more than the value: the names of CPU models and flags, which come from another file and from the QEMU
//! release.

use super::patterns as is;
use super::property_string::{Check, Format, Key, KeyAlias};
use super::schema;

const FLAG: Check = Check::Boolean;
const INTEGER: Check = Check::Integer(None, None);
const VOLUME: Check = Check::Format(is::is_volume_id, "unable to parse volume ID");
const DRIVE_VOLUME: Check = Check::Format(is::is_drive_volume, "unable to parse volume ID");
const SIZE: Check = Check::Format(
    is::is_disk_size,
    "value does not look like a valid disk size",
);
const IMAGE_FORMAT: Check = Check::Enum(&["raw", "qcow", "qed", "qcow2", "vmdk", "cloop"]);
const URL_ENCODED: Check = Check::Format(is::is_url_encoded, "invalid urlencoded string");

pub(super) static MACHINE: Format = Format::new(&[
    Key::optional("type", Check::Pattern(is::is_machine_type))
        .default_key()
        .max_length(40),
    Key::optional("viommu", Check::Enum(&["intel", "virtio"])),
    Key::optional("aw-bits", Check::Number(Some(32), Some(64))),
    Key::optional("enable-s3", FLAG),
    Key::optional("enable-s4", FLAG),
]);

pub(super) static VGA: Format = Format::new(&[
    Key::optional(
        "type",
        Check::Enum(&[
            "cirrus",
            "qxl",
            "qxl2",
            "qxl3",
            "qxl4",
            "none",
            "serial0",
            "serial1",
            "serial2",
            "serial3",
            "std",
            "virtio",
            "virtio-gl",
            "vmware",
        ]),
    )
    .default_key(),
    Key::optional("memory", Check::Integer(Some(4), Some(512))),
    Key::optional("clipboard", Check::Enum(&["vnc"])),
]);

pub(super) static BOOT: Format = Format::new(&[
    Key::optional("legacy", Check::Pattern(is::is_legacy_boot)).default_key(),
    Key::optional("order", Check::Format(is_boot_order, "invalid boot device")),
]);

fn is_boot_order(text: &str) -> bool {
    is::split_list(text).all(schema::is_boot_device)
}

pub(super) static MEMORY: Format =
    Format::new(&[Key::required("current", Check::Integer(Some(16), None)).default_key()]);

pub(super) static AGENT: Format = Format::new(&[
    Key::required("enabled", FLAG).default_key(),
    Key::optional("fstrim_cloned_disks", FLAG),
    Key::optional("freeze-fs-on-backup", FLAG),
    Key::optional("type", Check::Enum(&["virtio", "isa"])),
]);

pub(super) static WATCHDOG: Format = Format::new(&[
    Key::optional("model", Check::Enum(&["i6300esb", "ib700"])).default_key(),
    Key::optional(
        "action",
        Check::Enum(&["reset", "shutdown", "poweroff", "pause", "debug", "none"]),
    ),
]);

pub(super) static IVSHMEM: Format = Format::new(&[
    Key::required("size", Check::Integer(Some(1), None)),
    Key::optional("name", Check::Pattern(is::is_shared_memory_name)),
]);

pub(super) static AUDIO: Format = Format::new(&[
    Key::required(
        "device",
        Check::Enum(&["ich9-intel-hda", "intel-hda", "AC97"]),
    ),
    Key::optional("driver", Check::Enum(&["spice", "none"])),
]);

pub(super) static SPICE: Format = Format::new(&[
    Key::optional("foldersharing", FLAG),
    Key::optional("videostreaming", Check::Enum(&["off", "all", "filter"])),
]);

pub(super) static SEV: Format = Format::new(&[
    Key::required("type", Check::Enum(&["std", "es", "snp"])).default_key(),
    Key::optional("no-debug", FLAG),
    Key::optional("no-key-sharing", FLAG),
    Key::optional("allow-smt", FLAG),
    Key::optional("kernel-hashes", FLAG),
]);

pub(super) static TDX: Format = Format::new(&[
    Key::required("type", Check::Enum(&["tdx"])).default_key(),
    Key::optional("attestation", FLAG),
    Key::optional("vsock-cid", Check::Integer(Some(2), None)),
    Key::optional("vsock-port", Check::Integer(Some(0), None)),
]);

pub(super) static CPU: Format = Format::new(&[
    Key::optional("cputype", Check::Text).default_key(),
    Key::optional("hidden", FLAG),
    Key::optional("hv-vendor-id", Check::Pattern(is::is_hyperv_vendor)),
    Key::optional("flags", Check::Pattern(is::is_cpu_flag_list)),
    Key::optional("guest-phys-bits", Check::Integer(Some(32), Some(64))),
    Key::optional(
        "phys-bits",
        Check::Format(
            is::is_phys_bits,
            "value must be an integer between 8 and 64 or 'host'",
        ),
    ),
]);

const SMBIOS_TEXT: Check = Check::Pattern(is::is_base64);

pub(super) static SMBIOS: Format = Format::new(&[
    Key::optional("uuid", Check::Pattern(is::is_uuid)),
    Key::optional("version", SMBIOS_TEXT),
    Key::optional("serial", SMBIOS_TEXT),
    Key::optional("manufacturer", SMBIOS_TEXT),
    Key::optional("product", SMBIOS_TEXT),
    Key::optional("sku", SMBIOS_TEXT),
    Key::optional("family", SMBIOS_TEXT),
    Key::optional("base64", FLAG),
]);

pub(super) static RNG: Format = Format::new(&[
    Key::required(
        "source",
        Check::Enum(&["/dev/urandom", "/dev/random", "/dev/hwrng"]),
    )
    .default_key(),
    Key::optional("max_bytes", INTEGER),
    Key::optional("period", INTEGER),
]);

pub(super) static META: Format = Format::new(&[
    Key::optional("ctime", Check::Integer(Some(0), None)),
    Key::optional("creation-qemu", Check::Pattern(is::is_version)),
]);

pub(super) static CICUSTOM: Format = Format::new(&[
    Key::optional("meta", VOLUME),
    Key::optional("network", VOLUME),
    Key::optional("user", VOLUME),
    Key::optional("vendor", VOLUME),
]);

pub(super) static NUMA: Format = Format::new(&[
    Key::required("cpus", Check::Pattern(is::is_range_list)),
    Key::optional("memory", Check::Number(None, None)),
    Key::optional("hostnodes", Check::Pattern(is::is_range_list)),
    Key::optional("policy", Check::Enum(&["preferred", "bind", "interleave"])),
]);

pub(super) static VIRTIOFS: Format = Format::new(&[
    Key::required(
        "dirid",
        Check::Format(is::is_config_id, "invalid configuration ID"),
    )
    .default_key(),
    Key::optional(
        "cache",
        Check::Enum(&["auto", "always", "metadata", "never"]),
    ),
    Key::optional("direct-io", FLAG),
    Key::optional("writeback", FLAG),
    Key::optional("expose-xattr", FLAG),
    Key::optional("expose-acl", FLAG),
]);

static MODEL_OF_MACADDR: KeyAlias = KeyAlias {
    of: "macaddr",
    names: "model",
};

macro_rules! nic_models {
    ($($model:literal),+ $(,)?) => {
        pub(super) static NET: Format = Format::new(&[
            Key::optional(
                "macaddr",
                Check::Format(is::is_mac_address, "value does not look like a valid unicast MAC address"),
            ),
            Key::required("model", Check::Enum(&[$($model),+])).default_key(),
            $(Key::key_alias($model, &MODEL_OF_MACADDR),)+
            Key::optional("bridge", Check::Format(is::is_bridge, "invalid bridge ID")),
            Key::optional("queues", Check::Integer(Some(0), Some(64))),
            Key::optional("rate", Check::Number(Some(0), None)),
            Key::optional("tag", Check::Integer(Some(1), Some(4094))),
            Key::optional("trunks", Check::Pattern(is::is_range_list)),
            Key::optional("firewall", FLAG),
            Key::optional("link_down", FLAG),
            Key::optional("mtu", Check::Integer(Some(1), Some(65520))),
        ]);
    };
}

nic_models!(
    "e1000",
    "e1000-82540em",
    "e1000-82544gc",
    "e1000-82545em",
    "e1000e",
    "i82551",
    "i82557b",
    "i82559er",
    "ne2k_isa",
    "ne2k_pci",
    "pcnet",
    "rtl8139",
    "virtio",
    "vmxnet3",
);

pub(super) static IPCONFIG: Format = Format::new(&[
    Key::optional(
        "ip",
        Check::Format(
            is::is_ipv4_config,
            "value does not look like a valid ipv4 network configuration",
        ),
    ),
    Key::optional(
        "gw",
        Check::Format(is::is_ipv4, "value does not look like a valid IPv4 address"),
    )
    .requires("ip"),
    Key::optional(
        "ip6",
        Check::Format(
            is::is_ipv6_config,
            "value does not look like a valid ipv6 network configuration",
        ),
    ),
    Key::optional(
        "gw6",
        Check::Format(is::is_ipv6, "value does not look like a valid IPv6 address"),
    )
    .requires("ip6"),
]);

pub(super) static USB: Format = Format::new(&[
    Key::optional("host", Check::Pattern(is::is_usb_host)).default_key(),
    Key::optional(
        "mapping",
        Check::Format(is::is_config_id, "invalid configuration ID"),
    ),
    Key::optional("usb3", FLAG),
]);

/// What all drives have.
static DRIVE: [Key; 45] = [
    Key::alias("volume", "file"),
    Key::required("file", DRIVE_VOLUME).default_key(),
    Key::optional("media", Check::Enum(&["cdrom", "disk"])),
    Key::optional("cyls", INTEGER),
    Key::optional("heads", INTEGER),
    Key::optional("secs", INTEGER),
    Key::optional("trans", Check::Enum(&["none", "lba", "auto"])),
    Key::optional("snapshot", FLAG),
    Key::optional(
        "cache",
        Check::Enum(&["none", "writethrough", "writeback", "unsafe", "directsync"]),
    ),
    Key::optional("format", IMAGE_FORMAT),
    Key::optional("size", SIZE),
    Key::optional("backup", FLAG),
    Key::optional("replicate", FLAG),
    Key::optional("rerror", Check::Enum(&["ignore", "report", "stop"])),
    Key::optional(
        "werror",
        Check::Enum(&["enospc", "ignore", "report", "stop"]),
    ),
    Key::optional("aio", Check::Enum(&["native", "threads", "io_uring"])),
    Key::optional("discard", Check::Enum(&["ignore", "on"])),
    Key::optional("detect_zeroes", FLAG),
    Key::optional("serial", URL_ENCODED).max_length(60),
    Key::optional("shared", FLAG),
    Key::optional("bps", INTEGER),
    Key::optional("bps_rd", INTEGER),
    Key::optional("bps_wr", INTEGER),
    Key::optional("mbps", NUMBER),
    Key::optional("mbps_rd", NUMBER),
    Key::optional("mbps_wr", NUMBER),
    Key::optional("iops", INTEGER),
    Key::optional("iops_rd", INTEGER),
    Key::optional("iops_wr", INTEGER),
    Key::optional("mbps_max", NUMBER),
    Key::optional("mbps_rd_max", NUMBER),
    Key::optional("mbps_wr_max", NUMBER),
    Key::optional("iops_max", INTEGER),
    Key::optional("iops_rd_max", INTEGER),
    Key::optional("iops_wr_max", INTEGER),
    Key::optional("bps_max_length", BURST),
    Key::optional("bps_rd_max_length", BURST),
    Key::optional("bps_wr_max_length", BURST),
    Key::optional("iops_max_length", BURST),
    Key::optional("iops_rd_max_length", BURST),
    Key::optional("iops_wr_max_length", BURST),
    Key::alias("bps_rd_length", "bps_rd_max_length"),
    Key::alias("bps_wr_length", "bps_wr_max_length"),
    Key::alias("iops_rd_length", "iops_rd_max_length"),
    Key::alias("iops_wr_length", "iops_wr_max_length"),
];

const NUMBER: Check = Check::Number(None, None);
const BURST: Check = Check::Integer(Some(1), None);
const MODEL: Key = Key::optional("model", URL_ENCODED).max_length(120);
const SSD: Key = Key::optional("ssd", FLAG);
const WWN: Key = Key::optional("wwn", Check::Pattern(is::is_wwn));
const IOTHREAD: Key = Key::optional("iothread", FLAG);
const READ_ONLY: Key = Key::optional("ro", FLAG);

pub(super) static IDE: Format = Format::with(&DRIVE, &[MODEL, SSD, WWN]);
pub(super) static SATA: Format = Format::with(&DRIVE, &[SSD, WWN]);
pub(super) static VIRTIO: Format = Format::with(&DRIVE, &[IOTHREAD, READ_ONLY]);
pub(super) static SCSI: Format = Format::with(
    &DRIVE,
    &[
        IOTHREAD,
        READ_ONLY,
        SSD,
        WWN,
        Key::optional("product", Check::Pattern(is::is_scsi_product)),
        Key::optional("vendor", Check::Pattern(is::is_scsi_vendor)),
        Key::optional("queues", Check::Integer(Some(2), None)),
        Key::optional("scsiblock", FLAG),
    ],
);

pub(super) static EFIDISK: Format = Format::new(&[
    Key::alias("volume", "file"),
    Key::required("file", DRIVE_VOLUME).default_key(),
    Key::optional("format", IMAGE_FORMAT),
    Key::optional("size", SIZE),
    Key::optional("efitype", Check::Enum(&["2m", "4m"])),
    Key::optional("pre-enrolled-keys", FLAG),
    Key::optional("ms-cert", Check::Enum(&["2011", "2023", "2023w"])),
]);

pub(super) static TPMSTATE: Format = Format::new(&[
    Key::alias("volume", "file"),
    Key::required("file", DRIVE_VOLUME).default_key(),
    Key::optional("size", SIZE),
    Key::optional("version", Check::Enum(&["v1.2", "v2.0"])),
]);

pub(super) static UNUSED: Format = Format::new(&[
    Key::alias("volume", "file"),
    Key::required("file", VOLUME).default_key(),
]);

#[cfg(test)]
mod tests {
    use super::{AGENT, BOOT, IDE, MACHINE, NET, SCSI, VGA};

    #[test]
    fn typical_values_fit() {
        for (format, value) in [
            (&MACHINE, "q35,viommu=intel,aw-bits=48"),
            (&VGA, "qxl,memory=32"),
            (&VGA, "none"),
            (&BOOT, "order=scsi0;net0;hostpci0"),
            (&BOOT, "cdn"),
            (&AGENT, "1,fstrim_cloned_disks=yes"),
            (
                &NET,
                "virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1,tag=7",
            ),
            (
                &SCSI,
                "local-lvm:vm-100-disk-0,size=32G,iothread=1,discard=on",
            ),
            (&SCSI, "/dev/disk/by-id/x,ssd=1"),
            (&IDE, "none,media=cdrom"),
            (&IDE, "volume=local:iso/x.iso,media=cdrom,size=1.5G"),
        ] {
            assert_eq!(format.parse(value).err(), None, "{value}");
        }
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        for (format, value) in [
            (&MACHINE, "q36"),
            (&VGA, "qxl,memory=2"),
            (&BOOT, "order=efidisk0"),
            (&BOOT, "order=hostpci16"),
            (&AGENT, "on"),
            (&NET, "virtio=BC:24:11:00:00:01,model=e1000"),
            (&NET, "bridge=vmbr0"),
            (&SCSI, "vm-100-disk-0"),
            (&SCSI, "local:1,model=x"),
            (&IDE, "local:1,iothread=1"),
            (&IDE, "local:1,file=local:2"),
        ] {
            assert!(format.parse(value).is_err(), "{value}");
        }
    }
}
