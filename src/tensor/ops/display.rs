//! `Display`: a header line, then NumPy-style rows with three elements at each edge.

use std::fmt;

use crate::tensor::Tensor;
use crate::types::{Bool8, DType, Element, bf16, f16};

/// Elements shown at each end of a dimension that is cut short.
const EDGE: usize = 3;

/// A tensor of more elements than this is cut short.
const WHOLE: usize = 1000;

impl fmt::Display for Tensor {
    /// Prints shape, dtype and device, then the elements; `<borrowed>` in their place
    /// while somebody writes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Tensor(shape={}, dtype={}, device={})",
            self.shape(),
            self.dtype(),
            self.device()
        )?;
        // Held to the end: `item` panics while somebody writes.
        let Ok(_held) = self.storage().share() else {
            return f.write_str("<borrowed>");
        };
        // There is nothing to show, and there may be 2^62 rows of it.
        if self.numel() == 0 {
            return f.write_str("[]");
        }
        let mut printer = Printer {
            tensor: self,
            edge: if self.numel() > WHOLE {
                EDGE
            } else {
                usize::MAX
            },
            indices: Vec::with_capacity(self.rank()),
        };
        printer.dimension(f)
    }
}

struct Printer<'a> {
    tensor: &'a Tensor,
    edge: usize,
    indices: Vec<usize>,
}

impl Printer<'_> {
    fn dimension(&mut self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let depth = self.indices.len();
        let rank = self.tensor.rank();
        if depth == rank {
            return self.element(f);
        }
        let size = self.tensor.shape().dim(depth);
        // Between rows a new line, and one empty line more for each dimension above them.
        let separator = if depth + 1 == rank {
            ", ".to_owned()
        } else {
            format!(
                ",{}{}",
                "\n".repeat(rank - depth - 1),
                " ".repeat(depth + 1)
            )
        };
        let cut = size > self.edge.saturating_mul(2);
        f.write_str("[")?;
        let mut index = 0;
        while index < size {
            if index > 0 {
                f.write_str(&separator)?;
            }
            if cut && index == self.edge {
                f.write_str("...")?;
                index = size - self.edge;
                continue;
            }
            self.indices.push(index);
            self.dimension(f)?;
            self.indices.pop();
            index += 1;
        }
        f.write_str("]")
    }

    fn element(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tensor.dtype() {
            DType::F32 => float(f, f64::from(self.item::<f32>())),
            DType::F16 => float(
                f,
                f64::from(crate::types::half::f16_to_f32(self.item::<f16>())),
            ),
            DType::BF16 => float(
                f,
                f64::from(crate::types::half::bf16_to_f32(self.item::<bf16>())),
            ),
            DType::F64 => float(f, self.item::<f64>()),
            DType::I8 => write!(f, "{}", self.item::<i8>()),
            DType::U8 => write!(f, "{}", self.item::<u8>()),
            DType::I16 => write!(f, "{}", self.item::<i16>()),
            DType::U16 => write!(f, "{}", self.item::<u16>()),
            DType::I32 => write!(f, "{}", self.item::<i32>()),
            DType::U32 => write!(f, "{}", self.item::<u32>()),
            DType::I64 => write!(f, "{}", self.item::<i64>()),
            DType::U64 => write!(f, "{}", self.item::<u64>()),
            DType::Bool => write!(f, "{}", self.item::<Bool8>()),
            // No tensor of a reserved dtype can be made.
            DType::F8E4M3 | DType::F8E5M2 | DType::I4 => f.write_str("?"),
        }
    }

    fn item<T: Element>(&self) -> T {
        self.tensor.item::<T>(&self.indices)
    }
}

/// Four digits, or an exponent where those would hide the value.
fn float(f: &mut fmt::Formatter<'_>, value: f64) -> fmt::Result {
    let size = value.abs();
    if !value.is_finite() || value == 0.0 || (1e-4..1e8).contains(&size) {
        let text = format!("{value:.4}");
        let text = if text.contains('.') {
            text.trim_end_matches('0')
        } else {
            &text
        };
        f.write_str(text)
    } else {
        write!(f, "{value:.4e}")
    }
}
