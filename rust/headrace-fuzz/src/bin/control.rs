//! What reads the replies to control commands, in pieces, beside slow ones.

#![no_main]

use headrace_core::fuzz_tests::targets::control;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| control(bytes));
