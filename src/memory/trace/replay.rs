use std::collections::{BTreeMap, HashMap};
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;

use serde::Serialize;

use super::event::{Allocation, Event, EventKind};
use super::simulated::{Place, Simulated};
use crate::memory::{AllocError, Allocator, Block, Request, Stats, Tag};

/// What became of a recording in another allocator.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct ReplayReport {
    /// Calls made: requests, growth and give-backs.
    pub operations: u64,
    /// Requests that were served.
    pub allocations: u64,
    /// Blocks that were given back as recorded.
    pub releases: u64,
    /// Requests that were refused, as recorded.
    pub refused: u64,
    /// Requests that had been served and were refused here.
    pub refused_here: u64,
    /// Requests that had been refused and were served here (and given back at once).
    pub served_here: u64,
    /// Blocks that grew as recorded.
    pub growths: u64,
    /// Blocks that grew when it was recorded and could not here. They stay as they are.
    pub growths_refused_here: u64,
    /// Blocks that did not lie as they must: misaligned, or over another one that is out.
    pub misplaced: u64,
    /// Recorded give-backs of blocks that the recording does not show going out (because
    /// it had dropped that), or that were refused here. Left out.
    pub skipped_releases: u64,
    /// Recorded growth of such blocks. Left out.
    pub skipped_growths: u64,
    /// Blocks that were out at the end of the recording. They were given back then.
    pub left_over: u64,
    /// The most that was asked for by blocks that were out at one time.
    pub peak_requested_bytes: usize,
    /// The most of the allocator that they took up.
    pub peak_live_bytes: usize,
    /// The most that the allocator said it had reserved. 0 where it does not count.
    pub peak_reserved_bytes: usize,
    /// The number of the first event that ended differently.
    pub first_mismatch: Option<u64>,
    #[serde(skip)]
    addresses: Vec<Option<usize>>,
}

impl ReplayReport {
    /// Events that ended differently from how they were recorded, or that must not
    /// have ended so.
    #[must_use]
    pub fn mismatches(&self) -> u64 {
        self.refused_here + self.served_here + self.growths_refused_here + self.misplaced
    }

    /// Where each request's block was, counted from the lowest of all: `None` for one
    /// that was refused or is empty.
    #[must_use]
    pub fn layout(&self) -> Vec<Option<usize>> {
        let lowest = self.addresses.iter().flatten().min().copied().unwrap_or(0);
        let relative = |address: &Option<usize>| address.map(|address| address - lowest);
        self.addresses.iter().map(relative).collect()
    }
}

/// Where a replay is after an event: see [`Recording::replay_with`](super::Recording::replay_with).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayStep<'a> {
    /// What was played.
    pub event: &'a Event,
    /// Bytes asked for by the blocks that are out now.
    pub requested_bytes: usize,
    /// Bytes of the allocator that they take up.
    pub live_bytes: usize,
    /// Why a request or growth was refused here, whether or not it had been when it was
    /// recorded.
    pub refused: Option<AllocError>,
}

/// What a recording is played into. A block is given back by dropping it.
pub(super) trait Target {
    type Held<'a>: Held
    where
        Self: 'a;
    fn take(&self, request: Request) -> Result<Self::Held<'_>, AllocError>;
    /// `bytes` is no less than was taken.
    fn grow(&self, held: &mut Self::Held<'_>, bytes: usize) -> Result<(), AllocError>;
    fn now(&self) -> Stats;
}

pub(super) trait Held {
    fn address(&self) -> usize;
    fn capacity(&self) -> usize;
}

/// A block of an allocator, which goes back when it is dropped.
pub(super) struct Lease<'a, A: Allocator + ?Sized> {
    allocator: &'a A,
    block: ManuallyDrop<Block>,
}

impl<A: Allocator + ?Sized> Drop for Lease<'_, A> {
    fn drop(&mut self) {
        // SAFETY: `self` is going away, so nobody takes it a second time.
        let block = unsafe { ManuallyDrop::take(&mut self.block) };
        // SAFETY: it came from this allocator (`Target::take` below), goes back once, and
        // nobody ever used its bytes or its header slot.
        unsafe { self.allocator.release_block(block) };
    }
}

impl<A: Allocator + ?Sized> Held for Lease<'_, A> {
    fn address(&self) -> usize {
        self.block.as_ptr().addr().get()
    }

    fn capacity(&self) -> usize {
        self.block.capacity()
    }
}

impl<A: Allocator + ?Sized> Target for A {
    type Held<'a>
        = Lease<'a, A>
    where
        A: 'a;

