//! Any views: `copy`, `cast`, `gather_rows`, `cat`, `stack` and `allclose` against the loop
//! that anybody would write.
//!
//! ```text
//!   a view    a packed tensor of random sizes (0 and 1 among them), permuted, then cut along
//!             each dimension; two of them, of one shape, of two storages or of one
//!   model     for each index: target[index] = source[index], one `item` at a time
//! ```

use proptest::prelude::*;
use tenslab::memory::{Storage, cpu};
use tenslab::tensor::TensorError;
use tenslab::{DType, Element, Tensor, f16, ops};

use super::for_each_index;

/// How a view of a given shape lies in a packed tensor: in which order its dimensions are, and how
/// much there is beside it, before and behind.
#[derive(Debug, Clone)]
struct Layout {
    order: Vec<usize>,
    before: Vec<usize>,
    behind: Vec<usize>,
}

fn layouts(rank: usize) -> impl Strategy<Value = Layout> {
    // Mostly nothing beside it, or no two dimensions could ever be walked as one.
    let beside = prop_oneof![3 => Just(0_usize), 1 => 1_usize..3];
    (
        Just((0..rank).collect::<Vec<_>>()).prop_shuffle(),
        prop::collection::vec(beside.clone(), rank),
        prop::collection::vec(beside, rank),
    )
        .prop_map(|(order, before, behind)| Layout {
            order,
            before,
            behind,
        })
}

/// A shape and two layouts of it. Sizes around the side of a tile, too.
fn cases() -> impl Strategy<Value = (Vec<usize>, Layout, Layout)> {
    let size = prop_oneof![
        2 => Just(1_usize), 1 => Just(0), 8 => 2_usize..6, 2 => 15_usize..18, 1 => 63_usize..67,
    ];
    prop::collection::vec(size, 0..5)
        .prop_filter("small enough to be walked by item", |dims| {
            dims.iter().product::<usize>() <= 20_000
        })
        .prop_flat_map(|dims| {
            let rank = dims.len();
            (Just(dims), layouts(rank), layouts(rank))
        })
}

impl Layout {
    /// Sizes of the packed tensor, outermost first.
    fn whole(&self, dims: &[usize]) -> Vec<usize> {
        let size = |&dim: &usize| self.before[dim] + dims[dim] + self.behind[dim];
        self.order.iter().map(size).collect()
    }

    fn view(&self, dims: &[usize], storage: &Storage, offset: usize, dtype: DType) -> Tensor {
        let shape = tenslab::Shape::from_dims(&self.whole(dims)).unwrap();
        let whole = Tensor::from_storage(storage, offset, shape, dtype).unwrap();
        // Dimension `dim` of the view is where `order` says.
        let mut back = vec![0; dims.len()];
        for (at, &dim) in self.order.iter().enumerate() {
            back[dim] = at;
        }
        let mut view = whole.permute(&back).unwrap();
        for (dim, &size) in dims.iter().enumerate() {
            view = view
                .slice(dim, self.before[dim], self.before[dim] + size)
                .unwrap();
        }
        assert_eq!(view.shape().dims(), dims);
        view
    }

    fn bytes(&self, dims: &[usize], width: usize) -> usize {
        self.whole(dims).iter().product::<usize>() * width
    }
}

/// A storage whose every byte tells where it is.
fn numbered(bytes: usize) -> Storage {
    let storage = Storage::from(cpu().allocate(bytes, 64).unwrap());
    let all = Tensor::from_storage(&storage, 0, [bytes], DType::U8).unwrap();
    for (at, byte) in all.write::<u8>().unwrap().iter_mut().enumerate() {
        *byte = (at * 167 + at / 256 * 31) as u8;
    }
    storage
}

fn contents(storage: &Storage) -> Vec<u8> {
    let all = Tensor::from_storage(storage, 0, [storage.len()], DType::U8).unwrap();
    all.read::<u8>().unwrap().to_vec()
}

