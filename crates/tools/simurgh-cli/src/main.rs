//! The binary `simurgh`: channels that are declared in `simurgh.toml`, and the chat page.

use std::process::ExitCode;

/// Many threads that allocate and free small blocks, and pages that go back to the system when a
/// million clients have left: what the C library's allocator is worst at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    simurgh_cli::run_declared()
}
