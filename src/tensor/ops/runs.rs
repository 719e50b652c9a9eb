use crate::types::{MAX_RANK, Shape, Strides};

/// Calls `visit(offset in a, offset in b, elements)` for each run of elements that lie
/// side by side in both layouts, in row-major order of the logical index. Offsets and
/// lengths are in elements.
///
/// Dimensions that are packed in both layouts are walked as one, so two contiguous
/// tensors are one run.
pub(super) fn for_each_run(
    shape: &Shape,
    a: &Strides,
    b: &Strides,
    mut visit: impl FnMut(usize, usize, usize),
) {
    if shape.numel() == 0 {
        return;
    }
    let (dims, a, b) = (shape.dims(), a.values(), b.values());
    let mut outer = dims.len();
    let mut run = 1;
    while outer > 0 {
        let dim = dims[outer - 1];
        if dim != 1 && (a[outer - 1] != run || b[outer - 1] != run) {
            break;
        }
        run *= dim;
        outer -= 1;
    }
    let mut index = [0; MAX_RANK];
    let (mut at_a, mut at_b) = (0, 0);
    loop {
        visit(at_a, at_b, run);
        // The next index: the last dimension that has one more, the ones behind it at 0.
        let mut dim = outer;
        loop {
            if dim == 0 {
                return;
            }
            dim -= 1;
            index[dim] += 1;
            at_a += a[dim];
            at_b += b[dim];
            if index[dim] < dims[dim] {
                break;
            }
            at_a -= index[dim] * a[dim];
            at_b -= index[dim] * b[dim];
            index[dim] = 0;
        }
    }
}
