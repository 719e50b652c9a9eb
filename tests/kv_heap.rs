//! The KV cache makes no heap block after it was made: counted, not claimed.
//!
//! A binary of its own, for it replaces the global allocator with one that counts the
//! calls of the current thread.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use tenslab::kv::{
    KvCache, KvDims, KvError, KvLimits, KvSpec, Namespace, PageCsr, Sequence, padded_rows,
    slot_mapping,
};
use tenslab::{DType, bf16, memory};

thread_local! {
    static HEAP_BLOCKS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // A thread that is ending has no counter any more, and no test that looks at it.
    let _ = HEAP_BLOCKS.try_with(|blocks| blocks.set(blocks.get() + 1));
}

// SAFETY: every call goes to `System` unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// Heap blocks that `work` makes on this thread.
fn heap_blocks<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = HEAP_BLOCKS.get();
    let result = work();
    (HEAP_BLOCKS.get() - before, result)
}

const DIMS: KvDims = KvDims {
    layers: 4,
    kv_heads: 2,
    key_dim: 16,
    value_dim: 16,
    block_tokens: 4,
};

fn cache(dtype: DType) -> KvCache {
    let limits = KvLimits {
        blocks: 16,
        max_sequences: 4,
        max_blocks_per_sequence: 8,
    };
    KvCache::new(KvSpec::new(DIMS, dtype).unwrap(), limits, memory::cpu()).unwrap()
}

/// A step of `tokens` tokens over all layers, from f32 and in place, with reads.
fn step(
    sequence: &mut Sequence,
    tokens: usize,
    rows: &[f32],
    visit: &mut impl FnMut(),
) -> Result<f32, KvError> {
    let mut sum = 0.0;
    let mut step = sequence.append(&[0; 8][..tokens])?;
    for layer in 0..DIMS.layers {
        let rows = &rows[..tokens * 32];
        step.layer_mut(layer)?.write(rows, rows)?;
        for run in step.layer_mut(layer)?.runs::<bf16>()? {
            run.data.fill(bf16::ONE);
        }
        for block in 0..step.block_count() {
            for head in 0..DIMS.kv_heads {
                let keys = step.keys_head::<bf16>(layer, block, head)?;
                let values = step.values::<bf16>(layer, block)?.head(head)?;
                sum += f32::from(keys[0]) + f32::from(values[0]);
            }
        }
        visit();
    }
    step.commit()?;
    Ok(sum)
}

/// All that a request does, from acquire to drop.
fn request(cache: &KvCache, rows: &[f32], mut visit: impl FnMut()) -> Result<f32, KvError> {
    let mut sequence = cache.acquire(&[1, 2, 3], &Namespace::default(), 2, None)?;
    let mut sum = 0.0;
    for tokens in [3, 1, 1, 8, 1] {
        sum += step(&mut sequence, tokens, rows, &mut visit)?;
        drop(sequence.append(&[0; 8])?);
    }
    // Errors are values too.
    assert!(sequence.append(&[0; 64]).is_err());
    assert!(sequence.append(&[0; 1])?.commit().is_err());
    assert!(
        cache
            .acquire(&[0; 64], &Namespace::default(), 0, None)
            .is_err()
    );
    let other = cache.clone();
    Ok(sum + other.stats().tokens as f32)
}

#[test]
fn a_request_makes_no_heap_block() {
    let cache = cache(DType::BF16);
    let rows = vec![1.0; 8 * 32];
    let (blocks, sum) = heap_blocks(|| request(&cache, &rows, || ()));
    // 4 layers x (1 + 1 + 2 + 4 + 4 blocks) x 2 heads x (1 + 1), and 14 tokens.
    assert_eq!(sum.unwrap(), (4 * 12 * 2 * 2 + 14) as f32);
    assert_eq!(blocks, 0);
    cache.check().unwrap();
}

