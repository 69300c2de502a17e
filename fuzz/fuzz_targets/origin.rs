#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| simurgh_fuzz::origin::run(data));
