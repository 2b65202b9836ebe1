//! `reshard`: all of it is in the library.

fn main() -> std::process::ExitCode {
    reshard_cli::main_linked()
}
