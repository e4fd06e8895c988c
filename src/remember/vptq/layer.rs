//! [`VptqLayer`]: what config and shapes say of one layer.

use super::codes::{VptqOutliers, VptqPacking};
use super::{FAMILY, companion};
use crate::config::Module;
use crate::model::Tensor;
use crate::remember::kernels::vectors::MAX_VECTOR;
use crate::remember::layout::padding::unpadded_outputs;
use crate::remember::seam::{Index, refused, require_shape, wrong};
use crate::{Dtype, Result};

/// Most inputs. The library has their order in 16 bits, and a tile has all of them.
const MAX_INPUTS: usize = 1 << 16;

/// Most vectors of a codebook; libraries have up to 2^16.
const MAX_ENTRIES: usize = 1 << 24;

/// Bits of a word of codes.
const WORD: usize = 32;

/// The sizes of a layer, which agree with the shape of its codes.
pub(super) struct VptqLayer<'m> {
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// Values of a vector.
    pub vector: usize,
    pub packing: VptqPacking,
    pub outliers: Option<VptqOutliers<'m>>,
    /// The input of each stored column.
    pub order: Option<Tensor<'m>>,
    /// The axis over which there is one factor: 0 if each input has its own.
    pub norm: Option<usize>,
}

impl<'m> VptqLayer<'m> {
    /// The layer of the codes `t`.
    ///
    /// # Errors
    /// The config does not describe the layer, or otherwise than the tensors are.
    pub(super) fn new(t: &Tensor<'m>, base: &str, all: &Index<'m>) -> Result<Self> {
        let name = base.trim_end_matches('.');
        let module = all.config.at(name);
        check_kind(t, &module)?;
        let (&[groups, blocks, words], Dtype::I32) = (t.shape(), t.dtype()) else {
            let what = "codes of VPTQ are I32 [groups, vectors of a column, words]";
            return Err(wrong(t, what));
        };
        let books = VptqBooks::new(t, &module)?;
        let has_order = module.flag("enable_perm") == Some(true);
        let order = companion(t, base, "perm", has_order, all)?;
        let norm = norm_axis(t, &module)?;
        let outliers = outliers(t, base, &module, books.outliers, all)?;
        let count = outliers.as_ref().map_or(0, |outliers| outliers.inputs);
        let inputs = inputs(t, base, &module, order.as_ref(), norm, all)?;
        check_stated(t, &module, groups, [inputs, count])?;
        let packing = VptqPacking {
            groups,
            inputs: group_inputs(t, &module, inputs, count, groups)?,
            entries: books.entries,
            residual: books.residual,
        };
        let (n, bits) = (packing.inputs, packing.bits());
        let needed = n.checked_mul(bits).map(|bits| bits.div_ceil(WORD));
        if bits > WORD || needed != Some(words) {
            let what = format!("{n} codes of {bits} bits do not take {words} words");
            return Err(wrong(t, what));
        }
        let vector = books.vector;
        let outputs = outputs(t, base, &module, vector, blocks, all)?;
        if let Some(outliers) = &outliers {
            if books.outliers[0] != Some(vector) {
                let what = "outliers whose vectors have another length are not decoded";
                return Err(refused(t, FAMILY, what));
            }
            require_shape(t, &outliers.codes, &[1, blocks, outliers.inputs])?;
        }
        if let Some(order) = &order {
            check_order(t, order, inputs)?;
        }
        Ok(Self { shape: [outputs, inputs], vector, packing, outliers, order, norm })
    }
}

/// What the config says of codebooks.
struct VptqBooks {
    /// Values of a vector, vectors of a codebook and of a second one.
    vector: usize,
    entries: usize,
    residual: Option<usize>,
    /// Values of a vector of outliers, and their number.
    outliers: [Option<usize>; 2],
}

impl VptqBooks {
    fn new(t: &Tensor<'_>, module: &Module<'_>) -> Result<Self> {
        let [outlier_vector, vector] = sizes(t, module, "vector_lens")?;
        let [outlier_entries, entries] = sizes(t, module, "num_centroids")?;
        let [outlier_residual, residual] = sizes(t, module, "num_res_centroids")?;
        if outlier_residual.is_some() {
            let what = "its config says a second codebook of outliers, which the library has not";
            return Err(refused(t, FAMILY, what));
        }
        let (Some(vector), Some(entries)) = (vector, entries) else {
            let what = "its config has no length of vectors, or no number of them";
            return Err(wrong(t, what));
        };
        let is_power = |n: usize| (2..=MAX_ENTRIES).contains(&n) && n.is_power_of_two();
        if !is_power(entries) || residual.is_some_and(|n| !is_power(n)) || vector > MAX_VECTOR {
            let what = format!(
                "vectors of {vector} values, {entries} in a codebook and {residual:?} in a second one, are not decoded"
            );
            return Err(refused(t, FAMILY, what));
        }
        Ok(Self { vector, entries, residual, outliers: [outlier_vector, outlier_entries] })
    }
}

