//! The heap against a model that knows one thing: the state of each page.
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::memory::HeapPages;

const PAGES: u32 = 200;

/// A page of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Page {
    Free(State),
    /// Whose: the number of the piece.
    Used(u32),
    Held(State),
}

/// The heap and the model of it.
struct Pair {
    heap: Heap,
    headers: Headers,
    model: Vec<Page>,
    out: Vec<Taken>,
    held: Vec<Segment>,
}

#[derive(Debug, Clone)]
enum Op {
    Take {
        pages: u32,
        align: u32,
        phase: u32,
        extra: u32,
    },
    /// The commit is refused: all goes back as it was.
    Refused {
        pages: u32,
    },
    GiveBack(usize),
    Grow {
        which: usize,
        more: u32,
    },
    /// Takes some of the oldest warm pages out of the index.
    Hold {
        most: u32,
        young: bool,
    },
    /// They went, or they could not go, and come back.
    Settle {
        which: usize,
        gone: bool,
    },
    Tick,
}

fn op() -> impl Strategy<Value = Op> {
    let align = prop_oneof![4 => Just(0_u32), 1 => 1_u32..5];
    prop_oneof![
        6 => (1_u32..40, align, 0_u32..32, 0_u32..8).prop_map(|(pages, align, phase, extra)| {
            Op::Take { pages, align: 1 << align, phase, extra }
        }),
        1 => (1_u32..40).prop_map(|pages| Op::Refused { pages }),
        6 => any::<usize>().prop_map(Op::GiveBack),
        1 => (any::<usize>(), 1_u32..20).prop_map(|(which, more)| Op::Grow { which, more }),
        2 => (1_u32..30, any::<bool>()).prop_map(|(most, young)| Op::Hold { most, young }),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(which, gone)| Op::Settle { which, gone }),
        1 => Just(Op::Tick),
    ]
}

