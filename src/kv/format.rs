use std::fmt;

use crate::types::DType;

use super::{KvDims, KvError};

/// How a cache keeps its elements, by the name that serving programs use.
///
/// A [`KvSpec`](super::KvSpec) is made of the first three. The others keep scales beside
/// the data; they have a name here so that asking for one is an error that says so, and
/// so that what such a format demands of a model's sizes is checked as it will be.
///
/// ```
/// use tenslab::DType;
/// use tenslab::kv::{KvDims, KvError, KvFormat, KvSpec};
///
/// assert_eq!(KvFormat::from_name("bfloat16"), Some(KvFormat::Bf16));
///
/// let dims = KvDims { layers: 32, kv_heads: 32, key_dim: 80, value_dim: 80, block_tokens: 16 };
/// assert_eq!(KvSpec::from_format(dims, KvFormat::Bf16)?, KvSpec::new(dims, DType::BF16)?);
/// let error = KvSpec::from_format(dims, KvFormat::Q8_0).unwrap_err();
/// assert_eq!(error.to_string(), "q8_0 keeps rows in groups of 32, which key_dim 80 is not a multiple of");
/// # Ok::<(), KvError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvFormat {
    /// float32.
    F32,
    /// float16.
    F16,
    /// bfloat16.
    Bf16,
    /// 8-bit floats, 4 exponent bits. Reserved.
    Fp8E4M3,
    /// 8-bit floats, 5 exponent bits. Reserved.
    Fp8E5M2,
    /// 8-bit integers with a scale for each token and head. Reserved.
    Int8,
    /// 8-bit integers with a float16 scale for each 32 of a row. Reserved.
    Q8_0,
    /// 4-bit integers with a float16 scale for each 32 of a row. Reserved.
    Q4_0,
}

/// Elements of a row that share a scale in `q8_0` and `q4_0`.
const GROUP: usize = 32;

impl KvFormat {
    /// Every format.
    pub const ALL: [Self; 8] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Fp8E4M3,
        Self::Fp8E5M2,
        Self::Int8,
        Self::Q8_0,
        Self::Q4_0,
    ];

    /// Its names; the first is the one that is printed.
    const fn names(self) -> &'static [&'static str] {
        match self {
            Self::F32 => &["float32", "f32", "fp32", "float"],
            Self::F16 => &["float16", "f16", "fp16", "half"],
            Self::Bf16 => &["bfloat16", "bf16"],
            Self::Fp8E4M3 => &["fp8_e4m3", "fp8", "float8_e4m3fn"],
            Self::Fp8E5M2 => &["fp8_e5m2", "float8_e5m2"],
            Self::Int8 => &["int8", "i8"],
            Self::Q8_0 => &["q8_0"],
            Self::Q4_0 => &["q4_0"],
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.names()[0]
    }

    /// The format of that name: `float32`, `f32`, `bf16`, `fp8`, `q8_0`, ... Exact
    /// spelling, in lower case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|format| format.names().contains(&name))
    }

    /// The dtype of a cache in this format, if there can be one of `dims`.
    pub(super) fn dtype_for(self, dims: &KvDims) -> Result<DType, KvError> {
        match self {
            Self::F32 => return Ok(DType::F32),
            Self::F16 => return Ok(DType::F16),
            Self::Bf16 => return Ok(DType::BF16),
            Self::Fp8E4M3 | Self::Fp8E5M2 | Self::Int8 => {}
            Self::Q8_0 | Self::Q4_0 => {
                for (what, dim) in [("key_dim", dims.key_dim), ("value_dim", dims.value_dim)] {
                    if !dim.is_multiple_of(GROUP) {
                        return Err(KvError::RaggedRows {
                            format: self,
                            what,
                            dim,
                            group: GROUP,
                        });
                    }
                }
            }
        }
        Err(KvError::UnsupportedFormat { format: self })
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
