//! What ModelSlim stores of the inputs of a layer of type `W8A8`: the scales of the weight times
//! that of the input, `P.deq_scale`, and the bias less the share of the input's offset,
//! `P.quant_bias` I32, in units of `P.deq_scale`.
//!
//! Layout: msmodelslim `save/ascendv1.py` (`on_w8a8_static`), `save/utils/deqscale.py`.

use std::ops::Range;

use crate::model::{Part, Tensor};
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{Floats, read, require_shape, wrong};
use crate::{Dtype, Result};

/// Rows of a weight whose bias is looked at.
const SAMPLE: usize = 4;

/// Largest share of an offset's correction by which rounding in F32 may change it.
const TOLERANCE: f64 = 1e-6;

/// The scales of a weight's rows: `deq_scale / input_scale`.
pub(super) struct StaticScales<'m> {
    products: Products<'m>,
    input: f32,
}

/// Scales of rows times that of the input.
enum Products<'m> {
    Floats(Floats<'m>),
    /// The bits of an F32 as I64, for models in F16.
    Bits(Part<'m>),
}

impl<'m> StaticScales<'m> {
    pub(super) fn new(
        t: &Tensor<'m>,
        products: &Tensor<'m>,
        input: &Tensor<'m>,
        rows: usize,
    ) -> Result<Self> {
        require_shape(t, products, &[rows])?;
        let stored = match products.dtype() {
            Dtype::I64 => Products::Bits(products.part()),
            _ => Products::Floats(Floats::ieee(products)?),
        };
        Ok(Self { products: stored, input: read_one(input)? })
    }
}

impl ScaleMatrix for StaticScales<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        _cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let at = out.len();
        match &self.products {
            Products::Floats(floats) => floats.extend(1, rows, 0..1, staging, out)?,
            Products::Bits(part) => {
                read(part, 8, rows, 0..8, staging)?;
                let bits = staging.as_chunks::<8>().0.iter();
                // The upper half is the sign.
                out.extend(bits.map(|&[a, b, c, d, ..]| f32::from_le_bytes([a, b, c, d])));
            }
        }
        out[at..].iter_mut().for_each(|scale| *scale /= self.input);
        Ok(())
    }
}

/// The one value of `t`.
fn read_one(t: &Tensor<'_>) -> Result<f32> {
    let mut value = Vec::with_capacity(1);
    if t.elements() == 1 {
        Floats::ieee(t)?.extend(1, 0..1, 0..1, &mut Vec::new(), &mut value)?;
    }
    let value = value.first().copied();
    value.ok_or_else(|| wrong(t, "a layer has one for its input"))
}

/// Whether the first rows of `quant_bias` have more than what makes up for the input's offset.
pub(super) fn has_bias(
    t: &Tensor<'_>,
    quant_bias: &Tensor<'_>,
    offset: &Tensor<'_>,
    [rows, cols]: [usize; 2],
) -> Result<bool> {
    require_shape(t, quant_bias, &[rows])?;
    if quant_bias.dtype() != Dtype::I32 {
        return Err(wrong(quant_bias, "it is I32"));
    }
    let offset = f64::from(read_one(offset)?);
    let sample = 0..rows.min(SAMPLE);
    let (mut codes, mut words) = (Vec::new(), Vec::new());
    read(&t.part(), cols, sample.clone(), 0..cols, &mut codes)?;
    read(&quant_bias.part(), 4, sample, 0..4, &mut words)?;
    let rows = codes.chunks_exact(cols.max(1)).zip(words.as_chunks().0);
    Ok(rows.into_iter().any(|(codes, &word)| {
        let sum: i64 = codes.iter().map(|&code| i64::from(code as i8)).sum();
        let correction = sum as f64 * offset;
        let left = f64::from(i32::from_le_bytes(word)) + correction;
        left.abs() > 1.0 + correction.abs() * TOLERANCE
    }))
}
