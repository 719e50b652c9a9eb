//! [`Weights`]: the tensors of a checkpoint by name, wherever their bytes are.

use std::collections::BTreeMap;

use super::{Checkpoint, LoadReport, SubWeights, WeightEntries, WeightEntry, WeightsError};
use crate::memory::Storage;
use crate::tensor::Tensor;
use crate::types::{DType, Shape};

/// Where the bytes of a tensor are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backing {
    /// In the slab that they were read into.
    Slab,
    /// In the file, which is mapped.
    Mapped,
    /// In a slab, where they were copied to because their place in the mapped file is not
    /// aligned.
    Realigned,
    /// In sealed memory, which other processes may have too.
    Sealed,
}

/// Where one tensor is, and what it is there.
#[derive(Debug, Clone)]
pub(super) struct Held {
    /// Which of the storages.
    pub(super) storage: usize,
    /// First byte there.
    pub(super) offset: usize,
    /// Bytes there.
    pub(super) nbytes: usize,
    /// What its elements are there; none where no tensor can be made of them.
    pub(super) dtype: Option<DType>,
    /// Its shape there, where that is only a part of what the file has.
    pub(super) part: Option<Box<Shape>>,
    pub(super) backing: Backing,
}

/// A loaded checkpoint: frozen tensors by name.
///
/// A tensor keeps its storage alive, so it may outlive the `Weights`. Any thread may use them.
///
/// ```
/// use tenslab::weights::{LoadOptions, Weights, save};
/// use tenslab::{DType, Tensor, memory};
///
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("model.safetensors");
/// let norm = Tensor::zeros([4], DType::F32, memory::cpu())?;
/// norm.write::<f32>()?.copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
/// save(&path, &[("norm", norm)], &Default::default())?;
///
/// let options = LoadOptions { dtype: Some(DType::F16), ..LoadOptions::default() };
/// let weights = Weights::load(&path, &options)?;
/// let norm = weights.get("norm")?;
/// drop(weights);                                        // the tensor stays
/// assert_eq!(norm.dtype(), DType::F16);
/// assert_eq!(norm.read::<tenslab::f16>()?[3].to_bits(), 0x4400);
/// assert!(norm.write::<tenslab::f16>().is_err());       // and is read-only
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Weights {
    checkpoint: Checkpoint,
    storages: Vec<Storage>,
    /// By position among the checkpoint's entries; none where it was left out.
    held: Vec<Option<Held>>,
    /// Other names, and the positions of what they stand for.
    aliases: BTreeMap<String, usize>,
    report: LoadReport,
}

impl Weights {
    pub(super) fn new(
        checkpoint: Checkpoint,
        storages: Vec<Storage>,
        held: Vec<Option<Held>>,
        report: LoadReport,
    ) -> Self {
        debug_assert_eq!(held.len(), checkpoint.entries().len());
        Self {
            checkpoint,
            storages,
            held,
            aliases: BTreeMap::new(),
            report,
        }
    }

    /// The tensor of this name or [alias](Self::alias): frozen and contiguous. Where it was
    /// loaded or sealed it begins at a multiple of 64 bytes, where it is mapped at a multiple
    /// of its element's width.
    ///
    /// Costs a binary search and a view; no bytes move.
    ///
    /// # Errors
    /// [`NotFound`](WeightsError::NotFound), with names that resemble it;
    /// [`LeftOut`](WeightsError::LeftOut) where the file has it and it was not to be loaded;
    /// [`UnsupportedDType`](WeightsError::UnsupportedDType) where the crate has no
    /// tensor of such elements, for which [`raw`](Self::raw) is the way;
    /// [`Misaligned`](WeightsError::Misaligned) where it was mapped with
    /// [`BytesOnly`](super::Misaligned::BytesOnly) and its place has not the alignment.
    pub fn get(&self, name: &str) -> Result<Tensor, WeightsError> {
        let (entry, held) = self.find(name)?;
        let dtype = held.dtype.ok_or_else(|| WeightsError::UnsupportedDType {
            path: self.checkpoint.path().into(),
            name: name.into(),
            tag: entry.dtype().tag().into(),
        })?;
        let place = self.storages[held.storage].as_ptr().addr() + held.offset;
        if held.nbytes > 0 && !place.is_multiple_of(dtype.bytes()) {
            return Err(WeightsError::Misaligned {
                path: self.checkpoint.files()[entry.file()].path().into(),
                name: name.into(),
                offset: entry.offset(),
                dtype,
            });
        }
        let shape = match &held.part {
            Some(part) => **part,
            None => entry.shape(),
        };
        self.view(name, held, shape, dtype)
    }

