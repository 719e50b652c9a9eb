//! The heap: who has which pages of one reservation. Books only; it never touches the pages.
//!
//! ```text
//!   pages    0                                                               the reservation
//!            | used | dirty | used | fresh | gone | dirty | used | virgin …            |
//!   pieces   |  a   |   b   |  c   |   d   |  e   |   f   |  g   |    h                |
//!   runs            |  b    |      | d     + e    + f     |      |    h                |
//! ```
//!
//! A **piece** is a stretch of neighbouring pages of which the same is known: somebody's, or
//! free and dirty, zero, given back, or never committed. A **run** is all the free pieces
//! between two that are used; it is what a request is carved from, always from its front, so
//! two free neighbours are one at the moment they meet, whatever their pages are like. Growing
//! is no case of its own: the rest of the reservation is one more piece at the end.
//!
//! Best fit: the shortest run that is long enough, of several the lowest ([`index`]). A page
//! costs memory only once it is committed, and the state of each is known exactly, so
//! fragments of addresses do not matter: what is free and in memory can always be given back,
//! and the same amount committed in one piece elsewhere.
//!
//! What a call commits or gives back outside the lock is **held** meanwhile: in nobody's hands
//! and in no run. All of this is plain code under the pool's lock, checked against a naive
//! model in `tests.rs`.

mod index;
mod pieces;
mod search;
#[cfg(all(test, not(loom)))]
mod tests;
mod warm;

use std::ops::Range;

use self::index::Index;
pub(super) use self::pieces::{Headers, NIL, State};
use self::pieces::{Piece, Pieces};
use self::warm::Warm;
use crate::memory::{AllocError, PageSource, Region};

/// Pieces that any one operation makes at the most.
const NEW_PIECES: u32 = 3;

/// Where a request could go: so many pages into a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fit {
    run: u32,
    skip: u32,
}

/// Pieces one after the other that a call has in its hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) first: u32,
    pub(super) last: u32,
}

/// Pages that became somebody's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) piece: u32,
    pub(super) start: u32,
    pub(super) pages: u32,
    /// All others of them are zero.
    pub(super) dirty: Range<u32>,
}

#[derive(Debug)]
pub(super) struct Heap {
    pieces: Pieces,
    index: Index,
    warm: Warm,
    /// Pages by the state of their piece.
    pages: [usize; State::COUNT],
    /// Pages that calls have in their hands.
    held_pages: usize,
    /// The time: pieces that become free note it.
    pub(super) clock: u32,
}

impl Heap {
    /// A heap of `pages` pages, none of them committed.
    pub(super) fn new<P: PageSource>(
        pages: u32,
        source: &P,
        headers: &Headers,
    ) -> Result<Self, AllocError> {
        let mut heap = Self {
            pieces: Pieces::new(),
            index: Index::new(),
            warm: Warm::new(),
            pages: [0; State::COUNT],
            held_pages: 0,
            clock: 0,
        };
        heap.prepare(source, headers)?;
        let all = heap.pieces.make(Piece::new(0, pages, State::Virgin));
        debug_assert_eq!(all, 0, "the walk over all pieces begins at 0");
        heap.pages[State::Virgin as usize] = pages as usize;
        heap.make_run(all, all, pages, None);
        Ok(heap)
    }

    /// Makes sure that the next operation finds the records it needs.
    pub(super) fn prepare<P: PageSource>(
        &mut self,
        source: &P,
        headers: &Headers,
    ) -> Result<(), AllocError> {
        self.pieces.ensure(NEW_PIECES, source, headers)
    }

    /// Pages in a state; those in the hands of calls included.
    pub(super) fn pages_in(&self, state: State) -> usize {
        self.pages[state as usize]
    }

    /// Pages that are committed and nobody's.
    pub(super) fn warm_pages(&self) -> usize {
        self.pages_in(State::Dirty) + self.pages_in(State::Fresh)
    }

    /// Is a part of the heap in the hands of a call?
    pub(super) fn is_held(&self) -> bool {
        self.held_pages > 0
    }

