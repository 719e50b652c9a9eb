//! Any two views of one shape: `copy` and `cast` against the loop that anybody would write.
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

/// What lies where in the storage after the naive loop: each element read first, then written.
fn naive(dst: &Tensor, src: &Tensor) -> Vec<u8> {
    let width = dst.dtype().bytes();
    let at = |tensor: &Tensor, index: &[usize]| {
        let strides = tensor.strides().values().iter();
        let element: usize = strides
            .zip(index)
            .map(|(stride, index)| stride * index)
            .sum();
        tensor.byte_offset() + element * width
    };
    let (mut to, from) = (contents(dst.storage()), contents(src.storage()));
    for_each_index(dst.shape().dims(), |index| {
        let element = &from[at(src, index)..][..width];
        to[at(dst, index)..][..width].copy_from_slice(element);
    });
    to
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
        let strides = view.strides().values().iter();
        let element: usize = strides.zip(index).map(|(s, i)| s * i).sum();
        let at = view.byte_offset() + element * size_of::<T>();
        expected[at..][..size_of::<T>()].copy_from_slice(&found[at..][..size_of::<T>()]);
    });
    assert_eq!(found, expected);
}