/// Where in its storage an element begins.
fn place(tensor: &Tensor, index: &[usize]) -> usize {
    let strides = tensor.strides().values().iter();
    let element: usize = strides
        .zip(index)
        .map(|(stride, index)| stride * index)
        .sum();
    tensor.byte_offset() + element * tensor.dtype().bytes()
}

/// What lies where in the target's storage after the naive loop: each element read first, then
/// written. `seen` says which index of the source is wanted.
fn naive_by(dst: &Tensor, src: &Tensor, seen: impl Fn(&[usize]) -> Vec<usize>) -> Vec<u8> {
    let width = dst.dtype().bytes();
    let (mut to, from) = (contents(dst.storage()), contents(src.storage()));
    for_each_index(dst.shape().dims(), |index| {
        let element = &from[place(src, &seen(index))..][..width];
        to[place(dst, index)..][..width].copy_from_slice(element);
    });
    to
}

fn naive(dst: &Tensor, src: &Tensor) -> Vec<u8> {
    naive_by(dst, src, <[usize]>::to_vec)
}

/// Two shapes of one rank that differ in the first dimension at most, and rows of the second.
fn tables() -> impl Strategy<Value = (Vec<usize>, Layout, Layout, Vec<u32>)> {
    let cases = cases().prop_filter("a first dimension", |(dims, ..)| !dims.is_empty());
    let rows = prop::collection::vec(any::<prop::sample::Index>(), 0..7);
    (cases, rows).prop_map(|((dims, to, from), rows)| {
        let rows = rows.iter().take(7 * dims[0]);
        let rows = rows.map(|row| row.index(dims[0]) as u32).collect();
        (dims, to, from, rows)
    })
}

/// Parts of one shape but for a dimension, each with a layout of its own.
fn parts() -> impl Strategy<Value = (Vec<usize>, usize, Vec<(usize, Layout)>)> {
    prop::collection::vec(0_usize..6, 1..5).prop_flat_map(|dims| {
        let rank = dims.len();
        let part = (0_usize..5, layouts(rank));
        (Just(dims), 0..rank, prop::collection::vec(part, 1..4))
    })
}

