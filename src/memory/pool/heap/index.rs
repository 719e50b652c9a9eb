//! The index: runs by their length, so that the best fit is found without a search.
//!
//! ```text
//!   bins     | 1 | 2 | … | 15 | 16-17 | 18-19 | … | 30-31 | 32-35 | …     pages
//!   each     a tree of runs by (pages, start), its links in the pieces
//!   a bit    for each bin that has one
//! ```
//!
//! The best fit is the shortest run that is long enough, of several the lowest: it is in the
//! first bin that can have it, or it is the first of the next bin that has any. A bin's tree is
//! a treap (Seidel and Aragon 1996): ordered by key, and a heap by numbers as good as random,
//! here a hash of the piece; so a tree of n runs is about 2 log2 n deep, whatever the order in
//! which they came, and the same runs make the same tree. Nothing here needs memory.

use super::pieces::{NIL, Pieces};

/// Lengths up to here have a bin each.
const EXACT: u32 = 16;

/// Bins for each doubling above.
const PER_DOUBLING_LOG2: u32 = 3;

const BINS: usize = EXACT as usize + ((u32::BITS - EXACT.ilog2()) << PER_DOUBLING_LOG2) as usize;

const WORDS: usize = BINS.div_ceil(64);

fn bin_of(pages: u32) -> usize {
    if pages < EXACT {
        return pages as usize;
    }
    let doubling = pages.ilog2();
    let part = (pages >> (doubling - PER_DOUBLING_LOG2)) & ((1 << PER_DOUBLING_LOG2) - 1);
    (EXACT + ((doubling - EXACT.ilog2()) << PER_DOUBLING_LOG2) + part) as usize
}

/// Where a link of a tree is.
#[derive(Debug, Clone, Copy)]
enum Link {
    Root(usize),
    Smaller(u32),
    Larger(u32),
}

type Key = (u32, u32);

#[derive(Debug)]
pub(super) struct Index {
    roots: [u32; BINS],
    some: [u64; WORDS],
}

fn key(pieces: &Pieces, run: u32) -> Key {
    let head = pieces.get(run);
    (head.run_pages, head.start)
}

/// As good as random, and always the same.
fn rank(run: u32) -> u32 {
    let mixed = (run ^ (run >> 16)).wrapping_mul(0x7feb_352d);
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x846c_a68b);
    mixed ^ (mixed >> 16)
}

impl Index {
    pub(super) fn new() -> Self {
        Self {
            roots: [NIL; BINS],
            some: [0; WORDS],
        }
    }

    fn follow(&self, pieces: &Pieces, link: Link) -> u32 {
        match link {
            Link::Root(bin) => self.roots[bin],
            Link::Smaller(run) => pieces.get(run).smaller,
            Link::Larger(run) => pieces.get(run).larger,
        }
    }

    fn set(&mut self, pieces: &mut Pieces, link: Link, to: u32) {
        match link {
            Link::Root(bin) => self.roots[bin] = to,
            Link::Smaller(run) => pieces.get_mut(run).smaller = to,
            Link::Larger(run) => pieces.get_mut(run).larger = to,
        }
    }

    /// A run comes in: its first piece, which knows how long it is.
    pub(super) fn insert(&mut self, pieces: &mut Pieces, run: u32) {
        let new = key(pieces, run);
        let bin = bin_of(new.0);
        self.some[bin / 64] |= 1 << (bin % 64);
        // Down to the first that ranks lower: the new one goes there.
        let mut link = Link::Root(bin);
        let mut below = self.roots[bin];
        while below != NIL && rank(below) >= rank(run) {
            link = if key(pieces, below) < new {
                Link::Larger(below)
            } else {
                Link::Smaller(below)
            };
            below = self.follow(pieces, link);
        }
        self.set(pieces, link, run);
        // What was there is split: what is smaller on one side, what is larger on the other.
        let (mut smaller, mut larger) = (Link::Smaller(run), Link::Larger(run));
        while below != NIL {
            if key(pieces, below) < new {
                self.set(pieces, smaller, below);
                smaller = Link::Larger(below);
                below = pieces.get(below).larger;
            } else {
                self.set(pieces, larger, below);
                larger = Link::Smaller(below);
                below = pieces.get(below).smaller;
            }
        }
        self.set(pieces, smaller, NIL);
        self.set(pieces, larger, NIL);
    }

