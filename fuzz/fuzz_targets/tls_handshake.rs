//! Entry of the fuzzer; the target is in `fuzz/src/tls/handshake.rs`.
#![no_main]

#[path = "../src/tls/handshake.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