    /// The bytes of this tensor in memory, whatever its elements are: a frozen
    /// `uint8` tensor of one dimension. After a cast these are the cast bytes.
    ///
    /// # Errors
    /// [`NotFound`](WeightsError::NotFound), [`LeftOut`](WeightsError::LeftOut).
    pub fn raw(&self, name: &str) -> Result<Tensor, WeightsError> {
        let (_, held) = self.find(name)?;
        self.view(name, held, Shape::from([held.nbytes]), DType::U8)
    }

    /// Where the bytes of this tensor are.
    ///
    /// # Errors
    /// [`NotFound`](WeightsError::NotFound), [`LeftOut`](WeightsError::LeftOut).
    pub fn backing(&self, name: &str) -> Result<Backing, WeightsError> {
        self.find(name).map(|(_, held)| held.backing)
    }

    /// Gives the tensor `target` one more name: for tied weights, of which a file has only
    /// one. Both names share all bytes.
    ///
    /// ```
    /// use tenslab::weights::{LoadOptions, Weights, save};
    /// use tenslab::{DType, Tensor, memory};
    ///
    /// let directory = tempfile::tempdir()?;
    /// let path = directory.path().join("model.safetensors");
    /// let table = Tensor::zeros([8, 4], DType::F32, memory::cpu())?;
    /// save(&path, &[("model.embed_tokens.weight", table)], &Default::default())?;
    ///
    /// let mut weights = Weights::load(&path, &LoadOptions::default())?;
    /// weights.alias("lm_head.weight", "model.embed_tokens.weight")?;
    /// let head = weights.get("lm_head.weight")?;
    /// let table = weights.get("model.embed_tokens.weight")?;
    /// assert_eq!(head.data_ptr::<f32>(), table.data_ptr::<f32>());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`NameTaken`](WeightsError::NameTaken) where the file or an alias has that name;
    /// [`NotFound`](WeightsError::NotFound) and [`LeftOut`](WeightsError::LeftOut) for the
    /// target.
    pub fn alias(&mut self, name: &str, target: &str) -> Result<(), WeightsError> {
        if self.position(name).is_some() {
            return Err(WeightsError::NameTaken {
                path: self.checkpoint.path().into(),
                name: name.into(),
            });
        }
        self.find(target)?;
        // Found just now.
        if let Some(at) = self.position(target) {
            self.aliases.insert(name.into(), at);
        }
        Ok(())
    }

    /// The tensors whose names begin with `prefix` and a dot, by the rest of their names.
    #[must_use]
    pub fn sub(&self, prefix: &str) -> SubWeights<'_> {
        SubWeights::new(self, prefix)
    }

    fn position(&self, name: &str) -> Option<usize> {
        let own = self.checkpoint.position(name);
        own.or_else(|| self.aliases.get(name).copied())
    }

    fn find(&self, name: &str) -> Result<(WeightEntry<'_>, &Held), WeightsError> {
        let found = self.position(name).and_then(|at| {
            let entry = self.checkpoint.entries().get(at)?;
            Some((entry, self.held[at].as_ref()))
        });
        match found {
            None => Err(self.checkpoint.not_found(name)),
            Some((entry, Some(held))) => Ok((entry, held)),
            Some((_, None)) => Err(WeightsError::LeftOut {
                path: self.checkpoint.path().into(),
                name: name.into(),
            }),
        }
    }

    fn view(
        &self,
        name: &str,
        held: &Held,
        shape: Shape,
        dtype: DType,
    ) -> Result<Tensor, WeightsError> {
        let storage = &self.storages[held.storage];
        Tensor::from_storage(storage, held.offset, shape, dtype).map_err(|source| {
            WeightsError::Tensor {
                name: name.into(),
                source,
            }
        })
    }

    /// Can a tensor of this name or alias be had, or at least its bytes?
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        (self.position(name)).is_some_and(|at| self.held[at].is_some())
    }

    /// All names that can be had, ordered by file and by offset in it, and then the aliases
    /// by name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let own = self.checkpoint.entries().zip(&self.held);
        let own = own.filter_map(|(entry, held)| held.is_some().then_some(entry.name()));
        own.chain(self.aliases.keys().map(String::as_str))
    }

    /// All tensors as their files list them, ordered by file and by offset in it, also those
    /// that were left out.
    #[must_use]
    pub fn entries(&self) -> WeightEntries<'_> {
        self.checkpoint.entries()
    }

    /// The `__metadata__` of all files, as [`Checkpoint::metadata`] joins it.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        self.checkpoint.metadata()
    }

    /// The headers that were loaded.
    #[must_use]
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The storages that the tensors are views of: one slab where they were loaded, the one
    /// mapping where they were sealed, and where files are mapped the data of each of them, in
    /// their order, and then what had to be copied or has no bytes.
    #[must_use]
    pub fn storages(&self) -> &[Storage] {
        &self.storages
    }

    /// What the load did.
    #[must_use]
    pub fn report(&self) -> &LoadReport {
        &self.report
    }
}
