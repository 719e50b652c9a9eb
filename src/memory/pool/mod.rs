//! [`CachingPool`]: everything of varying size, out of one reservation.
//!
//! ```text
//!   up to 32 KiB   class ──▶ slab of that class                  blocks.rs, classes.rs, ../slab
//!                              │ regions, capped                 space.rs
//!   above          cache ──▶ heap ──▶ pages of one reservation   cache.rs, heap/
//!                  │ exactly as many pages, no lock; or eight of
//!                  │ them that another thread gave back    depot.rs
//!                  ▼ nothing there
//!                  heap: best fit of what is in memory           ladder.rs
//!                  ▼ nothing fits
//!                  all caches emptied, best fit again
//!                  ▼ still nothing
//!                  pages committed; under a cap free ones go back elsewhere first,
//!                  then the slabs' idle ones, then the limit's callbacks are asked
//!                  ▼ refused
//!                  an error, said only with everything in hand at once
//! ```
//!
//! The heap has no size classes: blocks are whole pages, carved from the shortest free run that
//! is long enough and joined with their neighbours when they come back. Size classes strand
//! memory where sizes vary, for what was freed at one size is no use at another: on the shapes
//! of inference they reserve 1.5 to 9 times what is live, and a best fit that joins 1.00 to 1.21
//! times (a simulator's figures; docs/allocators.md has the pool's beside them).
//!
//! # Who may touch what
//!
//! The heap's books are under one lock. No system call is made under it, but for a row of its
//! records: pages that a call commits or gives back are in that call's hands meanwhile, and in
//! no run. Order of taking: the list of local caches, then a cache, then the depot or the heap,
//! never both; a limit's callbacks are asked with none of them. `loom_tests/pool.rs` explores it.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

mod blocks;
mod cache;
mod classes;
mod depot;
mod dry_run;
mod heap;
mod ladder;
mod local;
mod map;
mod options;
mod parts;
mod report;
mod space;
mod trim;

use self::cache::{Cache, Own, Room};
use self::classes::CLASSES;
use self::depot::Depot;
pub use self::dry_run::DryRun;
use self::heap::{Headers, Heap};
use self::ladder::Rungs;
use self::local::Local;
pub use self::local::LocalCache;
pub use self::map::{MapSpan, PoolMap, SpanKind};
pub use self::options::{PoolOptions, TrimPolicy};
pub use self::report::{PoolReport, RungCounts};
use self::space::Space;
use self::trim::Ages;
use super::poison::unpoison;
use super::seat::Seats;
use super::slab::SlabAllocator;
use super::{
    AllocError, Allocator, Block, Decommitted, HugePages, OsPages, PageSource, Region, Request,
    Stats,
};
use crate::sync::atomic::AtomicUsize;
use crate::sync::{Arc, Mutex, MutexGuard};

/// What is kept for the thread that gave it back.
const SEAT_ROOM: Room = Room {
    block: 4 << 20,
    all: 8 << 20,
};

/// Addresses of a pool without a cap: 992 GiB. No power of two or eighth between two, so that the
/// free stretch at their end is in one bin of the index for a long time, and its changes need no
/// search there.
const RESERVATION_BYTES: usize = if usize::BITS > 32 { 31 << 35 } else { 0 };

/// The heap commits in multiples of this, that it need not do so again at once. Under a cap it
/// commits what is wanted and no more.
const COMMIT_BYTES: usize = 2 << 20;

