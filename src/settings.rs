//! The policy file: what the hook may do, for all VMs and for single ones.
//!
//! Layers, later ones win key by key: built-in defaults, the cluster's file, the node's file, then the `[vm.VMID]`
//! tables of both in the same order. Reading the files is the business of [`crate::host`]; this module takes their text.

pub mod chain;

use std::collections::BTreeMap;
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use crate::vmconf::Vmid;

/// The cluster-wide policy file.
pub const CLUSTER_FILE: &str = "/etc/pve/atomicops.toml";
/// This node's policy file.
pub const NODE_FILE: &str = "/etc/pve-atomicops/config.toml";

/// What the hook does about a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing at all.
    Off,
    /// Says it in the task log.
    Warn,
    /// Says it and refuses the start.
    Abort,
    /// Repairs the VM's configuration.
    Rewrite,
}

/// How a card with several functions is repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Strategy {
    /// Only the function that needs AtomicOps stays in the VM.
    Explicit,
    /// The other functions move to hostpci entries of their own.
    Split,
    /// Split where enough indices are free, else explicit.
    Auto,
}

impl Strategy {
    /// The word in the policy file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Explicit => "explicit",
            Self::Split => "split",
            Self::Auto => "auto",
        }
    }
}

/// What follows a rewrite in pre-start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRewrite {
    /// This start is refused; the next one uses the new configuration.
    Stop,
    /// As `Stop`, and a new start is arranged.
    Restart,
    /// This start goes on with the old configuration.
    Continue,
}

/// Which devices need `AtomicOps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Devices {
    /// Display controllers and processing accelerators: classes 03 and 12.
    Gpu,
    /// Every passed function.
    Any,
}

impl Devices {
    /// Whether a function with this 24-bit class code is one of them.
    pub const fn includes(self, class: u32) -> bool {
        match self {
            Self::Gpu => matches!(class >> 16, 0x03 | 0x12),
            Self::Any => true,
        }
    }
}

/// What to do about Windows guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// Warn, never rewrite.
    Warn,
    /// Say nothing.
    Skip,
    /// Rewrite like any other guest.
    Rewrite,
}

/// The policy for one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What the hook does about a finding.
    pub mode: Mode,
    /// How it repairs.
    pub strategy: Strategy,
    /// What follows a rewrite in pre-start.
    pub after_rewrite: AfterRewrite,
    /// Which devices count.
    pub devices: Devices,
    /// How many such functions the VM must pass before anything is reported.
    pub min_gpus: u32,
    /// What to do about Windows guests.
    pub windows: Windows,
    /// Further hookscripts: absolute paths or volume IDs.
    pub chain: Vec<String>,
    /// Whether findings go to syslog as well.
    pub syslog: bool,
    /// The hook's own limit.
    pub timeout: Duration,
    /// Whether post-start compares the running guest with the prediction.
    pub verify: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::Warn,
            strategy: Strategy::Explicit,
            after_rewrite: AfterRewrite::Stop,
            devices: Devices::Gpu,
            min_gpus: 2,
            windows: Windows::Warn,
            chain: Vec::new(),
            syslog: true,
            timeout: Duration::from_secs(10),
            verify: false,
        }
    }
}

/// A policy file that cannot be used. `Display` names the file, the line and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: line {line}: {problem}")]
pub struct SettingsError {
    /// The file as the user knows it.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// What is wrong, in words.
    pub problem: String,
}

/// The values that one table of one file sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Layer {
    mode: Option<Mode>,
    strategy: Option<Strategy>,
    after_rewrite: Option<AfterRewrite>,
    devices: Option<Devices>,
    min_gpus: Option<u32>,
    windows: Option<Windows>,
    chain: Option<Vec<String>>,
    syslog: Option<bool>,
    timeout: Option<Duration>,
    verify: Option<bool>,
}

/// One policy file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    general: Layer,
    vms: BTreeMap<Vmid, Layer>,
}

/// The key names, for the message about an unknown one.
const KEYS: &str =
    "mode, strategy, after_rewrite, devices, min_gpus, windows, chain, syslog, timeout_s, verify";

