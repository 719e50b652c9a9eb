//! The header of a file, as we and as the `safetensors` crate read it.
//!
//! `tests/reference` compares, and says where the two may differ. It also reads what the
//! input may have been before its lengths became wrong.

#![no_main]

#[path = "../../tests/heap_peak/mod.rs"]
mod heap_peak;
#[path = "../../tests/reference/mod.rs"]
mod reference;

use tenslab::weights::{Header, HeaderLimits};

libfuzzer_sys::fuzz_target!(|file: &[u8]| {
    let (limits, most) = (
        HeaderLimits::default(),
        reference::header::most_heap(file.len()),
    );
    let (held, _) = heap_peak::of(|| Header::from_bytes(file, &limits));
    assert!(
        held <= most,
        "{held} bytes of heap for {} of input",
        file.len()
    );
    if let Err(difference) = reference::header::compare_repaired(file) {
        panic!("{difference}");
    }
});
