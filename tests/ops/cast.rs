//! `cast`: bits between floats of up to 32 bits, values between all others.
//!
//! The conversions themselves are checked in `tests/half.rs` and against NumPy in
//! `golden.rs`; here it is what they do with layouts, and what they refuse.

use tenslab::memory::{AllocError, BorrowError, SharedAllocator, SlabAllocator, Storage, cpu};
use tenslab::ops::Number;
use tenslab::tensor::TensorError;
use tenslab::types::half::{
    bf16_bits_to_f32_bits, bf16_from_f32, f16_bits_to_f32_bits, f16_from_f32,
    f32_bits_to_bf16_bits, f32_bits_to_f16_bits,
};
use tenslab::{DType, Element, Tensor, bf16, f16, ops};

use super::tensor;

/// The middle column of three: a strided view of all these elements.
fn middle_column<T: Element>(all: &[T]) -> Tensor {
    let padded: Vec<T> = all.iter().flat_map(|&e| [all[0], e, all[0]]).collect();
    let view = tensor::<T>(&[all.len(), 3], &padded)
        .slice(1, 1, 2)
        .unwrap();
    assert!(!view.is_contiguous());
    view
}

fn same_bits<S: Element, D: Element>(all: &[S], expected: &[D], to_bits: fn(&D) -> u32) {
    let packed = tensor::<S>(&[all.len(), 1], all);
    for src in [packed, middle_column(all)] {
        let cast = ops::cast(&src, D::DTYPE, cpu()).unwrap();
        assert!(cast.is_contiguous());
        assert_eq!((cast.shape(), cast.dtype()), (src.shape(), D::DTYPE));
        assert!(!cast.storage().is_same(src.storage()));
        let found = cast.read::<D>().unwrap();
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            let (from, to) = (S::DTYPE, D::DTYPE);
            assert_eq!(
                to_bits(found),
                to_bits(expected),
                "{from} to {to}, element {at}"
            );
        }
    }
}

#[test]
fn every_cast_of_every_half_is_exact_bit_for_bit() {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    let halves: Vec<f16> = bits.iter().copied().map(f16::from_bits).collect();
    let brains: Vec<bf16> = bits.iter().copied().map(bf16::from_bits).collect();
    let as_f16 = |half: &f16| u32::from(half.to_bits());
    let as_bf16 = |half: &bf16| u32::from(half.to_bits());
    let wide = |bits: u32| f32::from_bits(bits);

    let from_f16: Vec<u32> = bits
        .iter()
        .map(|&bits| f16_bits_to_f32_bits(bits))
        .collect();
    let from_bf16: Vec<u32> = bits
        .iter()
        .map(|&bits| bf16_bits_to_f32_bits(bits))
        .collect();
    let widened: Vec<f32> = from_f16.iter().copied().map(wide).collect();
    same_bits(&halves, &widened, |element| element.to_bits());
    same_bits(&widened, &halves, as_f16);
    let to_bf16 = |&bits: &u32| bf16::from_bits(f32_bits_to_bf16_bits(bits));
    same_bits(
        &halves,
        &from_f16.iter().map(to_bf16).collect::<Vec<_>>(),
        as_bf16,
    );

    let widened: Vec<f32> = from_bf16.iter().copied().map(wide).collect();
    same_bits(&brains, &widened, |element| element.to_bits());
    same_bits(&widened, &brains, as_bf16);
    let to_f16 = |&bits: &u32| f16::from_bits(f32_bits_to_f16_bits(bits));
    same_bits(
        &brains,
        &from_bf16.iter().map(to_f16).collect::<Vec<_>>(),
        as_f16,
    );

    same_bits(&halves, &halves, as_f16);
    same_bits(&brains, &brains, as_bf16);
}

/// Numbers between the halves: ties, overflow, subnormals and NaNs are among them. (A
/// step that is prime reaches every exponent and every low bit.)
#[test]
fn a_cast_rounds_as_the_half_conversions_do() {
    let bits: Vec<u32> = (0..=u32::MAX).step_by(16_411).collect();
    let wide: Vec<f32> = bits.iter().copied().map(f32::from_bits).collect();
    let halves: Vec<f16> = wide.iter().copied().map(f16_from_f32).collect();
    let brains: Vec<bf16> = wide.iter().copied().map(bf16_from_f32).collect();
    same_bits(&wide, &halves, |half| u32::from(half.to_bits()));
    same_bits(&wide, &brains, |half| u32::from(half.to_bits()));
}

