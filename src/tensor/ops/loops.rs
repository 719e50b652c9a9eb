//! Two layouts of one shape, as the fewest loops that visit both.
//!
//! ```text
//!   shape [2, 1, 3, 4]   to: packed          ──▶  one loop of 24
//!                        from: packed
//!
//!   shape [2, 1, 3, 4]   to:   12 12  4  1   ──▶  loops of   6   4
//!                        from: 24 24  8  1        steps to   4   1
//!                                                 steps from 8   1
//! ```
//!
//! Dimensions of size 1 are never stepped and fall out; neighbours that step as one in
//! both layouts become one. Offsets and steps are in elements.

use crate::types::MAX_RANK;

/// One loop: how often, and how far each side moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Loop {
    pub(super) size: usize,
    pub(super) to: usize,
    pub(super) from: usize,
}

/// A nest of loops, the outermost first. At least one, and none of size 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loops {
    loops: [Loop; MAX_RANK],
    depth: usize,
}

const ONCE: Loop = Loop {
    size: 1,
    to: 1,
    from: 1,
};

impl Loops {
    /// In row-major order of the logical index. `None` for a shape without elements.
    pub(super) fn in_order(dims: &[usize], to: &[usize], from: &[usize]) -> Option<Loops> {
        Some(Self::of(dims, to, from)?.merged())
    }

    /// In the order in which `to` lies in memory: for those who do not mind the order.
    pub(super) fn in_memory_order(dims: &[usize], to: &[usize], from: &[usize]) -> Option<Loops> {
        let mut loops = Self::of(dims, to, from)?;
        // Outer loops first. Among equal steps of `to` (there are none in views of packed
        // tensors) the order means nothing.
        let depth = loops.depth;
        loops.loops[..depth].sort_by_key(|each| std::cmp::Reverse((each.to, each.from)));
        Some(loops.merged())
    }

    fn of(dims: &[usize], to: &[usize], from: &[usize]) -> Option<Loops> {
        if dims.contains(&0) {
            return None;
        }
        let mut loops = Loops {
            loops: [ONCE; MAX_RANK],
            depth: 0,
        };
        for (&size, (&to, &from)) in dims.iter().zip(to.iter().zip(from)) {
            if size != 1 {
                loops.loops[loops.depth] = Loop { size, to, from };
                loops.depth += 1;
            }
        }
        loops.depth = loops.depth.max(1);
        Some(loops)
    }

    fn merged(mut self) -> Loops {
        let mut kept = 0;
        for next in 1..self.depth {
            let (outer, inner) = (self.loops[kept], self.loops[next]);
            if outer.to == inner.size * inner.to && outer.from == inner.size * inner.from {
                self.loops[kept] = Loop {
                    size: outer.size * inner.size,
                    ..inner
                };
            } else {
                kept += 1;
                self.loops[kept] = inner;
            }
        }
        self.depth = kept + 1;
        self
    }

    /// All loops, the outermost first.
    pub(super) fn all(&self) -> &[Loop] {
        &self.loops[..self.depth]
    }

    /// The innermost loop.
    pub(super) fn innermost(&self) -> Loop {
        self.loops[self.depth - 1]
    }

    /// The same without loop `at`, which somebody else runs.
    pub(super) fn without(&self, at: usize) -> Loops {
        let mut rest = *self;
        rest.loops.copy_within(at + 1..self.depth, at);
        rest.depth -= 1;
        rest
    }

    /// How many elements.
    #[cfg(feature = "rayon")]
    pub(super) fn numel(&self) -> usize {
        self.all().iter().map(|each| each.size).product()
    }

    /// Elements from the first to the last one of `to`, both included.
    #[cfg(feature = "rayon")]
    pub(super) fn span(&self) -> usize {
        let last: usize = self.all().iter().map(|l| (l.size - 1) * l.to).sum();
        last + 1
    }

    /// Two halves of the outermost loop, and where the second one begins on both sides:
    /// everything that the first half writes is in front of that. `None` where there is
    /// no such cut.
    #[cfg(feature = "rayon")]
    pub(super) fn halves(&self) -> Option<(Loops, Loops, usize, usize)> {
        let outermost = self.loops[0];
        let (mut first, mut second) = (*self, *self);
        first.loops[0].size = outermost.size / 2;
        second.loops[0].size = outermost.size - outermost.size / 2;
        let at = first.loops[0].size;
        if at == 0 || first.span() > at * outermost.to {
            return None;
        }
        Some((
            first.merged_head(),
            second.merged_head(),
            at * outermost.to,
            at * outermost.from,
        ))
    }

    /// Without an outermost loop that is run once, so that the next one can be cut.
    #[cfg(feature = "rayon")]
    fn merged_head(self) -> Loops {
        if self.loops[0].size == 1 && self.depth > 1 {
            self.without(0)
        } else {
            self
        }
    }

    /// Calls `visit(offset in to, offset in from)` for each turn of all loops but the
    /// innermost `inner` ones, in order.
    pub(super) fn for_each(&self, inner: usize, mut visit: impl FnMut(usize, usize)) {
        let outer = &self.loops[..self.depth.saturating_sub(inner)];
        let Some((&tight, outer)) = outer.split_last() else {
            return visit(0, 0);
        };
        let mut turn = [0; MAX_RANK];
        let (mut to, mut from) = (0, 0);
        loop {
            for step in 0..tight.size {
                visit(to + step * tight.to, from + step * tight.from);
            }
            // The next turn: the last loop that has one more, the ones inside it at 0.
            let mut at = outer.len();
            loop {
                if at == 0 {
                    return;
                }
                at -= 1;
                turn[at] += 1;
                to += outer[at].to;
                from += outer[at].from;
                if turn[at] < outer[at].size {
                    break;
                }
                to -= outer[at].size * outer[at].to;
                from -= outer[at].size * outer[at].from;
                turn[at] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Shape, row_major_strides};

    /// What makes a copy of packed tensors one move of a block.
    #[test]
    fn two_packed_layouts_are_one_loop() {
        for dims in [
            &[][..],
            &[7],
            &[2, 3],
            &[1, 5, 1, 4],
            &[2, 3, 4, 5, 1, 6, 2, 2],
        ] {
            let shape = Shape::from_dims(dims).unwrap();
            let packed = row_major_strides(&shape);
            for of in [Loops::in_order, Loops::in_memory_order] {
                let loops = of(dims, packed.values(), packed.values()).unwrap();
                let size = shape.numel();
                let (to, from) = (1, 1);
                assert_eq!(loops.all(), [Loop { size, to, from }], "{shape}");
            }
        }
        // Only where both sides step as one.
        let loops = Loops::in_order(&[2, 3], &[3, 1], &[4, 1]).unwrap();
        assert_eq!(loops.all().len(), 2);
        assert!(Loops::in_order(&[2, 0], &[1, 1], &[1, 1]).is_none());
    }
}
