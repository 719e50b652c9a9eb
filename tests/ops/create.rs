//! `zeros`, `ones`, `full` and `arange`.

use tenslab::memory::{AllocError, SharedAllocator, SlabAllocator, cpu};
use tenslab::ops::Number;
use tenslab::tensor::TensorError;
use tenslab::types::half::{bf16_from_f32, f16_from_f32};
use tenslab::{Bool8, DType, Element, Tensor, bf16, f16, ops};

fn held<T: Element>(tensor: &Tensor) -> Vec<T> {
    tensor.read::<T>().unwrap().to_vec()
}

fn usable() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|dtype| !dtype.is_reserved())
}

fn reserved() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|dtype| dtype.is_reserved())
}

fn exhausted() -> SharedAllocator {
    SharedAllocator::new(SlabAllocator::new(64, 0).unwrap())
}

#[test]
fn zeros_and_ones_of_every_dtype() {
    for dtype in usable() {
        let zeros = ops::zeros([2, 3], dtype, cpu()).unwrap();
        let ones = ops::ones([2, 3], dtype, cpu()).unwrap();
        assert!(zeros.read_bytes().unwrap().iter().all(|&byte| byte == 0));
        let full = ops::full([2, 3], 1, dtype, cpu()).unwrap();
        assert_eq!(*ones.read_bytes().unwrap(), *full.read_bytes().unwrap());
        for made in [&zeros, &ones] {
            assert_eq!((made.dtype(), made.shape().dims()), (dtype, &[2, 3][..]));
            assert!(made.is_contiguous());
        }
        if dtype != DType::Bool {
            let wide = ops::cast(&ones, DType::F64, cpu()).unwrap();
            assert_eq!(held::<f64>(&wide), [1.0; 6], "{dtype}");
        }
    }
    let flags = ops::ones([2], DType::Bool, cpu()).unwrap();
    assert_eq!(held::<Bool8>(&flags), [Bool8::new(true); 2]);
    assert_eq!(
        held::<f32>(&ops::ones([1], DType::F32, cpu()).unwrap()),
        [1.0]
    );
    assert_eq!(
        ops::ones([1], DType::F16, cpu())
            .unwrap()
            .item::<f16>(&[0])
            .to_bits(),
        0x3c00
    );
    assert_eq!(
        ops::ones([1], DType::BF16, cpu())
            .unwrap()
            .item::<bf16>(&[0])
            .to_bits(),
        0x3f80
    );
}

#[test]
fn factories_fail_as_empty_does() {
    for dtype in reserved() {
        let unimplemented = TensorError::Unimplemented { dtype };
        assert_eq!(ops::zeros([2], dtype, cpu()).unwrap_err(), unimplemented);
        assert_eq!(ops::ones([2], dtype, cpu()).unwrap_err(), unimplemented);
        assert_eq!(ops::full([2], 0, dtype, cpu()).unwrap_err(), unimplemented);
        assert_eq!(
            ops::arange(0, 2, 1, dtype, cpu()).unwrap_err(),
            unimplemented
        );
    }
    let none = TensorError::from(AllocError::Exhausted { blocks: 0 });
    assert_eq!(ops::zeros([2], DType::F32, &exhausted()).unwrap_err(), none);
    assert_eq!(ops::ones([2], DType::F32, &exhausted()).unwrap_err(), none);
    assert_eq!(
        ops::full([2], 0, DType::F32, &exhausted()).unwrap_err(),
        none
    );
    assert_eq!(ops::arange(0, 2, 1, None, &exhausted()).unwrap_err(), none);
}

#[test]
fn a_full_value_is_checked_after_dtype_and_allocation() {
    for dtype in reserved() {
        let error = ops::full([2], f64::NAN, dtype, cpu()).unwrap_err();
        assert_eq!(error, TensorError::Unimplemented { dtype });
    }
    let error = ops::full([2], f64::NAN, DType::I8, &exhausted()).unwrap_err();
    assert_eq!(error, AllocError::Exhausted { blocks: 0 }.into());
}

#[test]
fn a_full_value_has_to_be_met_by_an_integer_dtype() {
    let refused = |value: Number, dtype| {
        let error = ops::full([2], value, dtype, cpu()).unwrap_err();
        assert_eq!(error, TensorError::ValueOutOfRange { value, dtype });
    };
    for dtype in usable().filter(|dtype| dtype.is_integral()) {
        for value in [
            0.5,
            -0.25,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1e30,
            -1e30,
        ] {
            refused(value.into(), dtype);
        }
    }
    /// The limits fit, one more does not, as an integer or as a float.
    macro_rules! limits {
        ($($type:ty),*) => {$(
            let dtype = <$type>::DTYPE;
            for value in [<$type>::MIN, <$type>::MAX] {
                assert_eq!(held::<$type>(&ops::full([2], value, dtype, cpu()).unwrap()), [value; 2]);
            }
            // One past the end: a power of two, so exact as an f64.
            let end = 2.0 * (<$type>::MAX / 2 + 1) as f64;
            refused(end.into(), dtype);
            if <$type>::MIN == 0 {
                refused((-1.0).into(), dtype);
                refused((-1_i64).into(), dtype);
            } else {
                let min = <$type>::MIN as f64;
                assert_eq!(ops::full([1], min, dtype, cpu()).unwrap().item::<$type>(&[0]), <$type>::MIN);
                refused((min * 1.01).trunc().into(), dtype);
            }
        )*};
    }
    limits!(i8, u8, i16, u16, i32, u32, i64, u64);
    refused(128.into(), DType::I8);
    refused((-129).into(), DType::I8);
    refused(256.into(), DType::U8);
    refused(u64::MAX.into(), DType::I64);
    assert_eq!(
        held::<i64>(&ops::full([1], -0.0, DType::I64, cpu()).unwrap()),
        [0]
    );
}

