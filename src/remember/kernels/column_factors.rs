//! Rows whose columns are multiplied with factors, and put in another order. Products are F32, exact if
//! the factors are signs.

use crate::element::Element;
use crate::simd::{Kernel, zip};

/// Whole rows of `width` values.
pub(crate) struct MultipliedRows<'a> {
    pub values: &'a [f32],
    pub width: usize,
    /// One for each column of `values`; `None`: all are 1.
    pub factors: Option<&'a [f32]>,
    /// `[keys, heads]`: a row has so many heads, in `values` those of each of so many keys side by
    /// side (`k * n + i`), and in the output tiled (`k + keys * i`). `[1, 1]` for no other order.
    pub heads: [usize; 2],
}

impl Kernel for MultipliedRows<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let (width, [keys, heads]) = (self.width.max(1), self.heads.map(|n| n.max(1)));
        let (of_key, size) = (heads / keys, (width / heads).max(1));
        let rows = self.values.chunks_exact(width);
        for (values, out) in zip(rows, out.chunks_exact_mut(width)) {
            for (head, out) in out.chunks_exact_mut(size).enumerate() {
                let first = (head % keys * of_key + head / keys) * size;
                let values = values[first..first + size].iter();
                // Adding 0 makes +0 of -0: a sum of zeros has no sign.
                match self.factors {
                    None => zip(&mut out[..], values)
                        .for_each(|(out, &value)| *out = E::from_f32(value)),
                    Some(factors) => {
                        let products = zip(values, &factors[first..first + size]);
                        zip(&mut out[..], products)
                            .for_each(|(out, (v, s))| *out = E::from_f32(v * s + 0.0));
                    }
                }
            }
        }
    }
}
