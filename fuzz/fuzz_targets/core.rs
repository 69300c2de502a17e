//! Entry of the fuzzer; the target is in `simurgh_sim::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| simurgh_sim::fuzz(data));
