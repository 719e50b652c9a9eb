//! What a header may ask for: bytes, tensors, metadata, dtypes, time and stack.

use tenslab::weights::{FormatFault, Header, HeaderLimits};

use crate::checkpoint_files::{entry, file, object, packed};
use crate::{fault, read};

#[test]
fn header_lengths_above_the_limit_are_refused() {
    let refused = |header_bytes, limits: &HeaderLimits, max_bytes| {
        let mut bytes = u64::to_le_bytes(header_bytes).to_vec();
        bytes.extend(b"\0\0{}");
        assert_eq!(
            Header::from_bytes(&bytes, limits),
            Err(FormatFault::HeaderTooLarge {
                header_bytes,
                max_bytes
            })
        );
    };
    for length in [u64::MAX, 1 << 63, 100_000_001] {
        refused(length, &HeaderLimits::default(), 32 << 20);
        refused(length, &HeaderLimits::of_format(), 100_000_000);
    }
    refused((32 << 20) + 1, &HeaderLimits::default(), 32 << 20);
    // Positions in a header are 32 bits wide, whatever is asked for.
    let endless = HeaderLimits {
        max_header_bytes: u64::MAX,
        ..HeaderLimits::default()
    };
    refused(1 << 31, &endless, (1 << 31) - 1);
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
fn a_text_above_the_limit_is_refused_also_without_its_length_field() {
    let limits = HeaderLimits {
        max_header_bytes: 1,
        ..HeaderLimits::default()
    };
    assert_eq!(
        Header::from_text(b"{}".to_vec(), 10, &limits),
        Err(FormatFault::HeaderTooLarge {
            header_bytes: 2,
            max_bytes: 1
        })
    );
    assert!(Header::from_text(b"{}".to_vec(), 10, &HeaderLimits::default()).is_ok());
}

#[test]
fn there_is_a_limit_to_the_keys_of_metadata() {
    let json = |keys: usize| {
        // Some are spelled with escapes.
        let keys: Vec<_> = (0..keys)
            .map(|key| format!(r#""\u0061{key}":"v""#))
            .collect();
        format!(r#"{{"__metadata__":{{{}}}}}"#, keys.join(","))
    };
    let limits = HeaderLimits {
        max_metadata: 3,
        ..HeaderLimits::default()
    };
    let header = Header::from_bytes(&file(&json(3), 0), &limits).unwrap();
    assert_eq!(
        header.metadata().keys().collect::<Vec<_>>(),
        ["a0", "a1", "a2"]
    );
    assert_eq!(
        Header::from_bytes(&file(&json(4), 0), &limits),
        Err(FormatFault::TooMuchMetadata { max_metadata: 3 })
    );
    assert_eq!(
        fault(&file(&json(100_001), 0)),
        FormatFault::TooMuchMetadata {
            max_metadata: 100_000
        }
    );
}

#[test]
fn there_is_a_limit_to_the_dtypes_that_nobody_knows() {
    // Those of the format do not count, and one that comes again is no new one.
    let mut entries: Vec<_> = (0..130)
        .map(|number| {
            entry(
                &format!("t{number}"),
                &format!("X{}", number % 64),
                &[1],
                0,
                0,
            )
        })
        .collect();
    for tag in ["F32", "BF16", "F4", "U8"] {
        entries.push(entry(tag, tag, &[0], 0, 0));
    }
    assert_eq!(
        read(&file(&object(&entries), 0)).unwrap().tensors().len(),
        134
    );
    entries.push(entry("last", "X64", &[1], 0, 0));
    let fault = fault(&file(&object(&entries), 0));
    assert_eq!(
        fault,
        FormatFault::TooManyDTypes {
            name: "last".into(),
            max_dtypes: 64
        }
    );
    let message = fault.to_string();
    assert!(
        message.contains("\"last\"") && message.contains("64"),
        "{message}"
    );
}