#[test]
fn a_full_boolean_is_0_or_1_and_nothing_else() {
    for (value, expected) in [(0.0, false), (1.0, true), (-0.0, false)] {
        let tensor = ops::full([2], value, DType::Bool, cpu()).unwrap();
        assert_eq!(held::<Bool8>(&tensor), [Bool8::new(expected); 2]);
        assert!(
            tensor
                .read_bytes()
                .unwrap()
                .iter()
                .all(|&byte| byte == u8::from(expected))
        );
    }
    assert_eq!(
        held::<Bool8>(&ops::full([1], true, DType::Bool, cpu()).unwrap()),
        [true.into()]
    );
    for value in [
        Number::from(2),
        (-1).into(),
        0.5.into(),
        f64::NAN.into(),
        u64::MAX.into(),
    ] {
        let error = ops::full([2], value, DType::Bool, cpu()).unwrap_err();
        assert_eq!(
            error,
            TensorError::ValueOutOfRange {
                value,
                dtype: DType::Bool
            }
        );
    }
}

#[test]
fn a_full_float_rounds_and_overflows_to_infinity() {
    let half = |value: f64| {
        ops::full([1], value, DType::F16, cpu())
            .unwrap()
            .item::<f16>(&[0])
            .to_bits()
    };
    assert_eq!(half(65519.5), 0x7bff);
    assert_eq!(half(65520.0), 0x7c00);
    assert_eq!(half(-1e300), 0xfc00);
    assert_eq!(half(f64::NAN) & 0x7c00, 0x7c00);
    // Through f32, as the contract says: once rounded it would be 3c01, and 7bff.
    assert_eq!(half(1.0 + 2_f64.powi(-11) + 2_f64.powi(-40)), 0x3c00);
    assert_eq!(half(65_519.999_999_999), 0x7c00);
    let brain = |value: Number| {
        ops::full([1], value, DType::BF16, cpu())
            .unwrap()
            .item::<bf16>(&[0])
            .to_bits()
    };
    assert_eq!(brain(4_311_744_513_i64.into()), 0x4f80);
    assert_eq!(brain(1e39.into()), 0x7f80);
    let wide = ops::full([1], 1e300, DType::F32, cpu()).unwrap();
    assert_eq!(held::<f32>(&wide), [f32::INFINITY]);
    let exact = ops::full([1], 0.1, DType::F64, cpu()).unwrap();
    assert_eq!(held::<f64>(&exact), [0.1]);
}

#[test]
fn arange_counts_up_and_down_and_stops_before_the_end() {
    for (start, end, step) in [
        (0, 10, 1),
        (0, 10, 3),
        (5, -5, -2),
        (-7, 8, 5),
        (3, 3, 1),
        (3, 3, -1),
        (0, 1, 100),
    ] {
        let mut expected = Vec::new();
        let mut value = start;
        while (step > 0 && value < end) || (step < 0 && value > end) {
            expected.push(value);
            value += step;
        }
        let row = ops::arange(start, end, step, DType::I64, cpu()).unwrap();
        assert_eq!(held::<i64>(&row), expected, "{start} {end} {step}");
    }
    // Away from the end: nothing.
    assert_eq!(
        ops::arange(0, 10, -1, None, cpu()).unwrap().shape().dims(),
        [0]
    );
    assert_eq!(
        ops::arange(0, -10, 1, None, cpu()).unwrap().shape().dims(),
        [0]
    );
}

#[test]
fn arange_is_of_int64_unless_another_is_named() {
    assert_eq!(
        ops::arange(0, 2, 1, None, cpu()).unwrap().dtype(),
        DType::I64
    );
    assert_eq!(
        ops::arange(0, 2, 1, DType::F32, cpu()).unwrap().dtype(),
        DType::F32
    );
}

