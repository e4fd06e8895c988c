//! SDNQ: `X.weight` in one of 176 dtypes, which only the config tells, with scales for groups of
//! inputs.
//!
//! | tensor | |
//! |---|---|
//! | `X.weight` | codes; of other than eight bits packed without regard to rows (`remember/kernels/sdnq.rs`) |
//! | `X.scale` | F32, F16, BF16: their shape tells that of the weight (`shape`); a codebook has its entries for the last 1 |
//! | `X.zero_point` | of dtypes without a sign |
//! | `X.svd_up` `[out, r]`, `X.svd_down` `[r, in]` | product that is added; transposed if codes are multiplied |
//! | `X.scale_2`, `X.scale_zero_point` | scale and zero point of scales that are codes themselves |
//! | `X.zero_point_scale`, `X.zero_point_2` | scale and zero point of zero points that are codes themselves |
//!
//! A value is `zero + q * scale`, rounded once, or `q * scale`, or an entry of the codebook; plus
//! the product; then the columns are rotated back, if they are rotated.
//!
//! Layout and formulas: sdnq `quantizer.py` (`sdnq_quantize_layer_weight`), `dequantizer.py`
//! (`dequantize_weight`). On the CPU torch's `addcmul` rounds once, unless `torch.compile` makes
//! other code of it.

mod codebook;
mod codes;
mod decoder;
mod numbers;
mod products;
mod scales;
mod shape;

use std::collections::HashMap;

use self::codes::StoredCodes;
use self::shape::SdnqShape;
use crate::config::{NativeFloat, QuantMethod, SdnqConfig, SdnqDtype, SdnqSettings};
use crate::model::Tensor;
use crate::remember::layout::hadamard::HadamardRotated;
use crate::remember::layout::low_rank::LowRankSum;
use crate::remember::seam::NamePattern::{Ends, Is};
use crate::remember::seam::{
    Granularity, Group, Identity, Index, PlainFloats, Prepared, QuantScheme, Scheme, TensorRole,
    base_of, refused, wrong,
};
use crate::{AnamnesisError, Dtype, Result};

pub(super) struct Sdnq;

/// Name in listings.
const FAMILY: &str = "SDNQ";

/// The first version whose floats have subnormals. Before, the same codes were other numbers.
const HAS_SUBNORMALS: [u32; 3] = [0, 2, 3];

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["FP8", "not decoded"],
    methods: &[QuantMethod::Sdnq],
    codes: &[],
    companions: &[
        (Ends(".scale_2"), TensorRole::Scale),
        (Ends(".scale_zero_point"), TensorRole::Scale),
        (Ends(".zero_point_scale"), TensorRole::ZeroPoint),
        (Ends(".zero_point_2"), TensorRole::ZeroPoint),
        (Ends(".svd_up"), TensorRole::LowRank),
        (Ends(".svd_down"), TensorRole::LowRank),
    ],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[Is("quantization_config.json")],
    container: None,
};

/// Last parts of the names of a module's tensors that the scheme knows.
const PARTS: &[&str] = &[
    "weight",
    "bias",
    "scale",
    "scale_2",
    "scale_zero_point",
    "zero_point",
    "zero_point_scale",
    "zero_point_2",
    "svd_up",
    "svd_down",
];

/// For modules with a scale, the name of a tensor that the scheme does not know.
struct UnknownParts(HashMap<String, String>);

impl Scheme for Sdnq {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn prepare(&self, all: &Index<'_>) -> Option<Prepared> {
        if !is_its(all) {
            return None;
        }
        let mut unknown = HashMap::new();
        for t in all.model.tensors() {
            let Some((module, part)) = t.name().rsplit_once('.') else {
                continue;
            };
            if !PARTS.contains(&part) && all.at(module, ".scale").is_some() {
                unknown.insert(module.to_owned(), t.name().to_owned());
            }
        }
        Some(Box::new(UnknownParts(unknown)))
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        if !is_its(all) {
            return Ok(None);
        }
        // Norms have scales of one dimension.
        if let Some(base) = base_of(t.name(), "scale")
            && t.shape().len() > 1
            && all.at(base, "weight").is_none()
        {
            return Err(wrong(t, format!("its `{base}weight` is missing")));
        }
        if let Some(base) = base_of(t.name(), "scale")
            && all.at(base, "weight").is_none()
            && is_codebook(base, t, all)
        {
            return Err(wrong(t, format!("its `{base}weight` is missing")));
        }
        let Some(base) = base_of(t.name(), "weight") else {
            return Ok(None);
        };
        let is_codes =
            t.dtype().is_integer() || t.dtype().is_quantized() || are_half_codes(t, base, all);
        // Norms have scales of one dimension, which are floats.
        let is_ours = |scale: &Tensor<'_>| {
            is_codes
                || scale.shape().len() > 1
                || PlainFloats::of(scale).is_none()
                || is_codebook(base, scale, all)
        };
        let scale = match all.at(base, "scale") {
            Some(scale) if is_ours(&scale) => scale,
            None if is_codes => return Err(wrong(t, format!("its `{base}scale` is missing"))),
            _ => return Ok(None),
        };
        let understood = |e: &str| refused(t, FAMILY, e);
        let config = all.config.sdnq().map_err(understood)?;
        let settings = config.of(t.name()).map_err(|e| understood(&e))?;
        let weight = SdnqWeight { t: *t, base, scale, config, settings, all };
        weight.claimed().map(Some)
    }
}

