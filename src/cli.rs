//! The command line: definitions, and which function each word leads to.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::commands;
use crate::hook;
use crate::report::style::{Color, Palette};
use crate::vmconf::{Phase, Vmid};

/// Exit status of a usage, configuration or run-time error.
pub const EXIT_ERROR: u8 = 2;

/// Keeps PCIe AtomicOps in VMs with passed-through GPUs, for Proxmox VE.
#[derive(Debug, Parser)]
#[command(
    name = "pve-atomicops",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
#[command(
    long_about = "Keeps PCIe AtomicOps in VMs with passed-through GPUs, for Proxmox VE.\n\n\
    A GPU that is passed with all its functions becomes a multifunction device in the guest, and QEMU then hides \
    AtomicOps from it: multi-GPU compute such as ROCm's RCCL fails, three layers above the cause. This program reads a \
    VM's configuration and the host's PCIe path, predicts what the guest will see, explains a loss, and on request \
    repairs the configuration."
)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Read and write every system path below this directory; no command of the host is run then
    #[arg(long, global = true, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Read this policy file in place of the cluster's and the node's
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Colour the output
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: Color,
    /// Print only errors and what was asked for
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Tell on standard error what is read
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

impl Global {
    /// The palette for standard output.
    pub fn palette(&self) -> Palette {
        let colored = match self.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                std::io::stdout().is_terminal()
                    && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
                    && std::env::var_os("TERM").is_none_or(|value| value != "dumb")
            }
        };
        if colored {
            Palette::COLORED
        } else {
            Palette::PLAIN
        }
    }
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// What Proxmox calls as the VM's hookscript
    Hook {
        /// The VM
        vmid: Vmid,
        /// pre-start, post-start, pre-stop or post-stop
        phase: Phase,
    },
    /// Tell what each VM gets, what it loses and why, and the fix
    Check(commands::check::Arguments),
    /// Show a VM's configuration as Proxmox reads it
    Config(commands::config::Arguments),
}

/// Runs the program with the process' own arguments.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(call) = hook_call(&arguments) {
        return ExitCode::from(hook::run(&call));
    }
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // A closed standard output is no reason to fail.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(EXIT_ERROR));
        }
    };
    match dispatch(&cli) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!(
                "error: {}",
                crate::report::escape::text(&format!("{error:#}"))
            );
            ExitCode::from(EXIT_ERROR)
        }
    }
}

fn dispatch(cli: &Cli) -> anyhow::Result<u8> {
    let global = &cli.global;
    crate::logging::start(global.verbose);
    match &cli.command {
        Command::Hook { vmid, phase } => Ok(hook::run(&hook::Call {
            root: global.root.clone(),
            config: global.config.clone(),
            vmid: *vmid,
            phase: *phase,
        })),
        Command::Check(arguments) => commands::check::run(global, arguments),
        Command::Config(arguments) => commands::config::run(global, arguments),
    }
}

/// The hook's own call, recognised without the full command line: `NAME VMID PHASE`, `NAME hook VMID PHASE`.
///
/// A hook should cost about as much as starting a program, and building the definitions above is most of what is not
/// needed for it.
fn hook_call(arguments: &[OsString]) -> Option<hook::Call> {
    let mut words = arguments.iter().skip(1).map(|word| word.to_str());
    let (vmid, phase) = match (words.next(), words.next(), words.next(), words.next()) {
        (Some(vmid), Some(phase), None, None) => (vmid?, phase?),
        (Some(Some("hook")), Some(vmid), Some(phase), None) => (vmid?, phase?),
        _ => return None,
    };
    Some(hook::Call {
        root: None,
        config: None,
        vmid: vmid.parse().ok()?,
        phase: phase.parse().ok()?,
    })
}
