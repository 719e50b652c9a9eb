//! What stands in a file is not believed: every rule of the format, one test each.
//!
//! Sentences are the rows of the project's table of bad inputs. Where the reference
//! reader (the `safetensors` crate) differs, the test says so.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoint_files;

use checkpoint_files::{entry, file, object, packed, write};
use tenslab::types::TypeError;
use tenslab::weights::{
    Checkpoint, ForeignFormat, FormatFault, Header, HeaderLimits, WeightDType, WeightsError,
};
use tenslab::{DType, Shape};

fn read(bytes: &[u8]) -> Result<Header, FormatFault> {
    let result = Header::from_bytes(bytes, &HeaderLimits::default());

    // The same through a file: the same fault, with the path, on one line.
    let directory = tempfile::tempdir().unwrap();
    let path = write(directory.path(), "x.safetensors", bytes);
    match (&result, Checkpoint::open(&path)) {
        (Ok(header), Ok(checkpoint)) => {
            assert_eq!(header.tensors().len(), checkpoint.entries().len());
        }
        (Err(fault), Err(error)) => {
            let message = error.to_string();
            assert!(
                message.starts_with(&path.display().to_string()),
                "{message}"
            );
            assert_eq!(message.lines().count(), 1, "{message}");
            let WeightsError::Format { fault: found, .. } = error else {
                panic!("{error:?} is not about the format");
            };
            assert_eq!(*found, *fault);
        }
        (memory, disk) => panic!("from memory {memory:?}, from disk {disk:?}"),
    }
    result
}

fn fault(bytes: &[u8]) -> FormatFault {
    read(bytes).expect_err("a fault")
}

/// The names of a header that is fine.
fn names(bytes: &[u8]) -> Vec<String> {
    let header = read(bytes).expect("a header");
    header.tensors().iter().map(|t| t.name().into()).collect()
}

#[test]
fn empty_and_seven_bytes_are_too_small() {
    assert_eq!(fault(b""), FormatFault::Empty);
    assert_eq!(fault(&[1; 7]), FormatFault::TooSmall { file_bytes: 7 });
}

#[test]
fn a_header_of_zero_bytes_is_an_error() {
    assert_eq!(fault(&[0; 8]), FormatFault::EmptyHeader);
    assert_eq!(fault(&[0; 4096]), FormatFault::EmptyHeader);
}

#[test]
fn an_empty_object_is_a_checkpoint_without_tensors() {
    assert!(names(&file("{}", 0)).is_empty());
}

#[test]
fn trailing_bytes_are_an_error_unless_allowed() {
    let (json, bytes) = packed(&[("x", "U8", &[3], 3)]);
    for (file, trailing) in [(file("{}", 1), 1), (file(&json, bytes + 5), 5)] {
        let expected_bytes = (file.len() - trailing) as u64;
        let trailing_bytes = trailing as u64;
        assert_eq!(
            fault(&file),
            FormatFault::TrailingBytes {
                trailing_bytes,
                expected_bytes
            }
        );
        let lenient = HeaderLimits {
            allow_trailing: true,
            ..HeaderLimits::default()
        };
        assert!(Header::from_bytes(&file, &lenient).is_ok());
    }
}

#[test]
fn header_lengths_above_the_limit_are_refused() {
    for length in [u64::MAX, 1 << 63, 100_000_001] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(b"\0\0{}");
        assert_eq!(
            fault(&bytes),
            FormatFault::HeaderTooLarge {
                header_bytes: length,
                max_bytes: 100_000_000
            }
        );
    }
}

