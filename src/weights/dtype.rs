use std::fmt;

use crate::types::DType;

/// The 22 tags of the safetensors format (0.8) and their widths in bits.
const TAGS: [(&str, u32); 22] = [
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
];

/// What a checkpoint says the elements of a tensor are.
///
/// Files hold formats that this crate has no host type for. Such a tensor is
/// listed, checked as far as its width is known, and its bytes can be reached;
/// it does not spoil its neighbours.
///
/// ```
/// use tenslab::DType;
/// use tenslab::weights::WeightDType;
///
/// assert_eq!(WeightDType::from_tag("BF16"), WeightDType::Host(DType::BF16));
///
/// let fp4 = WeightDType::from_tag("F4");            // in the format, not in this crate
/// assert_eq!((fp4.host(), fp4.bits()), (None, Some(4)));
///
/// let later = WeightDType::from_tag("F128");        // in neither
/// assert_eq!((later.host(), later.bits()), (None, None));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WeightDType {
    /// The crate has a dtype for it. It may still be a
    /// [reserved](DType::is_reserved) one, of which no tensor can be made.
    Host(DType),
    /// The crate has none: raw bytes only.
    Other {
        /// The tag as the file spells it.
        tag: Box<str>,
        /// Width of one element, where the format defines the tag.
        bits: Option<u32>,
    },
}

impl WeightDType {
    /// The meaning of a safetensors tag, exact spelling.
    #[must_use]
    pub fn from_tag(tag: &str) -> Self {
        let bits = TAGS
            .iter()
            .find(|(known, _)| *known == tag)
            .map(|&(_, bits)| bits);
        match (bits, DType::from_safetensors_tag(tag)) {
            (Some(_), Some(dtype)) => Self::Host(dtype),
            _ => Self::Other {
                tag: tag.into(),
                bits,
            },
        }
    }

    /// The tag as it stands in the file.
    #[must_use]
    pub fn tag(&self) -> &str {
        match self {
            // Every host dtype came from a tag; the name is for those made by hand.
            Self::Host(dtype) => dtype.safetensors_tag().unwrap_or(dtype.name()),
            Self::Other { tag, .. } => tag,
        }
    }

    /// Width of one element in bits; `None` for a tag that the format does not define.
    #[must_use]
    pub fn bits(&self) -> Option<u32> {
        match self {
            Self::Host(dtype) => u32::try_from(dtype.bits()).ok(),
            Self::Other { bits, .. } => *bits,
        }
    }

    /// The crate's own dtype, where there is one.
    #[must_use]
    pub fn host(&self) -> Option<DType> {
        match self {
            Self::Host(dtype) => Some(*dtype),
            Self::Other { .. } => None,
        }
    }

    /// The dtype of a tensor that can be made of it: a host dtype that is not reserved.
    #[must_use]
    pub fn loadable(&self) -> Option<DType> {
        self.host().filter(|dtype| !dtype.is_reserved())
    }
}

impl fmt::Display for WeightDType {
    /// The tag.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.tag())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_agree_with_the_host_dtypes() {
        for (tag, bits) in TAGS {
            let dtype = WeightDType::from_tag(tag);
            assert_eq!((dtype.tag(), dtype.bits()), (tag, Some(bits)));
        }
        let hosts = TAGS
            .iter()
            .filter(|(tag, _)| WeightDType::from_tag(tag).host().is_some());
        assert_eq!(hosts.count(), 15, "every host dtype but int4 has a tag");
    }

    #[test]
    fn spelling_is_exact() {
        for tag in ["f32", "I4", "F8_E4M3FN", "", " F32", "float32"] {
            let dtype = WeightDType::from_tag(tag);
            assert_eq!(
                dtype,
                WeightDType::Other {
                    tag: tag.into(),
                    bits: None
                }
            );
        }
    }
}
