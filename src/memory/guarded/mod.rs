//! [`Guarded`]: a wrapper that finds misuse of raw pointers in tests.
//!
//! ```text
//!   from upstream   | redzone |        the block        | redzone |
//!   handed out      | c5 c5 … | NaN NaN NaN (or zeros)  | c5 c5 … |
//!   given back        checked   NaN NaN NaN               checked     quarantine, the oldest
//!   out of it         checked   checked                   checked     goes back upstream
//! ```
//!
//! What it knows of each block is in a table of its own, under one lock: nothing that a
//! wild pointer overwrites is needed to give a block back. A record leaves the table
//! before its block goes on, or a block that comes out again at once would lose its new
//! record (`loom_tests/guarded.rs`).
//!
//! Damage is a mistake in somebody's `unsafe` code, not a thing of the world, so it
//! panics by default, in the thread that gave the block back. Such a block is kept, so
//! that nobody gets it again, and goes back upstream only when the guard goes away.

mod record;
mod report;

pub use self::report::{Damage, DamageKind, GuardReport, Out};

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Range;

use self::record::{REDZONE, Record, paint};

use super::poison::{poison, unpoison};
use super::{AllocError, Allocator, Block, Decommitted, Request, Stats, Tag};
use crate::mutant::{self, Mutant};
use crate::sync::Mutex;
use crate::types::Device;

/// Bytes of a redzone behind a block, and the least in front of one.
const REDZONE_BYTES: usize = 64;

/// Blocks aligned to more than this have no redzone in front: it would be that large.
const MAX_FRONT_BYTES: usize = 4096;

/// Finds misuse of raw pointers: for tests, off unless you put it on.
///
/// - Bytes that were not asked to be zero come out as [`FRESH`](Guarded::FRESH), a NaN in
///   every float dtype, so a kernel that reads what nobody wrote shows it.
/// - Around each block are redzones of 64 bytes or more, checked when it goes back. (In
///   front of blocks aligned to more than 4 KiB there is none.)
/// - What goes back is filled with [`DEAD`](Guarded::DEAD), also a NaN, and waits in a
///   quarantine of bounded size. What was written there meanwhile is found when it leaves.
///   AddressSanitizer builds poison it too, so that also reading is found.
/// - [`report`](Guarded::report) says what is out, by [`Tag`]: after a test, the leaks.
///
/// Damage panics in the thread that gives the block back, unless
/// [`on_damage`](Guarded::on_damage) says otherwise; a thread that is panicking already
/// only counts it. A damaged block is not handed out again.
///
/// Blocks do not grow. Cost: every byte is written twice, by whoever allocates and gives
/// back; a lock and a record in a map each. Any thread may use it.
///
/// ```
/// use std::sync::Arc;
/// use tenslab::memory::{CpuAllocator, Guarded, SharedAllocator, Tag};
///
/// let guarded = Arc::new(Guarded::new(CpuAllocator::new()));
/// let kv = SharedAllocator::new(Arc::clone(&guarded)).with_tag(Tag::Kv);
/// let buffer = kv.allocate(4096, 64)?;
/// let first = f32::from_ne_bytes(buffer.as_slice()[..4].try_into().unwrap());
/// assert!(first.is_nan());
///
/// std::mem::forget(buffer);                       // a leak
/// assert_eq!(guarded.report()[Tag::Kv].bytes, 4096);
/// assert_eq!(guarded.report().to_string(), "kv: 1 block, 4096 bytes, the oldest is allocation 0\n");
/// # Ok::<(), tenslab::memory::AllocError>(())
/// ```
pub struct Guarded<A: Allocator> {
    upstream: A,
    quarantine_bytes: usize,
    on_damage: fn(&Damage),
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the address that was handed out.
    out: HashMap<usize, Record>,
    /// Blocks of zero bytes that are out. They may be alike, so they are only counted.
    empty: [usize; Tag::ALL.len()],
    /// Given back, the oldest first.
    quarantine: VecDeque<Record>,
    quarantined_bytes: usize,
    /// Damaged: kept until the guard goes away.
    broken: Vec<Record>,
    allocations: u64,
    damaged: usize,
}

fn panic_over(damage: &Damage) {
    if !std::thread::panicking() {
        panic!("{damage}");
    }
}

impl<A: Allocator> Guarded<A> {
    /// What fresh bytes are, two by two: a NaN in every float dtype.
    pub const FRESH: [u8; 2] = 0x7ffa_u16.to_ne_bytes();

    /// What bytes that were given back are, two by two: another NaN.
    pub const DEAD: [u8; 2] = 0xfffd_u16.to_ne_bytes();

    /// Guards what `upstream` hands out, with a quarantine of 16 MiB.
    pub fn new(upstream: A) -> Self {
        Self {
            upstream,
            quarantine_bytes: 16 << 20,
            on_damage: panic_over,
            state: Mutex::new(State::default()),
        }
    }

