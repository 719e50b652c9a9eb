//! Guards: who may touch a tensor's elements, cell by cell of the table.
//!
//! ```text
//!                     free     somebody reads     somebody writes     frozen
//!   read              yes      yes                Writing             yes, uncounted
//!   write             yes      Reading(n)         Writing             Frozen
//!   write_disjoint    yes      Reading(n)         Writing             Frozen
//!   freeze            yes      yes                Writing             yes
//! ```
//!
//! Nothing waits and nothing is undefined: a refusal names the storage and changes
//! nothing, also where a guard was forgotten. The interleavings of the state word are
//! explored in `loom_tests/state.rs`.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenslab::memory::{BorrowError, Buffer, SharedAllocator, SlabAllocator, Storage, cpu};
use tenslab::tensor::{DisjointGuard, ReadGuard, TensorError, WriteGuard};
use tenslab::{DType, Shape, Tensor, f16};

fn zeros(numel: usize) -> Tensor {
    Tensor::zeros([numel], DType::F32, cpu()).unwrap()
}

fn writing(tensor: &Tensor) -> TensorError {
    let storage = tensor.storage().id();
    BorrowError::Writing { storage }.into()
}

fn reading(tensor: &Tensor, readers: u32) -> TensorError {
    let storage = tensor.storage().id();
    BorrowError::Reading { storage, readers }.into()
}

fn frozen(tensor: &Tensor) -> TensorError {
    let storage = tensor.storage().id();
    BorrowError::Frozen { storage }.into()
}

/// What the four calls say of this tensor now.
fn told(tensor: &Tensor) -> [Option<TensorError>; 4] {
    [
        tensor.read::<f32>().err(),
        tensor.write::<f32>().err(),
        Tensor::write_disjoint::<f32, 1>([tensor]).err(),
        tensor.read_bytes().err(),
    ]
}

#[test]
fn every_cell_of_the_table() {
    let tensor = zeros(8);
    let view = tensor.slice(0, 4, 8).unwrap();
    assert_eq!(told(&view), [None, None, None, None], "free");

    let first = tensor.read::<f32>().unwrap();
    let one = Some(reading(&view, 1));
    assert_eq!(told(&view), [None, one.clone(), one, None], "one reads");
    let second = view.read_bytes().unwrap();
    let two = Some(reading(&view, 2));
    assert_eq!(told(&view), [None, two.clone(), two, None], "two read");
    drop(first);
    let one = Some(reading(&view, 1));
    assert_eq!(told(&view)[1], one);
    drop(second);
    assert_eq!(told(&view), [None, None, None, None], "free again");

    let refused = Some(writing(&view));
    let all = [refused.clone(), refused.clone(), refused.clone(), refused];
    let writer = tensor.write::<f32>().unwrap();
    assert_eq!(told(&view), all, "one writes");
    assert_eq!(view.freeze().unwrap_err(), writing(&view));
    drop(writer);
    let writer = Tensor::write_disjoint::<f32, 1>([&tensor]).unwrap();
    assert_eq!(told(&view), all, "one writes");
    assert_eq!(view.freeze().unwrap_err(), writing(&view));
    drop(writer);
    assert_eq!(told(&view), [None, None, None, None], "free again");
    assert!(!tensor.is_frozen(), "a refused freeze freezes nothing");

    let before = tensor.read::<f32>().unwrap();
    view.freeze().unwrap();
    assert!(tensor.is_frozen());
    let refused = Some(frozen(&view));
    let rows = [None, refused.clone(), refused, None];
    assert_eq!(told(&view), rows, "frozen, and one reads since before");
    drop(before);
    assert_eq!(told(&view), rows, "frozen");
    tensor.freeze().unwrap();
    assert_eq!(told(&view), rows, "frozen twice");
}

#[test]
fn a_guard_on_one_thread_refuses_the_other() {
    let tensor = zeros(4);
    let elsewhere =
        |tensor: &Tensor| std::thread::scope(|s| s.spawn(|| told(tensor)).join().unwrap());
    let writer = tensor.write::<f32>().unwrap();
    assert!(
        elsewhere(&tensor)
            .iter()
            .all(|told| *told == Some(writing(&tensor)))
    );
    // A guard may end on another thread than it began on.
    std::thread::scope(|scope| {
        scope.spawn(move || drop(writer));
    });
    let reader = tensor.read::<f32>().unwrap();
    assert_eq!(elsewhere(&tensor)[1], Some(reading(&tensor, 1)));
    std::thread::scope(|scope| {
        scope.spawn(move || assert!(reader.iter().all(|&element| element == 0.0)));
    });
    assert_eq!(elsewhere(&tensor), [None, None, None, None]);
}

