//! What the tensor contract (§6 to §9) says beside views and guards: who owns, where
//! memory may be, in which order a call is checked.
//!
//! ```text
//!   empty         dtype ─▶ device ─▶ bytes ─▶ the allocator
//!   from_buffer   dtype ─▶ device ─▶ bytes ─▶ the window
//!   slice         dimension ─▶ range            reshape         packed ─▶ elements
//!   view_as       dtype ─▶ width                typed access    dtype ─▶ packed ─▶ aligned ─▶ borrow
//! ```
//!
//! `docs/spec_views.md` has each sentence with its test.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenslab::memory::{
    self, AllocError, Allocator, Block, Buffer, CpuAllocator, Request, SharedAllocator,
    SlabAllocator, Storage, cpu,
};
use tenslab::tensor::TensorError;
use tenslab::{DType, Device, Shape, Tensor};

/// Host memory that says it is a device's, and how much of it was asked for.
struct Elsewhere(CpuAllocator, Arc<AtomicUsize>);

// SAFETY: blocks come from the host's allocator and go back to it unchanged.
unsafe impl Allocator for Elsewhere {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.allocate_block(request)
    }

    unsafe fn release_block(&self, block: Block) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.release_block(block) }
    }

    fn device(&self) -> Device {
        Device::Cuda(1)
    }
}

fn elsewhere() -> (SharedAllocator, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let allocator = Elsewhere(CpuAllocator::new(), Arc::clone(&asked));
    (SharedAllocator::new(allocator), asked)
}

