//! Steps of an arena make no heap block from the third one on: the first makes chunks, its
//! end makes one of them. Counted by dhat, which sees every allocation of the process.
//!
//! ```text
//!   step 0   a chunk whenever there is no room      end: one chunk, of just the size
//!   step 1   0
//!   step 2   0 … and 1 with a Box planted in it
//! ```
//!
//! dhat is the global allocator of this binary and counts every thread, so it has no test
//! harness: its thread makes heap blocks whenever it likes.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that fails should panic, and one that passes says so"
)]

use std::hint::black_box;
use std::sync::Arc;

use tenslab::memory::{
    Budget, Buffer, Limit, Meter, Request, SharedAllocator, StepArena, Tag, Trace,
};
use tenslab::{DType, Tensor};

#[global_allocator]
static HEAP: dhat::Alloc = dhat::Alloc;

/// Heap blocks that `work` makes.
fn blocks(work: impl FnOnce()) -> u64 {
    let before = dhat::HeapStats::get().total_blocks;
    work();
    dhat::HeapStats::get().total_blocks - before
}

/// What a forward pass does: tensors of several sizes, views, a part of them dropped early.
fn pass(room: &SharedAllocator, tokens: usize, planted: bool) {
    let (hidden, scratch) = (room.with_tag(Tag::Activations), room.with_tag(Tag::Scratch));
    let x = Tensor::empty([tokens, 576], DType::F32, &hidden).unwrap();
    for layer in 0..4 {
        let qkv = Tensor::empty([3, tokens, 576], DType::F32, &hidden).unwrap();
        let scores = Tensor::zeros([tokens, 64], DType::F32, &scratch).unwrap();
        let views = [qkv.slice(0, 0, 1).unwrap(), qkv.select(0, 2).unwrap()];
        views[0].write::<f32>().unwrap().fill(1.0);
        scores.write::<f32>().unwrap()[0] = 2.0;
        if planted && layer == 2 {
            drop(black_box(Box::new(7_u64)));
        }
        drop((qkv, scores));
        black_box(views);
    }
    x.write::<f32>().unwrap().fill(0.0);
}

fn steps(arena: &StepArena, room: &SharedAllocator) {
    let step = |tokens, planted| {
        blocks(|| {
            pass(room, tokens, planted);
            arena.end_step().unwrap();
        })
    };
    assert!(step(16, false) > 1, "the first step makes chunks");
    step(16, false);
    for _ in 2..100 {
        assert_eq!(step(16, false), 0);
    }
    assert_eq!(step(16, true), 1, "the planted box is seen");
    // Smaller steps need nothing, and after a while their chunk is as small.
    let smaller: u64 = (0..20).map(|_| step(1, false)).sum();
    assert!(smaller <= 1, "{smaller} blocks for a smaller chunk");
    assert_eq!((0..100).map(|_| step(1, false)).sum::<u64>(), 0);
}

fn main() {
    let _counting = dhat::Profiler::builder().testing().build();

    let arena = Arc::new(StepArena::new());
    steps(&arena, &SharedAllocator::new(Arc::clone(&arena)));

    let limit = Limit::new(64 << 20);
    let arena = Arc::new(StepArena::new().with_limit(&limit));
    let trace = Trace::new(Meter::new(Arc::clone(&arena)));
    steps(
        &arena,
        &SharedAllocator::new(Budget::new(trace, &Limit::unlimited())),
    );

    // Known beforehand: one chunk, and the table that it is in.
    let arena = Arc::new(StepArena::new().with_limit(&limit));
    let room = SharedAllocator::new(Arc::clone(&arena));
    let plan = [Request::new(100_000, 4096).unwrap(); 10];
    assert_eq!(blocks(|| arena.reserve(&plan).unwrap()), 2);
    let mut held: Vec<Buffer> = Vec::with_capacity(10);
    let all = || held.extend(plan.map(|one| room.allocate(one.bytes(), one.align()).unwrap()));
    assert_eq!(blocks(all), 0);
    // Refusals are plain values.
    assert_eq!(blocks(|| assert!(arena.end_step().is_err())), 0);
    assert_eq!(blocks(|| assert!(room.allocate(1 << 40, 64).is_err())), 0);
    assert_eq!(blocks(|| held.clear()), 0);
    arena.end_step().unwrap();

    // One tensor of each step lives on into the next: two chunks take turns.
    let mut last = room.allocate(4000, 64).unwrap();
    let mut turn = || {
        pass(&room, 8, false);
        let parked = arena.retire_step().parked_allocations;
        assert_eq!(parked, 1);
        last = room.allocate(4000, 64).unwrap();
    };
    for _ in 0..40 {
        turn();
    }
    assert_eq!(blocks(|| (0..100).for_each(|_| turn())), 0);
    println!("steps of an arena make no heap block from the third one on: ok");
}
