//! The arithmetic of the example: dot products, and little else.
//!
//! ```text
//!   weights [rows, cols]  f32 | f16 | bf16, read where they lie
//!   x       [tokens, cols] f32
//!   out     [rows, tokens] f32     out[r][t] = sum over c of w[r][c] * x[t][c]
//!
//!   one product, 32 lanes:   lane j adds up columns j, 32 + j, 64 + j, ...
//!                            then 32 -> 16 -> 8 -> 4 -> 2 -> 1
//! ```
//!
//! - Half-precision weights widen in registers; all sums are f32.
//! - A product is always added up in the same order, whatever the number of
//!   tokens or of threads. So a prompt in chunks of any size, on any number of
//!   threads, gives the same bits.
//! - AVX-512 and AVX2 give the same bits as each other (both have fused
//!   multiply-add); the portable path rounds twice a step and differs in the
//!   last places.
//! - The path is chosen once, at run time. `cfg(tenslab_portable)` leaves only
//!   the portable one.
//!
//! With one token, rows are read one after another: a single stream is what the
//! prefetchers of the memory like best (8 rows at once: 20 GB/s, one: 33, on
//! the machine this was written on). With several tokens a weight row is read
//! once for all of them, in tiles of 4 rows by 3 tokens.
//!
//! Checked by the tests below against a plain sum in f64, and end to end by
//! `tests/generate.rs`.

mod elementwise;
mod portable;
#[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
mod x86;

pub(crate) use elementwise::{Shares, rms_norm, rotate, scale, silu_times};
use tenslab::types::{Element, bf16, f16, half};

/// A number format that weights and cached keys and values may have.
pub(crate) trait Number: Element + Default {
    /// The value as f32; exact.
    fn wide(self) -> f32;

    #[doc(hidden)]
    fn matmul(kernels: Kernels, w: &[Self], x: &[f32], cols: usize, out: &mut [f32]);

    #[doc(hidden)]
    fn weigh(kernels: Kernels, shares: &[f32], values: &[Self], out: &mut [f32]);
}

/// Which instructions the kernels use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernels {
    /// Plain Rust.
    Portable,
    /// 256-bit vectors with FMA and F16C. Only [`Kernels::all`] makes it, where the CPU has them.
    #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
    Avx2(x86::HasAvx2),
    /// 512-bit vectors. Only [`Kernels::all`] makes it, where the CPU has them.
    #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
    Avx512(x86::HasAvx512),
}

impl Kernels {
    /// What this CPU can run, the best last.
    pub(crate) fn all() -> Vec<Self> {
        #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
        let vector = [
            x86::HasAvx2::detect().map(Self::Avx2),
            x86::HasAvx512::detect().map(Self::Avx512),
        ];
        #[cfg(not(all(target_arch = "x86_64", not(tenslab_portable))))]
        let vector: [Option<Self>; 0] = [];
        let portable = [Self::Portable];
        portable
            .into_iter()
            .chain(vector.into_iter().flatten())
            .collect()
    }

    /// The best path of this CPU.
    pub(crate) fn best() -> Self {
        Self::all().pop().unwrap_or(Self::Portable)
    }

    /// The path's name, for the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
            Self::Avx2(_) => "avx2",
            #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
            Self::Avx512(_) => "avx512",
        }
    }

    /// `out[r][t] = w[r] . x[t]`: `w` is `[rows, cols]`, `x` is `[tokens, cols]`,
    /// `out` is `[rows, tokens]`.
    ///
    /// # Panics
    ///
    /// When the three lengths do not belong together.
    pub(crate) fn matmul<W: Number>(self, w: &[W], x: &[f32], cols: usize, out: &mut [f32]) {
        let (rows, tokens) = (w.len() / cols, x.len() / cols);
        assert_eq!(w.len(), rows * cols, "w is not whole rows of {cols}");
        assert_eq!(x.len(), tokens * cols, "x is not whole rows of {cols}");
        assert_eq!(out.len(), rows * tokens, "out is not [{rows}, {tokens}]");
        W::matmul(self, w, x, cols, out);
    }

    /// `out += sum over s of shares[s] * values[s]`: `values` is `[shares, out]`.
    ///
    /// # Panics
    ///
    /// When the three lengths do not belong together.
    pub(crate) fn weigh<W: Number>(self, shares: &[f32], values: &[W], out: &mut [f32]) {
        assert_eq!(
            values.len(),
            shares.len() * out.len(),
            "values are not [{}, {}]",
            shares.len(),
            out.len()
        );
        W::weigh(self, shares, values, out);
    }
}