const WIDTHS: [DType; 4] = [DType::U8, DType::BF16, DType::I32, DType::F64];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// All bytes of the target's storage are compared: those beside the view too.
    #[test]
    fn a_copy_between_any_two_views_equals_the_naive_loop(
        (dims, to, from) in cases(),
        dtype in prop::sample::select(&WIDTHS[..]),
        // The target and the source may begin anywhere, aligned or not.
        to_offset in 0_usize..9,
        from_offset in 0_usize..9,
    ) {
        let width = dtype.bytes();
        let to_storage = numbered(to_offset + to.bytes(&dims, width));
        let from_storage = numbered(from_offset + from.bytes(&dims, width) + 1);
        let dst = to.view(&dims, &to_storage, to_offset, dtype);
        let src = from.view(&dims, &from_storage, from_offset, dtype);
        let (expected, before) = (naive(&dst, &src), contents(&from_storage));
        ops::copy(&dst, &src).unwrap();
        prop_assert_eq!(contents(&to_storage), expected);
        prop_assert_eq!(contents(&from_storage), before);
    }

    /// Within one storage a copy is right or refused, and a refused one writes nothing.
    #[test]
    fn a_copy_within_one_storage_is_right_or_refused(
        (dims, to, from) in cases(),
        dtype in prop::sample::select(&WIDTHS[..]),
        from_offset in any::<prop::sample::Index>(),
    ) {
        let width = dtype.bytes();
        let (to_bytes, from_bytes) = (to.bytes(&dims, width), from.bytes(&dims, width));
        // From the same place to well beyond the target, so that all kinds of overlap happen.
        let from_offset = from_offset.index(to_bytes + 2);
        let storage = numbered(to_bytes.max(from_offset + from_bytes));
        let dst = to.view(&dims, &storage, 0, dtype);
        let src = from.view(&dims, &storage, from_offset, dtype);
        let (expected, before) = (naive(&dst, &src), contents(&storage));
        match ops::copy(&dst, &src) {
            Ok(()) => prop_assert_eq!(contents(&storage), expected),
            Err(TensorError::Overlap { .. }) => {
                prop_assert_eq!(contents(&storage), before);
                prop_assert!(!dst.is_contiguous() || !src.is_contiguous());
                prop_assert!(from_offset < to_bytes);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    /// Through all layouts and misaligned, and with the first element that does not fit.
    #[test]
    fn a_cast_of_any_view_equals_the_naive_loop(
        (dims, _, from) in cases(),
        offset in 0_usize..5,
    ) {
        let storage = numbered(offset + from.bytes(&dims, 2));
        let halves = from.view(&dims, &storage, offset, DType::F16);
        let wide = ops::cast(&halves, DType::F32, cpu()).unwrap();
        prop_assert!(wide.is_contiguous());
        let mut at = 0;
        let elements = wide.read::<f32>().unwrap();
        for_each_index(&dims, |index| {
            let expected = tenslab::types::half::f16_to_f32(halves.item::<f16>(index));
            assert_eq!(elements[at].to_bits(), expected.to_bits());
            at += 1;
        });

        let words = from.view(&dims, &storage, offset, DType::I16);
        let mut unfit = None;
        for_each_index(&dims, |index| {
            if unfit.is_none() && i8::try_from(words.item::<i16>(index)).is_err() {
                unfit = Some(index.to_vec());
            }
        });
        match (ops::cast(&words, DType::I8, cpu()), unfit) {
            (Ok(bytes), None) => for_each_index(&dims, |index| {
                assert_eq!(i16::from(bytes.item::<i8>(index)), words.item::<i16>(index));
            }),
            (Err(TensorError::ElementOutOfRange { value, index, .. }), Some(first)) => {
                prop_assert_eq!(value, words.item::<i16>(&first).into());
                prop_assert_eq!(&*index, &first[..]);
            }
            (found, expected) => prop_assert!(false, "{:?}, expected {:?}", found, expected),
        }
    }

    /// All bytes of the target's storage are compared here too.
    #[test]
    fn rows_of_any_table_are_gathered_into_any_view(
        (mut dims, to, from, rows) in tables(),
        dtype in prop::sample::select(&WIDTHS[..]),
        offset in 0_usize..9,
    ) {
        let width = dtype.bytes();
        let from_storage = numbered(offset + from.bytes(&dims, width));
        let table = from.view(&dims, &from_storage, offset, dtype);
        dims[0] = rows.len();
        let to_storage = numbered(to.bytes(&dims, width));
        let dst = to.view(&dims, &to_storage, 0, dtype);
        let expected = naive_by(&dst, &table, |index| {
            let mut index = index.to_vec();
            index[0] = rows[index[0]] as usize;
            index
        });
        ops::gather_rows(&dst, &table, &rows).unwrap();
        prop_assert_eq!(contents(&to_storage), expected);
    }

    /// And what is stacked is what is joined with a dimension of 1 more.
    #[test]
    fn any_parts_are_joined_as_the_naive_loop_would(
        (mut dims, dim, parts) in parts(),
        dtype in prop::sample::select(&WIDTHS[..]),
        offset in 0_usize..9,
    ) {
        let parts: Vec<Tensor> = parts
            .iter()
            .map(|(size, layout)| {
                dims[dim] = *size;
                let storage = numbered(offset + layout.bytes(&dims, dtype.bytes()));
                layout.view(&dims, &storage, offset, dtype)
            })
            .collect();
        let all: Vec<&Tensor> = parts.iter().collect();
        let whole = ops::cat(&all, dim, cpu()).unwrap();
        prop_assert!(whole.is_contiguous());
        // What the loop would write for each part is there already.
        let (mut start, found) = (0, contents(whole.storage()));
        for part in &parts {
            let size = part.shape().dim(dim);
            let here = whole.slice(dim, start, start + size).unwrap();
            prop_assert_eq!(&naive(&here, part), &found);
            start += size;
        }
        prop_assert_eq!(whole.shape().dim(dim), start);

        let same: Vec<&Tensor> = vec![all[0]; all.len()];
        for at in 0..=dims.len() {
            let stacked = ops::stack(&same, at, cpu()).unwrap();
            let raised = all[0].unsqueeze(at).unwrap();
            let joined = ops::cat(&vec![&raised; all.len()], at, cpu()).unwrap();
            prop_assert_eq!(stacked.shape(), joined.shape());
            prop_assert_eq!(contents(stacked.storage()), contents(joined.storage()));
        }
    }

    /// Of few values, so that some are close, some are not, and some are NaNs.
    #[test]
    fn two_views_are_compared_as_the_naive_loop_would((dims, a, b) in cases()) {
        let filled = |layout: &Layout, seed: usize| {
            let storage = numbered(layout.bytes(&dims, 4));
            let all = Tensor::from_storage(&storage, 0, [storage.len() / 4], DType::F32).unwrap();
            let values = [1.0, 1.5, f32::NAN, -2.0, f32::INFINITY, 1.000_001, 1.5, 1.0];
            for (at, element) in all.write::<f32>().unwrap().iter_mut().enumerate() {
                *element = values[((at * seed) >> 3) % 8];
            }
            layout.view(&dims, &storage, 0, DType::F32)
        };
        let (a, b) = (filled(&a, 7), filled(&b, 5));
        let (mut mismatches, mut worst, mut largest) = (0, None, 0.0_f64);
        for_each_index(&dims, |index| {
            let (a, b) = (f64::from(a.item::<f32>(index)), f64::from(b.item::<f32>(index)));
            let diff = if a == b { 0.0 } else { (a - b).abs() };
            let diff = if diff.is_nan() { f64::INFINITY } else { diff };
            let is_close = a == b || (diff.is_finite() && diff <= 1e-8 + 1e-5 * b.abs());
            largest = largest.max(diff);
            mismatches += usize::from(!is_close);
            if !is_close && worst.as_ref().is_none_or(|(worst, _)| diff > *worst) {
                worst = Some((diff, index.to_vec()));
            }
        });
        let found = ops::allclose(&a, &b, None).unwrap();
        prop_assert_eq!((found.compared, found.mismatches), (a.numel(), mismatches));
        prop_assert_eq!(found.max_abs_diff, largest);
        let index = found.worst.map(|worst| worst.index().to_vec());
        prop_assert_eq!(index, worst.map(|(_, index)| index));
    }

    /// Row-major order of the index, whatever the layout: the seeded fills rest on it.
    #[test]
    fn a_seeded_fill_of_any_view_equals_that_of_a_packed_one((dims, to, _) in cases()) {
        let storage = numbered(to.bytes(&dims, 4) + 1);
        let view = to.view(&dims, &storage, 1, DType::F32);
        let shape = *view.shape();
        let packed = Tensor::empty(shape, DType::F32, cpu()).unwrap();
        ops::fill_normal(&view, 1.0, 2.0, 11).unwrap();
        ops::fill_normal(&packed, 1.0, 2.0, 11).unwrap();
        let exactly = ops::Tolerance { relative: 0.0, absolute: 0.0 };
        let report = ops::allclose(&view, &packed, exactly).unwrap();
        prop_assert!(report.is_close(), "{}", report);
        assert_beside_untouched::<f32>(&view, &storage);
    }
}

/// Every byte that is no element of the view is as `numbered` left it.
fn assert_beside_untouched<T: Element>(view: &Tensor, storage: &Storage) {
    let mut expected = contents(&numbered(storage.len()));
    let found = contents(storage);
    for_each_index(view.shape().dims(), |index| {
        let at = place(view, index);
        expected[at..][..size_of::<T>()].copy_from_slice(&found[at..][..size_of::<T>()]);
    });
    assert_eq!(found, expected);
}
