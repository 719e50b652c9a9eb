//! What a [`Trace`](super::Trace) keeps: plain code, run under its lock.
//!
//! ```text
//!   events    | 12 | 13 | 14 |  9 | 10 | 11 |     a ring: 15 comes where 9 is
//!   live      |    | c  |    | a  | b  |    |     by address, open addressing
//!   threads   | t0 | t1 |                         in the order of their first event
//! ```
//!
//! All of it is made once, of a fixed size. What finds no place is counted instead:
//! events that were overwritten, and live blocks beyond the table.

use super::event::{Allocation, Event, EventKind, LiveBlock, Name};
use crate::memory::Block;

/// Threads that have a number of their own.
const THREADS: usize = 64;

/// The last number, of all other threads.
const OTHER_THREADS: u16 = 64;

/// What the book and its file say before the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TraceHeader {
    /// Was history kept at all?
    pub history: bool,
    /// Events since the trace was made.
    pub seen_events: u64,
    /// Events that are not kept: overwritten, or never kept.
    pub dropped_events: u64,
    /// Events that are here: all that are kept, or none where nobody asked for them.
    pub events: u64,
    /// Blocks that are out and known one by one.
    pub live_blocks: u64,
    /// Blocks that are out and for which the table of live blocks had no place.
    pub live_untracked: u64,
    /// Blocks of zero bytes that are out. They have no address of their own, so they are
    /// only counted.
    pub live_empty: u64,
}

#[derive(Debug)]
pub(super) struct Book {
    seen: u64,
    ring: Box<[(u16, EventKind)]>,
    live: LiveTable,
    live_empty: u64,
    threads: [usize; THREADS],
}

impl Book {
    pub(super) fn new(events: usize, live_blocks: usize) -> Self {
        Self {
            seen: 0,
            ring: vec![(0, EventKind::Mark(Name::default())); events].into(),
            live: LiveTable::new(live_blocks),
            live_empty: 0,
            threads: [0; THREADS],
        }
    }

    pub(super) fn allocated(&mut self, thread: usize, allocation: Allocation) {
        let thread = self.thread(thread);
        if allocation.request.bytes() == 0 {
            self.live_empty += 1;
        } else {
            self.live.insert(LiveBlock {
                number: self.seen,
                thread,
                allocation,
            });
        }
        self.push(thread, EventKind::Allocate(allocation));
    }

    pub(super) fn released(&mut self, thread: usize, block: &Block) {
        let thread = self.thread(thread);
        if block.is_empty() {
            self.live_empty = self.live_empty.saturating_sub(1);
        } else {
            self.live.remove(block.as_ptr().addr().get());
        }
        self.push(thread, EventKind::release(block));
    }

    /// A block that is not empty became longer.
    pub(super) fn grown(&mut self, thread: usize, block: &Block) {
        let thread = self.thread(thread);
        self.live.grow(block);
        self.push(thread, EventKind::grow(block));
    }

    pub(super) fn happened(&mut self, thread: usize, kind: EventKind) {
        let thread = self.thread(thread);
        self.push(thread, kind);
    }

    fn push(&mut self, thread: u16, kind: EventKind) {
        if !self.ring.is_empty() {
            let place = self.place(self.seen);
            self.ring[place] = (thread, kind);
        }
        self.seen += 1;
    }

    /// Where the event with this number is, or was.
    fn place(&self, number: u64) -> usize {
        usize::try_from(number % self.ring.len() as u64).unwrap_or(0)
    }

    /// The number of a thread, given something that no other living thread has.
    fn thread(&mut self, key: usize) -> u16 {
        for (number, known) in (0..).zip(&mut self.threads) {
            if *known == 0 {
                *known = key;
            }
            if *known == key {
                return number;
            }
        }
        OTHER_THREADS
    }

    pub(super) fn header(&self) -> TraceHeader {
        let dropped_events = self.seen.saturating_sub(self.ring.len() as u64);
        TraceHeader {
            history: !self.ring.is_empty(),
            seen_events: self.seen,
            dropped_events,
            events: self.seen - dropped_events,
            live_blocks: self.live.blocks as u64,
            live_untracked: self.live.untracked,
            live_empty: self.live_empty,
        }
    }

    /// Appends the events that are kept, in their order.
    pub(super) fn events(&self, to: &mut Vec<Event>) {
        for number in self.header().dropped_events..self.seen {
            let (thread, kind) = self.ring[self.place(number)];
            to.push(Event {
                number,
                thread,
                kind,
            });
        }
    }

