//! Do the files of a set fit together, and does the index say what they hold?

use super::fault::{SetFault, TensorAt, TensorTwice};
use super::index::Index;
use super::{Checkpoint, WeightEntry};

impl Checkpoint {
    /// Is every tensor in one file only?
    pub(super) fn refuse_duplicates(&self) -> Result<(), SetFault> {
        let pairs = self.by_name.windows(2);
        let pairs = pairs.map(|pair| (&self.entries[pair[0]], &self.entries[pair[1]]));
        let tensors: Vec<_> = pairs
            .filter(|(first, second)| first.name() == second.name())
            .map(|(first, second)| TensorTwice {
                tensor: first.name().into(),
                first: self.files[first.file].path.clone(),
                second: self.files[second.file].path.clone(),
            })
            .collect();
        match tensors.is_empty() {
            true => Ok(()),
            false => Err(SetFault::Duplicates { tensors }),
        }
    }

    /// Does every tensor lie where the index says, and does it say so for every one?
    pub(super) fn agree_with(&self, index: &Index) -> Result<(), SetFault> {
        let at = |tensor: &str, file: usize| TensorAt {
            tensor: tensor.into(),
            file: self.files[file].path.clone(),
        };
        let is_there = |name: &str, file| self.entry(name).is_some_and(|entry| entry.file == file);
        let lost: Vec<_> = (index.shard_of.iter())
            .filter(|&(name, &file)| !is_there(name, file))
            .map(|(name, &file)| at(name, file))
            .collect();
        if !lost.is_empty() {
            return Err(SetFault::NotInFile { tensors: lost });
        }
        let by_name = self.by_name.iter().map(|&at| &self.entries[at]);
        let extra: Vec<_> = by_name
            .filter(|entry| !index.shard_of.contains_key(entry.name()))
            .map(|entry: &WeightEntry| at(entry.name(), entry.file))
            .collect();
        match extra.is_empty() {
            true => Ok(()),
            false => Err(SetFault::NotInIndex { tensors: extra }),
        }
    }
}
