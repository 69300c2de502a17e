//! `simurgh-sim`, the program of all simulations.

fn main() -> std::process::ExitCode {
    simurgh_sim::main()
}
