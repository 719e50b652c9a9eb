//! [`StepArena`]: memory for what dies with a step.
//!
//! ```text
//!   step 7   | norm | q | k | v | scores | … →            one after the other, never back
//!   end      nothing of it is out: the chunk is empty     or Err: 2 activations are still out
//!   step 8   | norm | q | …                               the same bytes again
//!
//!   StepArena ──▶ Chunks          books under one lock     chunks.rs, step.rs
//!                   └▶ Chunk      a bumpalo::Bump that     chunk.rs
//!                                 never grows by itself
//! ```
//!
//! An allocation moves a pointer, and giving it back counts. A chunk is empty as soon as all
//! that was made of it came back, so the end of a step has nothing to sweep. It looks whether
//! something is out, and where memory came or too much is kept, it makes one chunk of the
//! size that the last steps took.
//!
//! What bumpalo does by itself would not do here: it grows by doubling, above any limit that
//! somebody else shares, keeps half of its peak for ever, and lends bytes that hold nothing
//! yet. So each `Bump` here is one chunk, counted by the [`Limit`] before it is made.
//!
//! `loom_tests/arena.rs` explores a step's end against those who allocate and drop,
//! `tests/arena.rs` compares it with a naive model.

mod chunk;
mod chunks;
mod step;

use std::fmt;

use self::chunk::{Chunk, HEAD, Need, Place, chunk_bytes};
use self::chunks::Chunks;
pub use self::step::{ByTag, StepError, StepStats};
use super::biased::Biased;
use super::poison::{poison, unpoison, unspecified};
use super::{AllocError, Allocator, Block, HeaderSlot, Limit, Request, Stats};
use crate::mutant::{self, Mutant};

/// The first chunk of an arena that was not told how much it will be, in bytes.
const FIRST_BYTES: usize = 64 << 10;

/// Memory for what dies with a step: activations and scratch of a forward pass.
///
/// A worker has one of its own, makes ordinary tensors of it, and says when the step is
/// over. Nothing goes wrong where a tensor lives longer: then the step does not end, and
/// the error says how many there are and whose.
///
/// ```
/// use std::sync::Arc;
/// use tenslab::memory::{SharedAllocator, StepArena, Tag};
/// use tenslab::{DType, Tensor};
///
/// let arena = Arc::new(StepArena::new());
/// let room = SharedAllocator::new(Arc::clone(&arena)).with_tag(Tag::Activations);
/// for _ in 0..3 {
///     let hidden = Tensor::empty([8, 64], DType::F32, &room)?;
///     let error = arena.end_step().unwrap_err();
///     assert!(error.to_string().contains("1 of its allocations are still out (1 activations)"));
///     drop(hidden);
///     assert_eq!(arena.end_step().unwrap().allocations, 1);
/// }
/// # Ok::<(), tenslab::Error>(())
/// ```
///
/// **What it takes.** Chunks of the global allocator, whole pages of 4 KiB: 64 KiB first, then
/// each as large as all before it, or just what a request needs where a
/// [limit](StepArena::with_limit) has no room for that. Once a step is over there is one
/// chunk, as large as the largest of the last 8 to 16 steps; what is more than twice of that
/// is given back at the end of the step. Where a step wants it again soon after, it is kept twice
/// as long from then on, up to 64 steps. Pages that no step touched have no memory.
///
/// **Allocations** are at multiples of 64 bytes or of what was asked for, up to 1 GiB. One
/// takes 64 bytes in front of it, for its storage header, and what its alignment is above
/// 64: [`footprint`](StepArena::footprint). Their bytes are old ones, or zero where that was
/// asked for. Zero bytes take nothing and never keep a step from ending. A block never grows.
///
/// **Cost.** An allocation and a giving back are a few plain loads and stores under a lock that
/// costs the thread that uses it most no exchange; they touch no heap block but for a new chunk.
/// The end of a step does not depend on what was made in it. Any thread may allocate and any
/// thread may drop, but then they wait for each other: one arena for each worker is better.
///
/// It stands at the bottom of a stack, as what it hands out is its own. Over it, a
/// [`Guarded`](super::Guarded) with a quarantine keeps every step from ending.
pub struct StepArena {
    chunks: Biased<Chunks>,
    limit: Option<Limit>,
}

impl Default for StepArena {
    fn default() -> Self {
        Self::new()
    }
}

impl StepArena {
    /// An arena without a chunk: the first allocation makes one.
    #[must_use]
    pub fn new() -> Self {
        Self {
            chunks: Biased::new(Chunks::new(chunk::room(FIRST_BYTES))),
            limit: None,
        }
    }

