//! Text from strangers, on a terminal.
//!
//! Names and metadata may hold anything: control characters that would drive the
//! terminal, marks that turn the direction of writing, line ends that would look like
//! rows. They are printed as `\u{…}`, and so that nothing else can look like that,
//! `\` is printed as `\\`.

/// `text` with everything escaped that does not print as itself.
pub(super) fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter == '\\' || hidden(letter) {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// `text` on one line: as it is, but for what would end the line or drive the terminal.
pub(super) fn one_line(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if hidden(letter) {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// Does it drive the terminal, or show nothing, or turn the direction of writing?
fn hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
                | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
        )
}

/// How many columns a letter takes: two where East Asian scripts and emoji begin.
///
/// An estimate, as there is no table of widths here; good enough to break lines.
fn columns(letter: char) -> usize {
    match letter {
        '\u{300}'..='\u{36f}' => 0,
        '\u{1100}'..='\u{115f}' | '\u{2e80}'..='\u{a4cf}' | '\u{ac00}'..='\u{d7a3}' => 2,
        '\u{f900}'..='\u{faff}' | '\u{fe30}'..='\u{fe6f}' | '\u{ff00}'..='\u{ff60}' => 2,
        '\u{1f300}'..='\u{1faff}' | '\u{20000}'..='\u{3fffd}' => 2,
        _ => 1,
    }
}

/// How many columns `text` takes.
pub(super) fn width(text: &str) -> usize {
    text.chars().map(columns).sum()
}

/// `text` in pieces of at most `limit` columns each; at least one piece.
pub(super) fn wrapped(text: &str, limit: usize) -> Vec<&str> {
    let (mut lines, mut begin, mut used) = (Vec::new(), 0, 0);
    for (at, letter) in text.char_indices() {
        let needed = columns(letter);
        if used + needed > limit && at > begin {
            lines.push(&text[begin..at]);
            (begin, used) = (at, 0);
        }
        used += needed;
    }
    lines.push(&text[begin..]);
    lines
}

/// `text` in lines of at most `limit` columns, broken between words where there are some.
pub(super) fn folded(text: &str, limit: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        for (at, part) in wrapped(word, limit).into_iter().enumerate() {
            match lines.last_mut() {
                Some(line) if at == 0 && width(line) + 1 + width(part) <= limit => {
                    line.push(' ');
                    line.push_str(part);
                }
                _ => lines.push(part.into()),
            }
        }
    }
    lines
}

/// `text`, or its beginning and how long it is.
pub(super) fn shortened(text: &str, limit: usize) -> String {
    if width(text) <= limit {
        return text.into();
    }
    let start = wrapped(text, limit)[0];
    format!("{start}… ({} bytes; --json has all)", text.len())
}

/// `1234567` as `1.18 MiB`.
pub(super) fn binary_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // Precise enough for three digits.
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.995 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_drives_a_terminal_is_escaped() {
        assert_eq!(escaped("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(escaped("a\nb\0\u{202e}c"), "a\\nb\\u{0}\\u{202e}c");
        assert_eq!(escaped(r"a\nb"), r"a\\nb", "and cannot be forged");
        assert_eq!(escaped("ünïcode/名前"), "ünïcode/名前");
        assert_eq!(one_line("C:\\x\ny"), "C:\\x\\ny");
    }

    #[test]
    fn lines_break_by_columns() {
        assert_eq!(wrapped("abcdef", 4), ["abcd", "ef"]);
        assert_eq!(wrapped("名前名前", 5), ["名前", "名前"]);
        assert_eq!(wrapped("", 4), [""]);
        assert_eq!(width("名前x"), 5);
    }

    #[test]
    fn sentences_break_between_words() {
        assert_eq!(folded("one two three", 7), ["one two", "three"]);
        assert_eq!(folded("a abcdefgh b", 4), ["a", "abcd", "efgh", "b"]);
        assert_eq!(folded("a abcdef b", 4), ["a", "abcd", "ef b"]);
        assert_eq!(folded("", 4), [""]);
    }

    #[test]
    fn sizes_have_three_digits() {
        assert_eq!(binary_bytes(1023), "1023 B");
        assert_eq!(binary_bytes(1 << 20), "1.00 MiB");
        assert_eq!(binary_bytes((1 << 20) - 1), "1.00 MiB");
        assert_eq!(binary_bytes(u64::MAX), "16.00 EiB");
    }
}
