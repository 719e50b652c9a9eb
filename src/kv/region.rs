//! [`RegionLayout`]: where every plane of the region lies.
//!
//! ```text
//!  block-major   | block 0                                  | block 1 ...
//!                | layer 0       | layer 1       | ... | pad |
//!
//!  layer-major   | layer 0                                  | layer 1 ...
//!                | block 0             | block 1             | ...
//! ```
//!
//! Both orders are the same sum, with other strides, so nothing that looks for a plane
//! asks which one it is:
//!
//! ```text
//!  plane = block * block_stride + layer * layer_stride + (0 | values_offset)
//! ```
//!
//! Everything that touches payload asks here for a plane, and for the pieces of a block.
//! The tests below compare the answers, and those of `layout.rs` for rows in a plane, with
//! a model that walks the nested arrays one element at a time.

use std::ops::Range;

use super::KvError;
use super::layout::{BlockLayout, Part};

/// Where the planes of a region of so many blocks lie, from
/// [`KvSpec::region`](super::KvSpec::region). Offsets and strides are bytes, counted from
/// the start of the region.
///
/// What a kernel needs that walks the region on its own: a plane starts at `block *
/// block_stride + layer * layer_stride`, its values [`values_offset`](Self::values_offset)
/// behind its keys, and [`KvSpec::row_offset`](super::KvSpec::row_offset) counts from there.
///
/// ```
/// use tenslab::DType;
/// use tenslab::kv::{KvDims, KvSpec, Layout, Part};
///
/// let dims = KvDims { layers: 2, kv_heads: 1, key_dim: 32, value_dim: 32, block_tokens: 16 };
/// let spec = KvSpec::new(dims, DType::BF16)?;
/// let (block_major, layer_major) = (spec.region(10)?, spec.with_layout(Layout::LayerMajorHnd)?.region(10)?);
/// assert_eq!(block_major.plane_offset(3, 1, Part::Keys), Some(3 * 4096 + 2048));
/// assert_eq!(layer_major.plane_offset(3, 1, Part::Keys), Some(10 * 2048 + 3 * 2048));
///
/// // A block of a layer-major region has one piece for each layer.
/// assert!(block_major.block_pieces(3).eq([12_288..16_384]));
/// assert!(layer_major.block_pieces(3).eq([6_144..8_192, 26_624..28_672]));
/// # Ok::<(), tenslab::kv::KvError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionLayout {
    blocks: usize,
    layers: usize,
    pieces: usize,
    block_stride: usize,
    layer_stride: usize,
    values_offset: usize,
    has_values: bool,
    bytes: usize,
}

impl RegionLayout {
    /// [`KvError::Overflow`] for a region above `isize::MAX` bytes; every offset is below
    /// its size.
    pub(super) fn new(block: &BlockLayout, blocks: usize) -> Result<Self, KvError> {
        let bytes = blocks
            .checked_mul(block.block_bytes)
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or(KvError::Overflow {
                what: "the kv region",
            })?;
        let (block_stride, layer_stride) = if block.pieces == 1 {
            (block.block_bytes, block.layer_bytes)
        } else {
            (block.layer_bytes, blocks * block.layer_bytes)
        };
        Ok(Self {
            blocks,
            layers: block.layers,
            pieces: block.pieces,
            block_stride,
            layer_stride,
            values_offset: block.values_offset,
            has_values: block.has_values(),
            bytes,
        })
    }

    /// Blocks of the region.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Bytes of the region: blocks times bytes of a block.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes from a plane to the same plane of the next block; a multiple of 64.
    #[must_use]
    pub fn block_stride(&self) -> usize {
        self.block_stride
    }

    /// Bytes from a plane to the same plane of the next layer.
    #[must_use]
    pub fn layer_stride(&self) -> usize {
        self.layer_stride
    }

    /// Bytes from the keys of a layer in a block to its values; `None` where there are none.
    #[must_use]
    pub fn values_offset(&self) -> Option<usize> {
        self.has_values.then_some(self.values_offset)
    }

    /// Bytes from the region's start to one plane, or `None` when there is no such
    /// block, layer or part.
    ///
    /// A multiple of the dtype's size; and of 64 if a plane's bytes are one, which those
    /// of all published models are with blocks of 16 tokens and more.
    #[must_use]
    pub fn plane_offset(&self, block: usize, layer: usize, part: Part) -> Option<usize> {
        let exists =
            block < self.blocks && layer < self.layers && (part == Part::Keys || self.has_values);
        exists.then(|| self.plane_at(block, layer, part))
    }

