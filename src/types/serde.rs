//! The types as serde sees them, behind the feature `serde`.
//!
//! ```text
//!   DType     its name       "bfloat16"
//!   Device    its text form  "cuda:0"
//!   Shape     its sizes      [2, 3, 4]        Strides   the same
//!   Bool8     a boolean      true
//! ```
//!
//! What comes in passes the same checks as data from anywhere else, and makes no heap
//! block on the way but for an error.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use super::{Bool8, DType, Device, MAX_RANK, Shape, Strides, TypeError};

/// Reads a value from its text form.
struct Text<T> {
    what: &'static str,
    value: PhantomData<T>,
}

impl<T: FromStr<Err = TypeError>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

/// Reads up to [`MAX_RANK`] numbers.
struct Numbers<T> {
    what: &'static str,
    value: PhantomData<T>,
}

impl<'de, T> Visitor<'de> for Numbers<T>
where
    T: for<'a> TryFrom<&'a [usize], Error = TypeError>,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: up to {MAX_RANK} numbers", self.what)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<T, A::Error> {
        let mut values = [0; MAX_RANK];
        let mut rank = 0;
        while let Some(value) = seq.next_element()? {
            let Some(place) = values.get_mut(rank) else {
                let error = TypeError::RankTooHigh {
                    rank: MAX_RANK + 1, // or more: the rest is not read
                    max: MAX_RANK,
                };
                return Err(A::Error::custom(error));
            };
            *place = value;
            rank += 1;
        }
        T::try_from(&values[..rank]).map_err(A::Error::custom)
    }
}

macro_rules! as_text {
    ($($type:ty, $what:literal);*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(Text { what: $what, value: PhantomData })
            }
        }
    )*};
}

as_text!(DType, "the name of a dtype"; Device, "a device");

macro_rules! as_numbers {
    ($($type:ty, $values:ident, $what:literal);*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.$values().serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_seq(Numbers { what: $what, value: PhantomData })
            }
        }
    )*};
}

as_numbers!(Shape, dims, "a shape"; Strides, values, "strides");

impl Serialize for Bool8 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bool(self.get())
    }
}

impl<'de> Deserialize<'de> for Bool8 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bool::deserialize(deserializer).map(Bool8::new)
    }
}
