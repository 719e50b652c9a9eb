//! A tensor from a warm slab makes no heap block: not when it is made, viewed, cloned,
//! read, written or dropped. Counted by dhat, which sees every allocation of the process.
//!
//! ```text
//!   warm up ─▶ count ─▶ empty, every view, guards, item, drop ─▶ count: 0 more
//!                       the same with one Box in between      ─▶ count: 1 more
//! ```
//!
//! Bare and through a [`Meter`]: the storage's header lies in the slab's own table,
//! whoever stands in between. dhat is the global allocator of this binary and
//! counts every thread, so it has no test harness: its thread makes heap blocks whenever
//! it likes.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that fails should panic, and one that passes says so"
)]

use std::hint::black_box;

use tenslab::memory::{Meter, SharedAllocator, SlabAllocator, Tag};
use tenslab::{DType, Shape, Tensor, ops};

#[global_allocator]
static HEAP: dhat::Alloc = dhat::Alloc;

/// Heap blocks that `work` makes.
fn blocks(work: impl FnOnce()) -> u64 {
    let before = dhat::HeapStats::get().total_blocks;
    work();
    dhat::HeapStats::get().total_blocks - before
}

fn plant(planted: bool) {
    if planted {
        drop(black_box(Box::new(7_u64)));
    }
}

type Work = fn(&SharedAllocator, bool);

/// `Tensor::empty`, views and clones.
fn views(slab: &SharedAllocator, planted: bool) {
    let shape = Shape::from_dims(&[3, 16, 8]).unwrap();
    let tensor = Tensor::empty(shape, DType::F32, slab).unwrap();
    let clone = tensor.clone();
    let rows = tensor.slice(0, 1, 2).unwrap();
    plant(planted);
    let inner = tensor.slice(2, 1, 3).unwrap();
    let flat = rows.reshape([128]).unwrap();
    let bits = flat.view_as_dtype(DType::U32).unwrap();
    let window = Tensor::from_storage(tensor.storage(), 64, [4], DType::F16).unwrap();
    drop((tensor, clone, rows, inner, flat, window));
    drop(bits);
}

/// Other orders, parts, fewer and more dimensions; and each way to be refused.
fn reordered(slab: &SharedAllocator, planted: bool) {
    let tensor = Tensor::empty([3, 1, 16], DType::F32, slab).unwrap();
    let turned = tensor.permute(&[2, 0, 1]).unwrap();
    let swapped = tensor.transpose(0, 2).unwrap();
    let flat = tensor.squeeze(1).unwrap();
    let raised = flat.unsqueeze(0).unwrap();
    let row = flat.select(0, 2).unwrap();
    let narrow = row.narrow(0, 4, 8).unwrap();
    plant(planted);
    let [q, k, v] = narrow.split(0, [4, 2, 2]).unwrap();
    let parts = row.chunks(0, 5).unwrap().filter(|part| part.numel() == 5);
    assert_eq!(parts.count(), 3);
    let same = narrow.contiguous_in(slab).unwrap();
    let packed = swapped.contiguous_in(slab).unwrap();
    assert_ne!(packed.storage_id(), same.storage_id());

    assert!(tensor.slice(0, 2, 4).is_err() && tensor.slice(3, 0, 0).is_err());
    assert!(turned.reshape([48]).is_err() && tensor.reshape([47]).is_err());
    assert!(turned.read::<f32>().is_err() && turned.read::<i32>().is_err());
    assert!(tensor.view_as_dtype(DType::F16).is_err());
    assert!(tensor.view_as_dtype(DType::I4).is_err());
    assert!(tensor.permute(&[0, 1]).is_err() && tensor.permute(&[0, 1, 1]).is_err());
    assert!(tensor.squeeze(0).is_err() && tensor.unsqueeze(4).is_err());
    assert!(tensor.select(0, 3).is_err() && tensor.narrow(0, 1, 3).is_err());
    assert!(tensor.split(0, [1, 1]).is_err() && tensor.chunks(0, 0).is_err());
    assert!(Tensor::empty([1 << 20], DType::F32, slab).is_err());
    assert!(Tensor::from_storage(tensor.storage(), 1 << 20, [1], DType::F32).is_err());
    drop((q, k, v, raised));
}

