//! Rows whose blocks of columns are multiplied with a matrix.

use super::{BlockMatrix, BlockProduct};
use crate::element::Element;
use crate::remember::kernels::matrix_product::{MulAdd, Rounded};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Butterflies, InMemory, Kernel, zip};

/// Values that are multiplied at once: in F64 they stay in the first-level cache, with what they
/// are made from.
const STRIP: usize = 2048;

/// Rows whose blocks of columns are multiplied. Products are rounded once to F32, and then to the
/// type of the output.
pub(crate) struct TransformedColumns<'a> {
    /// Whole blocks.
    pub values: &'a [f32],
    pub product: BlockProduct<'a>,
}

impl Kernel for TransformedColumns<'_> {
    const HAS_AVX512: bool = true;

    /// Of sums and differences, and of products that are rounded before they are added, LLVM makes
    /// slower loops with AVX-512.
    fn gains_from_avx512(&self) -> bool {
        matches!(self.product.matrix, BlockMatrix::Dense(matrix) if matrix.is_single)
    }

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        self.multiply(Rounded, InMemory, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2<E: Element>(&self, out: &mut [E], avx2: Avx2) {
        self.multiply(avx2, avx2, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx512<E: Element>(&self, out: &mut [E], avx512: Avx512) {
        self.multiply(avx512, Avx2::of(avx512), out);
    }
}

impl TransformedColumns<'_> {
    #[inline(always)]
    fn multiply<E: Element>(&self, unit: impl MulAdd, by: impl Butterflies, out: &mut [E]) {
        let BlockProduct { matrix, size, factor } = self.product;
        if let BlockMatrix::Dense(matrix) = matrix {
            return matrix.multiply(self.values, factor, unit, out);
        }
        let strip = size.max(STRIP / size.max(1) * size);
        let mut exact = vec![0.0; strip];
        for (values, out) in zip(self.values.chunks(strip), out.chunks_mut(strip)) {
            let exact = &mut exact[..values.len()];
            for (exact, &value) in zip(&mut exact[..], values) {
                *exact = f64::from(value);
            }
            self.product.multiply_by_hadamard(exact, by);
            for (out, exact) in zip(&mut out[..], &*exact) {
                // A sum of zeros is +0.
                *out = E::from_f32((exact * factor) as f32 + 0.0);
            }
        }
    }
}
