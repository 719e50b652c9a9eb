/// How many tokens a block has, to divide by.
///
/// A shift where that is a power of two, as it nearly always is: a division takes some 15
/// cycles, and a step would make several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockTokens {
    count: usize,
    /// Of a power of two.
    shift: Option<u8>,
}

impl BlockTokens {
    /// `count` is not 0.
    pub(super) fn new(count: usize) -> Self {
        debug_assert!(count > 0, "a block without tokens");
        let shift = u8::try_from(count.trailing_zeros()).ok();
        Self {
            count,
            shift: shift.filter(|_| count.is_power_of_two()),
        }
    }

    #[inline]
    pub(super) fn count(self) -> usize {
        self.count
    }

    /// The block that token `token` of a sequence lies in, and its slot there.
    #[inline]
    pub(super) fn place(self, token: usize) -> (usize, usize) {
        let block = match self.shift {
            Some(shift) => token >> shift,
            None => token / self.count,
        };
        (block, token - block * self.count)
    }

    /// Blocks that `tokens` tokens fill, without one that they fill in part.
    #[inline]
    pub(super) fn full(self, tokens: usize) -> usize {
        self.place(tokens).0
    }

    /// Blocks that `tokens` tokens need.
    #[inline]
    pub(super) fn needed(self, tokens: usize) -> usize {
        let (full, rest) = self.place(tokens);
        full + usize::from(rest > 0)
    }

    /// Slots without a token in the last of the blocks that `tokens` tokens need.
    #[inline]
    pub(super) fn empty(self, tokens: usize) -> usize {
        match self.place(tokens).1 {
            0 => 0,
            filled => self.count - filled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifts_and_divisions_agree() {
        for count in 1..=129 {
            let tokens = BlockTokens::new(count);
            for token in (0..1000).chain([usize::MAX - 1, usize::MAX]) {
                assert_eq!(tokens.place(token), (token / count, token % count));
                assert_eq!(tokens.full(token), token / count);
                assert_eq!(tokens.needed(token), token.div_ceil(count));
                assert_eq!(tokens.empty(token), (count - token % count) % count);
            }
        }
    }
}
