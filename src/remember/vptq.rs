//! VPTQ: a vector of a codebook for each run of `v` outputs of an input, plus one of a second
//! codebook, times a factor of the input, plus an offset.
//!
//! | tensor | contents |
//! |---|---|
//! | `P.indices` I32 `[groups, ⌈out / v⌉, words]` | bit streams of the inputs of a group: a code, above it one of the second codebook |
//! | `P.centroids.weight` `[groups, entries * v]` | codebooks |
//! | `P.res_centroids.weight` `[groups, entries * v]` | second codebooks |
//! | `P.outlier_indices`, `P.outlier_centroids.weight` | inputs that lie before those of the groups, with a codebook of their own |
//! | `P.perm` | the input of each stored column |
//! | `P.weight_scale`, `P.weight_bias` | factors and offsets of inputs; gptqmodel has them of outputs, too |
//!
//! Only the config tells `v`: that of Microsoft's library for each layer, that of gptqmodel for the
//! model.
//!
//! Layout and formula: vptq `layers/vqlinear.py`, `ops/quant_gemm.py` (`dequant`); gptqmodel
//! `utils/vptq.py`, `nn_modules/qlinear/vptq_torch.py` (`VPTQLinear.dequantize`).

mod codes;
mod layer;

use self::codes::VptqCodes;
use self::layer::VptqLayer;
use crate::Result;
use crate::config::QuantMethod;
use crate::model::Tensor;
use crate::remember::layout::vectors::{Codebooks, VectorWeight, WeightNorm};
use crate::remember::seam::NamePattern::{Ends, EndsIfQuantized};
use crate::remember::seam::scale_matrix::Matrix;
use crate::remember::seam::{
    Floats, Group, Identity, Index, QuantScheme, Scheme, TensorRole, base_of, refused,
    require_shape, wrong,
};

pub(super) struct Vptq;

/// Name in messages.
const FAMILY: &str = "VPTQ";

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &[],
    methods: &[QuantMethod::Vptq],
    codes: &[".indices"],
    companions: &[
        (EndsIfQuantized(".centroids.weight"), TensorRole::QuantMap),
        (Ends(".res_centroids.weight"), TensorRole::QuantMap),
        (Ends(".outlier_centroids.weight"), TensorRole::QuantMap),
    ],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Vptq {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(base) = base_of(t.name(), "indices") else {
            return Ok(None);
        };
        let is_named = all.config.quant_method() == Some(&QuantMethod::Vptq);
        let centroids = match all.at(base, "centroids.weight") {
            None if is_named => all.need(t, base, "centroids.weight")?,
            None => return Ok(None),
            Some(centroids) => centroids,
        };
        claim(t, base, centroids, all).map(Some)
    }
}

fn claim<'m>(
    t: &Tensor<'m>,
    base: &'m str,
    centroids: Tensor<'m>,
    all: &Index<'m>,
) -> Result<Group<'m>> {
    if let Some(separate) = all.at(base, "res_indices") {
        let what = format!("`{}` beside it: only packed codes are decoded", separate.name());
        return Err(refused(t, FAMILY, what));
    }
    let layer = VptqLayer::new(t, base, all)?;
    let mut parts = vec![(TensorRole::Quantized, *t)];
    let mut tables = Vec::new();
    let mut add = |part: Tensor<'m>, groups: usize, entries: usize| -> Result<()> {
        require_shape(t, &part, &[groups, entries * layer.vector])?;
        tables.push((Floats::ieee(&part)?, part.elements()));
        parts.push((TensorRole::QuantMap, part));
        Ok(())
    };
    let packing = layer.packing;
    add(centroids, packing.groups, packing.entries)?;
    let has_residual = packing.residual.is_some();
    let residual = companion(t, base, "res_centroids.weight", has_residual, all)?;
    if let (Some(part), Some(entries)) = (residual, packing.residual) {
        add(part, packing.groups, entries)?;
    }
    let has_outliers = layer.outliers.is_some();
    let part = companion(t, base, "outlier_centroids.weight", has_outliers, all)?;
    if let (Some(part), Some(outliers)) = (part, &layer.outliers) {
        add(part, 1, outliers.entries)?;
    }
    let has_zero = has_outliers && has_residual;
    let Some(codebooks) = Codebooks::new(tables, layer.vector, has_zero) else {
        let what = format!("vectors of {} values, or so many, are not decoded", layer.vector);
        return Err(refused(&centroids, FAMILY, what));
    };
    parts.extend(
        layer
            .outliers
            .iter()
            .map(|o| (TensorRole::Quantized, o.codes)),
    );
    parts.extend(layer.order.map(|order| (TensorRole::GroupIndex, order)));
    let norm = norm(t, base, &layer, all, &mut parts)?;
    let [rows, cols] = layer.shape;
    let codes = VptqCodes {
        tensor: *t,
        packing,
        vector: layer.vector,
        blocks: t.shape()[1],
        cols,
        outliers: layer.outliers,
        order: layer.order,
    };
    let decoder = VectorWeight {
        rows,
        cols,
        block: [layer.vector, 1],
        terms: packing.terms(),
        codebooks,
        codes: Box::new(codes),
        norm,
        has_whole_rows: true,
        row_align: 1,
    };
    let scheme =
        QuantScheme::Vectors { family: FAMILY, bits: packing.bits(), values: layer.vector };
    let (name, shape) = (format!("{base}weight"), vec![rows, cols]);
    Ok(Group::new(name, shape, scheme, parts, Box::new(decoder)))
}

/// The tensor `base` + `part`, which is there if and only if it `is_needed`.
///
/// # Errors
/// It is missing, or it is there although the config says otherwise.
fn companion<'m>(
    t: &Tensor<'_>,
    base: &str,
    part: &str,
    is_needed: bool,
    all: &Index<'m>,
) -> Result<Option<Tensor<'m>>> {
    if is_needed {
        return all.need(t, base, part).map(Some);
    }
    match all.at(base, part) {
        Some(part) => {
            let what = format!("its config does not speak of `{}` beside it", part.name());
            Err(wrong(t, what))
        }
        None => Ok(None),
    }
}

/// Factors and offsets, which become `parts` of the layer.
fn norm<'m>(
    t: &Tensor<'m>,
    base: &str,
    layer: &VptqLayer<'m>,
    all: &Index<'m>,
    parts: &mut Vec<(TensorRole, Tensor<'m>)>,
) -> Result<WeightNorm<'m>> {
    let factors = companion(t, base, "weight_scale", layer.norm.is_some(), all)?;
    let offsets = companion(t, base, "weight_bias", layer.norm.is_some(), all)?;
    let (Some(factors), Some(offsets), Some(axis)) = (factors, offsets, layer.norm) else {
        return Ok(WeightNorm::None);
    };
    // Of the dimension that is not reduced.
    let size = layer.shape[1 - axis];
    for part in [&factors, &offsets] {
        require_shape(t, part, &[size])?;
    }
    parts.push((TensorRole::Scale, factors));
    parts.push((TensorRole::Offset, offsets));
    let matrix = |part: &Tensor<'m>| -> Result<Box<Matrix<'m>>> {
        let cols = if axis == 0 { size } else { 1 };
        let floats = Floats::ieee(part)?;
        Ok(Box::new(Matrix { floats, cols }))
    };
    let (factors, offsets) = (matrix(&factors)?, matrix(&offsets)?);
    Ok(if axis == 0 {
        WeightNorm::Columns { factors, offsets }
    } else {
        let offsets = Some(offsets as _);
        WeightNorm::Rows { factors, offsets }
    })
}
