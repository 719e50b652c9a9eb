use std::fmt::{self, Write};
use std::path::Path;

/// Letters of a name that a message shows.
const SHOWN: usize = 120;

/// A name in a message: in quotes, on one line, and cut where it is long. A file may name
/// a tensor with 64 KiB of anything.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(SHOWN) {
            None => write!(f, "{:?}", self.0),
            Some((end, _)) => write!(f, "{:?}… ({} bytes)", &self.0[..end], self.0.len()),
        }
    }
}

/// What a JSON reader says, without the middle of a text that it quotes and that is long.
pub(super) fn reason(error: &serde_json::Error) -> String {
    const ENDS: usize = SHOWN + SHOWN / 2;
    let text = error.to_string();
    let letters: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    match letters.len() {
        short if short <= 2 * ENDS => text,
        count => format!(
            "{} … {}",
            &text[..letters[ENDS]],
            &text[letters[count - ENDS]..]
        ),
    }
}

/// The first ones of a list, and how many more there are.
pub(super) struct Some8<'a, T>(pub(super) &'a [T]);

impl<T: fmt::Display> fmt::Display for Some8<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        for (at, each) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{each}", if at > 0 { ", " } else { "" })?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// A path on one line: control characters in it are escaped.
pub(super) struct Shown<'a>(pub(super) &'a Path);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.to_string_lossy().chars() {
            if letter.is_control() {
                write!(f, "{}", letter.escape_default())?;
            } else {
                f.write_char(letter)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_between_letters_and_say_how_long_they_are() {
        assert_eq!(Quoted("a\nb").to_string(), r#""a\nb""#);
        let name = "ä".repeat(SHOWN);
        assert_eq!(Quoted(&name).to_string(), format!("{name:?}"));
        let longer = format!("{name}bcd");
        assert_eq!(
            Quoted(&longer).to_string(),
            format!("{name:?}… (243 bytes)")
        );
    }

    #[test]
    fn a_list_shows_eight_and_counts_the_rest() {
        assert_eq!(Some8(&[1, 2, 3]).to_string(), "1, 2, 3");
        let ten: Vec<_> = (0..10).collect();
        assert_eq!(Some8(&ten).to_string(), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
    }
}
