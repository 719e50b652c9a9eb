//! [`LocalCache`]: one worker's own cache of a pool.

use std::fmt;
use std::ops::Range;

use super::cache::{Cache, Own, Room};
use super::{CachingPool, Core};
use crate::memory::seat::Lone;
use crate::memory::{
    AllocError, Allocator, Block, Decommitted, OsPages, PageSource, Request, Stats,
};
use crate::sync::Arc;

/// A cache, where the pool and its worker both find it.
#[derive(Debug)]
pub(super) struct Local {
    place: Lone<Cache>,
    pub(super) room: Room,
}

impl Local {
    pub(super) fn new(room: Room) -> Self {
        Self {
            place: Lone::default(),
            room,
        }
    }

    /// The cache. `None`: somebody is at it.
    #[inline]
    pub(super) fn own(&self) -> Option<Own<'_>> {
        self.place.take().map(Own)
    }

    pub(super) fn cache(&self) -> &Cache {
        self.place.kept()
    }
}

/// A worker's way into a [`CachingPool`]: large blocks that it gives back stay with it, up to a
/// number of bytes, and are its own again without the pool's lock.
///
/// An allocator like the rest: put it into a
/// [`SharedAllocator`](crate::memory::SharedAllocator) and hand that to the worker. Its
/// buffers may be dropped on any thread and outlive it. For whom it is not worth while: blocks of
/// up to 4 MiB are kept for each thread anyway.
///
/// Nothing in it is lost to others: before the pool grows, or refuses anything, it takes back
/// what all caches hold. Dropping the last handle to one empties it.
///
/// ```
/// use tenslab::memory::{CachingPool, SharedAllocator};
///
/// let pool = CachingPool::new()?;
/// let worker = SharedAllocator::new(pool.local_cache(64 << 20));
/// let first = worker.allocate(10 << 20, 64)?;
/// let address = first.as_ptr();
/// drop(first);
/// assert_eq!(worker.allocate(10 << 20, 64)?.as_ptr(), address);
/// # Ok::<(), tenslab::memory::AllocError>(())
/// ```
pub struct LocalCache<P: PageSource = OsPages> {
    core: Arc<Core<P>>,
    local: Arc<Local>,
}

impl<P: PageSource> LocalCache<P> {
    pub(super) fn new(pool: &CachingPool<P>, keep_bytes: usize) -> Self {
        let core = Arc::clone(pool.core());
        let local = Arc::new(Local::new(Room {
            block: keep_bytes,
            all: keep_bytes,
        }));
        core.locals.lock().push(Arc::clone(&local));
        Self { core, local }
    }

    /// The pool that it is of.
    #[must_use]
    pub fn pool(&self) -> CachingPool<P> {
        CachingPool::of(&self.core)
    }

    /// What is in it goes to the pool, where all find it. Says how many bytes went.
    pub fn flush(&self) -> usize {
        let bytes = self.local.cache().counts().0;
        // Who is at it at this moment empties it for the same reason, or is in a call.
        self.core.empty_local(&self.local);
        bytes
    }
}

impl<P: PageSource> Drop for LocalCache<P> {
    fn drop(&mut self) {
        let mut locals = self.core.locals.lock();
        locals.retain(|local| !Arc::ptr_eq(local, &self.local));
        // Others come to it under this lock only, and this was its last user.
        self.core.empty_local(&self.local);
        self.core.adopt_counts(self.local.cache());
    }
}

// SAFETY: blocks come from the pool's core, which keeps the contract, and go back to it.
unsafe impl<P: PageSource> Allocator for LocalCache<P> {
    #[inline]
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        self.core.allocate(&*self.local, request)
    }

    #[inline]
    unsafe fn release_block(&self, block: Block) {
        // SAFETY: the caller's promise.
        unsafe { self.core.release(&*self.local, block) }
    }

    unsafe fn grow_block(&self, block: &mut Block, bytes: usize) -> Result<(), AllocError> {
        // SAFETY: the caller's promise.
        unsafe { self.core.grow(block, bytes) }
    }

    fn grown_capacity(&self, block: &Block, bytes: usize) -> Option<usize> {
        self.core.grown_capacity(block, bytes)
    }

    unsafe fn decommit(&self, block: &Block, range: Range<usize>) -> Decommitted {
        // SAFETY: the caller's promise.
        unsafe { self.core.decommit(block, range) }
    }

    unsafe fn commit(&self, block: &Block, range: Range<usize>) -> Result<(), AllocError> {
        // SAFETY: the caller's promise.
        unsafe { self.core.commit(block, range) }
    }

    fn stats(&self) -> Stats {
        self.core.stats()
    }

    fn trim(&self) -> usize {
        self.core.trim()
    }
}

impl<P: PageSource> fmt::Debug for LocalCache<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCache")
            .field("cached_bytes", &self.local.cache().counts().0)
            .finish_non_exhaustive()
    }
}
