//! One value, whatever the dtype: exact, where an `f64` alone would not be.

use std::fmt;

use crate::types::half::{bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32};
use crate::types::{Bool8, Element, bf16, f16};

/// A number as it is passed to [`full`](super::full) and as errors and reports show it.
///
/// `full(…, 1.5, …)`, `full(…, u64::MAX, …)` and `full(…, true, …)` all work; integers of
/// 64 bits stay exact. Two are equal if they are of one kind and one bit pattern, so a
/// NaN equals itself and 0 is not -0.
///
/// ```
/// use tenslab::ops::Number;
///
/// assert_eq!(Number::from(7_u8), Number::Unsigned(7));
/// assert_ne!(Number::from(7_u8), Number::from(7.0));
/// assert_eq!(Number::from(-1_i64).to_string(), "-1");
/// ```
#[derive(Debug, Clone, Copy)]
pub enum Number {
    /// Any floating-point value.
    Float(f64),
    /// A signed integer.
    Signed(i64),
    /// An unsigned integer, or a boolean as 0 or 1.
    Unsigned(u64),
}

impl Number {
    /// The nearest `f64`.
    #[must_use]
    pub const fn to_f64(self) -> f64 {
        match self {
            Number::Float(value) => value,
            Number::Signed(value) => value as f64,
            Number::Unsigned(value) => value as f64,
        }
    }

    /// As a `T`, if it is one: floats round to nearest and overflow to infinity, integers
    /// must be met exactly, a boolean is 0 or 1.
    pub(super) fn exactly<T: Numeric>(self) -> Option<T> {
        match self {
            Number::Float(value) if !T::DTYPE.is_floating_point() && value.fract() != 0.0 => None,
            Number::Float(value) => T::from_f64(value),
            Number::Signed(value) => T::from_i64(value),
            Number::Unsigned(value) => T::from_u64(value),
        }
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Number::Float(a), Number::Float(b)) => a.to_bits() == b.to_bits(),
            (Number::Signed(a), Number::Signed(b)) => a == b,
            (Number::Unsigned(a), Number::Unsigned(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Number {}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Float(value) => fmt::Display::fmt(value, f),
            Number::Signed(value) => fmt::Display::fmt(value, f),
            Number::Unsigned(value) => fmt::Display::fmt(value, f),
        }
    }
}

/// What a value widens to before it becomes another: a type that holds it exactly.
pub(super) trait Wide: Copy {
    /// As a `T`: floats round, fractions are cut towards zero, and what is then out of
    /// range is `None`.
    fn narrow<T: Numeric>(self) -> Option<T>;
    fn number(self) -> Number;
}

macro_rules! wide {
    ($($type:ty, $from:ident, $kind:ident);* $(;)?) => {$(
        impl Wide for $type {
            #[inline(always)]
            fn narrow<T: Numeric>(self) -> Option<T> {
                T::$from(self)
            }

            fn number(self) -> Number {
                Number::$kind(self)
            }
        }
    )*};
}

wide! {
    f64, from_f64, Float;
    i64, from_i64, Signed;
    u64, from_u64, Unsigned;
}

/// An element that is a number.
pub(super) trait Numeric: Element {
    type Wide: Wide;

    fn widen(self) -> Self::Wide;

    /// Fractions are cut towards zero; `None` where the rest is out of range or NaN.
    fn from_f64(value: f64) -> Option<Self>;
    fn from_i64(value: i64) -> Option<Self>;
    fn from_u64(value: u64) -> Option<Self>;

    fn number(self) -> Number {
        self.widen().number()
    }
}

