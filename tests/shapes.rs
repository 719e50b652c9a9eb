//! Shapes and strides: §4 of the tensor contract.
//!
//! ```text
//!   Shape     what is a shape, what is none, and why
//!   Strides   row-major goldens, in elements; what counts as contiguous, against a walk
//!             over every element
//! ```
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "a test cuts numbers that it made to fit"
)]

use std::collections::HashSet;

use tenslab::types::{MAX_RANK, TypeError, row_major_strides};
use tenslab::{DType, Shape, Strides, Tensor, memory};

#[test]
fn shapes_know_their_rank_sizes_and_elements() {
    let goldens: [(&[usize], usize, &str); 7] = [
        (&[], 1, "[]"),
        (&[5], 5, "[5]"),
        (&[2, 3], 6, "[2, 3]"),
        (&[2, 3, 4], 24, "[2, 3, 4]"),
        (&[1, 1, 1, 1], 1, "[1, 1, 1, 1]"),
        (&[2, 3, 0, 5, 7], 0, "[2, 3, 0, 5, 7]"),
        (&[2; 8], 256, "[2, 2, 2, 2, 2, 2, 2, 2]"),
    ];
    for (dims, numel, text) in goldens {
        let shape = Shape::from_dims(dims).unwrap();
        assert_eq!(shape.rank(), dims.len());
        assert_eq!(shape.dims(), dims);
        assert_eq!(shape.numel(), numel, "{text}");
        assert_eq!(shape.to_string(), text);
        assert_eq!(Shape::try_from(dims), Ok(shape));
        for (index, &dim) in dims.iter().enumerate() {
            assert_eq!(shape.dim(index), dim);
        }
    }
    assert_eq!(Shape::default(), Shape::SCALAR);
    assert_eq!(Shape::from([]), Shape::SCALAR);
    assert_ne!(Shape::from([]), Shape::from([1]));
    assert_ne!(Shape::from([0]), Shape::from([0, 0]));
}

#[test]
fn equal_shapes_hash_alike_and_different_ones_are_told_apart() {
    let shapes: HashSet<Shape> = [
        Shape::from([2, 3]),
        Shape::from_dims(&[2, 3]).unwrap(),
        Shape::try_from(&[2_i64, 3][..]).unwrap(),
        Shape::from([3, 2]),
        Shape::from([2, 3, 1]),
    ]
    .into();
    assert_eq!(shapes.len(), 3);
}

#[test]
fn eight_dimensions_are_a_shape_and_nine_are_none() {
    assert_eq!(MAX_RANK, 8);
    assert!(Shape::from_dims(&[1; 8]).is_ok());
    let too_high = TypeError::RankTooHigh { rank: 9, max: 8 };
    assert_eq!(Shape::from_dims(&[1; 9]), Err(too_high.clone()));
    assert_eq!(Shape::from_dims(&[0; 9]), Err(too_high.clone()));
    assert_eq!(Shape::try_from(&[-1_i64; 9][..]), Err(too_high));
}

#[test]
fn overflow_is_judged_on_the_product_of_the_dimensions_that_are_not_zero() {
    let largest = i64::MAX as usize;
    let fine: [&[usize]; 5] = [
        &[largest],
        &[0, largest],
        &[7, 7, 73, 127, 337, 92_737, 649_657], // the factors of 2^63 - 1
        &[1 << 31, 0, 1 << 31],
        &[1 << 62, 1, 1],
    ];
    for dims in fine {
        let shape = Shape::from_dims(dims).unwrap();
        let numel = if dims.contains(&0) {
            0
        } else {
            dims.iter().product()
        };
        assert_eq!(shape.numel(), numel);
    }
    let too_many: [(&[usize], usize); 7] = [
        (&[largest + 1], 0),
        (&[usize::MAX], 0),
        (&[1 << 32, 1 << 31], 1),
        (&[1 << 32, 1 << 32], 1),    // wraps to 0
        (&[0, 1 << 32, 1 << 32], 2), // a 0 excuses nothing
        (&[1 << 32, 0, 1 << 32], 2),
        (&[3, largest / 2, 0], 1),
    ];
    for (dims, index) in too_many {
        let (rank, dim) = (dims.len(), dims[index]);
        let error = TypeError::TooManyElements { rank, index, dim };
        assert_eq!(Shape::from_dims(dims), Err(error.clone()), "{dims:?}");
        assert!(error.to_string().contains(&dim.to_string()));
    }
}

#[test]
fn signed_dimensions_below_zero_are_named() {
    assert_eq!(
        Shape::try_from(&[2_i64, -3, -4][..]),
        Err(TypeError::NegativeDim { index: 1, dim: -3 })
    );
    assert_eq!(
        Shape::try_from(&[i64::MIN][..]),
        Err(TypeError::NegativeDim {
            index: 0,
            dim: i64::MIN
        })
    );
    assert_eq!(
        Shape::try_from(&[i64::MAX][..]).unwrap().numel(),
        i64::MAX as usize
    );
    assert!(Shape::try_from(&[i64::MAX, 2][..]).is_err());
    assert_eq!(Shape::try_from(&[][..] as &[i64]), Ok(Shape::SCALAR));
}

