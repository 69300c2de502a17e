//! Whole servers of `simurgh-core` in one thread, from one seed, and a model of what they must do.
//!
//! ```text
//!   seed ─► Profile (how many of what) ─► Op, Op, Op … ─►           NodeSimulation
//!                                                     │
//!          clients ⇄ network ⇄ cores ⇄ mailboxes ◄────┤ who runs, what is read, how time goes
//!             │                  │                    ▼
//!             └─── what they get ┴─ what is done ──► Model: what ought to be
//! ```
//!
//! A run is a list of operations, each of which is complete by itself; so a failing one is
//! shrunk by leaving operations out, and a fuzzer may write them.

mod app;
mod cli;
mod cluster;
mod features;
mod fuzz;
mod kit;
mod limits;
mod model;
mod node;
mod op;
mod profile;
mod run;
mod simulation;
#[cfg(test)]
mod tests;

pub use cli::main;
pub use fuzz::fuzz;
