//! Digests of whole files, if somebody knows what they should be.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A SHA-256 digest: 64 hexadecimal digits as text.
///
/// ```
/// use tenslab::weights::Sha256Digest;
///
/// let text = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// let digest: Sha256Digest = text.parse()?;             // of nothing
/// assert_eq!(digest.bytes()[..2], [0xe3, 0xb0]);
/// assert_eq!(digest.to_string(), text);
/// assert!("e3b0".parse::<Sha256Digest>().is_err());
/// # Ok::<(), tenslab::weights::NoDigest>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256Digest([u8; 32]);

impl Sha256Digest {
    /// From its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256Digest({self})")
    }
}

/// A text that is no [`Sha256Digest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 digest is 64 hexadecimal digits, and these are {letters} characters")]
pub struct NoDigest {
    /// How many characters it has.
    pub letters: usize,
}

impl FromStr for Sha256Digest {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        let fault = NoDigest {
            letters: text.chars().count(),
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut bytes = [0; 32];
        if pairs.len() != bytes.len() || !rest.is_empty() {
            return Err(fault);
        }
        let digit = |letter: u8| char::from(letter).to_digit(16).ok_or(fault);
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            let value = digit(*high)? * 16 + digit(*low)?;
            *byte = u8::try_from(value).map_err(|_| fault)?;
        }
        Ok(Self(bytes))
    }
}

/// The digest of one file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDigest {
    /// The file.
    pub path: PathBuf,
    /// The SHA-256 of all its bytes.
    pub sha256: Sha256Digest,
}
