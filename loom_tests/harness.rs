//! What every model needs: a run that counts, a gate, and canaries.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize as Plain, Ordering::SeqCst};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use tenslab::memory::{AllocError, Allocator, Block, Request};

/// Explores every interleaving of `body` up to the preemption bound.
///
/// Fails where there was only one: such a model saw nothing that threads share.
pub(crate) fn model(body: impl Fn() + Send + Sync + 'static) {
    let executions = std::sync::Arc::new(Plain::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    // Steps of one execution, the setting up included; loom's own limit is 1,000.
    builder.max_branches = 10_000;
    assert!(
        builder.max_permutations.is_none() && builder.max_duration.is_none(),
        "these limits end a model early and green"
    );
    builder.check({
        let executions = std::sync::Arc::clone(&executions);
        move || {
            executions.fetch_add(1, SeqCst);
            body();
        }
    });
    let executions = executions.load(SeqCst);
    println!("{executions} executions");
    assert!(executions > 1, "the model saw nothing that is shared");
}

/// Every thread of a model passes it first, the main one too.
///
/// loom drops interleavings of a thread whose first step is an atomic load
/// (tokio-rs/loom#166); an addition that all of them make brings those back.
pub(crate) struct Gate(AtomicUsize);

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    pub(crate) fn pass(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Stands for bytes: loom reports two accesses that nothing orders.
pub(crate) struct Canary(UnsafeCell<u32>);

impl Default for Canary {
    fn default() -> Self {
        Self::new()
    }
}

impl Canary {
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    pub(crate) fn read(&self) -> u32 {
        // SAFETY: a live cell; loom fails the model where somebody writes it meanwhile.
        self.0.with(|value| unsafe { *value })
    }

    pub(crate) fn write(&self, new: u32) {
        // SAFETY: a live cell; loom fails the model where somebody else is at it.
        self.0.with_mut(|value| unsafe { *value = new });
    }
}

/// An allocator of one block (and any number of empty ones), which tells what became
/// of it.
pub(crate) struct Lab {
    pub(crate) fate: Arc<Fate>,
    memory: NonNull<u8>,
}

/// What became of a [`Lab`] and its block, and canaries for two users of each.
pub(crate) struct Fate {
    /// Used through views of the block: over when the block is back.
    pub(crate) block: [Canary; 2],
    /// Used through buffers and handles: over when the allocator is destroyed.
    pub(crate) allocator: [Canary; 2],
    pub gate: Gate,
    released: Plain,
    destroyed: Plain,
    read_only: Plain,
}

const BYTES: usize = 64;

impl Fate {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            block: [Canary::new(), Canary::new()],
            allocator: [Canary::new(), Canary::new()],
            gate: Gate::new(),
            released: Plain::new(0),
            destroyed: Plain::new(0),
            read_only: Plain::new(0),
        })
    }

    /// How often the block was given back.
    pub(crate) fn released(&self) -> usize {
        self.released.load(SeqCst)
    }

    /// How often the allocator was destroyed.
    pub(crate) fn destroyed(&self) -> usize {
        self.destroyed.load(SeqCst)
    }
}

/// Touches both users' bytes as whoever has them alone.
fn claim(canaries: &[Canary; 2]) {
    for canary in canaries {
        canary.write(canary.read() + 1);
    }
}

impl Lab {
    pub(crate) fn new(fate: &Arc<Fate>) -> Self {
        let memory = NonNull::from(Box::leak(Box::new([0_u8; BYTES]))).cast();
        Self {
            fate: Arc::clone(fate),
            memory,
        }
    }
}

// SAFETY: `memory` is only handed on; the rest is loom's.
unsafe impl Send for Lab {}
// SAFETY: as above.
unsafe impl Sync for Lab {}

// SAFETY: one block of initialised bytes, handed out once by each model.
unsafe impl Allocator for Lab {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        assert!(request.bytes() <= BYTES && request.align() == 1);
        Ok(Block::new(
            self.memory,
            request.bytes(),
            BYTES,
            7,
            request.tag(),
        ))
    }

    unsafe fn release_block(&self, block: Block) {
        assert_eq!((block.as_ptr(), block.cookie()), (self.memory, 7));
        if !block.is_empty() {
            claim(&self.fate.block);
        }
        assert_eq!(
            self.fate.read_only.load(SeqCst),
            0,
            "the block is read-only"
        );
        self.fate.released.fetch_add(1, SeqCst);
    }

    unsafe fn protect(&self, block: &Block) -> usize {
        self.fate.read_only.store(1, SeqCst);
        block.capacity()
    }

    unsafe fn unprotect(&self, _block: &Block) -> bool {
        self.fate.read_only.store(0, SeqCst);
        true
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        claim(&self.fate.allocator);
        self.fate.destroyed.fetch_add(1, SeqCst);
        // SAFETY: leaked from a box of this type in `new`, and nobody has it any more.
        drop(unsafe { Box::from_raw(self.memory.cast::<[u8; BYTES]>().as_ptr()) });
    }
}
