//! The JSON of a header, read without building a tree.
//!
//! serde_json drives; the visitors here see every key as it comes. So a key
//! that comes twice is seen twice (a map type would silently keep the last,
//! and two readers of one file would disagree about it), a tensor costs the one
//! struct that it ends up in, and what nobody asked for costs nothing.
//!
//! What these visitors accept, the reference reader accepts too: even fields
//! that are skipped are read as it reads them, numbers and escapes included.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::quoted::reason;
use super::{FormatFault, HeaderLimits, WeightDType};
use crate::types::{MAX_RANK, Shape, TypeError};

/// One entry of a header, its numbers not yet compared with anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RawTensor {
    pub(super) name: String,
    pub(super) dtype: WeightDType,
    pub(super) shape: Shape,
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// Everything that a header says, in the order of the text.
#[derive(Debug, Default)]
pub(super) struct RawHeader {
    pub(super) tensors: Vec<RawTensor>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// Reads the text of a header.
pub(super) fn parse(text: &str, limits: &HeaderLimits) -> Result<RawHeader, FormatFault> {
    let mut state = State {
        limits,
        header: RawHeader::default(),
        within: Within::Top,
        fault: None,
    };
    let mut json = serde_json::Deserializer::from_str(text);
    let result = json
        .deserialize_map(TopVisitor(&mut state))
        .and_then(|()| json.end());
    match result {
        Ok(()) => Ok(state.header),
        Err(error) => Err(state.explain(&error)),
    }
}

/// What has been read, and where the reader stands, for the error message.
struct State<'a> {
    limits: &'a HeaderLimits,
    header: RawHeader,
    within: Within,
    /// A fault that JSON has no word for. The visitor that set it made serde stop.
    fault: Option<FormatFault>,
}

enum Within {
    Top,
    Metadata(String),
    Tensor(String),
}

impl State<'_> {
    /// Remembers `fault` and gives back the error that makes serde stop.
    fn stop<E: serde::de::Error>(&mut self, fault: FormatFault) -> E {
        self.fault = Some(fault);
        E::custom("see the fault")
    }

    fn explain(self, error: &serde_json::Error) -> FormatFault {
        if let Some(fault) = self.fault {
            return fault;
        }
        let reason = reason(error);
        match self.within {
            // Broken JSON is broken wherever it happens to stop.
            _ if !error.is_data() => FormatFault::BadJson { reason },
            Within::Top => FormatFault::BadJson { reason },
            Within::Metadata(key) => FormatFault::BadMetadataValue { key, reason },
            Within::Tensor(name) => FormatFault::BadField { name, reason },
        }
    }
}

/// The header itself.
struct TopVisitor<'s, 'a>(&'s mut State<'a>);

impl<'de> Visitor<'de> for TopVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object that lists tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let state = self.0;
        let mut metadata_seen = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if metadata_seen {
                    return Err(state.stop(FormatFault::DuplicateMetadata));
                }
                metadata_seen = true;
                state.within = Within::Metadata(String::new());
                map.next_value_seed(Metadata(state))?;
            } else {
                let max_tensors = state.limits.max_tensors;
                if state.header.tensors.len() >= max_tensors {
                    return Err(state.stop(FormatFault::TooManyTensors { max_tensors }));
                }
                state.within = Within::Tensor(name);
                map.next_value_seed(Tensor(state))?;
            }
            state.within = Within::Top;
        }
        Ok(())
    }
}

/// `__metadata__`: an object of strings, or null.
struct Metadata<'s, 'a>(&'s mut State<'a>);

impl<'de> DeserializeSeed<'de> for Metadata<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Metadata<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let state = self.0;
        while let Some(key) = map.next_key::<String>()? {
            state.within = Within::Metadata(key.clone());
            let value = map.next_value::<String>()?;
            match state.header.metadata.entry(key) {
                Entry::Vacant(entry) => entry.insert(value),
                Entry::Occupied(entry) => {
                    let key = entry.key().clone();
                    return Err(state.stop(FormatFault::DuplicateMetadataKey { key }));
                }
            };
        }
        Ok(())
    }
}

/// One tensor: `{"dtype": …, "shape": …, "data_offsets": …}`.
struct Tensor<'s, 'a>(&'s mut State<'a>);

impl Tensor<'_, '_> {
    fn name(&self) -> String {
        match &self.0.within {
            Within::Tensor(name) => name.clone(),
            Within::Top | Within::Metadata(_) => String::new(),
        }
    }