macro_rules! number {
    ($type:ty, $wide:expr, $avx2:ident, $avx512:ident) => {
        impl Number for $type {
            fn wide(self) -> f32 {
                $wide(self)
            }

            fn matmul(kernels: Kernels, w: &[Self], x: &[f32], cols: usize, out: &mut [f32]) {
                match kernels {
                    Kernels::Portable => portable::matmul(w, x, cols, out),
                    #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
                    Kernels::Avx2(cpu) => x86::$avx2::matmul(cpu, w, x, cols, out),
                    #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
                    Kernels::Avx512(cpu) => x86::$avx512::matmul(cpu, w, x, cols, out),
                }
            }

            fn weigh(kernels: Kernels, shares: &[f32], values: &[Self], out: &mut [f32]) {
                match kernels {
                    Kernels::Portable => portable::weigh(shares, values, out),
                    #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
                    Kernels::Avx2(cpu) => x86::$avx2::weigh(cpu, shares, values, out),
                    #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
                    Kernels::Avx512(cpu) => x86::$avx512::weigh(cpu, shares, values, out),
                }
            }
        }
    };
}

number!(f32, |value| value, avx2_f32, avx512_f32);
number!(f16, half::f16_to_f32, avx2_f16, avx512_f16);
number!(bf16, half::bf16_to_f32, avx2_bf16, avx512_bf16);

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of no pattern, in -1..1.
    fn noise(seed: u64, count: usize) -> Vec<f32> {
        let mut state = seed;
        (0..count)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let bits = (state >> 40) as u32;
                bits as f32 / 8_388_608.0 - 1.0
            })
            .collect()
    }

    fn narrowed<W: Copy>(values: &[f32], narrow: impl Fn(f32) -> W) -> Vec<W> {
        values.iter().map(|value| narrow(*value)).collect()
    }

    fn matmul<W: Number>(kernels: Kernels, w: &[W], x: &[f32], cols: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; w.len() / cols * (x.len() / cols)];
        kernels.matmul(w, x, cols, &mut out);
        out
    }

    fn every_product_is_near_the_f64_sum<W: Number>(narrow: fn(f32) -> W) {
        for cols in [1, 15, 16, 31, 32, 33, 64, 176, 576] {
            for (rows, tokens) in [(1, 1), (3, 1), (4, 3), (5, 2), (9, 7), (13, 4)] {
                let w: Vec<W> = narrowed(&noise(1, rows * cols), narrow);
                let x = noise(2, tokens * cols);
                for kernels in Kernels::all() {
                    let out = matmul(kernels, &w, &x, cols);
                    for r in 0..rows {
                        for t in 0..tokens {
                            let exact: f64 = (0..cols)
                                .map(|c| {
                                    f64::from(w[r * cols + c].wide()) * f64::from(x[t * cols + c])
                                })
                                .sum();
                            let found = f64::from(out[r * tokens + t]);
                            let error = (found - exact).abs();
                            assert!(
                                error < 2e-5,
                                "{kernels:?} {rows}x{cols} x {tokens}: [{r}][{t}] {found} for {exact}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_product_of_every_path_is_near_the_f64_sum() {
        every_product_is_near_the_f64_sum(|value| value);
        every_product_is_near_the_f64_sum(half::f16_from_f32);
        every_product_is_near_the_f64_sum(half::bf16_from_f32);
    }

    #[test]
    fn a_product_has_the_same_bits_alone_and_in_a_crowd() {
        let (rows, tokens, cols) = (11, 8, 176);
        let (w, x) = (noise(3, rows * cols), noise(4, tokens * cols));
        for kernels in Kernels::all() {
            let crowd = matmul(kernels, &w, &x, cols);
            for r in 0..rows {
                for t in 0..tokens {
                    let alone = matmul(
                        kernels,
                        &w[r * cols..][..cols],
                        &x[t * cols..][..cols],
                        cols,
                    );
                    assert_eq!(
                        alone[0].to_bits(),
                        crowd[r * tokens + t].to_bits(),
                        "{kernels:?} [{r}][{t}]"
                    );
                }
            }
        }
    }

    #[test]
    fn the_two_vector_paths_agree_to_the_bit() {
        let (rows, tokens, cols) = (7, 5, 208);
        let (w, x) = (noise(5, rows * cols), noise(6, tokens * cols));
        let w = narrowed(&w, half::bf16_from_f32);
        let mut fused = Kernels::all()
            .into_iter()
            .filter(|kernels| *kernels != Kernels::Portable);
        if let (Some(one), Some(other)) = (fused.next(), fused.next()) {
            assert_eq!(matmul(one, &w, &x, cols), matmul(other, &w, &x, cols));
        } else {
            eprintln!("skipped: this CPU or build has fewer than two vector paths");
        }
    }

    #[test]
    fn weighing_adds_each_share_of_each_value() {
        for dim in [1, 16, 24, 64, 80] {
            let (shares, start) = (noise(7, 9), noise(8, dim));
            let values = narrowed(&noise(9, 9 * dim), half::f16_from_f32);
            for kernels in Kernels::all() {
                let mut out = start.clone();
                kernels.weigh(&shares, &values, &mut out);
                for d in 0..dim {
                    let added: f64 = (0..9)
                        .map(|s| f64::from(shares[s]) * f64::from(values[s * dim + d].wide()))
                        .sum();
                    assert!(
                        (f64::from(out[d]) - f64::from(start[d]) - added).abs() < 1e-5,
                        "{kernels:?} {dim}: [{d}]"
                    );
                }
            }
        }
    }
}