#[test]
fn a_signalling_nan_stays_signalling_in_a_strided_cast() {
    let narrow = middle_column(&[f16::from_bits(0x7d00), f16::from_bits(0xfd55)]);
    let wide = ops::cast(&narrow, DType::F32, cpu()).unwrap();
    let bits = wide.view_as_dtype(DType::U32).unwrap();
    assert_eq!(*bits.read::<u32>().unwrap(), [0x7fa0_0000, 0xffaa_a000]);
    let back = ops::cast(&wide, DType::F16, cpu()).unwrap();
    let bits = back.view_as_dtype(DType::U16).unwrap();
    assert_eq!(*bits.read::<u16>().unwrap(), [0x7d00, 0xfd55]);
}

/// Every dtype that a cast takes.
fn numbers() -> impl Iterator<Item = DType> + Clone {
    DType::ALL
        .into_iter()
        .filter(|dtype| !dtype.is_reserved() && *dtype != DType::Bool)
}

#[test]
fn a_cast_to_the_same_dtype_is_a_deep_copy() {
    for dtype in numbers() {
        let src = ops::arange(0, 12, 1, dtype, cpu())
            .unwrap()
            .reshape([3, 4])
            .unwrap();
        let part = src.slice(1, 1, 3).unwrap();
        for src in [&src, &part] {
            let cast = ops::cast(src, dtype, cpu()).unwrap();
            assert!(cast.is_contiguous() && !cast.storage().is_same(src.storage()));
            assert_eq!((cast.shape(), cast.dtype()), (src.shape(), dtype));
            assert!(ops::allclose(&cast, src, None).unwrap().max_abs_diff == 0.0);
        }
    }
    let src = middle_column(&[1_i64, -2, i64::MIN]);
    let cast = ops::cast(&src, DType::I64, cpu()).unwrap();
    assert_eq!(*cast.read::<i64>().unwrap(), [1, -2, i64::MIN]);
}

#[test]
fn all_numbers_are_cast_to_all_others_and_booleans_to_nothing() {
    let slab = SharedAllocator::new(SlabAllocator::new(64, 0).unwrap());
    for from in DType::ALL.into_iter().filter(|dtype| !dtype.is_reserved()) {
        let src = ops::ones([2], from, cpu()).unwrap();
        for to in DType::ALL {
            // Refused before anything is allocated.
            let refused = if to.is_reserved() {
                // Also from a boolean: the reserved target wins.
                TensorError::Unimplemented { dtype: to }
            } else if from == DType::Bool || to == DType::Bool {
                TensorError::UnsupportedCast { from, to }
            } else {
                let cast = ops::cast(&src, to, cpu()).unwrap();
                let ones = ops::ones([2], to, cpu()).unwrap();
                assert_eq!(ops::allclose(&cast, &ones, None).unwrap().mismatches, 0);
                AllocError::Exhausted { blocks: 0 }.into()
            };
            assert_eq!(ops::cast(&src, to, &slab).unwrap_err(), refused);
        }
    }
}

/// NaN payloads beyond `f32`, `f16` and `bf16` are nobody's promise, that it stays one is.
#[test]
fn a_nan_stays_one_in_every_cast_between_floats() {
    let floats = numbers().filter(|dtype| dtype.is_floating_point());
    for from in floats.clone() {
        let src = ops::full([3], f64::NAN, from, cpu()).unwrap();
        for to in floats.clone() {
            let cast = ops::cast(&src, to, cpu()).unwrap();
            let wide = ops::cast(&cast, DType::F64, cpu()).unwrap();
            assert!(
                wide.read::<f64>()
                    .unwrap()
                    .iter()
                    .all(|value| value.is_nan())
            );
        }
    }
}

