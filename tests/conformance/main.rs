//! One suite that every allocator passes, alone and under every two wrappers.
//!
//! ```text
//!   wrapper ▶ wrapper ▶ bottom          WRAPPERS × WRAPPERS × BOTTOMS, and fewer
//!
//!   requests    every alignment and size, zero, overflow, zeros, tags
//!   contents    a million seeded steps against a map of who has which byte
//!   failures    the k-th upstream call fails, for all k
//!   growth      a block gets longer where it stands, or is as it was
//!   lifetimes   who may drop what, where and when; a process that forks
//!   soak        ten million steps: memory does not drift (`TENSLAB_LONG=1`)
//! ```
//!
//! **To add an allocator, add a row** to [`BOTTOMS`] or [`WRAPPERS`]. What is promised is
//! promised whoever hands out the bytes: the alignment that was asked for, bytes that are
//! nobody else's, zeros where zeros were asked for (also from a block that was used
//! before), an `Err` with numbers for all that cannot be, and that each buffer goes back
//! exactly once, from any thread, after every handle is gone.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]
#![allow(clippy::print_stdout, reason = "the soak says what it measured")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "a test cuts numbers that it made to fit"
)]

#[path = "../probe/mod.rs"]
mod probe;

mod contents;
mod failures;
mod growth;
mod lifetimes;
mod requests;
mod soak;

use std::sync::Arc;

#[cfg(not(tenslab_portable))]
use tenslab::memory::CachingPool;
use tenslab::memory::{
    AllocError, Allocator, Budget, CpuAllocator, Fault, FaultPlan, Guarded, Limit, MAX_ALIGN,
    Meter, SharedAllocator, SlabAllocator, StepArena, Trace,
};

/// The most that the suite asks of every stack at once, and what a slab's block has where
/// no wrapper needs room of its own in it.
const BLOCK: usize = 256 << 10;

/// Any allocator. Behind a pointer, so that stacks are rows of a table and not types.
type Any = Arc<dyn Allocator>;

/// What stands at the bottom of a stack, and the most that it gives.
struct Bottom {
    name: &'static str,
    /// Takes the bytes of a block, where blocks have a size.
    make: fn(usize) -> Any,
    /// Do blocks have a size, which is the most that it gives and aligns to?
    has_blocks: bool,
    /// Does it clear what it hands out by itself, so that all of it is in memory?
    clears: bool,
}

