//! Bytes, and who gives them back.
//!
//! ```text
//!   SharedAllocator ──allocate──▶ Buffer ──from──▶ Storage ◀── Tensor, Tensor, …
//!    │ what users hold             │ one owner,     │ many owners,
//!    │                             │ gives back     │ a borrow state,
//!    ▼                             ▼ exactly once   ▼ the last one gives back
//!   Allocator: Meter ▶ SlabAllocator ▶ PageSource          (or CpuAllocator, …)
//! ```
//!
//! An [`Allocator`] hands out [`Block`]s and takes them back, both by value; a
//! wrapper such as [`Meter`] takes another allocator and is one again. Users hold
//! a [`SharedAllocator`] and get [`Buffer`]s. A buffer keeps the whole stack that
//! made it alive, so every handle may be dropped first.
//!
//! Bytes that nobody writes need not be allocated: [`map_file`] makes a frozen [`Storage`] of a
//! file's own, and on Linux `SealedMemory` one of bytes that several processes share.
//!
//! A few small protocols are shared between threads, each a loom model in
//! `loom_tests/`: the seats of threads and the lock that leans to one, the handles of a
//! [`SharedAllocator`] and its keep-alive, the state word, the reference count of a
//! [`Storage`], the magazines, the shared tier and the growth of a [`SlabAllocator`], the
//! caches, trims and refusals of a [`CachingPool`], the end of a [`StepArena`]'s step, the
//! books of a [`Meter`], the order of a [`Trace`], a [`Limit`] and its callbacks, the books
//! of a [`Guarded`], the steps of a [`StepArena`].
//!
//! A child that a process with threads forks may allocate from and give back to
//! [`CpuAllocator`] and [`SharedAllocator`] (as far as the global allocator lets it; glibc's
//! does), and any allocator that no other thread was in at that moment. Others have a lock
//! that such a thread may hold, which in the child nobody ever gives up. For the same reason
//! a child leaves the last handle of what other threads used alone.
//!
//! On Linux a thread that looks into what another one keeps at hand makes it known by the
//! system call `membarrier`, for which the process registers at its first allocation. A
//! sandbox that is put up later has to let `membarrier` through: where it is refused then,
//! the process is aborted, for nothing would be safe any more. Where it is refused from the
//! beginning, atomic exchanges do, which cost more.

mod allocator;
mod arena;
#[cfg_attr(not(loom), allow(unreachable_pub, reason = "the loom models see it"))]
mod biased;
mod block;
mod budget;
mod buffer;
mod cpu;
mod error;
mod fault;
mod guarded;
#[cfg_attr(not(loom), allow(unreachable_pub, reason = "the loom models see it"))]
mod keep_alive;
mod mapped;
mod meter;
mod pages;
pub(crate) mod poison;
mod pool;
mod populate;
mod request;
mod resident;
mod rows;
#[cfg_attr(not(loom), allow(unreachable_pub, reason = "the loom models see it"))]
mod seat;
mod shared;
mod slab;
#[cfg_attr(not(loom), allow(unreachable_pub, reason = "the loom models see it"))]
mod state;
mod storage;
mod trace;

pub use self::allocator::{Allocator, Decommitted, Stats};
pub use self::arena::{ByTag, StepArena, StepError, StepStats};
pub use self::block::Block;
pub use self::budget::{Budget, CgroupError, CgroupMemory, Charge, Limit, PressureGuard, Shortage};
pub use self::buffer::Buffer;
pub use self::cpu::{CpuAllocator, Lock, cpu, default_allocator};
pub use self::error::{AllocError, BorrowError, CommitError};
pub use self::fault::{Fault, FaultPlan};
pub use self::guarded::{Damage, DamageKind, GuardReport, Guarded, Out};
pub use self::mapped::{Advice, MapError, Seals, map_file, mapped_bytes};
#[cfg(all(target_os = "linux", not(tenslab_portable)))]
pub use self::mapped::{SealedMemory, UnsealedMemory};
pub use self::meter::{Meter, MeterReport, MeterStats, Scope, ScopeStats, ScopeTagStats, TagStats};
pub use self::pages::{
    FakePages, HeapPages, HugePages, OsPages, PageCounts, PageSource, Region, resident_bytes,
};
pub use self::pool::{
    CachingPool, DryRun, LocalCache, MapSpan, PoolMap, PoolOptions, PoolReport, RungCounts,
    SpanKind, TrimPolicy,
};
pub use self::populate::populate;
pub use self::request::{MAX_ALIGN, Request, Tag};
pub use self::resident::ProcessMemory;
pub use self::shared::SharedAllocator;
pub use self::slab::{BlockError, BlockId, SlabAllocator};
pub(crate) use self::storage::{Exclusive, Shared};
pub use self::storage::{HeaderSlot, Protected, Storage, StorageId};
pub use self::trace::{
    Allocation, Event, EventKind, LiveBlock, Name, Recording, ReplayReport, ReplayStep, Simulated,
    Trace, TraceError, TraceHeader, TraceLimits, TraceProblem,
};

#[cfg(not(loom))]
pub(crate) use self::biased::Biased;
#[cfg(loom)]
pub use self::{biased::Biased, keep_alive::KeepAlive, seat::Seats, state::StateWord};
