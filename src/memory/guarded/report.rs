//! What a guard says: one mistake, and what is out.

use std::fmt;

use crate::memory::Tag;

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DamageKind {
    /// Written outside the block while it was out.
    OutOfBounds,
    /// Written after the block was given back.
    AfterGiveBack,
    /// A block that is not out was given back: for the second time, or not from here.
    NotOut,
}

/// A mistake that a [`Guarded`](super::Guarded) found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// What was found.
    pub kind: DamageKind,
    /// Whose block it is.
    pub tag: Tag,
    /// Bytes of the block.
    pub bytes: usize,
    /// The how-manieth allocation it is, from 0.
    pub allocation: u64,
    /// Where the first wrong byte is, counted from the block's first byte.
    pub offset: isize,
    /// What is there now.
    pub found: u8,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage {
            tag,
            bytes,
            allocation,
            offset,
            found,
            ..
        } = self;
        match self.kind {
            DamageKind::OutOfBounds => write!(
                f,
                "a block of {bytes} bytes ({tag}, allocation {allocation}) was written out of \
                 bounds: byte {offset} is {found:#04x}"
            ),
            DamageKind::AfterGiveBack => write!(
                f,
                "a block of {bytes} bytes ({tag}, allocation {allocation}) was written after it \
                 was given back: byte {offset} is {found:#04x}"
            ),
            DamageKind::NotOut => {
                write!(
                    f,
                    "a block of {bytes} bytes ({tag}) was given back that is not out"
                )
            }
        }
    }
}

/// What is out under one tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Out {
    /// Blocks, those of zero bytes included.
    pub blocks: usize,
    /// Bytes asked for by them.
    pub bytes: usize,
    /// The number of the oldest, counted from 0 over all allocations of at least a byte.
    pub oldest: Option<u64>,
}

/// What a [`Guarded`](super::Guarded) knows. Index it by [`Tag`]; printed, it is a line for each tag of
/// which something is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct GuardReport {
    pub(super) tags: [Out; Tag::ALL.len()],
    /// Bytes that wait in the quarantine, redzones included.
    pub quarantined_bytes: usize,
    /// Damage that was found so far.
    pub damaged: usize,
}

impl std::ops::Index<Tag> for GuardReport {
    type Output = Out;

    fn index(&self, tag: Tag) -> &Out {
        &self.tags[tag as usize]
    }
}

impl GuardReport {
    /// Is nothing out?
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.tags.iter().all(|out| out.blocks == 0)
    }
}

impl fmt::Display for GuardReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for tag in Tag::ALL {
            let Out {
                blocks,
                bytes,
                oldest,
            } = self[tag];
            if blocks == 0 {
                continue;
            }
            let plural = if blocks == 1 { "" } else { "s" };
            write!(f, "{tag}: {blocks} block{plural}, {bytes} bytes")?;
            if let Some(oldest) = oldest {
                write!(f, ", the oldest is allocation {oldest}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