#[test]
#[should_panic(expected = "is no shape")]
fn a_literal_of_nine_dimensions_is_a_typo() {
    let _ = Shape::from([1; 9]);
}

#[test]
#[should_panic(expected = "is no shape")]
fn a_literal_of_too_many_elements_is_a_typo() {
    let _ = Shape::from([1 << 32, 1 << 32]);
}

#[test]
#[should_panic(expected = "dimension 2 of a shape of rank 2")]
fn a_dimension_past_the_rank_is_a_typo() {
    let _ = Shape::from([2, 3]).dim(2);
}

#[test]
#[should_panic(expected = "stride 1 of 1 strides")]
fn a_stride_past_the_rank_is_a_typo() {
    let _ = row_major_strides(&Shape::from([5])).stride(1);
}

#[test]
fn row_major_strides_take_a_dimension_of_zero_for_one() {
    let goldens: [(&[usize], &[usize]); 11] = [
        (&[], &[]),
        (&[7], &[1]),
        (&[2, 3], &[3, 1]),
        (&[2, 3, 4], &[12, 4, 1]),
        (&[5, 2, 3, 4], &[24, 12, 4, 1]),
        (&[6, 5, 2, 3, 4], &[120, 24, 12, 4, 1]),
        (&[2, 0, 4], &[4, 4, 1]),
        (&[0], &[1]),
        (&[3, 2, 0], &[2, 1, 1]),
        (&[1, 1, 5, 1], &[5, 5, 1, 1]),
        (&[2; 8], &[128, 64, 32, 16, 8, 4, 2, 1]),
    ];
    for (dims, strides) in goldens {
        let shape = Shape::from_dims(dims).unwrap();
        let packed = row_major_strides(&shape);
        assert_eq!(packed.values(), strides, "{shape}");
        assert_eq!(packed.rank(), shape.rank());
        assert!(packed.are_contiguous_for(&shape), "{shape}");
    }
    // The largest stride there can be: nothing overflows.
    let shape = Shape::from([0, i64::MAX as usize]);
    assert_eq!(row_major_strides(&shape).values(), [i64::MAX as usize, 1]);
}

fn strides(dims: &[usize]) -> Strides {
    row_major_strides(&Shape::from_dims(dims).unwrap())
}

#[test]
fn contiguity_ignores_what_is_never_stepped() {
    // strides [12, 4, 1]
    let of = strides(&[2, 3, 4]);
    let goldens: [(&[usize], bool); 9] = [
        (&[2, 3, 4], true),
        (&[9, 3, 4], true), // the outermost size puts no condition on strides
        (&[1, 3, 4], true),
        (&[2, 1, 4], false), // a row skipped in between
        (&[1, 1, 4], true),
        (&[1, 1, 1], true),
        (&[2, 3, 3], false),
        (&[2, 1, 1], false),
        (&[2, 0, 3], true), // nothing to step over
    ];
    for (dims, contiguous) in goldens {
        let shape = Shape::from_dims(dims).unwrap();
        assert_eq!(
            of.are_contiguous_for(&shape),
            contiguous,
            "{shape} with {of}"
        );
    }
    assert!(!of.are_contiguous_for(&Shape::from([24])), "another rank");
    assert!(strides(&[]).are_contiguous_for(&Shape::SCALAR));
}

/// Contiguous means that a walk in row-major order meets 0, 1, 2, … and nothing else:
/// all shapes of rank 3 with sizes to 3, under all strides to 9 that matter.
#[test]
fn contiguous_is_what_a_walk_finds_packed() {
    const STEPS: [usize; 7] = [0, 1, 2, 3, 4, 6, 9];
    let mut contiguous = 0;
    for shape in (0..64).map(|n| [n / 16, n / 4 % 4, n % 4]) {
        for n in 0..STEPS.len().pow(3) {
            let strides = [STEPS[n / 49], STEPS[n / 7 % 7], STEPS[n % 7]];
            let [a, b, c] = shape;
            let walk =
                (0..a).flat_map(|i| (0..b).flat_map(move |j| (0..c).map(move |k| [i, j, k])));
            let packed = walk
                .map(|at| {
                    at.iter()
                        .zip(strides)
                        .map(|(i, stride)| i * stride)
                        .sum::<usize>()
                })
                .eq(0..a * b * c);
            let found = Strides::from_values(&strides)
                .unwrap()
                .are_contiguous_for(&Shape::from(shape));
            assert_eq!(found, packed, "{shape:?} under {strides:?}");
            contiguous += usize::from(found);
        }
    }
    // Each of the 37 shapes without elements under all strides. In the 27 others a size of
    // 1 takes any of the 7 steps, and 2 and 3 exactly one: 7 + 1 + 1 for each dimension.
    assert_eq!(contiguous, 37 * 343 + 9 * 9 * 9);
}

