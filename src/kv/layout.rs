//! Where a key or a value lies inside its block: the arithmetic of one block.
//! [`RegionLayout`](super::RegionLayout) has that of the region.
//!
//! ```text
//!  block-major   | layer 0       | layer 1       | ... | pad |      one piece
//!                | keys | values | keys | values |
//!
//!  layer-major   | layer 0             |   | layer 1             |  a piece each
//!                | keys | values | pad |   | keys | values | pad |
//!
//!  plane         HND: [head][slot][dim]        NHD: [slot][head][dim]
//! ```
//!
//! A *plane* is the keys, or the values, of one layer in one block. A *piece* is a
//! range of bytes that belongs to one block alone: all of the block in block-major,
//! one layer of it in layer-major. Pieces are padded to [`BLOCK_ALIGN`]. A cache of
//! one component (MLA) has no planes of values.

use std::fmt;

use super::KvError;

/// Every piece of a block starts on a multiple of this many bytes: a cache line, and
/// enough for any vector instruction of today.
pub const BLOCK_ALIGN: usize = 64;

/// How a region is laid out.
///
/// Two choices. Whose bytes are together: a block's (*block-major*,
/// `[block][layer][keys|values]`) or a layer's (*layer-major*,
/// `[layer][block][keys|values]`). And inside a plane, a head's tokens (*HND*,
/// `[head][slot][dim]`) or a token's heads (*NHD*, `[slot][head][dim]`).
///
/// Block-major is the default: a block is one piece, so it is copied, saved and given
/// back as one. Layer-major is what engines want whose kernels take one array for each
/// layer; a block is then one piece a layer, and its offsets depend on how many blocks
/// there are.
///
/// HND is the default: attention goes head by head, and reads a head in one run. NHD
/// makes appending a single copy and reading a head a strided walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Layout {
    /// `[block][layer][keys|values][head][slot][dim]`. The default.
    #[default]
    BlockMajorHnd,
    /// `[block][layer][keys|values][slot][head][dim]`.
    BlockMajorNhd,
    /// `[layer][block][keys|values][head][slot][dim]`.
    LayerMajorHnd,
    /// `[layer][block][keys|values][slot][head][dim]`.
    LayerMajorNhd,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Self; 4] = [
        Self::BlockMajorHnd,
        Self::BlockMajorNhd,
        Self::LayerMajorHnd,
        Self::LayerMajorNhd,
    ];

    /// Its name in one word, as options spell it: `"block-major-hnd"`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BlockMajorHnd => "block-major-hnd",
            Self::BlockMajorNhd => "block-major-nhd",
            Self::LayerMajorHnd => "layer-major-hnd",
            Self::LayerMajorNhd => "layer-major-nhd",
        }
    }

    /// Do a layer's bytes lie together, and not a block's?
    #[must_use]
    pub const fn is_layer_major(self) -> bool {
        matches!(self, Self::LayerMajorHnd | Self::LayerMajorNhd)
    }

    /// Do the tokens of one head follow one another (HND), and not the heads of one token?
    #[must_use]
    pub const fn is_hnd(self) -> bool {
        matches!(self, Self::BlockMajorHnd | Self::LayerMajorHnd)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BlockMajorHnd => "block-major HND",
            Self::BlockMajorNhd => "block-major NHD",
            Self::LayerMajorHnd => "layer-major HND",
            Self::LayerMajorNhd => "layer-major NHD",
        })
    }
}

/// Keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The keys, or the one component that a cache without values keeps.
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

    /// Heads that some tokens have in one run of elements: all of them or one.
    #[inline]
    pub(super) fn heads_in_a_run(&self) -> usize {
        match self.tokens_are_contiguous() {
            true => self.heads,
            false => 1,
        }
    }
}