    /// The same with a quarantine of at most so many bytes, redzones included. With 0
    /// everything goes back at once, and writing afterwards is not found.
    #[must_use]
    pub fn with_quarantine(mut self, bytes: usize) -> Self {
        self.quarantine_bytes = bytes;
        self
    }

    /// The same, but damage is told to `tell` instead of a panic. It is called without a
    /// lock and may allocate here.
    #[must_use]
    pub fn on_damage(mut self, tell: fn(&Damage)) -> Self {
        self.on_damage = tell;
        self
    }

    /// The allocator that it guards.
    pub fn upstream(&self) -> &A {
        &self.upstream
    }

    /// What is out, by tag. Cost: a look at every record, under the lock.
    #[must_use]
    pub fn report(&self) -> GuardReport {
        let state = self.state.lock();
        let mut report = GuardReport {
            quarantined_bytes: state.quarantined_bytes,
            damaged: state.damaged,
            ..GuardReport::default()
        };
        for (out, &empty) in report.tags.iter_mut().zip(&state.empty) {
            out.blocks = empty;
        }
        for record in state.out.values() {
            let out = &mut report.tags[record.block.tag() as usize];
            out.blocks += 1;
            out.bytes += record.bytes;
            let oldest = out
                .oldest
                .map_or(record.number, |old| old.min(record.number));
            out.oldest = Some(oldest);
        }
        report
    }

    #[cold]
    fn keep(&self, broken: Record) {
        self.state.lock().broken.push(broken);
    }

    #[cold]
    fn tell(&self, damage: &Damage) {
        self.state.lock().damaged += 1;
        (self.on_damage)(damage);
    }

    /// The upstream's block that `block` is a part of, to look at, and the bytes in front.
    /// The lock is not held when it is used, for upstream may call back.
    fn whole(&self, block: &Block) -> Option<(Block, usize)> {
        let state = self.state.lock();
        let record = state.out.get(&block.as_ptr().addr().get())?;
        let of = &record.block;
        let whole = Block::new(of.as_ptr(), of.len(), of.capacity(), of.cookie(), of.tag());
        let whole = match of.header() {
            Some(slot) => whole.with_header(slot),
            None => whole,
        };
        Some((whole, record.front))
    }

    /// What waits in the quarantine is nobody's: where upstream is short, it goes on first.
    fn allocate_wider(&self, request: Request) -> Result<Block, AllocError> {
        let first = self.upstream.allocate_block(request);
        match first {
            Err(error) if error.is_shortage() && self.state.lock().quarantined_bytes > 0 => {
                self.shrink_quarantine(0);
                self.upstream.allocate_block(request)
            }
            other => other,
        }
    }

    /// Sends the oldest blocks on until no more than `most` bytes wait. The lock is not
    /// held while blocks are checked and given back.
    fn shrink_quarantine(&self, most: usize) {
        loop {
            let mut state = self.state.lock();
            if state.quarantined_bytes <= most {
                return;
            }
            let Some(mut record) = state.quarantine.pop_front() else {
                return;
            };
            state.quarantined_bytes -= record.block.len();
            drop(state);
            // SAFETY: bytes of a block that upstream has not got back, so they are mapped.
            unsafe { unpoison(record.block.as_ptr(), record.block.len()) };
            // SAFETY: given back by its holder, and out of the quarantine by us alone.
            if let Some(damage) = unsafe { record.check(Some(Self::DEAD)) } {
                self.keep(record);
                self.tell(&damage);
                continue;
            }
            // SAFETY: it is upstream's block as it came, its holder gave it back, and it was
            // in one record, which we took.
            unsafe { self.upstream.release_block(record.block) };
        }
    }
}

