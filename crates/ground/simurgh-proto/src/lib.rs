//! Bytes to messages and back: all that Simurgh sends and reads, without I/O, clocks and threads.
//!
//! The crate is `no_std` with `alloc`, so the compiler itself excludes sockets and clocks. The
//! server's shards, the load generator, the in-process driver, the fuzzers and the tests use it
//! alike.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod json;
pub mod message;
pub mod origin;
pub mod params;
pub mod serializer;
pub mod session;
pub mod topic;
pub mod ws;