/// One block's shape, wherever its pieces lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockLayout {
    pub(super) keys: PlaneLayout,
    /// Of no elements where there is one component.
    pub(super) values: PlaneLayout,
    pub(super) layers: usize,
    /// Pieces of a block: 1, or one for each layer.
    pub(super) pieces: usize,
    /// Bytes from a layer's keys to its values.
    pub(super) values_offset: usize,
    /// Bytes of one layer's planes, where a layer is a piece with its padding.
    pub(super) layer_bytes: usize,
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
    /// With `RegionLayout::new` the place where sizes are multiplied: what passes here
    /// cannot overflow later, because every offset in a block is below `block_bytes`.
    pub(super) fn new(layout: Layout, sizes: BlockSizes) -> Result<Self, KvError> {
        let overflow = KvError::Overflow { what: "a kv block" };
        let plane = |dim: usize| -> Option<PlaneLayout> {
            let elements = sizes.heads.checked_mul(sizes.slots)?.checked_mul(dim)?;
            let (head_stride, slot_stride) = if layout.is_hnd() {
                (sizes.slots * dim, dim)
            } else {
                (dim, sizes.heads * dim)
            };
            Some(PlaneLayout {
                heads: sizes.heads,
                dim,
                head_stride,
                slot_stride,
                elements,
            })
        };
        let build = || -> Option<Self> {
            let keys = plane(sizes.key_dim)?;
            let key_bytes = keys.elements.checked_mul(sizes.element_bytes)?;
            let values = plane(sizes.value_dim)?;
            let value_bytes = values.elements.checked_mul(sizes.element_bytes)?;
            let planes = key_bytes.checked_add(value_bytes)?;
            let (pieces, layer_bytes) = if layout.is_layer_major() {
                let padded = planes.checked_next_multiple_of(BLOCK_ALIGN)?;
                (sizes.layers, padded)
            } else {
                (1, planes)
            };
            let block_bytes = layer_bytes
                .checked_mul(sizes.layers)?
                .checked_next_multiple_of(BLOCK_ALIGN)?;
            isize::try_from(block_bytes).ok()?;
            Some(Self {
                keys,
                values,
                layers: sizes.layers,
                pieces,
                values_offset: key_bytes,
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

    /// The shape of a plane that is to be read: [`KvError::NoValues`] where there is none.
    #[inline]
    pub(super) fn stored(&self, part: Part) -> Result<&PlaneLayout, KvError> {
        match part {
            Part::Values if !self.has_values() => Err(KvError::NoValues),
            part => Ok(self.part(part)),
        }
    }

    /// Are there values beside the keys?
    #[inline]
    pub(super) fn has_values(&self) -> bool {
        self.values.elements > 0
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

    /// Layer-major pads every layer of a block, block-major the block.
    #[test]
    fn pieces_are_padded_to_64_bytes() {
        let block = |layout, sizes| BlockLayout::new(layout, sizes).unwrap().block_bytes;
        assert_eq!(3 * 2 * 4 * (5 + 3) * 2, 384);
        assert_eq!(block(Layout::BlockMajorNhd, sizes()), 384);
        assert_eq!(block(Layout::LayerMajorNhd, sizes()), 3 * 128);
        let one = BlockSizes {
            layers: 3,
            heads: 1,
            key_dim: 1,
            value_dim: 1,
            slots: 1,
            element_bytes: 2,
        };
        assert_eq!(block(Layout::BlockMajorHnd, one), 64);
        assert_eq!(block(Layout::LayerMajorHnd, one), 3 * 64);
    }

    #[test]
    fn only_the_contiguous_direction_is_called_contiguous() {
        for layout in Layout::ALL {
            let block = BlockLayout::new(layout, sizes()).unwrap();
            let name = layout.to_string();
            for plane in [block.keys, block.values] {
                assert_eq!(plane.heads_are_contiguous(), name.ends_with("HND"));
                assert_eq!(plane.tokens_are_contiguous(), name.ends_with("NHD"));
            }
            assert_eq!(layout.is_layer_major(), name.starts_with("layer-major"));
            assert_eq!(layout.name(), name.to_lowercase().replace(' ', "-"));
        }
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
            for layout in Layout::ALL {
                assert_eq!(
                    BlockLayout::new(layout, huge).unwrap_err(),
                    KvError::Overflow { what: "a kv block" },
                    "{layers} {heads} {slots}"
                );
            }
        }
    }
}
