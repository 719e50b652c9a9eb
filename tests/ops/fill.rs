//! `fill`, `fill_uniform` and `fill_normal`.
//!
//! The expected values were made by another implementation of the generator and the
//! transforms (in Python), and the C++ standard names the generator's 10,000th number.

use tenslab::memory::{BorrowError, cpu};
use tenslab::ops::Number;
use tenslab::tensor::TensorError;
use tenslab::types::half::f16_from_f32;
use tenslab::{Bool8, DType, Tensor, f16, ops};

use super::{counted, elements, tensor};

const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

/// The standard's default seed.
const SEED: u64 = 5489;

/// (next() >> 11) * 2^-53 for seed 42.
const UNITS: [f64; 6] = [
    0.755155532954539,
    0.6390313938546974,
    0.7521452007480266,
    0.13627268363243705,
    0.9032689664283783,
    0.09406831176283703,
];

/// Box and Muller of those, as f32.
const NORMALS: [u32; 6] = [
    0xbf89_e0db,
    0xbfa4_9dba,
    0x3f8c_193a,
    0x3fa1_7eea,
    0x3fe5_b9c4,
    0x3f9a_29cb,
];

fn empty(numel: usize, dtype: DType) -> Tensor {
    Tensor::empty([numel], dtype, cpu()).unwrap()
}

#[test]
fn a_fill_writes_the_view_and_nothing_beside_it() {
    let matrix = counted(&[3, 4]);
    ops::fill(&matrix.slice(0, 1, 3).unwrap().slice(1, 1, 3).unwrap(), 77).unwrap();
    assert_eq!(elements(&matrix), [0, 1, 2, 3, 4, 77, 77, 7, 8, 77, 77, 11]);
    ops::fill(&matrix.slice(1, 0, 1).unwrap(), 5).unwrap();
    assert_eq!(elements(&matrix), [5, 1, 2, 3, 5, 77, 77, 7, 5, 77, 77, 11]);
    ops::fill(&matrix.slice(1, 2, 2).unwrap(), 9).unwrap();
    ops::fill(&matrix.transpose(0, 1).unwrap(), 1).unwrap();
    assert_eq!(elements(&matrix), [1; 12]);
    let flags = Tensor::zeros([2], DType::Bool, cpu()).unwrap();
    ops::fill(&flags, true).unwrap();
    assert_eq!(*flags.read::<Bool8>().unwrap(), [Bool8::new(true); 2]);
}

#[test]
fn a_fill_takes_what_full_takes_and_changes_nothing_otherwise() {
    let row = counted(&[3]);
    let value = Number::from(65_536);
    let error = ops::fill(&row, value).unwrap_err();
    assert_eq!(
        error,
        TensorError::ValueOutOfRange {
            value,
            dtype: DType::U16
        }
    );
    assert_eq!(elements(&row), [0, 1, 2]);
    let _reader = row.read::<u16>().unwrap();
    let (storage, readers) = (row.storage().id(), 1);
    assert_eq!(
        ops::fill(&row, 1).unwrap_err(),
        BorrowError::Reading { storage, readers }.into()
    );
}

#[test]
fn the_generator_is_the_standards_mt19937_64() {
    let row = empty(10_000, DType::F64);
    ops::fill_uniform(&row, 0.0, 1.0, SEED).unwrap();
    let expected = (9_981_545_732_273_789_042_u64 >> 11) as f64 * 2_f64.powi(-53);
    assert_eq!(row.item::<f64>(&[9_999]), expected);
}

#[test]
fn a_uniform_fill_is_bit_identical_everywhere() {
    let row = empty(6, DType::F64);
    ops::fill_uniform(&row, 0.0, 1.0, 42).unwrap();
    assert_eq!(*row.read::<f64>().unwrap(), UNITS);
    ops::fill_uniform(&row, -1.0, 1.0, 42).unwrap();
    assert_eq!(*row.read::<f64>().unwrap(), UNITS.map(|u| -1.0 + u * 2.0));
    let halves = empty(6, DType::F16);
    ops::fill_uniform(&halves, -3.0, 5.0, 42).unwrap();
    let expected = UNITS.map(|u| f16_from_f32((-3.0 + u * 8.0) as f32));
    assert_eq!(*halves.read::<f16>().unwrap(), expected);
    let other = empty(6, DType::F64);
    ops::fill_uniform(&other, -1.0, 1.0, 43).unwrap();
    assert_ne!(*row.read::<f64>().unwrap(), *other.read::<f64>().unwrap());
}

#[test]
fn a_normal_fill_pairs_its_values_in_a_fixed_order() {
    for numel in 1..=6 {
        // Of an odd number, the last pair's second is not used.
        let row = empty(numel, DType::F32);
        ops::fill_normal(&row, 0.0, 1.0, 42).unwrap();
        let bits: Vec<u32> = row
            .read::<f32>()
            .unwrap()
            .iter()
            .map(|z| z.to_bits())
            .collect();
        assert_eq!(bits, NORMALS[..numel]);
    }
    let (row, scaled) = (empty(6, DType::F64), empty(6, DType::F64));
    ops::fill_normal(&row, 0.0, 1.0, 42).unwrap();
    ops::fill_normal(&scaled, 3.0, 0.5, 42).unwrap();
    let expected: Vec<f64> = row
        .read::<f64>()
        .unwrap()
        .iter()
        .map(|z| 3.0 + 0.5 * z)
        .collect();
    assert_eq!(*scaled.read::<f64>().unwrap(), expected);
    // Moments of many.
    let many = empty(100_000, DType::F64);
    ops::fill_normal(&many, 2.0, 3.0, 1).unwrap();
    let values = many.read::<f64>().unwrap();
    let mean = values.iter().sum::<f64>() / 1e5;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 1e5;
    assert!(
        (mean - 2.0).abs() < 0.05 && (variance - 9.0).abs() < 0.2,
        "{mean} {variance}"
    );
}

