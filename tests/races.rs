//! What real threads do to each other: stories that ThreadSanitizer watches.
//!
//! ```text
//!   story       two or three threads, spawned and joined, a few hundred rounds
//!     right     no report                                        in every lane
//!     mutant    a wrong ordering of ours (src/mutant.rs): it has to be reported
//!     planted   a write that nothing orders: it has to be reported
//! ```
//!
//! `cargo +nightly tsan` runs them under the sanitizer, and the wrong ones in child
//! processes. It knows no fences, and std is not built for it, so the stories keep to what
//! it judges rightly: threads that are spawned and joined, parking_lot, our own atomics.
//! Allocators are held by the main thread until all are joined, for the end of what an
//! `Arc` or a `SharedAllocator` points to is ordered by a fence.
//!
//! In the other lanes the same stories check contents: each thread writes its own stamp
//! over all that it has and looks whether it is still there. Interleavings are loom's
//! (`loom_tests/`); this is the same code with the real lock, real pages and real bytes.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use tenslab::kv::{
    KvCache, KvDims, KvError, KvLimits, KvOptions, KvSpec, Namespace, PrefixHash, Sequence,
};
use tenslab::memory::{
    Allocator, Budget, Buffer, CachingPool, CpuAllocator, Limit, Meter, SharedAllocator,
    SlabAllocator, StepArena, Storage, Tag, Trace,
};
use tenslab::{DType, Tensor};

const ROUNDS: usize = 400;

const BLOCK: usize = 4096;

/// Two and more threads pass it together, and it orders nothing: all of it is relaxed.
#[derive(Default)]
struct Gate(AtomicUsize);

