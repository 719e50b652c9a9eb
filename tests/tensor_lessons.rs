//! What users of other tensor libraries complain about, and that it is not so here: each
//! test names the complaint.
//!
//! The heap is watched: a block has to go back with the size and alignment it came with.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tenslab::memory::{SharedAllocator, SlabAllocator, Storage, cpu};
use tenslab::tensor::TensorError;
use tenslab::{DType, Shape, Tensor, bf16, f16, ops};

/// Remembers the blocks of one thread while it watches, and compares when they go back.
struct Watched;

const PLACES: usize = 64;

thread_local! {
    static WATCHING: Cell<bool> = const { Cell::new(false) };
    static OUT: Cell<[(usize, usize, usize); PLACES]> = const { Cell::new([(0, 0, 0); PLACES]) };
    static BACK: Cell<usize> = const { Cell::new(0) };
}

fn remember(start: *mut u8, layout: Layout) {
    if WATCHING.get() {
        let mut out = OUT.get();
        if let Some(place) = out.iter_mut().find(|place| place.0 == 0) {
            *place = (start.addr(), layout.size(), layout.align());
        }
        OUT.set(out);
    }
}

// SAFETY: every call is the system's own.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let start = unsafe { System.alloc(layout) };
        remember(start, layout);
        start
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let start = unsafe { System.alloc_zeroed(layout) };
        remember(start, layout);
        start
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if WATCHING.get() {
            let mut out = OUT.get();
            if let Some(place) = out.iter_mut().find(|place| place.0 == start.addr()) {
                let (_, size, align) = std::mem::take(place);
                assert_eq!((size, align), (layout.size(), layout.align()));
                OUT.set(out);
                BACK.set(BACK.get() + 1);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) };
    }
}

#[global_allocator]
static HEAP: Watched = Watched;

/// burn #2375: memory was freed with another layout than it was allocated with.
#[test]
fn memory_goes_back_with_the_layout_it_came_with() {
    WATCHING.set(true);
    for align in [1, 2, 8, 64, 4096] {
        for bytes in [1, 63, 64, 1000] {
            let buffer = cpu().allocate(bytes, align).unwrap();
            let tensor = Tensor::from_buffer(buffer, 0, [bytes], DType::U8).unwrap();
            let view = tensor.slice(0, bytes / 2, bytes).unwrap();
            drop(tensor);
            drop(view.view_as_dtype(DType::I8).unwrap());
            drop(view);
        }
    }
    WATCHING.set(false);
    // The bytes and the storage's header of each.
    assert_eq!(BACK.get(), 2 * 20);
    assert!(
        OUT.get().iter().all(|place| place.0 == 0),
        "nothing is left"
    );
}

/// candle #2294: no safe way to the raw data.
#[test]
fn typed_slices_come_without_closures_unsafe_or_a_copy() {
    let mut tensor = Tensor::zeros([2, 3], DType::F16, cpu()).unwrap();
    tensor.write::<f16>().unwrap()[4] = f16::ONE;
    let elements = tensor.read::<f16>().unwrap();
    assert_eq!(elements[4], f16::ONE);
    assert_eq!(elements.as_ptr(), tensor.data_ptr::<f16>().cast_const());
    drop(elements);
    assert_eq!(tensor.read_bytes().unwrap()[8..10], [0x00, 0x3c]);
    tensor.get_mut::<f16>().unwrap()[0] = f16::ONE;
}

/// candle #1930: the copy of a strided view was strided.
#[test]
fn the_copy_of_a_strided_view_is_packed() {
    let matrix = Tensor::zeros([4, 6], DType::I32, cpu()).unwrap();
    for view in [
        matrix.slice(1, 1, 3).unwrap(),
        matrix.transpose(0, 1).unwrap(),
        matrix.select(1, 5).unwrap(),
    ] {
        assert!(!view.is_contiguous());
        let copies = [
            view.contiguous_in(cpu()).unwrap(),
            ops::cast(&view, DType::I32, cpu()).unwrap(),
        ];
        for copy in copies {
            assert!(copy.is_contiguous());
            assert_eq!((copy.shape(), copy.byte_offset()), (view.shape(), 0));
            assert_eq!(
                copy.storage().len(),
                view.nbytes(),
                "and not all that was viewed"
            );
        }
    }
}

