//! The chunks of an arena and what is out of them: plain `&mut` code, under one lock.
//!
//! ```text
//!   current   takes what comes
//!   others    take what the current one has no room for
//!   parked    take nothing until all that is out of them came back
//! ```
//!
//! A chunk that nothing is out of any more is empty at once: so a step that ends finds
//! nothing to do, however much it made. What is left to do is to make one chunk of many, and
//! a small one of a large one.

use super::chunk::{Chunk, HEAD, Need, Place, chunk_bytes, room};
use super::step::{ByTag, StepError, StepStats, Window};
use crate::memory::{Charge, Stats, Tag};

#[derive(Debug)]
pub(super) struct Chunks {
    slots: Vec<Option<Chunk>>,
    current: usize,
    /// Allocations of this step that are out.
    live: usize,
    /// Allocations that keep chunks parked.
    parked: usize,
    requested_bytes: usize,
    live_bytes: usize,
    /// Bytes of all chunks.
    reserved_bytes: usize,
    /// Room that one chunk would have handed out since nothing of the step was out.
    demand: usize,
    /// The most that it was in this step.
    peak: usize,
    allocations: u64,
    steps: u64,
    window: Window,
    /// Did chunks come or come back, so that a step's end has to look at them?
    changed: bool,
    /// Room that is always kept, once it was made.
    floor: usize,
}

impl Chunks {
    pub(super) fn new(floor: usize) -> Self {
        Self {
            slots: Vec::new(),
            current: 0,
            live: 0,
            parked: 0,
            requested_bytes: 0,
            live_bytes: 0,
            reserved_bytes: 0,
            demand: 0,
            peak: 0,
            allocations: 0,
            steps: 0,
            window: Window::default(),
            changed: false,
            floor,
        }
    }

    pub(super) fn set_floor(&mut self, floor: usize) {
        self.floor = floor;
    }

    fn all(&self) -> impl Iterator<Item = &Chunk> {
        self.slots.iter().flatten()
    }

    /// An allocation of `bytes` bytes, and the slot of its chunk. `None`: no chunk has the room.
    #[inline]
    pub(super) fn take(&mut self, bytes: usize, need: Need, tag: Tag) -> Option<(Place, usize)> {
        let mut slot = self.current;
        let current = self.slots.get_mut(slot).and_then(Option::as_mut);
        let place = match current.and_then(|chunk| chunk.take(need, tag)) {
            Some(place) => place,
            None => {
                slot = self.elsewhere(need.whole)?;
                self.slots.get_mut(slot)?.as_mut()?.take(need, tag)?
            }
        };
        self.live += 1;
        self.requested_bytes += bytes;
        self.live_bytes += need.capacity;
        self.demand += need.whole;
        self.peak = self.peak.max(self.demand);
        self.allocations += 1;
        Some((place, slot))
    }

    /// A chunk that has the room. It has more left than the current one, and takes its place.
    #[cold]
    fn elsewhere(&mut self, room: usize) -> Option<usize> {
        let left = |slot: &Option<Chunk>| slot.as_ref().map_or(0, Chunk::left);
        self.current = self.slots.iter().position(|slot| left(slot) >= room)?;
        Some(self.current)
    }

    /// An allocation of `len` bytes in the chunk of `slot` came back.
    #[inline]
    pub(super) fn put(&mut self, slot: usize, len: usize, capacity: usize, tag: Tag) {
        if self.count_out(slot, len, capacity, tag) {
            self.empty(slot);
        }
    }

