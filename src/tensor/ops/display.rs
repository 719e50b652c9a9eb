//! Tensors as text: a header line, then NumPy-style rows.
//!
//! ```text
//!   Tensor(shape=[100, 20], dtype=int16, device=cpu)
//!   [[   0,    1,    2, ...,   17,   18,   19],
//!    [  20,   21,   22, ...,   37,   38,   39],
//!    [  40,   41,   42, ...,   57,   58,   59],
//!    ...,
//! ```
//!
//! What is shown is looked at twice: once to find the width of a column and whether floats need an
//! exponent, then to print. Nothing is kept in between, and only what is shown is read.

use std::fmt::{self, Write};

use super::number::{Number, Numeric, for_dtype};
use super::span::{Packed, Reading};
use crate::tensor::{Tensor, TensorError};
use crate::types::DType;

/// How a tensor is printed. For one call: there is no global setting.
///
/// ```
/// use tenslab::{memory, ops};
///
/// let row = ops::arange(0, 10, 1, None, memory::cpu())?;
/// let options = ops::PrintOptions { threshold: 5, ..Default::default() };
/// assert_eq!(
///     ops::to_string(&row, &options),
///     "Tensor(shape=[10], dtype=int64, device=cpu)\n[0, 1, 2, ..., 7, 8, 9]"
/// );
/// # Ok::<(), tenslab::tensor::TensorError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrintOptions {
    /// Elements shown at each end of a dimension that is cut short: 3.
    pub edge_items: usize,
    /// A tensor of more elements than this is cut short: 1000.
    pub threshold: usize,
    /// Most digits behind a float's point: 4. (No more than 65,534 are ever written.)
    pub precision: usize,
    /// Columns after which a row goes on in the next line: 80.
    pub line_width: usize,
    /// When floats have an exponent: when they need it.
    pub scientific: Scientific,
}

/// When floats are printed with an exponent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Scientific {
    /// Where, of the magnitudes shown that are neither 0 nor infinite, the largest is at
    /// least 1e8, the smallest is below 1e-4, or the one is at least 1000 times the other.
    #[default]
    WhenNeeded,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Default for PrintOptions {
    fn default() -> Self {
        PrintOptions {
            edge_items: 3,
            threshold: 1000,
            precision: 4,
            line_width: 80,
            scientific: Scientific::WhenNeeded,
        }
    }
}

/// A tensor that prints itself by some options. Made by [`display`].
#[derive(Debug, Clone, Copy)]
pub struct Displayed<'a> {
    tensor: &'a Tensor,
    options: PrintOptions,
}

/// The tensor, to print: `println!("{}", ops::display(&tensor, &options))`.
///
/// # Panics
/// If `edge_items` is 0.
#[must_use]
#[track_caller]
pub fn display<'a>(tensor: &'a Tensor, options: &PrintOptions) -> Displayed<'a> {
    assert!(options.edge_items > 0, "edge_items is 0, must be positive");
    Displayed {
        tensor,
        options: *options,
    }
}

/// The tensor as text: shape, dtype and device, then the elements. `<borrowed>` in their
/// place while somebody writes. Where there may be no tensor, `None` is
/// `Tensor(undefined)`: this is for looking at things, so it does not complain.
///
/// # Panics
/// If `edge_items` is 0.
#[must_use]
#[track_caller]
pub fn to_string<'a>(tensor: impl Into<Option<&'a Tensor>>, options: &PrintOptions) -> String {
    match tensor.into() {
        Some(tensor) => display(tensor, options).to_string(),
        None => "Tensor(undefined)".to_owned(),
    }
}

impl fmt::Display for Tensor {
    /// As [`to_string`] by the default options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(self, &PrintOptions::default()).fmt(f)
    }
}

impl fmt::Display for Displayed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensor = self.tensor;
        writeln!(
            f,
            "Tensor(shape={}, dtype={}, device={})",
            tensor.shape(),
            tensor.dtype(),
            tensor.device()
        )?;
        let Ok(reading) = Reading::of(tensor) else {
            return f.write_str("<borrowed>");
        };
        // There is nothing to show, and there may be 2^62 rows of it.
        if tensor.numel() == 0 {
            return f.write_str("[]");
        }
        let shown = for_dtype!(tensor.dtype(), T => {
            let rows = Rows {
                tensor,
                elements: reading.packed::<T>(),
                edge: if tensor.numel() > self.options.threshold {
                    self.options.edge_items
                } else {
                    usize::MAX
                },
            };
            Ok::<_, TensorError>(rows.show(&self.options, f))
        });
        // There is no tensor of a reserved dtype.
        shown.unwrap_or(Err(fmt::Error))
    }
}

/// The elements that are shown, and where.
struct Rows<'a, T> {
    tensor: &'a Tensor,
    elements: &'a [Packed<T>],
    edge: usize,
}

