//! The JSON of a header, read without building a tree.
//!
//! serde_json drives; the visitors here see every key as it comes. So a key
//! that comes twice is seen twice (a map type would silently keep the last,
//! and two readers of one file would disagree about it), a tensor costs the one
//! record that it ends up in, and what nobody asked for costs nothing. Names are
//! borrowed from the text: for most headers no heap block is made for a tensor.
//!
//! What these visitors accept, the reference reader accepts too: even fields
//! that are skipped are read as it reads them, numbers and escapes included.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};

use super::HeaderLimits;
use super::catalog::{Lists, MAX_UNKNOWN_DTYPES, Name, Names};
use super::visit::{Dims, Field, FieldName, NameIn, Offsets, Skip, Tag};
use crate::weights::FormatFault;
use crate::weights::quoted::reason;

/// Everything that a header says, in the order of the text; numbers not yet compared
/// with anything.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) lists: Lists,
    pub(super) metadata: BTreeMap<String, String>,
}

/// Reads the text of a header, which is no longer than [`HeaderLimits::header_bytes`].
pub(super) fn parse(text: &str, limits: &HeaderLimits) -> Result<Parsed, FormatFault> {
    let mut state = State {
        limits,
        text,
        parsed: Parsed::default(),
        within: Within::Top,
        fault: None,
    };
    let mut json = serde_json::Deserializer::from_str(text);
    let result = json
        .deserialize_map(Top(&mut state))
        .and_then(|()| json.end());
    match result {
        Ok(()) => Ok(state.parsed),
        Err(error) => Err(state.explain(&error)),
    }
}

/// What has been read, and where the reader stands, for the error message.
struct State<'a> {
    limits: &'a HeaderLimits,
    text: &'a str,
    parsed: Parsed,
    within: Within,
    /// A fault that JSON has no word for. The visitor that set it made serde stop.
    fault: Option<FormatFault>,
}

#[derive(Clone, Copy)]
enum Within {
    Top,
    /// `__metadata__`, before its first key.
    Metadata,
    MetadataKey(Name),
    Tensor(Name),
}

impl State<'_> {
    /// Remembers `fault` and gives back the error that makes serde stop.
    fn stop<E: serde::de::Error>(&mut self, fault: FormatFault) -> E {
        self.fault = Some(fault);
        E::custom("see the fault")
    }

    /// What a seed needs to read a name.
    fn name_in(&mut self) -> NameIn<'_> {
        NameIn {
            text: self.text,
            side: &mut self.parsed.lists.side,
        }
    }

    fn name(&self, name: Name) -> &str {
        let names = Names {
            text: self.text,
            side: &self.parsed.lists.side,
        };
        names.get(name)
    }

    fn explain(mut self, error: &serde_json::Error) -> FormatFault {
        if let Some(fault) = self.fault.take() {
            return fault;
        }
        let reason = reason(error);
        let name = |name| self.name(name).to_owned();
        match self.within {
            // Broken JSON is broken wherever it happens to stop.
            _ if !error.is_data() => FormatFault::BadJson { reason },
            Within::Top => FormatFault::BadJson { reason },
            Within::Metadata => FormatFault::BadMetadataValue {
                key: String::new(),
                reason,
            },
            Within::MetadataKey(key) => FormatFault::BadMetadataValue {
                key: name(key),
                reason,
            },
            Within::Tensor(tensor) => FormatFault::BadField {
                name: name(tensor),
                reason,
            },
        }
    }
}

/// The header itself.
struct Top<'s, 'a>(&'s mut State<'a>);

impl<'de> Visitor<'de> for Top<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object that lists tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let state = self.0;
        let mut metadata_seen = false;
        while let Some(name) = map.next_key_seed(state.name_in())? {
            if state.name(name) == "__metadata__" {
                if metadata_seen {
                    return Err(state.stop(FormatFault::DuplicateMetadata));
                }
                metadata_seen = true;
                state.within = Within::Metadata;
                map.next_value_seed(Metadata(state))?;
            } else {
                let max_tensors = state.limits.max_tensors;
                if state.parsed.lists.records.len() >= max_tensors {
                    return Err(state.stop(FormatFault::TooManyTensors { max_tensors }));
                }
                state.within = Within::Tensor(name);
                map.next_value_seed(Tensor { state, name })?;
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
        let max_metadata = state.limits.max_metadata;
        let side_bytes = state.parsed.lists.side.len();
        while let Some(key) = map.next_key_seed(state.name_in())? {
            if state.parsed.metadata.len() >= max_metadata {
                return Err(state.stop(FormatFault::TooMuchMetadata { max_metadata }));
            }
            state.within = Within::MetadataKey(key);
            let value = map.next_value::<String>()?;
            let key = state.name(key).to_owned();
            // It has a string of its own now.
            state.parsed.lists.side.truncate(side_bytes);
            match state.parsed.metadata.entry(key) {
                Entry::Vacant(entry) => entry.insert(value),
                Entry::Occupied(entry) => {
                    let key = entry.key().clone();
                    return Err(state.stop(FormatFault::DuplicateMetadataKey { key }));
                }
            };
            state.within = Within::Metadata;
        }
        Ok(())
    }
}

/// One tensor: `{"dtype": …, "shape": …, "data_offsets": …}`.
struct Tensor<'s, 'a> {
    state: &'s mut State<'a>,
    name: Name,
}

impl Tensor<'_, '_> {
    /// Stops with a fault of this tensor.
    fn stop<E: serde::de::Error>(self, fault: impl FnOnce(String) -> FormatFault) -> E {
        let name = self.state.name(self.name).to_owned();
        self.state.stop(fault(name))
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

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(field) = map.next_key_seed(FieldName)? {
            // The first of two values is passed over, for the error names the field alone.
            let twice = match field {
                Field::Dtype => {
                    let tag = Tag(&mut self.state.parsed.lists.dtypes);
                    let value = map.next_value_seed(tag)?;
                    dtype.replace(value).map(|_| "dtype")
                }
                Field::Shape => {
                    let value = map.next_value_seed(Dims)?;
                    shape.replace(value).map(|_| "shape")
                }
                Field::DataOffsets => {
                    let value = map.next_value_seed(Offsets)?;
                    offsets.replace(value).map(|_| "data_offsets")
                }
                Field::Unknown => {
                    map.next_value_seed(Skip)?;
                    None
                }
            };
            if let Some(field) = twice {
                return Err(self.stop(|name| FormatFault::DuplicateField { name, field }));
            }
        }
        let missing = |field| move |name| FormatFault::MissingField { name, field };
        let Some(dtype) = dtype else {
            return Err(self.stop(missing("dtype")));
        };
        let Some(shape) = shape else {
            return Err(self.stop(missing("shape")));
        };
        let Some((begin, end)) = offsets else {
            return Err(self.stop(missing("data_offsets")));
        };
        let Some(dtype) = dtype else {
            let max_dtypes = MAX_UNKNOWN_DTYPES;
            return Err(self.stop(|name| FormatFault::TooManyDTypes { name, max_dtypes }));
        };
        match shape {
            Ok(shape) => {
                let lists = &mut self.state.parsed.lists;
                lists.push(self.name, dtype, &shape, begin, end);
                Ok(())
            }
            Err(source) => Err(self.stop(|name| FormatFault::InvalidShape { name, source })),
        }
    }
}
