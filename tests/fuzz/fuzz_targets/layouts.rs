// SPDX-License-Identifier: MIT OR Apache-2.0
#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| gstframeshare::fuzzing::layouts(input));
