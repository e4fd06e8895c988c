//! Schemes that are recognised and not decoded: codes must never pass for weights.

use crate::containers::model::Tensor;
use crate::scheme::seam::{Group, Index, QuantScheme, Scheme, refused};
use crate::{Dtype, Result};

/// How a scheme is recognised.
struct Sign {
    scheme: &'static str,
    /// Name of the tensor of codes ends like this…
    suffix: &'static str,
    /// … has one of these dtypes, if any are named …
    dtypes: &'static [Dtype],
    /// … and these stand beside it, under the name without the suffix.
    beside: &'static [&'static str],
    /// What would decode it.
    remedy: &'static str,
}

const NOT_YET: &str = "recognised, not decoded by this version";

const fn sign(
    scheme: &'static str,
    suffix: &'static str,
    dtypes: &'static [Dtype],
    beside: &'static [&'static str],
) -> Sign {
    Sign {
        scheme,
        suffix,
        dtypes,
        beside,
        remedy: NOT_YET,
    }
}

const WORDS: &[Dtype] = &[Dtype::I32, Dtype::U32];
const BYTES: &[Dtype] = &[Dtype::U8];
const INT8: &[Dtype] = &[Dtype::I8];

/// Layouts as in the schemes' own libraries. The first match names the scheme.
const SIGNS: &[Sign] = &[
    #[cfg(not(feature = "nvfp4"))]
    Sign {
        remedy: "needs the feature `nvfp4`, which this build leaves out",
        ..sign("NVFP4", "", BYTES, &["_weight_scale_2"])
    },
    #[cfg(not(feature = "nvfp4"))]
    Sign {
        remedy: "needs the feature `nvfp4`, which this build leaves out",
        ..sign("NVFP4", "", BYTES, &["_scale_2"])
    },
    #[cfg(not(feature = "nvfp4"))]
    Sign {
        remedy: "needs the feature `nvfp4`, which this build leaves out",
        ..sign("NVFP4", ".weight_packed", BYTES, &[".weight_global_scale"])
    },
    sign("SVDQuant (Nunchaku)", ".qweight", &[], &[".wscales"]),
    sign("ParoQuant", ".qweight", &[], &[".theta", ".pairs"]),
    sign(
        "compressed-tensors marlin-24",
        ".weight_packed",
        WORDS,
        &[".scale_packed"],
    ),
    sign("packed weights", ".weight_packed", &[], &[]),
    sign("blockwise int8", ".weight", INT8, &[".weight_scale_inv"]),
    sign(
        "packed bytes with weight_scale (MXFP4, BitNet, Gemma QAT)",
        ".weight",
        BYTES,
        &[".weight_scale"],
    ),
    sign("SDNQ", ".weight", &[Dtype::U8, Dtype::I8], &[".scale"]),
    sign("EETQ", ".weight", INT8, &[".weight_scales"]),
    sign("MLX (ollama)", ".weight", &[Dtype::U32], &[".weight.scale"]),
    sign("AQLM", ".codes", &[], &[".codebooks"]),
    sign("EXL2", ".q_weight", &[], &[".q_scale"]),
    sign("EXL3", ".trellis", &[], &[]),
    sign("QQQ", ".B", WORDS, &[".s_channel"]),
    sign("QuIP#", ".Qidxs", &[], &[]),
    sign("VPTQ", ".indices", &[], &[".centroids"]),
    sign("VPTQ", ".indices", &[], &[".centroids.weight"]),
];

/// Schemes of features that this build leaves out; whoever comes here, no scheme of the build has claimed.
const DISABLED: &[Sign] = &[
    #[cfg(not(feature = "gptq"))]
    Sign {
        remedy: "needs the feature `gptq`, which this build leaves out",
        ..sign("GPTQ", ".qweight", &[], &[".g_idx"])
    },
    #[cfg(not(feature = "gptq"))]
    Sign {
        remedy: "needs the feature `gptq`, which this build leaves out",
        ..sign("GPTQ Marlin", ".B", WORDS, &[".s"])
    },
    #[cfg(all(feature = "gptq", not(feature = "awq")))]
    Sign {
        remedy: "needs the feature `awq`, which this build leaves out",
        ..sign("AWQ", ".qweight", &[], &[])
    },
    #[cfg(all(feature = "awq", not(feature = "gptq")))]
    Sign {
        remedy: "needs the feature `gptq`, which this build leaves out",
        ..sign("GPTQ", ".qweight", &[], &[])
    },
    #[cfg(not(any(feature = "gptq", feature = "awq")))]
    Sign {
        remedy: "needs the features `gptq` or `awq`, which this build leaves out",
        ..sign("GPTQ or AWQ", ".qweight", &[], &[])
    },
    #[cfg(not(feature = "bnb"))]
    Sign {
        remedy: "needs the feature `bnb`, which this build leaves out",
        ..sign("BitsAndBytes 4-bit", "", &[], &[".absmax", ".quant_map"])
    },
    #[cfg(not(feature = "bnb"))]
    Sign {
        remedy: "needs the feature `bnb`, which this build leaves out",
        ..sign("BitsAndBytes INT8", ".weight", INT8, &[".SCB"])
    },
];

impl Sign {
    fn fits(&self, t: &Tensor<'_>, all: &Index<'_>) -> bool {
        let base = t.name().strip_suffix(self.suffix);
        base.is_some_and(|base| {
            (self.dtypes.is_empty() || self.dtypes.contains(&t.dtype()))
                && self
                    .beside
                    .iter()
                    .all(|suffix| all.at(base, suffix).is_some())
        })
    }
}

/// Claims nothing: what it recognises is refused.
pub(super) struct Foreign;

/// As [`Foreign`], for schemes of features that are off.
pub(super) struct Disabled;

fn kind(signs: &[Sign], t: &Tensor<'_>, all: &Index<'_>) -> QuantScheme {
    signs
        .iter()
        .find(|s| s.fits(t, all))
        .map_or(QuantScheme::Unquantized, |s| QuantScheme::Other(s.scheme))
}

fn refuse<'m>(signs: &[Sign], t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
    let Some(sign) = signs.iter().find(|s| s.fits(t, all)) else {
        return Ok(None);
    };
    let said = all.config.text(&["quant_method", "method"]);
    let said = said
        .map(|(method, place)| format!("; {place} says quant_method `{method}`"))
        .unwrap_or_default();
    Err(refused(t, sign.scheme, format!("{}{said}", sign.remedy)))
}

impl Scheme for Foreign {
    fn kind(&self, t: &Tensor<'_>, all: &Index<'_>) -> QuantScheme {
        kind(SIGNS, t, all)
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        refuse(SIGNS, t, all)
    }
}

impl Scheme for Disabled {
    fn kind(&self, t: &Tensor<'_>, all: &Index<'_>) -> QuantScheme {
        kind(DISABLED, t, all)
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        refuse(DISABLED, t, all)
    }
}
