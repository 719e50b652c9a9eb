//! AddressSanitizer sees into the region: a free block's bytes are a fault to touch.

use std::process::Command;

use super::{acquire, append, salts, small_cache};

const CHILD: &str = "TENSLAB_KV_ASAN_CHILD";

/// Reads a key after its sequence gave the block back, which no safe call can.
#[test]
fn touching_a_free_block_is_seen() {
    if std::env::var_os(CHILD).is_some() {
        let cache = small_cache(2, 2);
        let mut sequence = acquire(&cache, 0).unwrap();
        append::<f32>(&mut sequence, &salts(0, 1)).unwrap();
        let key = sequence.keys_head::<f32>(0, 0, 0).unwrap().as_ptr();
        drop(sequence);
        // SAFETY: mapped and initialised, for `cache` lives; that the block is nobody's is
        // the fault that AddressSanitizer has to see.
        let stale = unsafe { key.read_volatile() };
        panic!("nobody saw the read of {stale}");
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "asan::touching_a_free_block_is_seen"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(!child.status.success());
    assert!(said.contains("use-after-poison"), "{said}");
}
