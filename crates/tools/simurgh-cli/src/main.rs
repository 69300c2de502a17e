//! The binary `simurgh`: channels that are declared in `simurgh.toml`, and the chat page.

use std::process::ExitCode;

/// Many threads allocate and free small blocks, and pages should be returned to the system when a
/// million clients have left; the C library's allocator is bad at both.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    simurgh_cli::run_declared()
}
