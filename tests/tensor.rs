//! Tensors and views: the same bytes, seen in many ways, and never copied.
//!
//! ```text
//!   storage    0  1  2  3 | 4  5  6  7 | 8  9 10 11      shape [3, 4], strides [4, 1]
//!   slice(0, 1, 3)          4  5  6  7 | 8  9 10 11      [2, 4]  [4, 1]  at element 4
//!   slice(1, 1, 3)    1  2      5  6       9 10          [3, 2]  [4, 1]  at element 1
//!   reshape([2, 6])   0  1  2  3   4  5 | 6 …            [2, 6]  [6, 1]
//! ```
//!
//! The table of errors is §7 of the tensor contract: what flows from files and requests
//! is an `Err` with its numbers, what stands in the source is a panic.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use tenslab::memory::{AllocError, SharedAllocator, SlabAllocator, Storage, cpu};
use tenslab::tensor::TensorError;
use tenslab::types::TypeError;
use tenslab::{DType, Device, Shape, Tensor, bf16, f16};

/// 0, 1, 2, … in row-major order.
fn counted(dims: &[usize]) -> Tensor {
    let shape = Shape::from_dims(dims).unwrap();
    let tensor = Tensor::empty(shape, DType::I32, cpu()).unwrap();
    let mut elements = tensor.write::<i32>().unwrap();
    for (at, element) in elements.iter_mut().enumerate() {
        *element = i32::try_from(at).unwrap();
    }
    drop(elements);
    tensor
}

/// All elements in row-major order of the logical index.
fn logical(tensor: &Tensor) -> Vec<i32> {
    let dims = tensor.shape().dims().to_vec();
    let mut all = Vec::new();
    for mut at in 0..tensor.numel() {
        let mut index = vec![0; dims.len()];
        for (dim, &size) in dims.iter().enumerate().rev() {
            index[dim] = at % size;
            at /= size;
        }
        all.push(tensor.item::<i32>(&index));
    }
    all
}

