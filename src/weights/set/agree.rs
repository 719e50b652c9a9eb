//! Do the files of a set fit together, and does the index say what they hold?

use super::Checkpoint;
use super::fault::{SetFault, TensorAt, TensorTwice, named};
use super::index::ShardIndex;

impl Checkpoint {
    /// Is every tensor in one file only?
    pub(super) fn refuse_duplicates(&self) -> Result<(), SetFault> {
        let pairs = self.named_entries().zip(self.named_entries().skip(1));
        let twice = pairs.filter(|(first, second)| first.name() == second.name());
        let twice = named(twice, |(first, second)| TensorTwice {
            tensor: first.name().into(),
            first: self.files[first.file()].path.clone(),
            second: self.files[second.file()].path.clone(),
        });
        match twice {
            None => Ok(()),
            Some((tensors, count)) => Err(SetFault::Duplicates { tensors, count }),
        }
    }

    /// Does every tensor lie where the index says, and does it say so for every one?
    pub(super) fn agree_with(&self, index: &ShardIndex) -> Result<(), SetFault> {
        let at = |tensor: &str, file: usize| TensorAt {
            tensor: tensor.into(),
            file: self.files[file].path.clone(),
        };
        let is_there =
            |name: &str, file| self.entry(name).is_some_and(|entry| entry.file() == file);
        let lost = (index.positions.iter()).filter(|&(name, &file)| !is_there(name, file));
        if let Some((tensors, count)) = named(lost, |(name, &file)| at(name, file)) {
            return Err(SetFault::NotInFile { tensors, count });
        }
        let extra = self.named_entries();
        let extra = extra.filter(|entry| !index.positions.contains_key(entry.name()));
        match named(extra, |entry| at(entry.name(), entry.file())) {
            None => Ok(()),
            Some((tensors, count)) => Err(SetFault::NotInIndex { tensors, count }),
        }
    }
}
