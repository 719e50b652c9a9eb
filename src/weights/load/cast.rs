//! Casts on the way from file to slab, between `f32`, `f16` and `bf16`.
//!
//! ```text
//!   file ──read──▶ scratch ──the bulk conversions of types::half──▶ slab
//!                  in the cache                                     64-byte aligned
//! ```
//!
//! The file's bytes are little-endian, as the machine's are. They are taken for elements where
//! they lie aligned, which they do but for odd neighbours in one read: those go through an
//! aligned block, a few hundred at a time.

use crate::memory::{self, Buffer};
use crate::types::half::CodePath;
use crate::types::{DType, Element, bf16, f16};
use crate::weights::WeightsError;
use crate::weights::source::Source;

/// Bytes of scratch in each thread: small enough to stay in the second-level cache.
pub(super) const SCRATCH_BYTES: usize = 256 << 10;

/// Bytes of the blocks that odd bytes are put into.
const BLOCK_BYTES: usize = 2048;

/// The buffer that one thread reads into before it casts or spreads. Aligned to 64 bytes.
#[derive(Default)]
pub(super) struct Scratch(Option<Buffer>);

impl Scratch {
    /// Its first bytes, whatever is in them; at most [`SCRATCH_BYTES`], which is allocated when
    /// it is first needed.
    pub(super) fn take(
        &mut self,
        bytes: usize,
        source: &Source,
    ) -> Result<&mut [u8], WeightsError> {
        debug_assert!(bytes <= SCRATCH_BYTES, "{bytes} bytes of scratch");
        let buffer = match self.0.take() {
            Some(buffer) => buffer,
            None => memory::cpu()
                .allocate(SCRATCH_BYTES, 64)
                .map_err(|error| source.no_memory(SCRATCH_BYTES, "scratch", error))?,
        };
        Ok(&mut self.0.insert(buffer).as_mut_slice()[..bytes])
    }
}

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

    /// Converts all of `source` into all of `target`, which is part of a tensor that has
    /// `whole_bytes` in memory: large ones are stored around the cache.
    ///
    /// # Panics
    /// If `target` is not aligned for its elements.
    pub(super) fn convert(self, source: &[u8], target: &mut [u8], whole_bytes: usize) {
        debug_assert_eq!(self.target_bytes(source.len()), Some(target.len()));
        let path = CodePath::for_elements(whole_bytes / self.to.bytes());
        if source.as_ptr().addr().is_multiple_of(self.from.bytes()) {
            return self.convert_aligned(path, source, target);
        }
        let mut block = Block([0; BLOCK_BYTES]);
        let step = BLOCK_BYTES / self.from.bytes() * self.to.bytes();
        for (source, target) in source.chunks(BLOCK_BYTES).zip(target.chunks_mut(step)) {
            let block = &mut block.0[..source.len()];
            block.copy_from_slice(source);
            self.convert_aligned(path, block, target);
        }
    }

    fn convert_aligned(self, path: CodePath, source: &[u8], target: &mut [u8]) {
        use Float::{BF16, F16, F32};
        match (self.from, self.to) {
            (F16, F32) => path.widen_f16(elements(source), elements_mut(target)),
            (BF16, F32) => path.widen_bf16(elements(source), elements_mut(target)),
            (F32, F16) => path.narrow_f16(elements(source), elements_mut(target)),
            (F32, BF16) => path.narrow_bf16(elements(source), elements_mut(target)),
            (F16, BF16) => {
                let targets = elements_mut::<bf16>(target).chunks_mut(BLOCK_BYTES / 4);
                for (from, to) in elements::<f16>(source).chunks(BLOCK_BYTES / 4).zip(targets) {
                    let mut wide = [0.0; BLOCK_BYTES / 4];
                    let wide = &mut wide[..from.len()];
                    path.widen_f16(from, wide);
                    path.narrow_bf16(wide, to);
                }
            }
            (BF16, F16) => {
                let targets = elements_mut::<f16>(target).chunks_mut(BLOCK_BYTES / 4);
                for (from, to) in elements::<bf16>(source)
                    .chunks(BLOCK_BYTES / 4)
                    .zip(targets)
                {
                    let mut wide = [0.0; BLOCK_BYTES / 4];
                    let wide = &mut wide[..from.len()];
                    path.widen_bf16(from, wide);
                    path.narrow_f16(wide, to);
                }
            }
            (F32, F32) | (F16, F16) | (BF16, BF16) => target.copy_from_slice(source),
        }
    }
}

/// Bytes as aligned as any element has to be.
#[repr(align(64))]
struct Block([u8; BLOCK_BYTES]);

/// Bytes as the elements that they are.
///
/// # Panics
/// If they are not aligned, or not whole elements.
fn elements<T: Element>(bytes: &[u8]) -> &[T] {
    // SAFETY: `T` is an `Element`: every pattern of its bytes is a value, and it has no padding
    // and no interior mutability. Alignment and lengths are `align_to`'s own care.
    let (before, elements, behind) = unsafe { bytes.align_to() };
    assert!(before.is_empty() && behind.is_empty(), "odd bytes");
    elements
}

/// As [`elements`], to be written.
fn elements_mut<T: Element>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: `T` is an `Element`: every pattern of its bytes is a value, so what is there is
    // one, and whatever `T` is written is initialised bytes, for it has no padding.
    let (before, elements, behind) = unsafe { bytes.align_to_mut() };
    assert!(before.is_empty() && behind.is_empty(), "odd bytes");
    elements
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::half::{
        bf16_bits_to_f32_bits, f16_bits_to_f32_bits, f32_bits_to_bf16_bits, f32_bits_to_f16_bits,
    };

    fn through(from: Float, to: Float, source: &[u8]) -> Vec<u8> {
        let cast = Cast { from, to };
        // Aligned, and by one byte not; stored into the cache, and around it.
        let target_bytes = cast.target_bytes(source.len()).unwrap();
        let mut target = memory::cpu().allocate(target_bytes, 64).unwrap();
        let mut moved = memory::cpu().allocate(source.len() + 1, 64).unwrap();
        let mut results = Vec::new();
        for (shift, whole_bytes) in [(0, target_bytes), (1, target_bytes), (0, 1 << 30)] {
            let moved = &mut moved.as_mut_slice()[shift..][..source.len()];
            moved.copy_from_slice(source);
            target.as_mut_slice().fill(0x55);
            cast.convert(moved, target.as_mut_slice(), whole_bytes);
            results.push(target.as_slice().to_vec());
        }
        assert!(results.windows(2).all(|two| two[0] == two[1]));
        results.remove(0)
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
        // Steps through all exponents and both kinds of NaN; not a multiple of a block.
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
