//! What a decode step does in tenslab makes no heap block: activations from a metered
//! slab, frozen weights that are read, keys and values that are written and read where
//! they lie. Nor does a further prompt that begins as an earlier one did, or a fork of it.
//! Counted by dhat; `examples/generate` counts the whole process as well.
//!
//! dhat is the global allocator of this binary and counts every thread, so it has no test
//! harness: its thread makes heap blocks whenever it likes.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that fails should panic, and one that passes says so"
)]

use std::hint::black_box;

use tenslab::kv::{Namespace, Sequence};
use tenslab::memory::{self, Meter, SharedAllocator, SlabAllocator, Tag};
use tenslab::{DType, KvCache, KvDims, KvLimits, KvSpec, Tensor, bf16};

#[global_allocator]
static HEAP: dhat::Alloc = dhat::Alloc;

const LAYERS: usize = 3;
const HEADS: usize = 2;
const DIM: usize = 8;
const WIDTH: usize = HEADS * DIM;
const BLOCK_TOKENS: usize = 4;
const THREE_BLOCKS: u32 = 12;

/// One token through all layers, with a toy for arithmetic.
fn decode(
    token: u32,
    sequence: &mut Sequence,
    weights: &[Tensor],
    room: &SharedAllocator,
    planted: bool,
) -> f32 {
    let hidden = Tensor::zeros([1, WIDTH], DType::F32, room).unwrap();
    let mut step = sequence.append(&[token]).unwrap();
    for (layer, weight) in weights.iter().enumerate() {
        let kv = Tensor::empty([2, WIDTH], DType::F32, room).unwrap();
        let (k, v) = (kv.slice(0, 0, 1).unwrap(), kv.slice(0, 1, 2).unwrap());
        {
            let weight = weight.read::<f32>().unwrap();
            let mut both = Tensor::write_disjoint::<f32, 2>([&k, &v]).unwrap();
            let [k, v] = both.slices();
            k.copy_from_slice(&weight);
            v.fill(token as f32);
        }
        step.layer_mut(layer)
            .unwrap()
            .write(&k.read::<f32>().unwrap(), &v.read::<f32>().unwrap())
            .unwrap();
        if planted && layer == 1 {
            drop(black_box(Box::new(7_u64)));
        }
        let mut hidden = hidden.write::<f32>().unwrap();
        for block in 0..step.block_count() {
            for head in 0..HEADS {
                let keys = step.keys_head::<bf16>(layer, block, head).unwrap();
                let values = step.values_head::<bf16>(layer, block, head).unwrap();
                hidden[head] += (keys.len() + values.len()) as f32;
            }
        }
    }
    step.commit().unwrap();
    hidden.item::<f32>(&[0, 0])
}

fn main() {
    let _counting = dhat::Profiler::builder().testing().build();
    let room = SharedAllocator::new(Meter::new(SlabAllocator::new(4096, 8).unwrap()))
        .with_tag(Tag::Activations);
    let weights: Vec<Tensor> = (0..LAYERS)
        .map(|_| {
            let weight = Tensor::zeros([WIDTH], DType::F32, memory::cpu()).unwrap();
            weight.freeze().unwrap();
            weight
        })
        .collect();
    let dims = KvDims {
        layers: LAYERS,
        kv_heads: HEADS,
        key_dim: DIM,
        value_dim: DIM,
        block_tokens: BLOCK_TOKENS,
    };
    let limits = KvLimits {
        blocks: 8,
        max_sequences: 2,
        max_blocks_per_sequence: 8,
    };
    let spec = KvSpec::new(dims, DType::BF16).unwrap();
    let cache = KvCache::new(spec, limits, memory::cpu()).unwrap();
    let mut sequence = cache.acquire(&[0], &Namespace::default(), 0, None).unwrap();

    let mut counted = |token, planted| {
        let before = dhat::HeapStats::get().total_blocks;
        let sum = decode(token, &mut sequence, &weights, &room, planted);
        assert!(sum > 0.0);
        dhat::HeapStats::get().total_blocks - before
    };
    counted(0, false); // warm
    // Across the ends of blocks, where the sequence takes another one.
    for token in 1..THREE_BLOCKS {
        assert_eq!(counted(token, false), 0, "token {token}");
    }
    assert_eq!(counted(99, true), 1, "the planted box is seen");
    drop(sequence);

    // Of each prompt one whole block is there, and two tokens of the next, which are copied.
    // The fork copies the tail.
    let further = |last, planted| {
        let before = dhat::HeapStats::get().total_blocks;
        let prompt = [0, 1, 2, 3, 4, 5, last];
        let namespace = Namespace::default();
        let mut sequence = cache.acquire(&prompt, &namespace, 0, None).unwrap();
        assert_eq!(sequence.hit_tokens(), 6);
        decode(last, &mut sequence, &weights, &room, planted);
        let mut fork = sequence.fork().unwrap();
        decode(99, &mut fork, &weights, &room, false);
        drop((sequence, fork));
        dhat::HeapStats::get().total_blocks - before
    };
    for last in 70..80 {
        assert_eq!(further(last, false), 0, "prompt with {last}");
    }
    assert_eq!(further(80, true), 1, "the planted box is seen");
    assert_eq!(cache.counters().copied_blocks, 2 * 11);
    println!("a decode step, a further prompt and a fork make no heap block: ok");
}
