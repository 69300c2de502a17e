//! Entry of the fuzzer; the target is in `fuzz/src/load/http_response.rs`.
#![no_main]

#[path = "../src/load/http_response.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
