//! Entry of the fuzzer; the target is in `simurgh_fuzz::deflate`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| simurgh_fuzz::deflate::run(data));
