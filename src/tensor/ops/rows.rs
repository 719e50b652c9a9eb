//! A strided source, handed out in rows as the target lies in memory.
//!
//! ```text
//!   source   a b c d        tile, turned      target, packed
//!            e f g h   ──▶    a e i     ──▶     a e i m q …
//!            i j k l          b f j             b f j n r …
//!            …                c g k             …
//! ```
//!
//! Where the source's rows are the target's columns, going along one of them touches a
//! cache line for each element. So a square that is one cache line wide is read whole
//! rows at a time, turned in a buffer, and handed out whole rows at a time: each line of
//! either side is touched once, whatever the strides (powers of two too, where a tile
//! left in place would fall into one set of the cache).

use std::array;

use super::loops::{Loop, Loops};
use super::span::Word;
use super::turn::turn_block;

/// Bytes of a tile's row: a cache line.
const LINE: usize = 64;

/// Elements that are gathered before they are handed on.
const GATHERED: usize = 128;

/// Below this many rows or columns a tile is mostly edge, and lines are gathered instead.
const NARROW: usize = 4;

/// Calls `sink(offset in to, elements)` until every element of `from` was handed out,
/// some of them twice. The innermost loop must step by 1 in `to`.
pub(super) fn for_each_row<E: Word>(loops: &Loops, from: &[E], mut sink: impl FnMut(usize, &[E])) {
    let row = loops.innermost();
    debug_assert!(row.to == 1 || row.size == 1, "rows of {row:?}");
    if row.from == 1 {
        return loops.for_each(1, |to_at, from_at| {
            sink(to_at, &from[from_at..from_at + row.size]);
        });
    }
    if let Some(at) = across(loops) {
        let outer = loops.without(at);
        let column = loops.all()[at];
        return outer.for_each(1, |to_at, from_at| {
            let mut sink = |at: usize, elements: &[E]| sink(to_at + at, elements);
            let from = &from[from_at..];
            match LINE / size_of::<E>() {
                64 => turn::<E, 64, 16>(column, row, from, &mut sink),
                32 => turn::<E, 32, 8>(column, row, from, &mut sink),
                16 => turn::<E, 16, 4>(column, row, from, &mut sink),
                _ => turn::<E, 8, 2>(column, row, from, &mut sink),
            }
        });
    }
    let mut gathered = [from[0]; GATHERED];
    loops.for_each(1, |to_at, from_at| {
        let mut done = 0;
        while done < row.size {
            let part = GATHERED.min(row.size - done);
            let line = from[from_at + done * row.from..].iter().step_by(row.from);
            for (to, from) in gathered[..part].iter_mut().zip(line) {
                *to = *from;
            }
            sink(to_at + done, &gathered[..part]);
            done += part;
        }
    });
}

/// The loop that goes along the source's memory while the innermost one goes across it,
/// if turning pays.
fn across(loops: &Loops) -> Option<usize> {
    let row = loops.innermost();
    let outer = &loops.all()[..loops.all().len() - 1];
    let (at, column) = outer.iter().enumerate().min_by_key(|(_, each)| each.from)?;
    let pays = column.from < row.from && column.size >= NARROW && row.size >= NARROW;
    pays.then_some(at)
}

/// Hands out the plane of two loops, tile by tile. `column` steps along the source's
/// memory, `row` along the target's.
fn turn<E: Word, const SIDE: usize, const LANES: usize>(
    column: Loop,
    row: Loop,
    from: &[E],
    sink: &mut impl FnMut(usize, &[E]),
) {
    let mut tile = [[from[0]; SIDE]; SIDE];
    for row_at in corners::<SIDE>(row.size) {
        let width = SIDE.min(row.size - row_at);
        for column_at in corners::<SIDE>(column.size) {
            let height = SIDE.min(column.size - column_at);
            let from = &from[row_at * row.from + column_at * column.from..];
            let to_at = column_at * column.to + row_at;
            if width == SIDE && height == SIDE && column.from == 1 {
                turn_tile::<E, SIDE, LANES>(from, row.from, &mut tile);
                // The whole of each row, whose length the compiler then knows.
                for (y, turned) in tile.iter().enumerate() {
                    sink(to_at + y * column.to, turned);
                }
                continue;
            }
            for x in 0..width {
                let line = from[x * row.from..].iter().step_by(column.from);
                for (turned, element) in tile[..height].iter_mut().zip(line) {
                    turned[x] = *element;
                }
            }
            for (y, turned) in tile[..height].iter().enumerate() {
                sink(to_at + y * column.to, &turned[..width]);
            }
        }
    }
}

/// Where tiles begin. The last one is moved back to be a whole one where there is room, and
/// turns some elements again: cheaper than an edge, which goes element by element.
fn corners<const SIDE: usize>(size: usize) -> impl Iterator<Item = usize> {
    let last = size.saturating_sub(SIDE);
    (0..size).step_by(SIDE).map(move |at| at.min(last))
}

/// A square of `from`, whose lines are `step` apart, with rows and columns exchanged. It is
/// turned in squares of one vector a row, whose lines' bounds are checked once for each tile.
///
/// Turning strips of one vector straight into the target, with no tile between, was slower
/// (256 KiB of 2 bytes an element: 18 us and not 11), but for 8 bytes where lines are not a
/// power of two apart (5.5 and not 6.7).
fn turn_tile<E: Word, const SIDE: usize, const LANES: usize>(
    from: &[E],
    step: usize,
    tile: &mut [[E; SIDE]; SIDE],
) {
    for x in (0..SIDE).step_by(LANES) {
        let lines: [&[E]; LANES] = array::from_fn(|lane| &from[(x + lane) * step..][..SIDE]);
        for y in (0..SIDE).step_by(LANES) {
            let mut block = [[from[0]; LANES]; LANES];
            for (row, line) in block.iter_mut().zip(lines) {
                row.copy_from_slice(&line[y..][..LANES]);
            }
            for (lane, row) in turn_block(block).iter().enumerate() {
                tile[y + lane][x..x + LANES].copy_from_slice(row);
            }
        }
    }
}