/// Everything of varying size: small blocks by class from slabs, large ones by best fit from
/// one growable reservation, in which free neighbours are always one.
///
/// What is given back is kept, and is handed out again without a system call and with its pages.
/// It goes back to the system by [`trim`](Allocator::trim), by a [`TrimPolicy`], or when the pool
/// needs the room under its [cap](PoolOptions::cap_bytes). A handle is cheap to clone; put one
/// into a [`SharedAllocator`](super::SharedAllocator) and keep another for [`report`](Self::report)
/// and [`map`](Self::map).
///
/// Blocks of more than 32 KiB are whole pages, aligned to a page; up to there a block is at most
/// a quarter larger than asked for (64 bytes and their multiples up to 256). Any alignment up to
/// [`MAX_ALIGN`](super::MAX_ALIGN). Zeroed memory costs nothing where the pages were never used,
/// which the pool knows of each page.
///
/// Cost, to allocate and to give back: up to 32 KiB a slab's; up to 4 MiB, where this thread
/// gave back a block of as many pages, a few plain loads and stores; else a short lock and a
/// search through a tree. No heap block anywhere. Any thread may do anything here; the same
/// calls from one thread lead to the same layout.
///
/// ```
/// use tenslab::memory::{Allocator, CachingPool, SharedAllocator};
///
/// let pool = CachingPool::new()?;
/// let memory = SharedAllocator::new(pool.clone());
/// let prefill = memory.allocate(40 << 20, 64)?;
/// drop(prefill);
/// // One larger and one smaller out of what was there: nothing new is committed.
/// let before = pool.report().committed_bytes;
/// let _decode = (memory.allocate(25 << 20, 64)?, memory.allocate(15 << 20, 64)?);
/// assert_eq!(pool.report().committed_bytes, before);
/// # Ok::<(), tenslab::memory::AllocError>(())
/// ```
pub struct CachingPool<P: PageSource = OsPages>(Arc<Core<P>>);

impl<P: PageSource> Clone for CachingPool<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// The heap and what is counted with it.
struct Books {
    heap: Heap,
    /// Bytes asked for by blocks of the heap that went out past the caches, less those that
    /// came back, wrapping: a part of a sum.
    requested_bytes: usize,
    /// Blocks that the heap had, in memory.
    fits: u64,
    /// Of caches that are gone.
    hits: usize,
}

/// One for each class.
type Slabs<P> = [SlabAllocator<Arc<Space<P>>>; CLASSES];

/// What all handles share.
struct Core<P: PageSource> {
    slabs: Box<Slabs<P>>,
    seats: Seats<Cache>,
    locals: Mutex<Vec<Arc<Local>>>,
    depot: Mutex<Depot>,
    books: Mutex<Books>,
    headers: Headers,
    /// The heap's addresses.
    region: Region,
    page_log2: u32,
    /// Does the heap commit more than is wanted?
    commits_ahead: bool,
    space: Arc<Space<P>>,
    /// Blocks whose owners have given pages of them back.
    holey: AtomicUsize,
    rungs: Rungs,
    ages: Ages,
}

// SAFETY: the region belongs to the core alone, and which of its pages are whose is decided under
// the lock of its books and by who has a block. All else is `Send`.
unsafe impl<P: PageSource> Send for Core<P> {}
// SAFETY: as above: nothing reaches the region's bytes but whoever has a block of it, or pages of
// it in its hands.
unsafe impl<P: PageSource> Sync for Core<P> {}

/// Which cache a call looks into. Types, and no value that is asked each time: the near ways are
/// so short that it shows.
trait Home<'a, P: PageSource>: Copy {
    /// The cache. `None`: somebody is at it.
    fn take(self, core: &'a Core<P>) -> Option<Own<'a>>;

    /// What it may hold.
    fn room(self, core: &Core<P>) -> Room;
}

/// That of the calling thread.
#[derive(Clone, Copy)]
struct Seat;

impl<'a, P: PageSource> Home<'a, P> for Seat {
    #[inline]
    fn take(self, core: &'a Core<P>) -> Option<Own<'a>> {
        core.seats.here().map(Own)
    }

    #[inline]
    fn room(self, _core: &Core<P>) -> Room {
        SEAT_ROOM
    }
}

impl<'a, P: PageSource> Home<'a, P> for &'a Local {
    #[inline]
    fn take(self, _core: &'a Core<P>) -> Option<Own<'a>> {
        self.own()
    }

    #[inline]
    fn room(self, _core: &Core<P>) -> Room {
        self.room
    }
}

impl CachingPool {
    /// A pool without a cap, over the system's pages: see [`PoolOptions`].
    ///
    /// # Errors
    /// As [`PoolOptions::build`].
    pub fn new() -> Result<Self, AllocError> {
        PoolOptions::new().build()
    }
}

impl<P: PageSource> CachingPool<P> {
    fn new_handle(core: Core<P>) -> Self {
        Self(Arc::new(core))
    }

