//! What a slab's blocks cost by the door they go through, and with one or two threads.
//!
//! One unit is one taking and one giving back. Read the ratios within one run. Beside them:
//! a `Mutex<Vec>` of numbers, which is what most pools of blocks are.

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(clippy::unwrap_used, reason = "a bench that fails may panic")]

use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tenslab::memory::{Allocator, Request};
use tenslab::{SharedAllocator, SlabAllocator};

/// The time of `iterations` rounds where as many threads do them at once: the longest.
fn threads(threads: usize, iterations: u64, round: &(dyn Fn() + Sync)) -> Duration {
    let gate = std::sync::Barrier::new(threads);
    std::thread::scope(|scope| {
        let work = || {
            gate.wait();
            let start = Instant::now();
            for _ in 0..iterations {
                round();
            }
            start.elapsed()
        };
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        let others = others.into_iter().map(|other| other.join().unwrap());
        others.fold(own, Duration::max)
    })
}

fn doors(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("slab");
    group.throughput(Throughput::Elements(1));
    let slab = SlabAllocator::new(4096, 1 << 10).unwrap();
    let shared = SharedAllocator::new(SlabAllocator::new(4096, 1 << 10).unwrap());
    let list = Mutex::new((0..1024_u32).collect::<Vec<_>>());
    let request = Request::new(4096, 64).unwrap();
    assert!(slab.give_back_id(slab.take_id().unwrap()).is_ok());

    let block = || {
        let block = black_box(slab.allocate_block(black_box(request)).unwrap());
        // SAFETY: taken just now, and not used any more.
        unsafe { slab.release_block(block) };
    };
    let id = || {
        slab.give_back_id(black_box(slab.take_id().unwrap()))
            .unwrap()
    };
    let buffer = || drop(black_box(shared.allocate(4096, 64).unwrap()));
    let number = || {
        let number = list.lock().unwrap().pop().unwrap();
        list.lock().unwrap().push(black_box(number));
    };
    // Forty at once: more than a magazine holds, so that half of them go to the tier.
    let forty = || {
        let mut blocks = [const { None }; 40];
        for place in &mut blocks {
            *place = Some(slab.allocate_block(black_box(request)).unwrap());
        }
        for block in blocks.into_iter().flatten() {
            // SAFETY: taken just now, and not used any more.
            unsafe { slab.release_block(block) };
        }
    };
    let rounds: [(&str, &(dyn Fn() + Sync)); 5] = [
        ("block", &block),
        ("id", &id),
        ("buffer", &buffer),
        ("mutex vec", &number),
        ("block x40", &forty),
    ];
    for (name, round) in rounds {
        for count in [1, 2] {
            group.bench_function(BenchmarkId::new(name, format!("{count} threads")), |b| {
                b.iter_custom(|iterations| threads(count, iterations, round));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, doors);
criterion_main!(benches);
