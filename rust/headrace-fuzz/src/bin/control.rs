//! The readers of replies to control commands, fed in pieces and compared with slow reference readers.

#![no_main]

use headrace_core::fuzz_tests::targets::control;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| control(bytes));