/// The axis over which there is one factor, if the config says that there are factors.
fn norm_axis(t: &Tensor<'_>, module: &Module<'_>) -> Result<Option<usize>> {
    let axis = module.int(&["norm_dim"]).map_or(0, |(axis, _)| axis);
    match (module.flag("enable_norm") == Some(true), axis) {
        (false, _) => Ok(None),
        (true, 0) => Ok(Some(0)),
        (true, 1) => Ok(Some(1)),
        (true, _) => Err(wrong(t, "`norm_dim` of its config is neither 0 nor 1")),
    }
}

/// # Errors
/// The config says another number of groups, or of outliers among the inputs.
fn check_stated(
    t: &Tensor<'_>,
    module: &Module<'_>,
    groups: usize,
    [inputs, outliers]: [usize; 2],
) -> Result<()> {
    let stated_groups = stated(t, module, "group_num")?;
    if let Some(stated) = stated_groups.filter(|stated| *stated != groups) {
        let what = format!("its config says {stated} groups, and there are {groups}");
        return Err(wrong(t, what));
    }
    if let Some(share) = module.number("npercent") {
        let stated = outliers_of_share(share, inputs, stated_groups);
        if stated != outliers {
            let what = format!("its config says {stated} outliers, and there are {outliers}");
            return Err(wrong(t, what));
        }
    }
    Ok(())
}

/// # Errors
/// `order` is no number for each input.
fn check_order(t: &Tensor<'_>, order: &Tensor<'_>, inputs: usize) -> Result<()> {
    require_shape(t, order, &[inputs])?;
    match order.dtype() {
        Dtype::I16 | Dtype::U16 | Dtype::I32 | Dtype::I64 => Ok(()),
        _ => Err(wrong(order, "the order of inputs is I16, U16, I32 or I64")),
    }
}

/// # Errors
/// The config says that codes are stored in a way that is not decoded.
fn check_kind(t: &Tensor<'_>, module: &Module<'_>) -> Result<()> {
    let what = match () {
        () if module.flag("is_indice_packed") == Some(false) => "codes that are not packed",
        () if module.flag("indices_as_float") == Some(true) => "codes that are called floats",
        () if module
            .text(&["vector_quant_dim"])
            .is_some_and(|(dim, _)| dim != "out") =>
        {
            "vectors along the inputs"
        }
        () => return Ok(()),
    };
    Err(refused(t, FAMILY, format!("its config says {what}")))
}

/// The two sizes under `key`, of outliers and of all others. -1 and 0 are none.
fn sizes(t: &Tensor<'_>, module: &Module<'_>, key: &str) -> Result<[Option<usize>; 2]> {
    let Some((pair, place)) = module.two_ints(key) else {
        let what = format!(
            "only its config tells how long vectors are: no `{key}` of two numbers is there"
        );
        return Err(wrong(t, what));
    };
    match pair.map(size) {
        [Some(first), Some(second)] => Ok([first, second]),
        _ => Err(wrong(t, format!("{place} says `{key}` {pair:?}"))),
    }
}

/// The size under `key`. -1 and 0 are none.
fn stated(t: &Tensor<'_>, module: &Module<'_>, key: &str) -> Result<Option<usize>> {
    let Some((n, place)) = module.int(&[key]) else {
        return Ok(None);
    };
    size(n).ok_or_else(|| wrong(t, format!("{place} says `{key}` {n}")))
}

/// What a number in the config says of a size; `None` if it is no size.
fn size(n: i64) -> Option<Option<usize>> {
    match n {
        -1 | 0 => Some(None),
        n => usize::try_from(n).ok().map(Some),
    }
}

