//! The numbers that Python's `random.Random` draws, as far as the workloads ask for any.

use rand_mt::Mt;

/// CPython's generator: MT19937, seeded by the integer as a key of one word.
pub(super) struct Random(Mt);

impl Random {
    /// `random.Random(seed)`.
    pub(super) fn new(seed: u32) -> Self {
        Self(Mt::new_with_key([seed]))
    }

    /// `randrange(limit)`, and the index that `choice` takes of a list that is so long: the
    /// upper bits of a word, as many as `limit` has, drawn again until they are below it.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        let limit = u32::try_from(limit).expect("the workloads draw below 2^32");
        assert!(limit > 0, "no number is below 0");
        let bits = u32::BITS - limit.leading_zeros();
        loop {
            let drawn = self.0.next_u32() >> (u32::BITS - bits);
            if drawn < limit {
                return drawn as usize;
            }
        }
    }

    /// `randrange(first, end)`.
    pub(super) fn between(&mut self, first: usize, end: usize) -> usize {
        first + self.below(end - first)
    }
}
