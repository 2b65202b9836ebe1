//! `reshard`: all of it is in the library.

#[global_allocator]
static ALLOCATOR: reshard_cli::Allocator = reshard_cli::Allocator;

fn main() -> std::process::ExitCode {
    reshard_cli::main_linked()
}
