//! The command line: definitions, and which function each word leads to.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::commands;
use crate::hook;
use crate::report::style::{Color, Palette};
use crate::report::text;
use crate::report::wrap::Columns;
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
    /// Read and write every system path below this directory, or read a capture; no command of the host is run then
    #[arg(long, global = true, value_name = "DIR|FILE")]
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

    /// How a report on standard output is to look.
    pub fn style(&self) -> text::Style {
        text::Style {
            palette: self.palette(),
            columns: Columns::of_stdout(),
            quiet: self.quiet,
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
    /// Show the host's PCI Express paths with their `AtomicOp` bits, and who passes what
    Topology(commands::topology::Arguments),
    /// Pack the files that this program reads, without names and secrets, for a bug report or a replay with --root
    Capture(commands::capture::Arguments),
    /// Show the repair of a VM as a diff, then make it
    Fix(commands::fix::Arguments),
    /// Take the last edit of `fix` or the hook back
    Undo(commands::undo::Arguments),
    /// Have Proxmox call the hook for VMs, keeping a hookscript that they have in its chain
    Attach(commands::attach::AttachArguments),
    /// Have Proxmox no longer call the hook for VMs, and give them their hookscript back
    Detach(commands::attach::DetachArguments),
    /// Compare what a running VM's guest root ports advertise with the prediction
    Verify(commands::verify::Arguments),
    /// Print a completion script for a shell
    Completions(commands::generated::CompletionArguments),
    /// Print a manual page, to be read with `man -l -`
    Man(commands::generated::ManArguments),
}

/// Runs the program with the process' own arguments, and gives its exit status.
pub fn main() -> u8 {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(call) = hook_call(&arguments) {
        return hook::run(&call);
    }
    if let Some(phase) = phase_of_the_future(&arguments) {
        hook::unknown_phase(phase);
        return 0;
    }
    let cli = match Cli::try_parse_from(as_hook(arguments)) {
        Ok(cli) => cli,
        Err(error) => {
            // A closed standard output is no reason to fail.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(EXIT_ERROR);
        }
    };
    match dispatch(&cli) {
        Ok(status) => status,
        Err(error) => {
            commands::complain(&format!(
                "error: {}",
                crate::report::escape::text(&format!("{error:#}"))
            ));
            EXIT_ERROR
        }
    }
}

fn dispatch(cli: &Cli) -> anyhow::Result<u8> {
    let global = &cli.global;
    crate::logging::start(global.verbose);
    match &cli.command {
        // It gives up what it can by itself.
        Command::Hook { .. } => {}
        // These call qm and pvesh, to which Proxmox may give a profile of their own.
        Command::Fix(_) | Command::Undo(_) | Command::Attach(_) | Command::Detach(_) => {
            crate::confine::command();
        }
        Command::Check(_)
        | Command::Config(_)
        | Command::Topology(_)
        | Command::Capture(_)
        | Command::Verify(_)
        | Command::Completions(_)
        | Command::Man(_) => crate::confine::reader(),
    }
    match &cli.command {
        Command::Hook { vmid, phase } => Ok(hook::run(&hook::Call {
            root: global.root.clone(),
            config: global.config.clone(),
            vmid: *vmid,
            phase: *phase,
        })),
        Command::Check(arguments) => commands::check::run(global, arguments),
        Command::Config(arguments) => commands::config::run(global, arguments),
        Command::Topology(arguments) => commands::topology::run(global, arguments),
        Command::Capture(arguments) => commands::capture::run(global, arguments),
        Command::Fix(arguments) => commands::fix::run(global, arguments),
        Command::Undo(arguments) => commands::undo::run(global, arguments),
        Command::Attach(arguments) => commands::attach::attach(global, arguments),
        Command::Detach(arguments) => commands::attach::detach(global, arguments),
        Command::Verify(arguments) => commands::verify::run(global, arguments),
        Command::Completions(arguments) => commands::generated::run_completions(arguments),
        Command::Man(arguments) => commands::generated::run_man(arguments),
    }
}

/// The arguments as `hook`'s where the program was called under a name that ends so, and not with another command: what
/// is wrong with such a call is told as what is wrong with a hook's.
fn as_hook(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let named = arguments
        .first()
        .and_then(|name| Path::new(name).file_stem()?.to_str())
        .is_some_and(|name| name.ends_with("hook"));
    let hooks = arguments.get(1).is_some_and(|first| {
        first
            .to_str()
            .is_some_and(|first| first.starts_with(|c: char| c.is_ascii_digit()))
    });
    if named && hooks {
        arguments.insert(1, "hook".into());
    }
    arguments
}

/// The hook's own call, recognised without the full command line: `NAME [OPTION...] [hook] VMID PHASE`.
///
/// A hook should cost about as much as starting a program, and building the definitions above is most of what is not
/// needed for it. `--root` and `--config` are known here; with anything else the full definitions decide.
fn hook_call(arguments: &[OsString]) -> Option<hook::Call> {
    let (mut root, mut config, mut words) = (None, None, Vec::new());
    let mut arguments = arguments.iter().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.to_str()? {
            "--root" => root = Some(PathBuf::from(arguments.next()?)),
            "--config" => config = Some(PathBuf::from(arguments.next()?)),
            option if option.starts_with('-') => return None,
            word => words.push(word),
        }
    }
    let (vmid, phase) = match words.as_slice() {
        [vmid, phase] | ["hook", vmid, phase] => (vmid.parse().ok()?, phase.parse().ok()?),
        _ => return None,
    };
    Some(hook::Call {
        root,
        config,
        vmid,
        phase,
    })
}

/// A phase that this program does not know, in what is otherwise a call of the hook.
///
/// A later Proxmox VE may have more phases. Nothing is to be done in them, and an exit status other than 0 could stop a
/// VM.
fn phase_of_the_future(arguments: &[OsString]) -> Option<&str> {
    let [program, words @ ..] = arguments else {
        return None;
    };
    let is_hook = Path::new(program).file_name()?.to_str()?.ends_with("hook");
    let mut words = words.iter().map(|word| word.to_str());
    let (vmid, phase) = match (words.next()??, words.next()??, words.next(), words.next()) {
        ("hook", vmid, Some(phase), None) => (vmid, phase),
        (vmid, phase, None, None) if is_hook => (vmid, Some(phase)),
        _ => return None,
    };
    vmid.parse::<Vmid>().ok()?;
    phase.filter(|phase| !phase.starts_with('-') && phase.parse::<Phase>().is_err())
}
