//! `completions` and `man`: written from the command definitions, for the package and for those without one.

use clap::CommandFactory as _;

use super::print;
use crate::cli::Cli;
use crate::manual;

/// The program's name, as the definitions have it.
const PROGRAM: &str = "pve-atomicops";

/// The shells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Shell {
    /// GNU Bash.
    Bash,
    /// Z shell.
    Zsh,
    /// Fish.
    Fish,
}

/// The manual pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ManualPage {
    /// pve-atomicops(1), the program
    #[default]
    Program,
    /// pve-atomicops.toml(5), the policy file
    Policy,
}

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionArguments {
    /// The shell
    pub shell: Shell,
}

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
pub struct ManArguments {
    /// Which page
    #[arg(default_value = "program")]
    pub page: ManualPage,
}

/// The completion script for a shell.
pub fn completions(shell: Shell) -> String {
    let mut command = Cli::command();
    let mut script = Vec::new();
    match shell {
        Shell::Bash => clap_complete::generate(
            clap_complete::Shell::Bash,
            &mut command,
            PROGRAM,
            &mut script,
        ),
        Shell::Zsh => clap_complete::generate(
            clap_complete::Shell::Zsh,
            &mut command,
            PROGRAM,
            &mut script,
        ),
        Shell::Fish => clap_complete::generate(
            clap_complete::Shell::Fish,
            &mut command,
            PROGRAM,
            &mut script,
        ),
    }
    String::from_utf8_lossy(&script).into_owned()
}

/// Runs `completions`.
pub fn run_completions(arguments: &CompletionArguments) -> anyhow::Result<u8> {
    print(&completions(arguments.shell))?;
    Ok(0)
}

/// Runs `man`.
pub fn run_man(arguments: &ManArguments) -> anyhow::Result<u8> {
    print(&match arguments.page {
        ManualPage::Program => manual::program(),
        ManualPage::Policy => manual::policy(),
    })?;
    Ok(0)
}
