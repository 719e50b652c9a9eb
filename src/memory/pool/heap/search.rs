//! Where something is in the heap: the best fit, what is in memory, what is the oldest. Nothing is
//! changed here, but that the oldest pages go into the caller's hands.

use std::ops::Range;

use super::{Fit, Heap, NIL, Segment, State};

impl Heap {
    /// The length of the longest run.
    pub(in super::super) fn longest_run(&self) -> u32 {
        self.index.longest(&self.pieces)
    }

    /// Each stretch of committed pages in a run: where it is, its first page, its length.
    fn warm_stretches(&self) -> impl Iterator<Item = (Fit, u32, u32)> {
        let mut at = 0;
        let (mut run, mut skip) = (NIL, 0);
        std::iter::from_fn(move || {
            let mut found: Option<(Fit, u32, u32)> = None;
            while at != NIL {
                let piece = self.pieces.get(at);
                if !piece.is_free() {
                    run = NIL;
                } else {
                    if run == NIL {
                        (run, skip) = (at, 0);
                    }
                    if !piece.state.is_cold() {
                        let new = (Fit { run, skip }, piece.start, 0);
                        found.get_or_insert(new).2 += piece.pages;
                    }
                    skip += piece.pages;
                }
                at = piece.after;
                if !piece.is_listed() && found.is_some() {
                    break;
                }
            }
            found
        })
    }

    /// The longest stretch of committed pages that is free: what can be had where nothing more
    /// can be committed. Looks at every piece.
    pub(in super::super) fn longest_warm(&self) -> u32 {
        let lengths = self.warm_stretches().map(|(_, _, pages)| pages);
        lengths.max().unwrap_or(0)
    }

    /// As [`find`](Self::find), of pages that are all committed, and the first place that
    /// will do. Looks at every piece.
    pub(in super::super) fn find_warm(&self, pages: u32, align: u32, phase: u32) -> Option<Fit> {
        self.warm_stretches().find_map(|(fit, start, len)| {
            let skip = phase.wrapping_sub(start) & (align - 1);
            let fits = skip.checked_add(pages)? <= len;
            fits.then_some(Fit {
                skip: fit.skip + skip,
                ..fit
            })
        })
    }

    /// The best fit for `pages` pages whose first has a number that, less `phase`, is a multiple
    /// of `align` (both in pages, `align` a power of two). Where `align` is 1 this is one look
    /// into the index, else a walk over the runs that are long enough but begin badly.
    pub(in super::super) fn find(&self, pages: u32, align: u32, phase: u32) -> Option<Fit> {
        let mut from = (pages, 0);
        loop {
            let run = self.index.at_or_after(&self.pieces, from)?;
            let head = self.pieces.get(run);
            let skip = phase.wrapping_sub(head.start) & (align - 1);
            if skip <= head.run_pages - pages {
                return Some(Fit { run, skip });
            }
            from = (head.run_pages, head.start.checked_add(1)?);
        }
    }

    /// Every piece: its pages, what is known of them, and whether a call has it in its hands.
    pub(in super::super) fn walk(&self) -> impl Iterator<Item = (Range<u32>, State)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            if at == NIL {
                return None;
            }
            let piece = self.pieces.get(at);
            at = piece.after;
            Some((piece.start..piece.end(), piece.state))
        })
    }

    /// Pages that were warm the longest, at most `most` of them and all of one piece, in the
    /// caller's hands. `None` where there are none that became free before `before`.
    pub(in super::super) fn hold_oldest(
        &mut self,
        most: u32,
        before: Option<u32>,
    ) -> Option<Segment> {
        let oldest = self.warm.oldest()?;
        let piece = *self.pieces.get(oldest);
        // The clock wraps; what is older than half its range looks young, and goes later.
        if before.is_some_and(|before| before.wrapping_sub(piece.tick).cast_signed() <= 0) {
            return None;
        }
        let (mut run, mut skip) = (oldest, 0);
        loop {
            let before = self.pieces.get(run).before;
            if before == NIL || !self.pieces.get(before).is_free() {
                break;
            }
            run = before;
            skip += self.pieces.get(run).pages;
        }
        // Its end goes first: requests come from the front.
        let pages = piece.pages.min(most);
        skip += piece.pages - pages;
        Some(self.hold(Fit { run, skip }, pages))
    }
}