    /// The first half of [`put`](Self::put). Was it the chunk's last one?
    #[inline]
    pub(super) fn count_out(&mut self, slot: usize, len: usize, capacity: usize, tag: Tag) -> bool {
        let Some(chunk) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
            debug_assert!(false, "an allocation of another arena: slot {slot}");
            return false;
        };
        chunk.count_out(tag);
        self.requested_bytes -= len;
        self.live_bytes -= capacity;
        if chunk.is_parked() {
            self.parked -= 1;
        } else {
            self.live -= 1;
            if self.live == 0 {
                self.demand = 0;
            }
        }
        chunk.live() == 0
    }

    /// The second half of [`put`](Self::put).
    #[inline]
    pub(super) fn empty(&mut self, slot: usize) {
        if let Some(chunk) = self.slots.get_mut(slot).and_then(Option::as_mut) {
            self.changed |= chunk.is_parked();
            chunk.empty();
        }
    }

    /// Room that a new chunk had better have: as much as all that are there, what the last
    /// steps took, and what is always kept. Parked chunks are of other steps: with them, each step
    /// that is retired would make the next one's twice as large.
    pub(super) fn wish(&self) -> usize {
        let recent = self.window.largest().max(self.peak);
        let own_bytes = self.reserved_bytes - self.parked_bytes();
        room(own_bytes).max(recent).max(self.floor)
    }

    /// Is there a chunk with so much room? It is the current one then.
    pub(super) fn reserve(&mut self, room: usize) -> bool {
        let mut others = self.slots.iter();
        let found = others.position(|slot| slot.as_ref().is_some_and(|chunk| chunk.left() >= room));
        if let Some(found) = found {
            self.current = found;
            self.peak = self.peak.max(self.demand.saturating_add(room));
        }
        found.is_some()
    }

    /// A slot without a chunk. `None`: the table of slots cannot grow.
    pub(super) fn vacant(&mut self) -> Option<usize> {
        if let Some(slot) = self.slots.iter().position(Option::is_none) {
            return Some(slot);
        }
        self.slots.try_reserve(1).ok()?;
        self.slots.push(None);
        Some(self.slots.len() - 1)
    }

    /// Puts a chunk that a step needs into a vacant slot, and makes it the current one.
    pub(super) fn fill(&mut self, slot: usize, chunk: Chunk) {
        self.window.grew();
        self.hang_in(slot, chunk);
    }

    fn hang_in(&mut self, slot: usize, chunk: Chunk) {
        self.reserved_bytes += chunk.bytes();
        self.slots[slot] = Some(chunk);
        self.current = slot;
        self.changed = true;
    }

    /// Why the step cannot end, if it cannot.
    #[inline]
    pub(super) fn refusal(&self) -> Result<(), StepError> {
        if self.live == 0 {
            return Ok(());
        }
        let mut by_tag = [0; Tag::ALL.len()];
        for chunk in self.all().filter(|chunk| !chunk.is_parked()) {
            for (sum, count) in by_tag.iter_mut().zip(chunk.by_tag()) {
                *sum += count;
            }
        }
        Err(StepError::Live {
            step: self.steps,
            allocations: self.live,
            by_tag: ByTag(by_tag),
        })
    }

    /// The chunks that this step has allocations in.
    pub(super) fn in_use(&self, slot: usize) -> bool {
        let chunk = self.slots.get(slot).and_then(Option::as_ref);
        chunk.is_some_and(|chunk| chunk.live() > 0 && !chunk.is_parked())
    }

    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn park(&mut self, slot: usize) {
        let Some(chunk) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        chunk.park();
        self.parked += chunk.live();
        self.live -= chunk.live();
    }

    /// Ends the step, of which nothing is out that is not parked.
    #[inline]
    pub(super) fn end(&mut self) -> StepStats {
        let (step, allocations, peak) = (self.steps, self.allocations, self.peak);
        self.window.push(peak);
        self.steps += 1;
        (self.allocations, self.peak, self.demand) = (0, 0, 0);
        let kept = self.window.largest().max(self.floor);
        if self.changed || self.reserved_bytes / 2 > kept {
            self.settle(kept);
        }
        StepStats {
            step,
            allocations,
            peak_bytes: peak,
            retained_bytes: self.reserved_bytes,
            parked_bytes: self.parked_bytes(),
            parked_allocations: self.parked,
        }
    }

    fn parked_bytes(&self) -> usize {
        if self.parked == 0 {
            return 0;
        }
        let parked = self.all().filter(|chunk| chunk.is_parked());
        parked.map(Chunk::bytes).sum()
    }

    /// Makes one chunk of many where the steps need room for `least` in one piece, and lets go of what
    /// is more than twice of it.
    #[cold]
    fn settle(&mut self, least: usize) {
        self.changed = false;
        let Some(bytes) = chunk_bytes(least) else {
            return;
        };
        let idle = || self.all().filter(|chunk| chunk.live() == 0);
        let sum: usize = idle().map(Chunk::bytes).sum();
        let in_pieces = idle().all(|chunk| chunk.room() < least)
            && idle().count() > 1
            // Else they were used over and over within a step, and are as much as it needs.
            && bytes <= sum;
        let too_much = sum / 2 > bytes;
        if !in_pieces && !too_much {
            return;
        }
        if too_much {
            self.window.shrank();
        }
        let is_idle = |slot: &Option<Chunk>| slot.as_ref().is_some_and(|chunk| chunk.live() == 0);
        let fits = |chunk: &Chunk| chunk.room() >= least && chunk.bytes() / 2 <= bytes;
        let kept = (0..self.slots.len())
            .filter(|&slot| is_idle(&self.slots[slot]))
            .filter_map(|slot| Some((slot, self.slots[slot].as_ref().filter(|c| fits(c))?)))
            .min_by_key(|(_, chunk)| chunk.bytes())
            .map(|(slot, _)| slot);
        let mut charge: Option<Charge> = None;
        for (slot, place) in self.slots.iter_mut().enumerate() {
            let goes = is_idle(place) && kept != Some(slot);
            let Some(chunk) = place.take_if(|_| goes) else {
                continue;
            };
            self.reserved_bytes -= chunk.bytes();
            match (&mut charge, chunk.into_charge()) {
                (Some(charge), Some(more)) => charge.join(more),
                (none, more) => *none = more,
            }
        }
        if let Some(kept) = kept {
            self.current = kept;
            return;
        }
        if let Some(charge) = &mut charge {
            // They were more than that, each way to come here.
            charge.shrink(charge.bytes().saturating_sub(bytes));
        }
        // Without memory for it there is no chunk, and the next step makes one.
        if let Ok(chunk) = Chunk::new(bytes, charge)
            && let Some(slot) = self.vacant()
        {
            self.hang_in(slot, chunk);
            self.changed = false;
        }
    }

    /// Gives back chunks that nothing is out of. Returns their bytes.
    pub(super) fn trim(&mut self) -> usize {
        let before = self.reserved_bytes;
        for slot in &mut self.slots {
            if let Some(chunk) = slot.take_if(|chunk| chunk.live() == 0) {
                self.reserved_bytes -= chunk.bytes();
            }
        }
        before - self.reserved_bytes
    }

    pub(super) fn stats(&self) -> Stats {
        let rooms: usize = self.all().map(Chunk::room).sum();
        let heads = (self.live + self.parked) * HEAD;
        let rest = rooms - self.live_bytes - heads;
        let untouched: usize = self.all().map(Chunk::untouched).sum();
        // Large gaps in front of allocations are untouched, too, and these may be in one.
        let unused_bytes = untouched.min(rest);
        Stats {
            requested_bytes: self.requested_bytes,
            live_bytes: self.live_bytes,
            cached_bytes: rest - unused_bytes,
            unused_bytes,
            metadata_bytes: self.reserved_bytes - rooms + heads,
            reserved_bytes: self.reserved_bytes,
        }
    }

    pub(super) fn live(&self) -> usize {
        self.live
    }
}
