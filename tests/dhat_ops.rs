//! Operations make no heap block of their own: not where the target exists, and not where it
//! comes from a warm slab. Counted by dhat, which sees every allocation of the process.
//!
//! ```text
//!   warm up ─▶ count ─▶ every operation, refusals too ─▶ count: 0 more
//!                       the same with one Box in between  ─▶ count: 1 more
//! ```
//!
//! dhat is the global allocator of this binary and counts every thread, so it has no
//! test harness: its thread makes heap blocks whenever it likes. The tensors are
//! small, so that none is shared among the threads of `rayon`, whose pool makes blocks.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that fails should panic, and one that passes says so"
)]

use std::hint::black_box;

use tenslab::memory::{SharedAllocator, SlabAllocator};
use tenslab::{DType, Tensor, ops};

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

/// What makes a tensor.
fn created(slab: &SharedAllocator, planted: bool) {
    let full = ops::full([8, 16], 1.5, DType::BF16, slab).unwrap();
    let ones = ops::ones([8, 16], DType::I8, slab).unwrap();
    plant(planted);
    let zeros = ops::zeros([8, 16], DType::F64, slab).unwrap();
    let steps = ops::arange(0, 90, 3, None, slab).unwrap();
    assert_eq!(steps.numel(), 30);
    assert!(ops::full([8], 1000, DType::I8, slab).is_err());
    assert!(ops::full([8], 1, DType::I4, slab).is_err());
    assert!(ops::arange(0, 9, 0, None, slab).is_err());
    drop((full, ones, zeros));
}

/// What writes to a tensor that is there, packed and strided.
fn filled(slab: &SharedAllocator, planted: bool) {
    let whole = Tensor::empty([8, 16], DType::F16, slab).unwrap();
    for view in [whole.clone(), whole.slice(1, 3, 9).unwrap()] {
        ops::fill(&view, 2).unwrap();
        plant(planted && view.is_contiguous());
        ops::fill_uniform(&view, -1.0, 1.0, 7).unwrap();
        ops::fill_normal(&view, 0.0, 1.0, 7).unwrap();
    }
    assert!(ops::fill_uniform(&whole, 1.0, 0.0, 7).is_err());
    assert!(ops::fill_normal(&whole, f64::NAN, 1.0, 7).is_err());
    whole.freeze().unwrap();
    assert!(ops::fill(&whole, 1).is_err());
}

/// `copy` and `cast` along rows, across them, and element by element.
fn moved(slab: &SharedAllocator, planted: bool) {
    for dtype in [DType::U8, DType::F16, DType::F32, DType::F64] {
        let src = ops::full([20, 20], 3, dtype, slab).unwrap();
        let dst = Tensor::empty([20, 20], dtype, slab).unwrap();
        ops::copy(&dst, &src).unwrap();
        ops::copy(&dst, &src.transpose(0, 1).unwrap()).unwrap();
        plant(planted && dtype == DType::F16);
        ops::copy(&dst.transpose(0, 1).unwrap(), &src).unwrap();
        let (to, from) = (dst.slice(1, 0, 7).unwrap(), src.slice(1, 7, 14).unwrap());
        ops::copy(&to, &from).unwrap();
        let (to, from) = (dst.select(1, 0).unwrap(), src.select(1, 7).unwrap());
        ops::copy(&to, &from).unwrap();
        for wanted in [DType::BF16, DType::I32, dtype] {
            for view in [src.clone(), src.transpose(0, 1).unwrap(), from.clone()] {
                drop(ops::cast(&view, wanted, slab).unwrap());
            }
        }
        assert!(ops::cast(&src, DType::Bool, slab).is_err());
        let (left, right) = (dst.slice(1, 0, 7).unwrap(), dst.slice(1, 3, 10).unwrap());
        assert!(ops::copy(&left, &right).is_err());
    }
}

/// Rows by number, and several tensors in one.
fn joined(slab: &SharedAllocator, planted: bool) {
    let table = ops::full([6, 8], 2, DType::BF16, slab).unwrap();
    let rows = Tensor::empty([3, 8], DType::BF16, slab).unwrap();
    ops::gather_rows(&rows, &table, &[5, 0, 5]).unwrap();
    let turned = table.transpose(0, 1).unwrap();
    let columns = Tensor::empty([2, 6], DType::BF16, slab).unwrap();
    ops::gather_rows(&columns, &turned, &[7, 1]).unwrap();
    plant(planted);
    let below = ops::cat(&[&table, &rows], 0, slab).unwrap();
    let beside = ops::cat(&[&turned, &turned], 1, slab).unwrap();
    let raised = ops::stack(&[&table, &table], 2, slab).unwrap();
    assert_eq!(below.shape().dims(), [9, 8]);
    assert_eq!(beside.shape().dims(), [8, 12]);
    assert_eq!(raised.shape().dims(), [6, 8, 2]);
    assert!(ops::gather_rows(&rows, &table, &[6, 0, 0]).is_err());
    assert!(ops::cat(&[], 0, slab).is_err());
    assert!(ops::cat(&[&table], 2, slab).is_err());
}

/// `allclose`, whether they are or not.
fn compared(slab: &SharedAllocator, planted: bool) {
    let a = ops::full([4, 9], 1.0, DType::F32, slab).unwrap();
    let b = ops::full([9, 4], 1.0, DType::F32, slab).unwrap();
    let b = b.transpose(0, 1).unwrap();
    assert!(ops::allclose(&a, &b, None).unwrap().is_close());
    plant(planted);
    b.select(1, 4).unwrap().write::<f32>().unwrap().fill(2.0);
    let found = ops::allclose(&a, &b, None).unwrap();
    assert!(!found.is_close());
    assert!(ops::allclose(&a, &a.view_as_dtype(DType::I32).unwrap(), None).is_err());
}

fn main() {
    let _counting = dhat::Profiler::builder().testing().build();
    let slab = SharedAllocator::new(SlabAllocator::new(4096, 16).unwrap());
    let all: [(&str, Work); 5] = [
        ("created", created),
        ("filled", filled),
        ("moved", moved),
        ("joined", joined),
        ("compared", compared),
    ];
    for (name, work) in all {
        work(&slab, false);
        let made = blocks(|| work(&slab, false));
        assert_eq!(made, 0, "{name}");
        let made = blocks(|| work(&slab, true));
        assert_eq!(made, 1, "{name}: the planted box is seen");
    }
    assert_eq!(slab.outstanding(), 0);
    println!("operations make no heap block of their own: ok");
}
