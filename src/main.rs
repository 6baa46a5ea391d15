//! The program: arguments, log set-up, dispatch, exit status.

fn main() -> std::process::ExitCode {
    pve_atomicops::cli::main()
}