/// The longest `timeout_s`: one hour.
const MAX_TIMEOUT_S: i64 = 3600;

impl Policy {
    /// Reads a policy file's text; `file` is its name for messages.
    pub fn parse(file: &str, text: &str) -> Result<Self, SettingsError> {
        let source = Source { file, text };
        let table = DeTable::parse(text).map_err(|error| {
            source.error(
                error.span().map_or(0, |span| span.start),
                error.message().to_owned(),
            )
        })?;
        let mut policy = Self::default();
        for (key, value) in table.get_ref() {
            let at = key.span().start;
            if key.get_ref() != "vm" {
                policy
                    .general
                    .set(&source, at, key.get_ref(), value.get_ref())?;
                continue;
            }
            let DeValue::Table(vms) = value.get_ref() else {
                return Err(
                    source.error(at, "'vm' holds one table for each VM: [vm.101]".to_owned())
                );
            };
            for (vmid, value) in vms {
                let at = vmid.span().start;
                let id = vmid
                    .get_ref()
                    .parse::<Vmid>()
                    .map_err(|error| source.error(at, error.to_string()))?;
                let DeValue::Table(keys) = value.get_ref() else {
                    return Err(source.error(at, format!("'vm.{id}' must be a table: [vm.{id}]")));
                };
                let layer = policy.vms.entry(id).or_default();
                for (key, value) in keys {
                    layer.set(&source, key.span().start, key.get_ref(), value.get_ref())?;
                }
            }
        }
        Ok(policy)
    }
}

/// The policy for one VM, from the files in their order.
pub fn resolve<'a>(policies: impl IntoIterator<Item = &'a Policy> + Clone, vmid: Vmid) -> Settings {
    let general = policies.clone().into_iter().map(|policy| &policy.general);
    let own = policies
        .into_iter()
        .filter_map(|policy| policy.vms.get(&vmid));
    let mut settings = Settings::default();
    for layer in general.chain(own) {
        layer.apply(&mut settings);
    }
    settings
}

/// A file's text, to turn offsets into lines.
struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn error(&self, offset: usize, problem: String) -> SettingsError {
        let before = self.text.as_bytes().get(..offset).unwrap_or_default();
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        SettingsError {
            file: self.file.to_owned(),
            line,
            problem,
        }
    }
}

impl Layer {
    fn set(
        &mut self,
        source: &Source,
        at: usize,
        key: &str,
        value: &DeValue,
    ) -> Result<(), SettingsError> {
        let bad = |expected: &str| source.error(at, format!("'{key}' must be {expected}"));
        match key {
            "mode" => {
                self.mode = Some(
                    word(
                        value,
                        &[
                            ("off", Mode::Off),
                            ("warn", Mode::Warn),
                            ("abort", Mode::Abort),
                            ("rewrite", Mode::Rewrite),
                        ],
                    )
                    .map_err(|words| bad(&words))?,
                );
            }
            "strategy" => {
                self.strategy = Some(
                    word(
                        value,
                        &[
                            ("explicit", Strategy::Explicit),
                            ("split", Strategy::Split),
                            ("auto", Strategy::Auto),
                        ],
                    )
                    .map_err(|words| bad(&words))?,
                );
            }
            "after_rewrite" => {
                self.after_rewrite = Some(
                    word(
                        value,
                        &[
                            ("stop", AfterRewrite::Stop),
                            ("restart", AfterRewrite::Restart),
                            ("continue", AfterRewrite::Continue),
                        ],
                    )
                    .map_err(|words| bad(&words))?,
                );
            }
            "devices" => {
                self.devices = Some(
                    word(value, &[("gpu", Devices::Gpu), ("any", Devices::Any)])
                        .map_err(|words| bad(&words))?,
                );
            }
            "windows" => {
                self.windows = Some(
                    word(
                        value,
                        &[
                            ("warn", Windows::Warn),
                            ("skip", Windows::Skip),
                            ("rewrite", Windows::Rewrite),
                        ],
                    )
                    .map_err(|words| bad(&words))?,
                );
            }
            "min_gpus" => {
                let number = integer(value).and_then(|number| u32::try_from(number).ok());
                self.min_gpus = Some(number.ok_or_else(|| bad("a whole number, 0 or more"))?);
            }
            "timeout_s" => {
                let seconds =
                    integer(value).filter(|seconds| (1..=MAX_TIMEOUT_S).contains(seconds));
                let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
                let seconds = seconds.ok_or_else(|| bad("a whole number of seconds, 1 to 3600"))?;
                self.timeout = Some(Duration::from_secs(seconds));
            }
            "syslog" => self.syslog = Some(boolean(value).ok_or_else(|| bad("true or false"))?),
            "verify" => self.verify = Some(boolean(value).ok_or_else(|| bad("true or false"))?),
            "chain" => {
                let scripts =
                    strings(value).filter(|scripts| scripts.iter().all(|script| is_script(script)));
                self.chain = Some(scripts.ok_or_else(|| {
                    bad("a list of absolute paths or volume IDs, such as [\"local:snippets/other.sh\"]")
                })?);
            }
            _ => {
                return Err(source.error(
                    at,
                    format!("unknown key '{key}'; the keys are {KEYS}, and tables [vm.VMID]"),
                ));
            }
        }
        Ok(())
    }