    /// The same, but its chunks count against `limit`: each one is charged before it is made,
    /// its whole pages, and the charge goes back after it is gone.
    ///
    /// An arena is never refused for want of more than it needs: where the limit has no room
    /// for a chunk of the usual size, one is made that just holds the request, and before
    /// that, idle chunks go back. What is charged is memory that it holds, and not what is out
    /// of it: [`trim`](Allocator::trim) gives back what is idle.
    ///
    /// # Panics
    /// If it has a limit or a chunk already.
    #[must_use]
    #[track_caller]
    pub fn with_limit(mut self, limit: &Limit) -> Self {
        assert!(
            self.limit.is_none() && self.stats().reserved_bytes == 0,
            "an arena is given one limit, before it is used"
        );
        self.limit = Some(limit.clone());
        self
    }

    /// The same, but its first chunk has room for `bytes` bytes, and it never lets go of that
    /// much again, but by a [`trim`](Allocator::trim).
    #[must_use]
    pub fn with_room(self, bytes: usize) -> Self {
        self.chunks.with(|chunks| chunks.set_floor(bytes));
        self
    }

    /// Bytes of room that `request` takes, wherever it is placed: its bytes rounded up to 64,
    /// 64 for its header, and what its alignment is above 64. None for zero bytes.
    ///
    /// So the room of a whole step is a sum, in any order: for a planner.
    ///
    /// ```
    /// use tenslab::memory::{Request, StepArena};
    ///
    /// let of = |bytes, align| Ok(StepArena::footprint(&Request::new(bytes, align)?));
    /// assert_eq!(of(1, 1)?, 128);
    /// assert_eq!(of(640, 64)?, 704);
    /// assert_eq!(of(640, 4096)?, 704 + 4096 - 64);
    /// # Ok::<(), tenslab::memory::AllocError>(())
    /// ```
    #[must_use]
    pub fn footprint(request: &Request) -> usize {
        if request.bytes() == 0 {
            return 0;
        }
        Need::of(request).map_or(usize::MAX, |need| need.whole)
    }

