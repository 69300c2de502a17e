//! Whole servers of `simurgh-core` in one thread, from one seed, and a model of what they must do.
//!
//! ```text
//!   seed ─► Profile (how many of what) ─► Source ─► Op, Op, Op … ─► NodeSimulation
//!                                                     │
//!          clients ⇄ network ⇄ cores ⇄ mailboxes ◄────┤ who runs, what is read, how time goes
//!             │                  │                    ▼
//!             └── what is heard ─┴─ what is done ─► Model: what ought to be
//! ```
//!
//! A run is a list of operations, each of which says all it needs by itself; so a failing one is
//! shrunk by leaving operations out, and a fuzzer may write them.

mod app;
mod bounds;
mod checks;
mod cli;
mod client;
mod counts;
mod features;
mod fuzz;
mod handlers;
mod history;
mod limits;
mod listeners;
mod model;
mod node;
mod op;
mod operations;
mod outside;
mod presence;
mod profile;
mod ready;
mod report;
mod run;
mod shared;
mod shrink;
mod simulation;
#[cfg(test)]
mod tests;

pub use cli::main;
pub use fuzz::fuzz;