macro_rules! integers {
    ($($type:ty: $wide:ty),* $(,)?) => {$(
        impl From<$type> for Number {
            fn from(value: $type) -> Self {
                Wide::number(<$wide>::from(value))
            }
        }

        impl Numeric for $type {
            type Wide = $wide;

            #[inline(always)]
            fn widen(self) -> $wide {
                <$wide>::from(self)
            }

            #[inline(always)]
            #[allow(
                clippy::cast_possible_truncation,
                reason = "checked against the range first; both bounds are powers of two or 0"
            )]
            fn from_f64(value: f64) -> Option<Self> {
                // `MAX` rounds up to a power of two where it has more than 53 bits.
                const END: f64 = 2.0 * (<$type>::MAX / 2 + 1) as f64;
                let whole = value.trunc();
                (whole >= <$type>::MIN as f64 && whole < END).then_some(whole as $type)
            }

            #[inline(always)]
            fn from_i64(value: i64) -> Option<Self> {
                Self::try_from(value).ok()
            }

            #[inline(always)]
            fn from_u64(value: u64) -> Option<Self> {
                Self::try_from(value).ok()
            }
        }
    )*};
}

integers! {
    i8: i64, u8: u64, i16: i64, u16: u64, i32: i64, u32: u64, i64: i64, u64: u64,
}

macro_rules! floats {
    ($($type:ty, $widen:expr, $narrow:expr);* $(;)?) => {$(
        impl From<$type> for Number {
            fn from(value: $type) -> Self {
                Number::Float($widen(value))
            }
        }

        impl Numeric for $type {
            type Wide = f64;

            #[inline(always)]
            fn widen(self) -> f64 {
                $widen(self)
            }

            #[inline(always)]
            fn from_f64(value: f64) -> Option<Self> {
                Some($narrow(value))
            }

            #[inline(always)]
            fn from_i64(value: i64) -> Option<Self> {
                Some($narrow(value as f64))
            }

            #[inline(always)]
            fn from_u64(value: u64) -> Option<Self> {
                Some($narrow(value as f64))
            }
        }
    )*};
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "to nearest, as the contract says"
)]
fn to_f32(value: f64) -> f32 {
    value as f32
}

floats! {
    f64, |value: f64| value, |value: f64| value;
    f32, |value: f32| f64::from(value), to_f32;
    f16, |value: f16| f64::from(f16_to_f32(value)), |value: f64| f16_from_f32(to_f32(value));
    bf16, |value: bf16| f64::from(bf16_to_f32(value)), |value: f64| bf16_from_f32(to_f32(value));
}

impl From<bool> for Number {
    fn from(value: bool) -> Self {
        Number::Unsigned(u64::from(value))
    }
}

/// 0 is false, 1 is true, and nothing else is a boolean.
impl Numeric for Bool8 {
    type Wide = u64;

    fn widen(self) -> u64 {
        u64::from(self.get())
    }

    fn from_f64(value: f64) -> Option<Self> {
        (value == 0.0 || value == 1.0).then(|| Bool8::new(value == 1.0))
    }

    fn from_i64(value: i64) -> Option<Self> {
        u64::try_from(value).ok().and_then(Self::from_u64)
    }

    fn from_u64(value: u64) -> Option<Self> {
        (value <= 1).then(|| Bool8::new(value == 1))
    }
}

/// `$body` with `$T` as the element of a dtype; an `Err` for a reserved one, of which
/// there is no tensor.
macro_rules! for_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $T = f32;
                $body
            }
            DType::F16 => {
                type $T = crate::types::f16;
                $body
            }
            DType::BF16 => {
                type $T = crate::types::bf16;
                $body
            }
            DType::F64 => {
                type $T = f64;
                $body
            }
            DType::I8 => {
                type $T = i8;
                $body
            }
            DType::U8 => {
                type $T = u8;
                $body
            }
            DType::I16 => {
                type $T = i16;
                $body
            }
            DType::U16 => {
                type $T = u16;
                $body
            }
            DType::I32 => {
                type $T = i32;
                $body
            }
            DType::U32 => {
                type $T = u32;
                $body
            }
            DType::I64 => {
                type $T = i64;
                $body
            }
            DType::U64 => {
                type $T = u64;
                $body
            }
            DType::Bool => {
                type $T = crate::types::Bool8;
                $body
            }
            dtype @ (DType::F8E4M3 | DType::F8E5M2 | DType::I4) => {
                Err(crate::tensor::TensorError::Unimplemented { dtype })
            }
        }
    };
}
pub(super) use for_dtype;
