//! The kernels in plain Rust: the same lanes, no special instruction.
//!
//! What the compiler makes of it depends on the target; the order of the sums
//! does not.

use super::Number;

/// Lanes of a product; see the [module](super).
pub(super) const LANES: usize = 32;

/// Adds the lanes up in halves.
fn sum(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half);
        for (low, high) in low.iter_mut().zip(&*high) {
            *low += high;
        }
        half /= 2;
    }
    lanes[0]
}

fn dot<W: Number>(w: &[W], x: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let mut step = |w: &[W], x: &[f32]| {
        for ((lane, w), x) in lanes.iter_mut().zip(w).zip(x) {
            *lane += w.wide() * x;
        }
    };
    let (w_whole, w_tail) = w.as_chunks::<LANES>();
    let (x_whole, x_tail) = x.as_chunks::<LANES>();
    for (w, x) in w_whole.iter().zip(x_whole) {
        step(w, x);
    }
    step(w_tail, x_tail);
    sum(lanes)
}

pub(super) fn matmul<W: Number>(w: &[W], x: &[f32], cols: usize, out: &mut [f32]) {
    let tokens = x.len() / cols;
    for (row, out) in w.chunks_exact(cols).zip(out.chunks_exact_mut(tokens)) {
        for (x, out) in x.chunks_exact(cols).zip(out) {
            *out = dot(row, x);
        }
    }
}

pub(super) fn weigh<W: Number>(shares: &[f32], values: &[W], out: &mut [f32]) {
    for (share, row) in shares.iter().zip(values.chunks_exact(out.len())) {
        for (out, value) in out.iter_mut().zip(row) {
            *out += share * value.wide();
        }
    }
}
