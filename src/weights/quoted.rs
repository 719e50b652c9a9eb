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
    Ends(&error.to_string(), 3 * SHOWN).to_string()
}

/// A text, of which the middle is left out if it has more letters than that.
struct Ends<'a>(&'a str, usize);

impl fmt::Display for Ends<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text, most) = *self;
        let half = most / 2;
        // Looked for from both ends: a stranger's text may be as long as a header.
        let begin = text.char_indices().nth(half).map(|(at, _)| at);
        let end = text.char_indices().rev().nth(half).map(|(at, _)| at);
        match (begin, end) {
            (Some(begin), Some(end)) if begin < end => {
                write!(f, "{} … {}", &text[..begin], &text[end..])
            }
            _ => f.write_str(text),
        }
    }
}

/// The first ones of a list, and how many of `count` are not shown.
pub(super) struct Few<'a, T> {
    pub(super) of: &'a [T],
    pub(super) count: usize,
}

impl<T: fmt::Display> fmt::Display for Few<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 8;
        for (at, each) in self.of.iter().take(MOST).enumerate() {
            write!(f, "{}{each}", if at > 0 { ", " } else { "" })?;
        }
        match self.count.saturating_sub(self.of.len().min(MOST)) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// All of a list that is shown so.
pub(super) fn few<T>(of: &[T]) -> Few<'_, T> {
    let count = of.len();
    Few { of, count }
}

/// A path on one line: control characters in it are escaped, and of one that is longer than
/// any that there is the middle is left out.
pub(super) struct Shown<'a>(pub(super) &'a Path);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 4096;
        let path = Ends(&self.0.to_string_lossy(), LONGEST).to_string();
        for letter in path.chars() {
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
    fn of_a_long_text_both_ends_are_left() {
        for most in [4, 5] {
            assert_eq!(Ends("äbcd", most).to_string(), "äbcd");
            assert_eq!(Ends("äbcdefgh", most).to_string(), "äb … fgh");
        }
        let path = format!("/{}/x", "y".repeat(10_000));
        let shown = Shown(Path::new(&path)).to_string();
        assert!(shown.len() < 4200 && shown.starts_with("/yy") && shown.ends_with("y/x"));
    }

    #[test]
    fn a_list_shows_eight_and_counts_the_rest() {
        assert_eq!(few(&[1, 2, 3]).to_string(), "1, 2, 3");
        let ten: Vec<_> = (0..10).collect();
        assert_eq!(few(&ten).to_string(), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
        let of = Few {
            of: &ten[..2],
            count: 10,
        };
        assert_eq!(of.to_string(), "0, 1 and 8 more");
    }
}
