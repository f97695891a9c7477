#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| netsum_fuzz::run("schedule", bytes));
