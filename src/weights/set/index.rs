//! [`ShardIndex`]: the list of files that a sharded checkpoint is made of.
//!
//! ```text
//!  model.safetensors.index.json
//!  { "metadata": {…},
//!    "weight_map": { "model.norm.weight": "model-00002-of-00002.safetensors", … } }
//! ```
//!
//! The index comes from a stranger too. A shard is a plain path below the
//! index's own directory: no `..`, nothing absolute. (A symbolic link may lead
//! elsewhere, as in the cache of Hugging Face's hub: whoever can make links can
//! make files.) What the index says and what the shards hold must agree both
//! ways; a shard that is missing or a tensor that is in two of them is an error
//! and not a tensor less. `metadata` is passed over: its `total_size` is often wrong in
//! files that are otherwise fine.
//!
//! `tests/weights_index.rs` has the refusals, `tests/weights_mutations` random ones, and
//! `fuzz/fuzz_targets/index.rs` compares this reader with one that is made of `serde_json`
//! alone.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};

use super::fault::{SetFault, TensorAt, named};
use crate::weights::header::Skip;
use crate::weights::quoted::{Quoted, reason};
use crate::weights::{HeaderLimits, WeightsError};

/// Which tensor of a checkpoint is in which of its files, as an index says.
///
/// [`Checkpoint::open`](super::Checkpoint::open) reads one where it finds it. By itself it says
/// which files to fetch before there is anything to open.
///
/// ```
/// use std::path::Path;
/// use tenslab::weights::{HeaderLimits, SetFault, ShardIndex};
///
/// let limits = HeaderLimits::default();
/// let text = br#"{"weight_map":{"b":"2.safetensors","a":"1.safetensors"}}"#;
/// let index = ShardIndex::from_bytes(text, &limits)?;
/// assert_eq!(index.shards(), [Path::new("1.safetensors"), Path::new("2.safetensors")]);
/// assert_eq!(index.shard_of("b"), Some(Path::new("2.safetensors")));
///
/// let text = br#"{"weight_map":{"a":"../1.safetensors"}}"#;     // leads elsewhere
/// let fault = ShardIndex::from_bytes(text, &limits).unwrap_err();
/// assert!(matches!(fault, SetFault::Outside { .. }));
/// # Ok::<(), SetFault>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardIndex {
    /// Sorted, relative to the directory of the index.
    pub(super) shards: Vec<PathBuf>,
    /// Tensor name to position in `shards`.
    pub(super) positions: BTreeMap<String, usize>,
}

impl ShardIndex {
    /// Reads the text of an index. The shards are not touched.
    ///
    /// # Errors
    /// [`SetFault::BadIndex`], [`SetFault::TooManyTensors`] and [`SetFault::Outside`]. How long
    /// the text may be is the caller's matter.
    pub fn from_bytes(text: &[u8], limits: &HeaderLimits) -> Result<Self, SetFault> {
        let bad = |reason| SetFault::BadIndex { reason };
        let text = std::str::from_utf8(text)
            .map_err(|error| bad(format!("not UTF-8 from byte {} on", error.valid_up_to())))?;
        let mut json = serde_json::Deserializer::from_str(text);
        let mut room = Room {
            max_tensors: limits.max_tensors,
            is_short: false,
        };
        let map = json
            .deserialize_map(Top(&mut room))
            .and_then(|map| json.end().map(|()| map));
        let map = match map {
            Err(_) if room.is_short => {
                let max_tensors = limits.max_tensors;
                return Err(SetFault::TooManyTensors { max_tensors });
            }
            map => map.map_err(|error| bad(reason(&error)))?,
        };
        let map = map.ok_or_else(|| bad("it has no \"weight_map\"".into()))?;
        let outside = (map.iter()).filter(|(_, shard)| plain(shard).is_none());
        let outside = named(outside, |(tensor, shard)| TensorAt {
            tensor: tensor.clone(),
            file: shard.into(),
        });
        if let Some((tensors, count)) = outside {
            return Err(SetFault::Outside { tensors, count });
        }
        let mut place_of = BTreeMap::new();
        place_of.extend(map.values().filter_map(|shard| Some((plain(shard)?, 0))));
        for (place, slot) in place_of.values_mut().enumerate() {
            *slot = place;
        }
        let positions = map
            .into_iter()
            .filter_map(|(tensor, shard)| {
                let inside = plain(&shard)?;
                Some((tensor, *place_of.get(&inside)?))
            })
            .collect();
        Ok(Self {
            shards: place_of.into_keys().collect(),
            positions,
        })
    }

