//! Rows whose columns are multiplied with signs, and put in another order. No product is rounded.

use crate::element::Element;
use crate::simd::Kernel;

/// Whole rows of as many values as there are signs.
pub(crate) struct SignedRows<'a> {
    pub values: &'a [f32],
    /// 1 or -1 for each column of `values`.
    pub signs: &'a [f32],
    /// The column of `values` that each column of the output has; `None`: its own.
    pub order: Option<&'a [u32]>,
}

impl Kernel for SignedRows<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let width = self.signs.len().max(1);
        let rows = self.values.chunks_exact(width);
        for (values, out) in rows.zip(out.chunks_exact_mut(width)) {
            // Adding 0 makes +0 of -0: a sum of zeros has no sign.
            match self.order {
                None => {
                    for ((out, value), sign) in out.iter_mut().zip(values).zip(self.signs) {
                        *out = E::from_f32(value * sign + 0.0);
                    }
                }
                Some(order) => {
                    for (out, &column) in out.iter_mut().zip(order) {
                        let column = column as usize;
                        *out = E::from_f32(values[column] * self.signs[column] + 0.0);
                    }
                }
            }
        }
    }
}
