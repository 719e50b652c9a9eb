//! The same for the index of a sharded checkpoint.

use proptest::collection::btree_map;
use proptest::prelude::*;
use proptest::sample::select;
use tenslab::weights::{HeaderLimits, SetFault, ShardIndex, TensorAt};

use crate::heap_peak;
use crate::reference::{Answer, index};

/// Tensors and their files.
type Map = Vec<(String, String)>;

fn object(map: &Map) -> String {
    let quoted = |text: &String| serde_json::to_string(text).unwrap();
    let entries = map
        .iter()
        .map(|(key, value)| format!("{}:{}", quoted(key), quoted(value)));
    format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
}

fn maps() -> impl Strategy<Value = Map> {
    let parts = vec![
        "a",
        "b.safetensors",
        "..a",
        "a..",
        "\u{e9}",
        " ",
        "x\ny",
        "~",
        "C:",
    ];
    let path = proptest::collection::vec(select(parts), 1..4).prop_map(|parts| parts.join("/"));
    let name = prop_oneof![Just(String::new()), any::<String>(), "[a-c]{1,2}"];
    btree_map(name, path, 1..6).prop_map(|map| map.into_iter().collect())
}

/// What a text has to be read as.
fn check(
    text: &str,
    is_so: impl FnOnce(&Result<ShardIndex, SetFault>) -> bool,
) -> Result<(), TestCaseError> {
    let limits = HeaderLimits::default();
    let (held, result) = heap_peak::of(|| ShardIndex::from_bytes(text.as_bytes(), &limits));
    prop_assert!(
        held <= index::most_heap(text.len()),
        "{held} bytes of heap for {text:.1000}"
    );
    let answer = index::compare(text.as_bytes()).map_err(TestCaseError::fail)?;
    prop_assert_eq!(result.is_ok(), answer == Answer::Accepted);
    prop_assert!(is_so(&result), "{:.1000?} of {:.1000}", result, text);
    Ok(())
}

/// It is no index, for a reason with this word.
fn bad(text: &str, word: &str) -> Result<(), TestCaseError> {
    check(
        text,
        |result| matches!(result, Err(SetFault::BadIndex { reason }) if reason.contains(word)),
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(tenslab_asan) { 60 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_kind_of_index_gets_its_own_answer(
        map in maps(),
        at in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let at = at.index(map.len());
        let (name, path) = map[at].clone();
        let whole = object(&map);
        let text = format!("{{\"metadata\":{{\"total_size\":-1.5}},\"weight_map\":{whole}}}");
        check(&text, |result| result.as_ref().is_ok_and(|index| {
            index.tensors().eq(map.iter().map(|(name, _)| name.as_str()))
                && map.iter().all(|(name, path)| index.shard_of(name) == Some(path.as_ref()))
        }))?;
        let is_whole = |result: &Result<ShardIndex, SetFault>| {
            result.as_ref().is_ok_and(|index| index.tensors().len() == map.len())
        };

        // Another spelling of a path, and one that leads elsewhere.
        for spelled in [format!("{path}/"), format!("{path}//."), format!("x/./{path}")] {
            let mut map = map.clone();
            map[at].1 = spelled;
            check(&format!("{{\"weight_map\":{}}}", object(&map)), is_whole)?;
        }
        for outside in [
            format!("/{path}"), format!("../{path}"), format!("{path}/../x"), format!("./{path}"),
            format!("{path}/.."), String::new(), ".".into(), "/".into(),
        ] {
            let mut map = map.clone();
            map[at].1.clone_from(&outside);
            let tensors = vec![TensorAt { tensor: name.clone(), file: outside.into() }];
            let fault = Err(SetFault::Outside { tensors, count: 1 });
            check(&format!("{{\"weight_map\":{}}}", object(&map)), |result| *result == fault)?;
        }

        // A name twice, in any spelling and with any file.
        let again = serde_json::to_string(&name).unwrap();
        let escaped: String = name.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        for again in [again, format!("\"{escaped}\"")] {
            for path in ["a", "/"] {
                let twice = whole.replacen('{', &format!("{{{again}:\"{path}\","), 1);
                bad(&format!("{{\"weight_map\":{twice}}}"), "is listed twice")?;
            }
        }
        bad(&format!("{{\"weight_map\":{whole},\"weight_map\":{{}}}}"), "listed twice")?;

        // Other types, too deep, no JSON, too much of it or too little.
        for value in ["1", "null", "{}", "[\"x\"]", "true"] {
            let other = whole.replacen('{', &format!("{{\"\u{10ffff}x\":{value},"), 1);
            bad(&format!("{{\"weight_map\":{other}}}"), "string")?;
            if value != "{}" {
                bad(&format!("{{\"weight_map\":{value}}}"), "weight_map")?;
            }
            let more = format!("{{\"more\":{value},\"weight_map\":{whole},\"more\":{value}}}");
            check(&more, is_whole)?;
        }
        bad(&format!("{{\"Weight_map\":{whole}}}"), "no \"weight_map\"")?;
        for (depth, is_fine) in [(100, true), (200, false), (50_000, false)] {
            let deep = format!("{{\"a\":{}{},\"weight_map\":{whole}}}", "[".repeat(depth), "]".repeat(depth));
            if is_fine { check(&deep, is_whole)? } else { bad(&deep, "recursion limit")? }
        }
        for value in ["1e999", "\"\\ud800\"", "01", "[1,]", "'x'", "\"\n\""] {
            bad(&format!("{{\"more\":{value},\"weight_map\":{whole}}}"), "line")?;
        }
        for end in ["x", "}", "{}", "\0", ","] {
            bad(&format!("{text}{end}"), "trailing")?;
        }
        let cut = (0..=cut.index(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap();
        bad(&text[..cut], "EOF")?;

        let mut bytes = text.into_bytes();
        bytes.insert(cut, 0xff);
        let limits = HeaderLimits::default();
        let reason = format!("not UTF-8 from byte {cut} on");
        prop_assert_eq!(ShardIndex::from_bytes(&bytes, &limits), Err(SetFault::BadIndex { reason }));
    }
}

/// Each tensor in a file of its own: what costs the most for a byte of text.
#[test]
fn the_most_expensive_index_takes_a_small_multiple_of_its_bytes() {
    let map: Map = (0..20_000)
        .map(|at| (format!("{at:x}"), format!("{at:x}")))
        .collect();
    let text = format!("{{\"weight_map\":{}}}", object(&map));
    for len in [text.len(), text.len() - 1, text.len() / 2] {
        let (held, result) = heap_peak::of(|| {
            ShardIndex::from_bytes(&text.as_bytes()[..len], &HeaderLimits::default())
        });
        assert_eq!(result.is_ok(), len == text.len());
        assert!(held <= index::most_heap(len), "{held} bytes for {len}");
        assert!(held > len, "{held} bytes: nothing was counted");
    }
}
