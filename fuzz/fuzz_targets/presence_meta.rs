//! Entry of the fuzzer; the target is in `fuzz/src/presence/meta.rs`.
#![no_main]

#[path = "../src/presence/meta.rs"]
mod presence_meta;

libfuzzer_sys::fuzz_target!(|data: &[u8]| presence_meta::run(data));
