//! `allclose`, its tolerances and its report.

use tenslab::memory::{BorrowError, cpu};
use tenslab::ops::{Number, Tolerance};
use tenslab::tensor::TensorError;
use tenslab::{Bool8, DType, Tensor, bf16, f16, ops};

use super::{counted, tensor};

const EXACTLY: Tolerance = Tolerance {
    relative: 0.0,
    absolute: 0.0,
};

fn pair(a: f64, b: f64, relative: f64, absolute: f64) -> bool {
    let (a, b) = (tensor::<f64>(&[1], &[a]), tensor::<f64>(&[1], &[b]));
    ops::allclose(&a, &b, Tolerance { relative, absolute })
        .unwrap()
        .is_close()
}

#[test]
fn close_is_numpys_rule_and_not_symmetric() {
    // Exact in binary: |a - b| is atol + rtol * |b|, and then a little more.
    assert!(pair(1.5, 1.0, 0.25, 0.25));
    assert!(!pair(1.500_000_1, 1.0, 0.25, 0.25));
    assert!(pair(-1.5, -1.0, 0.25, 0.25));
    assert!(pair(0.75, 1.0, 0.25, 0.0));
    assert!(
        !pair(1.0, 0.75, 0.25, 0.0),
        "the relative part is of the second"
    );
    assert!(pair(1e300, 2e300, 0.0, f64::INFINITY));
    // In f64: for halves too, whose difference would be rounded in their own format.
    let (a, b) = (
        tensor(&[1], &[f16::from_bits(0x6800)]),
        tensor(&[1], &[f16::from_bits(0x3c00)]),
    );
    assert_eq!(ops::allclose(&a, &b, EXACTLY).unwrap().max_abs_diff, 2047.0);
}

#[test]
fn a_nan_is_close_to_nothing_and_an_infinity_to_itself() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for (a, b, close) in [
        (nan, nan, false),
        (nan, 0.0, false),
        (0.0, nan, false),
        (nan, inf, false),
        (inf, inf, true),
        (-inf, -inf, true),
        (inf, -inf, false),
        (inf, 1e308, false),
        // atol + rtol * |b| is infinite here, and NumPy's answer is still no.
        (1e308, inf, false),
        (1e308, -inf, false),
    ] {
        assert_eq!(pair(a, b, 0.5, 1.0), close, "{a} {b}");
        assert_eq!(pair(a, b, inf, inf), close, "{a} {b}");
    }
}

#[test]
fn integers_and_booleans_compare_exactly_whatever_the_tolerance() {
    let loose = Tolerance {
        relative: 1.0,
        absolute: 1e9,
    };
    let (a, b) = (
        tensor::<i64>(&[2], &[i64::MAX, 5]),
        tensor::<i64>(&[2], &[i64::MAX - 1, 5]),
    );
    let report = ops::allclose(&a, &b, loose).unwrap();
    // As f64 the two would be equal.
    assert_eq!((report.mismatches, report.max_abs_diff), (1, 1.0));
    let worst = report.worst.unwrap();
    assert_eq!((worst.a, worst.b), (i64::MAX.into(), (i64::MAX - 1).into()));
    let (a, b) = (tensor::<u8>(&[1], &[0]), tensor::<u8>(&[1], &[255]));
    assert_eq!(ops::allclose(&a, &b, loose).unwrap().max_abs_diff, 255.0);
    let (a, b) = (tensor::<i8>(&[1], &[-128]), tensor::<i8>(&[1], &[127]));
    assert_eq!(ops::allclose(&a, &b, loose).unwrap().max_abs_diff, 255.0);
    let (yes, no) = (
        tensor(&[1], &[Bool8::new(true)]),
        tensor(&[1], &[Bool8::new(false)]),
    );
    assert!(!ops::allclose(&yes, &no, loose).unwrap().is_close());
    // A byte of 2 is as true as one of 1.
    let odd = tensor::<u8>(&[1], &[2]).view_as_dtype(DType::Bool).unwrap();
    assert!(ops::allclose(&yes, &odd, None).unwrap().is_close());
}

#[test]
fn each_dtype_has_the_tolerance_of_numpy_and_pytorch() {
    for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_reserved()) {
        let Tolerance { relative, absolute } = ops::default_allclose_tolerance(dtype);
        let expected = match dtype {
            DType::F32 | DType::F64 => (1e-5, 1e-8),
            DType::F16 => (1e-3, 1e-5),
            DType::BF16 => (1.6e-2, 1e-5),
            _ => (0.0, 0.0),
        };
        assert_eq!((relative, absolute), expected, "{dtype}");
    }
    // And they are the ones used where none is named: one bit of each format is close.
    let (a, b) = (
        tensor(&[1], &[bf16::from_bits(0x3f80)]),
        tensor(&[1], &[bf16::from_bits(0x3f81)]),
    );
    assert!(ops::allclose(&a, &b, None).unwrap().is_close());
    assert!(
        !ops::allclose(&a, &b, ops::default_allclose_tolerance(DType::F16))
            .unwrap()
            .is_close()
    );
}

#[test]
fn a_reserved_dtype_has_no_tolerance() {
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_reserved()) {
        let panicked = std::panic::catch_unwind(|| ops::default_allclose_tolerance(dtype));
        let message = *panicked.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(message, format!("{dtype} has no tolerance: it is reserved"));
    }
}