    fn apply(&self, settings: &mut Settings) {
        fn over<T: Clone>(target: &mut T, value: Option<&T>) {
            if let Some(value) = value {
                target.clone_from(value);
            }
        }
        over(&mut settings.mode, self.mode.as_ref());
        over(&mut settings.strategy, self.strategy.as_ref());
        over(&mut settings.after_rewrite, self.after_rewrite.as_ref());
        over(&mut settings.devices, self.devices.as_ref());
        over(&mut settings.min_gpus, self.min_gpus.as_ref());
        over(&mut settings.windows, self.windows.as_ref());
        over(&mut settings.chain, self.chain.as_ref());
        over(&mut settings.syslog, self.syslog.as_ref());
        over(&mut settings.timeout, self.timeout.as_ref());
        over(&mut settings.verify, self.verify.as_ref());
    }
}

/// The value for one of `words`; else the words, for a message.
fn word<T: Copy>(value: &DeValue, words: &[(&str, T)]) -> Result<T, String> {
    let found = match value {
        DeValue::String(text) => words.iter().find(|(word, _)| *word == text.as_ref()),
        _ => None,
    };
    found.map(|(_, value)| *value).ok_or_else(|| {
        let quoted: Vec<_> = words
            .iter()
            .map(|(word, _)| format!("\"{word}\""))
            .collect();
        match quoted.split_last() {
            Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
            None => String::new(),
        }
    })
}

fn integer(value: &DeValue) -> Option<i64> {
    match value {
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
        _ => None,
    }
}

fn boolean(value: &DeValue) -> Option<bool> {
    match value {
        DeValue::Boolean(value) => Some(*value),
        _ => None,
    }
}

fn strings(value: &DeValue) -> Option<Vec<String>> {
    let DeValue::Array(array) = value else {
        return None;
    };
    let string = |value: &DeValue| match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        _ => None,
    };
    array.iter().map(|value| string(value.get_ref())).collect()
}