#[test]
fn a_deviation_of_0_and_a_range_of_none_give_one_value() {
    for dtype in FLOATS {
        let row = empty(5, dtype);
        ops::fill_normal(&row, 1.5, 0.0, 1).unwrap();
        let expected = ops::full([5], 1.5, dtype, cpu()).unwrap();
        assert!(ops::allclose(&row, &expected, None).unwrap().max_abs_diff == 0.0);
        ops::fill_uniform(&row, 1.5, 1.5, 1).unwrap();
        assert!(ops::allclose(&row, &expected, None).unwrap().max_abs_diff == 0.0);
    }
}

#[test]
fn seeded_fills_go_in_row_major_order_of_the_index() {
    for fill in [ops::fill_uniform, ops::fill_normal] {
        let row = empty(6, DType::F32);
        fill(&row, 0.0, 1.0, 7).unwrap();
        let expected = row.read::<f32>().unwrap().to_vec();
        let whole = Tensor::zeros([3, 4], DType::F32, cpu()).unwrap();
        let view = whole.slice(1, 1, 3).unwrap().transpose(0, 1).unwrap();
        fill(&view, 0.0, 1.0, 7).unwrap();
        for (at, expected) in expected.iter().enumerate() {
            assert_eq!(view.item::<f32>(&[at / 3, at % 3]), *expected);
        }
        let untouched = whole.slice(1, 0, 1).unwrap();
        assert!((0..3).all(|row| untouched.item::<f32>(&[row, 0]) == 0.0));
    }
}

#[test]
fn only_floats_are_filled_at_random() {
    for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_reserved()) {
        let row = Tensor::zeros([3], dtype, cpu()).unwrap();
        if FLOATS.contains(&dtype) {
            ops::fill_uniform(&row, 0.0, 1.0, 1).unwrap();
            ops::fill_normal(&row, 0.0, 1.0, 1).unwrap();
        } else {
            let refused = TensorError::NotFloatingPoint { dtype };
            // Before the arguments are looked at.
            assert_eq!(ops::fill_uniform(&row, 2.0, 1.0, 1).unwrap_err(), refused);
            assert_eq!(
                ops::fill_normal(&row, f64::NAN, 1.0, 1).unwrap_err(),
                refused
            );
            assert!(row.read_bytes().unwrap().iter().all(|&byte| byte == 0));
        }
    }
}

#[test]
fn a_uniform_range_is_finite_and_not_inverted() {
    let row = tensor::<f32>(&[2], &[1.0, 2.0]);
    for (low, high) in [
        (1.0, 0.0),
        (f64::NAN, 1.0),
        (0.0, f64::NAN),
        (f64::NEG_INFINITY, 0.0),
        (0.0, f64::INFINITY),
        (f64::INFINITY, f64::INFINITY),
        // Each finite, their distance is not.
        (-1.7e308, 1.7e308),
    ] {
        let error = ops::fill_uniform(&row, low, high, 1).unwrap_err();
        let (low, high) = (low.into(), high.into());
        assert_eq!(error, TensorError::BadUniform { low, high });
    }
    assert_eq!(
        *row.read::<f32>().unwrap(),
        [1.0, 2.0],
        "nothing was written"
    );
}

#[test]
fn a_mean_is_finite_and_a_deviation_not_negative() {
    let row = tensor::<f32>(&[2], &[1.0, 2.0]);
    for (mean, stddev) in [
        (f64::NAN, 1.0),
        (f64::INFINITY, 1.0),
        (f64::NEG_INFINITY, 1.0),
        (0.0, -1e-300),
        (0.0, f64::NAN),
        (0.0, f64::INFINITY),
    ] {
        let error = ops::fill_normal(&row, mean, stddev, 1).unwrap_err();
        let (mean, stddev) = (mean.into(), stddev.into());
        assert_eq!(error, TensorError::BadNormal { mean, stddev });
    }
    assert_eq!(
        *row.read::<f32>().unwrap(),
        [1.0, 2.0],
        "nothing was written"
    );
}

#[test]
fn fills_are_refused_where_somebody_is_at_the_bytes() {
    let row = empty(3, DType::F32);
    let writer = row.write::<f32>().unwrap();
    let busy = TensorError::from(BorrowError::Writing {
        storage: row.storage().id(),
    });
    assert_eq!(ops::fill_uniform(&row, 0.0, 1.0, 1).unwrap_err(), busy);
    assert_eq!(ops::fill_normal(&row, 0.0, 1.0, 1).unwrap_err(), busy);
    drop(writer);
    row.freeze().unwrap();
    let frozen = TensorError::from(BorrowError::Frozen {
        storage: row.storage().id(),
    });
    assert_eq!(ops::fill(&row, 1).unwrap_err(), frozen);
    assert_eq!(ops::fill_uniform(&row, 0.0, 1.0, 1).unwrap_err(), frozen);
    assert_eq!(ops::fill_normal(&row, 0.0, 1.0, 1).unwrap_err(), frozen);
}
