//! Entry of the fuzzer; the target, with the registry's model, is in `simurgh-core`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| simurgh_core::fuzz_registry(data));