/// Each of the two has its guard while the other has it, frozen or not.
#[test]
fn two_threads_read_one_storage_at_the_same_time() {
    let tensor = zeros(4);
    tensor.write::<f32>().unwrap().fill(2.5);
    for _ in 0..2 {
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            for view in [tensor.clone(), tensor.slice(0, 1, 3).unwrap()] {
                let both = &both;
                scope.spawn(move || {
                    let guard = view.read::<f32>();
                    both.wait();
                    let right = |elements: &[f32]| elements.iter().all(|&element| element == 2.5);
                    let seen = guard.as_ref().is_ok_and(|guard| right(guard));
                    both.wait();
                    assert!(seen, "{guard:?}");
                });
            }
        });
        tensor.freeze().unwrap();
    }
}

/// Every writer makes all elements equal, so a reader that sees two values saw a race.
#[test]
fn readers_and_writers_on_many_threads_never_meet() {
    let tensor = Tensor::zeros([64], DType::U64, cpu()).unwrap();
    let (reads, writes) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (tensor, reads, writes, start) = (tensor.clone(), &reads, &writes, &start);
            scope.spawn(move || {
                start.wait();
                for step in 0..20_000 {
                    if step % 3 == thread % 3 {
                        if let Ok(mut guard) = tensor.write::<u64>() {
                            let mark = thread << 32 | step;
                            for element in guard.iter_mut() {
                                *element = mark;
                            }
                            writes.fetch_add(1, Ordering::Relaxed);
                        }
                    } else if let Ok(guard) = tensor.read::<u64>() {
                        assert!(guard.iter().all(|element| *element == guard[0]));
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(reads.into_inner() > 0 && writes.into_inner() > 0);
    assert!(tensor.write::<u64>().is_ok(), "nobody is left");
}

#[test]
fn a_forgotten_reader_refuses_writers_for_ever_and_nothing_else() {
    let slab = SharedAllocator::new(SlabAllocator::new(4096, 1).unwrap());
    let tensor = Tensor::zeros([8], DType::F32, &slab).unwrap();
    std::mem::forget(tensor.read::<f32>().unwrap());
    assert_eq!(tensor.write::<f32>().unwrap_err(), reading(&tensor, 1));
    assert!(tensor.read::<f32>().is_ok());
    tensor.freeze().unwrap();
    assert!(tensor.read::<f32>().is_ok());
    drop(tensor);
    assert_eq!(slab.outstanding(), 0, "the block is back all the same");
    let again = Tensor::zeros([8], DType::F32, &slab).unwrap();
    assert!(again.write::<f32>().is_ok(), "and its state is a new one");
}

#[test]
fn a_forgotten_writer_refuses_everybody_and_the_block_comes_back() {
    let slab = SharedAllocator::new(SlabAllocator::new(4096, 1).unwrap());
    for disjoint in [false, true] {
        let tensor = Tensor::zeros([8], DType::F32, &slab).unwrap();
        if disjoint {
            std::mem::forget(Tensor::write_disjoint::<f32, 1>([&tensor]).unwrap());
        } else {
            std::mem::forget(tensor.write::<f32>().unwrap());
        }
        assert!(
            told(&tensor)
                .iter()
                .all(|told| *told == Some(writing(&tensor)))
        );
        assert_eq!(tensor.freeze().unwrap_err(), writing(&tensor));
        assert!(tensor.to_string().ends_with("<borrowed>"));
        drop(tensor);
        assert_eq!(slab.outstanding(), 0);
    }
}

#[test]
fn a_panic_while_a_guard_is_out_gives_the_borrow_back() {
    let tensor = zeros(4);
    let attempt = || {
        let mut guard = tensor.write::<f32>().unwrap();
        guard[0] = 1.0;
        guard[4] = 2.0; // out of bounds
    };
    assert!(catch_unwind(AssertUnwindSafe(attempt)).is_err());
    assert_eq!(*tensor.read::<f32>().unwrap(), [1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn q_k_and_v_of_one_buffer_are_written_at_once() {
    let fused = Tensor::zeros([3, 16], DType::F32, cpu()).unwrap();
    let [q, k, v] = [0, 1, 2].map(|row| fused.slice(0, row, row + 1).unwrap());
    let mut guard = Tensor::write_disjoint::<f32, 3>([&v, &q, &k]).unwrap();
    let [v_out, q_out, k_out] = guard.slices();
    q_out.fill(1.0);
    v_out.fill(3.0);
    k_out.copy_from_slice(q_out);
    k_out[15] = v_out[0];
    assert_eq!(guard.slices().map(|slice| slice.len()), [16; 3]);
    drop(guard);
    let all = fused.read::<f32>().unwrap();
    assert!(all[..31].iter().all(|&element| element == 1.0));
    assert!(all[31..].iter().all(|&element| element == 3.0));
}

#[test]
fn tensors_that_share_a_byte_are_not_disjoint() {
    let tensor = zeros(16);
    let storage = tensor.storage().id();
    let cut = |start, end| tensor.slice(0, start, end).unwrap();
    let overlap = |first, second| TensorError::Overlap {
        storage,
        first,
        second,
    };
    let error = Tensor::write_disjoint::<f32, 2>([&tensor, &tensor]).unwrap_err();
    assert_eq!(error, overlap(0, 1));
    let parts = [&cut(0, 4), &cut(4, 8), &cut(8, 16), &cut(15, 16)];
    let error = Tensor::write_disjoint::<f32, 4>(parts).unwrap_err();
    assert_eq!(error, overlap(2, 3));
    let parts = [cut(5, 6), cut(6, 7), cut(0, 6)];
    let error = Tensor::write_disjoint::<f32, 3>(parts.each_ref()).unwrap_err();
    assert_eq!(error, overlap(0, 2));
    // One byte is enough, and a tensor without elements shares none.
    let halves = |offset| Tensor::from_storage(tensor.storage(), offset, [4], DType::F16).unwrap();
    let error = Tensor::write_disjoint::<f16, 2>([&halves(0), &halves(6)]).unwrap_err();
    assert_eq!(error, overlap(0, 1));
    assert!(Tensor::write_disjoint::<f16, 2>([&halves(0), &halves(8)]).is_ok());
    let none = cut(3, 3);
    let mut guard = Tensor::write_disjoint::<f32, 3>([&tensor, &none, &none]).unwrap();
    assert_eq!(guard.slices().map(|slice| slice.len()), [16, 0, 0]);
    drop(guard);
    assert!(
        tensor.write::<f32>().is_ok(),
        "a refusal leaves nothing borrowed"
    );
}

#[test]
fn tensors_of_two_storages_are_not_written_as_one() {
    let (one, other) = (zeros(4), zeros(4));
    let error = Tensor::write_disjoint::<f32, 2>([&one, &other]).unwrap_err();
    let not_one = TensorError::NotOneStorage {
        expected: one.storage().id(),
        found: other.storage().id(),
        position: 1,
    };
    assert_eq!(error, not_one);
}

#[test]
#[should_panic(expected = "write_disjoint of no tensor")]
fn writing_to_no_tensor_is_a_typo() {
    let _ = Tensor::write_disjoint::<f32, 0>([]);
}

#[test]
fn typed_access_wants_dtype_packing_and_alignment_in_that_order() {
    let storage = Storage::from(cpu().allocate_zeroed(64, 64).unwrap());
    let odd = Tensor::from_storage(&storage, 2, [4], DType::F32).unwrap();
    let misaligned = TensorError::Misaligned {
        dtype: DType::F32,
        align: 4,
        past: 2,
    };
    assert_eq!(odd.read::<f32>().unwrap_err(), misaligned);
    assert_eq!(odd.write::<f32>().unwrap_err(), misaligned);
    let error = Tensor::write_disjoint::<f32, 1>([&odd]).unwrap_err();
    assert_eq!(error, misaligned);
    assert_eq!(
        misaligned.to_string(),
        "the tensor begins 2 bytes past a multiple of 4, as float32 needs it"
    );
    // Bytes have no alignment, one element is read as it lies, and no element is nowhere.
    assert_eq!(odd.read_bytes().unwrap().len(), 16);
    assert_eq!(odd.item::<f32>(&[3]), 0.0);
    assert!(odd.slice(0, 1, 1).unwrap().read::<f32>().is_ok());
    assert!(
        Tensor::from_storage(&storage, 2, [4], DType::F16)
            .unwrap()
            .read::<f16>()
            .is_ok()
    );

    let mismatch = TensorError::DTypeMismatch {
        asked: DType::I32,
        found: DType::F32,
    };
    assert_eq!(odd.read::<i32>().unwrap_err(), mismatch);
    let columns = odd.reshape([2, 2]).unwrap().slice(1, 0, 1).unwrap();
    assert_eq!(columns.write::<i32>().unwrap_err(), mismatch);
    let (dim, stride, packed) = (0, 2, 1);
    let not_packed = TensorError::NotContiguous {
        dim,
        stride,
        packed,
    };
    assert_eq!(columns.read::<f32>().unwrap_err(), not_packed);
    assert_eq!(columns.write::<f32>().unwrap_err(), not_packed);
    assert_eq!(columns.read_bytes().unwrap_err(), not_packed);
    let error = Tensor::write_disjoint::<f32, 1>([&columns]).unwrap_err();
    assert_eq!(error, not_packed);
    assert!(storage.freeze().is_ok(), "no refusal left a borrow behind");
}

fn panic_of<T>(attempt: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(|| drop(attempt()))).expect_err("no panic");
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|&text| text.into()))
        .expect("a message")
}

#[test]
fn what_stands_in_the_source_is_a_panic_that_says_what_is_wrong() {
    let matrix = Tensor::zeros([2, 3], DType::F32, cpu()).unwrap();
    let text = panic_of(|| matrix.data_ptr::<f64>());
    assert_eq!(text, "data_ptr::<float64> of a tensor that holds float32");
    assert!(panic_of(|| matrix.item::<i32>(&[0, 0])).contains("int32"));
    let text = panic_of(|| matrix.item::<f32>(&[0]));
    assert_eq!(
        text.lines().next(),
        Some("assertion `left == right` failed: 1 indices into a tensor of rank 2")
    );
    let text = panic_of(|| matrix.item::<f32>(&[1, 3]));
    assert_eq!(text, "index 3 of dimension 1, which has 3");
    assert!(panic_of(|| matrix.item::<f32>(&[usize::MAX, 0])).contains("dimension 0"));
    let empty = matrix.slice(0, 1, 1).unwrap();
    assert!(panic_of(|| empty.item::<f32>(&[0, 0])).contains("which has 0"));
    let guard = matrix.write::<f32>().unwrap();
    assert!(panic_of(|| matrix.item::<f32>(&[0, 0])).contains("is being written to"));
    drop(guard);
    assert_eq!(
        matrix.item::<f32>(&[1, 2]),
        0.0,
        "and no borrow is left over"
    );
    assert!(panic_of(|| matrix.reshape([1; 9])).contains("is no shape"));
}

#[test]
fn a_raw_pointer_points_at_the_first_element_of_the_view() {
    let matrix = Tensor::zeros([4, 4], DType::I16, cpu()).unwrap();
    let view = matrix.slice(0, 1, 3).unwrap().slice(1, 2, 4).unwrap();
    assert_eq!(
        view.data_ptr::<i16>().addr() - matrix.data_ptr::<i16>().addr(),
        2 * 6
    );
    // SAFETY: row 1 of the view, inside the storage.
    let place = unsafe { view.data_ptr::<i16>().add(4) };
    // SAFETY: as above, aligned, and nobody else has the storage.
    unsafe { place.write(9) };
    assert_eq!(matrix.item::<i16>(&[2, 2]), 9);
}

#[test]
fn all_of_it_may_be_sent_and_shared() {
    fn both<T: Send + Sync>() {}
    both::<Tensor>();
    both::<Storage>();
    both::<Buffer>();
    both::<SharedAllocator>();
    both::<ReadGuard<'_, f32>>();
    both::<WriteGuard<'_, f32>>();
    both::<DisjointGuard<'_, f32, 3>>();
    both::<TensorError>();
    both::<Shape>();
    // Errors with a storage in them are plain values.
    fn plain<T: Copy + 'static>() {}
    plain::<BorrowError>();
}
