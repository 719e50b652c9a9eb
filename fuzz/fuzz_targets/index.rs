//! The index of a sharded checkpoint, as we and as `serde_json` alone read it.

#![no_main]

#[path = "../../tests/heap_peak/mod.rs"]
mod heap_peak;
#[path = "../../tests/reference/mod.rs"]
mod reference;

use tenslab::weights::{HeaderLimits, ShardIndex};

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let (limits, most) = (
        HeaderLimits::default(),
        reference::index::most_heap(text.len()),
    );
    let (held, _) = heap_peak::of(|| ShardIndex::from_bytes(text, &limits));
    assert!(
        held <= most,
        "{held} bytes of heap for {} of input",
        text.len()
    );
    if let Err(difference) = reference::index::compare(text) {
        panic!("{difference}");
    }
});