/// A decode step of two sequences, with the tables of each in all forms.
#[test]
fn tables_for_kernels_are_made_in_buffers_that_are_there() {
    let cache = cache(DType::BF16);
    let empty = || cache.acquire(&[], &Namespace::default(), 0, None).unwrap();
    let (mut a, mut b) = (empty(), empty());
    let (mut rows, mut slots, mut pages) = (Vec::new(), Vec::new(), PageCsr::default());
    let mut tables = |a: &mut Sequence, b: &mut Sequence, tokens: usize| {
        let mut steps = [a.append(&[0; 28][..tokens])?, b.append(&[1; 28][..tokens])?];
        let width = padded_rows(&steps, None, -1, &mut rows)?;
        slot_mapping(&steps, &mut slots)?;
        pages.fill(&steps)?;
        assert_eq!((rows.len(), slots.len()), (2 * width, 2 * tokens));
        for step in &mut steps {
            for layer in 0..DIMS.layers {
                step.layer_mut(layer)?.runs::<bf16>()?.for_each(drop);
            }
        }
        steps.into_iter().try_for_each(|step| step.commit())
    };
    // The longest step makes the buffers as large as they get.
    let (blocks, warm) = heap_blocks(|| tables(&mut a, &mut b, 28));
    warm.unwrap();
    assert!(blocks > 0, "the buffers were empty");
    a.truncate(0).unwrap();
    b.truncate(0).unwrap();
    for _ in 0..28 {
        let (blocks, done) = heap_blocks(|| tables(&mut a, &mut b, 1));
        done.unwrap();
        assert_eq!(blocks, 0);
    }
}

/// lessons/kv.md #21: many blocks at one time, and as many evictions.
#[test]
fn hundreds_of_blocks_and_evictions_make_no_heap_block() {
    let limits = KvLimits {
        blocks: 600,
        max_sequences: 2,
        max_blocks_per_sequence: 600,
    };
    let spec = KvSpec::new(DIMS, DType::BF16).unwrap();
    let cache = KvCache::new(spec, limits, memory::cpu()).unwrap();
    let prompt: Vec<u32> = (0..2400).collect();
    let reserve = |tokens| {
        cache
            .acquire(&[], &Namespace::default(), tokens, None)
            .map(drop)
    };
    let (blocks, done) = heap_blocks(|| reserve(4 * 500));
    done.unwrap();
    assert_eq!(blocks, 0);

    let mut sequence = cache
        .acquire(&prompt, &Namespace::default(), 0, None)
        .unwrap();
    let mut step = sequence.append(&prompt).unwrap();
    for layer in 0..DIMS.layers {
        let runs = step.layer_mut(layer).unwrap().runs::<bf16>().unwrap();
        runs.for_each(drop);
    }
    step.commit().unwrap();
    drop(sequence);
    assert_eq!(cache.stats().blocks_idle, 600);
    let (blocks, done) = heap_blocks(|| reserve(4 * 500));
    done.unwrap();
    assert_eq!((blocks, cache.counters().evicted_for_space), (0, 500));
}

/// A sequence of these tokens, computed as far as they are not there.
fn prefill(cache: &KvCache, prompt: &[u32]) -> Sequence {
    let all = Some(prompt.len());
    let mut sequence = (cache.acquire(prompt, &Namespace::default(), 0, all)).unwrap();
    let rest = &prompt[sequence.len()..];
    if !rest.is_empty() {
        append(&mut sequence, rest, rest.len());
    }
    sequence
}

/// Appends `tokens` and commits the `first` of them.
fn append(sequence: &mut Sequence, tokens: &[u32], first: usize) {
    let mut step = sequence.append(tokens).unwrap();
    for layer in 0..DIMS.layers {
        let runs = step.layer_mut(layer).unwrap().runs::<bf16>().unwrap();
        runs.for_each(drop);
    }
    step.commit_first(first).unwrap();
}

