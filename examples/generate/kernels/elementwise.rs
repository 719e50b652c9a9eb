//! What happens to each element between two products: norm, rotation, softmax, SiLU.
//!
//! Plain loops that a compiler turns into vectors; none of them fuses a
//! multiplication with an addition, so every CPU gives the same bits. They are
//! a few percent of a decode step.

/// Lanes of a sum; as many as the widest registers have.
const LANES: usize = 16;

/// A sum whose order does not depend on the CPU.
fn sum(values: impl Fn(usize) -> f32, count: usize) -> f32 {
    let mut lanes = [0.0; LANES];
    let whole = count / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        for (lane, total) in lanes.iter_mut().enumerate() {
            *total += values(start + lane);
        }
    }
    (whole..count).map(values).chain(lanes).sum()
}

/// e to the power of `x`, within 2 units in the last place; 0 below -87.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`: the Taylor series of degree 7 is off
/// by at most `r^8 / 8! = 6e-9` there, and `2^n` is put into the exponent.
#[inline]
fn exp(x: f32) -> f32 {
    /// 1.5 * 2^23: adding it rounds to a whole number, which the low bits hold.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts; the first has 9 bits, so `n` times it is exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let inside = x.clamp(-87.0, 88.0);
    let rounded = inside * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = inside - n * LN2_HIGH - n * LN2_LOW;
    let series = 1.0
        + r * (1.0
            + r * (1.0 / 2.0
                + r * (1.0 / 6.0
                    + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0 + r / 5040.0))))));
    let power = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    if x < -87.0 { 0.0 } else { series * power }
}

/// `out *= x / rms(x)`: `out` holds the norm's weights.
pub(crate) fn rms_norm(x: &[f32], epsilon: f32, out: &mut [f32]) {
    let mean = sum(|i| x[i] * x[i], x.len()) / x.len() as f32;
    let scale = 1.0 / (mean + epsilon).sqrt();
    for (out, x) in out.iter_mut().zip(x) {
        *out *= x * scale;
    }
}

/// Rotates one head by its position: the first half of it with the second
/// (Hugging Face's layout).
pub(crate) fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// `gate = gate * sigmoid(gate) * up`.
pub(crate) fn silu_times(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + exp(-*gate)) * up;
    }
}

/// A softmax over scores that come in pieces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shares {
    top: f32,
    total: f32,
}

impl Shares {
    /// Nothing seen yet.
    pub(crate) const NONE: Self = Self {
        top: f32::NEG_INFINITY,
        total: 0.0,
    };

    /// Turns the next scores into shares, relative to the highest score so far.
    /// Returns what the sums made with earlier shares are to be multiplied by, to be
    /// relative to it too.
    pub(crate) fn take(&mut self, scores: &mut [f32]) -> f32 {
        let top = scores.iter().copied().fold(self.top, f32::max);
        let earlier = exp(self.top - top);
        for score in scores.iter_mut() {
            *score = exp(*score - top);
        }
        self.total = self.total * earlier + sum(|i| scores[i], scores.len());
        self.top = top;
        earlier
    }

    /// What the sums are to be multiplied by at the end, so that all shares add up to one.
    pub(crate) fn scale(self) -> f32 {
        1.0 / self.total
    }
}

/// `x *= factor`.
pub(crate) fn scale(x: &mut [f32], factor: f32) {
    for x in x {
        *x *= factor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_to_two_units_over_its_whole_range() {
        let mut x = -87.0f32;
        while x < 88.0 {
            let (found, exact) = (f64::from(exp(x)), f64::from(x).exp());
            assert!(
                ((found - exact) / exact).abs() < 2.4e-7,
                "exp({x}) is {exact}, not {found}"
            );
            x += 0.001_7;
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-200.0), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn shares_in_pieces_are_those_of_all_scores() {
        let scores = [0.5f32, -3.0, 1e30, 1e30, -1e30, 2.0];
        for piece in 1..=scores.len() {
            let mut shares = Shares::NONE;
            let mut sums = [0.0; 6];
            for (i, mut part) in scores.chunks(piece).map(<[f32]>::to_vec).enumerate() {
                let earlier = shares.take(&mut part);
                scale(&mut sums[..i * piece], earlier);
                sums[i * piece..][..part.len()].copy_from_slice(&part);
            }
            scale(&mut sums, shares.scale());
            assert_eq!(sums, [0.0, 0.0, 0.5, 0.5, 0.0, 0.0], "in pieces of {piece}");
        }
    }

    #[test]
    fn a_rotation_keeps_lengths_and_turns_by_its_angle() {
        let mut head = [1.0, 0.0, 0.0, 2.0];
        rotate(&mut head, &[0.0, 0.6], &[1.0, 0.8]);
        assert_eq!(head, [0.0, -1.6, 1.0, 1.2]);
    }
}
