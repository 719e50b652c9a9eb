//! Where a key or a value lies inside its block: all of the cache's offset
//! arithmetic, and nothing else.
//!
//! ```text
//!  block   | layer 0            | layer 1            | ... | pad to 64 bytes |
//!  layer   | keys     | values  |
//!  plane   HND: [head][slot][dim]        NHD: [slot][head][dim]
//! ```
//!
//! A *plane* is the keys, or the values, of one layer in one block. Everything
//! that touches payload asks here for a plane and for a row in it; the tests
//! below compare the answers with a model that walks the nested arrays one
//! element at a time.

use std::fmt;

use super::KvError;

/// Every block starts on a multiple of this many bytes: a cache line, and
/// enough for any vector instruction of today.
pub const BLOCK_ALIGN: usize = 64;

/// How a block is laid out.
///
/// Both orders are block-major, `[block][layer][keys|values]`: all that belongs
/// to a block is in one piece, so that it can be copied, saved and given back as
/// one. They differ inside a plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Layout {
    /// `[head][slot][dim]`: the tokens of one head are one contiguous run, which
    /// is what attention, going head by head, wants to read. The default.
    #[default]
    BlockMajorHnd,
    /// `[slot][head][dim]`: all heads of one token are one contiguous run, which
    /// makes appending a single copy and reading a head a strided walk.
    BlockMajorNhd,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BlockMajorHnd => "block-major HND",
            Self::BlockMajorNhd => "block-major NHD",
        })
    }
}

/// Keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The keys.
    Keys,
    /// The values.
    Values,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Keys => "keys",
            Self::Values => "values",
        })
    }
}

/// One plane's shape. Strides count elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlaneLayout {
    pub(super) heads: usize,
    pub(super) dim: usize,
    head_stride: usize,
    slot_stride: usize,
    elements: usize,
    /// Bytes from the layer's start to the plane's.
    offset: usize,
}

impl PlaneLayout {
    /// Elements from the plane's start to the row of `head` in `slot`.
    #[inline]
    pub(super) fn row(&self, head: usize, slot: usize) -> usize {
        head * self.head_stride + slot * self.slot_stride
    }

    /// Elements of the whole plane.
    #[inline]
    pub(super) fn elements(&self) -> usize {
        self.elements
    }

    /// Do the tokens of one head follow one another without a gap?
    #[inline]
    pub(super) fn heads_are_contiguous(&self) -> bool {
        self.slot_stride == self.dim
    }

    /// Do the heads of one token follow one another without a gap?
    #[inline]
    pub(super) fn tokens_are_contiguous(&self) -> bool {
        self.head_stride == self.dim
    }
}

/// One block's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockLayout {
    pub(super) keys: PlaneLayout,
    pub(super) values: PlaneLayout,
    layer_bytes: usize,
    /// Bytes of a block, a multiple of [`BLOCK_ALIGN`].
    pub(super) block_bytes: usize,
}

/// The sizes that a [`BlockLayout`] is made from.
#[derive(Clone, Copy)]
pub(super) struct BlockSizes {
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
    pub(super) slots: usize,
    pub(super) element_bytes: usize,
}

impl BlockLayout {
    /// The one place where sizes are multiplied: what passes here cannot
    /// overflow later, because every offset is below `block_bytes`.
    pub(super) fn new(layout: Layout, sizes: BlockSizes) -> Result<Self, KvError> {
        let overflow = KvError::Overflow { what: "a kv block" };
        let plane = |dim: usize, offset: usize| -> Option<PlaneLayout> {
            let elements = sizes.heads.checked_mul(sizes.slots)?.checked_mul(dim)?;
            let (head_stride, slot_stride) = match layout {
                Layout::BlockMajorHnd => (sizes.slots * dim, dim),
                Layout::BlockMajorNhd => (dim, sizes.heads * dim),
            };
            Some(PlaneLayout {
                heads: sizes.heads,
                dim,
                head_stride,
                slot_stride,
                elements,
                offset,
            })
        };
        let build = || -> Option<Self> {
            let keys = plane(sizes.key_dim, 0)?;
            let key_bytes = keys.elements.checked_mul(sizes.element_bytes)?;
            let values = plane(sizes.value_dim, key_bytes)?;
            let value_bytes = values.elements.checked_mul(sizes.element_bytes)?;
            let layer_bytes = key_bytes.checked_add(value_bytes)?;
            let block_bytes = layer_bytes
                .checked_mul(sizes.layers)?
                .checked_next_multiple_of(BLOCK_ALIGN)?;
            isize::try_from(block_bytes).ok()?;
            Some(Self {
                keys,
                values,
                layer_bytes,
                block_bytes,
            })
        };
        build().ok_or(overflow)
    }