#[test]
fn a_header_longer_than_its_file_is_truncated_and_costs_no_memory() {
    let mut bytes = 100_000_000_u64.to_le_bytes().to_vec();
    bytes.extend(b"{}");
    assert_eq!(
        fault(&bytes),
        FormatFault::HeaderTruncated {
            needed_bytes: 100_000_008,
            file_bytes: 10
        }
    );
}

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
fn metadata_and_fields_listed_twice_are_refused() {
    assert_eq!(
        fault(&file(r#"{"__metadata__":{},"__metadata__":{}}"#, 0)),
        FormatFault::DuplicateMetadata
    );
    assert_eq!(
        fault(&file(r#"{"__metadata__":{"a":"1","a":"2"}}"#, 0)),
        FormatFault::DuplicateMetadataKey { key: "a".into() }
    );
    for (field, value) in [
        ("dtype", r#""U8""#),
        ("shape", "[0]"),
        ("data_offsets", "[0,0]"),
    ] {
        let json = entry("x", "U8", &[0], 0, 0).replace("{", &format!(r#"{{"{field}":{value},"#));
        assert_eq!(
            fault(&file(&format!("{{{json}}}"), 0)),
            FormatFault::DuplicateField {
                name: "x".into(),
                field
            }
        );
    }
}

#[test]
fn a_field_that_is_missing_is_named() {
    let whole = r#"{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    for (field, text) in [
        ("dtype", r#""dtype":"U8","#),
        ("shape", r#""shape":[0],"#),
        ("data_offsets", r#","data_offsets":[0,0]"#),
    ] {
        assert_eq!(
            fault(&file(&whole.replace(text, ""), 0)),
            FormatFault::MissingField {
                name: "x".into(),
                field
            }
        );
    }
}

#[test]
fn fields_that_nobody_knows_are_passed_over() {
    let extra = r#"{"x":{"dtype":"U8","more":{"a":[1,null,true,-2.5e3,"\n"]},"shape":[1],"data_offsets":[0,1],"more":0}}"#;
    assert_eq!(names(&file(extra, 1)), ["x"]);
    // They are read, though, and not skimmed: the reference reader refuses these.
    for bad in ["1e999", r#""\ud800""#, "[1,]", "01"] {
        let json = extra.replace("-2.5e3", bad);
        assert!(read(&file(&json, 1)).is_err(), "{bad}");
    }
}

#[test]
fn metadata_may_be_null_or_empty_and_holds_strings_only() {
    for json in [r#"{"__metadata__":null}"#, r#"{"__metadata__":{}}"#] {
        assert!(read(&file(json, 0)).unwrap().metadata().is_empty());
    }
    let header = read(&file(r#"{"__metadata__":{"format":"pt","":"\u0000"}}"#, 0)).unwrap();
    assert_eq!(header.metadata()["format"], "pt");
    assert_eq!(header.metadata()[""], "\0");
    for value in ["1", "null", "{}", "[]", "true"] {
        let json = format!(r#"{{"__metadata__":{{"a":"x","epoch":{value}}}}}"#);
        let fault = fault(&file(&json, 0));
        assert!(
            matches!(&fault, FormatFault::BadMetadataValue { key, .. } if key == "epoch"),
            "{fault:?}"
        );
    }
    for value in ["1", "\"x\"", "[]"] {
        let fault = fault(&file(&format!(r#"{{"__metadata__":{value}}}"#), 0));
        assert!(
            matches!(fault, FormatFault::BadMetadataValue { .. }),
            "{fault:?}"
        );
    }
}

#[test]
fn a_dtype_that_nobody_knows_spoils_only_its_own_tensor() {
    for tag in ["F128", "f32", "I4", "F8_E4M3FN", "", "a\u{1b}b"] {
        let tag_json = tag.escape_default().to_string().replace("{1b}", "001b");
        let (json, bytes) = packed(&[("odd", &tag_json, &[7], 5), ("fine", "F32", &[1], 4)]);
        let header = read(&file(&json, bytes)).expect("the reference reader refuses the file");
        let odd = &header.tensors()[0];
        let other = WeightDType::Other {
            tag: tag.into(),
            bits: None,
        };
        assert_eq!((odd.dtype(), odd.nbytes()), (&other, 5));
        assert_eq!(header.tensors()[1].dtype(), &WeightDType::Host(DType::F32));
    }
}

#[test]
fn a_dtype_of_another_json_type_is_an_error() {
    for value in ["1", "null", "[\"F32\"]", "{\"F32\":null}"] {
        let json = entry("x", "F32", &[1], 0, 4).replace("\"F32\"", value);
        let fault = fault(&file(&format!("{{{json}}}"), 4));
        assert!(
            matches!(&fault, FormatFault::BadField { name, .. } if name == "x"),
            "{fault:?}"
        );
    }
}

#[test]
fn scalars_and_empty_tensors_are_fine_wherever_they_lie() {
    let json = object(&[
        entry("start", "F32", &[0, 3], 0, 0),
        entry("scalar", "F64", &[], 0, 8),
        entry("middle", "I16", &[2, 0], 8, 8),
        entry("one", "U8", &[1, 1], 8, 9),
        entry("end", "U64", &[0], 9, 9),
    ]);
    assert_eq!(
        names(&file(&json, 9)),
        ["start", "scalar", "middle", "one", "end"]
    );
}

#[test]
fn an_empty_tensor_inside_another_is_an_overlap() {
    let json = object(&[entry("a", "U8", &[8], 0, 8), entry("b", "U8", &[0], 4, 4)]);
    assert_eq!(
        fault(&file(&json, 8)),
        FormatFault::Overlap {
            first: "a".into(),
            second: "b".into(),
            first_end: 8,
            second_begin: 4
        }
    );
}

#[test]
fn shapes_whose_product_overflows_are_invalid_zeros_or_not() {
    let huge = 1 << 40;
    // The reference reader takes the first one, whose product is 0 from left to right.
    for shape in [[0, huge, huge], [huge, huge, 0], [huge, huge, 1]] {
        let json = object(&[entry("x", "U8", &shape, 0, 0)]);
        let fault = fault(&file(&json, 0));
        let FormatFault::InvalidShape { name, source } = &fault else {
            panic!("{fault:?}");
        };
        assert_eq!(name, "x");
        assert!(matches!(source, TypeError::TooManyElements { .. }));
    }
}

#[test]
fn more_than_eight_dimensions_are_an_invalid_shape() {
    let ones = |rank: usize| object(&[entry("x", "U8", &vec![1; rank], 0, 1)]);
    assert_eq!(names(&file(&ones(8), 1)), ["x"]);
    for rank in [9, 5000] {
        assert_eq!(
            fault(&file(&ones(rank), 1)),
            FormatFault::InvalidShape {
                name: "x".into(),
                source: TypeError::RankTooHigh { rank, max: 8 }
            }
        );
    }
}

#[test]
fn holes_are_named_by_their_neighbours() {
    let a = entry("a", "U8", &[4], 1, 5);
    assert_eq!(
        fault(&file(&object(std::slice::from_ref(&a)), 5)),
        FormatFault::Hole {
            previous: None,
            next: "a".into(),
            begin: 0,
            end: 1
        }
    );
    let json = object(&[entry("c", "U8", &[2], 8, 10), entry("b", "U8", &[5], 0, 5)]);
    let fault = fault(&file(&json, 10));
    assert_eq!(
        fault,
        FormatFault::Hole {
            previous: Some("b".into()),
            next: "c".into(),
            begin: 5,
            end: 8
        }
    );
    let message = fault.to_string();
    assert!(
        message.contains("\"b\"") && message.contains("\"c\""),
        "{message}"
    );
}

#[test]
fn overlaps_name_both_tensors() {
    for (second, begin) in [("partly", 2), ("the same range", 0)] {
        let json = object(&[
            entry("a", "U8", &[4], 0, 4),
            entry("b", "U8", &[4], begin, begin + 4),
        ]);
        assert_eq!(
            fault(&file(&json, 6)),
            FormatFault::Overlap {
                first: "a".into(),
                second: "b".into(),
                first_end: 4,
                second_begin: begin
            },
            "{second}"
        );
    }
}

#[test]
fn offsets_are_two_whole_numbers_in_order() {
    assert_eq!(
        fault(&file(&object(&[entry("x", "U8", &[0], 4, 0)]), 0)),
        FormatFault::BackwardRange {
            name: "x".into(),
            begin: 4,
            end: 0
        }
    );
    for offsets in [
        "[-1,0]",
        "[0.0,0]",
        "[0,4e0]",
        "[0,0,0]",
        "[0]",
        "[]",
        "[0,18446744073709551616]",
        "null",
        "0",
        "\"0,0\"",
        "[null,0]",
        "[-0,0]",
    ] {
        let json = entry("x", "U8", &[0], 0, 0).replace("[0,0]", offsets);
        let fault = fault(&file(&format!("{{{json}}}"), 0));
        assert!(
            matches!(&fault, FormatFault::BadField { name, .. } if name == "x"),
            "{offsets}: {fault:?}"
        );
    }
    // The largest there is: no arithmetic on it may overflow.
    let json = object(&[entry("x", "F128", &[0], 0, u64::MAX)]);
    assert!(matches!(
        fault(&file(&json, 0)),
        FormatFault::Truncated { .. }
    ));
}

#[test]
fn sizes_are_whole_numbers() {
    for shape in [
        "[-1]",
        "[1.0]",
        "[18446744073709551616]",
        "null",
        "[[1]]",
        "\"1\"",
    ] {
        let json = entry("x", "U8", &[1], 0, 1).replace("[1]", shape);
        let fault = fault(&file(&format!("{{{json}}}"), 1));
        assert!(
            matches!(fault, FormatFault::BadField { .. }),
            "{shape}: {fault:?}"
        );
    }
}

#[test]
fn a_range_that_does_not_fit_shape_and_dtype_is_named_with_both_numbers() {
    let json = object(&[entry("x", "F32", &[2, 3], 0, 20)]);
    assert_eq!(
        fault(&file(&json, 20)),
        FormatFault::WrongLength {
            name: "x".into(),
            dtype: WeightDType::Host(DType::F32),
            shape: Box::new(Shape::from([2, 3])),
            expected_bytes: 24,
            range_bytes: 20
        }
    );
}

#[test]
fn elements_below_a_byte_fill_whole_bytes() {
    for (tag, shape, bytes) in [("F4", 2, 1), ("F6_E2M3", 4, 3), ("F6_E3M2", 8, 6)] {
        let json = object(&[entry("x", tag, &[shape], 0, bytes)]);
        assert_eq!(names(&file(&json, usize::try_from(bytes).unwrap())), ["x"]);
        let json = object(&[entry("x", tag, &[shape + 1], 0, bytes)]);
        let fault = fault(&file(&json, usize::try_from(bytes).unwrap()));
        assert!(
            matches!(fault, FormatFault::PartialByte { .. }),
            "{tag}: {fault:?}"
        );
    }
}

#[test]
fn one_byte_short_is_truncated_by_one_byte() {
    let (json, bytes) = packed(&[("a", "U8", &[4], 4), ("b", "F32", &[2], 8)]);
    let whole = file(&json, bytes);
    let needed_bytes = whole.len() as u64;
    let fault = fault(&whole[..whole.len() - 1]);
    assert_eq!(
        fault,
        FormatFault::Truncated {
            name: "b".into(),
            needed_bytes,
            file_bytes: needed_bytes - 1
        }
    );
    assert!(fault.to_string().contains("1 are missing"), "{fault}");
    // Every other length, down to the header's first byte.
    for length in 0..whole.len() {
        assert!(read(&whole[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn spaces_around_the_json_are_padding() {
    let (json, bytes) = packed(&[("x", "F32", &[1], 4)]);
    assert_eq!(names(&file(&format!("  \n\t{json}   "), bytes)), ["x"]);
    assert_eq!(
        names(&file(&format!("{}{json}", " ".repeat(4096)), bytes)),
        ["x"]
    );
    for padding in ["\0", "x", "{}", "\u{a0}"] {
        let fault = fault(&file(&format!("{json}{padding}"), bytes));
        assert!(matches!(fault, FormatFault::BadJson { .. }), "{fault:?}");
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
fn a_tensor_may_lie_at_any_offset() {
    let (json, bytes) = packed(&[("odd", "U8", &[1], 1), ("x", "F32", &[1], 4)]);
    let header = read(&file(&json, bytes)).unwrap();
    assert_eq!(header.tensors()[1].begin(), 1);
}

#[test]
fn the_order_is_that_of_the_bytes_whatever_the_order_of_the_keys() {
    let mut entries = [
        entry("z", "U8", &[2], 0, 2),
        entry("b", "U8", &[0], 2, 2),
        entry("c", "U8", &[0], 2, 2),
        entry("a", "U8", &[2], 2, 4),
    ];
    for _ in 0..entries.len() {
        entries.rotate_left(1);
        assert_eq!(names(&file(&object(&entries), 4)), ["z", "b", "c", "a"]);
    }
}

#[test]
fn text_that_is_no_json_object_says_so() {
    for text in [
        "[]",
        "null",
        "1",
        "{",
        r#"{"x"}"#,
        r#"{"x":1,}"#,
        "{\"x\":{\"dtype\":\"U8\"",
        "   ",
        "{'x':1}",
    ] {
        let fault = fault(&file(text, 0));
        assert!(
            matches!(
                fault,
                FormatFault::BadJson { .. }
                    | FormatFault::BadField { .. }
                    | FormatFault::Foreign { .. }
            ),
            "{text}: {fault:?}"
        );
    }
    let mut bytes = file("{\"\u{e9}\":1}", 0);
    bytes[11] = b'x'; // the second byte of é
    assert_eq!(fault(&bytes), FormatFault::NotUtf8 { at: 2 });
}

#[test]
fn deep_nesting_is_an_error_and_no_stack_overflow() {
    let deep = format!("{{\"x\":{}", "[".repeat(1_000_000));
    assert!(matches!(
        fault(&file(&deep, 0)),
        FormatFault::BadField { .. } | FormatFault::BadJson { .. }
    ));
    let deep = format!(r#"{{"x":{{"more":{}"#, r#"{"a":"#.repeat(500_000));
    assert!(matches!(
        fault(&file(&deep, 0)),
        FormatFault::BadJson { .. }
    ));
}

#[test]
fn there_is_a_limit_to_the_number_of_tensors() {
    let (json, bytes) = packed(&[
        ("a", "U8", &[1], 1),
        ("b", "U8", &[1], 1),
        ("c", "U8", &[1], 1),
    ]);
    let limits = |max_tensors| HeaderLimits {
        max_tensors,
        ..HeaderLimits::default()
    };
    assert!(Header::from_bytes(&file(&json, bytes), &limits(3)).is_ok());
    assert_eq!(
        Header::from_bytes(&file(&json, bytes), &limits(2)),
        Err(FormatFault::TooManyTensors { max_tensors: 2 })
    );
    let limits = HeaderLimits {
        max_header_bytes: json.len() as u64 - 1,
        ..HeaderLimits::default()
    };
    assert!(matches!(
        Header::from_bytes(&file(&json, bytes), &limits),
        Err(FormatFault::HeaderTooLarge { .. })
    ));
}

#[test]
fn a_hundred_thousand_tensors_over_one_range_are_refused_quickly() {
    let entries: Vec<_> = (0..100_000)
        .map(|number| entry(&number.to_string(), "U8", &[160_000], 0, 160_000))
        .collect();
    assert!(matches!(
        fault(&file(&object(&entries), 160_000)),
        FormatFault::Overlap { .. }
    ));
}

#[test]
fn other_formats_are_called_by_their_names() {
    let cases: [(&[u8], ForeignFormat); 7] = [
        (
            b"PK\x03\x04\x00\x00\x08\x08\x00\x00archive/data.pkl",
            ForeignFormat::Zip,
        ),
        (
            b"\x80\x02}q\x00X\x06\x00\x00\x00weight",
            ForeignFormat::Pickle,
        ),
        (b"GGUF\x03\x00\x00\x00\x10\x01\x00\x00", ForeignFormat::Gguf),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
            ForeignFormat::LfsPointer,
        ),
        (
            b"<!DOCTYPE html><html><body>404</body></html>",
            ForeignFormat::Html,
        ),
        (b"{\"model_type\": \"llama\"}", ForeignFormat::Json),
        (b"{}", ForeignFormat::Json),
    ];
    for (bytes, format) in cases {
        let fault = fault(bytes);
        assert_eq!(fault, FormatFault::Foreign { format });
        assert!(
            fault
                .to_string()
                .starts_with("not a safetensors file: it is "),
            "{fault}"
        );
    }
}
