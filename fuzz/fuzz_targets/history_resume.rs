//! Entry of the fuzzer; what it tries, and why, stands in `fuzz/src/history/resume.rs`.
#![no_main]

#[path = "../src/history/resume.rs"]
mod history_resume;

libfuzzer_sys::fuzz_target!(|data: &[u8]| history_resume::run(data));
