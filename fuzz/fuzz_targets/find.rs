//! Entry of the fuzzer; the target is in `fuzz/src/load/find.rs`.
#![no_main]

#[path = "../src/load/find.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
