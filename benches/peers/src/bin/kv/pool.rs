//! A pool of blocks with a prefix index, as people write it by hand.
//!
//! A `Vec` of free blocks, a `HashMap` from the hash of a prefix to its last block, a
//! `BTreeMap` of idle blocks by when they became idle, one `Mutex`. Whoever finds a hash
//! believes it: tokens are not compared.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard};

use crate::keeper::Keeper;
use crate::trace::BLOCK_TOKENS;

#[derive(Clone, Copy, Default)]
struct Block {
    uses: u32,
    /// Of the prefix that ends here; 0 while it is not registered.
    hash: u64,
    idle_since: u64,
}

struct Books {
    blocks: Vec<Block>,
    free: Vec<u32>,
    by_hash: HashMap<u64, u32>,
    idle: BTreeMap<u64, u32>,
    now: u64,
}

pub struct Pool(Mutex<Books>);

/// A sequence's table, and the hash of all of it.
#[derive(Default)]
pub struct Table {
    blocks: Vec<u32>,
    hash: u64,
}

impl Pool {
    pub fn new(blocks: usize) -> Self {
        let count = u32::try_from(blocks).expect("so many blocks");
        Self(Mutex::new(Books {
            blocks: vec![Block::default(); blocks],
            free: (0..count).rev().collect(),
            by_hash: HashMap::with_capacity(blocks),
            idle: BTreeMap::new(),
            now: 0,
        }))
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().expect("nobody panicked")
    }
}

fn chain(parent: u64, tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    parent.hash(&mut hasher);
    tokens.hash(&mut hasher);
    hasher.finish()
}

impl Books {
    fn find(&mut self, hash: u64) -> Option<u32> {
        let block = *self.by_hash.get(&hash)?;
        let record = &mut self.blocks[block as usize];
        if record.uses == 0 {
            self.idle.remove(&record.idle_since);
        }
        record.uses += 1;
        Some(block)
    }

    fn take(&mut self) -> u32 {
        let block = self.free.pop().unwrap_or_else(|| {
            let (_, block) = self.idle.pop_first().expect("a block that is idle");
            self.by_hash.remove(&self.blocks[block as usize].hash);
            block
        });
        self.blocks[block as usize] = Block {
            uses: 1,
            ..Block::default()
        };
        block
    }

    fn register(&mut self, block: u32, hash: u64) {
        self.blocks[block as usize].hash = hash;
        self.by_hash.insert(hash, block);
    }

    fn release(&mut self, table: &[u32]) {
        for &block in table.iter().rev() {
            let record = &mut self.blocks[block as usize];
            record.uses -= 1;
            if record.uses > 0 {
                continue;
            }
            if record.hash == 0 {
                self.free.push(block);
            } else {
                record.idle_since = self.now;
                self.idle.insert(self.now, block);
                self.now += 1;
            }
        }
    }
}

impl Keeper for Pool {
    type Sequence = Table;
    type Taken = Vec<u32>;

    fn visit(&self, _number: usize, tokens: &[u32]) -> usize {
        let mut table = Table::default();
        let mut chunks = tokens.chunks_exact(BLOCK_TOKENS).peekable();
        let mut books = self.books();
        while let Some(tokens) = chunks.peek() {
            let hash = chain(table.hash, tokens);
            let Some(block) = books.find(hash) else {
                break;
            };
            table.blocks.push(block);
            table.hash = hash;
            chunks.next();
        }
        let hits = table.blocks.len();
        for tokens in chunks {
            let block = books.take();
            table.hash = chain(table.hash, tokens);
            books.register(block, table.hash);
            table.blocks.push(block);
        }
        drop(books);
        self.books().release(&table.blocks);
        hits
    }

    fn forget(&self) {
        let mut books = self.books();
        books.by_hash.clear();
        while let Some((_, block)) = books.idle.pop_first() {
            books.free.push(block);
        }
    }

    fn take(&self, blocks: usize) -> Vec<u32> {
        let mut books = self.books();
        (0..blocks).map(|_| books.take()).collect()
    }

    fn give_back(&self, taken: Vec<u32>) {
        self.books().release(&taken);
    }

    fn begin(&self) -> Table {
        Table::default()
    }

    fn grow(&self, table: &mut Table, tokens: &[u32]) {
        let mut books = self.books();
        let block = books.take();
        table.hash = chain(table.hash, tokens);
        books.register(block, table.hash);
        table.blocks.push(block);
    }

    fn end(&self, table: Table) {
        self.books().release(&table.blocks);
    }
}
