//! `simurgh-sim`: see the library.

fn main() -> std::process::ExitCode {
    simurgh_sim::main()
}
