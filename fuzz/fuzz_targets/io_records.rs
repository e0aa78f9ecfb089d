#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| terrace_tests::inputs::io_records(input));
