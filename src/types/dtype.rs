//! [`DType`]: one list says everything about every dtype.
//!
//! ```text
//!   F16 = 1, 16 bits, "float16", Some("F16")
//!   code ┘   width    name       safetensors tag, a door of its own
//! ```
//!
//! The enum, [`DType::ALL`] and the table behind the methods are made from that list, so
//! none of them can forget a dtype. That codes are dense is checked when this compiles;
//! that they never change, `tests/types.rs` checks against a second copy.

use std::fmt;
use std::str::FromStr;

use super::TypeError;

struct Row {
    bits: usize,
    name: &'static str,
    tag: Option<&'static str>,
}

macro_rules! dtypes {
    (
        $(#[$enum_meta:meta])*
        pub enum DType {
            $($(#[$meta:meta])* $dtype:ident = $code:literal, $bits:literal bits, $name:literal, $tag:expr;)*
        }
    ) => {
        $(#[$enum_meta])*
        pub enum DType {
            $($(#[$meta])* $dtype = $code,)*
        }

        impl DType {
            /// Every dtype, in the order of the codes.
            pub const ALL: [DType; 16] = [$(DType::$dtype),*];
        }

        /// A row for each dtype, found by its code.
        const TABLE: [Row; DType::ALL.len()] = [
            $(Row { bits: $bits, name: $name, tag: $tag },)*
        ];
    };
}

dtypes! {
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
        F32 = 0, 32 bits, "float32", Some("F32");
        /// IEEE 754 binary16.
        F16 = 1, 16 bits, "float16", Some("F16");
        /// bfloat16: the upper half of a binary32.
        BF16 = 2, 16 bits, "bfloat16", Some("BF16");
        /// Signed, 8 bits.
        I8 = 3, 8 bits, "int8", Some("I8");
        /// Unsigned, 8 bits.
        U8 = 4, 8 bits, "uint8", Some("U8");
        /// Signed, 32 bits.
        I32 = 5, 32 bits, "int32", Some("I32");
        /// Signed, 64 bits.
        I64 = 6, 64 bits, "int64", Some("I64");
        /// One byte, 0 or 1.
        Bool = 7, 8 bits, "bool", Some("BOOL");
        /// 8-bit float, 4 exponent bits, OCP's `e4m3fn`. Reserved.
        F8E4M3 = 8, 8 bits, "fp8_e4m3", Some("F8_E4M3");
        /// Two to a byte, the lower index in the low nibble. Reserved.
        I4 = 9, 4 bits, "int4", None;
        /// Signed, 16 bits.
        I16 = 10, 16 bits, "int16", Some("I16");
        /// Unsigned, 16 bits.
        U16 = 11, 16 bits, "uint16", Some("U16");
        /// Unsigned, 32 bits.
        U32 = 12, 32 bits, "uint32", Some("U32");
        /// Unsigned, 64 bits.
        U64 = 13, 64 bits, "uint64", Some("U64");
        /// IEEE 754 binary64.
        F64 = 14, 64 bits, "float64", Some("F64");
        /// 8-bit float, 5 exponent bits, OCP's `e5m2`. Reserved.
        F8E5M2 = 15, 8 bits, "fp8_e5m2", Some("F8_E5M2");
    }
}

// The table is found by the code, so codes are dense and in order.
const _: () = {
    let mut code = 0;
    while code < DType::ALL.len() {
        assert!(DType::ALL[code] as usize == code);
        code += 1;
    }
};

impl DType {
    /// The stable code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The dtype of a stable code, or `None` for a code that is not given out.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<DType> {
        let code = code as usize;
        if code < Self::ALL.len() {
            Some(Self::ALL[code])
        } else {
            None
        }
    }

    /// Width of one element in bits.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> usize {
        TABLE[self as usize].bits
    }

    /// Width of one element in bytes.
    ///
    /// # Panics
    /// For `I4`, two of which share a byte: reason in [`bits`](DType::bits).
    #[inline]
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
    #[inline]
    #[must_use]
    pub const fn is_sub_byte(self) -> bool {
        self.bits() < 8
    }

    /// Can it only be named and sized so far? No tensor of it can be made.
    #[inline]
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
        Self::ALL
            .into_iter()
            .find(|dtype| dtype.safetensors_tag() == Some(tag))
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = TypeError;

    /// The dtype of a [`name`](DType::name), exact spelling.
    ///
    /// # Errors
    /// [`UnknownDType`](TypeError::UnknownDType).
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        DType::ALL
            .into_iter()
            .find(|dtype| dtype.name() == name)
            .ok_or_else(|| TypeError::UnknownDType { name: name.into() })
    }
}
