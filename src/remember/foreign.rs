//! Schemes that are recognised and not decoded. Without them, their codes would be copied as if
//! they were weights.

use crate::model::Tensor;
use crate::remember::seam::{Group, Identity, Index, QuantScheme, Scheme, refused};
use crate::{Dtype, Result};

/// How a scheme is recognised: by the name and the dtype of the codes, and by the names of their
/// companions.
pub(super) struct Signature {
    pub scheme: &'static str,
    /// End of the name of the codes.
    pub suffix: &'static str,
    /// Dtypes that the codes may have; empty: any.
    pub dtypes: &'static [Dtype],
    /// Suffixes of the companions, all of which are required. They replace `suffix` in the name of
    /// the codes.
    pub companions: &'static [&'static str],
    /// What the error tells the user about decoding it.
    pub remedy: &'static str,
}

const NOT_YET: &str = "recognised, not decoded by this version";

pub(super) const fn signature(
    scheme: &'static str,
    suffix: &'static str,
    dtypes: &'static [Dtype],
    companions: &'static [&'static str],
) -> Signature {
    Signature { scheme, suffix, dtypes, companions, remedy: NOT_YET }
}

pub(super) const BYTES: &[Dtype] = &[Dtype::U8];
pub(super) const INT8: &[Dtype] = &[Dtype::I8];

/// Names and dtypes as the schemes' libraries write them. The first match decides, so specific
/// signatures come first.
const SIGNATURES: &[Signature] = &[
    Signature {
        scheme: "SVDQuant (Nunchaku)",
        suffix: ".qweight",
        dtypes: &[],
        companions: &[".wscales"],
        remedy: "no config is there that says so (method `svdquant` in the metadata, quant_method `nunchaku_lite` in config.json); \
                 `python -m nunchaku.merge_safetensors` adds it to files of the older format",
    },
    // Compressed weights in the state of a model of ModelOpt, such as `mto.save` writes; exported
    // models have other names.
    Signature {
        scheme: "ModelOpt's compressed weights",
        suffix: ".weight",
        dtypes: &[Dtype::U8, Dtype::I8, Dtype::F8E4M3],
        companions: &[".weight_quantizer._scale"],
        remedy: "recognised, not decoded by this version; modelopt's `export_hf_checkpoint` writes the model in a form that is",
    },
    // Stacks as vLLM has loaded them (`save_sharded_state`): `moe_wna16`, and its own INT8.
    signature("integers of vLLM's experts", ".w13_qweight", BYTES, &[".w13_scales"]),
    signature("integers of vLLM's experts", ".w2_qweight", BYTES, &[".w2_scales"]),
    signature("INT8 of vLLM's experts", ".w13_weight", INT8, &[".w13_scale"]),
    signature("INT8 of vLLM's experts", ".w2_weight", INT8, &[".w2_scale"]),
    // transformers' own NVFP4 layers, whose scales are stored twice: as a GPU takes them, and in
    // rows.
    signature("NVFP4 of transformers", ".weight", &[], &[".weight_sf_rowmajor"]),
    // Whatever packed weight is left here was taken neither by NVFP4 nor by compressed-tensors.
    signature("packed weights", ".weight_packed", &[], &[]),
    signature(
        "packed bytes with weight_scale (MXFP4, BitNet, Gemma QAT)",
        ".weight",
        BYTES,
        &[".weight_scale"],
    ),
    Signature {
        scheme: "SDNQ",
        suffix: ".weight",
        dtypes: &[Dtype::U8, Dtype::I8],
        companions: &[".scale"],
        remedy: "only its config (quant_method `sdnq`) tells which codes it has, and there is none",
    },
    Signature {
        scheme: "EETQ",
        suffix: ".weight",
        dtypes: INT8,
        companions: &[".weight_scales"],
        remedy: "only its config (quant_method `eetq`) tells it from plain INT8, and there is none",
    },
    // Ollama repacks matrices to U32, and leaves stacks as they are.
    signature("NVFP4 of Ollama in bytes", ".weight", BYTES, &[".weight.scale"]),
    // Names that no other library uses need no companion.
    signature("Four Over Six", ".quantized_weight_values", &[], &[]),
    signature("QuIP#", ".Qidxs", &[], &[]),
    signature("VPTQ", ".indices", &[], &[".centroids"]),
];

impl Signature {
    /// Whether `t` is codes of this scheme.
    fn fits(&self, t: &Tensor<'_>, all: &Index<'_>) -> bool {
        let base = t.name().strip_suffix(self.suffix);
        base.is_some_and(|base| {
            (self.dtypes.is_empty() || self.dtypes.contains(&t.dtype()))
                && self
                    .companions
                    .iter()
                    .all(|suffix| all.at(base, suffix).is_some())
        })
    }
}

/// The scheme of the first of `signatures` that fits `t`.
pub(super) fn kind(signatures: &[Signature], t: &Tensor<'_>, all: &Index<'_>) -> QuantScheme {
    signatures
        .iter()
        .find(|s| s.fits(t, all))
        .map_or(QuantScheme::Unquantized, |s| QuantScheme::Other(s.scheme))
}

/// Returns `None` unless one of `signatures` fits `t`.
///
/// # Errors
/// `Unsupported` if one fits. The message has the scheme, the remedy, and the config's
/// `quant_method`.
pub(super) fn refuse<'m>(
    signatures: &[Signature],
    t: &Tensor<'m>,
    all: &Index<'m>,
) -> Result<Option<Group<'m>>> {
    let Some(signature) = signatures.iter().find(|s| s.fits(t, all)) else {
        return Ok(None);
    };
    let method = all.config.text(&["quant_method", "method"]);
    let method = method
        .map(|(method, place)| format!("; {place} says quant_method `{method}`"))
        .unwrap_or_default();
    Err(refused(t, signature.scheme, format!("{}{method}", signature.remedy)))
}

const NNCF: &str = "NNCF";

/// Whether `t` is codes of NNCF: its scale is a parameter of a hook that is named after it, with
/// colons in place of dots.
fn is_nncf(t: &Tensor<'_>, all: &Index<'_>) -> bool {
    matches!(t.dtype(), Dtype::U8 | Dtype::I8) && {
        let hook = format!("{}__0.0._scale", t.name().replace('.', ":"));
        all.at("__nncf_hooks.post_hooks.", &hook).is_some()
    }
}

/// All schemes that no build decodes. Claims nothing and refuses what it recognises.
pub(super) struct Foreign;

static IDENTITY: Identity = Identity {
    name: "not decoded",
    over: &["GPTQ"],
    methods: &[],
    codes: &[],
    companions: &[],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Foreign {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn kind(&self, t: &Tensor<'_>, all: &Index<'_>) -> QuantScheme {
        match is_nncf(t, all) {
            true => QuantScheme::Other(NNCF),
            false => kind(SIGNATURES, t, all),
        }
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        if is_nncf(t, all) {
            return Err(refused(t, NNCF, NOT_YET));
        }
        refuse(SIGNATURES, t, all)
    }
}
