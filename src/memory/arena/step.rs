//! What a step came to, and why it cannot end.

use std::fmt;

use serde::Serialize;

use crate::memory::Tag;

/// Steps that a peak is remembered for at first, at the least; twice as many at the most.
const WINDOW: u64 = if cfg!(loom) { 1 } else { 8 };

/// As [`WINDOW`], where that was too short again and again.
const LONGEST: u64 = 32;

/// What a step came to. Bytes, but where it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StepStats {
    /// Which one: 0, 1, 2, …
    pub step: u64,
    /// Allocations that were made in it. Those of zero bytes are not counted.
    pub allocations: u64,
    /// Room that it took: what one chunk needs to serve it alone. Heads and alignment are in.
    pub peak_bytes: usize,
    /// What the arena keeps of the global allocator's, after it ended.
    pub retained_bytes: usize,
    /// Of those, in chunks that are parked: somebody still has a part of them.
    pub parked_bytes: usize,
    /// Allocations that keep them parked, of this step or of one before.
    pub parked_allocations: usize,
}

/// A step that cannot end. `Copy`: making one allocates nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// Somebody still has allocations of it.
    #[error(
        "step {step} cannot end: {allocations} of its allocations are still out ({by_tag}); \
         drop them, or retire the step"
    )]
    Live {
        /// Which step.
        step: u64,
        /// Allocations that are out: tensors, storages and buffers, however many views they
        /// have.
        allocations: usize,
        /// On whose behalf.
        by_tag: ByTag,
    },
}

/// A number of allocations for each [`Tag`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByTag(pub(super) [usize; Tag::ALL.len()]);

impl std::ops::Index<Tag> for ByTag {
    type Output = usize;

    fn index(&self, tag: Tag) -> &usize {
        &self.0[tag as usize]
    }
}

/// `2 activations, 1 scratch`: tags that have none are left out.
impl fmt::Display for ByTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for tag in Tag::ALL {
            if self[tag] > 0 {
                write!(f, "{between}{} {tag}", self[tag])?;
                between = ", ";
            }
        }
        Ok(())
    }
}

/// The largest of the last steps. Of twice as many each time that to go by them was wrong: memory
/// that went back and is wanted again soon has to come anew and be cleared, which costs more than
/// all else in an arena.
#[derive(Debug)]
pub(super) struct Window {
    /// Steps that it takes until `recent` is `before`.
    len: u64,
    /// Steps since that happened.
    age: u64,
    recent: usize,
    before: usize,
    /// Steps since memory went back because they needed less, while that may have been wrong.
    shrunk: Option<u64>,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            len: WINDOW,
            age: 0,
            recent: 0,
            before: 0,
            shrunk: None,
        }
    }
}

impl Window {
    #[inline]
    pub(super) fn push(&mut self, peak: usize) {
        if self.age >= self.len {
            self.before = std::mem::take(&mut self.recent);
            self.age = 0;
        }
        self.age += 1;
        self.recent = self.recent.max(peak);
        if let Some(steps) = &mut self.shrunk {
            *steps += 1;
        }
    }

    /// Memory went back because the last steps needed less.
    pub(super) fn shrank(&mut self) {
        self.shrunk = Some(0);
    }

    /// A step needed more than there was.
    pub(super) fn grew(&mut self) {
        let wrong = (self.shrunk.take()).is_some_and(|steps| steps < 8 * self.len);
        if wrong {
            self.len = (2 * self.len).min(LONGEST);
        }
    }

    #[inline]
    pub(super) fn largest(&self) -> usize {
        self.recent.max(self.before)
    }
}
