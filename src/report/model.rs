//! The answer of `check` as values: what the JSON says (schema 1) and what the text is written from.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use crate::pci::Widths;
use crate::verdict::{Reason, Verdict};
use crate::vmconf::{HostpciIndex, Vmid};

/// The version of the JSON's shape.
pub const SCHEMA: u32 = 1;

/// The whole answer.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Name of the node whose VMs these are.
    pub node: String,
    /// The kernel's release; `None` where it cannot be told.
    pub kernel: Option<String>,
    /// QEMU on this node.
    pub qemu: Qemu,
    /// The VMs, by ID.
    pub vms: Vec<Vm>,
}

/// A report whose VMs are made while it is written. It can be serialized once, and looks like a [`Report`].
pub struct Streamed<'a, I> {
    head: &'a Report,
    vms: RefCell<I>,
}

impl<'a, I: Iterator<Item = Vm>> Streamed<'a, I> {
    /// The head's own VMs are not written.
    pub const fn new(head: &'a Report, vms: I) -> Self {
        Self {
            head,
            vms: RefCell::new(vms),
        }
    }
}

impl<I: Iterator<Item = Vm>> Serialize for Streamed<'_, I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Report {
            schema,
            node,
            kernel,
            qemu,
            vms: _,
        } = self.head;
        let mut report = serializer.serialize_struct("Report", 5)?;
        report.serialize_field("schema", schema)?;
        report.serialize_field("node", node)?;
        report.serialize_field("kernel", kernel)?;
        report.serialize_field("qemu", qemu)?;
        report.serialize_field("vms", &Vms(&self.vms))?;
        report.end()
    }
}

struct Vms<'a, I>(&'a RefCell<I>);

impl<I: Iterator<Item = Vm>> Serialize for Vms<'_, I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&mut *self.0.borrow_mut())
    }
}

/// QEMU as installed.
#[derive(Clone, Debug, Serialize)]
pub struct Qemu {
    /// Upstream version; `None` where it cannot be told.
    pub version: Option<String>,
    /// How this version decides: `none` before 8.1, `single-function` since.
    pub guard: &'static str,
    /// Whether that was read or measured for this version, not assumed.
    pub verified: bool,
}

/// One VM.
#[derive(Clone, Debug, Serialize)]
pub struct Vm {
    /// Its ID.
    pub vmid: Vmid,
    /// Its name, where it has one.
    pub name: Option<String>,
    /// `machine` as in the configuration; `i440fx` where it is not set.
    pub machine: String,
    /// The worst verdict of its entries.
    pub verdict: Verdict,
    /// Whether the hook would say something under the policy.
    pub reported: bool,
    /// Why a loss is not reported, or why the VM was not looked at.
    pub skipped: Option<String>,
    /// Why Proxmox would refuse to start this VM.
    pub start_error: Option<String>,
    /// One for each `hostpciN`.
    pub entries: Vec<Entry>,
    /// Guest root ports with functions that `args` adds.
    pub args_ports: Vec<ArgsPort>,
    /// Parts of `args` that were not analysed.
    pub args_not_analysed: Vec<String>,
    /// Lines that Proxmox drops while reading the configuration.
    pub dropped_lines: Vec<DroppedLine>,
    /// Why the VM could not be examined at all.
    pub error: Option<String>,
}

/// One `hostpciN`.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// `hostpciN`.
    pub key: String,
    /// The value as in the configuration.
    pub value: String,
    /// How the device is named: all-functions, explicit, list, mapping, mdev.
    pub form: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// Why `AtomicOps` are lost.
    pub reason: Option<Reason>,
    /// Why Proxmox refuses or drops the entry.
    pub error: Option<String>,
    /// Whether Proxmox drops the entry and starts the VM without the device.
    pub dropped: bool,
    /// What the entry may stand for on this node.
    pub alternatives: Vec<Alternative>,
    /// The guest port that the function of [`Self::subject`] sits on.
    pub guest_port: Option<String>,
    /// What that port will advertise.
    pub guest_widths: Widths,
    /// What it would advertise with the fix.
    pub possible_widths: Widths,
    /// For an entry of several functions: what a rule that intersects their widths would advertise.
    pub intersection_widths: Option<Widths>,
    /// The function that needs `AtomicOps`, on which the verdict rests.
    pub subject: Option<String>,
    /// The repair, where there is one.
    pub fix: Option<Fix>,
    /// Why a loss has no fix.
    pub no_fix: Option<String>,
}