    /// Makes room for all of `plan` at once. After `Ok` they are allocated without fail and
    /// without a heap block in this step, in any order, with or without giving some back in
    /// between, as long as nobody allocates anything else.
    ///
    /// ```
    /// use tenslab::memory::{Allocator, Limit, Request, StepArena};
    ///
    /// let limit = Limit::new(1 << 20);
    /// let arena = StepArena::new().with_limit(&limit);
    /// let scores = Request::new(100_000, 4096)?;
    /// arena.reserve(&[scores; 10])?;
    /// assert!(arena.reserve(&[scores; 11]).is_err());       // more than the limit allows
    /// # Ok::<(), tenslab::memory::AllocError>(())
    /// ```
    ///
    /// # Errors
    /// As for an allocation, with the bytes of one chunk for all of it. Nothing is taken then.
    pub fn reserve<'a>(
        &self,
        plan: impl IntoIterator<Item = &'a Request>,
    ) -> Result<(), AllocError> {
        let footprints = plan.into_iter().map(Self::footprint);
        let room = footprints.fold(0, usize::saturating_add);
        if room == 0 || self.chunks.with(|chunks| chunks.reserve(room)) {
            return Ok(());
        }
        let chunk = self.chunk_of(room, 0)?;
        self.fill(chunk, |chunks| chunks.reserve(room).then_some(()))
    }

    /// Ends the step: what is allocated from now on is of the next one.
    ///
    /// Cost: it looks at a few numbers, however much the step made. Where chunks came in this
    /// step, or more than twice of what the last steps took is kept, it gives chunks back and
    /// makes one.
    ///
    /// # Errors
    /// [`StepError::Live`] where allocations of this step are out; the step goes on then.
    pub fn end_step(&self) -> Result<StepStats, StepError> {
        if mutant::is(Mutant::ArenaEndsTwoSteps) {
            self.chunks.with(|chunks| chunks.refusal())?;
            return Ok(self.chunks.with(Chunks::end));
        }
        self.chunks.with(|chunks| {
            chunks.refusal()?;
            Ok(chunks.end())
        })
    }

    /// Ends the step though allocations of it are out.
    ///
    /// The chunks that they are in are parked: nothing is made of them until the last of
    /// theirs came back, and they stay counted. So one tensor that lives on keeps a whole
    /// chunk. Later steps end without regard to it.
    ///
    /// ```
    /// use tenslab::memory::{SharedAllocator, StepArena};
    /// use std::sync::Arc;
    ///
    /// let arena = Arc::new(StepArena::new());
    /// let room = SharedAllocator::new(Arc::clone(&arena));
    /// let logits = room.allocate(4000, 64)?;
    /// assert_eq!(arena.retire_step().parked_allocations, 1);
    /// drop(room.allocate(4000, 64)?);                     // in another chunk
    /// assert_eq!(arena.end_step().unwrap().parked_bytes, 64 << 10);
    /// drop(logits);
    /// assert_eq!(arena.end_step().unwrap().parked_bytes, 0);
    /// # Ok::<(), tenslab::memory::AllocError>(())
    /// ```
    ///
    /// Cost: as [`end_step`](StepArena::end_step), and a look at each chunk.
    pub fn retire_step(&self) -> StepStats {
        if mutant::is(Mutant::ArenaParksTwoSteps) {
            let slots = self.chunks.with(|chunks| chunks.slots());
            for slot in 0..slots {
                if self.chunks.with(|chunks| chunks.in_use(slot)) {
                    self.chunks.with(|chunks| chunks.park(slot));
                }
            }
            return self.chunks.with(Chunks::end);
        }
        self.chunks.with(|chunks| {
            for slot in 0..chunks.slots() {
                if chunks.in_use(slot) {
                    chunks.park(slot);
                }
            }
            chunks.end()
        })
    }

    /// Allocations of this step that are out at this moment.
    #[must_use]
    pub fn live(&self) -> usize {
        self.chunks.with(|chunks| chunks.live())
    }

    /// The limit that its chunks count against.
    #[must_use]
    pub fn limit(&self) -> Option<&Limit> {
        self.limit.as_ref()
    }

    /// A chunk with `room` bytes of room; with `wish` bytes, where that can be had.
    ///
    /// Without the lock, for a limit calls whoever wants to be called.
    #[cold]
    fn chunk_of(&self, room: usize, wish: usize) -> Result<Chunk, AllocError> {
        let least = chunk_bytes(room).ok_or(AllocError::OutOfMemory { bytes: room })?;
        let usual = chunk_bytes(wish).unwrap_or(0);
        let available = self
            .limit
            .as_ref()
            .map_or(usize::MAX, Limit::available_bytes);
        if usual > least
            && usual <= available
            && let Ok(chunk) = self.chunk(usual)
        {
            return Ok(chunk);
        }
        if least > available {
            self.trim(); // none of its idle chunks has the room, and before others are asked
        }
        match self.chunk(least) {
            Err(AllocError::OutOfMemory { .. }) if self.trim() > 0 => self.chunk(least),
            result => result,
        }
    }

    fn chunk(&self, bytes: usize) -> Result<Chunk, AllocError> {
        let charge = match &self.limit {
            Some(limit) => Some(limit.charge(bytes)?),
            None => None,
        };
        Chunk::new(bytes, charge)
    }

    /// Adds `chunk`, and does at once what it was made for.
    fn fill<T>(
        &self,
        chunk: Chunk,
        work: impl FnOnce(&mut Chunks) -> Option<T>,
    ) -> Result<T, AllocError> {
        let failed = AllocError::OutOfMemory {
            bytes: chunk.bytes(),
        };
        if mutant::is(Mutant::ArenaSlotTwoSteps) {
            let slot = self.chunks.with(Chunks::vacant).ok_or(failed)?;
            self.chunks.with(|chunks| chunks.fill(slot, chunk));
            return self.chunks.with(work).ok_or(failed);
        }
        self.chunks.with(|chunks| {
            let slot = chunks.vacant().ok_or(failed)?;
            chunks.fill(slot, chunk);
            work(chunks).ok_or(failed)
        })
    }

    /// Under the lock, with a new chunk if there is no room.
    #[cold]
    fn take_far(&self, request: Request, need: Need) -> Result<(Place, usize), AllocError> {
        let take = |chunks: &mut Chunks| chunks.take(request.bytes(), need, request.tag());
        let (taken, wish) = self.chunks.with(|chunks| (take(chunks), chunks.wish()));
        if let Some(taken) = taken {
            return Ok(taken);
        }
        let chunk = self.chunk_of(need.whole, wish)?;
        self.fill(chunk, take)
    }
}