/// Each call by itself, and that it did what it is there for. Not under a budget with memory
/// that went back: what is not charged is noted in heap blocks.
#[test]
fn each_call_makes_as_many_heap_blocks_as_it_says() {
    let cache = cache(DType::BF16);
    let namespace = Namespace::default();
    let prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
    let copies = || cache.counters().copied_blocks;

    let (blocks, mut first) = heap_blocks(|| prefill(&cache, &prompt));
    assert_eq!((blocks, first.len()), (0, 10), "acquire, append and commit");
    let (blocks, fork) = heap_blocks(|| first.fork());
    let mut fork = fork.unwrap();
    assert_eq!((blocks, fork.len()), (0, 10), "fork");
    let (blocks, ()) = heap_blocks(|| append(&mut fork, &[11, 12, 13], 1));
    assert_eq!((blocks, fork.len()), (0, 11), "commit_first");
    assert_eq!(copies(), 1, "of the last block, which both had");
    let (blocks, done) = heap_blocks(|| first.truncate(6));
    done.unwrap();
    assert_eq!((blocks, first.len()), (0, 6), "truncate");
    let (blocks, ()) = heap_blocks(|| append(&mut first, &[99], 1));
    assert_eq!((blocks, copies()), (0, 2), "of a block that can be found");
    let (blocks, partial) = heap_blocks(|| prefill(&cache, &[1, 2, 3, 4, 5, 6, 70]));
    assert_eq!(
        (blocks, partial.hit_tokens(), copies()),
        (0, 6, 3),
        "of a beginning"
    );

    for _ in 0..2 {
        let (blocks, admission) =
            heap_blocks(|| cache.admission(&prompt, &namespace, 4, None).unwrap());
        assert_eq!((blocks, admission.hit_tokens), (0, 8), "admission");
        let (blocks, admits) = heap_blocks(|| cache.can_admit(&prompt, &namespace, 4, None, 1));
        assert_eq!((blocks, admits), (0, true), "can_admit");
        let refused = || cache.can_admit(&[0; 64], &namespace, 0, None, 0);
        assert_eq!(heap_blocks(refused), (0, false), "can_admit, refused");
        let (blocks, stats) = heap_blocks(|| cache.stats());
        assert_eq!((blocks, stats.sequences), (0, 3), "stats");
        let (blocks, counters) = heap_blocks(|| cache.counters());
        assert_eq!((blocks, counters.copied_blocks), (0, 3), "counters");
        let (blocks, rate) = heap_blocks(|| cache.hit_rate());
        assert!(blocks == 0 && rate > 0.0, "hit_rate");
    }

    let (blocks, pin) = heap_blocks(|| cache.pin(&prompt, &namespace));
    let pin = pin.unwrap();
    assert_eq!((blocks, pin.tokens()), (0, 8), "pin");
    let (blocks, none) = heap_blocks(|| cache.pin(&[0; 4], &namespace));
    assert!(blocks == 0 && none.is_none(), "pin of what is not there");
    assert_eq!(heap_blocks(|| drop(pin)).0, 0, "the end of a pin");

    // The one call that makes one, and says so.
    let (blocks, keys) = heap_blocks(|| first.keys_tensor(0, 0));
    let keys = keys.unwrap();
    assert_eq!(blocks, 1, "keys_tensor");
    let (blocks, values) = heap_blocks(|| fork.values_tensor(3, 1));
    let values = values.unwrap();
    assert_eq!(blocks, 1, "values_tensor");
    let (blocks, refused) = heap_blocks(|| first.keys_tensor(0, 2));
    assert!(blocks == 0 && refused.is_err(), "keys_tensor, refused");
    assert_eq!(heap_blocks(|| drop((keys, values))).0, 0, "their end");

    let (blocks, refused) = heap_blocks(|| cache.reset());
    assert!(blocks == 0 && refused.is_err(), "reset, refused");
    assert_eq!(heap_blocks(|| drop((first, fork, partial))).0, 0, "drop");
    let idle = cache.stats().blocks_idle;
    let (blocks, forgotten) = heap_blocks(|| cache.reset());
    assert_eq!((blocks, forgotten.unwrap()), (0, idle), "reset");
    assert!(idle > 0);
    cache.check().unwrap();
}

#[test]
fn a_planted_heap_block_is_seen() {
    let cache = cache(DType::BF16);
    let rows = vec![1.0; 8 * 32];
    let (blocks, sum) = heap_blocks(|| request(&cache, &rows, || drop(black_box(Box::new(7_u8)))));
    sum.unwrap();
    // One for each layer of each of the five steps.
    assert_eq!(blocks, 5 * 4);
}
