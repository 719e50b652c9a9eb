//! The bytes without a guard: a sole owner, raw pointers, slices that somebody answers for.
//!
//! ```text
//!                   other handles     a guard is out     frozen
//!   get_mut         NotSole(n)        (borrows a handle) Frozen
//!   as_slice        yes               yes                yes
//!   as_mut_slice    yes               yes                Frozen
//!   data, data_ptr  yes               yes                yes
//! ```
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use tenslab::memory::{BorrowError, SharedAllocator, SlabAllocator, Storage, cpu};
use tenslab::tensor::TensorError;
use tenslab::{DType, Tensor, f16, ops};

fn zeros(dims: [usize; 2]) -> Tensor {
    Tensor::zeros(dims, DType::F32, cpu()).unwrap()
}

fn not_sole(tensor: &Tensor, handles: u32) -> TensorError {
    let storage = tensor.storage_id();
    BorrowError::NotSole { storage, handles }.into()
}

fn frozen(tensor: &Tensor) -> TensorError {
    let storage = tensor.storage_id();
    BorrowError::Frozen { storage }.into()
}

#[test]
fn a_sole_owner_writes_without_a_guard() {
    let mut tensor = zeros([2, 4]);
    tensor.get_mut::<f32>().unwrap()[5] = 5.0;
    assert_eq!(tensor.item::<f32>(&[1, 1]), 5.0);
    // A part of the storage may be all that is left of it.
    let mut row = tensor.select(0, 1).unwrap();
    assert_eq!(tensor.get_mut::<f32>().unwrap_err(), not_sole(&tensor, 2));
    assert_eq!(row.get_mut::<f32>().unwrap_err(), not_sole(&row, 2));
    drop(tensor);
    assert_eq!(*row.get_mut::<f32>().unwrap(), [0.0, 5.0, 0.0, 0.0]);
    assert!(row.write::<f32>().is_ok(), "no borrow is left over");
}

#[test]
fn every_handle_of_a_storage_counts() {
    let mut storage = Storage::from(cpu().allocate_zeroed(64, 64).unwrap());
    storage.get_mut().unwrap()[63] = 7;
    let mut tensor = Tensor::from_storage(&storage, 0, [16], DType::F32).unwrap();
    let clones: Vec<Tensor> = (0..3).map(|_| tensor.clone()).collect();
    let handles = 5;
    let error = BorrowError::NotSole {
        storage: storage.id(),
        handles,
    };
    assert_eq!(storage.get_mut().unwrap_err(), error);
    assert_eq!(
        error.to_string(),
        format!(
            "{} has 5 handles, so none of them is its sole owner",
            storage.id()
        )
    );
    assert_eq!(tensor.get_mut::<f32>().unwrap_err(), not_sole(&tensor, 5));
    drop((storage, clones));
    assert_eq!(tensor.get_mut::<f32>().unwrap()[15].to_bits(), 7 << 24);
    assert_eq!(tensor.get_mut::<f32>().unwrap().len(), 16);
}

#[test]
fn what_is_frozen_has_no_owner_who_may_write() {
    let mut tensor = zeros([1, 4]);
    tensor.freeze().unwrap();
    assert_eq!(tensor.get_mut::<f32>().unwrap_err(), frozen(&tensor));
    let clone = tensor.clone();
    assert_eq!(tensor.get_mut::<f32>().unwrap_err(), frozen(&clone));
    let storage = clone.storage_id();
    let mut alone = clone.storage().clone();
    let error = alone.get_mut().unwrap_err();
    assert_eq!(error, BorrowError::Frozen { storage });
}

/// A guard borrows its tensor, so one that was forgotten is in nobody's hands.
#[test]
fn a_forgotten_guard_is_not_in_the_way_of_a_sole_owner() {
    for writer in [false, true] {
        let mut tensor = zeros([1, 4]);
        if writer {
            std::mem::forget(tensor.write::<f32>().unwrap());
        } else {
            std::mem::forget(tensor.read::<f32>().unwrap());
        }
        assert!(tensor.write::<f32>().is_err());
        tensor.get_mut::<f32>().unwrap()[0] = 1.0;
    }
}

#[test]
fn access_without_a_guard_wants_dtype_packing_and_alignment_in_that_order() {
    let storage = Storage::from(cpu().allocate_zeroed(64, 64).unwrap());
    let mut odd = Tensor::from_storage(&storage, 2, [4], DType::F32).unwrap();
    drop(storage);
    let misaligned = TensorError::Misaligned {
        dtype: DType::F32,
        align: 4,
        past: 2,
    };
    assert_eq!(odd.get_mut::<f32>().unwrap_err(), misaligned);
    // SAFETY: one thread, and nobody else has the storage.
    assert_eq!(unsafe { odd.as_slice::<f32>() }.unwrap_err(), misaligned);
    // SAFETY: one thread, and nobody else has the storage.
    let error = unsafe { odd.as_mut_slice::<f32>() }.unwrap_err();
    assert_eq!(error, misaligned);
    let mismatch = TensorError::DTypeMismatch {
        asked: DType::F16,
        found: DType::F32,
    };
    assert_eq!(odd.get_mut::<f16>().unwrap_err(), mismatch);
    // SAFETY: one thread, and nobody else has the storage.
    assert_eq!(unsafe { odd.as_slice::<f16>() }.unwrap_err(), mismatch);

    let mut columns = odd.reshape([2, 2]).unwrap().slice(1, 0, 1).unwrap();
    let (dim, stride, packed) = (0, 2, 1);
    let not_packed = TensorError::NotContiguous {
        dim,
        stride,
        packed,
    };
    assert_eq!(columns.get_mut::<f16>().unwrap_err(), mismatch);
    assert_eq!(columns.get_mut::<f32>().unwrap_err(), not_packed);
    // SAFETY: one thread, and nobody else has the storage.
    let error = unsafe { columns.as_mut_slice::<f32>() }.unwrap_err();
    assert_eq!(error, not_packed);
    // No element is nowhere, so it is aligned.
    let none = odd.slice(0, 1, 1).unwrap();
    // SAFETY: no elements.
    assert!(unsafe { none.as_slice::<f32>() }.unwrap().is_empty());
}

