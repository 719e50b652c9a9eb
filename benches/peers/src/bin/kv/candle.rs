//! candle-nn's KvCache: one for each layer, contiguous, grown by copying.

use std::hint::black_box;
use std::time::Instant;

use candle_core::{CpuStorage, Device, Storage, Tensor};
use candle_nn::kv_cache::KvCache;
use tenslab::bf16;

use crate::payload::{APPENDED, CONTEXT, DIM, HEADS, LAYERS, ROW, sum};
use crate::race::Contender;

/// Token-major rows as `[1, heads, tokens, dim]`, as a model makes them.
fn tensor(rows: &[bf16]) -> Tensor {
    let tokens = rows.len() / ROW;
    Tensor::from_slice(rows, (1, tokens, HEADS, DIM), &Device::Cpu)
        .and_then(|tensor| tensor.transpose(1, 2)?.contiguous())
        .expect("a tensor")
}

fn append_to(cache: &mut KvCache, keys: &Tensor, values: &Tensor) {
    drop(black_box(cache.append(keys, values).expect("room")));
}

/// A token in all layers; their room was taken, and touched, before.
pub fn append<'a>(keys: &[bf16], values: &[bf16]) -> Contender<'a> {
    let (keys, values) = (tensor(keys), tensor(values));
    let mut caches: Vec<KvCache> = (0..LAYERS).map(|_| KvCache::new(2, APPENDED)).collect();
    for cache in &mut caches {
        append_to(cache, &keys, &values);
    }
    // Clones share the room, so they are the way back to one token that keeps it.
    let short = caches.clone();
    Contender::timed("candle KvCache", 1, move || {
        if caches[0].current_seq_len() == APPENDED {
            caches.clone_from(&short);
        }
        let began = Instant::now();
        for cache in &mut caches {
            append_to(cache, &keys, &values);
        }
        began.elapsed()
    })
}

/// A cache with room for more tokens than it has.
fn context(keys: &[bf16], values: &[bf16]) -> KvCache {
    let mut cache = KvCache::new(2, CONTEXT + CONTEXT / 4);
    append_to(&mut cache, &tensor(keys), &tensor(values));
    cache
}

/// All elements, head by head, where they lie.
fn sum_of(tensor: &Tensor) -> u16 {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(CpuStorage::BF16(elements)) = &*storage else {
        panic!("bf16 on the cpu");
    };
    let (start, stride) = (layout.start_offset(), layout.stride()[1]);
    (0..HEADS).fold(0_u16, |total, head| {
        let head = &elements[start + head * stride..][..CONTEXT * DIM];
        total.wrapping_add(sum(head))
    })
}

fn both(cache: &KvCache) -> [Tensor; 2] {
    [cache.k(), cache.v()].map(|part| part.expect("a view").expect("not empty"))
}

fn add(parts: [Tensor; 2]) -> u16 {
    let [keys, values] = parts.map(|part| sum_of(&part));
    keys.wrapping_add(values)
}

/// Through the views that the cache gives.
pub fn read_narrow(keys: &[bf16], values: &[bf16]) -> Box<dyn Fn() -> u16> {
    let cache = context(keys, values);
    Box::new(move || add(both(&cache)))
}

/// As attention does before it multiplies.
pub fn read_contiguous(keys: &[bf16], values: &[bf16]) -> Box<dyn Fn() -> u16> {
    let cache = context(keys, values);
    Box::new(move || add(both(&cache).map(|part| part.contiguous().expect("a copy"))))
}

/// A second cache that can be appended to: its clone shares the room, so it is copied.
/// One layer of [`LAYERS`], times as many.
pub fn fork<'a>() -> Contender<'a> {
    let rows = crate::payload::rows(CONTEXT, 8);
    let cache = context(&rows, &rows);
    Contender::new("candle copy", 1, move || {
        for _ in 0..LAYERS {
            drop(both(&cache).map(|part| part.force_contiguous().expect("a copy")));
        }
    })
}
