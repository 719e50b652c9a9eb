//! The dtypes that are named and sized, and of which no tensor can be made yet.
//!
//! ```text
//!   F8E4M3, I4, F8E5M2 ──▶ empty, zeros, from_storage, from_buffer, view_as_dtype, cast
//!                          all say Unimplemented, whatever else is wrong as well
//! ```
//!
//! The order is the contract's: that a dtype is reserved is said first. So each call here
//! has a second fault, which the same call with another dtype shows.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use tenslab::memory::AllocError;
use tenslab::tensor::TensorError;
use tenslab::{DType, SharedAllocator, SlabAllocator, Storage, Tensor, memory, ops};

const RESERVED: [DType; 3] = [DType::F8E4M3, DType::I4, DType::F8E5M2];

fn unimplemented(dtype: DType) -> TensorError {
    TensorError::Unimplemented { dtype }
}

/// Has no room for anything above 64 bytes.
fn tiny() -> SharedAllocator {
    SharedAllocator::new(SlabAllocator::new(64, 1).unwrap())
}

#[test]
fn reserved_dtypes_are_named_and_sized() {
    let found: Vec<DType> = DType::ALL
        .into_iter()
        .filter(|dtype| dtype.is_reserved())
        .collect();
    assert_eq!(found, RESERVED);
    assert_eq!(RESERVED.map(DType::bits), [8, 4, 8]);
    assert_eq!(RESERVED.map(DType::code), [8, 9, 15]);
    assert_eq!(DType::F8E4M3.bytes(), 1);
    for dtype in RESERVED {
        assert_eq!(dtype.name().parse::<DType>(), Ok(dtype));
    }
    assert_eq!(
        unimplemented(DType::I4).to_string(),
        "tensors of dtype int4 are not implemented"
    );
}

#[test]
fn no_factory_makes_a_tensor_of_a_reserved_dtype() {
    let slab = tiny();
    for dtype in RESERVED {
        for shape in [&[2][..], &[], &[0], &[1 << 20], &[usize::MAX / 2]] {
            let shape = tenslab::Shape::from_dims(shape).unwrap();
            let error = Err(unimplemented(dtype));
            assert_eq!(
                Tensor::empty(shape, dtype, &slab).map(drop),
                error,
                "{shape}"
            );
            assert_eq!(
                Tensor::zeros(shape, dtype, &slab).map(drop),
                error,
                "{shape}"
            );
        }
    }
    // The faults that come after.
    let large = Tensor::empty([1 << 20], DType::U8, &slab).map(drop);
    assert!(
        matches!(large, Err(TensorError::Alloc(AllocError::TooLarge { .. }))),
        "{large:?}"
    );
    let huge = Tensor::empty([usize::MAX / 2], DType::F16, &slab).map(drop);
    assert!(
        matches!(huge, Err(TensorError::SizeOverflow { .. })),
        "{huge:?}"
    );
}

#[test]
fn no_storage_or_buffer_is_seen_as_a_reserved_dtype() {
    let storage = Storage::from(memory::cpu().allocate(64, 64).unwrap());
    for dtype in RESERVED {
        for offset in [0, 1, 65, usize::MAX] {
            let error = Err(unimplemented(dtype));
            let found = Tensor::from_storage(&storage, offset, [8], dtype).map(drop);
            assert_eq!(found, error, "{dtype} at {offset}");
            let buffer = memory::cpu().allocate(64, 64).unwrap();
            assert_eq!(
                Tensor::from_buffer(buffer, offset, [8], dtype).map(drop),
                error
            );
        }
    }
    let outside = Tensor::from_storage(&storage, 65, [8], DType::U8).map(drop);
    assert!(
        matches!(outside, Err(TensorError::OutOfBounds { .. })),
        "{outside:?}"
    );
}

/// Width alone would let int8 through as fp8.
#[test]
fn no_view_is_of_a_reserved_dtype_also_where_the_width_is_right() {
    for from in [DType::I8, DType::F32, DType::I64] {
        let tensor = Tensor::zeros([8], from, memory::cpu()).unwrap();
        for dtype in RESERVED {
            let found = tensor.view_as_dtype(dtype).map(drop);
            assert_eq!(found, Err(unimplemented(dtype)), "{from} as {dtype}");
        }
    }
    let wide = Tensor::zeros([8], DType::F32, memory::cpu()).unwrap();
    let found = wide.view_as_dtype(DType::F16).map(drop);
    assert!(
        matches!(found, Err(TensorError::WidthMismatch { .. })),
        "{found:?}"
    );
}

/// Also from a boolean, which is cast to nothing, while somebody writes to the source, and
/// where there is no room: the target is looked at first.
#[test]
fn no_cast_ends_in_a_reserved_dtype_whatever_else_is_wrong() {
    let slab = tiny();
    for from in [DType::Bool, DType::F32] {
        let source = Tensor::zeros([1000], from, memory::cpu()).unwrap();
        let bytes = Tensor::from_storage(source.storage(), 0, [1000], DType::U8).unwrap();
        let _writer = bytes.write::<u8>().unwrap();
        for dtype in RESERVED {
            let found = ops::cast(&source, dtype, &slab).map(drop);
            assert_eq!(found, Err(unimplemented(dtype)), "{from} to {dtype}");
        }
    }
    let boolean = Tensor::zeros([8], DType::Bool, memory::cpu()).unwrap();
    let found = ops::cast(&boolean, DType::F32, memory::cpu()).map(drop);
    assert!(
        matches!(found, Err(TensorError::UnsupportedCast { .. })),
        "{found:?}"
    );
}
