//! Entry of the fuzzer; what it tries, and why, stands in `fuzz/src/load/xpath.rs`.
#![no_main]

#[path = "../src/load/xpath.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
