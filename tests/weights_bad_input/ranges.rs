//! Shapes and ranges, against each other and against the file.

use tenslab::types::TypeError;
use tenslab::weights::{FormatFault, WeightDType};
use tenslab::{DType, Shape};

use crate::checkpoint_files::{entry, file, object, packed};
use crate::{fault, names, read};

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
fn a_tensor_may_lie_at_any_offset() {
    let (json, bytes) = packed(&[("odd", "U8", &[1], 1), ("x", "F32", &[1], 4)]);
    let header = read(&file(&json, bytes)).unwrap();
    assert_eq!(header.tensors().get(1).unwrap().begin(), 1);
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