    /// Appends the blocks that are out, in no order.
    pub(super) fn live(&self, to: &mut Vec<LiveBlock>) {
        to.extend(self.live.slots.iter().flatten());
    }
}

/// The blocks that are out, by address.
#[derive(Debug)]
struct LiveTable {
    /// Twice as many as there may be blocks, so that a search ends soon; a power of two.
    slots: Box<[Option<LiveBlock>]>,
    blocks: usize,
    max_blocks: usize,
    untracked: u64,
}

impl LiveTable {
    fn new(max_blocks: usize) -> Self {
        let slots = match max_blocks {
            0 => 0,
            some => some.saturating_mul(2).next_power_of_two(),
        };
        Self {
            slots: vec![None; slots].into(),
            blocks: 0,
            max_blocks,
            untracked: 0,
        }
    }

    /// Where the search for an address begins.
    fn home(&self, address: usize) -> usize {
        // Addresses differ in their middle bits; the product carries those to the top.
        let mixed = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        usize::try_from(mixed).unwrap_or(0) & (self.slots.len() - 1)
    }

    fn next(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    fn address(&self, slot: usize) -> Option<usize> {
        self.slots[slot].map(|block| block.allocation.address)
    }

    fn insert(&mut self, block: LiveBlock) {
        if self.blocks == self.max_blocks {
            self.untracked += 1;
            return;
        }
        let mut slot = self.home(block.allocation.address);
        // At least half of the slots are empty, so it ends.
        while self.slots[slot].is_some() {
            slot = self.next(slot);
        }
        self.slots[slot] = Some(block);
        self.blocks += 1;
    }

    fn remove(&mut self, address: usize) {
        let found = self.find(address);
        let Some(mut hole) = found else {
            // It was out, so it is one of those that found no place.
            self.untracked = self.untracked.saturating_sub(1);
            return;
        };
        self.blocks -= 1;
        // Whoever was pushed past the hole moves up, so that no search stops at it.
        let mut slot = self.next(hole);
        while let Some(next) = self.address(slot) {
            let mask = self.slots.len() - 1;
            let pushed = slot.wrapping_sub(self.home(next)) & mask;
            if pushed >= slot.wrapping_sub(hole) & mask {
                self.slots[hole] = self.slots[slot];
                hole = slot;
            }
            slot = self.next(slot);
        }
        self.slots[hole] = None;
    }

    /// Notes what the block is now, if it found a place.
    fn grow(&mut self, block: &Block) {
        let found = self.find(block.as_ptr().addr().get());
        if let Some(known) = found.and_then(|slot| self.slots[slot].as_mut()) {
            known.allocation.grown(block);
        }
    }

    fn find(&self, address: usize) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut slot = self.home(address);
        while let Some(other) = self.address(slot) {
            if other == address {
                return Some(slot);
            }
            slot = self.next(slot);
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::memory::Request;

    /// Against a map, with few slots and addresses that collide, around full.
    #[test]
    fn the_table_of_live_blocks_is_a_map() {
        let mut table = LiveTable::new(50);
        let (mut out, mut untracked) = (HashMap::new(), Vec::new());
        let mut dice = 1_u64;
        let mut roll = || {
            dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(99);
            usize::try_from(dice >> 33).unwrap()
        };
        for number in 0..200_000 {
            let address = 64 * (1 + roll() % 100);
            if out.remove(&address).is_some() {
                table.remove(address);
            } else if let Some(place) = untracked.iter().position(|&other| other == address) {
                untracked.swap_remove(place);
                table.remove(address);
            } else {
                let block = LiveBlock {
                    number,
                    thread: 0,
                    allocation: Allocation {
                        request: Request::new(1, 1).unwrap(),
                        capacity: 64,
                        address,
                    },
                };
                table.insert(block);
                match out.len() {
                    50 => untracked.push(address),
                    _ => _ = out.insert(address, block),
                }
            }
            assert_eq!(
                (table.blocks, table.untracked),
                (out.len(), untracked.len() as u64)
            );
            if number % 64 == 0 {
                let kept: HashMap<_, _> = (table.slots.iter().flatten())
                    .map(|block| (block.allocation.address, *block))
                    .collect();
                assert_eq!(kept, out);
            }
        }
    }
}