// SAFETY: what is handed out is a part of a block of the upstream's, `bytes` of them at a
// multiple of the alignment (the part in front is one), initialised, and belongs to one
// holder: the upstream's block goes back only after this one did. The header slot is the
// upstream's own.
unsafe impl<A: Allocator> Allocator for Guarded<A> {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        let (bytes, align, tag) = (request.bytes(), request.align(), request.tag());
        if bytes == 0 {
            let block = self.upstream.allocate_block(request)?;
            self.state.lock().empty[tag as usize] += 1;
            return Ok(block);
        }
        let front = match align {
            ..=MAX_FRONT_BYTES => align.max(REDZONE_BYTES),
            _ => 0,
        };
        let wider = bytes
            .checked_add(front + REDZONE_BYTES)
            .and_then(|wide| Request::new(wide, align).ok())
            .ok_or(AllocError::SizeOverflow { bytes, align })?
            .tagged(tag);
        let wider = if request.is_zeroed() {
            wider.zeroed()
        } else {
            wider
        };
        let block = self.allocate_wider(wider)?;
        let (capacity, header) = (block.capacity(), block.header());
        // SAFETY: `front` is less than the block's length.
        let start = unsafe { block.as_ptr().add(front) };
        let mut record = Record {
            block,
            front,
            bytes,
            number: 0,
        };
        // SAFETY: upstream handed it out just now, to nobody else.
        let (before, fresh, behind) = unsafe { record.parts() };
        paint(before, REDZONE);
        paint(behind, REDZONE);
        if !request.is_zeroed() {
            paint(fresh, Self::FRESH);
        }
        let mut state = self.state.lock();
        record.number = state.allocations;
        state.allocations += 1;
        let cookie = record.number;
        state.out.insert(start.addr().get(), record);
        drop(state);
        let block = Block::new(start, bytes, capacity, cookie, tag);
        Ok(match header {
            Some(slot) => block.with_header(slot),
            None => block,
        })
    }

    unsafe fn release_block(&self, block: Block) {
        if block.is_empty() {
            let mut state = self.state.lock();
            let empty = &mut state.empty[block.tag() as usize];
            *empty = empty.saturating_sub(1);
            drop(state);
            // SAFETY: upstream handed it out as it is; the caller's promise, passed on.
            return unsafe { self.upstream.release_block(block) };
        }
        let address = block.as_ptr().addr().get();
        if mutant::is(Mutant::GuardErasesLate) {
            let state = self.state.lock();
            let Some(block) = state.out.get(&address).map(|record| &record.block) else {
                panic!("not out");
            };
            let again = Block::new(
                block.as_ptr(),
                block.len(),
                block.capacity(),
                block.cookie(),
                block.tag(),
            );
            drop(state);
            // SAFETY: the caller's promise; but the record is still in the table.
            unsafe { self.upstream.release_block(again) };
            self.state.lock().out.remove(&address);
            return;
        }
        let taken = self.state.lock().out.remove(&address);
        let Some(mut record) = taken else {
            self.tell(&Damage {
                kind: DamageKind::NotOut,
                tag: block.tag(),
                bytes: block.len(),
                allocation: block.cookie(),
                offset: 0,
                found: 0,
            });
            return;
        };
        // SAFETY: its holder gave it back, and its record is out of the table.
        if let Some(damage) = unsafe { record.check(None) } {
            self.keep(record);
            self.tell(&damage);
            return;
        }
        // SAFETY: as for the check.
        let (_, dead, _) = unsafe { record.parts() };
        paint(dead, Self::DEAD);
        // SAFETY: mapped until upstream has it back, and nobody uses it before it leaves
        // the quarantine, where it is unpoisoned.
        unsafe { poison(record.block.as_ptr(), record.block.len()) };
        let mut state = self.state.lock();
        state.quarantined_bytes += record.block.len();
        state.quarantine.push_back(record);
        drop(state);
        self.shrink_quarantine(self.quarantine_bytes);
    }

    unsafe fn decommit(&self, block: &Block, range: Range<usize>) -> Decommitted {
        let Some((whole, front)) = self.whole(block) else {
            return Decommitted::default();
        };
        // SAFETY: upstream's block is out, and the range is inside the part of it that the
        // caller promises about.
        unsafe { (self.upstream).decommit(&whole, range.start + front..range.end + front) }
    }

    unsafe fn commit(&self, block: &Block, range: Range<usize>) -> Result<(), AllocError> {
        let Some((whole, front)) = self.whole(block) else {
            return Ok(());
        };
        // SAFETY: upstream's block is out, and the range is inside it.
        unsafe { (self.upstream).commit(&whole, range.start + front..range.end + front) }
    }

    /// With its redzones: until the block is given back nobody may write them either.
    unsafe fn protect(&self, block: &Block) -> usize {
        let Some((whole, _)) = self.whole(block) else {
            return 0;
        };
        // SAFETY: upstream's block is out. Nobody writes the part of it that is `block` (the
        // caller's promise), and the rest we paint only before it goes out and after it is back.
        unsafe { self.upstream.protect(&whole) }
    }

    unsafe fn unprotect(&self, block: &Block) -> bool {
        let Some((whole, _)) = self.whole(block) else {
            return true;
        };
        // SAFETY: upstream's block is out.
        unsafe { self.upstream.unprotect(&whole) }
    }

    fn device(&self) -> Device {
        self.upstream.device()
    }

    /// The upstream's: redzones and what waits in the quarantine are live to it.
    fn stats(&self) -> Stats {
        self.upstream.stats()
    }

    /// Checks what waits in the quarantine and sends it on, then trims the upstream.
    fn trim(&self) -> usize {
        self.shrink_quarantine(0);
        self.upstream.trim()
    }
}

impl<A: Allocator> Drop for Guarded<A> {
    fn drop(&mut self) {
        self.shrink_quarantine(0);
        let broken = std::mem::take(&mut self.state.get_mut().broken);
        for record in broken {
            // SAFETY: it is upstream's block as it came, its holder gave it back, and it is
            // in no other record.
            unsafe { self.upstream.release_block(record.block) };
        }
    }
}

impl<A: Allocator + fmt::Debug> fmt::Debug for Guarded<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded")
            .field("upstream", &self.upstream)
            .field("report", &self.report())
            .finish_non_exhaustive()
    }
}