#[test]
fn floats_become_infinite_and_integers_lose_bits_on_the_way_to_floats() {
    let large = tensor::<f64>(&[4], &[1e39, -1e39, 65_520.0, f64::INFINITY]);
    let single = ops::cast(&large, DType::F32, cpu()).unwrap();
    let inf = f32::INFINITY;
    assert_eq!(*single.read::<f32>().unwrap(), [inf, -inf, 65_520.0, inf]);
    let half = ops::cast(&large, DType::F16, cpu()).unwrap();
    let bits: Vec<u16> = half
        .read::<f16>()
        .unwrap()
        .iter()
        .map(|half| half.to_bits())
        .collect();
    assert_eq!(bits, [0x7c00, 0xfc00, 0x7c00, 0x7c00]);

    let wide = tensor::<i64>(&[3], &[(1 << 53) + 1, 4_311_744_513, i64::MIN]);
    let double = ops::cast(&wide, DType::F64, cpu()).unwrap();
    assert_eq!(
        double.item::<f64>(&[0]),
        2_f64.powi(53),
        "to nearest, ties to even"
    );
    let brain = ops::cast(&wide, DType::BF16, cpu()).unwrap();
    // Through f64 and f32; rounded once it would be 4f81.
    assert_eq!(brain.item::<bf16>(&[1]).to_bits(), 0x4f80);
    assert_eq!(brain.item::<bf16>(&[2]).to_bits(), 0xdf00);
    let whole = tensor::<i64>(&[3], &[2049, 65_519, 65_520]);
    let half = ops::cast(&whole, DType::F16, cpu()).unwrap();
    let bits: Vec<u16> = half
        .read::<f16>()
        .unwrap()
        .iter()
        .map(|half| half.to_bits())
        .collect();
    assert_eq!(bits, [0x6800, 0x7bff, 0x7c00]);
}

/// As the factories and fills do, so a value is the same whichever way it comes.
#[test]
fn a_cast_narrows_as_the_factories_do() {
    let values = [
        0.1,
        1.0 + 2_f64.powi(-11) + 2_f64.powi(-40),
        65_519.999_999_999,
        1e-8,
        -1e300,
    ];
    for value in values {
        let src = tensor::<f64>(&[1], &[value]);
        for to in numbers().filter(|dtype| dtype.is_floating_point()) {
            let (cast, full) = (ops::cast(&src, to, cpu()), ops::full([1], value, to, cpu()));
            assert_eq!(
                *cast.unwrap().read_bytes().unwrap(),
                *full.unwrap().read_bytes().unwrap()
            );
        }
    }
}

#[test]
fn floats_are_cut_towards_zero_on_the_way_to_integers() {
    let src = tensor::<f32>(&[6], &[1.9, -1.9, -0.9, 127.9, -128.9, -0.0]);
    let cast = ops::cast(&src, DType::I8, cpu()).unwrap();
    assert_eq!(*cast.read::<i8>().unwrap(), [1, -1, 0, 127, -128, 0]);
    let src = tensor::<f64>(&[3], &[-0.999, 255.999, 0.5]);
    let cast = ops::cast(&src, DType::U8, cpu()).unwrap();
    assert_eq!(*cast.read::<u8>().unwrap(), [0, 255, 0]);
    let limit = tensor::<f64>(
        &[2],
        &[9_223_372_036_854_774_784.0, -9_223_372_036_854_775_808.0],
    );
    let cast = ops::cast(&limit, DType::I64, cpu()).unwrap();
    assert_eq!(*cast.read::<i64>().unwrap(), [i64::MAX - 1023, i64::MIN]);
}

#[test]
fn what_no_integer_holds_is_refused_with_its_value_and_index() {
    let refused = |src: &Tensor, dtype, value: Number, index: &[usize]| {
        let error = ops::cast(src, dtype, cpu()).unwrap_err();
        let index = index.into();
        assert_eq!(
            error,
            TensorError::ElementOutOfRange {
                value,
                dtype,
                index
            }
        );
    };
    for value in [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        128.0,
        -129.0,
        3e38,
    ] {
        let src = tensor::<f32>(&[2, 2], &[0.0, 1.0, value, f32::NAN]);
        refused(&src, DType::I8, value.into(), &[1, 0]);
        // By logical index, not by place: the other one comes first now.
        let first = if value.is_nan() { value } else { f32::NAN };
        let flipped = ops::cat(
            &[&src.slice(0, 1, 2).unwrap(), &src.slice(0, 0, 1).unwrap()],
            0,
            cpu(),
        );
        let flipped = flipped.unwrap();
        refused(
            &flipped.transpose(0, 1).unwrap(),
            DType::I8,
            value.into(),
            &[0, 0],
        );
        refused(
            &flipped.slice(1, 1, 2).unwrap(),
            DType::I8,
            first.into(),
            &[0, 0],
        );
    }
    // From integer to integer too, exactly.
    refused(
        &tensor::<i64>(&[2], &[127, 128]),
        DType::I8,
        128.into(),
        &[1],
    );
    refused(&tensor::<i8>(&[], &[-1]), DType::U64, (-1).into(), &[]);
    refused(
        &tensor::<u64>(&[1], &[u64::MAX]),
        DType::I64,
        u64::MAX.into(),
        &[0],
    );
    refused(
        &tensor::<u64>(&[1], &[1 << 63]),
        DType::I64,
        (1_u64 << 63).into(),
        &[0],
    );
    refused(
        &tensor::<f64>(&[1], &[2_f64.powi(63)]),
        DType::I64,
        2_f64.powi(63).into(),
        &[0],
    );
    refused(
        &tensor::<f64>(&[1], &[2_f64.powi(64)]),
        DType::U64,
        2_f64.powi(64).into(),
        &[0],
    );
    refused(
        &tensor(&[1], &[f16::from_bits(0x7c00)]),
        DType::I64,
        f64::INFINITY.into(),
        &[0],
    );
    let error = ops::cast(&tensor::<i32>(&[1, 2], &[0, -7]), DType::U16, cpu()).unwrap_err();
    assert_eq!(error.to_string(), "-7 at [0, 1] is no uint16");
}