    fn of(core: &Arc<Core<P>>) -> Self {
        Self(Arc::clone(core))
    }

    fn core(&self) -> &Arc<Core<P>> {
        &self.0
    }

    /// A cache of one worker's own, that keeps up to `keep_bytes` bytes of large blocks.
    ///
    /// Cost: two heap blocks, and a place in the list that a growing pool looks through.
    #[must_use]
    pub fn local_cache(&self, keep_bytes: usize) -> LocalCache<P> {
        LocalCache::new(self, keep_bytes)
    }

    /// All caches give what they hold to the heap, where it joins its neighbours; what a thread
    /// is doing at this very moment is left alone. No call needs it: a pool that would grow does
    /// so first.
    pub fn flush(&self) {
        self.0.empty_caches();
        for slab in self.0.slabs.iter() {
            slab.flush();
        }
    }

    /// Gives up to `bytes` bytes of free memory back to the system, what was free the longest
    /// first, of the last block only as much as is needed. Small sizes are left alone, but by
    /// [`trim`](Allocator::trim).
    ///
    /// Returns how many bytes are committed no more. They may not all have been in memory.
    pub fn trim_bytes(&self, bytes: usize) -> usize {
        self.0.empty_caches();
        self.0.trim_warm(bytes, None).committed_bytes
    }
}

impl<P: PageSource> Core<P> {
    fn new(pages: P, options: &PoolOptions) -> Result<Self, AllocError> {
        let page_bytes = pages.page_bytes();
        let cap = options.limit.limit_bytes();
        let cheap = pages.reserves_freely();
        let wanted = options.reservation_bytes.unwrap_or(match (cheap, cap) {
            (true, usize::MAX) if usize::BITS > 32 => RESERVATION_BYTES,
            (true, cap) if cap < usize::MAX => cap.saturating_mul(16).max(1 << 30),
            (false, cap) if cap < usize::MAX => cap,
            _ => 256 << 20,
        });
        let page_log2 = page_bytes.trailing_zeros();
        let space = Arc::new(Space::new(pages, options.limit.clone()));
        let of_class = |class| SlabAllocator::of_class(classes::bytes(class), Arc::clone(&space));
        let slabs: Box<[_]> = classes::classes().map(of_class).collect::<Result<_, _>>()?;
        let Ok(slabs) = slabs.try_into() else {
            unreachable!("there is one for each class")
        };
        // Numbers of pages are u32s.
        let most = (u32::MAX as usize >> 1).checked_shl(page_log2);
        let region = reserve(&space.pages, wanted.min(most.unwrap_or(usize::MAX >> 2)))?;
        let all = u32::try_from(region.bytes() >> page_log2).unwrap_or(u32::MAX >> 1);
        let headers = Headers::new();
        let heap = match Heap::new(all, &space.pages, &headers) {
            Ok(heap) => heap,
            Err(error) => {
                // SAFETY: reserved from this source just now, and nobody has seen it.
                unsafe { space.pages.release(region) };
                return Err(error);
            }
        };
        Ok(Self {
            slabs,
            seats: Seats::default(),
            locals: Mutex::new(Vec::new()),
            depot: Mutex::new(Depot::new()),
            books: Mutex::new(Books {
                heap,
                requested_bytes: 0,
                fits: 0,
                hits: 0,
            }),
            headers,
            region,
            page_log2,
            commits_ahead: cap == usize::MAX && !options.exact,
            space,
            holey: AtomicUsize::new(0),
            rungs: Rungs::default(),
            ages: Ages::new(options.trim),
        })
    }

    #[inline]
    fn bytes(&self, pages: u32) -> usize {
        (pages as usize) << self.page_log2
    }

    /// How many pages `bytes` bytes take. `None`: more than there can be.
    #[inline]
    fn pages(&self, bytes: usize) -> Option<u32> {
        let mask = (1 << self.page_log2) - 1;
        u32::try_from((bytes >> self.page_log2) + usize::from(bytes & mask != 0)).ok()
    }

