//! 32 elements at a time in AVX registers, with F16C for `f16`.
//!
//! `STREAM` stores around the cache; who asks for it gets a store fence at the end, so
//! that for everybody else these are stores like any other.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128,
    _mm_setzero_si128, _mm256_add_epi32, _mm256_and_si256, _mm256_castps_si256, _mm256_cmp_ps,
    _mm256_cmpgt_epi16, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_movemask_ps, _mm256_or_ps, _mm256_or_si256,
    _mm256_packus_epi32, _mm256_permute4x64_epi64, _mm256_set_m128i, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_setzero_ps, _mm256_slli_epi32, _mm256_srli_epi32,
    _mm256_storeu_si256, _mm256_stream_si256,
};

use super::blocks::{BLOCK, fence, in_blocks};
use super::portable;

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

#[target_feature(enable = "avx2,f16c")]
pub(super) fn narrow_f16<const STREAM: bool>(from: &[f32], to: &mut [u16]) {
    in_blocks::<STREAM, _, _>(
        from,
        to,
        portable::narrow_f16,
        |from, to| narrow_f16_block::<false>(from, to),
        |from, to| narrow_f16_block::<STREAM>(from, to),
    );
    fence::<STREAM>();
}

#[target_feature(enable = "avx2,f16c")]
fn narrow_f16_block<const STREAM: bool>(from: &[f32; BLOCK], to: &mut [u16; BLOCK]) {
    let values = load_f32(from);
    if any_nan(values) {
        portable::narrow_f16(from, to); // hardware would make it quiet
        return;
    }
    let [a, b, c, d] = values;
    let (a, b, c, d) = (f16_of(a), f16_of(b), f16_of(c), f16_of(d));
    store::<STREAM, u16, BLOCK, 2>(to, [_mm256_set_m128i(b, a), _mm256_set_m128i(d, c)]);
}

#[target_feature(enable = "avx2,f16c")]
pub(super) fn narrow_bf16<const STREAM: bool>(from: &[f32], to: &mut [u16]) {
    in_blocks::<STREAM, _, _>(
        from,
        to,
        portable::narrow_bf16,
        |from, to| narrow_bf16_block::<false>(from, to),
        |from, to| narrow_bf16_block::<STREAM>(from, to),
    );
    fence::<STREAM>();
}

#[target_feature(enable = "avx2,f16c")]
fn narrow_bf16_block<const STREAM: bool>(from: &[f32; BLOCK], to: &mut [u16; BLOCK]) {
    let values = load_f32(from);
    if any_nan(values) {
        portable::narrow_bf16(from, to); // rounding could carry into its sign
        return;
    }
    let [a, b, c, d] = values;
    let (a, b, c, d) = (bf16_of(a), bf16_of(b), bf16_of(c), bf16_of(d));
    store::<STREAM, u16, BLOCK, 2>(to, [packed(a, b), packed(c, d)]);
}

#[target_feature(enable = "avx2,f16c")]
pub(super) fn widen_f16<const STREAM: bool>(from: &[u16], to: &mut [f32]) {
    in_blocks::<STREAM, _, _>(
        from,
        to,
        portable::widen_f16,
        |from, to| widen_f16_block::<false>(from, to),
        |from, to| widen_f16_block::<STREAM>(from, to),
    );
    fence::<STREAM>();
}

#[target_feature(enable = "avx2,f16c")]
fn widen_f16_block<const STREAM: bool>(from: &[u16; BLOCK], to: &mut [f32; BLOCK]) {
    if any_f16_nan(from) {
        portable::widen_f16(from, to); // hardware would make it quiet
        return;
    }
    let [a, b, c, d] = load_halves(from);
    store::<STREAM, f32, BLOCK, 4>(
        to,
        [f32_of_f16(a), f32_of_f16(b), f32_of_f16(c), f32_of_f16(d)],
    );
}

#[target_feature(enable = "avx2,f16c")]
pub(super) fn widen_bf16<const STREAM: bool>(from: &[u16], to: &mut [f32]) {
    in_blocks::<STREAM, _, _>(
        from,
        to,
        portable::widen_bf16,
        |from, to| widen_bf16_block::<false>(from, to),
        |from, to| widen_bf16_block::<STREAM>(from, to),
    );
    fence::<STREAM>();
}

#[target_feature(enable = "avx2,f16c")]
fn widen_bf16_block<const STREAM: bool>(from: &[u16; BLOCK], to: &mut [f32; BLOCK]) {
    let [a, b, c, d] = load_halves(from);
    store::<STREAM, f32, BLOCK, 4>(
        to,
        [
            f32_of_bf16(a),
            f32_of_bf16(b),
            f32_of_bf16(c),
            f32_of_bf16(d),
        ],
    );
}

