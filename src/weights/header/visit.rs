//! The small values of a header: names, field names, tags, shapes, ranges, and what is
//! passed over.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::catalog::{DTypes, Name};
use crate::types::{MAX_RANK, Shape, TypeError};

/// A name, left where it stands in `text` if it is spelled there without escapes.
pub(super) struct NameIn<'s> {
    pub(super) text: &'s str,
    pub(super) side: &'s mut String,
}

impl<'de> DeserializeSeed<'de> for NameIn<'_> {
    type Value = Name;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Name, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for NameIn<'_> {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name, E> {
        Ok(Name::keep(name, self.text, self.side))
    }

    fn visit_str<E>(self, name: &str) -> Result<Name, E> {
        Ok(Name::copy(name, self.text, self.side))
    }
}

/// The fields of a tensor.
pub(super) enum Field {
    Dtype,
    Shape,
    DataOffsets,
    Unknown,
}

pub(super) struct FieldName;

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

/// The position of a tag among the dtypes; `None` if it is one too many.
pub(super) struct Tag<'s>(pub(super) &'s mut DTypes);

impl<'de> DeserializeSeed<'de> for Tag<'_> {
    type Value = Option<u16>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<u16>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Tag<'_> {
    type Value = Option<u16>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dtype tag")
    }

    fn visit_str<E>(self, tag: &str) -> Result<Option<u16>, E> {
        Ok(self.0.position(tag))
    }
}

/// A shape of any length, of which no more than [`MAX_RANK`] sizes are kept.
pub(super) struct Dims;

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

/// The two ends of a range.
pub(super) struct Offsets;

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
pub(in crate::weights) struct Skip;

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
