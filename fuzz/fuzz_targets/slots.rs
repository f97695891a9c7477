#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    netsum_fuzz::slots::decode(bytes);
    netsum_fuzz::slots::atp(bytes);
    netsum_fuzz::slots::switchml(bytes);
});