/// A sole owner and slices without a guard.
fn direct(slab: &SharedAllocator, planted: bool) {
    let mut tensor = Tensor::zeros([4, 16], DType::F32, slab).unwrap();
    tensor.get_mut::<f32>().unwrap()[3] = 1.0;
    let row = tensor.select(0, 0).unwrap();
    assert!(tensor.get_mut::<f32>().is_err());
    plant(planted);
    // SAFETY: one thread, and no other slice lives.
    unsafe { row.as_mut_slice::<f32>() }.unwrap()[4] = 2.0;
    // SAFETY: one thread, and no other slice lives.
    let elements = unsafe { tensor.as_slice::<f32>() }.unwrap();
    assert_eq!(elements[3..5], [1.0, 2.0]);
    tensor.write_bytes().unwrap()[0] = 1;
    assert!(!tensor.data().is_null() && !tensor.data_ptr::<f32>().is_null());
}

/// Guards of all kinds, also where they are refused.
fn guards(slab: &SharedAllocator, planted: bool) {
    let qkv = Tensor::zeros([3, 64], DType::F32, slab).unwrap();
    let [q, k, v] = [0, 1, 2].map(|row| qkv.slice(0, row, row + 1).unwrap());
    qkv.write::<f32>().unwrap()[0] = 1.0;
    assert_eq!(qkv.read::<f32>().unwrap()[0], 1.0);
    assert_eq!(qkv.read_bytes().unwrap().len(), 768);
    let mut all = Tensor::write_disjoint::<f32, 3>([&q, &k, &v]).unwrap();
    plant(planted);
    for slice in all.slices() {
        slice.fill(2.0);
    }
    assert!(qkv.read::<f32>().is_err() && qkv.write::<f32>().is_err());
    drop(all);
    assert_eq!(k.item::<f32>(&[0, 9]), 2.0);
    qkv.freeze().unwrap();
    assert_eq!(v.read::<f32>().unwrap()[63], 2.0);
    assert!(q.write::<f32>().is_err());
}

/// `copy` and `cast`, packed and strided.
fn operations(slab: &SharedAllocator, planted: bool) {
    let src = Tensor::zeros([8, 16], DType::F32, slab).unwrap();
    let dst = Tensor::empty([8, 16], DType::F32, slab).unwrap();
    ops::copy(&dst, &src).unwrap();
    let (left, right) = (dst.slice(1, 0, 8).unwrap(), src.slice(1, 8, 16).unwrap());
    ops::copy(&left, &right).unwrap();
    plant(planted);
    let half = ops::cast(&left, DType::BF16, slab).unwrap();
    drop(ops::cast(&half, DType::F32, slab).unwrap());
}

fn main() {
    let _counting = dhat::Profiler::builder().testing().build();
    let slab = || SlabAllocator::new(4096, 16).unwrap();
    let stacks = [
        ("slab", SharedAllocator::new(slab())),
        (
            "meter",
            SharedAllocator::new(Meter::new(slab())).with_tag(Tag::Activations),
        ),
        (
            "meter of meter",
            SharedAllocator::new(Meter::new(Meter::new(slab()))),
        ),
        ("shared", SharedAllocator::new(SharedAllocator::new(slab()))),
    ];
    let all: [(&str, Work); 5] = [
        ("views", views),
        ("reordered", reordered),
        ("direct", direct),
        ("guards", guards),
        ("operations", operations),
    ];
    for (stack, slab) in &stacks {
        for (name, work) in all {
            work(slab, false);
            let made = blocks(|| work(slab, false));
            assert_eq!(made, 0, "{name} from {stack}");
            let made = blocks(|| work(slab, true));
            assert_eq!(made, 1, "{name} from {stack}: the planted box is seen");
        }
        assert_eq!(slab.outstanding(), 0);
    }
    println!("tensors from a warm slab make no heap block: ok");
}