    /// Bytes of the records, and how many of them stand for something.
    pub(super) fn records(&self) -> (usize, u32) {
        (self.pieces.bytes(), self.pieces.len())
    }

    pub(super) fn take_regions(&mut self) -> impl Iterator<Item = Region> {
        self.pieces.take_regions()
    }

    /// How many of `pages` pages there are not committed.
    pub(super) fn cold_in(&self, fit: Fit, pages: u32) -> u32 {
        let (mut at, mut skip, mut left, mut cold) = (fit.run, fit.skip, pages, 0);
        while left > 0 {
            let piece = self.pieces.get(at);
            let here = piece.pages.saturating_sub(skip).min(left);
            if piece.state.is_cold() {
                cold += here;
            }
            left -= here;
            skip = skip.saturating_sub(piece.pages);
            at = piece.after;
        }
        cold
    }

    /// Pages of a segment that are not committed.
    pub(super) fn cold_pages(&self, segment: Segment) -> u32 {
        let mut cold = 0;
        let mut from = segment.first;
        while let Some(piece) = self.next_cold(segment, from) {
            cold += self.pieces.get(piece).pages;
            if piece == segment.last {
                break;
            }
            from = self.pieces.get(piece).after;
        }
        cold
    }

    /// How many pages follow there in the run, those asked for included.
    pub(super) fn room_in(&self, fit: Fit) -> u32 {
        self.pieces.get(fit.run).run_pages - fit.skip
    }

    /// Takes `pages` pages there out of the run, as they are, into the caller's hands.
    pub(super) fn hold(&mut self, fit: Fit, pages: u32) -> Segment {
        debug_assert!(pages > 0, "an empty piece would be left");
        let (run_pages, mut last_of_run) = {
            let head = self.pieces.get(fit.run);
            (head.run_pages, head.other_end)
        };
        let bin = self.take_out(fit.run);
        let (mut first, mut skip) = (fit.run, fit.skip);
        while skip >= self.pieces.get(first).pages {
            skip -= self.pieces.get(first).pages;
            first = self.pieces.get(first).after;
        }
        if skip > 0 {
            let back = self.split(first, skip);
            if first == last_of_run {
                last_of_run = back;
            }
            first = back;
        }
        let before = self.pieces.get(first).before;
        let (mut last, mut left) = (first, pages);
        loop {
            if left < self.pieces.get(last).pages {
                let back = self.split(last, left);
                if last == last_of_run {
                    last_of_run = back;
                }
            }
            if self.pieces.get(last).is_listed() {
                self.warm.remove(&mut self.pieces, last);
            }
            let piece = self.pieces.get_mut(last);
            piece.held = true;
            left -= piece.pages;
            if left == 0 {
                break;
            }
            last = piece.after;
        }
        self.held_pages += pages as usize;
        let rest = (last != last_of_run).then(|| self.pieces.get(last).after);
        if fit.skip > 0 {
            self.make_run(fit.run, before, fit.skip, bin);
            if let Some(rest) = rest {
                self.make_run(rest, last_of_run, run_pages - fit.skip - pages, None);
            }
        } else if let Some(rest) = rest {
            self.make_run(rest, last_of_run, run_pages - pages, bin);
        } else if let Some(bin) = bin {
            self.index.forget(bin);
        }
        Segment { first, last }
    }

    /// The first piece of a segment that has to be committed, from `from` on.
    pub(super) fn next_cold(&self, segment: Segment, from: u32) -> Option<u32> {
        let mut at = from;
        loop {
            let piece = self.pieces.get(at);
            if piece.state.is_cold() {
                return Some(at);
            }
            if at == segment.last {
                return None;
            }
            at = piece.after;
        }
    }

    /// The pages of a piece.
    pub(super) fn pages_of(&self, piece: u32) -> Range<u32> {
        let piece = self.pieces.get(piece);
        piece.start..piece.end()
    }

    pub(super) fn state_of(&self, piece: u32) -> State {
        self.pieces.get(piece).state
    }

