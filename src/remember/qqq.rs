//! QQQ: weights of four bits for products with activations of eight. `X.B` I32 `[in / 16, 2 *
//! out]`, `X.s_channel` F32 `[1, out]` and `X.s_group` F16 `[groups, out]`, which is empty, or
//! missing, if all inputs are one group. The weight is `X.weight` `[out, in]`.
//!
//! With groups it is `int8((q - 8) * s_group) * s_channel`, where `int8` is the nearest integer
//! within -128 to 127: the kernel multiplies bytes. Otherwise it is `16 * q * s_channel` with
//! signed codes, which the kernel takes as the upper halves of bytes.
//!
//! Layout and formulas: gptqmodel `nn_modules/qlinear/qqq.py` (`pack`,
//! `_dequantize_weight_for_torch`).

use std::ops::Range;

use crate::config::{Module, QuantMethod};
use crate::model::Tensor;
use crate::remember::kernels::grouped::Int;
use crate::remember::kernels::marlin::{TILE_INPUTS, TILE_OUTPUTS, TileOrder};
use crate::remember::layout::group_size::{ShortGroup, configured_group, group_size};
use crate::remember::layout::marlin_tiles::{MarlinCodes, PermutedScales, ScaleOrder};
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, row_groups,
};
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme, TensorRole,
    base_of, require_shape, wrong,
};
use crate::{Dtype, Result};

pub(super) struct Qqq;

/// Name in messages.
const FAMILY: &str = "QQQ";

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["Marlin"],
    methods: &[QuantMethod::Qqq],
    codes: &[".B"],
    companions: &[(Ends(".s_channel"), TensorRole::Scale), (Ends(".s_group"), TensorRole::Scale)],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Qqq {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(base) = base_of(t.name(), "B") else {
            return Ok(None);
        };
        let groups = all.at(base, "s_group");
        let channels = match (all.at(base, "s_channel"), &groups) {
            (Some(channels), _) => channels,
            (None, Some(_)) => all.need(t, base, "s_channel")?,
            // Marlin's.
            (None, None) => return Ok(None),
        };
        let module = all.config.at(base.trim_end_matches('.'));
        check_config(t, &module)?;
        let [n, k] = weight_shape(t)?;
        require_shape(t, &channels, &[1, n])?;
        let codes = |order| {
            let part = t.part();
            Codes::Unpacked(Box::new(MarlinCodes { part, n, order }))
        };
        let channel_scales = permuted(&channels, Dtype::F32, n, ScaleOrder::SingleGroup)?;
        let mut parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, channels)];
        parts.extend(groups.map(|groups| (TensorRole::Scale, groups)));
        let (decoder, scales) = match groups.filter(|groups| groups.elements() > 0) {
            Some(groups) => {
                let group = inputs_of_a_group(t, &groups, [n, k], &module)?;
                let grid = row_groups(k, group);
                let group_scales = permuted(&groups, Dtype::F16, n, ScaleOrder::Groups)?;
                let format = CodeFormat::Int(Int::offset_binary(4));
                let codes = codes(TileOrder::HalvesOfBytes);
                let decoder = Grouped::scaled(codes, 4, format, [n, k], grid, group_scales);
                let channel_scales = Box::new(ForEachGroup(channel_scales));
                let formula = GroupFormula::ScaleToInt8(GroupOffsets::new(channel_scales));
                (Grouped { formula, ..decoder }, Granularity::Group(group))
            }
            None => {
                check_one_group(t, groups.as_ref(), k, &module)?;
                let codes = codes(TileOrder::UpperHalvesOfBytes);
                let (format, grid) = (CodeFormat::Int(Int::signed(8)), row_groups(k, k));
                let decoder = Grouped::scaled(codes, 8, format, [n, k], grid, channel_scales);
                (decoder, Granularity::Channel)
            }
        };
        let scheme = QuantScheme::Grouped { family: FAMILY, codes: CodeType::Int(4), scales };
        let (name, shape) = (format!("{base}weight"), vec![n, k]);
        Ok(Some(Group::new(name, shape, scheme, parts, Box::new(decoder))))
    }
}

