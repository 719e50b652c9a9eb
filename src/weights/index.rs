//! [`Index`]: the list of files that a sharded checkpoint is made of.
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

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};

use super::WeightsError;
use super::parse::Skip;
use super::source::Source;

/// The most bytes an index may have: as many as a header.
const MAX_INDEX_BYTES: u64 = 100_000_000;

/// Which tensor is in which shard.
#[derive(Debug)]
pub(super) struct Index {
    /// The shards, sorted, relative to the directory of the index.
    pub(super) shards: Vec<PathBuf>,
    /// Tensor name to position in `shards`.
    pub(super) shard_of: BTreeMap<String, usize>,
}

impl Index {
    /// Reads the index at `path`. The shards are not touched.
    pub(super) fn read(path: &Path) -> Result<Self, WeightsError> {
        let bad = |reason: String| WeightsError::BadIndex {
            path: path.into(),
            reason,
        };
        let source = Source::open(path)?;
        let text = source.read_all(MAX_INDEX_BYTES)?;
        let text = std::str::from_utf8(&text)
            .map_err(|error| bad(format!("not UTF-8 from byte {} on", error.valid_up_to())))?;
        let mut json = serde_json::Deserializer::from_str(text);
        let map = json
            .deserialize_map(TopVisitor)
            .and_then(|map| json.end().map(|()| map))
            .map_err(|error| bad(error.to_string()))?
            .ok_or_else(|| bad("it has no \"weight_map\"".into()))?;

        let mut positions = BTreeMap::new();
        for (tensor, shard) in &map {
            let inside = plain(shard).ok_or_else(|| WeightsError::ShardOutside {
                path: path.into(),
                tensor: tensor.clone(),
                shard: shard.clone(),
            })?;
            positions.insert(inside, 0);
        }
        for (position, slot) in positions.values_mut().enumerate() {
            *slot = position;
        }
        let shard_of = map
            .into_iter()
            .filter_map(|(tensor, shard)| {
                let inside = plain(&shard)?;
                Some((tensor, *positions.get(&inside)?))
            })
            .collect();
        Ok(Self {
            shards: positions.into_keys().collect(),
            shard_of,
        })
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
        Err(WeightsError::MissingShards {
            path: path.into(),
            shards: self.shards.len(),
            missing,
        })
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

struct TopVisitor;

impl<'de> Visitor<'de> for TopVisitor {
    type Value = Option<Map>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut top: A) -> Result<Option<Map>, A::Error> {
        let mut found = None;
        while let Some(key) = top.next_key::<String>()? {
            if key != "weight_map" {
                top.next_value_seed(Skip)?;
            } else if found.replace(top.next_value_seed(WeightMap)?).is_some() {
                return Err(A::Error::custom("\"weight_map\" is listed twice"));
            }
        }
        Ok(found)
    }
}

struct WeightMap;

impl<'de> DeserializeSeed<'de> for WeightMap {
    type Value = Map;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Map, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap {
    type Value = Map;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a weight_map from tensor names to file names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Map, A::Error> {
        let mut read = Map::new();
        while let Some(tensor) = map.next_key::<String>()? {
            match read.entry(tensor) {
                Entry::Vacant(entry) => entry.insert(map.next_value()?),
                Entry::Occupied(entry) => {
                    let name = entry.key();
                    return Err(A::Error::custom(format_args!(
                        "tensor {name:?} is listed twice"
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
