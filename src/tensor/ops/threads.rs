//! When work is shared among threads (feature `rayon`).
//!
//! Nothing here starts a thread: the work goes to the rayon pool that the caller is in,
//! or to the global one. Moving rows is not shared at all, for one thread moves them as fast
//! as memory takes them.

use super::loops::Loops;

/// Work below twice this many bytes of the source is done where it is. Turning or converting
/// this much takes 15 to 100 us. On a loaded machine with two cores a second thread gained
/// nothing at 1 MiB; at 256 MiB of turned elements 1.3 and 2.2 times for f32, nothing for u16.
const GRAIN: usize = 256 << 10;

/// Half a plane that is turned has to have this many rows: a whole tile of bytes. With less
/// every tile is an edge (measured, with single rows: five times slower than one thread).
const ROWS: usize = 64;

/// Two halves worth giving to two threads.
pub(super) fn halves<W>(loops: &Loops) -> Option<(Loops, Loops, usize, usize)> {
    let bytes = loops.numel() * size_of::<W>();
    if bytes < 2 * GRAIN || rayon::current_num_threads() < 2 {
        return None;
    }
    let outermost = loops.all()[0];
    let is_turned = outermost.from < loops.innermost().from;
    if is_turned && outermost.size < 2 * ROWS {
        return None;
    }
    loops.halves()
}
