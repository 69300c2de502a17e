//! Entry of the fuzzer; the target is in `fuzz/src/history/resume.rs`.
#![no_main]

#[path = "../src/history/resume.rs"]
mod history_resume;

libfuzzer_sys::fuzz_target!(|data: &[u8]| history_resume::run(data));
