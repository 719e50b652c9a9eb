//! The JSON: what a tensor and the metadata must have, may have and may not have.

use tenslab::DType;
use tenslab::weights::{FormatFault, WeightDType};

use crate::checkpoint_files::{entry, file, packed};
use crate::{fault, names, read};

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
        let [odd, fine] = [0, 1].map(|at| header.tensors().get(at).unwrap());
        let other = WeightDType::Other {
            tag: tag.into(),
            bits: None,
        };
        assert_eq!((odd.dtype(), odd.nbytes()), (&other, 5));
        assert_eq!(fine.dtype(), &WeightDType::Host(DType::F32));
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
