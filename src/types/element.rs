//! Which Rust type stands for which dtype.

use std::fmt;

use super::DType;

/// IEEE 754 binary16 and bfloat16, as stored: the `half` crate's types.
///
/// They add and compare as `f32` does, so a NaN is not equal to itself and `-0` is `0`.
/// Convert with [`types::half`](super::half), which keeps a signalling NaN's bits; the
/// crate's own `from_f32` and `to_f32` set the quiet bit.
pub use half::{bf16, f16};

/// A Rust type whose values are the elements of a [`DType`].
///
/// ```
/// use tenslab::{DType, Element, bf16};
///
/// assert_eq!(<bf16 as Element>::DTYPE, DType::BF16);
/// ```
///
/// A type that is none does not compile:
///
/// ```compile_fail,E0277
/// let dtype = <bool as tenslab::Element>::DTYPE;      // a byte of 2 is no `bool`
/// ```
///
/// # Safety
/// - Every bit pattern of `size_of::<Self>()` bytes is a valid value. (So Rust's
///   `bool` cannot be one; [`Bool8`] is.)
/// - It has no padding, no pointers and no interior mutability.
/// - `size_of::<Self>() == DTYPE.bytes()`, and its alignment divides its size.
pub unsafe trait Element: Copy + Send + Sync + fmt::Debug + 'static {
    /// The dtype whose elements these are.
    const DTYPE: DType;
}

/// A boolean in one byte: 0 is false, everything else is true.
///
/// A file may hold a byte of 2 where a boolean belongs. As a Rust `bool` that
/// would be undefined behaviour; here it is a true value with odd bits.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Bool8(u8);

impl Bool8 {
    /// 1 or 0.
    #[must_use]
    pub const fn new(value: bool) -> Self {
        Self(value as u8)
    }

    /// Is the byte not 0?
    #[must_use]
    pub const fn get(self) -> bool {
        self.0 != 0
    }

    /// The byte as it is stored.
    #[must_use]
    pub const fn to_bits(self) -> u8 {
        self.0
    }
}

impl From<bool> for Bool8 {
    fn from(value: bool) -> Self {
        Self::new(value)
    }
}

impl From<Bool8> for bool {
    fn from(value: Bool8) -> Self {
        value.get()
    }
}

impl PartialEq for Bool8 {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Bool8 {}

impl fmt::Debug for Bool8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

impl fmt::Display for Bool8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.get(), f)
    }
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        const _: () = assert!(size_of::<$rust>() == DType::$dtype.bytes());
        const _: () = assert!(size_of::<$rust>() % align_of::<$rust>() == 0);
        // SAFETY: a number, or a `repr(transparent)` wrapper of an unsigned one:
        // every pattern is a value, there is no padding, and the two lines above
        // check size and alignment.
        unsafe impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements! {
    f32 => F32,
    f16 => F16,
    bf16 => BF16,
    i8 => I8,
    u8 => U8,
    i32 => I32,
    i64 => I64,
    Bool8 => Bool,
    i16 => I16,
    u16 => U16,
    u32 => U32,
    u64 => U64,
    f64 => F64,
}
