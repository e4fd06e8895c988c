//! Tensors whose elements lie apart or in another order: views of PyTorch's storages, arrays in Fortran order.

use crate::Result;

/// A dimension: its length, and how many elements apart its neighbours are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dim {
    pub len: usize,
    pub stride: usize,
}

/// Bytes that are read at once although most of them may be others'.
const SPAN: usize = 64 << 10;

/// Strides of the order in which tensors are written.
pub(crate) fn row_major_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d].saturating_mul(shape[d].max(1));
    }
    strides
}

/// Elements from the first one to the `n`-th in row-major order.
pub(super) fn offset(mut n: usize, shape: &[usize], strides: &[usize]) -> usize {
    let mut offset = 0;
    for (&len, &stride) in shape.iter().zip(strides).rev() {
        offset += n % len.max(1) * stride;
        n /= len.max(1);
    }
    offset
}

/// Elements that a view spans from its first to its last; `None` if that overflows. Empty views span none.
pub(crate) fn span(shape: &[usize], strides: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape
        .iter()
        .zip(strides)
        .try_fold(1usize, |n, (&len, &stride)| {
            n.checked_add((len - 1).checked_mul(stride)?)
        })
}

/// Fills `out` with the elements (of `size` bytes) of `dims` in row-major order. `read` fills its buffer from an
/// element on; it is called for runs along the dimension whose elements lie closest.
pub(super) fn gather(
    read: &impl Fn(usize, &mut [u8]) -> Result<()>,
    start: usize,
    dims: &[Dim],
    size: usize,
    out: &mut [u8],
) -> Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    let closest = (0..dims.len())
        .rev()
        .filter(|&d| dims[d].len > 1 && dims[d].stride > 0);
    let Some(fast) = closest.min_by_key(|&d| dims[d].stride) else {
        // All elements are the same one.
        let (first, rest) = out.split_at_mut(size);
        read(start, first)?;
        rest.chunks_exact_mut(size)
            .for_each(|element| element.copy_from_slice(first));
        return Ok(());
    };
    let (mut from, mut to) = (start, 0usize);
    let lens: Vec<usize> = dims.iter().map(|d| d.len).collect();
    let places = row_major_strides(&lens);
    let Dim { len, stride } = dims[fast];
    let place = places[fast];
    let mut run = Vec::new();
    let mut index = vec![0usize; dims.len()];
    loop {
        if stride == 1 && place == 1 {
            read(from, &mut out[to * size..(to + len) * size])?;
        } else {
            read_run(read, from, len, stride, size, &mut run)?;
            let target = &mut out[to * size..];
            for (i, element) in run.chunks_exact(size).enumerate() {
                target[i * place * size..][..size].copy_from_slice(element);
            }
        }
        // The next index of all dimensions but the fast one.
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
            // Where a dimension ends, its last step may lead anywhere, and is taken back.
            (from, to) = (
                from.wrapping_add(dims[d].stride),
                to.wrapping_add(places[d]),
            );
            if index[d] < dims[d].len {
                break;
            }
            from = from.wrapping_sub(dims[d].stride.wrapping_mul(dims[d].len));
            to = to.wrapping_sub(places[d].wrapping_mul(dims[d].len));
            index[d] = 0;
        }
    }
}

/// Makes `run` `len` elements that are `stride` apart.
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

    /// Every permutation of a small tensor, against plain indexing.
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
            let dims: Vec<Dim> = order
                .iter()
                .map(|&d| Dim {
                    len: shape[d],
                    stride: strides[d],
                })
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
            &[Dim { len: 3, stride: 0 }, Dim { len: 2, stride: 0 }],
            1,
            &mut out,
        )
        .unwrap();
        assert_eq!(out, [7; 6]);
        gather(
            &read,
            1,
            &[Dim { len: 2, stride: 0 }, Dim { len: 3, stride: 2 }],
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