/// Lanes that compare with nothing are NaNs, in either vector.
#[target_feature(enable = "avx2")]
fn any_nan([a, b, c, d]: [__m256; 4]) -> bool {
    let first = _mm256_cmp_ps::<_CMP_UNORD_Q>(a, b);
    let second = _mm256_cmp_ps::<_CMP_UNORD_Q>(c, d);
    _mm256_movemask_ps(_mm256_or_ps(first, second)) != 0
}

#[target_feature(enable = "avx2")]
fn any_f16_nan(from: &[u16; BLOCK]) -> bool {
    let (low, high) = from.split_at(BLOCK / 2);
    // SAFETY: reads 32 bytes, as many as `low` has; any alignment will do.
    let low = unsafe { _mm256_loadu_si256(low.as_ptr().cast()) };
    // SAFETY: reads 32 bytes, as many as `high` has; any alignment will do.
    let high = unsafe { _mm256_loadu_si256(high.as_ptr().cast()) };
    _mm256_movemask_epi8(_mm256_or_si256(f16_nans(low), f16_nans(high))) != 0
}

#[target_feature(enable = "avx2")]
fn f16_nans(halves: __m256i) -> __m256i {
    let magnitudes = _mm256_and_si256(halves, _mm256_set1_epi16(0x7fff));
    _mm256_cmpgt_epi16(magnitudes, _mm256_set1_epi16(0x7c00))
}

#[target_feature(enable = "avx2,f16c")]
fn f16_of(values: __m256) -> __m128i {
    _mm256_cvtps_ph::<NEAREST>(values)
}

#[target_feature(enable = "avx2,f16c")]
fn f32_of_f16(halves: __m128i) -> __m256i {
    _mm256_castps_si256(_mm256_cvtph_ps(halves))
}

#[target_feature(enable = "avx2")]
fn f32_of_bf16(halves: __m128i) -> __m256i {
    _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves))
}

/// The nearest bf16s, ties to even, each as a double word.
#[target_feature(enable = "avx2")]
fn bf16_of(values: __m256) -> __m256i {
    let bits = _mm256_castps_si256(values);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    _mm256_srli_epi32::<16>(rounded)
}

/// Double words below 2^16 as words. The pack works within 128 bits, so its
/// quarters come out as 0, 2, 1, 3.
#[target_feature(enable = "avx2")]
fn packed(low: __m256i, high: __m256i) -> __m256i {
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high))
}

#[target_feature(enable = "avx2")]
fn load_f32(from: &[f32; BLOCK]) -> [__m256; 4] {
    let mut values = [_mm256_setzero_ps(); 4];
    for (values, from) in values.iter_mut().zip(from.as_chunks::<8>().0) {
        // SAFETY: reads 8 `f32`, as many as the chunk has; any alignment will do.
        *values = unsafe { _mm256_loadu_ps(from.as_ptr()) };
    }
    values
}

#[target_feature(enable = "avx2")]
fn load_halves(from: &[u16; BLOCK]) -> [__m128i; 4] {
    let mut halves = [_mm_setzero_si128(); 4];
    for (halves, from) in halves.iter_mut().zip(from.as_chunks::<8>().0) {
        // SAFETY: reads 16 bytes, as many as the chunk has; any alignment will do.
        *halves = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
    }
    halves
}

/// Stores `M` times 32 bytes; with `STREAM` around the cache, and `to` is a multiple of
/// 32 then.
#[target_feature(enable = "avx2")]
fn store<const STREAM: bool, T, const N: usize, const M: usize>(
    to: &mut [T; N],
    bytes: [__m256i; M],
) {
    const { assert!(size_of::<[T; N]>() == size_of::<[__m256i; M]>()) };
    for (to, bytes) in to.chunks_exact_mut(N / M).zip(bytes) {
        let to = to.as_mut_ptr().cast();
        if STREAM {
            // SAFETY:
            // - in bounds: writes 32 bytes, as many as the chunk has;
            // - aligned: `in_blocks` begins such blocks at multiples of 64;
            // - order: nobody reads it before the `fence` of the function that converts.
            unsafe { _mm256_stream_si256(to, bytes) };
        } else {
            // SAFETY: writes 32 bytes, as many as the chunk has; any alignment will do.
            unsafe { _mm256_storeu_si256(to, bytes) };
        }
    }
}
