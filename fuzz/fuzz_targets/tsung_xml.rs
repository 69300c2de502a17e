//! Entry of the fuzzer; the target is in `fuzz/src/load/tsung_xml.rs`.
#![no_main]

#[path = "../src/load/tsung_xml.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