/// Turned in tiles, so that the first tile is not where the first element is.
#[test]
fn the_first_of_several_unfit_elements_is_named_whatever_the_layout() {
    let (rows, columns) = (70, 50);
    let src = Tensor::zeros([columns, rows], DType::I32, cpu()).unwrap();
    let turned = src.transpose(0, 1).unwrap();
    src.write::<i32>().unwrap()[40 * rows + 1] = 1000; // [1, 40]: another tile,
    src.write::<i32>().unwrap()[2 * rows + 9] = 2000; // [9, 2]: the first tile
    let error = ops::cast(&turned, DType::I8, cpu()).unwrap_err();
    let (value, dtype, index) = (1000.into(), DType::I8, [1, 40].into());
    assert_eq!(
        error,
        TensorError::ElementOutOfRange {
            value,
            dtype,
            index
        }
    );
}

/// Large enough to be shared among threads, where there are any.
#[test]
fn a_large_cast_finds_the_first_unfit_element_too() {
    let src = Tensor::zeros([3, 1 << 20], DType::I32, cpu()).unwrap();
    assert!(
        ops::cast(&src, DType::U8, cpu())
            .unwrap()
            .read::<u8>()
            .unwrap()
            .iter()
            .all(|&e| e == 0)
    );
    for (row, column) in [(2, 77), (1, 1 << 19), (0, (1 << 20) - 1)] {
        src.write::<i32>().unwrap()[(row << 20) + column] = -1;
        let error = ops::cast(&src, DType::U8, cpu()).unwrap_err();
        let (value, dtype, index) = ((-1).into(), DType::U8, [row, column].into());
        assert_eq!(
            error,
            TensorError::ElementOutOfRange {
                value,
                dtype,
                index
            }
        );
    }
}

#[test]
fn misaligned_sources_and_those_without_elements_are_cast() {
    let storage = Storage::from(cpu().allocate_zeroed(1024, 64).unwrap());
    let odd = Tensor::from_storage(&storage, 5, [10, 20], DType::F32).unwrap();
    let src = ops::arange(0, 200, 1, DType::F32, cpu())
        .unwrap()
        .reshape([10, 20])
        .unwrap();
    ops::copy(&odd, &src).unwrap();
    for (odd, src) in [
        (odd.clone(), src.clone()),
        (odd.transpose(0, 1).unwrap(), src.transpose(0, 1).unwrap()),
        (odd.slice(1, 3, 4).unwrap(), src.slice(1, 3, 4).unwrap()),
    ] {
        let (found, expected) = (
            ops::cast(&odd, DType::F16, cpu()),
            ops::cast(&src, DType::F16, cpu()),
        );
        assert_eq!(
            *found.unwrap().read_bytes().unwrap(),
            *expected.unwrap().read_bytes().unwrap()
        );
    }
    let error = ops::cast(&odd, DType::I8, cpu()).unwrap_err();
    let (value, dtype, index) = (128.0.into(), DType::I8, [6, 8].into());
    assert_eq!(
        error,
        TensorError::ElementOutOfRange {
            value,
            dtype,
            index
        }
    );
    let none = Tensor::zeros([1 << 40, 0], DType::F32, cpu()).unwrap();
    assert_eq!(
        ops::cast(&none, DType::I8, cpu()).unwrap().shape(),
        none.shape()
    );
}

#[test]
fn a_source_that_is_written_to_is_not_cast() {
    let src = tensor::<f32>(&[2], &[1.0, 2.0]);
    let _writer = src.write::<f32>().unwrap();
    let busy = TensorError::from(BorrowError::Writing {
        storage: src.storage().id(),
    });
    for to in [DType::F32, DType::F16, DType::I8] {
        assert_eq!(ops::cast(&src, to, cpu()).unwrap_err(), busy);
    }
}