    fn take(&self, request: Request) -> Result<Lease<'_, A>, AllocError> {
        let block = ManuallyDrop::new(self.allocate_block(request)?);
        Ok(Lease {
            allocator: self,
            block,
        })
    }

    fn grow(&self, held: &mut Lease<'_, A>, bytes: usize) -> Result<(), AllocError> {
        let block = &mut *held.block;
        if bytes < block.len() {
            let capacity = block.capacity();
            return Err(AllocError::CannotGrow { bytes, capacity });
        }
        // SAFETY: the block came from the lease's allocator (`take`) and is out, `bytes` was
        // checked, and nobody else knows of the block.
        unsafe { held.allocator.grow_block(block, bytes) }
    }

    fn now(&self) -> Stats {
        self.stats()
    }
}

impl Held for Place<'_> {
    fn address(&self) -> usize {
        self.address
    }

    fn capacity(&self) -> usize {
        self.capacity
    }
}

impl Target for Simulated {
    type Held<'a> = Place<'a>;

    fn take(&self, request: Request) -> Result<Place<'_>, AllocError> {
        Simulated::take(self, request)
    }

    fn grow(&self, held: &mut Place<'_>, bytes: usize) -> Result<(), AllocError> {
        Simulated::grow(self, held, bytes)
    }

    fn now(&self) -> Stats {
        self.stats()
    }
}

/// A block that is out in the replay.
struct Out<H> {
    held: H,
    requested: usize,
}

/// What is asked of the target beside the calls that were recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Zeroed where it was recorded so, and how much is reserved after each call.
    Recorded,
    /// Nothing zeroed, and how much is reserved at the end.
    Untouched,
}