impl<T: Numeric> Rows<'_, T> {
    fn show(&self, options: &PrintOptions, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut format = Format::of(T::DTYPE, options.precision);
        if T::DTYPE.is_floating_point() {
            let mut range = (f64::INFINITY, 0.0_f64);
            self.each(0, 0, &mut |value| {
                let size = value.to_f64().abs();
                if size != 0.0 && size.is_finite() {
                    range = (range.0.min(size), range.1.max(size));
                }
            });
            format.scientific = match options.scientific {
                Scientific::Always => true,
                Scientific::Never => false,
                Scientific::WhenNeeded => {
                    let (smallest, largest) = range;
                    largest >= 1e8
                        || (largest > 0.0 && (smallest < 1e-4 || largest / smallest >= 1000.0))
                }
            };
            let mut digits = 0;
            self.each(0, 0, &mut |value| digits = digits.max(format.digits(value)));
            format.digits = digits;
        }
        let mut width = 0;
        self.each(0, 0, &mut |value| width = width.max(format.width(value)));
        let mut lines = Lines {
            out: f,
            format,
            width,
            line_width: options.line_width,
            column: 0,
        };
        self.dimension(0, 0, &mut lines)
    }

    /// The indices of a dimension that are shown. `None` is the gap.
    fn indices(&self, depth: usize) -> impl Iterator<Item = Option<usize>> + use<T> {
        let size = self.tensor.shape().dim(depth);
        let cut = size > self.edge.saturating_mul(2);
        let head = if cut { self.edge } else { size };
        let tail = if cut { size - self.edge } else { size };
        let gap = cut.then_some(None);
        (0..head).map(Some).chain(gap).chain((tail..size).map(Some))
    }

    /// Visits what is shown.
    fn each(&self, depth: usize, at: usize, visit: &mut impl FnMut(Number)) {
        if depth == self.tensor.rank() {
            let Packed(element) = self.elements[at];
            return visit(element.number());
        }
        let stride = self.tensor.strides().stride(depth);
        for index in self.indices(depth).flatten() {
            self.each(depth + 1, at + index * stride, visit);
        }
    }

    fn dimension(&self, depth: usize, at: usize, lines: &mut Lines<'_, '_>) -> fmt::Result {
        let rank = self.tensor.rank();
        if depth == rank {
            let Packed(element) = self.elements[at];
            return lines.element(element.number());
        }
        let stride = self.tensor.strides().stride(depth);
        lines.text("[")?;
        for (nth, index) in self.indices(depth).enumerate() {
            let innermost = depth + 1 == rank;
            if nth > 0 && innermost {
                let next = index.map_or("...".len(), |_| lines.width);
                lines.separate(next, depth + 1)?;
            } else if nth > 0 {
                // One empty line more for each dimension above rows.
                lines.text(",")?;
                lines.new_line(rank - depth - 1, depth + 1)?;
            }
            match index {
                None => lines.text("...")?,
                Some(index) => self.dimension(depth + 1, at + index * stride, lines)?,
            }
        }
        lines.text("]")
    }
}

/// Text in lines of a width.
struct Lines<'a, 'f> {
    out: &'a mut fmt::Formatter<'f>,
    format: Format,
    width: usize,
    line_width: usize,
    column: usize,
}

impl Lines<'_, '_> {
    fn text(&mut self, text: &str) -> fmt::Result {
        self.column += text.len();
        self.out.write_str(text)
    }

    fn new_line(&mut self, lines: usize, indent: usize) -> fmt::Result {
        (0..lines).try_for_each(|_| self.out.write_char('\n'))?;
        (0..indent).try_for_each(|_| self.out.write_char(' '))?;
        self.column = indent;
        Ok(())
    }

    /// Between two elements of a row; the next one has to fit, with a comma or the brackets.
    fn separate(&mut self, next: usize, indent: usize) -> fmt::Result {
        if self.column + ", ".len() + next + indent > self.line_width {
            self.text(",")?;
            return self.new_line(1, indent);
        }
        self.text(", ")
    }

    fn element(&mut self, value: Number) -> fmt::Result {
        let missing = self.width - self.format.width(value);
        (0..missing).try_for_each(|_| self.out.write_char(' '))?;
        self.column += self.width;
        self.format.write(value, self.out)
    }
}

/// How each element is written.
#[derive(Clone, Copy)]
struct Format {
    boolean: bool,
    scientific: bool,
    /// Behind the point.
    digits: usize,
}

impl Format {
    fn of(dtype: DType, precision: usize) -> Format {
        Format {
            boolean: dtype == DType::Bool,
            scientific: false,
            // More the formatting of the standard library refuses: it counts digits in a
            // u16, with an exponent also the one in front of the point.
            digits: precision.min(usize::from(u16::MAX) - 1),
        }
    }

    fn write(&self, value: Number, out: &mut impl Write) -> fmt::Result {
        match value {
            Number::Float(value) if !value.is_finite() => write!(out, "{value}"),
            Number::Float(value) if self.scientific => write!(out, "{value:.*e}", self.digits),
            // A point tells a float from an integer.
            Number::Float(value) if self.digits == 0 => write!(out, "{value:.0}."),
            Number::Float(value) => write!(out, "{value:.*}", self.digits),
            Number::Unsigned(value) if self.boolean => write!(out, "{}", value != 0),
            integer => write!(out, "{integer}"),
        }
    }

    fn width(&self, value: Number) -> usize {
        let mut measured = Measured::default();
        // Measuring does not fail.
        let _ = self.write(value, &mut measured);
        measured.width
    }

    /// Digits behind the point that are not trailing zeros.
    fn digits(&self, value: Number) -> usize {
        let mut measured = Measured::default();
        let _ = self.write(value, &mut measured);
        measured.digits
    }
}

/// Text that is only measured.
#[derive(Default)]
struct Measured {
    width: usize,
    past_point: Option<usize>,
    past_exponent: bool,
    digits: usize,
}

impl Write for Measured {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.width += text.len();
        for character in text.chars() {
            match (character, self.past_point) {
                ('.', _) => self.past_point = Some(0),
                ('e', _) => self.past_exponent = true,
                (digit, Some(past)) if !self.past_exponent => {
                    self.past_point = Some(past + 1);
                    if digit != '0' {
                        self.digits = past + 1;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}
