//! Blocks on their way out and back: from where they are looked for first to where they go at last.
//!
//! ```text
//!   out     class ─ cache ─ depot ─ heap (ladder.rs)
//!   back    class ─ cache ─ depot, eight of one size ─ heap
//! ```

use std::ops::Range;

use super::cache::{Batch, Entry, Own, Room};
use super::classes::LARGEST;
use super::ladder::Wanted;
use super::{Core, Home, classes};
use crate::memory::pages::resident_region;
use crate::memory::poison::{poison, unpoison, unspecified};
use crate::memory::slab::Held;
use crate::memory::{AllocError, Block, PageSource, Region, Request};
use crate::sync::Ordering;

/// From here on it is worth asking how many of the pages that have to be zero are in memory.
const SPARSE_BYTES: usize = 4 << 20;

impl<P: PageSource> Core<P> {
    #[inline]
    pub(super) fn allocate<'a>(
        &'a self,
        home: impl Home<'a, P>,
        request: Request,
    ) -> Result<Block, AllocError> {
        let bytes = request.bytes();
        if bytes > LARGEST {
            return self.allocate_large(home, request);
        }
        match classes::of(bytes, request.align_log2()) {
            Some(class) => self.allocate_small(home, class, request),
            None => self.allocate_odd(home, request),
        }
    }

    #[inline]
    fn allocate_small<'a>(
        &'a self,
        home: impl Home<'a, P>,
        class: usize,
        request: Request,
    ) -> Result<Block, AllocError> {
        if self.ages.count_calls() {
            self.count_call(home);
        }
        let slab = &self.slabs[class];
        match slab.allocate_near(request, mark(class)) {
            Ok(block) => Ok(block),
            Err(empty) => self.allocate_small_far(home, class, empty, request),
        }
    }

    #[cold]
    #[inline(never)]
    fn allocate_small_far<'a>(
        &'a self,
        home: impl Home<'a, P>,
        class: usize,
        empty: Option<Held<'_>>,
        request: Request,
    ) -> Result<Block, AllocError> {
        let block = self.slabs[class].allocate_far(empty, request, mark(class));
        // Where the slab has no memory a page of the heap does too, and may be there.
        block.or_else(|_| self.allocate_large(home, request))
    }

    /// No bytes at all, or a few at a multiple of many.
    #[cold]
    #[inline(never)]
    fn allocate_odd<'a>(
        &'a self,
        home: impl Home<'a, P>,
        request: Request,
    ) -> Result<Block, AllocError> {
        match request.bytes() {
            0 => Ok(Block::new(request.dangling(), 0, 0, 0, request.tag())),
            bytes => match classes::of_aligned(bytes, request.align_log2()) {
                Some(class) => self.allocate_small(home, class, request),
                None => self.allocate_large(home, request),
            },
        }
    }

    #[inline(never)]
    fn allocate_large<'a>(
        &'a self,
        home: impl Home<'a, P>,
        request: Request,
    ) -> Result<Block, AllocError> {
        let (bytes, align) = (request.bytes(), request.align());
        let mask = (1 << self.page_log2) - 1;
        // No overflow: a request has room for its alignment, and is far from the last page.
        let capacity = bytes.saturating_add(mask) & !mask;
        if capacity > home.room(self).block {
            return self.allocate_from_heap(request);
        }
        if !request.is_zeroed()
            && let Some(mut own) = home.take(self)
            && let Some(entry) = own.pop_last(capacity, align, bytes)
        {
            self.count_and_leave(own);
            // SAFETY: `bytes` bytes of committed pages.
            unsafe { unpoison(entry.start, bytes) };
            unspecified(entry.start, bytes);
            return Ok(entry.block(request));
        }
        self.allocate_large_far(home, capacity, request)
    }

    /// The last block of the cache is another, or has to be zero.
    #[inline(never)]
    fn allocate_large_far<'a>(
        &'a self,
        home: impl Home<'a, P>,
        capacity: usize,
        request: Request,
    ) -> Result<Block, AllocError> {
        let (bytes, align) = (request.bytes(), request.align());
        let Some(mut own) = home.take(self) else {
            return self.allocate_from_heap(request);
        };
        let found = match own.pop(capacity, align, bytes) {
            None => self.refill(home, &mut own, capacity, request),
            found => found,
        };
        let Some(entry) = found else {
            drop(own);
            return self.allocate_from_heap(request);
        };
        self.count_and_leave(own);
        if request.is_zeroed() {
            return Ok(self.hand_out_zeroed(request, &entry));
        }
        // SAFETY: `bytes` bytes of committed pages.
        unsafe { unpoison(entry.start, bytes) };
        unspecified(entry.start, bytes);
        Ok(entry.block(request))
    }

    /// A call found what it wanted.
    #[inline]
    fn count_and_leave(&self, mut own: Own<'_>) {
        let step = self.ages.count_calls() && own.count_call();
        drop(own);
        if step {
            self.step();
        }
    }

    /// Blocks of so many bytes that another thread gave back come into a cache that has none, and
    /// one of them goes out.
    #[cold]
    #[inline(never)]
    fn refill<'a>(
        &'a self,
        home: impl Home<'a, P>,
        own: &mut Own<'_>,
        capacity: usize,
        request: Request,
    ) -> Option<Entry> {
        let room = home.room(self);
        // Bound, so that the lock is not held for what follows.
        let batch = self.depot.lock().pop(capacity);
        for entry in batch?.into_iter().flatten() {
            // What it spills is seen by the next who gives something back.
            self.keep(own, entry, room);
        }
        own.pop(capacity, request.align(), request.bytes())
    }

    /// A block comes into a cache, and others leave it where there is no room.
    fn keep(&self, own: &mut Own<'_>, entry: Entry, room: Room) {
        while !own.push(entry, room) {
            self.hand_on(own.make_room(entry.capacity, room));
        }
    }

    /// Blocks that left a cache stay together for others, or go to the heap.
    fn hand_on(&self, batch: Batch) {
        let stays = self.depot.lock().push(&batch);
        if !stays {
            self.put_batch(&batch);
        }
    }

    #[inline(never)]
    fn allocate_from_heap(&self, request: Request) -> Result<Block, AllocError> {
        let (bytes, align) = (request.bytes(), request.align());
        let overflow = AllocError::SizeOverflow { bytes, align };
        let pages = self.pages(bytes).ok_or(overflow)?;
        let taken = self.take_from_heap(self.wanted(request, pages))?;
        let all = taken.start..taken.start + taken.pages;
        Ok(self.hand_out(request, taken.piece, all, &taken.dirty))
    }

    /// A block that was used before, for who wants zeros.
    #[cold]
    fn hand_out_zeroed(&self, request: Request, entry: &Entry) -> Block {
        let offset = entry.start.addr().get() - self.region.base().addr().get();
        let start = self.pages_up_to(offset);
        let all = start..start + self.pages_up_to(entry.capacity);
        self.hand_out(request, entry.piece, all.clone(), &all)
    }

    /// Pages that are the caller's now, as a block. All but the `dirty` ones are zero.
    #[inline]
    fn hand_out(
        &self,
        request: Request,
        piece: u32,
        pages: Range<u32>,
        dirty: &Range<u32>,
    ) -> Block {
        let (start, bytes) = (self.start(pages.start), request.bytes());
        let capacity = self.bytes(pages.end - pages.start);
        if request.is_zeroed() && !dirty.is_empty() {
            self.clear(self.in_bytes(dirty));
            // SAFETY: pages that are the caller's, who has not seen them yet.
            unsafe { poison(start, capacity) };
        }
        // SAFETY: `bytes` bytes of committed pages.
        unsafe { unpoison(start, bytes) };
        if !request.is_zeroed() {
            unspecified(start, bytes);
        }
        let Some(header) = self.headers.of(piece) else {
            unreachable!("a piece that is somebody's has a header")
        };
        Block::new(start, bytes, capacity, u64::from(piece), request.tag()).with_header(header)
    }

    /// Makes whole pages zero that are the caller's.
    fn clear(&self, range: Range<usize>) {
        if range.len() >= SPARSE_BYTES && self.clear_sparse(&range) {
            return;
        }
        // SAFETY: in bounds: pages of the heap are numbered to the length of the region.
        let first = unsafe { self.region.base().add(range.start) };
        // SAFETY: for as long as they are cleared, all of them may be.
        unsafe { unpoison(first, range.len()) };
        // SAFETY: committed pages that are the caller's alone.
        unsafe { first.write_bytes(0, range.len()) };
    }

    /// Gives pages back of which few are in memory, so that they are zero without being touched:
    /// what was reserved with room to spare came back with most of it unused. `false`: they are
    /// as they were, or anything.
    #[cold]
    fn clear_sparse(&self, range: &Range<usize>) -> bool {
        let pages = &self.space.pages;
        // SAFETY: in bounds: pages of the heap are numbered to the length of the region.
        let first = unsafe { self.region.base().add(range.start) };
        let part = Region::new(first, range.len(), 1 << self.page_log2);
        let is_sparse = || resident_region(&part).is_some_and(|bytes| bytes < range.len() / 2);
        if !pages.decommits_to_zero() || !is_sparse() {
            return false;
        }
        // SAFETY: our own region; committed pages that are the caller's alone.
        let gone = unsafe { pages.decommit(&self.region, range.clone()) };
        // SAFETY: our own region, and the pages are the caller's.
        gone.is_some() && unsafe { pages.commit(&self.region, range.clone()) }.is_ok()
    }

    /// # Safety
    /// As [`release_block`](crate::memory::Allocator::release_block).
    #[inline]
    pub(super) unsafe fn release<'a>(&'a self, home: impl Home<'a, P>, block: Block) {
        if block.is_empty() {
            return;
        }
        #[allow(clippy::cast_possible_truncation, reason = "the halves of a cookie")]
        let (number, class) = (block.cookie() as u32, (block.cookie() >> 32) as usize);
        let Some(class) = class.checked_sub(1) else {
            // SAFETY: committed, and nobody uses it any more (the caller's promise).
            unsafe { poison(block.as_ptr(), block.capacity()) };
            return self.put(home, block);
        };
        if self.ages.count_calls() {
            self.count_call(home);
        }
        let (start, len) = (block.as_ptr(), block.len());
        // SAFETY: the caller's promise; the cookie says that it is of this slab.
        unsafe { self.slabs[class].release_number(start, number, len) };
    }

    /// Takes back a block of the heap.
    #[inline]
    fn put<'a>(&'a self, home: impl Home<'a, P>, block: Block) {
        let Some(entry) = Entry::of(&block) else {
            debug_assert!(false, "a block of another allocator: {block:?}");
            return;
        };
        let (room, len) = (home.room(self), block.len());
        // Relaxed: whoever made holes in this block did so before it came back.
        if entry.capacity > room.block || self.holey.load(Ordering::Relaxed) > 0 {
            return self.put_into_heap(entry.piece, len);
        }
        let Some(mut own) = home.take(self) else {
            return self.put_into_heap(entry.piece, len);
        };
        own.count_back(len);
        let step = self.ages.count_calls() && own.count_call();
        if !own.push(entry, room) {
            // The block and not the entry, which stays out of memory in this way.
            return self.put_into_full(own, &block, room, step);
        }
        drop(own);
        if step {
            self.step();
        }
    }

    /// The cache has no room.
    #[cold]
    #[inline(never)]
    fn put_into_full(&self, mut own: Own<'_>, block: &Block, room: Room, step: bool) {
        if let Some(entry) = Entry::of(block) {
            self.keep(&mut own, entry, room);
        }
        drop(own);
        self.keep_to_policy();
        if step {
            self.step();
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn put_batch(&self, batch: &Batch) {
        let mut books = self.books();
        books.heap.clock = self.ages.now();
        for entry in batch.iter().flatten() {
            books.heap.give_back(entry.piece);
        }
    }

    #[cold]
    #[inline(never)]
    fn put_into_heap(&self, piece: u32, len: usize) {
        let mut books = self.books();
        books.requested_bytes = books.requested_bytes.wrapping_sub(len);
        books.heap.clock = self.ages.now();
        if books.heap.has_holes(piece) {
            let segment = books.heap.give_back_held(piece);
            drop(books);
            // Relaxed: a count of them.
            self.holey.fetch_sub(1, Ordering::Relaxed);
            self.decommit_held(segment);
            return;
        }
        books.heap.give_back(piece);
        drop(books);
        self.keep_to_policy();
    }

    #[cold]
    fn count_call<'a>(&'a self, home: impl Home<'a, P>) {
        if home.take(self).is_some_and(|mut own| own.count_call()) {
            self.step();
        }
    }

    fn wanted(&self, request: Request, pages: u32) -> Wanted {
        let page = 1_usize << self.page_log2;
        // Alignments are at most 1 GiB.
        let align = u32::try_from((request.align() / page).max(1)).unwrap_or(1);
        let first = self.region.base().addr().get() >> self.page_log2;
        #[allow(
            clippy::cast_possible_truncation,
            reason = "the low bits are what matters"
        )]
        let phase = (first as u32).wrapping_neg() & (align - 1);
        Wanted {
            bytes: request.bytes(),
            pages,
            align,
            phase,
        }
    }
}

/// What tells a block of a class from one of the heap, in its cookie.
#[inline]
fn mark(class: usize) -> u64 {
    (class as u64 + 1) << 32
}
