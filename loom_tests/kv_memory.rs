//! The memory of the KV cache's blocks: it goes back while another thread wants them.

use super::harness::model;
use super::kv_lab::{assert_holds, assert_nobody_is_left, beside, cache, prefill};

/// One gives the memory of all blocks back, the other wants all blocks: it gets them, before
/// that or after it.
///
/// Fails when a block is free before its memory went back, and when who is refused does not
/// wait for blocks whose memory is going back.
#[test]
fn blocks_whose_memory_goes_back_are_waited_for() {
    model(|| {
        let cache = cache(2, 1, 1);
        drop(prefill(&cache, &[1]).unwrap());
        let theirs = cache.clone();
        let (all, _) = beside(
            move || theirs.relieve(1 << 20),
            || prefill(&cache, &[7, 8]).unwrap(),
        );
        cache.check().unwrap();
        assert_holds(&all, &[7, 8]);
        drop(all);
        assert_nobody_is_left(&cache);
    });
}
