//! Reads the policy files, and says what is wrong with them.

use std::path::Path;

use crate::host::Host;
use crate::settings::{self, CLUSTER_FILE, Mode, NODE_FILE, Policy, Settings};
use crate::vmconf::Vmid;

/// The policy files of this node.
#[derive(Debug, Default)]
pub struct Policies {
    files: Vec<Policy>,
    /// Why a file is not used, one line each.
    pub problems: Vec<String>,
}

impl Policies {
    /// Reads the cluster's and the node's file, or `named` in place of both.
    ///
    /// A file that cannot be read, that others could have written, or that has an error is left out, and a problem tells
    /// so.
    pub fn read(host: &Host, named: Option<&Path>) -> Self {
        let mut policies = Self::default();
        if let Some(path) = named {
            let shown = path.display().to_string();
            match host.named_policy_file(path) {
                Ok(None) => policies.problems.push(format!("{shown}: no such file")),
                Ok(Some(file)) => policies.add(
                    &shown,
                    file.problem.as_ref().map(ToString::to_string),
                    &file.bytes,
                ),
                Err(error) => policies.problems.push(error.in_words()),
            }
            return policies;
        }
        for path in [CLUSTER_FILE, NODE_FILE] {
            match host.policy_file(path) {
                Ok(None) => {}
                Ok(Some(file)) => policies.add(
                    path,
                    file.problem.as_ref().map(ToString::to_string),
                    &file.bytes,
                ),
                Err(error) => policies.problems.push(error.in_words()),
            }
        }
        policies
    }

    fn add(&mut self, path: &str, untrusted: Option<String>, bytes: &[u8]) {
        if let Some(why) = untrusted {
            self.problems.push(format!("{path} is not trusted: {why}"));
            return;
        }
        let parsed = std::str::from_utf8(bytes)
            .map_err(|error| {
                let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
                let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
                format!("{path}: line {line}: not UTF-8")
            })
            .and_then(|text| Policy::parse(path, text).map_err(|error| error.to_string()));
        match parsed {
            Ok(policy) => self.files.push(policy),
            Err(problem) => self.problems.push(problem),
        }
    }

    /// The policy for one VM.
    ///
    /// While a file has a problem nobody can tell what it was meant to say: the hook then warns at most.
    pub fn of(&self, vmid: Vmid) -> Settings {
        let mut settings = settings::resolve(&self.files, vmid);
        if !self.problems.is_empty() && matches!(settings.mode, Mode::Abort | Mode::Rewrite) {
            settings.mode = Mode::Warn;
        }
        settings
    }
}