/// Whether a chain entry has the form of an absolute path or of a volume ID.
fn is_script(script: &str) -> bool {
    let volume = |(storage, file): (&str, &str)| {
        !storage.is_empty() && !storage.contains('/') && !file.is_empty()
    };
    (script.starts_with('/') || script.split_once(':').is_some_and(volume))
        && !script.contains('\0')
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{AfterRewrite, Devices, Mode, Policy, Settings, Strategy, Windows, resolve};
    use crate::vmconf::Vmid;

    fn vm(number: u32) -> Vmid {
        Vmid::new(number).unwrap()
    }

    fn problem(text: &str) -> String {
        Policy::parse("/etc/pve/atomicops.toml", text)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn defaults_are_the_contracts() {
        let settings = resolve(&[], vm(100));
        assert_eq!(settings, Settings::default());
        assert_eq!((settings.mode, settings.min_gpus), (Mode::Warn, 2));
        assert_eq!(settings.timeout, Duration::from_secs(10));
    }

    #[test]
    fn later_layers_win_key_by_key() {
        let cluster =
            "mode = 'abort'\nmin_gpus = 1\n[vm.101]\nmode = 'off'\nchain = ['local:snippets/a']\n";
        let node = "mode = 'warn'\nstrategy = 'split'\n[vm.101]\nwindows = 'skip'\n";
        let files = [
            Policy::parse("cluster", cluster).unwrap(),
            Policy::parse("node", node).unwrap(),
        ];
        let general = resolve(&files, vm(100));
        assert_eq!(
            (general.mode, general.min_gpus, general.strategy),
            (Mode::Warn, 1, Strategy::Split)
        );
        let own = resolve(&files, vm(101));
        assert_eq!(
            (own.mode, own.windows, own.min_gpus),
            (Mode::Off, Windows::Skip, 1)
        );
        assert_eq!(own.chain, ["local:snippets/a"]);
    }

    #[test]
    fn every_key_is_read() {
        let text = "mode='rewrite'\nstrategy='auto'\nafter_rewrite='restart'\ndevices='any'\nmin_gpus=0\n\
                    windows='rewrite'\nchain=['/usr/local/bin/x']\nsyslog=false\ntimeout_s=0x10\nverify=true\n";
        let settings = resolve(&[Policy::parse("f", text).unwrap()], vm(100));
        let expected = Settings {
            mode: Mode::Rewrite,
            strategy: Strategy::Auto,
            after_rewrite: AfterRewrite::Restart,
            devices: Devices::Any,
            min_gpus: 0,
            windows: Windows::Rewrite,
            chain: vec!["/usr/local/bin/x".to_owned()],
            syslog: false,
            timeout: Duration::from_secs(16),
            verify: true,
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn errors_name_file_line_and_key() {
        assert_eq!(
            problem("mode = 'warn'\n\nmodus = 1\n"),
            "/etc/pve/atomicops.toml: line 3: unknown key 'modus'; the keys are mode, strategy, after_rewrite, \
             devices, min_gpus, windows, chain, syslog, timeout_s, verify, and tables [vm.VMID]"
        );
        let file = "/etc/pve/atomicops.toml: line ";
        for (text, rest) in [
            (
                "mode = 'Warn'",
                "1: 'mode' must be \"off\", \"warn\", \"abort\" or \"rewrite\"",
            ),
            (
                "\nmode = 1",
                "2: 'mode' must be \"off\", \"warn\", \"abort\" or \"rewrite\"",
            ),
            (
                "min_gpus = -1",
                "1: 'min_gpus' must be a whole number, 0 or more",
            ),
            (
                "min_gpus = 1.5",
                "1: 'min_gpus' must be a whole number, 0 or more",
            ),
            (
                "timeout_s = 0",
                "1: 'timeout_s' must be a whole number of seconds, 1 to 3600",
            ),
            ("syslog = 'yes'", "1: 'syslog' must be true or false"),
            ("vm = 1", "1: 'vm' holds one table for each VM: [vm.101]"),
            (
                "[vm]\n99 = {}",
                "2: '99' is not a VM ID: a number from 100 to 999999999, without leading zeros",
            ),
            ("vm.101 = 3", "1: 'vm.101' must be a table: [vm.101]"),
            (
                "chain = ['x']",
                "1: 'chain' must be a list of absolute paths or volume IDs, such as [\"local:snippets/other.sh\"]",
            ),
        ] {
            assert_eq!(problem(text), format!("{file}{rest}"), "{text}");
        }
        assert!(problem("mode = 'warn'\nmode = 'off'\n").starts_with(&format!("{file}2: ")));
        assert!(problem("a = [\n").starts_with(file));
        let nested = problem("[vm.101]\nmode = 'off'\nfoo = 1\n");
        assert!(
            nested.starts_with(&format!("{file}3: unknown key 'foo'")),
            "{nested}"
        );
    }

    #[test]
    fn gpu_classes() {
        for (class, gpu) in [
            (0x03_00_00, true),
            (0x03_02_00, true),
            (0x12_00_00, true),
            (0x04_03_00, false),
        ] {
            assert_eq!(Devices::Gpu.includes(class), gpu);
            assert!(Devices::Any.includes(class));
        }
    }
}
