use std::fmt;

use super::spec::MAX_LAYERS;

const WORD_BITS: usize = 64;
const WORDS: usize = MAX_LAYERS / WORD_BITS;

/// A set of layers, inline: 32 bytes, no heap.
///
/// A step marks in one the layers that it has written, and a failed commit
/// names with one those that are missing. Prints as `0, 3-5, 27`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct LayerSet {
    words: [u64; WORDS],
}

impl LayerSet {
    /// Is `layer` in the set?
    #[must_use]
    #[inline]
    pub fn contains(&self, layer: usize) -> bool {
        self.words
            .get(layer / WORD_BITS)
            .is_some_and(|word| word >> (layer % WORD_BITS) & 1 == 1)
    }

    /// How many layers are in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// Is there no layer in the set?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words == [0; WORDS]
    }

    /// The layers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..MAX_LAYERS).filter(|&layer| self.contains(layer))
    }

    /// Puts `layer` in. Layers come from a checked spec, so it fits.
    pub(super) fn insert(&mut self, layer: usize) {
        self.words[layer / WORD_BITS] |= 1 << (layer % WORD_BITS);
    }

    /// Those of the layers `0..layers` that are not in the set.
    pub(super) fn missing_of(&self, layers: usize) -> Self {
        let mut missing = Self::default();
        for (at, (missing, word)) in missing.words.iter_mut().zip(self.words).enumerate() {
            let wanted = match layers.saturating_sub(at * WORD_BITS) {
                few @ 0..WORD_BITS => (1 << few) - 1,
                _ => u64::MAX,
            };
            *missing = !word & wanted;
        }
        missing
    }
}

impl fmt::Display for LayerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut layer = 0;
        let mut separator = "";
        while layer < MAX_LAYERS {
            if !self.contains(layer) {
                layer += 1;
                continue;
            }
            let first = layer;
            while self.contains(layer + 1) {
                layer += 1;
            }
            if first == layer {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{layer}")?;
            }
            separator = ", ";
            layer += 1;
        }
        Ok(())
    }
}

impl fmt::Debug for LayerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LayerSet({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_single_layers_and_ranges_up_to_the_last() {
        let mut set = LayerSet::default();
        assert_eq!(set.to_string(), "");
        for layer in [0, 3, 4, 5, 63, 64, 100, MAX_LAYERS - 1] {
            set.insert(layer);
        }
        assert_eq!(set.to_string(), "0, 3-5, 63-64, 100, 255");
        assert_eq!(set.len(), 8);
        assert_eq!(
            set.iter().collect::<Vec<_>>(),
            [0, 3, 4, 5, 63, 64, 100, 255]
        );
        assert!(!set.contains(MAX_LAYERS) && !set.contains(usize::MAX));
    }

    #[test]
    fn missing_is_the_complement_below_the_layer_count() {
        let mut set = LayerSet::default();
        set.insert(1);
        set.insert(2);
        assert_eq!(set.missing_of(5).to_string(), "0, 3-4");
        assert!(set.missing_of(0).is_empty());
        for layers in [63, 64, 65, 128] {
            let missing = set.missing_of(layers);
            assert_eq!(
                (missing.len(), missing.contains(layers - 1)),
                (layers - 2, true)
            );
            assert!(!missing.contains(layers));
        }
        assert_eq!(LayerSet::default().missing_of(MAX_LAYERS).len(), MAX_LAYERS);
    }
}
