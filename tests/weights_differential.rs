//! Two readers, one file: what we accept, the reference reader accepts too, and both
//! see the same names, dtypes, shapes and bytes.
//!
//! Files are made from a seed: a valid header, then mutations of its entries and of its
//! bytes. `tests/reference` compares, and has the documented exceptions both ways. The
//! fuzzers use it too, and `tests/weights_mutations` says which answer a mutation must have.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoint_files;
mod reference;

use proptest::prelude::*;
use proptest::sample::Index;

use checkpoint_files::{entry, file};
use reference::{Answer, header};

const TAGS: [&str; 8] = [
    "F32", "BF16", "U8", "F64", "F4", "F6_E2M3", "BOOL", "F8_E8M0",
];

/// One entry, as text to be broken.
#[derive(Debug, Clone)]
struct Item {
    name: String,
    tag: String,
    shape: Vec<u64>,
    begin: u64,
    end: u64,
}

impl Item {
    fn text(&self) -> String {
        entry(&self.name, &self.tag, &self.shape, self.begin, self.end)
    }
}

fn bits(tag: &str) -> u64 {
    match tag {
        "F4" => 4,
        "F6_E2M3" => 6,
        "U8" | "BOOL" | "F8_E8M0" => 8,
        "BF16" => 16,
        "F64" => 64,
        _ => 32,
    }
}

/// Valid entries that follow each other, in a mixed order, and the bytes of the data.
fn valid() -> impl Strategy<Value = (Vec<Item>, u64)> {
    let shape = prop::collection::vec(0_u64..5, 0..4);
    let one = (
        prop::sample::select(&TAGS[..]),
        shape,
        "[a-c\u{e9}\\n\"]{0,3}",
    );
    prop::collection::vec(one, 0..6).prop_perturb(|tensors, mut rng| {
        let mut begin = 0;
        let mut items = Vec::new();
        for (at, (tag, mut shape, name)) in tensors.into_iter().enumerate() {
            if bits(tag) < 8 {
                shape.push(8);
            }
            let bytes = shape.iter().product::<u64>() * bits(tag) / 8;
            items.push(Item {
                name: format!("{name}{at}"),
                tag: tag.into(),
                shape,
                begin,
                end: begin + bytes,
            });
            begin += bytes;
        }
        for last in (1..items.len()).rev() {
            items.swap(last, rng.random_range(0..=last));
        }
        (items, begin)
    })
}

/// A change to one entry.
#[derive(Debug, Clone)]
enum EntryChange {
    Begin(i64),
    End(i64),
    Both(i64),
    Tag(&'static str),
    Push(u64),
    Pop,
    Size(Index, u64),
    Rename(Index),
    Twice,
    Remove,
}

fn entry_change() -> impl Strategy<Value = EntryChange> {
    use EntryChange::{Begin, Both, End, Pop, Push, Remove, Rename, Size, Tag, Twice};
    prop_oneof![
        (-9_i64..9).prop_map(Begin),
        (-9_i64..9).prop_map(End),
        (-9_i64..9).prop_map(Both),
        prop::sample::select(vec!["F32", "I64", "F4", "F128", "f32", "", "U8"]).prop_map(Tag),
        prop::sample::select(vec![0, 1, 2, 1 << 32, u64::MAX]).prop_map(Push),
        Just(Pop),
        (any::<Index>(), 0_u64..9).prop_map(|(at, size)| Size(at, size)),
        any::<Index>().prop_map(Rename),
        Just(Twice),
        Just(Remove),
    ]
}

fn change_entry(items: &mut Vec<Item>, at: Index, change: EntryChange) {
    if items.is_empty() {
        return;
    }
    let at = at.index(items.len());
    let other = |index: Index| items[index.index(items.len())].name.clone();
    match change {
        EntryChange::Rename(index) => items[at].name = other(index),
        EntryChange::Begin(by) => items[at].begin = items[at].begin.wrapping_add_signed(by),
        EntryChange::End(by) => items[at].end = items[at].end.wrapping_add_signed(by),
        EntryChange::Both(by) => {
            items[at].begin = items[at].begin.wrapping_add_signed(by);
            items[at].end = items[at].end.wrapping_add_signed(by);
        }
        EntryChange::Tag(tag) => items[at].tag = tag.into(),
        EntryChange::Push(size) => items[at].shape.push(size),
        EntryChange::Pop => drop(items[at].shape.pop()),
        EntryChange::Size(index, size) => {
            if !items[at].shape.is_empty() {
                let dim = index.index(items[at].shape.len());
                items[at].shape[dim] = size;
            }
        }
        EntryChange::Twice => items.push(items[at].clone()),
        EntryChange::Remove => drop(items.remove(at)),
    }
}

/// A change to the bytes of the file.
#[derive(Debug, Clone)]
enum ByteChange {
    Set(Index, u8),
    Insert(Index, &'static str),
    Remove(Index, usize),
    Cut(Index),
    Append(usize),
}

fn byte_change() -> impl Strategy<Value = ByteChange> {
    let snippets = vec![
        " ",
        "\n",
        ",",
        "}",
        "{",
        "\"",
        "0",
        "-",
        "1e3",
        ".0",
        "null",
        "[",
        "]",
        "\\u0061",
        "\"x\":1,",
        "\"shape\":[],",
        "\"__metadata__\":{\"a\":\"b\"},",
        "\"__metadata__\":null,",
        "\u{e9}",
        "\\ud800",
        "1e999",
        "\0",
    ];
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| ByteChange::Set(at, byte)),
        (any::<Index>(), prop::sample::select(snippets))
            .prop_map(|(at, s)| ByteChange::Insert(at, s)),
        (any::<Index>(), 1_usize..12).prop_map(|(at, count)| ByteChange::Remove(at, count)),
        any::<Index>().prop_map(ByteChange::Cut),
        (1_usize..4).prop_map(ByteChange::Append),
    ]
}

