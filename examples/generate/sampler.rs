//! From logits to a token: the most likely one, or a draw.

use crate::trouble::Trouble;

/// Chooses tokens. Makes its room once.
#[derive(Debug)]
pub(crate) struct Sampler {
    temperature: f32,
    top_p: f32,
    state: u64,
    /// Share and id, the greatest share first.
    shares: Vec<(f64, u32)>,
}

impl Sampler {
    /// `temperature` 0 is greedy. `top_p` is the share of all probability that a draw
    /// is made from.
    pub(crate) fn new(temperature: f32, top_p: f32, seed: u64) -> Self {
        Self {
            temperature,
            top_p,
            state: seed,
            shares: Vec::new(),
        }
    }

    /// The next token. Of equal logits the lower id counts as the higher one.
    ///
    /// # Errors
    ///
    /// Logits that are not numbers: damaged weights.
    pub(crate) fn next(&mut self, logits: &[f32]) -> Result<u32, Trouble> {
        // As integers a NaN is just another value, and the scan stays a vector loop.
        if !logits
            .iter()
            .fold(true, |fine, logit| fine & logit.is_finite())
        {
            return Err(Trouble::new(
                "the logits are not finite numbers; the weights are damaged or too large for --dtype",
            ));
        }
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if self.temperature == 0.0 {
            let first = logits.iter().position(|logit| *logit == top).unwrap_or(0);
            return Ok(u32::try_from(first).unwrap_or(u32::MAX));
        }
        self.shares.clear();
        self.shares.extend((0..).zip(logits).map(|(id, logit)| {
            let share = (f64::from(logit - top) / f64::from(self.temperature)).exp();
            (share, id)
        }));
        self.shares
            .sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let total: f64 = self.shares.iter().map(|(share, _)| share).sum();
        let wanted = total * f64::from(self.top_p);
        let (mut kept, mut count) = (0.0, 0);
        while count < self.shares.len() && kept < wanted {
            kept += self.shares[count].0;
            count += 1;
        }
        let mut rest = self.uniform() * kept;
        let drawn = self.shares[..count].iter().find(|(share, _)| {
            rest -= share;
            rest < 0.0
        });
        Ok(drawn.or(self.shares.first()).map_or(0, |(_, id)| *id))
    }

    /// In 0..1, from a splitmix64.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Ids and logits of the `count` highest, the highest first.
pub(crate) fn highest(logits: &[f32], count: usize) -> (Vec<u32>, Vec<f32>) {
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(count + 1);
    for (id, &logit) in (0..).zip(logits) {
        if best.len() < count || best.last().is_some_and(|last| logit > last.0) {
            let at = best.partition_point(|(other, _)| *other >= logit);
            best.insert(at, (logit, id));
            best.truncate(count);
        }
    }
    best.into_iter().map(|(logit, id)| (id, logit)).unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_takes_the_highest_and_of_equals_the_first() {
        let mut sampler = Sampler::new(0.0, 1.0, 7);
        assert_eq!(sampler.next(&[0.5, 3.0, -1.0, 3.0]).unwrap(), 1);
        assert!(sampler.next(&[0.5, f32::NAN]).is_err());
    }

    #[test]
    fn draws_have_the_shares_of_the_softmax() {
        let mut sampler = Sampler::new(0.5, 1.0, 1);
        let logits = [0.0, 0.5 * 2f32.ln(), 0.5 * 5f32.ln()];
        let mut counts = [0.0f64; 3];
        for _ in 0..40_000 {
            counts[sampler.next(&logits).unwrap() as usize] += 1.0 / 40_000.0;
        }
        for (found, expected) in counts.iter().zip([0.125, 0.25, 0.625]) {
            assert!((found - expected).abs() < 0.01, "{counts:?}");
        }
    }

    #[test]
    fn top_p_keeps_the_fewest_that_have_the_share() {
        let logits = [1f32.ln(), 2f32.ln(), 5f32.ln(), 2f32.ln()];
        for (top_p, kept) in [
            (0.4, &[2][..]),
            (0.6, &[2, 1]),
            (0.89, &[2, 1, 3]),
            (1.0, &[2, 1, 3, 0]),
        ] {
            let mut sampler = Sampler::new(1.0, top_p, 3);
            let mut seen: Vec<u32> = (0..2_000).map(|_| sampler.next(&logits).unwrap()).collect();
            seen.sort_unstable();
            seen.dedup();
            let mut kept = kept.to_vec();
            kept.sort_unstable();
            assert_eq!(seen, kept, "top-p {top_p}");
        }
    }

    #[test]
    fn the_highest_come_in_order() {
        let (ids, logits) = highest(&[1.0, 9.0, -3.0, 9.0, 4.0], 3);
        assert_eq!(ids, [1, 3, 4]);
        assert_eq!(logits, [9.0, 9.0, 4.0]);
        assert_eq!(highest(&[1.0], 5).0, [0]);
    }
}
