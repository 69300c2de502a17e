//! Entry of the fuzzer; the target is in `fuzz/src/token/etf.rs`.
#![no_main]

#[path = "../src/token/etf.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
