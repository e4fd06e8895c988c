//! Gathers tensors whose elements are not contiguous in row-major order: views of PyTorch's
//! storages, and arrays in Fortran order. Strides and offsets here count elements, not bytes.

use crate::Result;

/// A dimension: its length, and its stride in elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct StridedDim {
    pub len: usize,
    pub stride: usize,
}

/// Most bytes that one read spans when elements with gaps between them are read together.
const SPAN: usize = 64 << 10;

/// Strides of a contiguous tensor in row-major order.
pub(crate) fn row_major_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for d in (1..shape.len()).rev() {
        // Saturating: a shape with an empty dimension may overflow in the others, and its strides
        // are never used.
        strides[d - 1] = strides[d].saturating_mul(shape[d].max(1));
    }
    strides
}

/// Storage offset of the `n`-th element in row-major order, from that of the first.
pub(super) fn offset(mut n: usize, shape: &[usize], strides: &[usize]) -> usize {
    let mut offset = 0;
    for (&len, &stride) in shape.iter().zip(strides).rev() {
        offset += n % len.max(1) * stride;
        n /= len.max(1);
    }
    offset
}

/// Number of storage elements from a view's first element to its last, both included; 0 for an
/// empty view. `None` if it overflows.
#[cfg(any(feature = "pth", test))]
pub(crate) fn span(shape: &[usize], strides: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape
        .iter()
        .zip(strides)
        .try_fold(1usize, |n, (&len, &stride)| n.checked_add((len - 1).checked_mul(stride)?))
}

/// Fills `out` with the elements, of `size` bytes each, of a view of dimensions `dims` whose first
/// element is `start`, in row-major order.
///
/// `read(element, buffer)` fills its buffer with stored bytes from an element on. It is called
/// along the dimension of the smallest stride, where neighbouring elements share reads; the result
/// is scattered to `out`.
pub(super) fn gather(
    read: &impl Fn(usize, &mut [u8]) -> Result<()>,
    start: usize,
    dims: &[StridedDim],
    size: usize,
    out: &mut [u8],
) -> Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    // Reversed, so that among equal strides the innermost dimension wins (`min_by_key` keeps the
    // first).
    let candidates = (0..dims.len())
        .rev()
        .filter(|&d| dims[d].len > 1 && dims[d].stride > 0);
    let Some(fast) = candidates.min_by_key(|&d| dims[d].stride) else {
        // Every dimension has one element or stride 0: all elements are the same stored one.
        let (first, rest) = out.split_at_mut(size);
        read(start, first)?;
        rest.chunks_exact_mut(size)
            .for_each(|element| element.copy_from_slice(first));
        return Ok(());
    };
    let (mut from, mut to) = (start, 0usize);
    let lens: Vec<usize> = dims.iter().map(|d| d.len).collect();
    let out_strides = row_major_strides(&lens);
    let StridedDim { len, stride } = dims[fast];
    let out_stride = out_strides[fast];
    let mut run = Vec::new();
    let mut index = vec![0usize; dims.len()];
    loop {
        if stride == 1 && out_stride == 1 {
            read(from, &mut out[to * size..(to + len) * size])?;
        } else {
            read_run(read, from, len, stride, size, &mut run)?;
            let target = &mut out[to * size..];
            for (i, element) in run.chunks_exact(size).enumerate() {
                target[i * out_stride * size..][..size].copy_from_slice(element);
            }
        }
        // Advances the index over all dimensions but the fast one, like an odometer.
        let mut d = dims.len();
        loop {
            if d == 0 {
                return Ok(());
            }
            d -= 1;
            if d == fast {
                continue;
            }
            index[d] += 1;
            // Wrapping: the step past the end of a dimension may leave the address space, and is
            // taken back below before anything is read there.
            (from, to) = (from.wrapping_add(dims[d].stride), to.wrapping_add(out_strides[d]));
            if index[d] < dims[d].len {
                break;
            }
            from = from.wrapping_sub(dims[d].stride.wrapping_mul(dims[d].len));
            to = to.wrapping_sub(out_strides[d].wrapping_mul(dims[d].len));
            index[d] = 0;
        }
    }
}

/// Reads `len` elements that are `stride` apart into `run`. Each read spans at most [`SPAN`] bytes,
/// of which it keeps one element in `stride`; if elements lie further apart than that, each is read
/// by itself.
fn read_run(
    read: &impl Fn(usize, &mut [u8]) -> Result<()>,
    from: usize,
    len: usize,
    stride: usize,
    size: usize,
    run: &mut Vec<u8>,
) -> Result<()> {
    run.resize(len * size, 0);
    if stride == 1 {
        return read(from, run);
    }
    let per_read = (SPAN / (stride * size)).clamp(1, len);
    let mut span = Vec::new();
    for (i, elements) in run.chunks_mut(per_read * size).enumerate() {
        let n = elements.len() / size;
        span.resize(((n - 1) * stride + 1) * size, 0);
        read(from + i * per_read * stride, &mut span)?;
        for (element, piece) in elements
            .chunks_exact_mut(size)
            .zip(span.chunks(stride * size))
        {
            element.copy_from_slice(&piece[..size]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every permutation of a small tensor is compared with plain indexing.
    #[test]
    fn any_order() {
        let shape = [2usize, 3, 4, 5];
        let source: Vec<u8> = (0..120u16).flat_map(u16::to_le_bytes).collect();
        let read = |element: usize, out: &mut [u8]| {
            out.copy_from_slice(&source[element * 2..element * 2 + out.len()]);
            Ok(())
        };
        let strides = row_major_strides(&shape);
        for n in 0..256usize {
            let order = [n & 3, n >> 2 & 3, n >> 4 & 3, n >> 6 & 3];
            if (0..4).any(|d| !order.contains(&d)) {
                continue;
            }
            let dims: Vec<StridedDim> = order
                .iter()
                .map(|&d| StridedDim { len: shape[d], stride: strides[d] })
                .collect();
            let (lens, steps): (Vec<_>, Vec<_>) = dims.iter().map(|d| (d.len, d.stride)).unzip();
            let mut out = vec![0; 240];
            gather(&read, 0, &dims, 2, &mut out).unwrap();
            for (i, element) in out.chunks(2).enumerate() {
                let at = offset(i, &lens, &steps) * 2;
                assert_eq!(element, &source[at..at + 2], "{order:?} [{i}]");
            }
        }
    }

    #[test]
    fn repeated_elements() {
        let read = |element: usize, out: &mut [u8]| {
            out.iter_mut()
                .enumerate()
                .for_each(|(i, b)| *b = (element + i) as u8);
            Ok(())
        };
        let mut out = [0; 6];
        gather(
            &read,
            7,
            &[StridedDim { len: 3, stride: 0 }, StridedDim { len: 2, stride: 0 }],
            1,
            &mut out,
        )
        .unwrap();
        assert_eq!(out, [7; 6]);
        gather(
            &read,
            1,
            &[StridedDim { len: 2, stride: 0 }, StridedDim { len: 3, stride: 2 }],
            1,
            &mut out,
        )
        .unwrap();
        assert_eq!(out, [1, 3, 5, 1, 3, 5]);
        assert_eq!(span(&[2, 3], &[0, 2]), Some(5));
        assert_eq!(span(&[2, 0], &[7, 7]), Some(0));
        assert_eq!(span(&[usize::MAX, 3], &[2, 2]), None);
    }
}