    fn set_once<T, E: serde::de::Error>(
        &mut self,
        slot: &mut Option<T>,
        field: &'static str,
        value: T,
    ) -> Result<(), E> {
        if slot.replace(value).is_some() {
            let name = self.name();
            return Err(self.0.stop(FormatFault::DuplicateField { name, field }));
        }
        Ok(())
    }

    fn require<T, E: serde::de::Error>(
        &mut self,
        slot: Option<T>,
        field: &'static str,
    ) -> Result<T, E> {
        slot.ok_or_else(|| {
            let name = self.name();
            self.0.stop(FormatFault::MissingField { name, field })
        })
    }
}

impl<'de> DeserializeSeed<'de> for Tensor<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Tensor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(field) = map.next_key_seed(FieldName)? {
            match field {
                Field::Dtype => {
                    let value = map.next_value_seed(Tag)?;
                    self.set_once(&mut dtype, "dtype", value)?;
                }
                Field::Shape => {
                    let value = map.next_value_seed(Dims)?;
                    self.set_once(&mut shape, "shape", value)?;
                }
                Field::DataOffsets => {
                    let value = map.next_value_seed(Offsets)?;
                    self.set_once(&mut offsets, "data_offsets", value)?;
                }
                Field::Unknown => map.next_value_seed(Skip)?,
            }
        }
        let dtype = self.require(dtype, "dtype")?;
        let shape = self.require(shape, "shape")?;
        let (begin, end) = self.require(offsets, "data_offsets")?;
        let name = self.name();
        let shape = match shape {
            Ok(shape) => shape,
            Err(source) => return Err(self.0.stop(FormatFault::InvalidShape { name, source })),
        };
        self.0.header.tensors.push(RawTensor {
            name,
            dtype,
            shape,
            begin,
            end,
        });
        Ok(())
    }
}

enum Field {
    Dtype,
    Shape,
    DataOffsets,
    Unknown,
}

struct FieldName;

impl<'de> DeserializeSeed<'de> for FieldName {
    type Value = Field;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Field, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for FieldName {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Field, E> {
        Ok(match name {
            "dtype" => Field::Dtype,
            "shape" => Field::Shape,
            "data_offsets" => Field::DataOffsets,
            _ => Field::Unknown,
        })
    }
}

struct Tag;

impl<'de> DeserializeSeed<'de> for Tag {
    type Value = WeightDType;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<WeightDType, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Tag {
    type Value = WeightDType;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dtype tag")
    }

    fn visit_str<E>(self, tag: &str) -> Result<WeightDType, E> {
        Ok(WeightDType::from_tag(tag))
    }
}

/// A shape of any length, of which no more than [`MAX_RANK`] sizes are kept.
struct Dims;

impl<'de> DeserializeSeed<'de> for Dims {
    type Value = Result<Shape, TypeError>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Dims {
    type Value = Result<Shape, TypeError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of sizes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut dims = [0; MAX_RANK];
        let mut rank = 0;
        while let Some(dim) = seq.next_element::<usize>()? {
            if let Some(slot) = dims.get_mut(rank) {
                *slot = dim;
            }
            rank += 1;
        }
        Ok(match dims.get(..rank) {
            Some(dims) => Shape::from_dims(dims),
            None => Err(TypeError::RankTooHigh {
                rank,
                max: MAX_RANK,
            }),
        })
    }
}

struct Offsets;

impl<'de> DeserializeSeed<'de> for Offsets {
    type Value = (u64, u64);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(u64, u64), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Offsets {
    type Value = (u64, u64);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("data_offsets of two numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(u64, u64), A::Error> {
        let (Some(begin), Some(end)) = (seq.next_element()?, seq.next_element()?) else {
            return Err(A::Error::custom("data_offsets has fewer than two numbers"));
        };
        if seq.next_element::<IgnoredAny>()?.is_some() {
            return Err(A::Error::custom("data_offsets has more than two numbers"));
        }
        Ok((begin, end))
    }
}

/// Any value, read in full and dropped.
///
/// serde's `IgnoredAny` lets serde_json skim: it passes `1e999` and lone
/// surrogates, which a reader that keeps the value refuses.
pub(super) struct Skip;

impl<'de> DeserializeSeed<'de> for Skip {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Skip {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Skip)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_key_seed(Skip)?.is_some() {
            map.next_value_seed(Skip)?;
        }
        Ok(())
    }
}
