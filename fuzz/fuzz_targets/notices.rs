//! Entry of the fuzzer; the target is in `fuzz/src/cluster/notices.rs`.
#![no_main]

#[path = "../src/cluster/notices.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
