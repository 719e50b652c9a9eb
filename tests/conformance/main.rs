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

use tenslab::memory::{
    Allocator, Budget, CpuAllocator, Fault, FaultPlan, Limit, MAX_ALIGN, Meter, SharedAllocator,
    SlabAllocator, Trace,
};

/// Bytes of a block of the slabs in the suite.
const BLOCK: usize = 256 << 10;

/// Any allocator. Behind a pointer, so that stacks are rows of a table and not types.
type Any = Arc<dyn Allocator>;

/// What stands at the bottom of a stack, and the most that it gives.
#[derive(Clone, Copy)]
struct Bottom {
    name: &'static str,
    make: fn() -> Any,
    max_bytes: usize,
    max_align: usize,
}

#[rustfmt::skip]
const BOTTOMS: &[Bottom] = &[
    Bottom { name: "cpu", make: || Arc::new(CpuAllocator::new()), max_bytes: usize::MAX, max_align: MAX_ALIGN },
    Bottom { name: "slab", make: || Arc::new(SlabAllocator::new(BLOCK, 64).unwrap()), max_bytes: BLOCK, max_align: BLOCK },
];

type Wrapper = (&'static str, fn(Any) -> Any);

#[rustfmt::skip]
const WRAPPERS: &[Wrapper] = &[
    ("arc", |upstream| Arc::new(upstream)),
    ("shared", |upstream| Arc::new(SharedAllocator::new(upstream))),
    ("meter", |upstream| Arc::new(Meter::new(upstream))),
    ("budget", |upstream| Arc::new(Budget::new(upstream, &Limit::unlimited()))),
    ("trace", |upstream| Arc::new(Trace::new(upstream))),
    ("fault", |upstream| Arc::new(Fault::new(upstream, FaultPlan::Never))),
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
        .fold(bottom, |upstream, (_, wrapper)| wrapper(upstream))
}

fn name(wrappers: &[&'static Wrapper], bottom: &str) -> String {
    let names = wrappers.iter().map(|(name, _)| *name);
    names.chain([bottom]).collect::<Vec<_>>().join(" of ")
}

struct Stack {
    name: String,
    allocator: SharedAllocator,
    bottom: Bottom,
}

/// Every stack, fresh.
fn stacks() -> impl Iterator<Item = Stack> {
    BOTTOMS.iter().flat_map(|bottom| {
        wrappers().into_iter().map(|wrappers| Stack {
            name: name(&wrappers, bottom.name),
            allocator: SharedAllocator::new(wrap(&wrappers, (bottom.make)())),
            bottom: *bottom,
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
}
