//! The blocks and who needs them: uses, the free order, the idle order.
//!
//! ```text
//!  chain      root ◀─ 3 ◀─ 0 ◀─ 4          each registered block knows its parent
//!  uses              1    1    2           4: two sequences end their shared part here
//!                    ▲    ▲                0: its child 4 is in use;  3: its child 0 is
//!  idle       oldest 7, 6, 5 newest        registered, uses 0: 7 was the leaf of 5 ◀─ 6 ◀─ 7
//!  free       2, 1, 8 …                    nobody's and not registered
//! ```
//!
//! **One rule.** A block is in use while a table has it as its own, while a table's shared
//! part ends with it, while a tensor or a pin holds it, or while a registered child of it
//! is in use. So whoever ends with a block holds its whole chain, by one count.
//!
//! A child becomes idle before its parent does, and a parent is in use while the child is.
//! So in the idle order every child is older than its parent, and the oldest one, which is
//! evicted next, has no child: a leaf.

use std::cell::Cell;

use crate::kv::block_tokens::BlockTokens;
use crate::kv::{KvError, Namespace};
use crate::mutant::{self, Mutant};

use super::index::Index;
use super::shadow::Shadow;
use super::table;

/// No block.
pub(super) const NONE: u32 = u32::MAX;

/// More uses than this take pins that were leaked by the billion: then the process ends, for
/// a count that wrapped would let a block be evicted that is read.
const MOST_USES: u32 = u32::MAX / 2;

/// What is known of one block: all that a visit needs, in one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(super) struct Record {
    /// See the module. 0: free or idle.
    pub(super) uses: u32,
    /// Tokens it is registered with; 0 while it is not.
    pub(super) filled: u32,
    /// The number of its chain up to here.
    pub(super) hash: u64,
    /// The block that it follows, or `NONE`.
    pub(super) parent: u32,
    /// The next one in its bucket of the index.
    pub(super) bucket_next: u32,
    /// The child that was registered last.
    pub(super) child: u32,
    /// Among the children of its parent: the one before it in time, and the one after it.
    pub(super) older_sibling: u32,
    pub(super) younger_sibling: u32,
    /// In the idle order, and (`newer` only) in the free order.
    pub(super) older: u32,
    pub(super) newer: u32,
    /// Its memory went back, and is to be committed before it is used.
    pub(super) cold: bool,
}

const _: () = assert!(size_of::<Record>() == 64);

const FRESH: Record = Record {
    uses: 0,
    filled: 0,
    hash: 0,
    parent: NONE,
    bucket_next: NONE,
    child: NONE,
    older_sibling: NONE,
    younger_sibling: NONE,
    older: NONE,
    newer: NONE,
    cold: false,
};

impl Record {
    pub(super) fn is_registered(&self) -> bool {
        self.filled > 0
    }
}

/// Blocks, the one to take next first. Linked through `newer`.
#[derive(Debug)]
pub(super) struct FreeOrder {
    pub(super) first: u32,
    pub(super) len: usize,
}

/// Registered blocks that nobody uses, oldest first.
#[derive(Debug)]
pub(super) struct IdleOrder {
    pub(super) oldest: u32,
    pub(super) newest: u32,
    pub(super) len: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Blocks {
    pub(super) records: Box<[Record]>,
    /// `block_tokens` for each block: those it is registered with, or is being filled with.
    tokens: Box<[u32]>,
    pub(super) block_tokens: BlockTokens,
    /// Of blocks without a parent.
    pub(super) namespaces: Box<[Namespace]>,
    pub(super) index: Index,
    pub(super) free: FreeOrder,
    /// Free, but their memory went back.
    pub(super) cold: FreeOrder,
    pub(super) idle: IdleOrder,
    /// Records that were looked at to find, register and forget blocks.
    touched: Cell<u64>,
    pub(super) shadow: Shadow,
}

impl Blocks {
    /// All free, to be taken in ascending order.
    pub(super) fn new(
        count: u32,
        block_tokens: BlockTokens,
        shadow: Shadow,
    ) -> Result<Self, KvError> {
        let len = count as usize;
        let tokens = len
            .checked_mul(block_tokens.count())
            .ok_or(KvError::Overflow {
                what: "the kv tokens",
            })?;
        let mut next = 0;
        let records = table(len, |_| {
            next += 1;
            let newer = if next < count { next } else { NONE };
            Record { newer, ..FRESH }
        })?;
        Ok(Self {
            records,
            tokens: table(tokens, |_| 0)?,
            block_tokens,
            namespaces: table(len, |_| Namespace::default())?,
            index: Index::new(len)?,
            free: FreeOrder { first: 0, len },
            cold: FreeOrder {
                first: NONE,
                len: 0,
            },
            idle: IdleOrder {
                oldest: NONE,
                newest: NONE,
                len: 0,
            },
            touched: Cell::new(0),
            shadow,
        })
    }

    #[inline]
    pub(super) fn record(&self, block: u32) -> &Record {
        &self.records[block as usize]
    }

    #[inline]
    pub(super) fn record_mut(&mut self, block: u32) -> &mut Record {
        &mut self.records[block as usize]
    }

    pub(super) fn total(&self) -> usize {
        self.records.len()
    }

    /// Blocks that can be had: free ones, and idle ones.
    pub(super) fn available(&self) -> usize {
        self.free.len + self.cold.len + self.idle.len
    }

    /// Counts records that were looked at.
    pub(super) fn touch(&self, records: u64) {
        self.touched.set(self.touched.get() + records);
    }

    pub(super) fn touched(&self) -> u64 {
        self.touched.get()
    }

    /// The tokens of a block: the first `filled` of them mean something.
    #[inline]
    pub(super) fn tokens(&self, block: u32) -> &[u32] {
        &self.tokens[block as usize * self.block_tokens.count()..][..self.block_tokens.count()]
    }