/// Strides of the largest shapes, against arithmetic that cannot overflow.
#[test]
fn no_shape_that_is_one_overflows_its_strides() {
    let sizes = [
        0,
        1,
        2,
        3,
        1 << 21,
        1 << 31,
        (1 << 62) - 1,
        i64::MAX as usize,
        usize::MAX,
    ];
    let mut shapes = 0;
    for n in 0..sizes.len().pow(4) {
        let dims = [n / 729, n / 81 % 9, n / 9 % 9, n % 9].map(|at| sizes[at]);
        let wide = dims.map(|dim| dim.max(1) as u128);
        let fits = wide
            .iter()
            .try_fold(1_u128, |product, &dim| product.checked_mul(dim));
        let fits = fits.is_some_and(|product| product <= i64::MAX as u128);
        let shape = Shape::from_dims(&dims);
        assert_eq!(shape.is_ok(), fits, "{dims:?}");
        let Ok(shape) = shape else { continue };
        shapes += 1;
        for (index, &stride) in row_major_strides(&shape).values().iter().enumerate() {
            let expected: u128 = wide[index + 1..].iter().product();
            assert_eq!(stride as u128, expected, "{dims:?}");
            assert!(stride >= 1, "{dims:?}");
        }
    }
    assert!(shapes > 500, "{shapes}");
}

/// PyTorch's convention: what a dtype's width is changes no stride, only the offset in
/// bytes.
#[test]
fn strides_count_elements_whatever_the_dtype() {
    for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_reserved()) {
        let tensor = Tensor::zeros([4, 5, 6], dtype, memory::cpu()).unwrap();
        assert_eq!(tensor.strides().values(), [30, 6, 1], "{dtype}");
        let view = tensor.slice(1, 2, 4).unwrap();
        assert_eq!(view.strides().values(), [30, 6, 1], "{dtype}");
        assert_eq!(view.byte_offset(), 2 * 6 * dtype.bytes(), "{dtype}");
    }
    let wide = Tensor::zeros([4, 5], DType::F32, memory::cpu()).unwrap();
    let column = wide.slice(1, 1, 2).unwrap();
    let seen = column.view_as_dtype(DType::I32).unwrap();
    assert_eq!(seen.strides(), column.strides());
}

#[test]
fn strides_are_values_like_shapes() {
    let of = Strides::from_values(&[12, 4, 1]).unwrap();
    let copy = of;
    assert_eq!(copy, row_major_strides(&Shape::from([2, 3, 4])));
    assert_ne!(of, Strides::from_values(&[12, 4]).unwrap());
    assert_eq!((of.rank(), of.stride(1)), (3, 4));
    assert_eq!(format!("{of} {of:?}"), "[12, 4, 1] Strides[12, 4, 1]");
    assert_eq!(Strides::from_values(&[]).unwrap().to_string(), "[]");
    assert_eq!(HashSet::from([of, copy]).len(), 1);
    let too_high = TypeError::RankTooHigh { rank: 9, max: 8 };
    assert_eq!(Strides::from_values(&[1; 9]), Err(too_high.clone()));
    assert_eq!(Strides::try_from(&[1; 9][..]), Err(too_high));
}

/// What stands behind the rank is no part of the value.
#[test]
fn a_shape_cut_from_a_longer_one_equals_a_fresh_one() {
    let cut = Tensor::zeros([3, 2, 7], DType::U8, memory::cpu())
        .and_then(|tensor| tensor.reshape([6, 7]))
        .unwrap();
    assert_eq!(*cut.shape(), Shape::from([6, 7]));
    assert_eq!(*cut.strides(), row_major_strides(&Shape::from([6, 7])));
}

#[test]
fn shapes_and_strides_parse_exactly_what_they_print() {
    for text in [
        "[]",
        "[0]",
        "[2, 3, 4]",
        "[1, 1, 1, 1, 1, 1, 1, 9223372036854775807]",
    ] {
        assert_eq!(text.parse::<Shape>().unwrap().to_string(), text);
        assert_eq!(text.parse::<Strides>().unwrap().to_string(), text);
    }
    let none = [
        "",
        "[",
        "]",
        "[ ]",
        "2, 3",
        "[2,3]",
        "[2,  3]",
        "[2, 3,]",
        "[2, 3, ]",
        "[, 2]",
        "[02]",
        "[+2]",
        "[-2]",
        "[00]",
        "[2, 3] ",
        "[[2]]",
        "(2, 3)",
        "[2.0]",
        "[٣]",
        "[18446744073709551616]",
    ];
    for text in none {
        let error = TypeError::NotDims { text: text.into() };
        assert_eq!(text.parse::<Shape>(), Err(error.clone()), "{text:?}");
        assert_eq!(text.parse::<Strides>(), Err(error), "{text:?}");
    }
    let too_high = TypeError::RankTooHigh { rank: 9, max: 8 };
    assert_eq!(
        "[1, 1, 1, 1, 1, 1, 1, 1, 1]".parse::<Shape>(),
        Err(too_high)
    );
    assert!("[9223372036854775808]".parse::<Shape>().is_err());
}

#[test]
fn shapes_print_alike_under_any_flags() {
    let shape = Shape::from([2, 3]);
    assert_eq!(
        format!("{shape} {shape:#} {shape:5} {shape:?}"),
        "[2, 3] [2, 3] [2, 3] Shape[2, 3]"
    );
}