    /// The files, each once and sorted. Plain paths below the directory of the index.
    #[must_use]
    pub fn shards(&self) -> &[PathBuf] {
        &self.shards
    }

    /// The file that has this tensor, if the index lists it.
    #[must_use]
    pub fn shard_of(&self, tensor: &str) -> Option<&Path> {
        let position = *self.positions.get(tensor)?;
        self.shards.get(position).map(PathBuf::as_path)
    }

    /// The names of all tensors, sorted.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &str> {
        self.positions.keys().map(String::as_str)
    }

    /// Are all shards there? Names all that are not.
    pub(super) fn require_shards(&self, path: &Path, directory: &Path) -> Result<(), WeightsError> {
        let mut missing = Vec::new();
        for shard in &self.shards {
            let file = directory.join(shard);
            match std::fs::metadata(&file) {
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
                {
                    missing.push(shard.to_string_lossy().escape_debug().to_string());
                }
                Err(error) => return Err(WeightsError::io(&file, "open", error)),
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let files = self.shards.len();
        let fault = SetFault::MissingFiles { files, missing };
        Err(WeightsError::set(path, fault))
    }
}

/// The path as its plain parts, if it has nothing else.
fn plain(shard: &str) -> Option<PathBuf> {
    let mut inside = PathBuf::new();
    for component in Path::new(shard).components() {
        let Component::Normal(part) = component else {
            return None;
        };
        inside.push(part);
    }
    (!inside.as_os_str().is_empty()).then_some(inside)
}

type Map = BTreeMap<String, String>;

/// How many tensors may be listed, and whether there were more.
struct Room {
    max_tensors: usize,
    is_short: bool,
}

struct Top<'a>(&'a mut Room);

impl<'de> Visitor<'de> for Top<'_> {
    type Value = Option<Map>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut top: A) -> Result<Option<Map>, A::Error> {
        let mut found = None;
        while let Some(key) = top.next_key::<String>()? {
            if key != "weight_map" {
                top.next_value_seed(Skip)?;
            } else if found
                .replace(top.next_value_seed(WeightMap(self.0))?)
                .is_some()
            {
                return Err(A::Error::custom("\"weight_map\" is listed twice"));
            }
        }
        Ok(found)
    }
}

struct WeightMap<'a>(&'a mut Room);

impl<'de> DeserializeSeed<'de> for WeightMap<'_> {
    type Value = Map;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Map, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap<'_> {
    type Value = Map;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a weight_map from tensor names to file names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Map, A::Error> {
        let mut read = Map::new();
        while let Some(tensor) = map.next_key::<String>()? {
            if read.len() == self.0.max_tensors {
                self.0.is_short = true;
                return Err(A::Error::custom("too many"));
            }
            match read.entry(tensor) {
                Entry::Vacant(entry) => entry.insert(map.next_value()?),
                Entry::Occupied(entry) => {
                    let name = entry.key();
                    return Err(A::Error::custom(format_args!(
                        "tensor {} is listed twice",
                        Quoted(name)
                    )));
                }
            };
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_relative_paths_are_plain() {
        for good in ["a.safetensors", "sub/a", "a..b", "sub//a", "sub/./a"] {
            assert!(plain(good).is_some(), "{good:?}");
        }
        for bad in ["", ".", "./a", "/a", "//a", "..", "../a", "a/../b", "a/.."] {
            assert!(plain(bad).is_none(), "{bad:?}");
        }
        assert_eq!(plain("sub//a"), plain("sub/a"), "two spellings, one file");
    }
}
