//! What a slab's shared tier should be: one short lock, or a tagged lock-free list.
//!
//! Both are chains of numbers, links in a table, alone and behind magazines as the slab has
//! them. This is what `docs/decisions/0002` rests on; the slab itself is in `slab.rs`.
//! One unit is one number taken and given back, forty at a time, so that a magazine of
//! 26 has to refill and flush.

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers that were made to fit"
)]

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use parking_lot::Mutex;

const NIL: u32 = u32::MAX;
const NUMBERS: u32 = 1024;
const CAPACITY: usize = 26;
const BURST: usize = 40;

/// Batches of numbers in and out.
trait Tier: Sync {
    /// Fills the front of `batch`, and says how far.
    fn pop(&self, batch: &mut [u32]) -> usize;
    fn push(&self, batch: &[u32]);
}

fn links() -> Box<[AtomicU32]> {
    (1..=NUMBERS)
        .map(|next| AtomicU32::new(if next == NUMBERS { NIL } else { next }))
        .collect()
}

/// Chains `batch` up, the last on top of nothing, and returns the first and the last.
fn chain(links: &[AtomicU32], batch: &[u32]) -> (u32, u32) {
    for pair in batch.windows(2) {
        links[pair[0] as usize].store(pair[1], Ordering::Relaxed);
    }
    (batch[0], batch[batch.len() - 1])
}

/// From `head` on, what `batch` holds. Returns how many, and what comes after.
fn walk(links: &[AtomicU32], mut head: u32, batch: &mut [u32]) -> (usize, u32) {
    let mut got = 0;
    while got < batch.len() && head != NIL {
        batch[got] = head;
        head = links[head as usize].load(Ordering::Relaxed);
        got += 1;
    }
    (got, head)
}

struct Locked {
    head: Mutex<u32>,
    links: Box<[AtomicU32]>,
}

impl Tier for Locked {
    fn pop(&self, batch: &mut [u32]) -> usize {
        let mut head = self.head.lock();
        let (got, next) = walk(&self.links, *head, batch);
        *head = next;
        got
    }

    fn push(&self, batch: &[u32]) {
        let (first, last) = chain(&self.links, batch);
        let mut head = self.head.lock();
        self.links[last as usize].store(*head, Ordering::Relaxed);
        *head = first;
    }
}

/// The head and a tag that each taking bumps, in one word.
struct Tagged {
    head: AtomicU64,
    links: Box<[AtomicU32]>,
}

impl Tier for Tagged {
    fn pop(&self, batch: &mut [u32]) -> usize {
        let mut seen = self.head.load(Ordering::Acquire);
        loop {
            let (got, next) = walk(&self.links, seen as u32, batch);
            let tag = (seen >> 32).wrapping_add(1) << 32;
            let new = tag | u64::from(next);
            match self
                .head
                .compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return got,
                Err(now) => seen = now,
            }
        }
    }

    fn push(&self, batch: &[u32]) {
        let (first, last) = chain(&self.links, batch);
        let mut seen = self.head.load(Ordering::Relaxed);
        loop {
            self.links[last as usize].store(seen as u32, Ordering::Relaxed);
            let new = seen >> 32 << 32 | u64::from(first);
            match self
                .head
                .compare_exchange_weak(seen, new, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

/// Forty out and back, one by one.
fn bare(tier: &dyn Tier) {
    let mut out = [NIL; BURST];
    for place in &mut out {
        assert_eq!(tier.pop(std::slice::from_mut(place)), 1);
    }
    for number in black_box(out) {
        tier.push(&[number]);
    }
}

/// Forty out and back, past a magazine whose exchange is paid as the slab pays it.
fn behind(tier: &dyn Tier, taken: &AtomicU32, magazine: &mut Vec<u32>) {
    let mut out = [NIL; BURST];
    let exchange = || {
        let before = taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        assert_eq!(before, Ok(0));
    };
    for place in &mut out {
        exchange();
        *place = magazine.pop().unwrap_or_else(|| {
            let mut batch = [NIL; CAPACITY / 2];
            let got = tier.pop(&mut batch);
            assert!(got > 0);
            magazine.extend(batch[1..got].iter().rev());
            batch[0]
        });
        taken.store(0, Ordering::Release);
    }
    for number in black_box(out) {
        exchange();
        if magazine.len() == CAPACITY {
            tier.push(&magazine[..CAPACITY / 2]);
            magazine.drain(..CAPACITY / 2);
        }
        magazine.push(number);
        taken.store(0, Ordering::Release);
    }
}

/// The longest of as many threads, for `iterations` numbers each.
fn run(threads: usize, iterations: u64, tier: &dyn Tier, magazines: bool) -> Duration {
    let gate = Barrier::new(threads);
    let work = || {
        let mut magazine = Vec::with_capacity(CAPACITY);
        let taken = AtomicU32::new(0);
        gate.wait();
        let start = Instant::now();
        for _ in 0..iterations.div_ceil(BURST as u64) {
            if magazines {
                behind(tier, &taken, &mut magazine);
            } else {
                bare(tier);
            }
        }
        let took = start.elapsed();
        if !magazine.is_empty() {
            tier.push(&magazine);
        }
        took
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        let others = others.into_iter().filter_map(|other| other.join().ok());
        others.fold(own, Duration::max)
    })
}

fn tiers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tier");
    group.throughput(Throughput::Elements(1));
    let locked = Locked {
        head: Mutex::new(0),
        links: links(),
    };
    let tagged = Tagged {
        head: AtomicU64::new(0),
        links: links(),
    };
    for threads in [1, 2] {
        for magazines in [false, true] {
            let how = if magazines { "magazines" } else { "bare" };
            let tiers: [(&str, &dyn Tier); 2] = [("lock", &locked), ("tagged", &tagged)];
            for (name, tier) in tiers {
                let id = BenchmarkId::new(format!("{name} {how}"), threads);
                group.bench_function(id, |b| {
                    b.iter_custom(|iterations| run(threads, iterations, tier, magazines));
                });
            }
        }
    }
    group.finish();
    let mut all = [NIL; NUMBERS as usize + 1];
    assert_eq!(locked.pop(&mut all), NUMBERS as usize, "none was lost");
    assert_eq!(tagged.pop(&mut all), NUMBERS as usize, "none was lost");
}

criterion_group!(benches, tiers);
criterion_main!(benches);
