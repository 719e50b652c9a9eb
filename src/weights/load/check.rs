//! Values that are no finite numbers, found by their exponents.

use crate::types::DType;

/// Bytes that are counted before the first one is looked for among them.
const BLOCK_BYTES: usize = 16 << 10;

/// How many of these elements are NaN or infinite, and which is the first; none if none is, or
/// if elements of this dtype cannot be.
pub(super) fn non_finite(dtype: DType, bytes: &[u8]) -> Option<(u64, usize)> {
    match dtype {
        DType::F16 => find(bytes, |bits| u16::from_le_bytes(bits) & 0x7c00 == 0x7c00),
        DType::BF16 => find(bytes, |bits| u16::from_le_bytes(bits) & 0x7f80 == 0x7f80),
        DType::F32 => find(bytes, |bits| {
            u32::from_le_bytes(bits) & 0x7f80_0000 == 0x7f80_0000
        }),
        DType::F64 => find(bytes, |bits| {
            u64::from_le_bytes(bits) & 0x7ff0_0000_0000_0000 == 0x7ff0_0000_0000_0000
        }),
        _ => None,
    }
}

fn find<const N: usize>(bytes: &[u8], is: impl Fn([u8; N]) -> bool) -> Option<(u64, usize)> {
    let (mut count, mut first) = (0, 0);
    for (number, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
        let elements = block.as_chunks().0;
        // A sum without a branch: many at a time.
        let here: u32 = elements.iter().map(|&bits| u32::from(is(bits))).sum();
        if count == 0 && here > 0 {
            let within = elements.iter().position(|&bits| is(bits))?;
            first = number * (BLOCK_BYTES / N) + within;
        }
        count += u64::from(here);
    }
    (count > 0).then_some((count, first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{bf16, f16};

    #[test]
    fn every_half_is_judged_as_its_value_is() {
        for (dtype, finite) in [
            (
                DType::F16,
                (|bits| f16::from_bits(bits).is_finite()) as fn(u16) -> bool,
            ),
            (DType::BF16, |bits| bf16::from_bits(bits).is_finite()),
        ] {
            for bits in 0..=u16::MAX {
                let found = non_finite(dtype, &bits.to_le_bytes());
                assert_eq!(found.is_none(), finite(bits), "{dtype} {bits:#x}");
            }
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "these values are f32 as well"
    )]
    #[test]
    fn the_first_one_is_found_in_any_block_and_all_are_counted() {
        let mut values = vec![1.0_f64; 10_000];
        for (at, value) in [
            (9_999, f64::NAN),
            (5_001, f64::INFINITY),
            (5_000, -f64::INFINITY),
        ] {
            values[at] = value;
        }
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        assert_eq!(non_finite(DType::F64, &bytes), Some((3, 5_000)));
        let narrow = |value: &f64| if value.is_finite() { 1.0 } else { f32::NAN };
        let narrow: Vec<u8> = values
            .iter()
            .flat_map(|value| narrow(value).to_le_bytes())
            .collect();
        assert_eq!(non_finite(DType::F32, &narrow), Some((3, 5_000)));
        assert_eq!(non_finite(DType::F64, &bytes[..5_000 * 8]), None);
        assert_eq!(non_finite(DType::I64, &bytes), None);
    }
}