#[test]
fn a_tolerance_is_not_negative_and_no_nan() {
    let a = tensor::<f32>(&[1], &[1.0]);
    for (relative, absolute) in [(-1e-9, 0.0), (0.0, -1e-9), (f64::NAN, 0.0), (0.0, f64::NAN)] {
        let error = ops::allclose(&a, &a, Tolerance { relative, absolute }).unwrap_err();
        let (relative, absolute) = (relative.into(), absolute.into());
        assert_eq!(error, TensorError::BadTolerance { relative, absolute });
    }
    // Also where they would not be looked at.
    let whole = tensor::<i32>(&[1], &[1]);
    let negative = Tolerance {
        relative: -1.0,
        absolute: 0.0,
    };
    assert!(ops::allclose(&whole, &whole, negative).is_err());
}

#[test]
fn the_report_names_the_worst_mismatch() {
    let b = tensor::<f32>(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let a = tensor::<f32>(&[2, 3], &[0.0, 1.5, 2.0, 1.0, 6.0, 5.0]);
    let report = ops::allclose(&a, &b, None).unwrap();
    assert!(!report.is_close());
    assert_eq!(
        (report.compared, report.mismatches, report.max_abs_diff),
        (6, 3, 2.0)
    );
    let worst = report.worst.unwrap();
    // Two are off by 2: the first of them.
    assert_eq!(worst.index(), [1, 0]);
    assert_eq!((worst.a, worst.b), (Number::Float(1.0), Number::Float(3.0)));
    assert_eq!(
        report.to_string(),
        "3 of 6 elements are not close; the worst is at [1, 0]: 1 and 3; the largest difference is 2"
    );
    // By index, not by where it lies.
    let report = ops::allclose(
        &a.transpose(0, 1).unwrap(),
        &b.transpose(0, 1).unwrap(),
        None,
    );
    assert_eq!(report.unwrap().worst.unwrap().index(), [0, 1]);
}

#[test]
fn a_nan_is_the_worst_of_all() {
    let b = tensor::<f32>(&[3], &[0.0, 1.0, 2.0]);
    let a = tensor::<f32>(&[3], &[1e30, f32::NAN, 2.0]);
    let report = ops::allclose(&a, &b, None).unwrap();
    assert_eq!((report.mismatches, report.max_abs_diff), (2, f64::INFINITY));
    let worst = report.worst.unwrap();
    assert_eq!(
        (worst.index(), worst.a),
        (&[1][..], Number::Float(f64::NAN))
    );
}

#[test]
fn the_largest_difference_is_of_close_ones_too() {
    let (a, b) = (
        tensor::<f64>(&[2], &[1.0, 2.25]),
        tensor::<f64>(&[2], &[1.0, 2.0]),
    );
    let report = ops::allclose(
        &a,
        &b,
        Tolerance {
            relative: 1.0,
            absolute: 0.0,
        },
    )
    .unwrap();
    assert!(report.is_close() && report.worst.is_none());
    assert_eq!(report.max_abs_diff, 0.25);
    let text = "all 2 elements are close, the largest difference is 0.25";
    assert_eq!(report.to_string(), text);
}

#[test]
fn scalars_and_tensors_without_elements_are_compared() {
    let report = ops::allclose(
        &tensor::<f32>(&[], &[1.0]),
        &tensor::<f32>(&[], &[2.0]),
        None,
    );
    let report = report.unwrap();
    assert!(report.worst.unwrap().index().is_empty());
    let none = ops::allclose(&counted(&[2, 0]), &counted(&[2, 0]), None).unwrap();
    assert!(none.is_close() && none.compared == 0 && none.max_abs_diff == 0.0);
}

#[test]
fn only_equal_dtypes_and_shapes_are_compared() {
    let a = counted(&[2, 3]);
    let error = ops::allclose(&a, &a.view_as_dtype(DType::I16).unwrap(), None).unwrap_err();
    let (asked, found) = (DType::U16, DType::I16);
    assert_eq!(error, TensorError::DTypeMismatch { asked, found });
    let b = counted(&[3, 2]);
    let shapes = Box::new((*a.shape(), *b.shape()));
    assert_eq!(
        ops::allclose(&a, &b, None).unwrap_err(),
        TensorError::ShapeMismatch { shapes }
    );
}

#[test]
fn what_is_written_to_is_not_compared() {
    let (a, b) = (counted(&[3]), counted(&[3]));
    let _writer = b.write::<u16>().unwrap();
    let busy = TensorError::from(BorrowError::Writing {
        storage: b.storage().id(),
    });
    assert_eq!(ops::allclose(&a, &b, None).unwrap_err(), busy);
    assert_eq!(ops::allclose(&b, &a, None).unwrap_err(), busy);
    let _reader = a.read::<u16>().unwrap();
    assert!(ops::allclose(&a, &a, None).unwrap().is_close());
}

#[test]
fn misaligned_and_strided_tensors_are_compared() {
    let storage = tenslab::Storage::from(cpu().allocate_zeroed(64, 64).unwrap());
    let odd = Tensor::from_storage(&storage, 3, [2, 2], DType::F32).unwrap();
    let right = ops::full([2, 2], 1.5, DType::F32, cpu()).unwrap();
    ops::copy(&odd.transpose(0, 1).unwrap(), &right).unwrap();
    assert!(ops::allclose(&odd, &right, None).unwrap().is_close());
}
