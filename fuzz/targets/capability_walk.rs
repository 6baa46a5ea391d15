#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::capability_walk::holds(data));