    #[inline]
    pub(super) fn tokens_mut(&mut self, block: u32) -> &mut [u32] {
        &mut self.tokens[block as usize * self.block_tokens.count()..][..self.block_tokens.count()]
    }

    /// The first `count` tokens of a block, once more for another.
    pub(super) fn copy_tokens(&mut self, from: u32, to: u32, count: usize) {
        let first = from as usize * self.block_tokens.count();
        let to = to as usize * self.block_tokens.count();
        self.tokens.copy_within(first..first + count, to);
    }

    /// One more use of a block that is registered, or in use already.
    pub(super) fn hold(&mut self, block: u32) {
        let mut block = block;
        loop {
            let record = self.record_mut(block);
            record.uses += 1;
            if record.uses > 1 {
                if record.uses > MOST_USES {
                    std::process::abort();
                }
                return;
            }
            debug_assert!(record.is_registered(), "block {block} was idle");
            let parent = record.parent;
            self.leave_idle(block);
            self.shadow.lend(block);
            if parent == NONE {
                return;
            }
            block = parent;
        }
    }

    /// One use less. What nobody uses any more becomes idle, the child before the parent;
    /// or free, in front of all others, if it is not registered.
    pub(super) fn release(&mut self, block: u32) {
        let mut block = block;
        loop {
            let record = self.record_mut(block);
            debug_assert!(record.uses > 0, "block {block} was in use");
            record.uses -= 1;
            if record.uses > 0 {
                return;
            }
            let (registered, parent) = (record.is_registered(), record.parent);
            self.shadow.take_back(block);
            if !registered {
                return self.give_back(block);
            }
            if mutant::is(Mutant::KvHeadFirst) {
                if parent != NONE {
                    self.release(parent);
                }
                return self.become_idle(block);
            }
            self.become_idle(block);
            if parent == NONE {
                return;
            }
            block = parent;
        }
    }

    /// A block for one user, the oldest idle one if none is free. `None` if there is neither.
    pub(super) fn take(&mut self, evicted: &mut u64) -> Option<u32> {
        let block = match self.pop_free() {
            Some(block) => block,
            None => {
                let block = self.evict_oldest()?;
                *evicted += 1;
                block
            }
        };
        self.lend_to_one(block);
        Some(block)
    }

    /// Free blocks whose memory is there, at most `wanted`, each for one user. Returns how many
    /// it `put`.
    pub(super) fn take_free(&mut self, wanted: usize, mut put: impl FnMut(usize, u32)) -> usize {
        let count = self.free.len.min(wanted);
        let mut next = self.free.first;
        for index in 0..count {
            let block = next;
            let record = &mut self.records[block as usize];
            next = std::mem::replace(&mut record.newer, NONE);
            record.uses = 1;
            self.shadow.lend(block);
            put(index, block);
        }
        self.free.first = next;
        self.free.len -= count;
        count
    }

    /// A free block whose memory is there, for one user.
    #[inline]
    pub(super) fn take_a_free_one(&mut self) -> Option<u32> {
        if self.free.len == 0 {
            return None;
        }
        let block = self.free.first;
        let record = &mut self.records[block as usize];
        self.free.first = std::mem::replace(&mut record.newer, NONE);
        record.uses = 1;
        self.free.len -= 1;
        self.shadow.lend(block);
        Some(block)
    }

    /// The first use of a block that is nobody's.
    pub(super) fn lend_to_one(&mut self, block: u32) {
        self.record_mut(block).uses = 1;
        self.shadow.lend(block);
    }

    /// A free block, one whose memory is there if possible.
    fn pop_free(&mut self) -> Option<u32> {
        let order = if self.free.len > 0 {
            &mut self.free
        } else {
            &mut self.cold
        };
        let block = order.first;
        let newer = self.records.get(block as usize)?.newer;
        order.first = newer;
        order.len -= 1;
        self.record_mut(block).newer = NONE;
        Some(block)
    }

    /// Forgets the oldest idle block, which is a leaf. It is nobody's then, not even free.
    pub(super) fn evict_oldest(&mut self) -> Option<u32> {
        let block = self.idle.oldest;
        if block == NONE {
            return None;
        }
        debug_assert_eq!(self.record(block).child, NONE, "block {block} is a leaf");
        self.leave_idle(block);
        self.unregister(block);
        Some(block)
    }

    /// Puts a block that is nobody's in front of the free order.
    pub(super) fn give_back(&mut self, block: u32) {
        let record = &mut self.records[block as usize];
        let order = if record.cold {
            &mut self.cold
        } else {
            &mut self.free
        };
        record.newer = order.first;
        order.first = block;
        order.len += 1;
    }

    /// Takes a free block whose memory is there out, for who gives its memory back.
    pub(super) fn take_warm(&mut self) -> Option<u32> {
        if self.free.len > 0 {
            return self.pop_free();
        }
        None
    }

    pub(super) fn become_idle(&mut self, block: u32) {
        let newest = self.idle.newest;
        let record = self.record_mut(block);
        record.older = newest;
        record.newer = NONE;
        match newest {
            NONE => self.idle.oldest = block,
            newest => self.record_mut(newest).newer = block,
        }
        self.idle.newest = block;
        self.idle.len += 1;
    }

    pub(super) fn leave_idle(&mut self, block: u32) {
        let record = self.record_mut(block);
        let (older, newer) = (record.older, record.newer);
        (record.older, record.newer) = (NONE, NONE);
        match older {
            NONE => self.idle.oldest = newer,
            older => self.record_mut(older).newer = newer,
        }
        match newer {
            NONE => self.idle.newest = older,
            newer => self.record_mut(newer).older = older,
        }
        self.idle.len -= 1;
    }
}
