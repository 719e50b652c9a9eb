//! The header of a file, as we and as the `safetensors` crate read it.
//!
//! `tests/reference` compares, and says where the two may differ. It also reads what the
//! input may have been before its lengths became wrong.

#![no_main]

#[path = "../../tests/reference/mod.rs"]
mod reference;

libfuzzer_sys::fuzz_target!(|file: &[u8]| {
    if let Err(difference) = reference::compare_repaired(file) {
        panic!("{difference}");
    }
});
