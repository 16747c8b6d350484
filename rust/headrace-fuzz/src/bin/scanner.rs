//! The scanner of replies, fed in pieces and as a whole, compared with the slow reference scanner.

#![no_main]

use std::cell::RefCell;

use headrace_core::fuzz_tests::targets::{Scanners, scanner};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static SCANNERS: RefCell<Scanners> = RefCell::default();
}

fuzz_target!(|bytes: &[u8]| SCANNERS.with(|scanners| scanner(&mut scanners.borrow_mut(), bytes)));
