//! Entry of the fuzzer; the target is in `simurgh_fuzz::serializer_v2`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| simurgh_fuzz::serializer_v2::run(data));
