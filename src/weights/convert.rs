//! Casts on the way from file to slab, between `f32`, `f16` and `bf16`.
//!
//! The source is little-endian bytes as they came from the file, the target is
//! the slab's bytes. In between, a few hundred values at a time lie widened on
//! the stack, so that the exact bulk conversions of [`types::half`] do the work
//! and no byte slice is ever taken for a slice of another type.
//!
//! [`types::half`]: crate::types::half

use crate::types::half::{narrow_bf16, narrow_f16, widen_bf16, widen_f16};
use crate::types::{DType, bf16, f16};

/// Values converted at a time: 1 KiB widened.
const BLOCK: usize = 256;

/// One of the three formats that are cast between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Float {
    F32,
    F16,
    BF16,
}

impl Float {
    pub(super) fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::F16 => Some(Self::F16),
            DType::BF16 => Some(Self::BF16),
            _ => None,
        }
    }

    pub(super) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::BF16 => DType::BF16,
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

/// What happens to the elements of a tensor on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cast {
    pub(super) from: Float,
    pub(super) to: Float,
}

impl Cast {
    /// Bytes in the slab for `source` bytes in the file; `None` on overflow.
    pub(super) fn target_bytes(self, source: usize) -> Option<usize> {
        (source / self.from.bytes()).checked_mul(self.to.bytes())
    }

    /// Converts all of `source` into all of `target`.
    pub(super) fn convert(self, source: &[u8], target: &mut [u8]) {
        debug_assert_eq!(self.target_bytes(source.len()), Some(target.len()));
        let mut wide = [0.0_f32; BLOCK];
        let sources = source.chunks(BLOCK * self.from.bytes());
        let targets = target.chunks_mut(BLOCK * self.to.bytes());
        for (source, target) in sources.zip(targets) {
            let wide = &mut wide[..source.len() / self.from.bytes()];
            widen(self.from, source, wide);
            narrow(self.to, wide, target);
        }
    }
}

fn widen(from: Float, source: &[u8], wide: &mut [f32]) {
    match from {
        Float::F32 => {
            for (value, bytes) in wide.iter_mut().zip(source.as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        Float::F16 => {
            let mut halves = [f16::from_bits(0); BLOCK];
            let halves = &mut halves[..wide.len()];
            for (half, bytes) in halves.iter_mut().zip(source.as_chunks().0) {
                *half = f16::from_le_bytes(*bytes);
            }
            widen_f16(halves, wide);
        }
        Float::BF16 => {
            let mut halves = [bf16::from_bits(0); BLOCK];
            let halves = &mut halves[..wide.len()];
            for (half, bytes) in halves.iter_mut().zip(source.as_chunks().0) {
                *half = bf16::from_le_bytes(*bytes);
            }
            widen_bf16(halves, wide);
        }
    }
}

fn narrow(to: Float, wide: &[f32], target: &mut [u8]) {
    match to {
        Float::F32 => {
            for (bytes, value) in target.as_chunks_mut().0.iter_mut().zip(wide) {
                *bytes = value.to_ne_bytes();
            }
        }
        Float::F16 => {
            let mut halves = [f16::from_bits(0); BLOCK];
            let halves = &mut halves[..wide.len()];
            narrow_f16(wide, halves);
            for (bytes, half) in target.as_chunks_mut().0.iter_mut().zip(halves) {
                *bytes = half.to_ne_bytes();
            }
        }
        Float::BF16 => {
            let mut halves = [bf16::from_bits(0); BLOCK];
            let halves = &mut halves[..wide.len()];
            narrow_bf16(wide, halves);
            for (bytes, half) in target.as_chunks_mut().0.iter_mut().zip(halves) {
                *bytes = half.to_ne_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::half::{
        bf16_bits_to_f32_bits, f16_bits_to_f32_bits, f32_bits_to_bf16_bits, f32_bits_to_f16_bits,
    };

    fn through(from: Float, to: Float, source: &[u8]) -> Vec<u8> {
        let cast = Cast { from, to };
        let mut target = vec![0; cast.target_bytes(source.len()).unwrap()];
        cast.convert(source, &mut target);
        target
    }

    #[test]
    fn every_half_widens_as_the_scalar_does_and_comes_back() {
        let halves: Vec<u16> = (0..=u16::MAX).collect();
        let bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
        for (float, scalar) in [
            (Float::F16, f16_bits_to_f32_bits as fn(u16) -> u32),
            (Float::BF16, bf16_bits_to_f32_bits),
        ] {
            let wide = through(float, Float::F32, &bytes);
            let expected: Vec<u8> = halves
                .iter()
                .flat_map(|&h| scalar(h).to_ne_bytes())
                .collect();
            assert!(wide == expected, "{float:?} widened");
            assert!(through(Float::F32, float, &wide) == bytes, "{float:?} back");
        }
    }

    #[test]
    fn narrowing_is_the_scalar_one_also_in_a_short_last_block() {
        // Steps through all exponents and both kinds of NaN; not a multiple of BLOCK.
        let bits: Vec<u32> = (0..70_001_u32).map(|i| i.wrapping_mul(61_357)).collect();
        let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        for (float, scalar) in [
            (Float::F16, f32_bits_to_f16_bits as fn(u32) -> u16),
            (Float::BF16, f32_bits_to_bf16_bits),
        ] {
            let expected: Vec<u8> = bits.iter().flat_map(|&b| scalar(b).to_ne_bytes()).collect();
            assert!(
                through(Float::F32, float, &bytes) == expected,
                "to {float:?}"
            );
        }
    }
}