    /// What is known of the pages of a piece in the caller's hands is something else now.
    pub(super) fn set_state(&mut self, piece: u32, state: State) {
        let piece = self.pieces.get_mut(piece);
        self.pages[piece.state as usize] -= piece.pages as usize;
        self.pages[state as usize] += piece.pages as usize;
        piece.state = state;
    }

    /// The first `pages` pages of a segment, all committed, become somebody's, as one piece;
    /// the rest is free again.
    pub(super) fn use_up(&mut self, segment: Segment, pages: u32) -> Taken {
        let (mut end, mut left) = (segment.first, pages);
        let start = self.pieces.get(segment.first).start;
        let mut last = segment.last;
        let mut dirty = start..start;
        loop {
            if left < self.pieces.get(end).pages {
                let back = self.split(end, left);
                if end == last {
                    last = back;
                }
            }
            let piece = self.pieces.get(end);
            debug_assert!(piece.held && piece.state.is_warm());
            if piece.state == State::Dirty {
                if dirty.is_empty() {
                    dirty.start = piece.start;
                }
                dirty.end = piece.end();
            }
            left -= piece.pages;
            let after = piece.after;
            self.set_state(end, State::Used);
            if end != segment.first {
                self.absorb(segment.first, end);
            }
            if left == 0 {
                let rest = after;
                self.held_pages -= pages as usize;
                self.pieces.get_mut(segment.first).held = false;
                if end != last {
                    self.put_back(Segment { first: rest, last });
                }
                return Taken {
                    piece: segment.first,
                    start,
                    pages,
                    dirty,
                };
            }
            end = after;
        }
    }

    /// A segment in the caller's hands is free again, as its pieces are now.
    pub(super) fn put_back(&mut self, segment: Segment) {
        let mut at = segment.first;
        loop {
            let piece = self.pieces.get_mut(at);
            debug_assert!(piece.held);
            piece.held = false;
            self.held_pages -= piece.pages as usize;
            if at == segment.last {
                break;
            }
            at = piece.after;
        }
        self.join(segment);
    }

    /// What somebody had is free again: dirty.
    pub(super) fn give_back(&mut self, piece: u32) {
        self.set_state(piece, State::Dirty);
        self.join(Segment {
            first: piece,
            last: piece,
        });
    }

    /// What somebody had is in the caller's hands: its pages are about to go.
    pub(super) fn give_back_held(&mut self, piece: u32) -> Segment {
        self.set_state(piece, State::Dirty);
        let record = self.pieces.get_mut(piece);
        (record.held, record.holes) = (true, false);
        self.held_pages += record.pages as usize;
        Segment {
            first: piece,
            last: piece,
        }
    }

    /// Notes that the owner of a piece has given pages of it back.
    pub(super) fn note_holes(&mut self, piece: u32) -> bool {
        !std::mem::replace(&mut self.pieces.get_mut(piece).holes, true)
    }

    /// Has the owner of a piece given pages of it back?
    pub(super) fn has_holes(&self, piece: u32) -> bool {
        self.pieces.get(piece).holes
    }

    /// Where `more` pages behind a piece that is somebody's would come from.
    pub(super) fn behind(&self, piece: u32, more: u32) -> Option<Fit> {
        let run = self.pieces.get(piece).after;
        if run == NIL || !self.pieces.get(run).is_free() {
            return None;
        }
        (self.pieces.get(run).run_pages >= more).then_some(Fit { run, skip: 0 })
    }

    /// A piece that is somebody's grows by the one behind it, which is the same one's.
    pub(super) fn append(&mut self, piece: u32, behind: u32) {
        debug_assert_eq!(self.pieces.get(piece).after, behind);
        self.absorb(piece, behind);
    }

    /// A run leaves the index. `Some`: it is the only one of that bin, and stays until another
    /// one takes its place ([`make_run`](Self::make_run)) or the bin is forgotten.
    fn take_out(&mut self, run: u32) -> Option<usize> {
        let bin = self.index.is_alone(&self.pieces, run);
        if bin.is_none() {
            self.index.remove(&mut self.pieces, run);
        }
        bin
    }

