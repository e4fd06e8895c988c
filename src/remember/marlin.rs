//! Marlin, four bits, symmetric. GPTQ: `X.B` I32 `[in / 16, 2 * out]` with `X.s` `[groups, out]`,
//! and `X.workspace`, which is scratch of the kernel. AWQ: `X.qweight` and `X.scales` of the same
//! shapes, without `X.qzeros`. The weight is `X.weight` `[out, in]`: `(q - 8) * s`.
//!
//! Layout: auto_gptq `nn_modules/qlinear/qlinear_marlin.py` (`_get_perms`, `pack`), AutoAWQ
//! `modules/linear/marlin.py`.

use crate::config::{Module, QuantMethod};
use crate::model::Tensor;
use crate::remember::kernels::grouped::Int;
use crate::remember::kernels::marlin::{TILE_INPUTS, TILE_OUTPUTS, TileOrder};
use crate::remember::layout::group_size::{ShortGroup, group_size};
use crate::remember::layout::marlin_tiles::{MarlinCodes, PermutedScales, ScaleOrder};
use crate::remember::packed::{PackedLayer, PackedLayout};
use crate::remember::seam::NamePattern::{Ends, EndsIfQuantized};
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::remember::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme, TensorRole, wrong,
};
use crate::{Dtype, Result};

pub(super) struct Marlin;

static IDENTITY: Identity = Identity {
    name: "Marlin",
    over: &[],
    methods: &[QuantMethod::Gptq, QuantMethod::Awq],
    codes: &[".B"],
    companions: &[
        (EndsIfQuantized(".s"), TensorRole::Scale),
        (Ends(".workspace"), TensorRole::QuantState),
    ],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Marlin {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn kind(&self, t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::Other(if t.name().ends_with('B') {
            "GPTQ Marlin"
        } else {
            "AWQ Marlin"
        })
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        // GPTQ's Marlin has names of its own; AWQ's is told by shapes.
        if let Some(base) = super::seam::base_of(t.name(), "B")
            && let Some(scales) = all.at(base, "s")
        {
            return gptq(t, base, &scales, all).map(Some);
        }
        if let Some(packed) = PackedLayer::find(t, all)?
            && packed.layout(all)? == PackedLayout::Marlin
        {
            return awq(&packed, all).map(Some);
        }
        Ok(None)
    }
}

fn gptq<'m>(
    t: &Tensor<'m>,
    base: &'m str,
    scales: &Tensor<'m>,
    all: &Index<'m>,
) -> Result<Group<'m>> {
    let module = all.config.at(base.trim_end_matches('.'));
    if let Some((bits, place)) = module
        .int(&["bits"])
        .filter(|(bits, _)| *bits != 4 && !module.uncertain)
    {
        return Err(wrong(t, format!("{place} says {bits} bits, and Marlin has 4")));
    }
    // With one group the order of the inputs has no effect on the scales, so `desc_act` is
    // harmless.
    let several = scales.shape().first().is_some_and(|&groups| groups > 1);
    if module.flag("sym") == Some(false) || module.flag("desc_act") == Some(true) && several {
        return Err(wrong(
            t,
            "the config says what Marlin has not: `sym: false`, or desc_act with several groups",
        ));
    }
    let mut group = weight(t, scales, format!("{base}weight"), "GPTQ Marlin", &module)?;
    // Locks of the kernel, all zero. A part of the group, so that no output has it.
    let workspace = all
        .at(base, "workspace")
        .filter(|w| w.dtype() == Dtype::I32);
    group
        .parts
        .extend(workspace.map(|w| (TensorRole::QuantState, w)));
    Ok(group)
}

fn awq<'m>(packed: &PackedLayer<'m>, all: &Index<'m>) -> Result<Group<'m>> {
    let module = all.config.at(packed.module());
    packed.check_awq(PackedLayout::Marlin, &module, all)?;
    if module.flag("zero_point") == Some(true) {
        return Err(wrong(
            &packed.qweight,
            "the config says `zero_point: true`, and Marlin has none",
        ));
    }
    weight(&packed.qweight, &packed.scales, packed.weight(), "AWQ Marlin", &module)
}

fn weight<'m>(
    t: &Tensor<'m>,
    scales: &Tensor<'m>,
    name: String,
    family: &'static str,
    module: &Module<'_>,
) -> Result<Group<'m>> {
    let misfit = || {
        wrong(
            t,
            format!(
                "Marlin is I32 [in / 16, 2 * out] with scales [groups, out], here {:?}",
                scales.shape()
            ),
        )
    };
    let (&[depth, words], &[groups, n]) = (t.shape(), scales.shape()) else {
        return Err(misfit());
    };
    let k = depth
        .checked_mul(TILE_INPUTS)
        .filter(|_| n.checked_mul(2) == Some(words) && n.is_multiple_of(TILE_OUTPUTS));
    let is_words = matches!(t.dtype(), Dtype::I32 | Dtype::U32);
    let Some(k) = k.filter(|&k| is_words && k > 0 && n > 0 && groups > 0) else {
        return Err(misfit());
    };
    let group = group_size(t, groups, k, ShortGroup::Never, module)?;
    let codes =
        Codes::Unpacked(Box::new(MarlinCodes { part: t.part(), n, order: TileOrder::Halves }));
    let scale = Box::new(PermutedScales {
        floats: Floats::ieee(scales)?,
        n,
        order: ScaleOrder::of_groups(groups),
    });
    let code_format = CodeFormat::Int(Int::offset_binary(4));
    let decoder = Grouped::scaled(codes, 4, code_format, [n, k], row_groups(k, group), scale);
    let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scales)];
    let granularity = if groups == 1 {
        Granularity::Channel
    } else {
        Granularity::Group(group)
    };
    let scheme = QuantScheme::Grouped { family, codes: CodeType::Int(4), scales: granularity };
    Ok(Group::new(name, vec![n, k], scheme, parts, Box::new(decoder)))
}
