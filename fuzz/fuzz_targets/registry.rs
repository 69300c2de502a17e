//! Entry of the fuzzer; what it tries, and why, stands in `simurgh-core`, where the registry and
//! the model of it are.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| simurgh_core::fuzz_registry(data));