/// Reshape copied where it could not view: nobody saw it happen.
#[test]
fn no_view_copies_behind_anybodys_back() {
    let slab = SharedAllocator::new(SlabAllocator::new(4096, 8).unwrap());
    let cube = Tensor::zeros([4, 6, 8], DType::F32, &slab).unwrap();
    let turned = cube.permute(&[2, 0, 1]).unwrap();
    let error = turned.reshape([192]).unwrap_err();
    assert!(
        matches!(error, TensorError::NotContiguous { .. }),
        "{error}"
    );
    let views = [
        cube.reshape([192]).unwrap(),
        cube.view_as_dtype(DType::I32).unwrap(),
        turned.slice(0, 1, 3).unwrap(),
        turned.unsqueeze(1).unwrap().squeeze(1).unwrap(),
        cube.narrow(2, 1, 2).unwrap().select(0, 1).unwrap(),
    ];
    assert!(
        views
            .iter()
            .all(|view| view.storage().is_same(cube.storage()))
    );
    assert_eq!(slab.outstanding(), 1);
}

/// ndarray #1550: no f16. Here either half has tensors, views and slices.
#[test]
fn halves_are_elements_like_any_other() {
    let halves = Tensor::zeros([4, 4], DType::F16, cpu()).unwrap();
    halves.write::<f16>().unwrap()[5] = f16::from_bits(0x7c01);
    let item = halves.select(0, 1).unwrap().item::<f16>(&[1]);
    assert_eq!(
        item.to_bits(),
        0x7c01,
        "and a signalling NaN keeps its bits"
    );
    let brains = Tensor::zeros([4, 4], DType::BF16, cpu()).unwrap();
    brains.write::<bf16>().unwrap()[5] = bf16::from_bits(0x7f81);
    let row = brains.slice(0, 1, 2).unwrap();
    assert_eq!(row.read::<bf16>().unwrap()[1].to_bits(), 0x7f81);
}

/// ndarray #1069: reading what `empty` gave was undefined behaviour. (Uninitialised memory
/// would be seen by valgrind; here it is at least read and used.)
#[test]
fn an_empty_tensor_may_be_read() {
    for numel in [1, 1000, 1 << 20] {
        let tensor = Tensor::empty([numel], DType::U64, cpu()).unwrap();
        let sum = tensor
            .read::<u64>()
            .unwrap()
            .iter()
            .fold(0_u64, |sum, &element| sum.wrapping_add(element));
        assert_eq!(std::hint::black_box(sum), sum);
    }
}

/// tch #33: aliases could be written at once, and a tensor was `Send` but not `Sync`.
#[test]
fn aliases_on_two_threads_exclude_each_other() {
    fn both<T: Send + Sync>(_: &T) {}
    let tensor = Tensor::zeros([2, 512], DType::F32, cpu()).unwrap();
    both(&tensor);
    let alias = tensor.select(0, 0).unwrap();
    let writer = alias.write::<f32>().unwrap();
    let refused = std::thread::scope(|scope| {
        let other = scope.spawn(|| tensor.write::<f32>().is_err() && tensor.read::<f32>().is_err());
        other.join().unwrap()
    });
    assert!(refused);
    drop(writer);
    assert!(tensor.write::<f32>().is_ok());
}

/// candle #2040, #3815, #3965: an address that was not aligned became a slice.
#[test]
fn a_misaligned_tensor_is_no_slice_but_can_be_copied_to_one() {
    // A checkpoint's data begins 8 modulo 64 bytes into it, and a name may make that odd.
    let storage = Storage::from(cpu().allocate_zeroed(4096, 64).unwrap());
    for offset in [1, 2, 3, 9, 4095 - 16] {
        let shape = Shape::from_dims(&[2]).unwrap();
        let odd = Tensor::from_storage(&storage, offset, shape, DType::F64).unwrap();
        let error = odd.read::<f64>().unwrap_err();
        let (dtype, align, past) = (DType::F64, 8, offset % 8);
        let misaligned = TensorError::Misaligned { dtype, align, past };
        assert_eq!(error, misaligned);
        assert_eq!(odd.write::<f64>().unwrap_err(), misaligned);
        let aligned = ops::cast(&odd, DType::F64, cpu()).unwrap();
        assert_eq!(*aligned.read::<f64>().unwrap(), [0.0; 2]);
    }
    let eight = Tensor::from_storage(&storage, 8, [2], DType::F64).unwrap();
    assert!(
        eight.read::<f64>().is_ok(),
        "8 modulo 64 is enough for all of them"
    );
}
