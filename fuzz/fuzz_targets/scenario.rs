//! Entry of the fuzzer; what it tries, and why, stands in `fuzz/src/load/scenario.rs`.
#![no_main]

#[path = "../src/load/scenario.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
