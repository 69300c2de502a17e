//! Entry of the fuzzer; the target is in `fuzz/src/history/save.rs`.
#![no_main]

#[path = "../src/history/save.rs"]
mod history_save;

libfuzzer_sys::fuzz_target!(|data: &[u8]| history_save::run(data));
