//! Entry of the fuzzer; what it tries, and why, stands in `simurgh_sim::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| simurgh_sim::fuzz(data));
