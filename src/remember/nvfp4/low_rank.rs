//! The low-rank factors of ModelOpt's SVDQuant: `X.svdquant_lora_b` and `_a` in diffusion models,
//! `X.weight_quantizer._svdquant_lora_b` and `_a` in language models. They come before
//! `pre_quant_scale` does.
//!
//! Layout: modelopt `SVDQuantLinear`, `export/diffusers_utils.py`.

use crate::Result;
use crate::model::Tensor;
use crate::remember::layout::low_rank::LowRankFactors;
use crate::remember::seam::scale_matrix::{Matrix, ScaleMatrix};
use crate::remember::seam::{Floats, Index, base_of, wrong};

/// Names of both factors, after the module's and without the last letter.
const NAMES: &[&str] = &["svdquant_lora_", "weight_quantizer._svdquant_lora_"];

/// The factors of weight `t` of `rows` rows and `cols` columns, or `None` if it has none.
///
/// # Errors
/// One of them is missing, or their shapes do not go with the weight's.
pub(super) fn find_factors<'m>(
    t: &Tensor<'m>,
    [rows, cols]: [usize; 2],
    all: &Index<'m>,
) -> Result<Option<LowRankFactors<'m>>> {
    let Some(base) = base_of(t.name(), "weight") else {
        return Ok(None);
    };
    let both = |name: &&str| ["a", "b"].map(|end| all.get(&format!("{base}{name}{end}")));
    // A pair is looked for under each name, and half a pair is an error, not a weight without
    // the product.
    let Some(found) = NAMES
        .iter()
        .map(both)
        .find(|found| found.iter().any(Option::is_some))
    else {
        return Ok(None);
    };
    let [Some(a), Some(b)] = found else {
        return Err(wrong(t, "of its `svdquant_lora_a` and `svdquant_lora_b` one is missing"));
    };
    match (a.shape(), b.shape()) {
        (&[rank, k], &[n, same]) if rank == same && [n, k] == [rows, cols] => {
            Ok(Some(LowRankFactors {
                tensors: [a, b],
                a: matrix(&a, cols)?,
                b: matrix(&b, rank)?,
                rank,
            }))
        }
        _ => {
            let what =
                format!("its `{}` {:?} and `{}` {:?}", a.name(), a.shape(), b.name(), b.shape());
            Err(wrong(t, format!("{what} are not [r, {cols}] and [{rows}, r]")))
        }
    }
}

/// `t` as a matrix of `cols` columns.
fn matrix<'m>(t: &Tensor<'m>, cols: usize) -> Result<Box<dyn ScaleMatrix + 'm>> {
    let floats = Floats::ieee(t)?;
    Ok(Box::new(Matrix { floats, cols }))
}
