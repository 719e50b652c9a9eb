use std::fmt;
use std::str::FromStr;

use super::TypeError;

/// What one element of a tensor is.
///
/// The codes are stable: they reach files, so new ones are appended and none
/// is ever renumbered. 0 to 9 are what an inference engine computes with; the rest are
/// there because checkpoints hold them.
///
/// `F8E4M3`, `F8E5M2` and `I4` are [reserved](DType::is_reserved): they can be
/// named and sized, and no tensor of them can be made yet.
///
/// ```
/// use tenslab::DType;
///
/// assert_eq!(DType::BF16.bytes(), 2);
/// assert_eq!("bfloat16".parse::<DType>()?, DType::BF16);
/// assert_eq!(DType::from_safetensors_tag("BF16"), Some(DType::BF16));
/// # Ok::<(), tenslab::types::TypeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary32.
    F32 = 0,
    /// IEEE 754 binary16.
    F16 = 1,
    /// bfloat16: the upper half of a binary32.
    BF16 = 2,
    /// Signed, 8 bits.
    I8 = 3,
    /// Unsigned, 8 bits.
    U8 = 4,
    /// Signed, 32 bits.
    I32 = 5,
    /// Signed, 64 bits.
    I64 = 6,
    /// One byte, 0 or 1.
    Bool = 7,
    /// 8-bit float, 4 exponent bits, OCP's `e4m3fn`. Reserved.
    F8E4M3 = 8,
    /// Two to a byte, the lower index in the low nibble. Reserved.
    I4 = 9,
    /// Signed, 16 bits.
    I16 = 10,
    /// Unsigned, 16 bits.
    U16 = 11,
    /// Unsigned, 32 bits.
    U32 = 12,
    /// Unsigned, 64 bits.
    U64 = 13,
    /// IEEE 754 binary64.
    F64 = 14,
    /// 8-bit float, 5 exponent bits, OCP's `e5m2`. Reserved.
    F8E5M2 = 15,
}

/// One row for each dtype, in the order of the codes.
struct Row {
    dtype: DType,
    bits: usize,
    name: &'static str,
    tag: Option<&'static str>,
}

const fn row(dtype: DType, bits: usize, name: &'static str, tag: Option<&'static str>) -> Row {
    Row {
        dtype,
        bits,
        name,
        tag,
    }
}

const TABLE: [Row; 16] = [
    row(DType::F32, 32, "float32", Some("F32")),
    row(DType::F16, 16, "float16", Some("F16")),
    row(DType::BF16, 16, "bfloat16", Some("BF16")),
    row(DType::I8, 8, "int8", Some("I8")),
    row(DType::U8, 8, "uint8", Some("U8")),
    row(DType::I32, 32, "int32", Some("I32")),
    row(DType::I64, 64, "int64", Some("I64")),
    row(DType::Bool, 8, "bool", Some("BOOL")),
    row(DType::F8E4M3, 8, "fp8_e4m3", Some("F8_E4M3")),
    row(DType::I4, 4, "int4", None),
    row(DType::I16, 16, "int16", Some("I16")),
    row(DType::U16, 16, "uint16", Some("U16")),
    row(DType::U32, 32, "uint32", Some("U32")),
    row(DType::U64, 64, "uint64", Some("U64")),
    row(DType::F64, 64, "float64", Some("F64")),
    row(DType::F8E5M2, 8, "fp8_e5m2", Some("F8_E5M2")),
];

// The table is read by code, so it has to be dense and in order.
const _: () = {
    let mut code = 0;
    while code < TABLE.len() {
        assert!(TABLE[code].dtype as usize == code);
        assert!(DType::ALL[code] as usize == code);
        code += 1;
    }
};

impl DType {
    /// Every dtype, in the order of the codes.
    pub const ALL: [DType; 16] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I8,
        DType::U8,
        DType::I32,
        DType::I64,
        DType::Bool,
        DType::F8E4M3,
        DType::I4,
        DType::I16,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::F64,
        DType::F8E5M2,
    ];

    /// The stable code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The dtype of a stable code, or `None` for a code that is not given out.
    #[must_use]
    pub fn from_code(code: u8) -> Option<DType> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Width of one element in bits.
    #[must_use]
    pub const fn bits(self) -> usize {
        TABLE[self as usize].bits
    }

    /// Width of one element in bytes.
    ///
    /// # Panics
    /// For `I4`, two of which share a byte: reason in [`bits`](DType::bits).
    #[must_use]
    #[track_caller]
    pub const fn bytes(self) -> usize {
        assert!(
            !self.is_sub_byte(),
            "int4 elements have no width in whole bytes"
        );
        self.bits() / 8
    }

    /// The name that `config.json` files and PyTorch use: `"bfloat16"`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        TABLE[self as usize].name
    }

    /// Is it a floating-point format, the 8-bit ones included?
    #[must_use]
    pub const fn is_floating_point(self) -> bool {
        matches!(
            self,
            Self::F32 | Self::F16 | Self::BF16 | Self::F64 | Self::F8E4M3 | Self::F8E5M2
        )
    }

    /// Is it an integer? `Bool` is not: it is neither kind.
    #[must_use]
    pub const fn is_integral(self) -> bool {
        !self.is_floating_point() && !matches!(self, Self::Bool)
    }

    /// Do several elements share a byte? Only `I4`'s do.
    #[must_use]
    pub const fn is_sub_byte(self) -> bool {
        self.bits() < 8
    }

    /// Can it only be named and sized so far? No tensor of it can be made.
    #[must_use]
    pub const fn is_reserved(self) -> bool {
        matches!(self, Self::F8E4M3 | Self::F8E5M2 | Self::I4)
    }

    /// The tag in a safetensors header, where the format has one: `"BF16"`.
    #[must_use]
    pub const fn safetensors_tag(self) -> Option<&'static str> {
        TABLE[self as usize].tag
    }

    /// The dtype of a safetensors tag, exact spelling.
    ///
    /// This is a door of its own: `"F32"` is no dtype name and `"float32"` no tag.
    #[must_use]
    pub fn from_safetensors_tag(tag: &str) -> Option<DType> {
        TABLE
            .iter()
            .find(|row| row.tag == Some(tag))
            .map(|row| row.dtype)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = TypeError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        TABLE
            .iter()
            .find(|row| row.name == name)
            .map(|row| row.dtype)
            .ok_or_else(|| TypeError::UnknownDType { name: name.into() })
    }
}