#[test]
fn a_new_tensor_is_packed_aligned_and_says_what_it_is() {
    for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_reserved()) {
        let empty = Tensor::empty([2, 3, 4], dtype, cpu()).unwrap();
        let zeros = Tensor::zeros([2, 3, 4], dtype, cpu()).unwrap();
        for tensor in [&empty, &zeros] {
            assert_eq!(tensor.shape(), &Shape::from([2, 3, 4]));
            assert_eq!(tensor.strides().values(), [12, 4, 1]);
            assert_eq!((tensor.dtype(), tensor.device()), (dtype, Device::Cpu));
            assert_eq!((tensor.rank(), tensor.numel()), (3, 24));
            assert_eq!(tensor.nbytes(), 24 * dtype.bytes());
            assert_eq!(tensor.storage().len(), tensor.nbytes());
            assert_eq!(tensor.byte_offset(), 0);
            assert!(tensor.is_contiguous() && !tensor.is_frozen());
            assert!(tensor.storage().as_ptr().addr().is_multiple_of(64));
        }
        assert!(zeros.read_bytes().unwrap().iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_scalar_has_one_element_and_no_dimension() {
    let scalar = Tensor::zeros([], DType::F32, cpu()).unwrap();
    assert_eq!((scalar.rank(), scalar.numel(), scalar.nbytes()), (0, 1, 4));
    scalar.write::<f32>().unwrap()[0] = 3.5;
    assert_eq!(scalar.item::<f32>(&[]), 3.5);
    assert_eq!(scalar.reshape([1, 1]).unwrap().item::<f32>(&[0, 0]), 3.5);
    let none = scalar.slice(0, 0, 0).unwrap_err();
    assert_eq!(none, TensorError::NoSuchDim { dim: 0, rank: 0 });
}

#[test]
fn an_outer_slice_is_contiguous_and_an_inner_one_is_not() {
    let matrix = counted(&[3, 4]);
    let rows = matrix.slice(0, 1, 3).unwrap();
    assert_eq!(rows.shape().dims(), [2, 4]);
    assert_eq!(rows.strides().values(), [4, 1]);
    assert_eq!(rows.byte_offset(), 16);
    assert!(rows.is_contiguous());
    assert_eq!(*rows.read::<i32>().unwrap(), [4, 5, 6, 7, 8, 9, 10, 11]);

    let columns = matrix.slice(1, 1, 3).unwrap();
    assert_eq!(columns.shape().dims(), [3, 2]);
    assert_eq!(columns.strides().values(), [4, 1]);
    assert_eq!((columns.byte_offset(), columns.nbytes()), (4, 24));
    assert!(!columns.is_contiguous());
    assert_eq!(logical(&columns), [1, 2, 5, 6, 9, 10]);

    // One row of an inner slice is packed again.
    let row = columns.slice(0, 2, 3).unwrap();
    assert!(row.is_contiguous());
    assert_eq!(*row.read::<i32>().unwrap(), [9, 10]);
}

#[test]
fn views_of_views_compose() {
    let cube = counted(&[4, 5, 6]);
    let view = cube.slice(0, 1, 4).unwrap();
    let view = view.slice(2, 2, 5).unwrap();
    let view = view.slice(1, 3, 5).unwrap();
    let view = view.slice(0, 1, 2).unwrap();
    assert_eq!(view.shape().dims(), [1, 2, 3]);
    assert_eq!(view.byte_offset(), 4 * (2 * 30 + 3 * 6 + 2));
    assert_eq!(logical(&view), [80, 81, 82, 86, 87, 88]);
    let bits = view.view_as_dtype(DType::U32).unwrap();
    assert_eq!(bits.item::<u32>(&[0, 1, 2]), 88);
    assert!(view.storage().is_same(cube.storage()));
}

#[test]
fn every_slice_of_a_small_tensor_holds_what_it_should() {
    let dims = [3, 2, 4];
    let cube = counted(&dims);
    for dim in 0..3 {
        for start in 0..=dims[dim] {
            for end in start..=dims[dim] {
                let view = cube.slice(dim, start, end).unwrap();
                let expected: Vec<i32> = (0..24)
                    .filter(|at| {
                        let index = [at / 8, at / 4 % 2, at % 4][dim];
                        (start..end).contains(&index)
                    })
                    .map(|at| i32::try_from(at).unwrap())
                    .collect();
                assert_eq!(logical(&view), expected, "{start}..{end} of {dim}");
                assert_eq!(view.strides(), cube.strides());
                let mut shape = dims;
                shape[dim] = end - start;
                assert_eq!(view.shape().dims(), shape);
                // One without elements stays where it is.
                let skipped = if start == end { 0 } else { start };
                assert_eq!(view.byte_offset(), skipped * [8, 4, 1][dim] * 4);
            }
        }
    }
}

#[test]
fn a_write_through_one_view_is_seen_through_all() {
    let matrix = counted(&[3, 4]);
    let clone = matrix.clone();
    let row = matrix.slice(0, 2, 3).unwrap();
    let column = matrix.slice(1, 3, 4).unwrap();
    row.write::<i32>().unwrap()[3] = -7;
    assert_eq!(column.item::<i32>(&[2, 0]), -7);
    assert_eq!(clone.read::<i32>().unwrap()[11], -7);
    assert_eq!(matrix.reshape([12]).unwrap().item::<i32>(&[11]), -7);
    let float = matrix.view_as_dtype(DType::F32).unwrap();
    assert_eq!(
        float.item::<f32>(&[2, 3]).to_bits(),
        (-7_i32).cast_unsigned()
    );
}

#[test]
fn reshape_shares_the_bytes_and_never_copies() {
    let cube = counted(&[2, 3, 4]);
    for dims in [
        &[24][..],
        &[4, 6],
        &[1, 24, 1],
        &[2, 2, 2, 3],
        &[24, 1, 1, 1, 1, 1, 1, 1],
    ] {
        let view = cube.reshape(Shape::from_dims(dims).unwrap()).unwrap();
        assert_eq!(view.shape().dims(), dims);
        assert_eq!(view.data_ptr::<i32>(), cube.data_ptr::<i32>());
        assert_eq!(logical(&view), logical(&cube));
    }
    let rows = cube.slice(0, 1, 2).unwrap();
    assert_eq!(
        logical(&rows.reshape([12]).unwrap()),
        (12..24).collect::<Vec<_>>()
    );

    let (from, to) = (24, 25);
    let error = cube.reshape([5, 5]).unwrap_err();
    assert_eq!(error, TensorError::NumelMismatch { from, to });
    let inner = cube.slice(2, 0, 2).unwrap();
    let error = inner.reshape([12]).unwrap_err();
    let (dim, stride, packed) = (1, 4, 2);
    let not_packed = TensorError::NotContiguous {
        dim,
        stride,
        packed,
    };
    assert_eq!(error, not_packed);
    assert_eq!(
        error.to_string(),
        "the tensor is not contiguous: dimension 1 has stride 4 where 2 would be packed; \
         contiguous_in makes a packed copy"
    );
}

#[test]
fn a_view_as_another_dtype_wants_the_same_width() {
    for from in DType::ALL.into_iter().filter(|dtype| !dtype.is_reserved()) {
        let tensor = Tensor::zeros([4, 6], from, cpu()).unwrap();
        let tensor = tensor.slice(1, 1, 3).unwrap();
        for to in DType::ALL {
            let view = tensor.view_as_dtype(to);
            if to.is_reserved() {
                // Also where the width would do: a reserved dtype has no tensors.
                assert_eq!(view.unwrap_err(), TensorError::Unimplemented { dtype: to });
            } else if from.bits() != to.bits() {
                assert_eq!(view.unwrap_err(), TensorError::WidthMismatch { from, to });
            } else {
                let view = view.unwrap();
                assert_eq!(view.dtype(), to);
                assert_eq!(view.shape(), tensor.shape());
                assert_eq!(view.strides(), tensor.strides());
                assert_eq!(view.byte_offset(), tensor.byte_offset());
            }
        }
    }
    let halves = Tensor::zeros([2], DType::F16, cpu()).unwrap();
    halves.write::<f16>().unwrap()[1] = f16::from_bits(0x3f80);
    let brains = halves.view_as_dtype(DType::BF16).unwrap();
    assert_eq!(brains.item::<bf16>(&[1]).to_bits(), 0x3f80);
}

#[test]
fn tensors_without_elements_are_tensors() {
    for dims in [&[0][..], &[0, 3], &[3, 0], &[2, 0, 4], &[0, 1 << 40]] {
        let empty = counted(dims);
        assert_eq!((empty.numel(), empty.nbytes()), (0, 0));
        assert!(empty.is_contiguous());
        assert!(!empty.data_ptr::<i32>().is_null());
        assert!(empty.read::<i32>().unwrap().is_empty());
        assert!(empty.write::<i32>().unwrap().is_empty());
        assert!(empty.read_bytes().unwrap().is_empty());
        assert_eq!(empty.reshape([0, 9]).unwrap().shape().dims(), [0, 9]);
        let (from, to) = (0, 1);
        let error = empty.reshape([1]).unwrap_err();
        assert_eq!(error, TensorError::NumelMismatch { from, to });
        for dim in 0..empty.rank() {
            let size = empty.shape().dim(dim);
            assert_eq!(empty.slice(dim, size, size).unwrap().numel(), 0);
            assert_eq!(empty.slice(dim, 0, size).unwrap().shape(), empty.shape());
        }
    }
}

/// It starts one past the end of its dimension, and its offset stays inside the storage.
#[test]
fn an_empty_view_of_a_full_tensor_stays_inside_the_storage() {
    let matrix = counted(&[3, 4]);
    for (dim, size) in [(0, 3), (1, 4)] {
        for at in 0..=size {
            let empty = matrix.slice(dim, at, at).unwrap();
            assert_eq!(empty.numel(), 0);
            assert!(empty.byte_offset() <= matrix.storage().len());
            assert!(empty.read::<i32>().unwrap().is_empty());
            // And what is cut out of it again, in any dimension.
            for again in 0..2 {
                let end = empty.shape().dim(again);
                let view = empty.slice(again, end, end).unwrap();
                assert!(view.byte_offset() <= matrix.storage().len());
                assert!(view.write::<i32>().unwrap().is_empty());
            }
        }
    }
    // The strides of a tensor without elements may be enormous: no offset is computed.
    let huge = counted(&[0, 1 << 31, 1 << 31]);
    let view = huge.slice(1, 1 << 31, 1 << 31).unwrap();
    assert_eq!((view.byte_offset(), view.numel()), (0, 0));
}

#[test]
fn ranges_and_dimensions_that_are_not_there_are_refused_with_their_numbers() {
    let matrix = counted(&[3, 4]);
    let (dim, size) = (1, 4);
    for (start, end) in [
        (0, 5),
        (3, 2),
        (5, 5),
        (usize::MAX, usize::MAX),
        (0, usize::MAX),
        (4, 0),
    ] {
        let error = matrix.slice(dim, start, end).unwrap_err();
        assert_eq!(
            error,
            TensorError::BadRange {
                dim,
                start,
                end,
                size
            }
        );
    }
    for dim in [2, 8, usize::MAX] {
        let error = matrix.slice(dim, 0, 0).unwrap_err();
        assert_eq!(error, TensorError::NoSuchDim { dim, rank: 2 });
    }
    let error = matrix.slice(1, 3, 5).unwrap_err();
    assert_eq!(
        error.to_string(),
        "range 3..5 does not lie in dimension 1, which has 4"
    );
}

#[test]
fn reserved_dtypes_have_no_tensors() {
    let storage = Storage::from(cpu().allocate_zeroed(64, 64).unwrap());
    for dtype in [DType::F8E4M3, DType::F8E5M2, DType::I4] {
        let unimplemented = TensorError::Unimplemented { dtype };
        assert_eq!(Tensor::empty([2], dtype, cpu()).unwrap_err(), unimplemented);
        assert_eq!(Tensor::zeros([0], dtype, cpu()).unwrap_err(), unimplemented);
        let over = Tensor::from_storage(&storage, 0, [2], dtype).unwrap_err();
        assert_eq!(over, unimplemented);
        let buffer = cpu().allocate(64, 64).unwrap();
        let over = Tensor::from_buffer(buffer, 0, [2], dtype).unwrap_err();
        assert_eq!(over, unimplemented);
    }
}

#[test]
fn sizes_that_overflow_are_refused_before_anything_is_allocated() {
    let storage = Storage::from(cpu().allocate(64, 64).unwrap());
    for (dims, dtype) in [
        (vec![isize::MAX as usize], DType::I16),
        (vec![1 << 60], DType::F64),
        (vec![1 << 31, 1 << 30], DType::F32),
    ] {
        let shape = Shape::from_dims(&dims).unwrap();
        let numel = shape.numel();
        let overflow = TensorError::SizeOverflow { numel, dtype };
        assert_eq!(Tensor::empty(shape, dtype, cpu()).unwrap_err(), overflow);
        assert_eq!(Tensor::zeros(shape, dtype, cpu()).unwrap_err(), overflow);
        let over = Tensor::from_storage(&storage, 0, shape, dtype).unwrap_err();
        assert_eq!(over, overflow);
    }
    // It fits an i64 and no memory: the allocator's error.
    for numel in [isize::MAX as usize, isize::MAX as usize - 63] {
        let error = Tensor::zeros([numel], DType::U8, cpu()).unwrap_err();
        assert!(matches!(error, TensorError::Alloc(_)), "{error}");
    }
    let none: Result<Shape, TypeError> = Shape::from_dims(&[1 << 40, 1 << 40]);
    assert!(matches!(
        TensorError::from(none.unwrap_err()),
        TensorError::Type(_)
    ));
}

#[test]
fn the_allocators_error_comes_through_with_its_numbers() {
    let slab = SharedAllocator::new(SlabAllocator::new(1024, 1).unwrap());
    let (bytes, block_bytes) = (1028, 1024);
    let error = Tensor::empty([257], DType::F32, &slab).unwrap_err();
    assert_eq!(error, AllocError::TooLarge { bytes, block_bytes }.into());
    let _out = Tensor::empty([256], DType::F32, &slab).unwrap();
    let error = Tensor::empty([1], DType::F32, &slab).unwrap_err();
    assert_eq!(error, AllocError::Exhausted { blocks: 1 }.into());
    assert_eq!(error.to_string(), "all 1 blocks of the slab are in use");
}

#[test]
fn a_window_over_a_storage_lies_inside_it() {
    let storage = Storage::from(cpu().allocate_zeroed(100, 64).unwrap());
    for (offset, numel) in [(0, 25), (96, 1), (100, 0), (3, 24), (1, 1)] {
        let tensor = Tensor::from_storage(&storage, offset, [numel], DType::F32).unwrap();
        assert_eq!((tensor.byte_offset(), tensor.numel()), (offset, numel));
    }
    let outside: [(usize, usize); 7] = [
        (0, 26),
        (97, 1),
        (101, 0),
        (100, 1),
        (usize::MAX, 0),
        (usize::MAX - 3, 1),
        (usize::MAX, 1),
    ];
    for (offset, numel) in outside {
        let error = Tensor::from_storage(&storage, offset, [numel], DType::F32).unwrap_err();
        let out_of_bounds = TensorError::OutOfBounds {
            storage: storage.id(),
            len: 100,
            offset,
            bytes: numel * 4,
        };
        assert_eq!(error, out_of_bounds, "{numel} at {offset}");
    }
    // A refused window keeps no handle: the storage goes when this one does.
    let slab = SharedAllocator::new(SlabAllocator::new(64, 1).unwrap());
    let buffer = slab.allocate(64, 64).unwrap();
    assert!(Tensor::from_buffer(buffer, 61, [1], DType::F32).is_err());
    assert_eq!(slab.outstanding(), 0);
}

/// A checkpoint in small: one slab of bytes, all its tensors over it.
#[test]
fn hundreds_of_tensors_share_one_storage() {
    const TENSORS: usize = 272;
    let storage = Storage::from(cpu().allocate_zeroed(TENSORS * 64, 64).unwrap());
    let tensors: Vec<Tensor> = (0..TENSORS)
        .map(|at| Tensor::from_storage(&storage, at * 64, [4, 4], DType::F32).unwrap())
        .collect();
    for (at, tensor) in tensors.iter().enumerate() {
        tensor.write::<f32>().unwrap().fill(at as f32);
    }
    storage.freeze().unwrap();
    let name = storage.id();
    drop(storage);
    let guards: Vec<_> = tensors
        .iter()
        .map(|tensor| tensor.read::<f32>().unwrap())
        .collect();
    for (at, guard) in guards.iter().enumerate() {
        assert!(guard.iter().all(|&element| element == at as f32));
    }
    drop(guards);
    assert!(tensors.iter().all(|tensor| tensor.is_frozen()));
    assert!(tensors.iter().all(|tensor| tensor.storage().id() == name));
}

#[test]
fn a_tensor_keeps_its_bytes_when_everything_else_is_gone() {
    let slab = SharedAllocator::new(SlabAllocator::new(4096, 2).unwrap());
    let tensor = Tensor::zeros([8, 8], DType::F32, &slab).unwrap();
    drop(slab);
    let view = tensor.slice(1, 3, 4).unwrap();
    tensor.write::<f32>().unwrap()[3] = 1.5;
    drop(tensor);
    assert_eq!(view.item::<f32>(&[0, 0]), 1.5);
    let moved = std::thread::spawn(move || view.item::<f32>(&[0, 0]));
    assert_eq!(moved.join().unwrap(), 1.5);
}

#[test]
fn debug_names_the_metadata_and_no_elements() {
    let text = format!("{:?}", counted(&[3, 4]).slice(1, 1, 3).unwrap());
    for part in [
        "Shape[3, 2]",
        "Strides[4, 1]",
        "I32",
        "byte_offset: 4",
        "len: 48",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}
