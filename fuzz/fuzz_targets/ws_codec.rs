//! Entry of the fuzzer; the target is in `simurgh_fuzz::ws_codec`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| simurgh_fuzz::ws_codec::run(data));
