//! 32 elements at a time in AVX-512 registers.
//!
//! `STREAM` stores around the cache; who asks for it gets a store fence at the end, so
//! that for everybody else these are stores like any other.

use std::arch::x86_64::{
    __m256i, __m512, __m512i, _CMP_UNORD_Q, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT,
    _mm256_loadu_si256, _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512,
    _mm512_castsi256_si512, _mm512_cmp_ps_mask, _mm512_cmpgt_epi16_mask, _mm512_cvtepu16_epi32,
    _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_inserti64x4, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_permutex2var_epi16, _mm512_set1_epi16, _mm512_set1_epi32, _mm512_slli_epi32,
    _mm512_srli_epi32, _mm512_storeu_si512, _mm512_stream_si512,
};

use super::blocks::{BLOCK, fence, in_blocks};
use super::portable;

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// The odd ones of 64 words: the upper halves of 32 double words.
const UPPER_WORDS: [u16; 32] = {
    let mut words = [0; 32];
    let mut at = 0;
    while at < 32 {
        words[at as usize] = 2 * at + 1;
        at += 1;
    }
    words
};

#[target_feature(enable = "avx512f,avx512bw")]
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

#[target_feature(enable = "avx512f,avx512bw")]
fn narrow_f16_block<const STREAM: bool>(from: &[f32; BLOCK], to: &mut [u16; BLOCK]) {
    let (low, high) = load_f32(from);
    if any_nan(low, high) {
        portable::narrow_f16(from, to); // hardware would make it quiet
        return;
    }
    let low = _mm512_castsi256_si512(_mm512_cvtps_ph::<NEAREST>(low));
    let halves = _mm512_inserti64x4::<1>(low, _mm512_cvtps_ph::<NEAREST>(high));
    store::<STREAM, u16, BLOCK>(to, halves);
}

#[target_feature(enable = "avx512f,avx512bw")]
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

#[target_feature(enable = "avx512f,avx512bw")]
fn narrow_bf16_block<const STREAM: bool>(from: &[f32; BLOCK], to: &mut [u16; BLOCK]) {
    let upper_words = load_halves(&UPPER_WORDS);
    let (low, high) = load_f32(from);
    if any_nan(low, high) {
        portable::narrow_bf16(from, to); // rounding could carry into its sign
        return;
    }
    let halves = _mm512_permutex2var_epi16(round_up(low), upper_words, round_up(high));
    store::<STREAM, u16, BLOCK>(to, halves);
}

#[target_feature(enable = "avx512f,avx512bw")]
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

#[target_feature(enable = "avx512f,avx512bw")]
fn widen_f16_block<const STREAM: bool>(from: &[u16; BLOCK], to: &mut [f32; BLOCK]) {
    let magnitudes = _mm512_and_si512(load_halves(from), _mm512_set1_epi16(0x7fff));
    if _mm512_cmpgt_epi16_mask(magnitudes, _mm512_set1_epi16(0x7c00)) != 0 {
        portable::widen_f16(from, to); // hardware would make it quiet
        return;
    }
    let (low, high) = load_parts(from);
    let low = _mm512_castps_si512(_mm512_cvtph_ps(low));
    store_f32::<STREAM>(to, low, _mm512_castps_si512(_mm512_cvtph_ps(high)));
}

#[target_feature(enable = "avx512f,avx512bw")]
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

#[target_feature(enable = "avx512f,avx512bw")]
fn widen_bf16_block<const STREAM: bool>(from: &[u16; BLOCK], to: &mut [f32; BLOCK]) {
    let (low, high) = load_parts(from);
    let low = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(low));
    let high = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(high));
    store_f32::<STREAM>(to, low, high);
}

/// Lanes that compare with nothing are NaNs, in either vector.
#[target_feature(enable = "avx512f")]
fn any_nan(low: __m512, high: __m512) -> bool {
    _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(low, high) != 0
}

/// Adds to each word pair what makes its upper word the nearest bf16, ties to even.
#[target_feature(enable = "avx512f")]
fn round_up(values: __m512) -> __m512i {
    let bits = _mm512_castps_si512(values);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd)
}

#[target_feature(enable = "avx512f")]
fn load_f32(from: &[f32; BLOCK]) -> (__m512, __m512) {
    let (low, high) = from.split_at(BLOCK / 2);
    // SAFETY: reads 16 `f32`, as many as `low` has; any alignment will do.
    let low = unsafe { _mm512_loadu_ps(low.as_ptr()) };
    // SAFETY: reads 16 `f32`, as many as `high` has; any alignment will do.
    let high = unsafe { _mm512_loadu_ps(high.as_ptr()) };
    (low, high)
}

#[target_feature(enable = "avx512f")]
fn load_halves(from: &[u16; BLOCK]) -> __m512i {
    // SAFETY: reads 64 bytes, as many as the array has; any alignment will do.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

/// The block in two parts of 16.
#[target_feature(enable = "avx512f")]
fn load_parts(from: &[u16; BLOCK]) -> (__m256i, __m256i) {
    let (low, high) = from.split_at(BLOCK / 2);
    // SAFETY: reads 32 bytes, as many as `low` has; any alignment will do.
    let low = unsafe { _mm256_loadu_si256(low.as_ptr().cast()) };
    // SAFETY: reads 32 bytes, as many as `high` has; any alignment will do.
    let high = unsafe { _mm256_loadu_si256(high.as_ptr().cast()) };
    (low, high)
}

#[target_feature(enable = "avx512f")]
fn store_f32<const STREAM: bool>(to: &mut [f32; BLOCK], low: __m512i, high: __m512i) {
    let (parts, _) = to.as_chunks_mut::<{ BLOCK / 2 }>();
    for (part, bytes) in parts.iter_mut().zip([low, high]) {
        store::<STREAM, f32, { BLOCK / 2 }>(part, bytes);
    }
}

/// Stores 64 bytes; with `STREAM` around the cache, and `to` is a multiple of 64 then.
#[target_feature(enable = "avx512f")]
fn store<const STREAM: bool, T, const N: usize>(to: &mut [T; N], bytes: __m512i) {
    const { assert!(size_of::<[T; N]>() == 64) };
    let to = to.as_mut_ptr().cast();
    if STREAM {
        // SAFETY:
        // - in bounds: writes 64 bytes, as many as the array has;
        // - aligned: `in_blocks` begins such blocks at multiples of 64;
        // - order: nobody reads it before the `fence` of the function that converts.
        unsafe { _mm512_stream_si512(to, bytes) };
    } else {
        // SAFETY: writes 64 bytes, as many as the array has; any alignment will do.
        unsafe { _mm512_storeu_si512(to, bytes) };
    }
}