    /// Pieces become a run, in the place of the one that was taken out of `bin`, if one was.
    fn make_run(&mut self, first: u32, last: u32, pages: u32, bin: Option<usize>) {
        self.pieces.get_mut(last).other_end = first;
        let head = self.pieces.get_mut(first);
        (head.other_end, head.run_pages) = (last, pages);
        if let Some(bin) = bin {
            if self.index.rename(&mut self.pieces, bin, first) {
                return;
            }
            self.index.forget(bin);
        }
        self.index.insert(&mut self.pieces, first);
    }

    /// Cuts a piece `at` pages from its start. It keeps its number; the new one is behind it.
    fn split(&mut self, piece: u32, at: u32) -> u32 {
        let front = *self.pieces.get(piece);
        let mut back = Piece::new(front.start + at, front.pages - at, front.state);
        (back.before, back.after) = (piece, front.after);
        (back.tick, back.held) = (front.tick, front.held);
        let back = self.pieces.make(back);
        if front.after != NIL {
            self.pieces.get_mut(front.after).before = back;
        }
        let record = self.pieces.get_mut(piece);
        (record.pages, record.after) = (at, back);
        if front.is_listed() {
            self.warm.insert_after(&mut self.pieces, piece, back);
        }
        back
    }

    /// A piece takes in the one behind it, of which the same is known.
    fn absorb(&mut self, piece: u32, behind: u32) {
        let gone = *self.pieces.get(behind);
        let record = self.pieces.get_mut(piece);
        record.pages += gone.pages;
        record.after = gone.after;
        if gone.after != NIL {
            self.pieces.get_mut(gone.after).before = piece;
        }
        self.pieces.discard(behind);
    }

    /// Two warm pieces are about to be one, the first: it is as old as the longer of them. (Were it
    /// as young as the younger, what is taken and given back at the edge of a large old piece
    /// would keep it young for ever.)
    fn merge_ages(&mut self, piece: u32, behind: u32) {
        let (front, back) = (self.pieces.get(piece), self.pieces.get(behind));
        if back.pages > front.pages {
            let tick = back.tick;
            self.warm.remove(&mut self.pieces, piece);
            self.warm.insert_after(&mut self.pieces, behind, piece);
            self.pieces.get_mut(piece).tick = tick;
        }
        self.warm.remove(&mut self.pieces, behind);
    }

    /// Free pieces that are in no run become one, or a part of their neighbours'.
    fn join(&mut self, Segment { first, last }: Segment) {
        let clock = self.clock;
        let mut pages = 0;
        let mut at = first;
        loop {
            let piece = self.pieces.get_mut(at);
            pages += piece.pages;
            piece.tick = clock;
            let (after, warm) = (piece.after, piece.state.is_warm());
            if warm {
                self.warm.push(&mut self.pieces, at);
            }
            if at == last {
                break;
            }
            at = after;
        }
        let (mut head, mut tail) = (first, last);
        let (mut from, mut to) = (first, last);
        let mut bin = None;
        let before = self.pieces.get(first).before;
        if before != NIL && self.pieces.get(before).is_free() {
            head = self.pieces.get(before).other_end;
            bin = self.take_out(head);
            pages += self.pieces.get(head).run_pages;
            from = before;
        }
        let after = self.pieces.get(last).after;
        if after != NIL && self.pieces.get(after).is_free() {
            tail = self.pieces.get(after).other_end;
            if let Some(bin) = bin.take() {
                self.index.forget(bin);
            }
            bin = self.take_out(after);
            pages += self.pieces.get(after).run_pages;
            to = after;
        }
        while from != to {
            let behind = self.pieces.get(from).after;
            if self.pieces.get(from).state != self.pieces.get(behind).state {
                from = behind;
                continue;
            }
            if self.pieces.get(from).state.is_warm() {
                self.merge_ages(from, behind);
            }
            self.absorb(from, behind);
            if tail == behind {
                tail = from;
            }
            if to == behind {
                break;
            }
        }
        self.make_run(head, tail, pages, bin);
    }
}