// SAFETY: what `Chunks::take` gives is a part of a chunk that bumpalo gives to nobody else until
// the chunk is reset, which is when all that is out of it came back. Its address is a multiple
// of what was asked for (`Chunk::take`); its bytes were cleared when they went out first. In
// front of it are the bytes of its header slot, at a multiple of 64. Chunks do not move with
// the arena value, and go only when nothing is out of them.
unsafe impl Allocator for StepArena {
    #[inline]
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        let (bytes, align, tag) = (request.bytes(), request.align(), request.tag());
        if bytes == 0 {
            return Ok(Block::new(request.dangling(), 0, 0, u64::MAX, tag));
        }
        let need = Need::of(&request).ok_or(AllocError::SizeOverflow { bytes, align })?;
        let near = self.chunks.near(|chunks| chunks.take(bytes, need, tag));
        let (place, slot) = match near {
            Some(Some(taken)) => taken,
            _ => self.take_far(request, need)?,
        };
        let start = place.start;
        // SAFETY: of a live chunk, and taken just now.
        unsafe { unpoison(place.whole, need.whole) };
        if place.fresh_bytes > 0 {
            // SAFETY: in what was taken just now, which nobody else has.
            unsafe { place.fresh.write_bytes(0, place.fresh_bytes) };
        }
        if request.is_zeroed() {
            // What is fresh ends in the allocation, behind it or in front of it.
            let cleared = (place.fresh.addr().get() + place.fresh_bytes)
                .saturating_sub(start.addr().get())
                .min(bytes);
            // SAFETY: in bounds: no more than the `bytes` bytes that were taken just now.
            let rest = unsafe { start.add(cleared) };
            // SAFETY: as above; they end where the allocation does.
            unsafe { rest.write_bytes(0, bytes - cleared) };
        }
        // SAFETY: the need has so many bytes in front of the allocation.
        let head = unsafe { start.sub(HEAD) };
        self.hide_rest(place, need, bytes);
        if !request.is_zeroed() {
            unspecified(start, bytes);
        }
        // SAFETY: aligned: the allocation is at a multiple of 64, and a slot is a multiple of 64
        // bytes. Writable and this block's own until it is back.
        let header = unsafe { HeaderSlot::new(head) };
        Ok(Block::new(start, bytes, need.capacity, slot as u64, tag).with_header(header))
    }

    #[inline]
    unsafe fn release_block(&self, block: Block) {
        if block.is_empty() {
            return;
        }
        let Ok(slot) = usize::try_from(block.cookie()) else {
            debug_assert!(false, "a block of another allocator: {block:?}");
            return;
        };
        let (len, capacity, tag) = (block.len(), block.capacity(), block.tag());
        // SAFETY: in front of every block are so many bytes of its own.
        let head = unsafe { block.as_ptr().sub(HEAD) };
        // SAFETY: the chunk is there, and nobody uses the block any more (the caller's promise).
        unsafe { poison(head, HEAD + capacity) };
        if mutant::is(Mutant::ArenaResetsTwoSteps) {
            if (self.chunks).with(|chunks| chunks.count_out(slot, len, capacity, tag)) {
                self.chunks.with(|chunks| chunks.empty(slot));
            }
            return;
        }
        self.chunks
            .with(|chunks| chunks.put(slot, len, capacity, tag));
    }

    /// `live` is what was asked for, rounded up to 64 bytes. `unused` was never out,
    /// `metadata` is the headers in front of what is out and what the chunks need themselves.
    /// The rest is `cached`: idle chunks, what is left of those in use, and what came back to
    /// them but is not usable before all of it did.
    fn stats(&self) -> Stats {
        self.chunks.with(|chunks| chunks.stats())
    }

    /// Chunks that nothing is out of go back to the global allocator, whatever was
    /// [reserved](StepArena::reserve) of them. Returns their bytes.
    fn trim(&self) -> usize {
        self.chunks.with(Chunks::trim)
    }
}

impl StepArena {
    /// Poisons what the need took beyond the header and the bytes that were asked for.
    #[inline]
    fn hide_rest(&self, place: Place, need: Need, bytes: usize) {
        if !cfg!(any(tenslab_asan, tenslab_valgrind)) {
            return;
        }
        let before = place.start.addr().get() - HEAD - place.whole.addr().get();
        let behind = need.whole - before - HEAD - bytes;
        // SAFETY: of a live chunk, in front of the block's header, and nobody's.
        unsafe { poison(place.whole, before) };
        // SAFETY: in bounds: the need ends where the bytes behind the block do.
        let end = unsafe { place.start.add(bytes) };
        // SAFETY: of a live chunk, behind the block, and nobody's.
        unsafe { poison(end, behind) };
    }
}

impl fmt::Debug for StepArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepArena")
            .field("live", &self.live())
            .field("stats", &self.stats())
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
