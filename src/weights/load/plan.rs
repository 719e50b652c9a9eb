//! [`Plan`]: which tensors are loaded, which part of each, and where it goes.

use super::cast::{Cast, Float};
use super::choice;
use super::options::LoadOptions;
use super::shard::{Part, Shard};
use crate::types::DType;
use crate::weights::loaded::Held;
use crate::weights::{Backing, Checkpoint, WeightEntry, WeightsError};

/// Every tensor starts at a multiple of this many bytes: a cache line, and the
/// widest vector register.
pub(in crate::weights) const TENSOR_ALIGN: usize = 64;

/// Where one tensor, or a part of it, goes. Small: there may be a million.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// First byte in the slab.
    pub(super) offset: usize,
    /// Bytes in the slab.
    pub(super) nbytes: usize,
    /// Bytes in the file.
    pub(super) source_bytes: usize,
    /// Its position among the entries of the checkpoint. They are counted in 32 bits there.
    entry: u32,
    /// How its elements change on the way.
    pub(super) cast: Option<Cast>,
    /// None for all of it.
    pub(super) part: Option<Box<Part>>,
}

impl Place {
    pub(super) fn entry(&self) -> usize {
        self.entry as usize
    }

    /// What its elements are in memory.
    pub(super) fn dtype(&self, entry: WeightEntry<'_>) -> Option<DType> {
        match self.cast {
            Some(cast) => Some(cast.to.dtype()),
            None => entry.dtype().loadable(),
        }
    }

    /// Bytes in the slab for so many bytes of the file, whole elements.
    pub(super) fn target_bytes(&self, source: usize) -> usize {
        match self.cast {
            // No overflow: at most `nbytes`.
            Some(cast) => source / cast.from.bytes() * cast.to.bytes(),
            None => source,
        }
    }

    /// Where in the file its first byte is.
    pub(super) fn first_byte(&self, entry: WeightEntry<'_>) -> u64 {
        let skip = self.part.as_ref().map_or(0, |part| part.skip);
        // Within the tensor, whose end is within the file.
        entry.offset() + skip
    }

    /// Bytes that lie in one run of the file.
    pub(super) fn run(&self) -> usize {
        self.part
            .as_ref()
            .map_or(self.source_bytes, |part| part.run)
    }
}

/// What is to be loaded.
#[derive(Debug)]
pub(in crate::weights) struct Plan {
    /// In the order of the files, and of the slab.
    pub(super) places: Vec<Place>,
    pub(in crate::weights) slab_bytes: usize,
    /// Bytes that are wanted of the files.
    pub(super) source_bytes: u64,
}

impl Plan {
    /// What these options want of a checkpoint.
    pub(in crate::weights) fn new(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
    ) -> Result<Self, WeightsError> {
        let target = target(options.dtype)?;
        let chosen = options.choice.of(checkpoint, options.allow_unmatched)?;
        if !options.allow_unmatched {
            choice::refuse_unmatched(&options.shards, checkpoint)?;
        }
        let mut plan = Self {
            places: Vec::with_capacity(chosen.iter().filter(|chosen| **chosen).count()),
            slab_bytes: 0,
            source_bytes: 0,
        };
        for (at, entry) in checkpoint.entries().enumerate() {
            if chosen[at] {
                let shard = choice::shard_of(&options.shards, entry.name());
                plan.add(checkpoint, at, entry, shard, target)?;
            }
        }
        Ok(plan)
    }

    /// One tensor, or a part of it, in a slab of its own.
    pub(super) fn one(
        checkpoint: &Checkpoint,
        at: usize,
        shard: Option<Shard>,
        dtype: Option<DType>,
    ) -> Result<Self, WeightsError> {
        let mut plan = Self {
            places: Vec::with_capacity(1),
            slab_bytes: 0,
            source_bytes: 0,
        };
        if let Some(entry) = checkpoint.entries().get(at) {
            plan.add(checkpoint, at, entry, shard, target(dtype)?)?;
        }
        Ok(plan)
    }

    fn add(
        &mut self,
        checkpoint: &Checkpoint,
        at: usize,
        entry: WeightEntry<'_>,
        shard: Option<Shard>,
        target: Option<Float>,
    ) -> Result<(), WeightsError> {
        let part = shard.map(|shard| shard.of(entry)).transpose();
        let part = part.map_err(|fault| WeightsError::Shard {
            path: checkpoint.path().into(),
            name: entry.name().into(),
            shape: Box::new(entry.shape()),
            fault,
        })?;
        let cast = target.and_then(|to| {
            let from = entry.dtype().host().and_then(Float::of)?;
            (from != to).then_some(Cast { from, to })
        });
        let place = (|| {
            let source_bytes = match &part {
                Some(part) => part.source_bytes(),
                None => usize::try_from(entry.nbytes()).ok()?,
            };
            let nbytes = match cast {
                Some(cast) => cast.target_bytes(source_bytes)?,
                None => source_bytes,
            };
            let offset = self.slab_bytes.checked_next_multiple_of(TENSOR_ALIGN)?;
            self.slab_bytes = offset.checked_add(nbytes)?;
            Some(Place {
                offset,
                nbytes,
                source_bytes,
                entry: u32::try_from(at).ok()?,
                cast,
                part: part.map(Box::new),
            })
        })();
        let place = place.ok_or_else(|| WeightsError::TooLarge {
            path: checkpoint.path().into(),
            bytes: (self.slab_bytes as u64).saturating_add(entry.nbytes()),
        })?;
        // No more than the slab could hold, but for a narrowing cast.
        self.source_bytes = self.source_bytes.saturating_add(place.source_bytes as u64);
        self.places.push(place);
        Ok(())
    }

    /// Bytes of the tensors in memory.
    pub(super) fn tensor_bytes(&self) -> u64 {
        self.places.iter().map(|place| place.nbytes as u64).sum()
    }

    /// What there is when all of it is in storage 0.
    pub(in crate::weights) fn held(
        &self,
        checkpoint: &Checkpoint,
        backing: Backing,
    ) -> Vec<Option<Held>> {
        let mut places = self.places.iter().peekable();
        let entries = checkpoint.entries().enumerate();
        let held = entries.map(|(at, entry)| {
            let place = places.next_if(|place| place.entry() == at)?;
            Some(Held {
                storage: 0,
                offset: place.offset,
                nbytes: place.nbytes,
                dtype: place.dtype(entry),
                part: place.part.as_ref().map(|part| Box::new(part.shape)),
                backing,
            })
        });
        held.collect()
    }
}

/// Is this a dtype that weights can be cast to?
pub(super) fn target(dtype: Option<DType>) -> Result<Option<Float>, WeightsError> {
    match dtype {
        None => Ok(None),
        Some(dtype) => Float::of(dtype)
            .map(Some)
            .ok_or(WeightsError::CastTarget { dtype }),
    }
}