    #[inline]
    pub(super) fn part(&self, part: Part) -> &PlaneLayout {
        match part {
            Part::Keys => &self.keys,
            Part::Values => &self.values,
        }
    }

    /// Bytes from the block's start to a plane's.
    #[inline]
    pub(super) fn plane_offset(&self, layer: usize, part: Part) -> usize {
        layer * self.layer_bytes + self.part(part).offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes() -> BlockSizes {
        BlockSizes {
            layers: 3,
            heads: 2,
            key_dim: 5,
            value_dim: 3,
            slots: 4,
            element_bytes: 2,
        }
    }

    /// Layer, part, head, slot and dim of an element.
    type Index = (usize, Part, usize, usize, usize);

    /// Byte offset of every element, by walking the arrays in the order their
    /// name says and counting.
    fn naive(layout: Layout, s: BlockSizes) -> Vec<(Index, usize)> {
        let mut found = Vec::new();
        let mut at = 0;
        for layer in 0..s.layers {
            for (part, dims) in [(Part::Keys, s.key_dim), (Part::Values, s.value_dim)] {
                let (outer, inner) = match layout {
                    Layout::BlockMajorHnd => (s.heads, s.slots),
                    Layout::BlockMajorNhd => (s.slots, s.heads),
                };
                for i in 0..outer {
                    for j in 0..inner {
                        let (head, slot) = match layout {
                            Layout::BlockMajorHnd => (i, j),
                            Layout::BlockMajorNhd => (j, i),
                        };
                        for dim in 0..dims {
                            found.push(((layer, part, head, slot, dim), at));
                            at += s.element_bytes;
                        }
                    }
                }
            }
        }
        found
    }

    #[test]
    fn every_offset_is_the_naive_one_and_no_two_meet() {
        for layout in [Layout::BlockMajorHnd, Layout::BlockMajorNhd] {
            let s = sizes();
            let block = BlockLayout::new(layout, s).unwrap();
            let mut seen = std::collections::HashSet::new();
            for ((layer, part, head, slot, dim), expected) in naive(layout, s) {
                let element = block.part(part).row(head, slot) + dim;
                assert!(element < block.part(part).elements());
                let byte = block.plane_offset(layer, part) + element * s.element_bytes;
                assert_eq!(
                    byte, expected,
                    "{layout} {layer} {part} {head} {slot} {dim}"
                );
                assert!(byte + s.element_bytes <= block.block_bytes);
                assert!(seen.insert(byte), "{layout}: two elements at byte {byte}");
            }
            assert_eq!(seen.len(), 3 * 2 * 4 * (5 + 3));
        }
    }

    #[test]
    fn blocks_are_padded_to_64_bytes() {
        let block = BlockLayout::new(Layout::default(), sizes()).unwrap();
        assert_eq!(3 * 2 * 4 * (5 + 3) * 2, 384);
        assert_eq!(block.block_bytes, 384);
        let one = BlockSizes {
            layers: 1,
            heads: 1,
            key_dim: 1,
            value_dim: 1,
            slots: 1,
            element_bytes: 2,
        };
        assert_eq!(
            BlockLayout::new(Layout::default(), one)
                .unwrap()
                .block_bytes,
            64
        );
    }

    #[test]
    fn only_the_contiguous_direction_is_called_contiguous() {
        let hnd = BlockLayout::new(Layout::BlockMajorHnd, sizes()).unwrap();
        assert!(hnd.keys.heads_are_contiguous() && !hnd.keys.tokens_are_contiguous());
        let nhd = BlockLayout::new(Layout::BlockMajorNhd, sizes()).unwrap();
        assert!(!nhd.values.heads_are_contiguous() && nhd.values.tokens_are_contiguous());
        // With one head, or one slot, both orders are the same bytes.
        let single = BlockSizes {
            heads: 1,
            ..sizes()
        };
        assert!(
            BlockLayout::new(Layout::BlockMajorNhd, single)
                .unwrap()
                .keys
                .heads_are_contiguous()
        );
    }

    #[test]
    fn sizes_that_pass_the_address_space_are_an_error() {
        for (layers, heads, slots) in [
            (usize::MAX, 1, 1),
            (1, usize::MAX, 1),
            (1, 1, usize::MAX),
            (1, usize::MAX / 16, 1),
            (1 << 40, 1 << 20, 1),
        ] {
            let huge = BlockSizes {
                layers,
                heads,
                slots,
                ..sizes()
            };
            assert_eq!(
                BlockLayout::new(Layout::default(), huge).unwrap_err(),
                KvError::Overflow { what: "a kv block" },
                "{layers} {heads} {slots}"
            );
        }
    }
}