#[test]
fn two_kernels_write_their_parts_without_a_guard() {
    let tensor = zeros([2, 512]);
    std::thread::scope(|scope| {
        for row in 0..2 {
            let part = tensor.select(0, row).unwrap();
            scope.spawn(move || {
                // SAFETY: the other thread has the other row, and the main one waits.
                let elements = unsafe { part.as_mut_slice::<f32>() }.unwrap();
                elements.fill(row as f32 + 1.0);
            });
        }
    });
    // SAFETY: the writers are done.
    let all = unsafe { tensor.as_slice::<f32>() }.unwrap();
    assert!(all[..512].iter().all(|&element| element == 1.0));
    assert!(all[512..].iter().all(|&element| element == 2.0));
}

#[test]
fn a_slice_to_write_is_refused_where_the_storage_is_frozen() {
    let tensor = zeros([1, 4]);
    tensor.freeze().unwrap();
    // SAFETY: one thread, and nobody else has the storage.
    let error = unsafe { tensor.as_mut_slice::<f32>() }.unwrap_err();
    assert_eq!(error, frozen(&tensor));
    // SAFETY: nobody ever writes.
    assert_eq!(unsafe { tensor.as_slice::<f32>() }.unwrap(), [0.0; 4]);
}

/// All that safe code has to write to a storage, tried on a frozen one.
#[test]
fn no_safe_path_writes_to_frozen_storage() {
    let mut tensor = zeros([2, 4]);
    let (view, src) = (tensor.select(0, 0).unwrap(), zeros([2, 4]));
    view.freeze().unwrap();
    assert!(tensor.is_frozen());
    let refused = frozen(&tensor);
    assert_eq!(tensor.write::<f32>().unwrap_err(), refused);
    assert_eq!(view.write::<f32>().unwrap_err(), refused);
    assert_eq!(tensor.write_bytes().unwrap_err(), refused);
    let error = Tensor::write_disjoint::<f32, 1>([&view]).unwrap_err();
    assert_eq!(error, refused);
    assert_eq!(tensor.get_mut::<f32>().unwrap_err(), refused);
    let table = zeros([3, 4]);
    for refusal in [
        ops::copy(&tensor, &src),
        ops::copy(&view, &src.select(0, 1).unwrap()),
        ops::fill(&view, 1),
        ops::fill(&tensor.transpose(0, 1).unwrap(), 1),
        ops::fill_uniform(&tensor, 1.0, 2.0, 7),
        ops::fill_normal(&view, 1.0, 2.0, 7),
        ops::gather_rows(&tensor, &table, &[2, 0]),
    ] {
        assert_eq!(refusal.unwrap_err(), refused);
    }
    // A later view or clone is as frozen, and a forgotten or dropped one changes nothing.
    let later = tensor
        .reshape([8])
        .unwrap()
        .view_as_dtype(DType::U32)
        .unwrap();
    assert_eq!(later.write::<u32>().unwrap_err(), refused);
    assert!(tensor.read_bytes().unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn bytes_are_written_whatever_the_dtype() {
    let tensor = Tensor::zeros([3], DType::Bool, cpu()).unwrap();
    tensor.write_bytes().unwrap().copy_from_slice(&[0, 1, 2]);
    let truths: Vec<bool> = tensor
        .read::<tenslab::Bool8>()
        .unwrap()
        .iter()
        .map(|truth| truth.get())
        .collect();
    assert_eq!(truths, [false, true, true]);
    let reader = tensor.read_bytes().unwrap();
    let (storage, readers) = (tensor.storage_id(), 1);
    let error = tensor.write_bytes().unwrap_err();
    assert_eq!(error, BorrowError::Reading { storage, readers }.into());
    drop(reader);
    let columns = zeros([2, 4]).slice(1, 0, 2).unwrap();
    let error = columns.write_bytes().unwrap_err();
    assert!(
        matches!(error, TensorError::NotContiguous { .. }),
        "{error}"
    );
}

#[test]
fn a_raw_pointer_is_the_base_and_the_offset_and_never_null() {
    let slab = SharedAllocator::new(SlabAllocator::new(4096, 2).unwrap());
    let tensor = Tensor::zeros([4, 4], DType::F32, &slab).unwrap();
    let view = tensor.slice(0, 1, 3).unwrap().slice(1, 2, 4).unwrap();
    let base = tensor.storage().as_ptr();
    assert_eq!(tensor.data(), base);
    assert_eq!(view.data().addr() - base.addr(), view.byte_offset());
    assert_eq!(view.data_ptr::<f32>().cast(), view.data());
    // A view without elements of a tensor that has some, and a tensor that has none.
    assert!(!view.slice(0, 1, 1).unwrap().data().is_null());
    let none = Tensor::zeros([0, 3], DType::F32, &slab).unwrap();
    assert!(!none.data().is_null() && none.data().addr().is_multiple_of(64));
}
