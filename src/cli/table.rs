//! Rows in 80 columns.
//!
//! ```text
//!  name                            dtype shape  bytes  offset align
//!  model.norm.weight               BF16  576     1152  538088     8
//!  model.layers.10.post_attention_layernorm.weight
//!                                  BF16  576     1152  539240     8
//! ```
//!
//! Nothing is cut off: a name that does not fit its column has lines of its
//! own, so `grep` finds it, and the numbers stay in their columns. Columns stand two
//! spaces apart where everything fits so, and one space otherwise.

use std::io::{self, Write};

use super::text::{width, wrapped};

/// What a table keeps to, whatever the terminal has.
pub(super) const COLUMNS: usize = 80;

/// The fewest columns for names.
const NAME_MIN: usize = 16;

/// Which side of its column a cell keeps to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// A table whose first column is a name that may be long. Two passes over the
/// rows: one for the widths, one to print; no row is kept.
pub(super) struct Table<const N: usize> {
    name_head: &'static str,
    heads: [&'static str; N],
    sides: [Side; N],
    widths: [usize; N],
    name_width: usize,
}

impl<const N: usize> Table<N> {
    /// Columns behind the name.
    pub(super) fn new(heads: [&'static str; N], sides: [Side; N]) -> Self {
        Self {
            name_head: "name",
            heads,
            sides,
            widths: heads.map(width),
            name_width: width("name"),
        }
    }

    /// Another heading for the first column.
    pub(super) fn named(mut self, head: &'static str) -> Self {
        self.name_head = head;
        self.name_width = width(head);
        self
    }

    /// Makes room for a row.
    pub(super) fn measure(&mut self, name: &str, cells: &[String; N]) {
        self.name_width = self.name_width.max(width(name));
        for (room, cell) in self.widths.iter_mut().zip(cells) {
            *room = (*room).max(width(cell));
        }
    }

    /// Columns for names, and spaces between columns.
    fn room(&self) -> (usize, usize) {
        let numbers: usize = self.widths.iter().sum();
        if self.name_width + numbers + 2 * N <= COLUMNS {
            return (self.name_width, 2);
        }
        let left = COLUMNS.saturating_sub(numbers + N);
        let least = NAME_MIN.min(self.name_width);
        (self.name_width.min(left).max(least), 1)
    }

    /// The line of headings.
    pub(super) fn heading(&self, out: &mut impl Write) -> io::Result<()> {
        self.row(out, self.name_head, &self.heads.map(String::from))
    }

    /// One row.
    pub(super) fn row(
        &self,
        out: &mut impl Write,
        name: &str,
        cells: &[String; N],
    ) -> io::Result<()> {
        let (room, gap) = self.room();
        let mut line = String::new();
        if width(name) > room {
            for part in wrapped(name, COLUMNS) {
                writeln!(out, "{part}")?;
            }
            line.extend(std::iter::repeat_n(' ', room));
        } else {
            line.push_str(name);
            line.extend(std::iter::repeat_n(' ', room - width(name)));
        }
        for ((cell, &width_of), side) in cells.iter().zip(&self.widths).zip(self.sides) {
            let padding = std::iter::repeat_n(' ', width_of.saturating_sub(width(cell)));
            line.extend(std::iter::repeat_n(' ', gap));
            if side == Side::Right {
                line.extend(padding);
                line.push_str(cell);
            } else {
                line.push_str(cell);
                line.extend(padding);
            }
        }
        // Eight dimensions of ten digits have more than a line.
        for part in wrapped(line.trim_end(), COLUMNS) {
            writeln!(out, "{part}")?;
        }
        Ok(())
    }
}