struct Player<'t, T: Target + ?Sized + 't> {
    target: &'t T,
    pace: Pace,
    report: ReplayReport,
    /// Why the event that is being played was refused.
    refusal: Option<AllocError>,
    /// By the address that they had in the recording.
    out: HashMap<usize, Out<T::Held<'t>>>,
    /// Empty blocks share addresses; those of one tag are alike.
    empty: [Vec<T::Held<'t>>; Tag::ALL.len()],
    /// Where blocks are here: first byte to one past the last.
    ranges: BTreeMap<usize, usize>,
    requested: usize,
    live: usize,
}

pub(super) fn run<T: Target + ?Sized>(events: &[Event], target: &T) -> ReplayReport {
    let mut player = Player::new(target, Pace::Recorded);
    for event in events {
        player.play(event);
    }
    player.finish()
}

/// Without a byte that is touched, as long as `each` goes on.
pub(super) fn run_untouched<T: Target + ?Sized>(
    events: &[Event],
    target: &T,
    mut each: impl FnMut(&ReplayStep<'_>) -> ControlFlow<()>,
) -> ReplayReport {
    let mut player = Player::new(target, Pace::Untouched);
    for event in events {
        player.play(event);
        let step = ReplayStep {
            event,
            requested_bytes: player.requested,
            live_bytes: player.live,
            refused: player.refusal,
        };
        if each(&step).is_break() {
            break;
        }
    }
    player.note_reserved();
    player.finish()
}

impl<'t, T: Target + ?Sized> Player<'t, T> {
    fn new(target: &'t T, pace: Pace) -> Self {
        Self {
            target,
            pace,
            report: ReplayReport::default(),
            refusal: None,
            out: HashMap::new(),
            empty: std::array::from_fn(|_| Vec::new()),
            ranges: BTreeMap::new(),
            requested: 0,
            live: 0,
        }
    }

    /// Gives everything back, and says what became of it all.
    fn finish(self) -> ReplayReport {
        let Self {
            mut report,
            out,
            empty,
            ..
        } = self;
        let empty_blocks: usize = empty.iter().map(Vec::len).sum();
        report.left_over = out.len() as u64 + empty_blocks as u64;
        // By their recorded addresses, so that the allocator is left in the same state by
        // every replay.
        let mut left: Vec<_> = out.into_iter().collect();
        left.sort_unstable_by_key(|(address, _)| *address);
        drop((left, empty));
        report
    }

    fn play(&mut self, event: &Event) {
        self.refusal = None;
        let before = self.report.mismatches();
        match &event.kind {
            EventKind::Allocate(allocation) => self.allocate(allocation),
            EventKind::Refuse(request) => self.refuse(*request),
            &EventKind::Release {
                tag,
                bytes,
                address,
                ..
            } => self.release(tag, bytes, address),
            &EventKind::Grow { bytes, address, .. } => self.grow(bytes, address),
            EventKind::Mark(_) => {}
        }
        if self.report.mismatches() > before {
            self.report.first_mismatch.get_or_insert(event.number);
        }
    }

    fn take(&mut self, request: Request) -> Option<T::Held<'t>> {
        self.report.operations += 1;
        let asked = match (self.pace, Request::new(request.bytes(), request.align())) {
            (Pace::Untouched, Ok(unzeroed)) => unzeroed.tagged(request.tag()),
            _ => request,
        };
        let held = match self.target.take(asked) {
            Ok(held) => Some(held),
            Err(error) => {
                self.refusal = Some(error);
                None
            }
        };
        self.look_at_reserved();
        let address = held.as_ref().map(T::Held::address);
        let address = address.filter(|_| request.bytes() > 0);
        self.report.addresses.push(address);
        held
    }

    fn look_at_reserved(&mut self) {
        if self.pace == Pace::Recorded {
            self.note_reserved();
        }
    }

    fn note_reserved(&mut self) {
        let reserved = self.target.now().reserved_bytes;
        self.report.peak_reserved_bytes = self.report.peak_reserved_bytes.max(reserved);
    }

    fn raise_peaks(&mut self) {
        let report = &mut self.report;
        report.peak_requested_bytes = report.peak_requested_bytes.max(self.requested);
        report.peak_live_bytes = report.peak_live_bytes.max(self.live);
    }

    fn allocate(&mut self, allocation: &Allocation) {
        let request = allocation.request;
        let Some(held) = self.take(request) else {
            self.report.refused_here += 1;
            return;
        };
        self.report.allocations += 1;
        if !self.place(&held, request) {
            self.report.misplaced += 1;
        }
        self.requested += request.bytes();
        self.live += held.capacity();
        self.raise_peaks();
        if request.bytes() == 0 {
            self.empty[request.tag() as usize].push(held);
            return;
        }
        let requested = request.bytes();
        // No recording has two blocks at one address; if it had, the first would end here.
        if let Some(other) = self.out.insert(allocation.address, Out { held, requested }) {
            self.give_back(other);
        }
    }

    /// Notes where a block is. `false`: it must not be there.
    fn place(&mut self, held: &T::Held<'t>, request: Request) -> bool {
        let start = held.address();
        if !start.is_multiple_of(request.align()) || held.capacity() < request.bytes() {
            return false;
        }
        if request.bytes() == 0 {
            return true;
        }
        self.occupy(start, held.capacity())
    }

    /// Notes that a block is here. `false`: another one is, too.
    fn occupy(&mut self, start: usize, capacity: usize) -> bool {
        let end = start.saturating_add(capacity);
        let below = self.ranges.range(..end).next_back();
        let is_free = below.is_none_or(|(_, &other_end)| other_end <= start);
        self.ranges.insert(start, end);
        is_free
    }

    fn grow(&mut self, bytes: usize, address: usize) {
        let known = self.out.get_mut(&address);
        // Fewer bytes than it has: no recording says so.
        let Some(out) = known.filter(|out| bytes >= out.requested) else {
            self.report.skipped_growths += 1;
            return;
        };
        self.report.operations += 1;
        let before = out.held.capacity();
        if let Err(error) = self.target.grow(&mut out.held, bytes) {
            self.refusal = Some(error);
            self.report.growths_refused_here += 1;
            return;
        }
        self.report.growths += 1;
        let (start, capacity) = (out.held.address(), out.held.capacity());
        self.requested += bytes - out.requested;
        self.live += capacity.saturating_sub(before);
        out.requested = bytes;
        self.ranges.remove(&start);
        if capacity < bytes || !self.occupy(start, capacity) {
            self.report.misplaced += 1;
        }
        self.raise_peaks();
        self.look_at_reserved();
    }

    fn refuse(&mut self, request: Request) {
        match self.take(request) {
            None => self.report.refused += 1,
            Some(held) => {
                drop(held);
                self.report.operations += 1;
                self.report.served_here += 1;
            }
        }
    }

    fn release(&mut self, tag: Tag, bytes: usize, address: usize) {
        let out = if bytes == 0 {
            let held = self.empty[tag as usize].pop();
            held.map(|held| Out { held, requested: 0 })
        } else {
            self.out.remove(&address)
        };
        match out {
            Some(out) => {
                self.report.operations += 1;
                self.report.releases += 1;
                self.give_back(out);
            }
            None => self.report.skipped_releases += 1,
        }
    }

    fn give_back(&mut self, out: Out<T::Held<'t>>) {
        self.requested -= out.requested;
        self.live -= out.held.capacity();
        self.ranges.remove(&out.held.address());
        drop(out);
    }
}
