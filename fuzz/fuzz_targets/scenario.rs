//! Entry of the fuzzer; the target is in `fuzz/src/load/scenario.rs`.
#![no_main]

#[path = "../src/load/scenario.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