/// Whether the config says that the model is SDNQ's.
fn is_its(all: &Index<'_>) -> bool {
    all.config.quant_method() == Some(&QuantMethod::Sdnq)
}

/// Whether `t`, of F16 or BF16, is codes by the config. A weight that is not quantized, of a model
/// in the dtype of its codes, is so too, unless the config lists its module.
fn are_half_codes(t: &Tensor<'_>, base: &str, all: &Index<'_>) -> bool {
    let is_float = matches!(t.dtype(), Dtype::F16 | Dtype::BF16);
    if !is_float || t.shape().len() < 2 {
        return false;
    }
    let config = all.config.sdnq().ok();
    let settings = config.and_then(|config| config.of(t.name()).ok());
    settings.is_some_and(|settings| {
        let dtype = match settings.weights {
            SdnqDtype::Native(NativeFloat::F16) => Dtype::F16,
            SdnqDtype::Native(NativeFloat::BF16) => Dtype::BF16,
            _ => return false,
        };
        // Codes in groups have three dimensions.
        let is_weight = t.shape().len() <= 3 || settings.has_convolutions;
        let has_scale = all.at(base, "scale").is_some();
        let is_listed = all.config.skips(base.trim_end_matches('.'));
        t.dtype() == dtype && is_weight && (has_scale || !is_listed)
    })
}

/// Whether `scale` of one dimension is a codebook for all of the weight of `base`, by the config. A
/// norm may have a scale of as many values.
fn is_codebook(base: &str, scale: &Tensor<'_>, all: &Index<'_>) -> bool {
    let config = all.config.sdnq().ok();
    let settings = config.and_then(|config| config.of(&format!("{base}weight")).ok());
    settings.is_some_and(|settings| {
        let entries = 1usize.checked_shl(settings.weights.bits().into());
        let module = base.trim_end_matches('.').rsplit('.').next();
        settings.has_codebook
            && entries.is_some_and(|n| scale.shape() == [n])
            && module.is_some_and(|module| !module.contains("norm"))
    })
}

/// A weight that is being claimed.
struct SdnqWeight<'a, 'm> {
    t: Tensor<'m>,
    /// Its name without the last part.
    base: &'m str,
    scale: Tensor<'m>,
    config: &'a SdnqConfig,
    settings: SdnqSettings,
    all: &'a Index<'m>,
}

impl<'m> SdnqWeight<'_, 'm> {
    fn claimed(&self) -> Result<Group<'m>> {
        let Self { t, settings, .. } = self;
        if let Some(UnknownParts(unknown)) = self.all.prepared()
            && let Some(part) = unknown.get(self.base.trim_end_matches('.'))
        {
            let what = format!("beside it is `{part}`, which is no part of it that is known");
            return Err(refused(t, FAMILY, what));
        }
        let dtypes = [Some(settings.weights), settings.scales, settings.zero_points];
        let is_packed_float = |dtype| matches!(dtype, Some(SdnqDtype::Packed(_)));
        if self.config.version < HAS_SUBNORMALS && dtypes.into_iter().any(is_packed_float) {
            return Err(self.refused_version("floats had other values", HAS_SUBNORMALS));
        }
        let has_codebook = settings.has_codebook;
        if has_codebook
            && (!matches!(settings.weights, SdnqDtype::Uint(..=8)) || settings.has_convolutions)
        {
            let what = "`use_codebook` is decoded only for unsigned integer dtypes of up to eight bits, and not with `quant_conv`";
            return Err(refused(t, FAMILY, what));
        }
        let codes = StoredCodes::new(t, settings.weights)?;
        let shape = SdnqShape::new(&codes, &self.scale_dims(&codes)?, settings, self.rows_hint())?;
        let (scales, scale_parts) = self.scales(&shape)?;
        let (zeros, zero_parts) = self.zero_points(&shape)?;
        let mut parts = vec![(TensorRole::Quantized, *t)];
        parts.extend(scale_parts.into_iter().map(|t| (TensorRole::Scale, t)));
        parts.extend(zero_parts.into_iter().map(|t| (TensorRole::ZeroPoint, t)));
        let mut decoder = if has_codebook {
            decoder::of_codebooks(&codes, &shape, scales)
        } else {
            decoder::of_groups(&codes, &shape, scales, zeros)
        };
        if let Some(factors) = self.factors(&shape)? {
            parts.extend(factors.parts());
            decoder = Box::new(LowRankSum::new(decoder, factors, None));
        }
        let rotation = self.rotation(&shape)?;
        if let Some(group) = rotation {
            decoder = Box::new(HadamardRotated { rotated: decoder, group, stored: None });
        }
        let scheme = QuantScheme::Grouped {
            family: FAMILY,
            codes: codes.code_type(),
            scales: match shape.groups {
                0 => Granularity::Tensor,
                1 => Granularity::Channel,
                groups => Granularity::Group(shape.inputs / groups),
            },
        };
        let name = t.name();
        let mut group = Group::new(name, shape.dims(), scheme, parts, decoder);
        group.is_rotated = rotation.is_some();
        Ok(group)
    }

    fn refused_version(&self, what: &str, first: [u32; 3]) -> AnamnesisError {
        let [version, first] =
            [self.config.version, first].map(|v| v.map(|n| n.to_string()).join("."));
        let what = format!(
            "`sdnq_version` is missing or below {first}; before it {what} (here {version})"
        );
        refused(&self.t, FAMILY, what)
    }
}
