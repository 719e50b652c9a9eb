/// The name under which prefixes are shared: sequences of different namespaces never
/// share blocks, whatever their tokens.
///
/// It has three parts, each of its own kind, because keys and values depend on all of
/// them: the model's weights, the adapter on top of them, and a salt that keeps tenants
/// apart. An adapter 7 and a salt 7 are different things.
///
/// A part is a number: an index, a UUID, or 128 bits of a cryptographic digest of a name.
/// Parts are compared whole and never hashed away, so two namespaces never meet. A name
/// that a stranger chooses belongs through a cryptographic digest.
///
/// ```
/// use tenslab::kv::Namespace;
///
/// let base = Namespace::default().with_model(1);
/// assert_ne!(base.with_adapter(7), base.with_salt(7));
/// ```
///
/// `Copy`, 48 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Namespace {
    model: u128,
    adapter: u128,
    salt: u128,
}

/// A namespace as the words that are hashed.
const WORDS: usize = 12;

impl Namespace {
    /// The same for these weights.
    #[must_use]
    pub const fn with_model(mut self, model: u128) -> Self {
        self.model = model;
        self
    }

    /// The same for this adapter (a LoRA).
    #[must_use]
    pub const fn with_adapter(mut self, adapter: u128) -> Self {
        self.adapter = adapter;
        self
    }

    /// The same for this salt: one for each group of users who may see from timing what
    /// others of the group asked.
    #[must_use]
    pub const fn with_salt(mut self, salt: u128) -> Self {
        self.salt = salt;
        self
    }

    /// The weights.
    #[must_use]
    pub const fn model(&self) -> u128 {
        self.model
    }

    /// The adapter.
    #[must_use]
    pub const fn adapter(&self) -> u128 {
        self.adapter
    }

    /// The salt.
    #[must_use]
    pub const fn salt(&self) -> u128 {
        self.salt
    }

    /// All of it, as words to hash.
    pub(super) fn words(&self) -> [u32; WORDS] {
        let mut words = [0; WORDS];
        for (words, part) in words
            .chunks_exact_mut(4)
            .zip([self.model, self.adapter, self.salt])
        {
            for (word, bytes) in words.iter_mut().zip(part.to_le_bytes().chunks_exact(4)) {
                *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
        words
    }
}
