//! Entry of the fuzzer; the target is in `simurgh_fuzz::serializer_v1`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| simurgh_fuzz::serializer_v1::run(data));
