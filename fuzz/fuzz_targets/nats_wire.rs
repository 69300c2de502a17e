//! Entry of the fuzzer; the target is in `simurgh-nats`, in `src/wire/fuzz.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| simurgh_nats::fuzz_wire(data));
