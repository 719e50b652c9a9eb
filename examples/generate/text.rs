//! Text to tokens, and tokens back to text as they come.
//!
//! ```text
//!   ids       | printed .......... | held back |
//!             text up to here       a character of several tokens, not whole yet
//! ```
//!
//! A token may be part of a character. What is printed is always whole characters;
//! the last piece of a text may stay incomplete, and then shows as U+FFFD.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use tokenizers::Tokenizer;

use crate::trouble::Trouble;

/// How a model's tokens and text belong together.
#[derive(Debug)]
pub(crate) enum Vocabulary {
    /// A token is a byte: the embedded model.
    Bytes,
    /// `tokenizer.json`.
    Tokenizer(Box<Tokenizer>),
    /// The model has no tokenizer: ids only.
    Ids,
}

impl Vocabulary {
    /// Reads `directory/tokenizer.json`. A directory without one is good for ids.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or is no tokenizer.
    pub(crate) fn read(directory: &Path) -> Result<Self, Trouble> {
        let path = directory.join("tokenizer.json");
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::Ids),
            Err(error) => return Err(Trouble::new(format!("{}: {error}", path.display()))),
        };
        let tokenizer = Tokenizer::from_bytes(text).map_err(|error| {
            Trouble::new(format!(
                "{}: not a usable tokenizer: {error}; --prompt-ids does without",
                path.display()
            ))
        })?;
        Ok(Self::Tokenizer(Box::new(tokenizer)))
    }

    /// The tokens of a text, no special ones added.
    ///
    /// # Errors
    ///
    /// No tokenizer.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>, Trouble> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::Tokenizer(tokenizer) => match tokenizer.encode(text, false) {
                Ok(encoding) => Ok(encoding.get_ids().to_vec()),
                Err(error) => Err(Trouble::new(format!(
                    "the prompt cannot be tokenized: {error}"
                ))),
            },
            Self::Ids => Err(Trouble::new(
                "the model directory has no tokenizer.json, so text cannot be read; give token ids with --prompt-ids",
            )),
        }
    }

    fn decode(&self, ids: &[u32]) -> Result<String, Trouble> {
        match self {
            Self::Bytes => {
                let bytes: Vec<u8> = ids
                    .iter()
                    .map(|id| u8::try_from(*id).unwrap_or(b'?'))
                    .collect();
                let text = String::from_utf8_lossy(&bytes);
                // Noise must not steer the terminal.
                let shown = |c: char| {
                    if c.is_control() && c != '\n' {
                        char::REPLACEMENT_CHARACTER
                    } else {
                        c
                    }
                };
                Ok(text.chars().map(shown).collect())
            }
            Self::Tokenizer(tokenizer) => tokenizer
                .decode(ids, true)
                .map_err(|error| Trouble::new(format!("the tokenizer cannot decode: {error}"))),
            Self::Ids => Ok(ids.iter().map(|id| format!("{id} ")).collect()),
        }
    }
}

/// The text of a run so far.
#[derive(Debug)]
pub(crate) struct Transcript<'v> {
    vocabulary: &'v Vocabulary,
    ids: Vec<u32>,
    /// Tokens before it are only context for those that follow.
    from: usize,
    /// Tokens before it are in `text`.
    printed: usize,
    text: String,
}

impl<'v> Transcript<'v> {
    /// Begins an empty text.
    pub(crate) fn new(vocabulary: &'v Vocabulary) -> Self {
        Self {
            vocabulary,
            ids: Vec::new(),
            from: 0,
            printed: 0,
            text: String::new(),
        }
    }

    /// Adds a token. Returns the text that has become whole with it.
    ///
    /// # Errors
    ///
    /// A tokenizer that cannot decode.
    pub(crate) fn push(&mut self, id: u32) -> Result<&str, Trouble> {
        self.ids.push(id);
        self.advance(false)
    }

    /// What was held back, now that nothing follows.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    pub(crate) fn finish(&mut self) -> Result<&str, Trouble> {
        self.advance(true)
    }

    /// How many tokens there are.
    pub(crate) fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// The text, and its tokens.
    pub(crate) fn into_parts(self) -> (String, Vec<u32>) {
        (self.text, self.ids)
    }

    fn advance(&mut self, last: bool) -> Result<&str, Trouble> {
        let before = self.text.len();
        // A decoder may treat the first token of a text in its own way (no space before
        // it), so new tokens are decoded behind those of the last piece.
        let known = self.vocabulary.decode(&self.ids[self.from..self.printed])?;
        let all = self.vocabulary.decode(&self.ids[self.from..])?;
        let fresh = all.strip_prefix(&known).unwrap_or_default();
        if !fresh.is_empty() && (last || !fresh.ends_with(char::REPLACEMENT_CHARACTER)) {
            self.text.push_str(fresh);
            self.from = self.printed;
            self.printed = self.ids.len();
        }
        Ok(&self.text[before..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_printed_whole() {
        let vocabulary = Vocabulary::Bytes;
        let mut transcript = Transcript::new(&vocabulary);
        let pieces: Vec<String> = "aé€b"
            .bytes()
            .map(|byte| transcript.push(byte.into()).unwrap().to_owned())
            .collect();
        assert_eq!(pieces, ["a", "", "é", "", "", "€", "b"]);
        assert_eq!(transcript.finish().unwrap(), "");
        assert_eq!(transcript.into_parts().0, "aé€b");
    }

    #[test]
    fn an_incomplete_end_shows_and_a_wrong_byte_does_not_hold_the_rest_back() {
        let vocabulary = Vocabulary::Bytes;
        let mut transcript = Transcript::new(&vocabulary);
        for byte in [b'a', 0xff, b'b', 0xe2, 0x82] {
            transcript.push(byte.into()).unwrap();
        }
        assert_eq!(transcript.finish().unwrap(), "\u{fffd}");
        assert_eq!(transcript.into_parts().0, "a\u{fffd}b\u{fffd}");
    }

    #[test]
    fn noise_does_not_steer_the_terminal() {
        assert_eq!(
            Vocabulary::Bytes.decode(&[27, 91, 10, 72]).unwrap(),
            "\u{fffd}[\nH"
        );
    }
}
