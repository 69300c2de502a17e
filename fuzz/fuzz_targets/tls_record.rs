//! Entry of the fuzzer; the target is in `simurgh-tls`, in `src/record/fuzz.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| simurgh_tls::fuzz_record(data));
