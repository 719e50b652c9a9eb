//! [`SubWeights`]: the weights of one part of a model.

use std::fmt;

use super::{Weights, WeightsError};
use crate::tensor::Tensor;

/// The tensors of some weights whose names begin with a prefix and a dot, by the rest of
/// their names.
///
/// ```
/// use tenslab::weights::{LoadOptions, Weights, save};
/// use tenslab::{DType, Tensor, memory};
///
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("model.safetensors");
/// let norm = Tensor::zeros([4], DType::F32, memory::cpu())?;
/// save(&path, &[("model.layers.3.norm.weight", norm)], &Default::default())?;
///
/// let weights = Weights::load(&path, &LoadOptions::default())?;
/// let layer = weights.sub("model.layers").sub("3");
/// assert_eq!(layer.names().collect::<Vec<_>>(), ["norm.weight"]);
/// assert_eq!(layer.get("norm.weight")?.numel(), 4);
///
/// let error = layer.get("bias").unwrap_err().to_string();
/// assert!(error.contains("model.layers.3.bias"));            // the whole name
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Cost: a heap block for the prefix, and one for each name that is asked for.
#[derive(Clone)]
pub struct SubWeights<'a> {
    weights: &'a Weights,
    /// With its dot; empty for all weights.
    prefix: String,
}

impl<'a> SubWeights<'a> {
    pub(super) fn new(weights: &'a Weights, prefix: &str) -> Self {
        let none = Self {
            weights,
            prefix: String::new(),
        };
        none.sub(prefix)
    }

    /// What they are a part of.
    #[must_use]
    pub fn weights(&self) -> &'a Weights {
        self.weights
    }

    /// What their names begin with, the dot included; empty for all weights.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A part of this part. An empty name is the whole of it.
    #[must_use]
    pub fn sub(&self, name: &str) -> Self {
        let mut prefix = self.prefix.clone();
        if !name.is_empty() {
            prefix.push_str(name);
            prefix.push('.');
        }
        Self {
            weights: self.weights,
            prefix,
        }
    }

    /// [`Weights::get`] of the prefix and this name.
    ///
    /// # Errors
    /// As there, with the whole name.
    pub fn get(&self, name: &str) -> Result<Tensor, WeightsError> {
        self.weights.get(&self.whole(name))
    }

    /// [`Weights::raw`] of the prefix and this name.
    ///
    /// # Errors
    /// As there, with the whole name.
    pub fn raw(&self, name: &str) -> Result<Tensor, WeightsError> {
        self.weights.raw(&self.whole(name))
    }

    /// Can a tensor of the prefix and this name be had, or at least its bytes?
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.weights.contains(&self.whole(name))
    }

    /// What comes behind the prefix in the names that begin with it, in the order of
    /// [`Weights::names`]. Looks at all names.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        let names = self.weights.names();
        names.filter_map(|name| name.strip_prefix(self.prefix.as_str()))
    }

    fn whole(&self, name: &str) -> String {
        [&self.prefix, name].concat()
    }
}

impl fmt::Debug for SubWeights<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubWeights")
            .field("prefix", &self.prefix)
            .field("path", &self.weights.checkpoint().path())
            .finish_non_exhaustive()
    }
}