impl Gate {
    /// Waits until `threads` threads came for the `round`-th time, counted from 0.
    fn pass(&self, threads: usize, round: usize) {
        self.0.fetch_add(1, Ordering::Relaxed);
        while self.0.load(Ordering::Relaxed) < threads * (round + 1) {
            thread::yield_now();
        }
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::spawn(work)
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Writes `stamp` over all of it.
fn stamp(buffer: &mut Buffer, stamp: u8) {
    buffer.as_mut_slice().fill(stamp);
}

fn has(buffer: &Buffer, stamp: u8) -> bool {
    buffer.as_slice().iter().all(|&byte| byte == stamp)
}

fn slab(blocks: u32) -> SharedAllocator {
    SharedAllocator::new(SlabAllocator::new(BLOCK, blocks).unwrap())
}

/// Fewer blocks than the magazines of two threads hold, so that each takes what the other
/// gave back: out of its magazine, out of the tier, and after a third gave the pages away.
#[test]
fn blocks_change_hands_through_magazines_steals_and_trims() {
    let slab = slab(20);
    let working = Arc::new(AtomicUsize::new(2));
    let takers = [0xa1, 0xb2].map(|own| {
        let (slab, working) = (slab.clone(), Arc::clone(&working));
        spawn(move || {
            for round in 0..ROUNDS {
                let mut held: Vec<Buffer> = Vec::new();
                // Both together want all of them and more.
                for _ in 0..12 {
                    let fresh = if round % 4 == 0 {
                        slab.allocate_zeroed(BLOCK, 64)
                    } else {
                        slab.allocate(BLOCK, 64)
                    };
                    let Ok(mut buffer) = fresh else { continue };
                    assert!(round % 4 != 0 || has(&buffer, 0));
                    stamp(&mut buffer, own);
                    held.push(buffer);
                }
                assert!(held.iter().all(|buffer| has(buffer, own)));
            }
            // Relaxed: the trimming only has to end some time.
            working.fetch_sub(1, Ordering::Relaxed);
        })
    });
    while working.load(Ordering::Relaxed) > 0 {
        slab.trim();
        thread::yield_now();
    }
    join(takers);
    assert_eq!((slab.outstanding(), slab.stats().live_bytes), (0, 0));
}

/// Two threads take blocks of a pool, through caches, the depot and the heap, and give back each
/// other's; a third trims, flushes and looks.
#[test]
fn a_pools_pages_go_from_thread_to_thread() {
    let pool = CachingPool::new().unwrap();
    let room = SharedAllocator::new(pool.clone());
    let local = SharedAllocator::new(pool.local_cache(1 << 20));
    let (working, post) = (
        Arc::new(AtomicUsize::new(2)),
        Arc::new(Mutex::new(Vec::new())),
    );
    let takers = [0xa1, 0xb2].map(|own| {
        let (room, local) = (room.clone(), local.clone());
        let (working, post) = (Arc::clone(&working), Arc::clone(&post));
        spawn(move || {
            for round in 0..ROUNDS {
                let mut held: Vec<Buffer> = Vec::new();
                for bytes in [100, 10 * BLOCK, 10 * BLOCK, 9 * BLOCK + round % 5 * BLOCK] {
                    let from = if round % 3 == 0 { &local } else { &room };
                    let zeroed = from.allocate_zeroed(bytes, 64).unwrap();
                    assert!(has(&zeroed, 0));
                    let mut buffer = from.allocate(bytes, 64).unwrap();
                    stamp(&mut buffer, own);
                    held.push(buffer);
                }
                assert!(held.iter().all(|buffer| has(buffer, own)));
                let theirs = std::mem::replace(&mut *post.lock(), held);
                drop(theirs);
            }
            // Relaxed: the trimming only has to end some time.
            working.fetch_sub(1, Ordering::Relaxed);
        })
    });
    let mut turn = 0;
    while working.load(Ordering::Relaxed) > 0 {
        turn += 1;
        match turn % 4 {
            0 => _ = pool.trim(),
            1 => _ = pool.trim_bytes(5 * BLOCK),
            2 => pool.flush(),
            _ => _ = (pool.report(), pool.map()),
        }
        thread::yield_now();
    }
    join(takers);
    post.lock().clear();
    assert_eq!((room.outstanding(), pool.stats().live_bytes), (0, 0));
}

/// Two threads make steps of one arena, a third ends them and trims: bytes that are cleared by
/// one, written by another and used again by the first.
#[test]
fn an_arenas_chunks_go_from_thread_to_thread() {
    let arena = Arc::new(StepArena::new());
    let room = SharedAllocator::new(Arc::clone(&arena));
    let working = Arc::new(AtomicUsize::new(2));
    let takers = [0xa1, 0xb2].map(|own| {
        let (room, working) = (room.clone(), Arc::clone(&working));
        spawn(move || {
            for round in 0..ROUNDS {
                let mut held: Vec<Buffer> = Vec::new();
                for bytes in [100, BLOCK, 5 * BLOCK, 1 + round] {
                    let zeroed = room.allocate_zeroed(bytes, 64).unwrap();
                    assert!(has(&zeroed, 0));
                    let mut buffer = room.allocate(bytes, 64).unwrap();
                    stamp(&mut buffer, own);
                    held.push(buffer);
                }
                assert!(held.iter().all(|buffer| has(buffer, own)));
            }
            // Relaxed: the ending only has to end some time.
            working.fetch_sub(1, Ordering::Relaxed);
        })
    });
    let mut turn = 0;
    while working.load(Ordering::Relaxed) > 0 {
        turn += 1;
        match turn % 3 {
            0 => _ = arena.trim(),
            1 => _ = arena.retire_step(),
            _ => _ = arena.end_step(),
        }
        thread::yield_now();
    }
    join(takers);
    assert_eq!((room.outstanding(), room.stats().live_bytes), (0, 0));
    assert_eq!(arena.end_step().unwrap().parked_bytes, 0);
}

/// What one thread allocates another one drops, the third looks at the numbers.
#[test]
fn buffers_are_dropped_by_another_thread() {
    let limit = Limit::new(64 * BLOCK);
    let meter = Arc::new(Meter::new(Trace::new(Budget::new(
        SlabAllocator::new(BLOCK, 40).unwrap(),
        &limit,
    ))));
    let allocator = SharedAllocator::new(Arc::clone(&meter)).with_tag(Tag::Kv);
    let post: Arc<Mutex<Vec<Buffer>>> = Arc::default();
    let done = Arc::new(AtomicBool::new(false));
    let sender = spawn({
        let (allocator, post, done) = (allocator.clone(), Arc::clone(&post), Arc::clone(&done));
        move || {
            for _ in 0..8 * ROUNDS {
                let Ok(mut buffer) = allocator.allocate(BLOCK - 7, 64) else {
                    thread::yield_now();
                    continue;
                };
                stamp(&mut buffer, 0x5e);
                post.lock().push(buffer);
            }
            // Release: the other one sees the last buffers when it sees this.
            done.store(true, Ordering::Release);
        }
    });
    let dropper = spawn({
        let (post, done) = (Arc::clone(&post), Arc::clone(&done));
        move || {
            loop {
                // Acquire: pairs with the Release of the sender.
                let last = done.load(Ordering::Acquire);
                let came = std::mem::take(&mut *post.lock());
                for mut buffer in came {
                    assert!(has(&buffer, 0x5e));
                    stamp(&mut buffer, 0xd0);
                }
                if last {
                    return;
                }
                thread::yield_now();
            }
        }
    });
    while !done.load(Ordering::Relaxed) {
        assert!(meter.snapshot().total.live_bytes <= 40 * BLOCK);
        assert!(limit.used_bytes() <= 64 * BLOCK);
        thread::yield_now();
    }
    join([sender, dropper]);
    assert_eq!((allocator.outstanding(), limit.used_bytes()), (0, 0));
    assert_eq!(meter.stats().live_bytes, 0);
}

/// Two threads have views of one tensor, and one of them writes. Whoever drops the last
/// view gives the block back, and a new tensor gets it.
#[test]
fn the_last_of_two_views_gives_the_bytes_back() {
    let slab = slab(2);
    // The tensor goes to the other thread through it; the gate alone orders nothing.
    let post: Arc<AtomicPtr<Tensor>> = Arc::default();
    let gate = Arc::new(Gate::default());
    let other = spawn({
        let (gate, post) = (Arc::clone(&gate), Arc::clone(&post));
        move || {
            for round in 0..ROUNDS {
                gate.pass(2, 3 * round);
                // Acquire: pairs with the Release of the store that put it there.
                let tensor = post.swap(std::ptr::null_mut(), Ordering::Acquire);
                // SAFETY: the main thread leaked it from a box and forgot it before the
                // gate, and the exchange took it out of the only place where it was.
                let tensor = unsafe { Box::from_raw(tensor) };
                tensor.write::<f32>().unwrap()[0] = 1.0;
                gate.pass(2, 3 * round + 1);
                drop_in_turn(round, 0, &gate, *tensor);
            }
        }
    });
    for round in 0..ROUNDS {
        // Writes all of a block that the other thread wrote before.
        let tensor = Tensor::zeros([BLOCK / 4], DType::F32, &slab).unwrap();
        let mine = tensor.slice(0, BLOCK / 8, BLOCK / 4).unwrap();
        // Release: publishes the tensor.
        post.store(Box::into_raw(Box::new(tensor)), Ordering::Release);
        gate.pass(2, 3 * round);
        gate.pass(2, 3 * round + 1);
        // What the other one wrote is not looked at: no guard orders it before this drop.
        drop_in_turn(round, 1, &gate, mine);
    }
    join([other]);
    assert_eq!((slab.outstanding(), slab.stats().live_bytes), (0, 0));
}

/// In two rounds of three one drops before the other, in the third both at once.
fn drop_in_turn(round: usize, own: usize, gate: &Gate, view: Tensor) {
    let mut view = Some(view);
    if round % 3 == own {
        view = None;
    }
    gate.pass(2, 3 * round + 2);
    drop(view);
}

/// Writers add, readers compare, and at the end one freezes it: each sees whole writes.
#[test]
fn guards_and_freezing_pass_the_bytes_on() {
    const WORDS: usize = 16;
    let cpu = CpuAllocator::new();
    let allocator = SharedAllocator::new(cpu);
    for _ in 0..ROUNDS / 20 {
        let storage = Storage::from(allocator.allocate_zeroed(8 * WORDS, 64).unwrap());
        let tensor = Tensor::from_storage(&storage, 0, [WORDS], DType::F32).unwrap();
        let raw = Tensor::from_storage(&storage, 4 * WORDS, [WORDS], DType::F32).unwrap();
        let gate = Arc::new(Gate::default());
        let threads = [0, 1].map(|own| {
            let (tensor, raw, storage) = (tensor.clone(), raw.clone(), storage.clone());
            let gate = Arc::clone(&gate);
            spawn(move || {
                gate.pass(2, 0);
                let mut wrote = 0;
                while wrote < 20 {
                    if let Ok(mut words) = tensor.write::<f32>() {
                        for word in &mut *words {
                            *word += 1.0;
                        }
                        wrote += 1;
                    }
                    if let Ok(words) = tensor.read::<f32>() {
                        assert!(words.iter().all(|word| *word == words[0]));
                    }
                    if storage.is_frozen() {
                        return;
                    }
                }
                if own == 0 {
                    // SAFETY: the first word of `raw`, of which nobody takes a guard before
                    // it is frozen, and which nobody else writes.
                    unsafe { raw.data_ptr::<f32>().write(7.0) };
                    while storage.freeze().is_err() {
                        thread::yield_now();
                    }
                }
            })
        });
        // Frozen, it is read without being counted: the freezing alone orders it.
        while !storage.is_frozen() {
            thread::yield_now();
        }
        let words = tensor.read::<f32>().unwrap();
        assert!(words[0] >= 20.0 && words.iter().all(|word| *word == words[0]));
        assert_eq!(raw.read::<f32>().unwrap()[0], 7.0);
        drop(words);
        join(threads);
    }
    assert_eq!(allocator.outstanding(), 0);
}

/// Two threads find each other's prefixes, fork them, copy what both go on behind, and drop
/// them in turn. There are fewer blocks than they want, so they evict each other's.
#[test]
fn sequences_share_prefixes_and_take_each_others_blocks() {
    const WIDTH: usize = 64;

    /// Appends those of the tokens that are not there: each is its key and its value.
    fn extend(sequence: &mut Sequence, all: &[u32]) -> Result<(), KvError> {
        let new = &all[sequence.len()..];
        let rows: Vec<f32> = (new.iter().flat_map(|&token| [token as f32; WIDTH])).collect();
        let mut step = sequence.append(new)?;
        step.layer_mut(0)?.write(&rows, &rows)?;
        step.commit()
    }

    fn assert_holds(sequence: &Sequence, all: &[u32]) {
        for (block, tokens) in all[..sequence.len()].chunks(4).enumerate() {
            let keys = sequence.keys_head::<f32>(0, block, 0).unwrap();
            let values = sequence.values_head::<f32>(0, block, 0).unwrap();
            let rows = keys.chunks(WIDTH).zip(values.chunks(WIDTH));
            for (&token, (key, value)) in tokens.iter().zip(rows) {
                assert!(key.iter().chain(value).all(|&each| each == token as f32));
            }
        }
    }

    fn round(cache: &KvCache, prompt: &[u32], own: u32) -> Result<(), KvError> {
        let mut a = cache.acquire(prompt, &Namespace::default(), 0, None)?;
        assert_holds(&a, prompt);
        extend(&mut a, prompt)?;
        let mut b = a.fork()?;
        let tensor = a.keys_tensor(0, 1)?;
        let [with_a, with_b] = [own, own + 10].map(|next| [prompt, &[next]].concat());
        extend(&mut a, &with_a)?;
        extend(&mut b, &with_b)?;
        assert_holds(&a, &with_a);
        drop(a);
        assert_holds(&b, &with_b);
        b.truncate(6)?;
        extend(&mut b, &[&prompt[..6], &[own + 20]].concat())?;
        drop(b);
        let read = tensor.read::<f32>().unwrap();
        assert_eq!(
            (read[0], read[4 * WIDTH - 1]),
            (prompt[4] as f32, prompt[7] as f32)
        );
        Ok(())
    }

    let dims = KvDims {
        layers: 1,
        kv_heads: 1,
        key_dim: WIDTH,
        value_dim: WIDTH,
        block_tokens: 4,
    };
    let limits = KvLimits {
        blocks: 7,
        max_sequences: 4,
        max_blocks_per_sequence: 4,
    };
    let spec = KvSpec::new(dims, DType::F32).unwrap();
    let options = KvOptions::default().with_hash(PrefixHash::seeded(1));
    let allocator = SharedAllocator::new(CpuAllocator::new());
    let cache = KvCache::with_options(spec, limits, &options, &allocator).unwrap();
    let ended = Arc::new(AtomicUsize::new(0));
    let threads = [1000, 2000].map(|own| {
        let (cache, ended) = (cache.clone(), Arc::clone(&ended));
        spawn(move || {
            // Each twice: also a thread that nobody disturbs finds what it left.
            for first in [0, 0, 100, 100, 200, 200]
                .into_iter()
                .cycle()
                .take(4 * ROUNDS)
            {
                let prompt: Vec<u32> = (first..first + 10).collect();
                match round(&cache, &prompt, own) {
                    // Relaxed: it is looked at after the threads are joined.
                    Ok(()) => drop(ended.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => assert!(matches!(error, KvError::OutOfBlocks { .. })),
                }
            }
        })
    });
    join(threads);
    cache.check().unwrap();
    let (stats, counters) = (cache.stats(), cache.counters());
    assert_eq!((stats.sequences, stats.blocks_used), (0, 0));
    assert!(ended.load(Ordering::Relaxed) > 0);
    assert!(counters.hit_blocks > 0 && counters.copied_blocks > 0);
    assert!(counters.evicted_for_space > 0);
}

/// The sanitizer is there, and it sees what is wrong in the code above.
#[cfg(tenslab_tsan)]
mod seen {
    use std::process::{Command, Output};

    use super::*;

    /// Chooses a wrong variant: see `src/mutant.rs`.
    const MUTANT: &str = "TENSLAB_MUTANT";

    /// Chooses the planted race.
    const PLANT: &str = "TENSLAB_PLANT_RACE";

    /// Runs the test `name` of this binary in a child.
    fn child(name: &str, variable: &str, value: &str) -> Output {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env_remove(MUTANT)
            .env_remove(PLANT)
            .env(variable, value)
            .output()
            .unwrap()
    }

    /// A race that shows only on some schedules is looked for this often.
    const ATTEMPTS: usize = 5;

    fn is_reported(name: &str, variable: &str, value: &str) -> bool {
        (0..ATTEMPTS).any(|_| {
            let output = child(name, variable, value);
            let errors = String::from_utf8_lossy(&output.stderr);
            !output.status.success() && errors.contains("WARNING: ThreadSanitizer: data race")
        })
    }

    /// Two threads write one block at the same time through raw pointers, if asked to.
    #[test]
    fn a_planted_race_is_reported() {
        if std::env::var_os(PLANT).is_none() {
            let name = "seen::a_planted_race_is_reported";
            assert!(is_reported(name, PLANT, "1"));
            return;
        }
        let slab = slab(2);
        let tensor = Tensor::zeros([BLOCK / 4], DType::F32, &slab).unwrap();
        let gate = Arc::new(Gate::default());
        let writers = [1.0, 2.0].map(|value| {
            let (tensor, gate) = (tensor.clone(), Arc::clone(&gate));
            spawn(move || {
                gate.pass(2, 0);
                let start = tensor.data_ptr::<f32>();
                // SAFETY: inside the tensor and aligned. That the other one does the same
                // is the fault that the sanitizer has to see.
                unsafe { start.write(value) };
            })
        });
        join(writers);
    }

    #[test]
    fn wrong_orderings_are_reported() {
        let blocks = "blocks_change_hands_through_magazines_steals_and_trims";
        let views = "the_last_of_two_views_gives_the_bytes_back";
        let guards = "guards_and_freezing_pass_the_bytes_on";
        let prefixes = "sequences_share_prefixes_and_take_each_others_blocks";
        let wrong = [
            ("SeatOwnerRelaxed", blocks),
            ("SeatLeaveRelaxed", blocks),
            ("LastViewRelaxed", views),
            ("ReaderRelaxed", guards),
            ("WriterRelaxed", guards),
            ("ReleaseRelaxed", guards),
            ("FreezeRelaxed", guards),
            ("KvWritesShared", prefixes),
            ("KvRegistersEarly", prefixes),
        ];
        for (mutant, story) in wrong {
            assert!(is_reported(story, MUTANT, mutant), "{mutant} was not seen");
        }
    }
}