    /// A run goes. It is in, and as long as when it came in.
    pub(super) fn remove(&mut self, pieces: &mut Pieces, run: u32) {
        let wanted = key(pieces, run);
        let bin = bin_of(wanted.0);
        let mut link = Link::Root(bin);
        loop {
            let at = self.follow(pieces, link);
            assert!(at != NIL, "a run that is not in the index");
            if at == run {
                break;
            }
            link = if key(pieces, at) < wanted {
                Link::Larger(at)
            } else {
                Link::Smaller(at)
            };
        }
        // Its two sides become one, the higher rank above.
        let gone = pieces.get(run);
        let (mut left, mut right) = (gone.smaller, gone.larger);
        while left != NIL && right != NIL {
            if rank(left) >= rank(right) {
                self.set(pieces, link, left);
                link = Link::Larger(left);
                left = pieces.get(left).larger;
            } else {
                self.set(pieces, link, right);
                link = Link::Smaller(right);
                right = pieces.get(right).smaller;
            }
        }
        self.set(pieces, link, if left == NIL { right } else { left });
        if self.roots[bin] == NIL {
            self.forget(bin);
        }
    }

    /// The only run of a bin goes, which may be changed already.
    pub(super) fn forget(&mut self, bin: usize) {
        self.roots[bin] = NIL;
        self.some[bin / 64] &= !(1 << (bin % 64));
    }

    /// Is a run that is in the only one of its bin, so that it may become another of that bin
    /// by [`rename`](Self::rename)? Mostly the one at the end of the heap is.
    pub(super) fn is_alone(&self, pieces: &Pieces, run: u32) -> Option<usize> {
        let head = pieces.get(run);
        let bin = bin_of(head.run_pages);
        let alone = self.roots[bin] == run && head.smaller == NIL && head.larger == NIL;
        alone.then_some(bin)
    }

    /// The only run of a bin is `run` now. `false`: that is not of this bin, and nothing is changed.
    pub(super) fn rename(&mut self, pieces: &mut Pieces, bin: usize, run: u32) -> bool {
        let head = pieces.get_mut(run);
        if bin_of(head.run_pages) != bin {
            return false;
        }
        (head.smaller, head.larger) = (NIL, NIL);
        self.roots[bin] = run;
        true
    }

    /// The first bin from `bin` on that has a run.
    fn next_bin(&self, bin: usize) -> Option<usize> {
        let mut word = bin / 64;
        let mut bits = self.some.get(word)? & (u64::MAX << (bin % 64));
        while bits == 0 {
            word += 1;
            bits = *self.some.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    /// The first run in the index that is not before `from`.
    pub(super) fn at_or_after(&self, pieces: &Pieces, from: Key) -> Option<u32> {
        let mut bin = bin_of(from.0);
        loop {
            bin = self.next_bin(bin)?;
            let mut found = None;
            let mut at = self.roots[bin];
            while at != NIL {
                if key(pieces, at) < from {
                    at = pieces.get(at).larger;
                } else {
                    found = Some(at);
                    at = pieces.get(at).smaller;
                }
            }
            if found.is_some() {
                return found;
            }
            bin += 1;
        }
    }

    /// The length of the longest run, 0 where there is none.
    pub(super) fn longest(&self, pieces: &Pieces) -> u32 {
        let Some(word) = (0..WORDS).rev().find(|&word| self.some[word] != 0) else {
            return 0;
        };
        let bin = word * 64 + self.some[word].ilog2() as usize;
        let mut at = self.roots[bin];
        let mut longest = 0;
        while at != NIL {
            longest = pieces.get(at).run_pages;
            at = pieces.get(at).larger;
        }
        longest
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bins_are_in_order_and_all_are_reached() {
        let mut last = 0;
        for pages in (1..100_000).chain((17..32).flat_map(|log2| {
            let first = 1_u32 << log2;
            [first - 1, first, first + (first >> 1), first | (first - 1)]
        })) {
            let bin = bin_of(pages);
            assert!(bin < BINS, "{pages} pages");
            if pages < 100_000 {
                assert!(bin == last || bin == last + 1, "{pages} pages");
                last = bin;
            }
        }
        assert_eq!(bin_of(u32::MAX), BINS - 1);
        assert_eq!(
            (bin_of(15), bin_of(16), bin_of(17), bin_of(18)),
            (15, 16, 16, 17)
        );
    }
}
