//! Kinds of mutations: the length field, and the text as bytes.

use tenslab::weights::{ForeignFormat, FormatFault};

use crate::draft::{Dice, Draft, file};
use crate::{Expected, Kind, Mutation};

pub(crate) const KINDS: [(&str, Kind); 12] = [
    ("the text cut", text_cut),
    ("the file cut", file_cut),
    ("a longer length", length_longer),
    ("a shorter length", length_shorter),
    ("a length of any size", length_of_any_size),
    ("spaces", spaces),
    ("a byte that is no text", no_utf8),
    ("a letter too many at the start", garbage_at_the_start),
    ("a letter too many at the end", garbage_at_the_end),
    ("a comma too many", comma_at_the_end),
    ("a byte order mark", byte_order_mark),
    ("a list", list),
];

fn bad_json() -> Expected {
    Expected::like("bad JSON", |fault| {
        matches!(fault, FormatFault::BadJson { .. })
    })
}

/// Where the text does not begin with `{`, the length field may look like another format.
fn no_object() -> Expected {
    Expected::like("no JSON object", |fault| {
        matches!(
            fault,
            FormatFault::BadJson { .. } | FormatFault::Foreign { .. }
        )
    })
}

/// The text of a draft, with this one byte of it put in or changed by `change`.
fn with_text(draft: &Draft, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut text = draft.pieces().0.text().into_bytes();
    change(&mut text);
    file(&text, draft.data_bytes)
}

/// What is said of a text that ends after `len` bytes of it.
pub(crate) fn cut_after(text: &str, len: usize) -> Expected {
    if len == 0 {
        return Expected::Fault(FormatFault::EmptyHeader);
    }
    let at = (0..=len)
        .rev()
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(0);
    if at < len {
        return Expected::Fault(FormatFault::NotUtf8 { at });
    }
    bad_json()
}

fn text_cut(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let text = draft.pieces().0.text();
    let len = dice.below(text.len());
    Some((
        file(&text.as_bytes()[..len], draft.data_bytes),
        cut_after(&text, len),
    ))
}

fn file_cut(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let mut file = draft.file();
    let header_bytes = 8 + draft.pieces().0.text().len();
    let most = dice.pick(&[9, header_bytes]);
    let len = dice.below(most);
    file.truncate(len);
    let expected = file_cut_after(&file, header_bytes);
    Some((file, Expected::Fault(expected)))
}

/// What is said of this part of a file, which ends inside the header.
fn file_cut_after(part: &[u8], header_bytes: usize) -> FormatFault {
    let (needed_bytes, file_bytes) = (header_bytes as u64, part.len() as u64);
    match file_bytes {
        0 => FormatFault::Empty,
        1..8 => ForeignFormat::detect(part)
            .map_or(FormatFault::TooSmall { file_bytes }, |format| {
                FormatFault::Foreign { format }
            }),
        _ => FormatFault::HeaderTruncated {
            needed_bytes,
            file_bytes,
        },
    }
}

fn with_length(draft: &Draft, length: u64) -> Vec<u8> {
    let mut file = draft.file();
    file[..8].copy_from_slice(&length.to_le_bytes());
    file
}

/// Data is read as text, or the file ends inside the header.
fn length_longer(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let by = dice.pick(&[1, 2, 100, 10_000]);
    let header_bytes = draft.pieces().0.text().len() as u64;
    let file = with_length(draft, header_bytes + by);
    let file_bytes = file.len() as u64;
    if by > draft.data_bytes {
        let needed_bytes = 8 + header_bytes + by;
        let fault = FormatFault::HeaderTruncated {
            needed_bytes,
            file_bytes,
        };
        return Some((file, Expected::Fault(fault)));
    }
    let expected = Expected::like("no text behind the text", move |fault| match *fault {
        FormatFault::BadJson { .. } => true,
        FormatFault::NotUtf8 { at } => at as u64 >= header_bytes,
        _ => false,
    });
    Some((file, expected))
}

fn length_shorter(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let text = draft.pieces().0.text();
    let len = dice.below(text.len());
    Some((with_length(draft, len as u64), cut_after(&text, len)))
}

fn length_of_any_size(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    const LIMIT: u64 = 32 << 20;
    let length = dice.pick(&[LIMIT, LIMIT + 1, 1 << 32, 1 << 63, u64::MAX - 7, u64::MAX]);
    let file = with_length(draft, length);
    let fault = if length <= LIMIT {
        FormatFault::HeaderTruncated {
            needed_bytes: 8 + length,
            file_bytes: file.len() as u64,
        }
    } else {
        FormatFault::HeaderTooLarge {
            header_bytes: length,
            max_bytes: LIMIT,
        }
    };
    Some((file, Expected::Fault(fault)))
}

fn spaces(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let text = draft.pieces().0.spaced(dice);
    Some((
        file(text.as_bytes(), draft.data_bytes),
        Expected::Read(draft.clone()),
    ))
}

fn no_utf8(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let text = draft.pieces().0.text();
    let somewhere = 1 + dice.below(text.len());
    let at = (1..=somewhere)
        .rev()
        .find(|&at| text.is_char_boundary(at))?;
    // A byte that there is not, half a letter, a surrogate, and one that is too long.
    let bytes: &[u8] = dice.pick(&[&b"\xff"[..], b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf"]);
    let bytes_of = |text: &mut Vec<u8>| drop(text.splice(at..at, bytes.iter().copied()));
    Some((
        with_text(draft, bytes_of),
        Expected::Fault(FormatFault::NotUtf8 { at }),
    ))
}

fn garbage_at_the_start(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let garbage = dice.pick(&[b',', b':', b'}', b']', b'x', 0, b'[', b'1']);
    Some((with_text(draft, |text| text.insert(1, garbage)), bad_json()))
}

fn garbage_at_the_end(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let garbage = dice.pick(&["\0", "x", "{}", "}", ",", "\u{a0}", "\u{c}", "null", "//"]);
    Some((
        with_text(draft, |text| text.extend(garbage.as_bytes())),
        bad_json(),
    ))
}

fn comma_at_the_end(draft: &Draft, _: &mut Dice) -> Option<Mutation> {
    Some((
        with_text(draft, |text| text.insert(text.len() - 1, b',')),
        bad_json(),
    ))
}

fn byte_order_mark(draft: &Draft, _: &mut Dice) -> Option<Mutation> {
    let mark = "\u{feff}".bytes();
    Some((
        with_text(draft, |text| drop(text.splice(0..0, mark))),
        no_object(),
    ))
}

fn list(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let around = dice.pick(&[(b"[", b"]"), (b"\"", b"\"")]);
    let change = |text: &mut Vec<u8>| {
        text.splice(0..1, around.0.iter().copied());
        text.pop();
        text.extend(around.1);
    };
    Some((with_text(draft, change), no_object()))
}