#[test]
fn no_tensor_is_made_of_memory_that_is_not_the_hosts() {
    let (cuda, asked) = elsewhere();
    let device = Device::Cuda(1);
    let unsupported = TensorError::from(AllocError::UnsupportedDevice { device });
    assert_eq!(
        Tensor::empty([2], DType::F32, &cuda).unwrap_err(),
        unsupported
    );
    assert_eq!(
        Tensor::zeros([0], DType::F32, &cuda).unwrap_err(),
        unsupported
    );
    assert_eq!(asked.load(Ordering::Relaxed), 0, "nothing was allocated");
    // A buffer may be there; no tensor is made over it.
    let buffer = cuda.allocate(64, 64).unwrap();
    assert_eq!(buffer.device(), device);
    let storage = Storage::from(buffer);
    let error = Tensor::from_storage(&storage, 0, [2], DType::F32).unwrap_err();
    assert_eq!(error, unsupported);
    let buffer = cuda.allocate(64, 64).unwrap();
    let error = Tensor::from_buffer(buffer, 0, [2], DType::F32).unwrap_err();
    assert_eq!(error, unsupported);
    drop(storage);
    assert_eq!(cuda.outstanding(), 0);
    let error = memory::default_allocator(Device::Cuda(0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "allocation on cuda:0 is not implemented: tenslab runs on the CPU"
    );
    let host = memory::default_allocator(Device::Cpu).unwrap();
    assert_eq!(
        Tensor::empty([2], DType::F32, host).unwrap().device(),
        Device::Cpu
    );
}

#[test]
fn empty_checks_dtype_then_device_then_bytes_then_asks_the_allocator() {
    let (cuda, _) = elsewhere();
    let huge = Shape::from_dims(&[1 << 62]).unwrap();
    let (numel, device) = (1 << 62, Device::Cuda(1));
    let dtype = DType::F8E4M3;
    let unimplemented = TensorError::Unimplemented { dtype };
    type Make = fn(Shape, DType, &SharedAllocator) -> Result<Tensor, TensorError>;
    let makes: [Make; 2] = [
        |shape, dtype, allocator| Tensor::empty(shape, dtype, allocator),
        |shape, dtype, allocator| Tensor::zeros(shape, dtype, allocator),
    ];
    for make in makes {
        assert_eq!(make(huge, dtype, &cuda).unwrap_err(), unimplemented);
        let unsupported = AllocError::UnsupportedDevice { device };
        assert_eq!(
            make(huge, DType::F32, &cuda).unwrap_err(),
            unsupported.into()
        );
        let dtype = DType::F32;
        let overflow = TensorError::SizeOverflow { numel, dtype };
        assert_eq!(make(huge, dtype, cpu()).unwrap_err(), overflow);
        let error = make(huge, DType::U8, cpu()).unwrap_err();
        assert!(matches!(error, TensorError::Alloc(_)), "{error}");
    }
}

#[test]
fn from_buffer_checks_dtype_then_bytes_then_the_window() {
    let buffer = || cpu().allocate(64, 64).unwrap();
    let huge = Shape::from_dims(&[1 << 62]).unwrap();
    let outside = usize::MAX;
    let dtype = DType::I4;
    let error = Tensor::from_buffer(buffer(), outside, huge, dtype).unwrap_err();
    assert_eq!(error, TensorError::Unimplemented { dtype });
    let (numel, dtype) = (1 << 62, DType::F32);
    let error = Tensor::from_buffer(buffer(), outside, huge, dtype).unwrap_err();
    assert_eq!(error, TensorError::SizeOverflow { numel, dtype });
    let error = Tensor::from_buffer(buffer(), outside, [2], dtype).unwrap_err();
    assert!(matches!(error, TensorError::OutOfBounds { .. }), "{error}");
    let tensor = Tensor::from_buffer(buffer(), 8, [2, 7], dtype).unwrap();
    assert_eq!((tensor.byte_offset(), tensor.device()), (8, Device::Cpu));
    assert_eq!(tensor.strides().values(), [7, 1]);
    assert!(tensor.is_contiguous());
}

#[test]
fn views_are_checked_in_the_order_of_the_contract() {
    let matrix = Tensor::zeros([3, 4], DType::F32, cpu()).unwrap();
    // The dimension before the range.
    let error = matrix.slice(2, 9, 1).unwrap_err();
    assert_eq!(error, TensorError::NoSuchDim { dim: 2, rank: 2 });
    // Packed before the number of elements.
    let columns = matrix.slice(1, 0, 2).unwrap();
    let error = columns.reshape([99]).unwrap_err();
    assert!(
        matches!(error, TensorError::NotContiguous { .. }),
        "{error}"
    );
    // Reserved before the width, also where that would do.
    let bytes = Tensor::zeros([3], DType::I8, cpu()).unwrap();
    for dtype in [DType::F8E4M3, DType::I4] {
        let error = bytes.view_as_dtype(dtype).unwrap_err();
        assert_eq!(error, TensorError::Unimplemented { dtype });
    }
    // Whatever is wrong with the view comes before who is at the bytes.
    let _writer = matrix.write::<f32>().unwrap();
    let error = columns.read::<f32>().unwrap_err();
    assert!(
        matches!(error, TensorError::NotContiguous { .. }),
        "{error}"
    );
    let error = columns.read::<f64>().unwrap_err();
    assert!(
        matches!(error, TensorError::DTypeMismatch { .. }),
        "{error}"
    );
    // A view needs no borrow: it touches no element.
    assert!(matrix.slice(0, 1, 2).is_ok() && matrix.transpose(0, 1).is_ok());
}

/// `Is::<T>::CLONE` says whether `T` is `Clone`: the inherent constant is there only if
/// it is, and is taken before the trait's. The asserts on it fail when compiled.
struct Is<T>(PhantomData<T>);

trait Otherwise {
    const CLONE: bool = false;
    const EQ: bool = false;
}

impl<T> Otherwise for Is<T> {}

impl<T: Clone> Is<T> {
    const CLONE: bool = true;
}

struct Equal<T>(PhantomData<T>);

impl<T> Otherwise for Equal<T> {}

impl<T: PartialEq> Equal<T> {
    const EQ: bool = true;
}

#[test]
fn a_buffer_has_one_owner_and_a_tensor_any_number() {
    const { assert!(!Is::<Buffer>::CLONE && !Is::<Block>::CLONE) }
    const { assert!(Is::<Tensor>::CLONE && Is::<Storage>::CLONE && Is::<SharedAllocator>::CLONE) }
    let slab = SharedAllocator::new(SlabAllocator::new(64, 1).unwrap());
    let tensor = Tensor::from_buffer(slab.allocate(64, 64).unwrap(), 0, [16], DType::F32).unwrap();
    let clones: Vec<Tensor> = (0..9).map(|_| tensor.clone()).collect();
    assert_eq!(slab.outstanding(), 1, "one allocation, ten handles");
    for clone in &clones {
        assert_eq!(clone.data(), tensor.data());
        assert_eq!(
            (clone.shape(), clone.dtype()),
            (tensor.shape(), tensor.dtype())
        );
        assert_eq!(clone.strides(), tensor.strides());
    }
    drop(tensor);
    assert_eq!(slab.outstanding(), 1);
    drop(clones);
    assert_eq!(slab.outstanding(), 0);
}

#[test]
fn assigning_over_a_buffer_gives_the_old_one_back() {
    let slab = SharedAllocator::new(SlabAllocator::new(64, 2).unwrap());
    let mut buffer = slab.allocate(1, 1).unwrap();
    for bytes in [0, 64, 3] {
        buffer = slab.allocate(bytes, 1).unwrap();
        assert_eq!((slab.outstanding(), buffer.len()), (1, bytes));
    }
    drop(buffer);
    assert_eq!(slab.outstanding(), 0);
}

#[test]
#[should_panic(expected = "dimension 2 of a shape of rank 2")]
fn the_size_of_a_dimension_that_is_not_there_is_a_typo() {
    let _ = Tensor::zeros([2, 3], DType::F32, cpu())
        .unwrap()
        .shape()
        .dim(2);
}

#[test]
fn tensors_are_not_comparable() {
    const { assert!(!Equal::<Tensor>::EQ) }
    const { assert!(Equal::<Shape>::EQ && Equal::<DType>::EQ && Equal::<Device>::EQ) }
}

#[test]
fn where_there_may_be_no_tensor_there_is_an_option_of_the_same_size() {
    assert_eq!(size_of::<Option<Tensor>>(), size_of::<Tensor>());
    #[cfg(target_pointer_width = "64")]
    assert_eq!(size_of::<Tensor>(), 176);
    let mut handle = Some(Tensor::zeros([2], DType::F32, cpu()).unwrap());
    let moved = handle.take();
    assert!(handle.is_none() && moved.is_some());
}

#[test]
fn a_shared_reference_to_a_tensor_is_enough_to_write() {
    fn through(tensor: &Tensor) {
        tensor.write::<i32>().unwrap()[1] = 7;
    }
    let tensor = Tensor::zeros([2], DType::I32, cpu()).unwrap();
    through(&tensor);
    assert_eq!(tensor.item::<i32>(&[1]), 7);
}

/// The contract's `empty` is uninitialised. Here the bytes are merely anything: old ones,
/// where a block was used before.
#[test]
fn an_empty_tensor_may_be_read_and_holds_what_was_there() {
    let slab = SharedAllocator::new(SlabAllocator::new(64, 1).unwrap());
    let first = Tensor::empty([16], DType::U32, &slab).unwrap();
    first.write::<u32>().unwrap().fill(0xdead_beef);
    drop(first);
    let second = Tensor::empty([16], DType::U32, &slab).unwrap();
    assert_eq!(*second.read::<u32>().unwrap(), [0xdead_beef; 16]);
    drop(second);
    let zeros = Tensor::zeros([16], DType::U32, &slab).unwrap();
    assert_eq!(*zeros.read::<u32>().unwrap(), [0; 16]);
}

#[test]
fn the_elements_of_a_tensor_begin_at_64_bytes() {
    let slab = SharedAllocator::new(SlabAllocator::new(192, 8).unwrap());
    let tensors: Vec<Tensor> = (0..8)
        .map(|_| Tensor::empty([3], DType::I8, &slab).unwrap())
        .collect();
    let aligned = |tensor: &Tensor| tensor.data().addr().is_multiple_of(64);
    assert!(tensors.iter().all(aligned));
    // The heap gives 16 of its own accord, so one of them would be no proof.
    let odd: Vec<Tensor> = (0..64)
        .map(|bytes| Tensor::empty([bytes], DType::I8, cpu()).unwrap())
        .collect();
    assert!(odd.iter().all(aligned));
}

/// Threads are started in `populate` only, which is asked for a number of them. (Behind the
/// feature `rayon` operations use the pool that the caller is in, and start none.)
#[test]
fn a_tensor_starts_no_thread() {
    let src = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for folder in ["types", "memory", "tensor"] {
        let mut open = vec![src.join(folder)];
        while let Some(path) = open.pop() {
            if path.ends_with("memory/populate.rs") {
                continue;
            }
            if path.is_dir() {
                open.extend(
                    std::fs::read_dir(path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            let code = code.split("#[cfg(all(test").next().unwrap();
            let lines = code
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            for line in lines {
                let starts = ["thread::spawn", "thread::scope", "thread::Builder"];
                let found = starts.iter().any(|start| line.contains(start));
                assert!(!found, "{}: {line}", path.display());
            }
        }
    }
}
