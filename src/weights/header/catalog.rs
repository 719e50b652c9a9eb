//! [`Catalog`]: all that a header lists, as its own text and a few numbers a tensor.
//!
//! ```text
//!  text     {"a.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"\u0062":{…
//!             ^^^^^^^^
//!  records   name: 2, 8 | begin 0 | end 24 | shape: 0, rank 2 | dtype 0      32 bytes each
//!  dims      2, 3, …          the sizes of all shapes, one behind the other
//!  dtypes    F32, …           each that occurs, once
//!  side      b…               names that the text spells with escapes
//! ```
//!
//! A struct with a `String` and a shape of its own would take six times that for a tensor,
//! and a header may list millions.

use crate::types::Shape;
use crate::weights::WeightDType;

/// The most tags of dtypes in one header that the format does not define. It has 22 of its
/// own; every new one is searched for among these.
pub(super) const MAX_UNKNOWN_DTYPES: usize = 64;

/// Where a name is: at a byte of the text or, counted on from the end of that, of the side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name {
    at: u32,
    len: u32,
}

impl Name {
    /// The name `part`, where it stands in `text` or, if it is not part of that, a copy of it
    /// at the end of `side`.
    pub(super) fn keep(part: &str, text: &str, side: &mut String) -> Self {
        let distance = part.as_ptr().addr().checked_sub(text.as_ptr().addr());
        let inside = distance.filter(|at| text.len().checked_sub(*at) >= Some(part.len()));
        match inside {
            Some(at) => Self::new(at, part),
            None => Self::copy(part, text, side),
        }
    }

    /// A copy of `name` at the end of `side`.
    pub(super) fn copy(name: &str, text: &str, side: &mut String) -> Self {
        let at = text.len() + side.len();
        side.push_str(name);
        Self::new(at, name)
    }

    fn new(at: usize, name: &str) -> Self {
        Self {
            at: narrow(at),
            len: narrow(name.len()),
        }
    }
}

/// The texts that names are in.
#[derive(Clone, Copy)]
pub(super) struct Names<'a> {
    pub(super) text: &'a str,
    pub(super) side: &'a str,
}

impl<'a> Names<'a> {
    #[inline]
    pub(super) fn get(self, name: Name) -> &'a str {
        let (at, len) = (name.at as usize, name.len as usize);
        match at.checked_sub(self.text.len()) {
            None => &self.text[at..at + len],
            Some(at) => &self.side[at..at + len],
        }
    }
}

/// One tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) name: Name,
    /// Its first size in `dims`.
    shape: u32,
    /// Position in `dtypes`.
    dtype: u16,
    rank: u8,
}

/// What was read of a text, without the text.
#[derive(Debug, Clone, Default)]
pub(super) struct Lists {
    pub(super) records: Vec<Record>,
    pub(super) side: String,
    dims: Vec<usize>,
    pub(super) dtypes: DTypes,
}

impl Lists {
    /// One more tensor.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the rank of a shape is at most 8"
    )]
    pub(super) fn push(&mut self, name: Name, dtype: u16, shape: &Shape, begin: u64, end: u64) {
        let at = narrow(self.dims.len());
        self.dims.extend_from_slice(shape.dims());
        self.records.push(Record {
            begin,
            end,
            name,
            shape: at,
            dtype,
            rank: shape.rank() as u8,
        });
    }

    /// Gives back what the lists have taken beyond their lengths.
    pub(super) fn shrink(&mut self) {
        self.records.shrink_to_fit();
        self.side.shrink_to_fit();
        self.dims.shrink_to_fit();
    }
}

/// The dtypes of a header, each once.
#[derive(Debug, Clone, Default)]
pub(super) struct DTypes {
    all: Vec<WeightDType>,
    /// How many of them the format does not define.
    unknown: usize,
    /// The one asked for last: neighbours mostly have the same.
    last: u16,
}

impl DTypes {
    /// The position of this tag; `None` if it would be one unknown tag too many.
    pub(super) fn position(&mut self, tag: &str) -> Option<u16> {
        let is_last = (self.all.get(usize::from(self.last))).is_some_and(|last| last.tag() == tag);
        if !is_last {
            let found = self.all.iter().position(|dtype| dtype.tag() == tag);
            let at = match found {
                Some(at) => at,
                None => self.add(WeightDType::from_tag(tag))?,
            };
            self.last = u16::try_from(at).ok()?;
        }
        Some(self.last)
    }

    fn add(&mut self, dtype: WeightDType) -> Option<usize> {
        if dtype.bits().is_none() {
            if self.unknown == MAX_UNKNOWN_DTYPES {
                return None;
            }
            self.unknown += 1;
        }
        self.all.push(dtype);
        Some(self.all.len() - 1)
    }
}

/// A header's text and what it lists.
#[derive(Debug, Clone)]
pub(super) struct Catalog {
    pub(super) text: String,
    pub(super) lists: Lists,
}

impl Catalog {
    /// The texts, and the records to be put in order: two borrows that do not meet.
    pub(super) fn parts(&mut self) -> (Names<'_>, &mut [Record]) {
        let names = Names {
            text: &self.text,
            side: &self.lists.side,
        };
        (names, &mut self.lists.records)
    }

    #[inline]
    pub(super) fn records(&self) -> &[Record] {
        &self.lists.records
    }

    #[inline]
    pub(super) fn name(&self, record: &Record) -> &str {
        let names = Names {
            text: &self.text,
            side: &self.lists.side,
        };
        names.get(record.name)
    }

    #[inline]
    pub(super) fn dtype(&self, record: &Record) -> &WeightDType {
        &self.lists.dtypes.all[usize::from(record.dtype)]
    }

    pub(super) fn shape(&self, record: &Record) -> Shape {
        let dims = &self.lists.dims[record.shape as usize..][..usize::from(record.rank)];
        Shape::from_dims(dims).expect("it came from a shape")
    }
}

/// A position in a header. [`HeaderLimits::header_bytes`](super::HeaderLimits) keeps a text and
/// its side below 32 bits together, and a text has fewer sizes than bytes.
fn narrow(position: usize) -> u32 {
    u32::try_from(position).expect("a header of less than 2 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_costs_32_bytes_and_its_sizes() {
        assert_eq!(size_of::<Record>(), 32);
    }

    #[test]
    fn a_name_stays_in_the_text_unless_it_is_none_of_it() {
        let (text, mut side) = (r#"{"abc":1}"#, String::from("x"));
        let inside = Name::keep(&text[2..5], text, &mut side);
        let empty = Name::keep(&text[9..], text, &mut side);
        let outside = Name::keep("abc", text, &mut side);
        assert_eq!(side, "xabc");
        let names = Names { text, side: &side };
        assert_eq!(
            [inside, empty, outside].map(|name| names.get(name)),
            ["abc", "", "abc"]
        );
    }
}
