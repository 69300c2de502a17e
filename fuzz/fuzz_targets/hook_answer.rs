//! Entry of the fuzzer; the target is in `simurgh-hooks`, in `src/answer/fuzz.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| simurgh_hooks::fuzz_answer(data));
