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
//! left in place would fall into one set of the cache). Wide elements need no such buffer.

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

/// Calls `put(offset in to, elements, their place in to)` until every element of `from` was
/// handed out, some of them twice. The innermost loop must step by 1 in `to`.
///
/// With `SHORT` a call may be for as few as 32 bytes where that is faster: for a `put` that
/// costs nothing to call.
pub(super) fn for_each_row<const SHORT: bool, E: Word, D>(
    loops: &Loops,
    from: &[E],
    to: &mut [D],
    mut put: impl FnMut(usize, &[E], &mut [D]),
) {
    let row = loops.innermost();
    debug_assert!(row.to == 1 || row.size == 1, "rows of {row:?}");
    if row.from == 1 {
        return loops.for_each(1, |to_at, from_at| {
            let from = &from[from_at..from_at + row.size];
            put(to_at, from, &mut to[to_at..to_at + row.size]);
        });
    }
    if let Some(at) = across(loops) {
        let outer = loops.without(at);
        let column = loops.all()[at];
        return outer.for_each(1, |to_at, from_at| {
            let (from, to) = (&from[from_at..], &mut to[to_at..]);
            let put = |at: usize, elements: &[E], to: &mut [D]| put(to_at + at, elements, to);
            match (LINE / size_of::<E>(), SHORT) {
                (64, _) => turn::<E, D, 64, 16>(column, row, from, to, put),
                (32, _) => turn::<E, D, 32, 8>(column, row, from, to, put),
                (16, false) => turn::<E, D, 16, 4>(column, row, from, to, put),
                (16, true) => turn_strips::<E, D, 16, 8, 4>(column, row, from, to, put),
                (_, false) => turn::<E, D, 8, 2>(column, row, from, to, put),
                (_, true) => turn_strips::<E, D, 8, 8, 2>(column, row, from, to, put),
            }
        });
    }
    let mut gathered = [from[0]; GATHERED];
    loops.for_each(1, |to_at, from_at| {
        let mut done = 0;
        while done < row.size {
            let part = GATHERED.min(row.size - done);
            let line = from[from_at + done * row.from..].iter().step_by(row.from);
            for (gathered, from) in gathered[..part].iter_mut().zip(line) {
                *gathered = *from;
            }
            let at = to_at + done;
            put(at, &gathered[..part], &mut to[at..at + part]);
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
fn turn<E: Word, D, const SIDE: usize, const LANES: usize>(
    column: Loop,
    row: Loop,
    from: &[E],
    to: &mut [D],
    mut put: impl FnMut(usize, &[E], &mut [D]),
) {
    let mut tile = [[from[0]; SIDE]; SIDE];
    for row_at in corners(SIDE, row.size) {
        let width = SIDE.min(row.size - row_at);
        for column_at in corners(SIDE, column.size) {
            let height = SIDE.min(column.size - column_at);
            let from = &from[row_at * row.from + column_at * column.from..];
            let to_at = column_at * column.to + row_at;
            if width == SIDE && height == SIDE && column.from == 1 {
                turn_tile::<E, SIDE, LANES>(from, row.from, &mut tile);
                // The whole of each row, whose length the compiler then knows.
                for (y, turned) in tile.iter().enumerate() {
                    let at = to_at + y * column.to;
                    put(at, turned, &mut to[at..][..SIDE]);
                }
                continue;
            }
            turn_edge(&mut tile[..height], width, (column.from, row.from), from);
            for (y, turned) in tile[..height].iter().enumerate() {
                let at = to_at + y * column.to;
                put(at, &turned[..width], &mut to[at..][..width]);
            }
        }
    }
}

/// The same with no tile between source and target: what a few vectors hold of `WIDTH` lines
/// goes straight into rows of the target, which are written along.
///
/// For wide elements, whose squares are few steps. A transposed copy of 8 and 4 bytes an
/// element takes 0.54 to 0.75 of the time at 256 KiB, 1 MiB and 256 MiB; of 2 and 1 it would
/// take 1.0 to 1.7.
fn turn_strips<E: Word, D, const SIDE: usize, const WIDTH: usize, const LANES: usize>(
    column: Loop,
    row: Loop,
    from: &[E],
    to: &mut [D],
    mut put: impl FnMut(usize, &[E], &mut [D]),
) {
    let mut edge = [[from[0]; WIDTH]; SIDE];
    let mut strip = [[from[0]; WIDTH]; LANES];
    for column_at in corners(SIDE, column.size) {
        let height = SIDE.min(column.size - column_at);
        for row_at in corners(WIDTH, row.size) {
            let width = WIDTH.min(row.size - row_at);
            let from = &from[row_at * row.from + column_at * column.from..];
            let to_at = column_at * column.to + row_at;
            if width < WIDTH || height < SIDE || column.from != 1 {
                turn_edge(&mut edge[..height], width, (column.from, row.from), from);
                for (y, turned) in edge[..height].iter().enumerate() {
                    let at = to_at + y * column.to;
                    put(at, &turned[..width], &mut to[at..][..width]);
                }
                continue;
            }
            let lines: [&[E]; WIDTH] = array::from_fn(|x| &from[x * row.from..][..SIDE]);
            for y in (0..SIDE).step_by(LANES) {
                for x in (0..WIDTH).step_by(LANES) {
                    turn_square(&lines[x..x + LANES], y, &mut strip, x);
                }
                for (lane, turned) in strip.iter().enumerate() {
                    let at = to_at + (y + lane) * column.to;
                    put(at, turned, &mut to[at..][..WIDTH]);
                }
            }
        }
    }
}

/// Where tiles begin. The last one is moved back to be a whole one where there is room, and
/// turns some elements again: cheaper than an edge, which goes element by element.
fn corners(side: usize, size: usize) -> impl Iterator<Item = usize> {
    let last = size.saturating_sub(side);
    (0..size).step_by(side).map(move |at| at.min(last))
}

/// A square of `from`, whose lines are `step` apart, with rows and columns exchanged. It is
/// turned in squares of one vector a row, whose lines' bounds are checked once for each tile.
fn turn_tile<E: Word, const SIDE: usize, const LANES: usize>(
    from: &[E],
    step: usize,
    tile: &mut [[E; SIDE]; SIDE],
) {
    for x in (0..SIDE).step_by(LANES) {
        let lines: [&[E]; LANES] = array::from_fn(|lane| &from[(x + lane) * step..][..SIDE]);
        for (y, rows) in tile.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            turn_square(&lines, y * LANES, rows, x);
        }
    }
}

/// Columns `y..y + LANES` of as many lines, as parts of rows from column `x` on.
#[inline(always)]
fn turn_square<E: Word, const WIDTH: usize, const LANES: usize>(
    lines: &[&[E]],
    y: usize,
    rows: &mut [[E; WIDTH]; LANES],
    x: usize,
) {
    let mut square = [[lines[0][0]; LANES]; LANES];
    for (row, line) in square.iter_mut().zip(lines) {
        row.copy_from_slice(&line[y..y + LANES]);
    }
    for (row, turned) in rows.iter_mut().zip(turn_block(square)) {
        row[x..x + LANES].copy_from_slice(&turned);
    }
}

/// A part of a tile, or one whose elements are not side by side in the source: as many rows
/// as `tile` has, `width` elements of each.
fn turn_edge<E: Word, const WIDTH: usize>(
    tile: &mut [[E; WIDTH]],
    width: usize,
    (column_step, row_step): (usize, usize),
    from: &[E],
) {
    for x in 0..width {
        let line = from[x * row_step..].iter().step_by(column_step);
        for (turned, element) in tile.iter_mut().zip(line) {
            turned[x] = *element;
        }
    }
}