    /// [`plane_offset`](Self::plane_offset) of a plane that is known to exist.
    #[inline]
    pub(super) fn plane_at(&self, block: usize, layer: usize, part: Part) -> usize {
        debug_assert!(block < self.blocks, "block {block} of {}", self.blocks);
        debug_assert!(layer < self.layers, "layer {layer} of {}", self.layers);
        let in_layer = match part {
            Part::Keys => 0,
            Part::Values => self.values_offset,
        };
        block * self.block_stride + layer * self.layer_stride + in_layer
    }

    /// The ranges of the region that are block `block`'s and no other's, padding
    /// included: one in block-major, one for each layer in layer-major, ascending, all of
    /// one length. None for a block that does not exist.
    ///
    /// Two blocks' pieces, taken in this order, correspond: copying the one's to the
    /// other's copies the block.
    #[must_use]
    pub fn block_pieces(
        &self,
        block: usize,
    ) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        let Self {
            block_stride,
            layer_stride,
            ..
        } = *self;
        let pieces = if block < self.blocks { self.pieces } else { 0 };
        (0..pieces).map(move |piece| {
            let start = block * block_stride + piece * layer_stride;
            start..start + block_stride
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::super::layout::{BLOCK_ALIGN, BlockSizes, Layout};
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

    /// Keys of MLA: one head, no values.
    fn one_component() -> BlockSizes {
        BlockSizes {
            heads: 1,
            value_dim: 0,
            ..sizes()
        }
    }

    const BLOCKS: usize = 4;

    /// Block, layer, part, head, slot and dim of an element.
    type Index = (usize, usize, Part, usize, usize, usize);

    /// The planes of one layer in one block, walked in the order the layout's name says.
    fn walk_layer(
        layout: Layout,
        s: BlockSizes,
        (block, layer): (usize, usize),
        at: &mut usize,
        found: &mut Vec<(Index, usize)>,
    ) {
        for (part, dims) in [(Part::Keys, s.key_dim), (Part::Values, s.value_dim)] {
            let hnd = matches!(layout, Layout::BlockMajorHnd | Layout::LayerMajorHnd);
            let (outer, inner) = if hnd {
                (s.heads, s.slots)
            } else {
                (s.slots, s.heads)
            };
            for i in 0..outer {
                for j in 0..inner {
                    let (head, slot) = if hnd { (i, j) } else { (j, i) };
                    for dim in 0..dims {
                        found.push(((block, layer, part, head, slot, dim), *at));
                        *at += s.element_bytes;
                    }
                }
            }
        }
    }

    /// Byte offset of every element of the region, by walking the arrays in the order
    /// their name says and counting; and the region's length.
    fn naive(layout: Layout, s: BlockSizes) -> (Vec<(Index, usize)>, usize) {
        let (mut found, mut at) = (Vec::new(), 0_usize);
        match layout {
            Layout::BlockMajorHnd | Layout::BlockMajorNhd => {
                for block in 0..BLOCKS {
                    for layer in 0..s.layers {
                        walk_layer(layout, s, (block, layer), &mut at, &mut found);
                    }
                    at = at.next_multiple_of(64);
                }
            }
            Layout::LayerMajorHnd | Layout::LayerMajorNhd => {
                for layer in 0..s.layers {
                    for block in 0..BLOCKS {
                        walk_layer(layout, s, (block, layer), &mut at, &mut found);
                        at = at.next_multiple_of(64);
                    }
                }
            }
        }
        (found, at)
    }

    #[test]
    fn every_offset_is_the_naive_one_and_in_a_piece_of_its_block_alone() {
        for (layout, s) in Layout::ALL
            .into_iter()
            .flat_map(|layout| [(layout, sizes()), (layout, one_component())])
        {
            let block_layout = BlockLayout::new(layout, s).unwrap();
            let region = RegionLayout::new(&block_layout, BLOCKS).unwrap();
            let (elements, bytes) = naive(layout, s);
            assert_eq!(region.bytes(), bytes, "{layout}");

            let mut owner = HashMap::new();
            for block in 0..BLOCKS {
                let pieces: Vec<_> = region.block_pieces(block).collect();
                let expected = if layout.is_layer_major() { s.layers } else { 1 };
                assert_eq!(pieces.len(), expected, "{layout}");
                for piece in &pieces {
                    assert!(piece.start % 64 == 0 && piece.end % 64 == 0, "{layout}");
                    for byte in piece.clone() {
                        assert_eq!(owner.insert(byte, block), None, "{layout}: byte {byte}");
                    }
                }
                assert_eq!(
                    pieces.iter().map(Range::len).sum::<usize>(),
                    block_layout.block_bytes
                );
            }
            // Together the pieces are the region, so nothing in it is nobody's.
            assert_eq!(owner.len(), bytes, "{layout}");

            assert_eq!(
                elements.len(),
                BLOCKS * s.layers * s.heads * s.slots * (s.key_dim + s.value_dim)
            );
            let mut seen = HashSet::new();
            for ((block, layer, part, head, slot, dim), expected) in elements {
                let element = block_layout.part(part).row(head, slot) + dim;
                assert!(element < block_layout.part(part).elements());
                let plane = region.plane_offset(block, layer, part).unwrap();
                let byte = plane + element * s.element_bytes;
                assert_eq!(
                    byte, expected,
                    "{layout} {block} {layer} {part} {head} {slot} {dim}"
                );
                for byte in byte..byte + s.element_bytes {
                    assert_eq!(owner.get(&byte), Some(&block), "{layout}");
                    assert!(seen.insert(byte), "{layout}: two elements at byte {byte}");
                }
            }
        }
    }

    #[test]
    fn planes_and_pieces_that_do_not_exist_have_no_place() {
        for layout in Layout::ALL {
            let block = BlockLayout::new(layout, sizes()).unwrap();
            let region = RegionLayout::new(&block, BLOCKS).unwrap();
            assert_eq!(region.plane_offset(BLOCKS, 0, Part::Keys), None);
            assert_eq!(region.plane_offset(0, 3, Part::Keys), None);
            assert_eq!(
                region.plane_offset(usize::MAX, usize::MAX, Part::Values),
                None
            );
            assert_eq!(region.block_pieces(BLOCKS).len(), 0);
            assert_eq!(region.values_offset(), Some(2 * 4 * 5 * 2));

            let block = BlockLayout::new(layout, one_component()).unwrap();
            let region = RegionLayout::new(&block, BLOCKS).unwrap();
            assert_eq!(region.plane_offset(0, 0, Part::Values), None);
            assert_eq!(region.values_offset(), None);
            assert_eq!(block.stored(Part::Values), Err(KvError::NoValues));
            assert_eq!(block.stored(Part::Keys), Ok(&block.keys));
        }
    }

    /// What the docs say: planes are as aligned as blocks where that costs nothing.
    #[test]
    fn planes_of_published_models_start_at_64_bytes() {
        for (heads, key_dim, value_dim) in [(8, 128, 128), (9, 64, 64), (1, 576, 0), (32, 80, 80)] {
            for layout in Layout::ALL {
                let sizes = BlockSizes {
                    layers: 5,
                    heads,
                    key_dim,
                    value_dim,
                    slots: 16,
                    element_bytes: 2,
                };
                let block = BlockLayout::new(layout, sizes).unwrap();
                assert_eq!(
                    block.block_bytes,
                    5 * heads * 16 * (key_dim + value_dim) * 2,
                    "no padding"
                );
                let region = RegionLayout::new(&block, 7).unwrap();
                for (block, layer) in
                    (0..7).flat_map(|block| (0..5).map(move |layer| (block, layer)))
                {
                    for part in [Part::Keys, Part::Values] {
                        let offset = region.plane_offset(block, layer, part);
                        assert!(offset.is_none_or(|offset| offset % BLOCK_ALIGN == 0));
                    }
                }
            }
        }
    }

    #[test]
    fn a_region_above_the_address_space_is_an_error() {
        for layout in Layout::ALL {
            let block = BlockLayout::new(layout, sizes()).unwrap();
            let most = isize::MAX as usize / block.block_bytes;
            assert_eq!(
                RegionLayout::new(&block, most).unwrap().bytes(),
                most * block.block_bytes
            );
            for blocks in [most + 1, usize::MAX] {
                assert_eq!(
                    RegionLayout::new(&block, blocks).unwrap_err(),
                    KvError::Overflow {
                        what: "the kv region"
                    }
                );
            }
        }
    }
}
