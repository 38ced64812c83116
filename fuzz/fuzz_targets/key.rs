#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| solejob::http::fuzzed::key(bytes));