/// The outliers, with vectors of `vector` values and so many of them.
///
/// # Errors
/// Config and tensors do not agree on them.
fn outliers<'m>(
    t: &Tensor<'_>,
    base: &str,
    module: &Module<'_>,
    [vector, entries]: [Option<usize>; 2],
    all: &Index<'m>,
) -> Result<Option<VptqOutliers<'m>>> {
    // gptqmodel has a length and a number of their vectors without outliers, and a share of inputs.
    let stated = stated(t, module, "outlier_size")?;
    let is_stated = stated.is_some() || module.number("npercent").is_some_and(|share| share > 0.0);
    let codes = match all.at(base, "outlier_indices") {
        None if is_stated => all.need(t, base, "outlier_indices")?,
        None => return Ok(None),
        Some(codes) => codes,
    };
    let (&[1, _, inputs], Dtype::I16 | Dtype::U16 | Dtype::I32) = (codes.shape(), codes.dtype())
    else {
        let what = "codes of outliers are I16, U16 or I32 [1, vectors of a column, inputs]";
        return Err(wrong(&codes, what));
    };
    if let Some(stated) = stated.filter(|stated| *stated != inputs) {
        let what = format!("its config says {stated} outliers, and there are {inputs}");
        return Err(wrong(t, what));
    }
    let entries = entries.filter(|&n| n <= MAX_ENTRIES);
    let (Some(_), Some(entries)) = (vector, entries) else {
        return Err(wrong(
            t,
            "its config has no vectors of outliers, or too many, and there are outliers",
        ));
    };
    Ok(Some(VptqOutliers { codes, inputs, entries }))
}

/// Outliers of gptqmodel: a share of the inputs in percent, and what is left over by a number of
/// groups (`vptq_group_setting`).
fn outliers_of_share(share: f64, inputs: usize, groups: Option<usize>) -> usize {
    if share <= 0.0 {
        return 0;
    }
    let first = ((share / 100.0 * inputs as f64).ceil() as usize).min(inputs);
    first + groups.map_or(0, |groups| (inputs - first) % groups)
}

/// The number of inputs, from the config or from what there is one of for each.
fn inputs(
    t: &Tensor<'_>,
    base: &str,
    module: &Module<'_>,
    order: Option<&Tensor<'_>>,
    norm: Option<usize>,
    all: &Index<'_>,
) -> Result<usize> {
    let of_norm = || {
        let factors = all.at(base, "weight_scale").filter(|_| norm == Some(0))?;
        Some(factors.elements())
    };
    let sizes = all.config.layer_sizes(base.trim_end_matches('.'));
    let found = stated(t, module, "in_features")?
        .or_else(|| order.map(Tensor::elements))
        .or_else(of_norm)
        .or(sizes[1]);
    match found {
        Some(n) if (1..=MAX_INPUTS).contains(&n) => Ok(n),
        Some(n) => {
            let what = format!("it has {n} inputs; 1 to {MAX_INPUTS} are decoded");
            Err(refused(t, FAMILY, what))
        }
        None => Err(wrong(t, "neither tensors nor configs tell how many inputs it has")),
    }
}

/// Inputs of a group, of `inputs` less those of `outliers` in `groups`.
fn group_inputs(
    t: &Tensor<'_>,
    module: &Module<'_>,
    inputs: usize,
    outliers: usize,
    groups: usize,
) -> Result<usize> {
    let rest = inputs
        .checked_sub(outliers)
        .filter(|&n| n > 0 && groups > 0);
    // The last group of gptqmodel may have fewer.
    let stated = stated(t, module, "group_size")?;
    let size = rest.map(|rest| stated.unwrap_or(rest.div_ceil(groups)));
    let fits = |size: usize| rest.is_some_and(|rest| rest.div_ceil(size) == groups);
    size.filter(|&size| fits(size)).ok_or_else(|| {
        let what =
            format!("{groups} groups do not have {inputs} inputs, {outliers} of them outliers");
        wrong(t, what)
    })
}

/// The number of outputs, in `blocks` vectors.
fn outputs(
    t: &Tensor<'_>,
    base: &str,
    module: &Module<'_>,
    vector: usize,
    blocks: usize,
    all: &Index<'_>,
) -> Result<usize> {
    let Some(padded) = blocks.checked_mul(vector).filter(|&n| n > 0) else {
        return Err(wrong(t, "it has no outputs, or their number overflows"));
    };
    let inputs = stated(t, module, "in_features")?;
    let stated = stated(t, module, "out_features")?;
    if inputs.is_some() && stated.is_none() {
        let what = "its config says how many inputs it has, and not how many outputs";
        return Err(wrong(t, what));
    }
    if let Some(stated) = stated.filter(|n| n.checked_next_multiple_of(vector) != Some(padded)) {
        let what = format!("its config says {stated} outputs, and it has {padded}");
        return Err(wrong(t, what));
    }
    let known = || {
        let bias = all.at(base, "bias").filter(|bias| bias.shape().len() == 1);
        let sizes = all.config.layer_sizes(base.trim_end_matches('.'));
        unpadded_outputs(padded, bias.as_ref(), sizes[0], vector)
    };
    Ok(stated.unwrap_or_else(known))
}
