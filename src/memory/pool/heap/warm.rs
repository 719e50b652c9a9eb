//! Warm pieces, the oldest first: the order in which they are given back.

use super::pieces::{NIL, Pieces};

/// A list through the pieces.
#[derive(Debug)]
pub(super) struct Warm {
    oldest: u32,
    newest: u32,
}

impl Warm {
    pub(super) fn new() -> Self {
        Self {
            oldest: NIL,
            newest: NIL,
        }
    }

    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NIL).then_some(self.oldest)
    }

    /// A piece that became free comes in as the newest.
    pub(super) fn push(&mut self, pieces: &mut Pieces, piece: u32) {
        let older = self.newest;
        self.link(pieces, older, piece, NIL);
    }

    /// A piece comes in right after one that is in.
    pub(super) fn insert_after(&mut self, pieces: &mut Pieces, older: u32, piece: u32) {
        let newer = pieces.get(older).newer;
        self.link(pieces, older, piece, newer);
    }

    fn link(&mut self, pieces: &mut Pieces, older: u32, piece: u32, newer: u32) {
        let record = pieces.get_mut(piece);
        (record.older, record.newer) = (older, newer);
        self.join(pieces, older, piece);
        self.join(pieces, piece, newer);
    }

    /// A piece that is in goes.
    pub(super) fn remove(&mut self, pieces: &mut Pieces, piece: u32) {
        let record = pieces.get(piece);
        let (older, newer) = (record.older, record.newer);
        self.join(pieces, older, newer);
    }

    /// Makes two neighbours, or one of them an end.
    fn join(&mut self, pieces: &mut Pieces, older: u32, newer: u32) {
        if older == NIL {
            self.oldest = newer;
        } else {
            pieces.get_mut(older).newer = newer;
        }
        if newer == NIL {
            self.newest = older;
        } else {
            pieces.get_mut(newer).older = older;
        }
    }
}
