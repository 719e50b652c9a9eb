//! The kernels with AVX-512 or AVX2, FMA and F16C.
//!
//! A function here needs instructions that not every CPU has. [`HasAvx2`] and
//! [`HasAvx512`] are the proof that this one has them: only `detect` makes one,
//! and every entry asks for it.

use std::arch::x86_64::*;

/// This CPU has AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HasAvx2(());

impl HasAvx2 {
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
}

/// This CPU has AVX-512F, and what [`HasAvx2`] asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HasAvx512(());

impl HasAvx512 {
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f") && HasAvx2::detect().is_some();
        has.then_some(Self(()))
    }
}

/// 16 lanes in two 256-bit registers.
mod two {
    use super::*;
    use tenslab::types::{bf16, f16};

    pub(super) type Vector = (__m256, __m256);

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn splat(value: f32) -> Vector {
        (_mm256_set1_ps(value), _mm256_set1_ps(value))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn load_8(from: &[f32; 8]) -> __m256 {
        // SAFETY: the reference is valid for reads of 8 f32; no alignment is asked for.
        unsafe { _mm256_loadu_ps(from.as_ptr()) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn load_bits<T>(from: &[T; 8]) -> __m128i {
        const { assert!(size_of::<T>() == 2) };
        // SAFETY: the reference is valid for reads of 8 times 2 bytes; no alignment is asked for.
        unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn halves<T>(from: &[T; 16]) -> (&[T; 8], &[T; 8]) {
        let (low, high) = from.split_at(8);
        (
            low.try_into().expect("8 of 16"),
            high.try_into().expect("8 of 16"),
        )
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn load_f32(from: &[f32; 16]) -> Vector {
        let (low, high) = halves(from);
        (load_8(low), load_8(high))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn load_f16(from: &[f16; 16]) -> Vector {
        let (low, high) = halves(from);
        (
            _mm256_cvtph_ps(load_bits(low)),
            _mm256_cvtph_ps(load_bits(high)),
        )
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn widen_bf16(bits: __m128i) -> __m256 {
        // A bfloat16 is the upper half of an f32.
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn load_bf16(from: &[bf16; 16]) -> Vector {
        let (low, high) = halves(from);
        (widen_bf16(load_bits(low)), widen_bf16(load_bits(high)))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn fused(a: Vector, b: Vector, c: Vector) -> Vector {
        (
            _mm256_fmadd_ps(a.0, b.0, c.0),
            _mm256_fmadd_ps(a.1, b.1, c.1),
        )
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn store_8(value: __m256, to: &mut [f32; 8]) {
        // SAFETY: the reference is valid for writes of 8 f32; no alignment is asked for.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), value) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn store(value: Vector, to: &mut [f32; 16]) {
        let (low, high) = to.split_at_mut(8);
        store_8(value.0, low.try_into().expect("8 of 16"));
        store_8(value.1, high.try_into().expect("8 of 16"));
    }

    /// 8 -> 4 -> 2 -> 1.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn sum_8(lanes: __m256) -> f32 {
        let four = _mm_add_ps(
            _mm256_castps256_ps128(lanes),
            _mm256_extractf128_ps::<1>(lanes),
        );
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        let one = _mm_add_ss(two, _mm_shuffle_ps::<1>(two, two));
        _mm_cvtss_f32(one)
    }

    /// 32 -> 16 -> 8 -> 4 -> 2 -> 1.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn sum(low: Vector, high: Vector) -> f32 {
        sum_8(_mm256_add_ps(
            _mm256_add_ps(low.0, high.0),
            _mm256_add_ps(low.1, high.1),
        ))
    }
}

/// 16 lanes in one 512-bit register.
mod one {
    use super::*;
    use tenslab::types::{bf16, f16};

    pub(super) type Vector = __m512;

    #[inline]
    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    pub(super) fn splat(value: f32) -> Vector {
        _mm512_set1_ps(value)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    fn load_bits<T>(from: &[T; 16]) -> __m256i {
        const { assert!(size_of::<T>() == 2) };
        // SAFETY: the reference is valid for reads of 16 times 2 bytes; no alignment is asked for.
        unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    pub(super) fn load_f32(from: &[f32; 16]) -> Vector {
        // SAFETY: the reference is valid for reads of 16 f32; no alignment is asked for.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    pub(super) fn load_f16(from: &[f16; 16]) -> Vector {
        _mm512_cvtph_ps(load_bits(from))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    pub(super) fn load_bf16(from: &[bf16; 16]) -> Vector {
        // A bfloat16 is the upper half of an f32.
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load_bits(
            from,
        ))))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    pub(super) fn fused(a: Vector, b: Vector, c: Vector) -> Vector {
        _mm512_fmadd_ps(a, b, c)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    pub(super) fn store(value: Vector, to: &mut [f32; 16]) {
        // SAFETY: the reference is valid for writes of 16 f32; no alignment is asked for.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), value) }
    }

    /// 32 -> 16 -> 8, the rest as with AVX2.
    #[inline]
    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    pub(super) fn sum(low: Vector, high: Vector) -> f32 {
        let sixteen = _mm512_add_ps(low, high);
        let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(sixteen)));
        two::sum_8(_mm256_add_ps(_mm512_castps512_ps256(sixteen), upper))
    }
}

/// The kernels of one instruction set and one number format.
macro_rules! kernels {
    ($name:ident, $has:ident, $features:literal, $vector:ident, $type:ty, $load:ident) => {
        pub(super) mod $name {
            use super::{$has, $vector as vector};
            use crate::kernels::{Number as _, portable::LANES};

            /// `R` rows against `T` tokens: `2 R T` sums in registers. Every
            /// slice has the same length.
            #[inline]
            #[target_feature(enable = $features)]
            fn tile<const R: usize, const T: usize>(
                w: [&[$type]; R],
                x: [&[f32]; T],
            ) -> [[f32; T]; R] {
                let cols = x[0].len();
                let whole = cols / LANES * 2;
                let mut sums = [[[vector::splat(0.0); 2]; T]; R];
                let (mut w_parts, mut x_parts) = ([&[][..]; R], [&[][..]; T]);
                for r in 0..R {
                    w_parts[r] = &w[r].as_chunks::<16>().0[..whole];
                }
                for t in 0..T {
                    x_parts[t] = &x[t].as_chunks::<16>().0[..whole];
                }
                for step in (0..whole).step_by(2) {
                    for half in 0..2 {
                        let mut wide = [vector::splat(0.0); T];
                        for t in 0..T {
                            wide[t] = vector::load_f32(&x_parts[t][step + half]);
                        }
                        for r in 0..R {
                            let row = vector::$load(&w_parts[r][step + half]);
                            for t in 0..T {
                                sums[r][t][half] = vector::fused(row, wide[t], sums[r][t][half]);
                            }
                        }
                    }
                }
                if cols % LANES > 0 {
                    for r in 0..R {
                        let row = padded(&w[r][cols / LANES * LANES..]);
                        for t in 0..T {
                            let wide = padded(&x[t][cols / LANES * LANES..]);
                            for half in 0..2 {
                                let (row, wide) =
                                    (vector::$load(&row[half]), vector::load_f32(&wide[half]));
                                sums[r][t][half] = vector::fused(row, wide, sums[r][t][half]);
                            }
                        }
                    }
                }
                let mut products = [[0.0; T]; R];
                for r in 0..R {
                    for t in 0..T {
                        products[r][t] = vector::sum(sums[r][t][0], sums[r][t][1]);
                    }
                }
                products
            }

            /// The last columns, filled up with zeros.
            fn padded<N: Default + Copy>(tail: &[N]) -> [[N; 16]; 2] {
                let mut lanes = [[N::default(); 16]; 2];
                lanes.as_flattened_mut()[..tail.len()].copy_from_slice(tail);
                lanes
            }

            /// `R` rows against all tokens, 3 at a time.
            #[inline]
            #[target_feature(enable = $features)]
            fn band<const R: usize>(w: [&[$type]; R], x: &[f32], cols: usize, out: &mut [f32]) {
                let tokens = x.len() / cols;
                let mut t = 0;
                while t + 3 <= tokens {
                    let x = &x[t * cols..][..3 * cols];
                    let products = tile(w, [&x[..cols], &x[cols..2 * cols], &x[2 * cols..]]);
                    for r in 0..R {
                        out[r * tokens + t..][..3].copy_from_slice(&products[r]);
                    }
                    t += 3;
                }
                while t < tokens {
                    let products = tile(w, [&x[t * cols..][..cols]]);
                    for r in 0..R {
                        out[r * tokens + t] = products[r][0];
                    }
                    t += 1;
                }
            }

            #[target_feature(enable = $features)]
            fn matmul_here(w: &[$type], x: &[f32], cols: usize, out: &mut [f32]) {
                let (rows, tokens) = (w.len() / cols, x.len() / cols);
                // One token: one row after another, see the module above.
                let fours = if tokens > 1 { rows / 4 * 4 } else { 0 };
                for r in (0..fours).step_by(4) {
                    let (first, last) = w[r * cols..][..4 * cols].split_at(2 * cols);
                    let rows = [&first[..cols], &first[cols..], &last[..cols], &last[cols..]];
                    band(rows, x, cols, &mut out[r * tokens..][..4 * tokens]);
                }
                for r in fours..rows {
                    band(
                        [&w[r * cols..][..cols]],
                        x,
                        cols,
                        &mut out[r * tokens..][..tokens],
                    );
                }
            }

            #[target_feature(enable = $features)]
            fn weigh_here(shares: &[f32], values: &[$type], out: &mut [f32]) {
                let dim = out.len();
                let (whole, tail) = out.as_chunks_mut::<16>();
                for (part, out) in whole.iter_mut().enumerate() {
                    let mut sums = vector::load_f32(out);
                    for (share, row) in shares.iter().zip(values.chunks_exact(dim)) {
                        if let Some(value) = row[part * 16..].first_chunk() {
                            sums = vector::fused(vector::splat(*share), vector::$load(value), sums);
                        }
                    }
                    vector::store(sums, out);
                }
                let start = dim - tail.len();
                for (share, row) in shares.iter().zip(values.chunks_exact(dim)) {
                    for (out, value) in tail.iter_mut().zip(&row[start..]) {
                        *out += share * value.wide();
                    }
                }
            }

            /// As [`Kernels::matmul`](crate::kernels::Kernels::matmul), which checks the lengths.
            pub(in crate::kernels) fn matmul(
                _cpu: $has,
                w: &[$type],
                x: &[f32],
                cols: usize,
                out: &mut [f32],
            ) {
                // SAFETY: `_cpu` is the proof that this CPU has the features.
                unsafe { matmul_here(w, x, cols, out) }
            }

            /// As [`Kernels::weigh`](crate::kernels::Kernels::weigh), which checks the lengths.
            pub(in crate::kernels) fn weigh(
                _cpu: $has,
                shares: &[f32],
                values: &[$type],
                out: &mut [f32],
            ) {
                // SAFETY: `_cpu` is the proof that this CPU has the features.
                unsafe { weigh_here(shares, values, out) }
            }
        }
    };
}

kernels!(avx2_f32, HasAvx2, "avx2,fma,f16c", two, f32, load_f32);
kernels!(
    avx2_f16,
    HasAvx2,
    "avx2,fma,f16c",
    two,
    tenslab::types::f16,
    load_f16
);
kernels!(
    avx2_bf16,
    HasAvx2,
    "avx2,fma,f16c",
    two,
    tenslab::types::bf16,
    load_bf16
);
kernels!(
    avx512_f32,
    HasAvx512,
    "avx512f,avx2,fma,f16c",
    one,
    f32,
    load_f32
);
kernels!(
    avx512_f16,
    HasAvx512,
    "avx512f,avx2,fma,f16c",
    one,
    tenslab::types::f16,
    load_f16
);
kernels!(
    avx512_bf16,
    HasAvx512,
    "avx512f,avx2,fma,f16c",
    one,
    tenslab::types::bf16,
    load_bf16
);