/// # Errors
/// The config says other bits than four, or zero points.
fn check_config(t: &Tensor<'_>, module: &Module<'_>) -> Result<()> {
    // The method's own repository writes `wbits`.
    let bits = module.int(&["bits", "wbits"]);
    if let Some((bits, place)) = bits.filter(|(bits, _)| *bits != 4 && !module.uncertain) {
        return Err(wrong(t, format!("{place} says {bits} bits, and QQQ has 4")));
    }
    if module.flag("sym") == Some(false) {
        let what = "the config says `sym: false`, and QQQ has no zero points";
        return Err(wrong(t, what));
    }
    Ok(())
}

/// Rows and columns of the weight whose codes are `t`.
fn weight_shape(t: &Tensor<'_>) -> Result<[usize; 2]> {
    let misfit = || wrong(t, "codes of QQQ are I32 [in / 16, 2 * out]");
    let (&[depth, words], Dtype::I32 | Dtype::U32) = (t.shape(), t.dtype()) else {
        return Err(misfit());
    };
    let inputs = depth.checked_mul(TILE_INPUTS);
    match inputs.filter(|&k| k > 0 && words > 0 && words.is_multiple_of(2 * TILE_OUTPUTS)) {
        Some(k) => Ok([words / 2, k]),
        None => Err(misfit()),
    }
}

/// Inputs that share a scale of `groups`.
fn inputs_of_a_group(
    t: &Tensor<'_>,
    groups: &Tensor<'_>,
    [n, k]: [usize; 2],
    module: &Module<'_>,
) -> Result<usize> {
    let count = groups.shape().first().copied().unwrap_or(0);
    require_shape(t, groups, &[count, n])?;
    if count == 1 {
        // Codes lie otherwise if all inputs are one group, so that either of the tensors is not
        // what it seems.
        let what = "it has scales of groups for a single group, which QQQ has none for";
        return Err(wrong(t, what));
    }
    if module.flag("desc_act") == Some(true) {
        let what = "the config says `desc_act: true`, and QQQ has no order of inputs";
        return Err(wrong(t, what));
    }
    group_size(t, count, k, ShortGroup::Never, module)
}

/// Checks that all `k` inputs are one group. `groups` is empty or missing.
///
/// # Errors
/// The config says otherwise, or there is neither a tensor nor a config to tell.
fn check_one_group(
    t: &Tensor<'_>,
    groups: Option<&Tensor<'_>>,
    k: usize,
    module: &Module<'_>,
) -> Result<()> {
    match configured_group(k, module) {
        Some((size, place)) if size != k && !(module.uncertain && groups.is_some()) => {
            let what = format!("{place} says groups of {size} inputs, and there is no `s_group`");
            Err(wrong(t, what))
        }
        // Modules are saved without the empty tensor, too. A shard parsed alone may lack the scales
        // of groups.
        None if groups.is_none() => {
            let what = "neither a config nor an `s_group` says whether it has groups";
            Err(wrong(t, what))
        }
        _ => Ok(()),
    }
}

/// Scales of `n` outputs in Marlin's order.
fn permuted<'m>(
    t: &Tensor<'m>,
    dtype: Dtype,
    n: usize,
    order: ScaleOrder,
) -> Result<Box<dyn ScaleMatrix + 'm>> {
    if t.dtype() != dtype {
        return Err(wrong(t, format!("these scales of QQQ are {dtype}")));
    }
    Ok(Box::new(PermutedScales { floats: Floats::ieee(t)?, n, order }))
}

/// The one number of each row, for all groups of it.
struct ForEachGroup<'m>(Box<dyn ScaleMatrix + 'm>);

impl ScaleMatrix for ForEachGroup<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let mut numbers = Vec::new();
        self.0.extend(rows, 0..1, staging, &mut numbers)?;
        out.extend(
            numbers
                .iter()
                .flat_map(|&number| std::iter::repeat_n(number, cols.len())),
        );
        Ok(())
    }
}
