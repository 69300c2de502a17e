//! Entry of the fuzzer; the target is in `fuzz/src/load/xpath.rs`.
#![no_main]

#[path = "../src/load/xpath.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
