//! AddressSanitizer sees into the region: a free block's bytes are a fault to touch.

use std::process::Command;

use tenslab::kv::{KvCache, KvSpec, Layout};
use tenslab::{DType, memory};

use super::{DIMS, acquire, append, limits, salts};

const CHILD: &str = "TENSLAB_KV_ASAN_CHILD";

/// Reads a key after its sequence gave the block back, which no safe call can. The first
/// and the last layer: in a layer-major region they are in different pieces, between which
/// a block lies that is in use.
#[test]
fn touching_a_free_block_is_seen() {
    if let Some(place) = std::env::var_os(CHILD) {
        let place = place.into_string().unwrap();
        let (layout, layer) = place.split_once(' ').unwrap();
        let layout = Layout::ALL.into_iter().find(|one| one.name() == layout);
        let spec = KvSpec::new(DIMS, DType::F32).unwrap();
        let spec = spec.with_layout(layout.unwrap()).unwrap();
        let cache = KvCache::new(spec, limits(2, 2, 2), memory::cpu()).unwrap();
        let mut sequence = acquire(&cache, 0).unwrap();
        append::<f32>(&mut sequence, &salts(0, 1)).unwrap();
        let mut other = acquire(&cache, 0).unwrap();
        append::<f32>(&mut other, &salts(1, 1)).unwrap();
        let plane = sequence.keys::<f32>(layer.parse().unwrap(), 0).unwrap();
        let key = plane.row(0, 0).unwrap().as_ptr();
        drop(sequence);
        // SAFETY: mapped and initialised, for `cache` lives; that the block is nobody's is
        // the fault that AddressSanitizer has to see.
        let stale = unsafe { key.read_volatile() };
        panic!("nobody saw the read of {stale}");
    }
    for layout in Layout::ALL {
        for layer in [0, DIMS.layers - 1] {
            let place = format!("{} {layer}", layout.name());
            let child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "asan::touching_a_free_block_is_seen"])
                .env(CHILD, &place)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&child.stderr);
            assert!(!child.status.success(), "{place}");
            assert!(said.contains("use-after-poison"), "{place}: {said}");
        }
    }
}
