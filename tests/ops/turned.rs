//! A matrix read across its rows, in sizes around the tiles it is moved in.
//!
//! A tile is a square whose side is a cache line, made of squares whose side is a vector:
//! 64 and 16 elements of a byte, 8 and 2 of eight bytes.

use tenslab::memory::cpu;
use tenslab::{DType, Tensor, ops};

/// Sides around vectors, around a tile and around two.
fn sides(width: usize) -> Vec<usize> {
    let mut sides = vec![1, 2, 3, 4, 5];
    for around in [16 / width, 64 / width, 128 / width] {
        sides.extend([around - 1, around, around + 1]);
    }
    sides.sort_unstable();
    sides.dedup();
    sides
}

/// Bytes that no period of a tile has: among the elements are NaNs, quiet and signalling.
fn mixed(dims: [usize; 2], dtype: DType) -> Tensor {
    let tensor = Tensor::empty(dims, dtype, cpu()).unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for byte in tensor.write_bytes().unwrap().iter_mut() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state.to_le_bytes()[5];
    }
    tensor
}

/// `part` of `whole` copied across, against the bytes of each element.
fn check(whole: &Tensor, rows: (usize, usize), columns: (usize, usize)) {
    let width = whole.dtype().bytes();
    let part = whole.slice(0, rows.0, rows.1).unwrap();
    let part = part.slice(1, columns.0, columns.1).unwrap();
    let across = part.transpose(0, 1).unwrap();
    let dst = Tensor::empty(*across.shape(), whole.dtype(), cpu()).unwrap();
    dst.write_bytes().unwrap().fill(0xa5);
    ops::copy(&dst, &across).unwrap();
    let (to, from) = (dst.read_bytes().unwrap(), whole.read_bytes().unwrap());
    let stride = whole.shape().dim(1);
    let mut moved = to.chunks_exact(width);
    for column in columns.0..columns.1 {
        for row in rows.0..rows.1 {
            let at = (row * stride + column) * width;
            let element = &from[at..at + width];
            assert_eq!(
                moved.next().unwrap(),
                element,
                "{} {rows:?} {columns:?}: row {row}, column {column}",
                whole.dtype()
            );
        }
    }
    assert!(moved.next().is_none());
}

#[test]
fn every_size_around_a_tile_is_turned_bit_by_bit() {
    for dtype in [DType::U8, DType::BF16, DType::F32, DType::F64] {
        let sides = sides(dtype.bytes());
        for &rows in &sides {
            for &columns in &sides {
                check(&mixed([rows, columns], dtype), (0, rows), (0, columns));
            }
        }
    }
}

#[test]
fn a_part_of_a_matrix_is_turned_and_nothing_beside_it() {
    for dtype in [DType::I8, DType::F16, DType::I32, DType::U64] {
        let sides = sides(dtype.bytes());
        let room = sides[sides.len() - 1] + 3;
        let whole = mixed([room, room], dtype);
        for &rows in &sides {
            for &columns in &sides {
                check(&whole, (1, 1 + rows), (2, 2 + columns));
            }
        }
    }
}

/// A cast reads in the same tiles.
#[test]
fn a_cast_across_rows_converts_what_a_copy_would_move() {
    for side in sides(2) {
        let whole = mixed([side, side + 1], DType::BF16);
        let across = whole.transpose(0, 1).unwrap();
        let packed = across.contiguous_in(cpu()).unwrap();
        let cast = |src: &Tensor| ops::cast(src, DType::F32, cpu()).unwrap();
        let (direct, by_way) = (cast(&across), cast(&packed));
        assert_eq!(
            *direct.read_bytes().unwrap(),
            *by_way.read_bytes().unwrap(),
            "side {side}"
        );
    }
}