    /// Whole pages of `bytes` bytes.
    fn pages_up_to(&self, bytes: usize) -> u32 {
        u32::try_from(bytes >> self.page_log2).unwrap_or(u32::MAX)
    }

    fn in_bytes(&self, pages: &Range<u32>) -> Range<usize> {
        self.bytes(pages.start)..self.bytes(pages.end)
    }

    /// Where a page of the heap begins.
    #[inline]
    fn start(&self, page: u32) -> NonNull<u8> {
        // SAFETY: in bounds: pages of the heap are numbered to the length of the region.
        unsafe { self.region.base().add(self.bytes(page)) }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock()
    }
}

/// Addresses: `bytes` of them, or half as many, and so on.
fn reserve<P: PageSource>(pages: &P, bytes: usize) -> Result<Region, AllocError> {
    const LEAST: usize = 64 << 20;
    let mut bytes = bytes.max(pages.page_bytes());
    loop {
        // Huge pages, where they are used, begin at multiples of their size.
        match pages.reserve(bytes, HugePages::BYTES.min(bytes.next_power_of_two())) {
            Err(_) if bytes / 2 >= LEAST => bytes /= 2,
            result => return result,
        }
    }
}

// SAFETY: a block is handed out to one holder at a time: those of a class by its slab, which
// keeps the contract; those of the heap are a piece that was held, or in a cache, and came out of
// there to one caller. Their bytes are committed pages, zero or written before, so initialised;
// the heap finds places at multiples of the alignment. The region does not move with the value.
unsafe impl<P: PageSource> Allocator for CachingPool<P> {
    #[inline]
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        self.0.allocate(Seat, request)
    }

    #[inline]
    unsafe fn release_block(&self, block: Block) {
        // SAFETY: the caller's promise.
        unsafe { self.0.release(Seat, block) }
    }

    /// Blocks of more than 32 KiB grow where they stand, if the pages behind them are free.
    unsafe fn grow_block(&self, block: &mut Block, bytes: usize) -> Result<(), AllocError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.grow(block, bytes) }
    }

    fn grown_capacity(&self, block: &Block, bytes: usize) -> Option<usize> {
        self.0.grown_capacity(block, bytes)
    }

    /// Blocks of more than 32 KiB can give pages back. They count as the pool's all the same
    /// until the block comes back: its cap stays kept whenever they are used again.
    unsafe fn decommit(&self, block: &Block, range: Range<usize>) -> Decommitted {
        // SAFETY: the caller's promise.
        unsafe { self.0.decommit(block, range) }
    }

    unsafe fn commit(&self, block: &Block, range: Range<usize>) -> Result<(), AllocError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.commit(block, range) }
    }

    /// `cached` is what is in memory and free, in caches, in the heap and in the slabs;
    /// `unused` the rest of the addresses, `metadata` the records and the slabs' tables.
    fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// All that is free goes back to the system, small sizes too; the addresses stay. No lock is
    /// held meanwhile, and what others take and give back at the same time is not waited for.
    ///
    /// Returns the bytes that were in memory, as the kernel says.
    fn trim(&self) -> usize {
        self.0.trim()
    }
}

impl<P: PageSource> Drop for Core<P> {
    fn drop(&mut self) {
        let region = Region::new(self.region.base(), self.region.bytes(), self.region.align());
        let books = self.books.get_mut();
        for (pages, state) in books.heap.walk() {
            if !state.is_cold() {
                let bytes = (pages.len()) << self.page_log2;
                // SAFETY: in bounds: pages of the heap are numbered to the length of the region.
                let start = unsafe { region.base().add((pages.start as usize) << self.page_log2) };
                // SAFETY: still mapped. The address range may be somebody else's next.
                unsafe { unpoison(start, bytes) };
            }
        }
        for row in books.heap.take_regions() {
            // SAFETY: from this source, once, and no block is out whose header is in it.
            unsafe { self.space.pages.release(row) };
        }
        // SAFETY: from this source, once; whoever had a block kept the pool alive (or broke the
        // promise of `release_block`).
        unsafe { self.space.pages.release(region) };
    }
}

impl<P: PageSource> fmt::Debug for CachingPool<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachingPool")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
