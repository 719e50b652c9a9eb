//! Names: twice, in any text, of any length.

use tenslab::weights::FormatFault;

use crate::checkpoint_files::{entry, file, object, packed};
use crate::{fault, names, read};

#[test]
fn a_name_listed_twice_is_a_duplicate_whatever_its_range_and_spelling() {
    let x = |dtype, begin, end| entry("x", dtype, &[1], begin, end);
    let twice = [
        // The reference reader takes the last of these two …
        (object(&[x("F32", 0, 4), x("F32", 0, 4)]), 4),
        // … and of these, as I32: two readers, two contents.
        (object(&[x("F32", 0, 4), x("I32", 0, 4)]), 4),
        // It calls this one an invalid offset.
        (object(&[x("F32", 0, 4), x("F32", 4, 8)]), 8),
        (
            object(&[
                x("F32", 0, 4),
                x("F32", 4, 8).replace("\"x\"", r#""\u0078""#),
            ]),
            8,
        ),
    ];
    for (json, bytes) in twice {
        assert_eq!(
            fault(&file(&json, bytes)),
            FormatFault::DuplicateTensor { name: "x".into() },
            "{json}"
        );
    }
}

#[test]
fn names_are_any_text_and_messages_escape_it() {
    let (json, bytes) = packed(&[
        ("", "U8", &[1], 1),
        ("a\0b", "U8", &[1], 1),
        ("名/前", "U8", &[1], 1),
    ]);
    assert_eq!(names(&file(&json, bytes)), ["", "a\0b", "名/前"]);
    let json = object(&[entry("a\n\u{1b}[2Jb", "F32", &[1], 0, 3)]);
    let message = fault(&file(&json, 3)).to_string();
    assert!(message.contains(r#""a\n\u{1b}[2Jb""#), "{message}");
}

#[test]
fn a_name_of_64_kib_is_fine_and_shortened_in_messages() {
    let long = "n".repeat(64 << 10);
    let (json, bytes) = packed(&[(&long, "U8", &[1], 1)]);
    assert_eq!(names(&file(&json, bytes)), [long.as_str()]);

    let ok = |begin, end| entry(&long, "U8", &[1], begin, end);
    let bad = [
        object(&[ok(0, 1), ok(0, 1)]),
        object(&[ok(0, 2)]),
        object(&[ok(1, 2)]),
        object(&[ok(1, 0)]),
        object(&[ok(0, 1), entry("x", "U8", &[1], 0, 1)]),
        object(&[ok(0, 1), entry("x", "U8", &[1], 2, 3)]),
        object(&[entry(&long, "U8", &[u64::MAX], 0, 1)]),
        object(&[entry(&long, "F4", &[1], 0, 1)]),
        object(&[entry("x", &long, &[1], 1, 0)]),
        format!(r#"{{"__metadata__":{{"{long}":1}}}}"#),
        format!(r#"{{"{long}":1}}"#),
        format!(r#"{{"{long}":{{}}}}"#),
        format!(r#"{{"x":"{long}"}}"#),
        format!(r#"{{"x":{{"dtype":["{long}"]}}}}"#),
        format!(r#"{{"x":{{"shape":"{long}"}}}}"#),
    ];
    for json in bad {
        let message = fault(&file(&json, 1)).to_string();
        assert!(
            message.len() < 1000,
            "{} bytes: {message:.200}",
            message.len()
        );
    }
    // One byte short.
    let message = fault(&file(&json, bytes - 1)).to_string();
    assert!(
        message.len() < 1000 && message.contains("(65536 bytes)"),
        "{message:.200}"
    );
}

#[test]
fn a_name_is_the_same_however_it_is_spelled() {
    // The second one's letters stand nowhere in the text.
    let plain = object(&[
        entry("ab", "U8", &[1], 0, 1),
        entry("cd", "U8", &[1], 1, 2),
        entry("ef", "U8", &[1], 2, 3),
    ]);
    let header = read(&file(&plain, 3)).unwrap();
    let escaped = plain
        .replace("\"ab\"", r#""\u0061b""#)
        .replace("\"cd\"", r#""\u0063\u0064""#);
    let same = read(&file(&escaped, 3)).unwrap();
    assert!(header.tensors().eq(same.tensors()));
    assert_eq!(names(&file(&escaped, 3)), ["ab", "cd", "ef"]);
    assert_ne!(header, same, "their data begins elsewhere");

    let bad = escaped.replace("[1,2]", "[1,3]");
    let message = fault(&file(&bad, 3)).to_string();
    assert!(message.contains("tensor \"cd\""), "{message}");
}
