//! `verify`: what a running guest's root ports really advertise, beside the prediction.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use log::Level;

use super::{check, host, print};
use crate::cli::{Format, Global};
use crate::examine::Survey;
use crate::logging;
use crate::pci::{Registers, Sbdf};
use crate::qmp::QmpError;
use crate::report::{escape, verified};
use crate::rules::qemu;
use crate::settings::{Mode, Settings};
use crate::verify::compare::{self, Comparison, HostSide, Source};
use crate::verify::{VerifyError, readings};
use crate::vmconf::Vmid;
use crate::vmconf::document::Document;

/// How long it is tried without `--wait`, in seconds.
const LIMIT: u64 = 5;
/// The longest time that can be asked for, in seconds.
const LONGEST: u64 = 24 * 60 * 60;

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The VM, which has to run on this node
    pub vmid: Vmid,
    /// How long to wait for the guest's firmware
    #[arg(long, value_name = "SECONDS", default_value_t = LIMIT, value_parser = clap::value_parser!(u64).range(..=LONGEST))]
    pub wait: u64,
    /// Form of the answer
    #[arg(long, default_value = "text")]
    pub format: Format,
    /// Send the result to syslog as well
    #[arg(long)]
    pub syslog: bool,
}

/// Runs the command. Exit status 1 where a port does not read as predicted, or a device loses what its host could give.
pub fn run(global: &Global, arguments: &Arguments) -> anyhow::Result<u8> {
    let result = verify(global, arguments);
    if arguments.syslog {
        let (level, lines) = match &result {
            Ok((comparison, settings)) => {
                (level(comparison, settings), verified::lines(comparison))
            }
            Err(error) => (Level::Warn, vec![escape::text(&format!("{error:#}"))]),
        };
        let lines: Vec<_> = lines
            .iter()
            .map(|line| format!("VM {} verify: {line}", arguments.vmid))
            .collect();
        logging::to_syslog(global.root.as_deref(), level, &lines);
    }
    let (comparison, _) = result?;
    print(&match arguments.format {
        Format::Json => escape::json(&comparison).context("cannot write JSON")?,
        Format::Text => verified::text(&comparison, global.style()),
    })?;
    Ok(u8::from(!comparison.agrees || comparison.loses()))
}

/// A difference always matters; a loss where the hook would have said something.
fn level(comparison: &Comparison, settings: &Settings) -> Level {
    let gpus = comparison
        .entries
        .iter()
        .filter(|entry| entry.verdict != crate::verdict::Verdict::NotApplicable)
        .count();
    let counts = settings.mode != Mode::Off
        && u32::try_from(gpus).is_ok_and(|gpus| gpus >= settings.min_gpus);
    if !comparison.agrees || comparison.loses() && counts {
        Level::Warn
    } else {
        Level::Info
    }
}

fn verify(global: &Global, arguments: &Arguments) -> anyhow::Result<(Comparison, Settings)> {
    let deadline = Instant::now() + Duration::from_secs(arguments.wait);
    let vmid = arguments.vmid;
    let host = host(global)?;
    let settings = check::policies(&host, global)?.of(vmid);
    let Some(bytes) = host.vm_config(vmid).map_err(check::as_root)? else {
        bail!("{}", check::no_such_vm(&host, vmid));
    };
    if !host.running(vmid).map_err(check::as_root)? {
        bail!("VM {vmid} does not run");
    }
    let command = host.command_line(vmid).map_err(check::as_root)?;
    let readings = match readings(&host.qmp_socket(vmid), deadline) {
        Ok(readings) => Some(readings),
        Err(VerifyError::NoWindow) => None,
        Err(VerifyError::Qmp(error @ QmpError::Absent { .. })) => {
            return Err(error).with_context(|| format!("VM {vmid} has stopped"));
        }
        Err(error) => return Err(error).with_context(|| format!("VM {vmid}")),
    };
    // It may have been stopped and started again, by then with another configuration.
    if host.command_line(vmid).map_err(check::as_root)? != command {
        bail!("VM {vmid} was started anew during the reading: try it again");
    }
    let config = Document::parse(&bytes).decode();
    let survey = Survey::new(&host);
    let (composition, configured) = survey.compose(vmid, &config)?;
    let (guest, source) = match command {
        Some(command) => (survey.running(vmid, command), Source::Running),
        None => (configured.clone(), Source::Config),
    };
    let functions = guest.functions().iter().chain(configured.functions());
    let functions: BTreeSet<Sbdf> = functions.map(|function| function.host).collect();
    let sides = functions
        .into_iter()
        .map(|addr| (addr, host_side(&survey, &settings, addr)))
        .collect::<BTreeMap<_, _>>();
    // Of the QEMU that runs, which an upgrade since its start has not changed.
    let revision = match &readings {
        Some(readings) => qemu::Version::parse(&readings.qemu.to_string()).revision(),
        None => survey.qemu().revision(),
    };
    let comparison = compare::compare(&compare::Inputs {
        vmid,
        readings: readings.as_ref(),
        guest: &guest,
        source,
        config: (&composition, &configured),
        host: &sides,
        revision,
    });
    Ok((comparison, settings))
}

fn host_side(survey: &Survey, settings: &Settings, addr: Sbdf) -> HostSide {
    let answer = survey.answer(addr);
    let topology = survey.topology();
    let physical = topology.get(topology.physical(addr));
    HostSide {
        answer,
        requester_enabled: physical.and_then(|function| match &function.registers {
            Registers::Express(express) => express
                .devctl2
                .map(|devctl2| devctl2.atomic_op_requester_enable()),
            _ => None,
        }),
        needs: topology
            .get(addr)
            .is_some_and(|function| settings.devices.includes(function.class)),
    }
}