/// One set of functions that an entry may stand for.
#[derive(Clone, Debug, Serialize)]
pub struct Alternative {
    /// The address or prefix it was found by.
    pub path: String,
    /// Whether Proxmox would take this one if nothing else holds a device.
    pub chosen: bool,
    /// Its functions, in the guest's order.
    pub functions: Vec<Function>,
}

/// One passed function.
#[derive(Clone, Debug, Serialize)]
pub struct Function {
    /// Address on the host.
    pub host: String,
    /// Vendor ID, `0x1002`.
    pub vendor: String,
    /// Device ID.
    pub device: String,
    /// Class code, `0x030000`.
    pub class: String,
    /// Name from pci.ids.
    pub name: Option<String>,
    /// Place in the guest.
    pub guest: Place,
    /// IOMMU group.
    pub iommu_group: Option<u32>,
    /// Bound driver.
    pub driver: Option<String>,
    /// Bridges above, host root port first.
    pub path: Vec<Bridge>,
    /// Its own completer bits.
    pub completer: Widths,
    /// What `vfio-pci` reports for it.
    pub host_widths: Widths,
    /// Why `host_widths` is empty.
    pub host_reason: Option<&'static str>,
    /// The same in words.
    pub host_detail: Option<String>,
    /// Where the path is denied.
    pub host_denied_at: Option<String>,
    /// What cannot be seen and decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncertain: Option<String>,
}

/// QEMU's `bus=` and `addr=`.
#[derive(Clone, Debug, Serialize)]
pub struct Place {
    /// `bus=`.
    pub bus: String,
    /// Slot of `addr=`.
    pub slot: u8,
    /// Function of `addr=`.
    pub function: u8,
    /// `multifunction=on`.
    pub multifunction: bool,
}

/// One bridge above a function.
#[derive(Clone, Debug, Serialize)]
pub struct Bridge {
    /// Its address; `None` in the one entry that says that there is no root port.
    pub addr: Option<String>,
    /// `root-port`, `upstream-port`, `downstream-port`, `pci-bridge`, `none`, `unknown`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// DEVCAP2, where the register exists.
    pub devcap2: Option<String>,
    /// DEVCTL2, where the register exists.
    pub devctl2: Option<String>,
    /// Routes `AtomicOps`; `None` where it cannot be told.
    pub routing: Option<bool>,
    /// Completer bits.
    pub completer: Option<Widths>,
    /// Egress blocking.
    pub egress_blocking: Option<bool>,
}

/// A guest root port that `args` puts functions on.
#[derive(Clone, Debug, Serialize)]
pub struct ArgsPort {
    /// QEMU's id.
    pub port: String,
    /// QEMU's model.
    pub model: String,
    /// Functions on it, as `{host, addr, multifunction}`.
    pub functions: Vec<ArgsFunction>,
    /// What the port will advertise.
    pub guest_widths: Widths,
    /// Why nothing although the host gives.
    pub reason: Option<Reason>,
}

/// A function that `args` passes.
#[derive(Clone, Debug, Serialize)]
pub struct ArgsFunction {
    /// Address on the host.
    pub host: String,
    /// `slot.function` on the port.
    pub addr: String,
    /// `multifunction=on`.
    pub multifunction: bool,
}

/// A line that Proxmox drops.
#[derive(Clone, Debug, Serialize)]
pub struct DroppedLine {
    /// Line of the file, from 1.
    pub line: usize,
    /// Why.
    pub text: String,
}

/// A repair.
#[derive(Clone, Debug, Serialize)]
pub struct Fix {
    /// `explicit`, `split`, `mapping`, or `advice` for what a person has to decide.
    pub strategy: &'static str,
    /// Keys to set, with their new values.
    pub set: BTreeMap<HostpciIndex, String>,
    /// Commands that do it.
    pub commands: Vec<String>,
    /// What to know before.
    pub notes: Vec<String>,
    /// For `mapping`: the change as values.
    #[serde(skip)]
    pub mapping: Option<MappingChange>,
}

/// A change of a cluster mapping. Mappings belong to the cluster: only a person makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingChange {
    /// The mapping's name.
    pub name: String,
    /// Its `map` values, each a property string.
    pub before: Vec<String>,
    /// The same with this node's narrowed to one function.
    pub after: Vec<String>,
}
