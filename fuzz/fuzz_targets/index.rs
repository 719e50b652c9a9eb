//! The index of a sharded checkpoint, as we and as `serde_json` alone read it.

#![no_main]

#[path = "../../tests/reference/mod.rs"]
mod reference;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    if let Err(difference) = reference::compare_index(text) {
        panic!("{difference}");
    }
});