impl Bottom {
    /// One that gives [`BLOCK`] bytes through `wrappers`.
    fn under(&self, wrappers: &[&'static Wrapper]) -> Any {
        (self.make)(block_bytes(wrappers))
    }
}

#[rustfmt::skip]
const BOTTOMS: &[Bottom] = &[
    Bottom { name: "cpu", make: |_| Arc::new(CpuAllocator::new()), has_blocks: false, clears: false },
    Bottom { name: "slab", make: |bytes| Arc::new(SlabAllocator::new(bytes, 64).unwrap()), has_blocks: true, clears: false },
    // Where the heap stands in for pages, a pool's addresses are cleared when it is made.
    #[cfg(not(tenslab_portable))]
    Bottom { name: "pool", make: |_| Arc::new(CachingPool::new().unwrap()), has_blocks: false, clears: false },
    #[cfg(not(tenslab_portable))]
    Bottom { name: "pool's cache", make: |_| Arc::new(CachingPool::new().unwrap().local_cache(4 << 20)), has_blocks: false, clears: false },
    Bottom { name: "arena", make: |_| Arc::new(StepArena::new()), has_blocks: false, clears: true },
];

/// What stands above, and what it does to a request.
struct Wrapper {
    name: &'static str,
    make: fn(Any) -> Any,
    /// Bytes that it asks for around a block of at least a byte, by the alignment.
    around: fn(usize) -> usize,
    /// Does it write every byte of a block, and never let one grow?
    is_guard: bool,
}

const fn plain(name: &'static str, make: fn(Any) -> Any) -> Wrapper {
    Wrapper {
        name,
        make,
        around: |_| 0,
        is_guard: false,
    }
}

/// The redzones of a [`Guarded`]: 64 bytes behind, and in front as many as keep the
/// alignment, unless that is more than 4 KiB.
fn redzones(align: usize) -> usize {
    64 + if align <= 4096 { align.max(64) } else { 0 }
}

#[rustfmt::skip]
const WRAPPERS: &[Wrapper] = &[
    plain("arc", |upstream| Arc::new(upstream)),
    plain("shared", |upstream| Arc::new(SharedAllocator::new(upstream))),
    plain("meter", |upstream| Arc::new(Meter::new(upstream))),
    plain("budget", |upstream| Arc::new(Budget::new(upstream, &Limit::unlimited()))),
    plain("trace", |upstream| Arc::new(Trace::new(upstream))),
    plain("fault", |upstream| Arc::new(Fault::new(upstream, FaultPlan::Never))),
    // Without a quarantine, so that what was given back is not live any more;
    // `tests/guarded.rs` looks at the quarantine.
    Wrapper {
        name: "guarded", make: |upstream| Arc::new(Guarded::new(upstream).with_quarantine(0)),
        around: redzones, is_guard: true,
    },
];

/// Wrappers, the outermost first.
type Wrappers = Vec<&'static Wrapper>;

/// No wrapper, each one, and every two, also of the same kind.
fn wrappers() -> Vec<Wrappers> {
    let one = WRAPPERS.iter().map(|outer| vec![outer]);
    let two = WRAPPERS
        .iter()
        .flat_map(|outer| WRAPPERS.iter().map(move |inner| vec![outer, inner]));
    std::iter::once(vec![]).chain(one).chain(two).collect()
}

/// Puts `wrappers` on top of `bottom`.
fn wrap(wrappers: &[&'static Wrapper], bottom: Any) -> Any {
    wrappers
        .iter()
        .rev()
        .fold(bottom, |upstream, wrapper| (wrapper.make)(upstream))
}

/// Is one of them a guard?
fn is_guarded(wrappers: &[&'static Wrapper]) -> bool {
    wrappers.iter().any(|wrapper| wrapper.is_guard)
}

/// The bytes that the bottom is asked for, or how the wrapper refuses for which they
/// become too many.
fn widened(wrappers: &[&'static Wrapper], bytes: usize, align: usize) -> Result<usize, AllocError> {
    let most = isize::MAX as usize - (align - 1);
    wrappers.iter().try_fold(bytes, |bytes, wrapper| {
        let around = if bytes == 0 {
            0
        } else {
            (wrapper.around)(align)
        };
        bytes
            .checked_add(around)
            .filter(|&wide| wide <= most)
            .ok_or(AllocError::SizeOverflow { bytes, align })
    })
}

/// Bytes of a slab's block that gives [`BLOCK`] of them through `wrappers`, at every
/// alignment: just [`BLOCK`], where nothing is asked for around it.
fn block_bytes(wrappers: &[&'static Wrapper]) -> usize {
    let widest = (0..=BLOCK.ilog2()).map(|log| widened(wrappers, BLOCK, 1 << log).unwrap());
    widest.max().unwrap().next_power_of_two()
}

fn name(wrappers: &[&'static Wrapper], bottom: &str) -> String {
    let names = wrappers.iter().map(|wrapper| wrapper.name);
    names.chain([bottom]).collect::<Vec<_>>().join(" of ")
}

struct Stack {
    name: String,
    allocator: SharedAllocator,
    wrappers: Wrappers,
    /// Is every byte that comes out of it in memory?
    clears: bool,
    /// The most that the bottom gives, redzones included.
    max_bytes: usize,
    max_align: usize,
}

/// Every stack, fresh.
fn stacks() -> impl Iterator<Item = Stack> {
    BOTTOMS.iter().flat_map(|bottom| {
        wrappers().into_iter().map(|wrappers| {
            let (max_bytes, max_align) = if bottom.has_blocks {
                (block_bytes(&wrappers), block_bytes(&wrappers))
            } else {
                (usize::MAX, MAX_ALIGN)
            };
            Stack {
                name: name(&wrappers, bottom.name),
                allocator: SharedAllocator::new(wrap(&wrappers, bottom.under(&wrappers))),
                clears: bottom.clears || is_guarded(&wrappers),
                wrappers,
                max_bytes,
                max_align,
            }
        })
    })
}

/// Is this the long run (`.ci/long`)?
fn is_long() -> bool {
    std::env::var_os("TENSLAB_LONG").is_some()
}

/// The table makes what it says.
#[test]
fn every_two_wrappers_are_there() {
    let each = 1 + WRAPPERS.len() + WRAPPERS.len() * WRAPPERS.len();
    let names: std::collections::HashSet<String> = stacks().map(|stack| stack.name).collect();
    assert_eq!(names.len(), BOTTOMS.len() * each);
    assert!(names.contains("slab") && names.contains("budget of meter of cpu"));
    assert!(names.contains("guarded of guarded of slab"));
}

/// What a guard asks for is what its row says, and no other stack has larger blocks.
#[test]
fn only_a_guard_asks_for_more_than_it_gives() {
    for wrappers in wrappers() {
        let what = name(&wrappers, "spy");
        let (spy, log) = probe::Spy::watching(CpuAllocator::new());
        let stack = SharedAllocator::new(wrap(&wrappers, Arc::new(spy)));
        for (bytes, align) in [(0, 64), (1, 1), (100, 64), (100, 128), (1, 4096), (1, 8192)] {
            drop(stack.allocate(bytes, align).unwrap());
            let asked = log.last_request().bytes();
            assert_eq!(Ok(asked), widened(&wrappers, bytes, align), "{what}");
            assert_eq!(asked > bytes, bytes > 0 && is_guarded(&wrappers), "{what}");
        }
        let larger = if is_guarded(&wrappers) { 2 } else { 1 };
        assert_eq!(block_bytes(&wrappers), larger * BLOCK, "{what}");
    }
}