#[test]
fn arange_refuses_what_it_cannot_count() {
    for (start, end, step) in [
        (0, 10, 0),
        (0, 0, 0),
        // end - start is no i64.
        (i64::MIN, i64::MAX, 1),
        (-1, i64::MAX, 1 << 62),
        (1, i64::MIN, -1),
        // A span of i64::MIN, which has 2^63 steps of -1.
        (0, i64::MIN, -1),
    ] {
        let error = ops::arange(start, end, step, None, cpu()).unwrap_err();
        assert_eq!(error, TensorError::BadSteps { start, end, step });
    }
    // Half as many would be an i64, and are refused for their bytes.
    let error = ops::arange(0, i64::MIN, -2, None, cpu()).unwrap_err();
    assert_eq!(
        error,
        TensorError::SizeOverflow {
            numel: 1 << 62,
            dtype: DType::I64
        }
    );
    let row = ops::arange(0, i64::MIN, i64::MIN, None, cpu()).unwrap();
    assert_eq!(held::<i64>(&row), [0]);
    let row = ops::arange(i64::MAX - 1, i64::MAX, 9, None, cpu()).unwrap();
    assert_eq!(held::<i64>(&row), [i64::MAX - 1]);
    let row = ops::arange(i64::MIN, -1, i64::MAX, None, cpu()).unwrap();
    assert_eq!(held::<i64>(&row), [i64::MIN]);
}

#[test]
fn arange_counts_first_then_asks_the_dtype_then_the_values() {
    let error = ops::arange(0, 1, 0, DType::I4, cpu()).unwrap_err();
    assert_eq!(
        error,
        TensorError::BadSteps {
            start: 0,
            end: 1,
            step: 0
        }
    );
    let error = ops::arange(0, 1000, 1, DType::I4, cpu()).unwrap_err();
    assert_eq!(error, TensorError::Unimplemented { dtype: DType::I4 });
    let error = ops::arange(1000, 1009, 1, DType::I8, &exhausted()).unwrap_err();
    assert_eq!(error, AllocError::Exhausted { blocks: 0 }.into());
}

#[test]
fn the_extremes_of_an_arange_have_to_fit() {
    let unfit = |start, end, step, dtype, extreme: i64| {
        let error = ops::arange(start, end, step, dtype, cpu()).unwrap_err();
        assert_eq!(
            error,
            TensorError::ValueOutOfRange {
                value: extreme.into(),
                dtype
            }
        );
    };
    assert_eq!(
        held::<i8>(&ops::arange(126, 128, 1, DType::I8, cpu()).unwrap()),
        [126, 127]
    );
    unfit(126, 129, 1, DType::I8, 128);
    unfit(-127, -130, -1, DType::I8, -129);
    unfit(-1, 3, 1, DType::U64, -1);
    unfit(1 << 40, 0, -1 << 39, DType::U32, 1 << 40);
    // The end itself is none of the values.
    assert_eq!(
        ops::arange(0, 256, 1, DType::U8, cpu())
            .unwrap()
            .item::<u8>(&[255]),
        255
    );
    let booleans = ops::arange(0, 2, 1, DType::Bool, cpu()).unwrap();
    assert_eq!(held::<Bool8>(&booleans), [false.into(), true.into()]);
    unfit(0, 3, 1, DType::Bool, 2);
}

#[test]
fn an_arange_of_floats_rounds_each_value_and_overflows_to_infinity() {
    let halves = ops::arange(65_519, 65_522, 1, DType::F16, cpu()).unwrap();
    let bits: Vec<u16> = held::<f16>(&halves)
        .iter()
        .map(|half| half.to_bits())
        .collect();
    assert_eq!(bits, [0x7bff, 0x7c00, 0x7c00]);
    let down = ops::arange(-65_520, -65_521, -1, DType::F16, cpu()).unwrap();
    assert_eq!(down.item::<f16>(&[0]).to_bits(), 0xfc00);
    for value in [2049_i64, 4_311_744_513, (1 << 53) + 1, i64::MAX - 1] {
        let one = |dtype| ops::arange(value, value + 1, 1, dtype, cpu()).unwrap();
        let single = value as f64 as f32;
        assert_eq!(held::<f64>(&one(DType::F64)), [value as f64]);
        assert_eq!(held::<f32>(&one(DType::F32)), [single]);
        assert_eq!(held::<f16>(&one(DType::F16)), [f16_from_f32(single)]);
        assert_eq!(held::<bf16>(&one(DType::BF16)), [bf16_from_f32(single)]);
    }
}

#[test]
fn a_number_is_equal_by_kind_and_bits() {
    assert_eq!(Number::from(f64::NAN), Number::from(f64::NAN));
    assert_ne!(Number::from(0.0), Number::from(-0.0));
    assert_ne!(Number::from(1_i8), Number::from(1_u8));
    assert_eq!(Number::from(true), Number::Unsigned(1));
    assert_eq!(Number::from(u64::MAX).to_f64(), 2_f64.powi(64));
    assert_eq!(Number::from(f16::from_bits(0x3e00)), Number::Float(1.5));
    assert_eq!(Number::from(u64::MAX).to_string(), u64::MAX.to_string());
}