impl Pair {
    fn new() -> Self {
        let headers = Headers::new();
        let heap = Heap::new(PAGES, &HeapPages, &headers).unwrap();
        Self {
            heap,
            headers,
            model: vec![Page::Free(State::Virgin); PAGES as usize],
            out: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Maximal stretches of free pages: where, and how long.
    fn runs(&self) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for (at, page) in (0..).zip(&self.model) {
            match (page, runs.last_mut()) {
                (Page::Free(_), Some((start, len))) if *start + *len == at => *len += 1,
                (Page::Free(_), _) => runs.push((at, 1)),
                _ => {}
            }
        }
        runs
    }

    /// The best fit, by looking at all.
    fn best(&self, pages: u32, align: u32, phase: u32) -> Option<u32> {
        let fits = self.runs().into_iter().filter_map(|(start, len)| {
            let skip = (0..align).find(|skip| (start + skip).abs_diff(phase) % align == 0)?;
            (skip + pages <= len).then_some((len, start, start + skip))
        });
        fits.min().map(|(_, _, at)| at)
    }

    fn states(&self, range: Range<u32>) -> impl Iterator<Item = State> {
        self.model[range.start as usize..range.end as usize]
            .iter()
            .map(|page| match page {
                Page::Free(state) | Page::Held(state) => *state,
                Page::Used(_) => State::Used,
            })
    }

    fn paint(&mut self, range: Range<u32>, with: impl Fn(State) -> Page) {
        for page in &mut self.model[range.start as usize..range.end as usize] {
            let state = match page {
                Page::Free(state) | Page::Held(state) => *state,
                Page::Used(_) => State::Used,
            };
            *page = with(state);
        }
    }

    /// The pages of a segment, and that they are what the model says.
    fn pages_of(&self, segment: Segment) -> Range<u32> {
        self.heap.pages_of(segment.first).start..self.heap.pages_of(segment.last).end
    }

    fn take(&mut self, pages: u32, align: u32, phase: u32, extra: u32) {
        let wanted = self.best(pages, align, phase);
        let Some(fit) = self.heap.find(pages, align, phase) else {
            assert_eq!(wanted, None, "{pages} pages were not found");
            return;
        };
        let extra = extra.min(self.heap.room_in(fit) - pages);
        let cold = self.heap.cold_in(fit, pages);
        let segment = self.heap.hold(fit, pages + extra);
        let range = self.pages_of(segment);
        assert_eq!(Some(range.start), wanted, "not the best fit");
        assert_eq!(range.len(), (pages + extra) as usize);
        let ours = range.start..range.start + pages;
        let colds = self.states(ours.clone()).filter(|state| state.is_cold());
        assert_eq!(colds.count(), cold as usize);
        let dirty = |state: &State| *state == State::Dirty;
        let first_dirty = self.states(ours.clone()).position(|state| dirty(&state));
        let last_dirty = self.states(ours.clone()).collect::<Vec<_>>();
        let last_dirty = last_dirty.iter().rposition(dirty);
        let mut next = segment.first;
        while let Some(cold) = self.heap.next_cold(segment, next) {
            let range = self.heap.pages_of(cold);
            assert!(self.states(range.clone()).all(State::is_cold));
            self.heap.set_state(cold, State::Fresh);
            self.paint(range, |_| Page::Held(State::Fresh));
            next = cold;
        }
        let taken = self.heap.use_up(segment, pages);
        assert_eq!((taken.start, taken.pages), (ours.start, pages));
        match (first_dirty, last_dirty) {
            (Some(first), Some(last)) => {
                assert_eq!(taken.dirty.start as usize, ours.start as usize + first);
                assert_eq!(taken.dirty.end as usize, ours.start as usize + last + 1);
            }
            _ => assert!(taken.dirty.is_empty()),
        }
        self.paint(range, Page::Free);
        self.paint(ours, |_| Page::Used(taken.piece));
        self.out.push(taken);
    }

    fn grow(&mut self, which: usize, more: u32) {
        let Some(which) = which.checked_rem(self.out.len()) else {
            return;
        };
        let (piece, end) = {
            let taken = &self.out[which];
            (taken.piece, taken.start + taken.pages)
        };
        let room = self.model[end as usize..].iter();
        let room = room
            .take_while(|page| matches!(page, Page::Free(_)))
            .count();
        let Some(fit) = self.heap.behind(piece, more) else {
            assert!(room < more as usize);
            return;
        };
        assert!(room >= more as usize);
        let segment = self.heap.hold(fit, more);
        let mut next = segment.first;
        while let Some(cold) = self.heap.next_cold(segment, next) {
            self.heap.set_state(cold, State::Dirty);
            next = cold;
        }
        let behind = self.heap.use_up(segment, more);
        self.heap.append(piece, behind.piece);
        self.paint(end..end + more, |_| Page::Used(piece));
        self.out[which].pages += more;
    }

    fn run(&mut self, op: &Op) {
        self.heap.prepare(&HeapPages, &self.headers).unwrap();
        match *op {
            Op::Take {
                pages,
                align,
                phase,
                extra,
            } => self.take(pages, align, phase, extra),
            Op::Refused { pages } => {
                if let Some(fit) = self.heap.find(pages, 1, 0) {
                    let segment = self.heap.hold(fit, pages);
                    assert!(self.heap.is_held());
                    self.heap.put_back(segment);
                }
            }
            Op::GiveBack(which) => {
                if let Some(which) = which.checked_rem(self.out.len()) {
                    let taken = self.out.swap_remove(which);
                    self.heap.give_back(taken.piece);
                    let range = taken.start..taken.start + taken.pages;
                    self.paint(range, |_| Page::Free(State::Dirty));
                }
            }
            Op::Grow { which, more } => self.grow(which, more),
            Op::Hold { most, young } => {
                let before = (!young).then_some(self.heap.clock);
                if let Some(segment) = self.heap.hold_oldest(most, before) {
                    assert_eq!(segment.first, segment.last);
                    let range = self.pages_of(segment);
                    assert!(range.len() <= most as usize);
                    assert!(self.states(range.clone()).all(State::is_warm));
                    self.paint(range, Page::Held);
                    self.held.push(segment);
                } else if young {
                    let warm = |page: &Page| matches!(page, Page::Free(state) if state.is_warm());
                    assert!(!self.model.iter().any(warm), "warm pages were not found");
                }
            }
            Op::Settle { which, gone } => {
                if let Some(which) = which.checked_rem(self.held.len()) {
                    let segment = self.held.swap_remove(which);
                    let range = self.pages_of(segment);
                    if gone {
                        self.heap.set_state(segment.first, State::Gone);
                        self.paint(range.clone(), |_| Page::Held(State::Gone));
                    }
                    self.heap.put_back(segment);
                    self.paint(range, Page::Free);
                }
            }
            Op::Tick => self.heap.clock = self.heap.clock.wrapping_add(1),
        }
        self.check();
    }

    /// Everything that can be known of the heap is what the model says.
    fn check(&self) {
        let heap = &self.heap;
        let mut counts = [0_usize; State::COUNT];
        let (mut at, mut id, mut before) = (0, 0, NIL);
        let mut warm = 0;
        while id != NIL {
            let piece = heap.pieces.get(id);
            assert_eq!((piece.start, piece.before), (at, before));
            for page in &self.model[at as usize..piece.end() as usize] {
                match page {
                    Page::Used(whose) => {
                        assert_eq!((*whose, piece.state), (id, State::Used));
                        assert!(!piece.held);
                    }
                    Page::Free(state) => assert_eq!((*state, false), (piece.state, piece.held)),
                    Page::Held(state) => assert_eq!((*state, true), (piece.state, piece.held)),
                }
            }
            if before != NIL && piece.is_free() && heap.pieces.get(before).is_free() {
                assert_ne!(heap.pieces.get(before).state, piece.state, "not merged");
            }
            counts[piece.state as usize] += piece.pages as usize;
            warm += usize::from(piece.is_listed());
            (at, before, id) = (piece.end(), id, piece.after);
        }
        assert_eq!(at, PAGES, "a page was lost");
        assert_eq!(counts, heap.pages);
        let held = |page: &&Page| matches!(page, Page::Held(_));
        assert_eq!(self.model.iter().filter(held).count(), heap.held_pages);

        // The index has the runs, each once, in order.
        let runs: BTreeMap<(u32, u32), ()> = self
            .runs()
            .into_iter()
            .map(|(start, len)| ((len, start), ()))
            .collect();
        let mut from = (0, 0);
        let mut indexed = Vec::new();
        while let Some(run) = heap.index.at_or_after(&heap.pieces, from) {
            let head = heap.pieces.get(run);
            indexed.push((head.run_pages, head.start));
            assert_eq!(heap.pieces.get(head.other_end).other_end, run);
            from = (head.run_pages, head.start + 1);
        }
        assert_eq!(indexed, runs.keys().copied().collect::<Vec<_>>());
        let longest = runs.keys().next_back().map_or(0, |&(len, _)| len);
        assert_eq!(heap.longest_run(), longest, "the longest run is not honest");

        // The list has the warm pieces, the oldest first.
        let (mut listed, mut last) = (0, None);
        let mut next = heap.warm.oldest();
        while let Some(id) = next {
            let piece = heap.pieces.get(id);
            assert!(piece.is_listed());
            assert!(last.is_none_or(|last| last <= piece.tick), "not by age");
            last = Some(piece.tick);
            listed += 1;
            next = (piece.newer != NIL).then_some(piece.newer);
        }
        assert_eq!(listed, warm);

        let len = heap.longest_warm();
        let mut naive = 0;
        let mut row = 0;
        for page in &self.model {
            row = if matches!(page, Page::Free(state) if state.is_warm()) {
                row + 1
            } else {
                0
            };
            naive = naive.max(row);
        }
        assert_eq!(len, naive);
        if len > 0 {
            let fit = heap.find_warm(len, 1, 0).unwrap();
            assert_eq!(heap.cold_in(fit, len), 0);
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for region in self.heap.take_regions() {
            // SAFETY: from this source, once, and the heap makes no piece any more.
            unsafe { HeapPages.release(region) };
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_heap_is_what_a_map_of_its_pages_says(ops in proptest::collection::vec(op(), 1..200)) {
        let mut pair = Pair::new();
        for op in &ops {
            pair.run(op);
        }
    }
}

/// Takes blocks of so many pages, from the beginning on.
fn side_by_side(pages: &[u32]) -> Pair {
    let mut pair = Pair::new();
    for &pages in pages {
        pair.run(&Op::Take {
            pages,
            align: 1,
            phase: 0,
            extra: 0,
        });
    }
    pair
}

/// Gives back the block that begins at a page.
fn give_back(pair: &mut Pair, start: u32) {
    let which = pair.out.iter().position(|taken| taken.start == start);
    pair.run(&Op::GiveBack(which.unwrap()));
}

#[test]
fn what_came_back_last_is_trimmed_last() {
    let mut pair = side_by_side(&[10, 10, 10, 10]);
    give_back(&mut pair, 0);
    pair.run(&Op::Tick);
    give_back(&mut pair, 20);
    pair.run(&Op::Tick);
    // Of what is old there is one, and of what is older nothing.
    let old = pair.heap.hold_oldest(100, Some(1)).unwrap();
    assert_eq!(pair.heap.pages_of(old.first), 0..10);
    assert!(pair.heap.hold_oldest(100, Some(1)).is_none());
    pair.heap.put_back(old);
}

#[test]
fn neighbours_are_as_old_as_the_longer_of_them() {
    // At the edge of a long old piece a short one comes and goes: it stays old.
    let mut pair = side_by_side(&[50, 5, 10]);
    give_back(&mut pair, 0);
    pair.run(&Op::Tick);
    give_back(&mut pair, 50);
    let old = pair.heap.hold_oldest(100, Some(1)).unwrap();
    assert_eq!(pair.heap.pages_of(old.first), 0..55);
    pair.heap.put_back(old);
    // And the other way around: a long young one in front makes a short old one young.
    let mut pair = side_by_side(&[50, 5, 10]);
    give_back(&mut pair, 50);
    pair.run(&Op::Tick);
    give_back(&mut pair, 0);
    assert!(pair.heap.hold_oldest(100, Some(1)).is_none());
}