/// Changes the bytes; inside the header the length field follows, half of the time.
fn change_bytes(bytes: &mut Vec<u8>, change: ByteChange, follow: bool) {
    let header = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().unwrap_or(&[0; 8]));
    let before = bytes.len();
    let inside = |at: usize| at >= 8 && (at as u64) < 8_u64.saturating_add(header(bytes));
    let mut moved = false;
    match change {
        ByteChange::Set(at, byte) => {
            let at = at.index(bytes.len().max(1));
            if let Some(slot) = bytes.get_mut(at) {
                *slot = byte;
            }
        }
        ByteChange::Insert(at, text) => {
            let at = at.index(bytes.len() + 1);
            moved = inside(at);
            bytes.splice(at..at, text.bytes());
        }
        ByteChange::Remove(at, count) => {
            let at = at.index(bytes.len() + 1);
            moved = inside(at) && inside(at + count);
            bytes.drain(at..(at + count).min(before));
        }
        ByteChange::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
        ByteChange::Append(count) => bytes.extend(std::iter::repeat_n(7, count)),
    }
    if moved && follow {
        let length = header(bytes)
            .wrapping_add(bytes.len() as u64)
            .wrapping_sub(before as u64);
        bytes[..8].copy_from_slice(&length.to_le_bytes());
    }
}

fn compare(bytes: &[u8]) -> Result<Answer, TestCaseError> {
    header::compare(bytes).map_err(TestCaseError::fail)
}

fn text(items: &[Item]) -> String {
    let entries: Vec<_> = items.iter().map(Item::text).collect();
    format!("{{{}}}", entries.join(","))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(tenslab_asan) { 500 } else { 4_000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn valid_headers_are_accepted_by_both((items, bytes) in valid()) {
        let file = file(&text(&items), usize::try_from(bytes).unwrap());
        prop_assert_eq!(compare(&file)?, Answer::Accepted);
    }

    #[test]
    fn changed_entries_are_read_alike_or_refused(
        (mut items, bytes) in valid(),
        changes in prop::collection::vec((any::<Index>(), entry_change()), 1..4),
        longer in prop_oneof![4 => Just(0_u64), 1 => 0_u64..9],
    ) {
        for (at, change) in changes {
            change_entry(&mut items, at, change);
        }
        compare(&file(&text(&items), usize::try_from(bytes + longer).unwrap()))?;
    }

    #[test]
    fn changed_bytes_are_read_alike_or_refused(
        (items, bytes) in valid(),
        changes in prop::collection::vec((byte_change(), any::<bool>()), 1..5),
    ) {
        let mut file = file(&text(&items), usize::try_from(bytes).unwrap());
        for (change, follow) in changes {
            change_bytes(&mut file, change, follow);
        }
        compare(&file)?;
    }

    #[test]
    fn any_bytes_are_read_alike_or_refused(
        header in prop::collection::vec(any::<u8>(), 0..64),
        data in prop::collection::vec(any::<u8>(), 0..16),
    ) {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header);
        file.extend(data);
        compare(&file)?;
    }
}

/// The mutations must reach both sides of every rule, or the comparison proves little.
#[test]
fn mutations_are_neither_all_refused_nor_all_accepted() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let strategy = (valid(), any::<Index>(), entry_change(), byte_change());
    let mut count = std::collections::HashMap::new();
    const CASES: usize = 3_000;
    for _ in 0..CASES {
        let ((mut items, bytes), at, change, byte_change) =
            strategy.new_tree(&mut runner).unwrap().current();
        change_entry(&mut items, at, change);
        let mut file = file(&text(&items), usize::try_from(bytes).unwrap());
        if at.index(2) == 0 {
            change_bytes(&mut file, byte_change, true);
        }
        *count.entry(compare(&file).unwrap()).or_insert(0) += 1;
    }
    let of = |answer| count.get(&answer).copied().unwrap_or(0);
    let [accepted, refused] = [Answer::Accepted, Answer::Refused].map(of);
    assert!(accepted.min(refused) > CASES / 20, "{count:?}");
    for exception in [Answer::OnlyOurs, Answer::OnlyTheirs] {
        assert!(of(exception) > 0, "{exception:?} was not tried: {count:?}");
    }
}
