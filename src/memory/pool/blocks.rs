//! Blocks on their way out and back: from where they are looked for first to where they go at last.
//!
//! ```text
//!   out     class ─ cache ─ depot ─ heap (ladder.rs)
//!   back    class ─ cache ─ depot, eight of one size ─ heap
//! ```

use std::ops::Range;

use super::cache::{Batch, Entry, Own, Room};
use super::ladder::Wanted;
use super::{Core, Home, classes};
use crate::memory::pages::resident_region;
use crate::memory::poison::{poison, unpoison, unspecified};
use crate::memory::{AllocError, Block, PageSource, Region, Request};
use crate::sync::Ordering;

/// From here on it is worth asking how many of the pages that have to be zero are in memory.
const SPARSE_BYTES: usize = 4 << 20;

impl<P: PageSource> Core<P> {
    #[inline]
    fn take<'a>(&'a self, home: Home<'a>) -> Option<Own<'a>> {
        match home {
            Home::Seat => self.seats.here().map(Own),
            Home::Local(local) => local.take(),
        }
    }

    fn room(&self, home: Home<'_>) -> Room {
        match home {
            Home::Seat => self.seat_room,
            Home::Local(local) => local.room,
        }
    }

    #[inline]
    pub(super) fn allocate(&self, home: Home<'_>, request: Request) -> Result<Block, AllocError> {
        let bytes = request.bytes();
        if bytes == 0 {
            return Ok(Block::new(request.dangling(), 0, 0, 0, request.tag()));
        }
        if let Some(class) = classes::of(bytes, request.align_log2()) {
            if self.ages.count_calls() {
                self.count_call(home);
            }
            if let Ok(block) = self.slabs[class].allocate_fitting(request, mark(class)) {
                return Ok(block);
            }
            // The slab has no memory: a page of the heap does too, and may be there.
        }
        self.allocate_large(home, request)
    }

    #[inline]
    fn allocate_large(&self, home: Home<'_>, request: Request) -> Result<Block, AllocError> {
        let (bytes, align) = (request.bytes(), request.align());
        let mask = (1 << self.page_log2) - 1;
        // No overflow: a request has room for its alignment, and is far from the last page.
        let capacity = bytes.saturating_add(mask) & !mask;
        if let Some(mut own) = self.take(home)
            && let Some(entry) = match own.pop(capacity, align, bytes) {
                None => self.refill(home, &mut own, capacity, request),
                found => found,
            }
        {
            let step = self.ages.count_calls() && own.count_call();
            drop(own);
            if step {
                self.step();
            }
            if request.is_zeroed() {
                return Ok(self.hand_out_zeroed(request, &entry));
            }
            // SAFETY: `bytes` bytes of committed pages.
            unsafe { unpoison(entry.start, bytes) };
            unspecified(entry.start, bytes);
            return Ok(self.block(request, &entry));
        }
        self.allocate_from_heap(request)
    }

    /// Blocks of so many bytes that another thread gave back come into a cache that has none, and
    /// one of them goes out.
    #[cold]
    #[inline(never)]
    fn refill(
        &self,
        home: Home<'_>,
        own: &mut Own<'_>,
        capacity: usize,
        request: Request,
    ) -> Option<Entry> {
        let room = self.room(home);
        if capacity > room.block {
            return None;
        }
        // Bound, so that the lock is not held for what follows.
        let batch = self.depot.lock().pop(capacity);
        for entry in batch?.into_iter().flatten() {
            // What it spills is seen by the next who gives something back.
            let _spilled = self.keep(own, entry, room);
        }
        own.pop(capacity, request.align(), request.bytes())
    }

    /// A block comes into a cache, and others leave it where there is no room. `true`: they did.
    #[inline]
    fn keep(&self, own: &mut Own<'_>, entry: Entry, room: Room) -> bool {
        let spills = !own.push(entry, room);
        if spills {
            self.keep_instead(own, entry, room);
        }
        spills
    }

    #[cold]
    #[inline(never)]
    fn keep_instead(&self, own: &mut Own<'_>, entry: Entry, room: Room) {
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

    #[inline]
    fn block(&self, request: Request, entry: &Entry) -> Block {
        let (bytes, tag) = (request.bytes(), request.tag());
        let block = Block::new(
            entry.start,
            bytes,
            entry.capacity,
            u64::from(entry.piece),
            tag,
        );
        block.with_header(entry.header)
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
    pub(super) unsafe fn release(&self, home: Home<'_>, block: Block) {
        if block.is_empty() {
            return;
        }
        let (cookie, start, (len, capacity)) = (block.cookie(), block.as_ptr(), block.size());
        let header = block.header();
        #[allow(clippy::cast_possible_truncation, reason = "the halves of a cookie")]
        let (number, class) = (cookie as u32, (cookie >> 32) as usize);
        if let Some(class) = class.checked_sub(1) {
            if self.ages.count_calls() {
                self.count_call(home);
            }
            // SAFETY: the caller's promise; the cookie says that it is of this slab.
            unsafe { self.slabs[class].release_number(start, number, len) };
            return;
        }
        // SAFETY: committed, and nobody uses it any more (the caller's promise).
        unsafe { poison(start, capacity) };
        let Some(header) = header else {
            debug_assert!(false, "a block of another allocator: {start:?}");
            return;
        };
        let entry = Entry {
            start,
            capacity,
            header,
            piece: number,
        };
        self.put(home, entry, len);
    }

    /// Takes back a block of the heap for which `len` bytes were asked.
    #[inline]
    fn put(&self, home: Home<'_>, entry: Entry, len: usize) {
        let room = self.room(home);
        // Relaxed: whoever made holes in this block did so before it came back.
        if entry.capacity > room.block || self.holey.load(Ordering::Relaxed) > 0 {
            return self.put_into_heap(entry.piece, len);
        }
        let Some(mut own) = self.take(home) else {
            return self.put_into_heap(entry.piece, len);
        };
        own.count_back(len);
        let step = self.ages.count_calls() && own.count_call();
        let spilled = self.keep(&mut own, entry, room);
        drop(own);
        if spilled {
            self.keep_to_policy();
        }
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
    fn count_call(&self, home: Home<'_>) {
        if self.take(home).is_some_and(|mut own| own.count_call()) {
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
