//! An index, as we read it and as `serde_json` alone reads it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use tenslab::weights::{HeaderLimits, SetFault, ShardIndex};

use super::{Answer, check_message, require};

/// The longest message: eight names and eight paths of 4,096 letters.
const LONGEST_MESSAGE: usize = 200_000;

/// The most heap that an index of so many bytes may take: each tensor in a file of its own.
pub(crate) fn most_heap(text_bytes: usize) -> usize {
    32 * text_bytes + 4096
}

/// Reads the text of an index twice. There are no exceptions.
pub(crate) fn compare(text: &[u8]) -> Result<Answer, String> {
    let limits = HeaderLimits::default();
    let (ours, theirs) = (ShardIndex::from_bytes(text, &limits), read(text));
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => {
            check_contents(&ours, &theirs)?;
            check_limit(text, theirs.len())?;
            Ok(Answer::Accepted)
        }
        (Err(fault), Err(_)) => {
            check_message(&fault.to_string(), LONGEST_MESSAGE)?;
            Ok(Answer::Refused)
        }
        (Ok(ours), Err(why)) => Err(format!("we accept {ours:?} in spite of: {why}")),
        (Err(fault), Ok(theirs)) => Err(format!("we refuse {theirs:?}: {fault}")),
    }
}

fn check_contents(ours: &ShardIndex, theirs: &BTreeMap<String, String>) -> Result<(), String> {
    let names = theirs.keys().map(String::as_str);
    require(ours.tensors().eq(names), || {
        format!("{ours:?} has other names than {theirs:?}")
    })?;
    for (name, shard) in theirs {
        let found = ours.shard_of(name);
        require(found == Some(Path::new(shard)), || {
            format!("{name:?} is in {found:?} and not in {shard:?}")
        })?;
    }
    let (shards, is_sorted) = (ours.shards(), ours.shards().is_sorted_by(|a, b| a < b));
    let all_used = (shards.iter()).all(|s| theirs.values().any(|shard| Path::new(shard) == s));
    require(is_sorted && all_used, || {
        format!("{shards:?}: not sorted, or a file of nothing")
    })
}

/// As many tensors as the limit are fine, and one more is not.
fn check_limit(text: &[u8], tensors: usize) -> Result<(), String> {
    let read = |max_tensors| {
        let limits = HeaderLimits {
            max_tensors,
            ..HeaderLimits::default()
        };
        ShardIndex::from_bytes(text, &limits)
    };
    require(read(tensors).is_ok(), || {
        format!("{tensors} tensors are refused where so many are allowed")
    })?;
    let Some(max_tensors) = tensors.checked_sub(1) else {
        return Ok(());
    };
    let fault = read(max_tensors);
    require(
        fault == Err(SetFault::TooManyTensors { max_tensors }),
        || format!("a limit of {max_tensors} says {fault:?}"),
    )
}

/// Name and file of each tensor, the files in their shortest spelling, or why not.
fn read(text: &[u8]) -> Result<BTreeMap<String, String>, String> {
    let Top(mut maps) = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let (Some(Pairs(map)), None) = (maps.pop(), maps.pop()) else {
        return Err("not one weight_map".into());
    };
    let mut all = BTreeMap::new();
    for (name, shard) in map {
        let Value::String(shard) = shard else {
            return Err(format!("{shard} is no text"));
        };
        let shard = shortest(&shard).ok_or("outside")?;
        if all.insert(name, shard).is_some() {
            return Err("a name twice".into());
        }
    }
    Ok(all)
}

/// The path without empty parts and `.`, if it stays below where it begins.
fn shortest(path: &str) -> Option<String> {
    let mut parts = path.split('/').peekable();
    if matches!(parts.peek(), Some(&("" | "."))) || path.split('/').any(|part| part == "..") {
        return None;
    }
    let parts: Vec<&str> = parts.filter(|part| !matches!(*part, "" | ".")).collect();
    Some(parts.join("/"))
}

/// The `weight_map`s of an index: objects, whatever is in them.
struct Top(Vec<Pairs>);

/// An object as it stands there: a name can come twice.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Top {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Maps;
        impl<'de> Visitor<'de> for Maps {
            type Value = Top;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Top, A::Error> {
                let mut maps = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    if key == "weight_map" {
                        maps.push(map.next_value()?);
                    } else {
                        map.next_value::<Value>()?;
                    }
                }
                Ok(Top(maps))
            }
        }
        deserializer.deserialize_map(Maps)
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut all = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    all.push(pair);
                }
                Ok(Pairs(all))
            }
        }
        deserializer.deserialize_map(All)
    }
}
