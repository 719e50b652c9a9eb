//! Every pair of dtypes against NumPy and ml_dtypes: `scripts/golden_casts.py` wrote what
//! they say, and says how.
//!
//! Two things differ, and are meant to: a NaN is some NaN here (which of its bits stay is in
//! `cast.rs`), and where NumPy wraps or saturates, a cast to an integer is refused.

use tenslab::memory::cpu;
use tenslab::tensor::TensorError;
use tenslab::{DType, Tensor, bf16, f16, ops};

static CASTS: &[u8] = include_bytes!("../golden/casts.bin");

/// One pair of dtypes.
struct Record {
    from: DType,
    to: DType,
    source: Vec<u8>,
    fits: Vec<bool>,
    expected: Vec<u8>,
}

fn records() -> Vec<Record> {
    let mut rest = CASTS;
    let mut take = |bytes: usize| rest.split_off(..bytes).unwrap();
    let mut records = Vec::new();
    for _ in 0..144 {
        let head = take(4);
        let (from, to) = (
            DType::from_code(head[0]).unwrap(),
            DType::from_code(head[1]).unwrap(),
        );
        let count = usize::from(u16::from_le_bytes([head[2], head[3]]));
        records.push(Record {
            from,
            to,
            source: take(count * from.bytes()).to_vec(),
            fits: take(count).iter().map(|&fits| fits == 1).collect(),
            expected: take(count * to.bytes()).to_vec(),
        });
    }
    assert!(rest.is_empty(), "{} bytes too many", rest.len());
    records
}

fn of_bytes(dtype: DType, bytes: &[u8]) -> Tensor {
    let tensor = Tensor::empty([bytes.len() / dtype.bytes()], dtype, cpu()).unwrap();
    tensor.write_bytes().unwrap().copy_from_slice(bytes);
    tensor
}

/// The same elements as the middle column of a matrix.
fn strided(src: &Tensor) -> Tensor {
    let whole = Tensor::zeros([src.numel(), 3], src.dtype(), cpu()).unwrap();
    let column = whole.slice(1, 1, 2).unwrap().squeeze(1).unwrap();
    ops::copy(&column, src).unwrap();
    column
}

fn is_nan(dtype: DType, element: &[u8]) -> bool {
    match (dtype, element) {
        (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).is_nan(),
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).is_nan(),
        (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).is_nan(),
        (DType::F64, bytes) => f64::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        _ => false,
    }
}

#[test]
fn every_pair_of_dtypes_agrees_with_numpy() {
    let mut pairs = std::collections::HashSet::new();
    let (mut compared, mut nans, mut refused) = (0, 0, 0);
    for Record {
        from,
        to,
        source,
        fits,
        expected,
    } in records()
    {
        pairs.insert((from, to));
        let (narrow, wide) = (from.bytes(), to.bytes());
        // Those that fit, all at once, packed and strided.
        let fitting: Vec<u8> = source
            .chunks(narrow)
            .zip(&fits)
            .filter(|(_, fits)| **fits)
            .flat_map(|(element, _)| element.to_vec())
            .collect();
        let expected = expected.chunks(wide).zip(&fits).filter(|(_, fits)| **fits);
        let packed = of_bytes(from, &fitting);
        for src in [strided(&packed), packed] {
            let cast = ops::cast(&src, to, cpu()).unwrap();
            let found = cast.read_bytes().unwrap();
            assert_eq!(found.len() / wide, expected.clone().count());
            for (at, (found, (expected, _))) in found.chunks(wide).zip(expected.clone()).enumerate()
            {
                let both_nan = is_nan(to, found) && is_nan(to, expected);
                assert!(
                    found == expected || (both_nan && from != to),
                    "{from} {:02x?} to {to}: {found:02x?}, NumPy says {expected:02x?}",
                    &fitting[at * narrow..][..narrow]
                );
                compared += 1;
                nans += usize::from(both_nan);
            }
        }
        // Each of those that do not, behind one that does.
        for (element, _) in source.chunks(narrow).zip(&fits).filter(|(_, fits)| !**fits) {
            let src = of_bytes(from, &[&vec![0; narrow], element].concat());
            match ops::cast(&src, to, cpu()) {
                Err(TensorError::ElementOutOfRange { dtype, index, .. }) => {
                    assert_eq!((dtype, &*index), (to, &[1][..]));
                }
                other => panic!("{from} {element:02x?} to {to}: {other:?}"),
            }
            refused += 1;
        }
    }
    assert_eq!(pairs.len(), 144, "twelve dtypes, each to each");
    // What the file holds: nothing was passed over.
    assert_eq!((compared, nans, refused), (19_728, 64, 4_344));
}
