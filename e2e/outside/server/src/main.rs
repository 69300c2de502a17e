//! The rooms as a program, with the commands of `simurgh`.

use std::process::ExitCode;

fn main() -> ExitCode {
    simurgh_cli::run_as("server", env!("CARGO_PKG_VERSION"), |it| it.socket(rooms::user_socket()))
}
