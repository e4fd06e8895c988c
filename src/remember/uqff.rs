//! UQFF 1.x, the format of mistral.rs: safetensors in which each layer says how it is stored.
//!
//! ```text
//! uqff.version.{major,minor,patch}   U32
//! X.weight.format   U8        X.weight, and beside it X.weight.…
//!   0  ggml         U8 blocks; dtype U32 (ggml's number), shape U32
//!   1  floats       as they are
//!   2  HQQ          U8 codes [rows / codes of a byte, groups]; scales, zeros, shape, bits, axis, …
//!   3  FP8          F8_E4M3; dequant_w_scale, and scales of activations
//!   4  AFQ          U32 bit streams, as MLX has them; scales, biases, bits, group_size
//!   5  F8Q8         U8 blocks: E4M3 d | 32 I8 q; shape, num_blocks
//!   6  MXFP4        U8 codes, low nibble first; scales U8
//! ```
//!
//! Source: mistral.rs [`QuantizedSerdeType`][1] and `inspect_uqff_header` of each kind of layer.
//!
//! [1]:
//! https://github.com/EricLBuehler/mistral.rs/blob/9e922623f24b32d41f3892b74f0eed18707f4e6c/mistralrs-quant/src/lib.rs#L1178-L1186

mod blocks;
mod layer;

use std::collections::HashMap;

use self::layer::UqffLayer;
use crate::model::Tensor;
use crate::remember::seam::NamePattern::{Ends, Is};
use crate::remember::seam::{
    Group, Identity, Index, NamePattern, Prepared, QuantScheme, Scheme, TensorRole, base_of,
    refused,
};
use crate::{Dtype, ParsedModel, Result};

pub(super) struct Uqff;

/// End of the name of the tensor that says how a weight is stored.
const FORMAT: &str = ".weight.format";

/// Name in listings.
const FAMILY: &str = "UQFF";

/// The newest version that is read: another major version is another format, and a newer minor one
/// may have other layers.
const VERSION: (u32, u32) = (1, 2);

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["FP8"],
    methods: &[],
    codes: &[],
    companions: &[
        (Ends(FORMAT), TensorRole::QuantState),
        (Ends(".weight.dtype"), TensorRole::QuantState),
        (Ends(".weight.shape"), TensorRole::QuantState),
        (Ends(".weight.bits"), TensorRole::QuantState),
        (Ends(".weight.group_size"), TensorRole::QuantState),
        (Ends(".weight.axis"), TensorRole::QuantState),
        (Ends(".weight.optimization_steps"), TensorRole::QuantState),
        (Ends(".weight.round_zeros"), TensorRole::QuantState),
        (Ends(".weight.channel_wise"), TensorRole::QuantState),
        (Ends(".weight.num_blocks"), TensorRole::QuantState),
        (Ends(".weight.scales"), TensorRole::Scale),
        (Ends(".weight.dequant_w_scale"), TensorRole::Scale),
        (Ends(".weight.dequant_x_scale"), TensorRole::QuantState),
        (Ends(".weight.quant_scale"), TensorRole::QuantState),
        (Ends(".weight.biases"), TensorRole::Offset),
        (Ends(".weight.zeros"), TensorRole::ZeroPoint),
    ],
    optional: &[],
    activations: &[],
    markers: &[Is("uqff.version.major"), Is("uqff.version.minor"), Is("uqff.version.patch")],
    sidecars: &[Is("uqff_report.json")],
    container: None,
};

/// What is known of a whole model.
struct UqffModel {
    /// Why its version is refused, if it is.
    refusal: Option<String>,
    /// Tensors beside weights that no kind of layer has, by the names of the weights.
    unknown: HashMap<String, String>,
}

impl UqffModel {
    /// `None` if no layer of `model` says how it is stored.
    fn of(model: &ParsedModel) -> Option<Self> {
        let mut unknown = HashMap::new();
        let mut has_formats = false;
        for t in model.tensors() {
            let Some((module, _)) = t.name().rsplit_once(".weight.") else {
                continue;
            };
            let is_known = |(name, _): &(NamePattern, TensorRole)| name.fits(t.name());
            has_formats |= t.name().ends_with(FORMAT);
            if !IDENTITY.companions.iter().any(is_known) {
                unknown.insert(format!("{module}.weight"), t.name().to_owned());
            }
        }
        has_formats.then(|| Self { refusal: Self::refusal_of_version(model), unknown })
    }

    fn refusal_of_version(model: &ParsedModel) -> Option<String> {
        let number = |name: &str| {
            let t = model.tensor(&format!("uqff.version.{name}"))?;
            let is_number = t.dtype() == Dtype::U32 && t.elements() == 1;
            let mut bytes = [0; 4];
            let read = is_number.then(|| t.part().read_at(0, &mut bytes))?;
            read.ok().map(|()| u32::from_le_bytes(bytes))
        };
        match (number("major"), number("minor")) {
            (Some(major), Some(minor)) if major == VERSION.0 && minor <= VERSION.1 => None,
            (Some(major), Some(minor)) => Some(format!(
                "its version is {major}.{minor}; {}.0 to {}.{} are read",
                VERSION.0, VERSION.0, VERSION.1
            )),
            _ => Some(
                "its version is missing, which is in the first file of a model; give the directory"
                    .to_owned(),
            ),
        }
    }
}

impl Scheme for Uqff {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn prepare(&self, all: &Index<'_>) -> Option<Prepared> {
        UqffModel::of(all.model).map(|model| Box::new(model) as Prepared)
    }

    fn kind(&self, _t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::Other(FAMILY)
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let format = base_of(t.name(), "weight").and_then(|_| all.at(t.name(), ".format"));
        let Some(format) = format else {
            return Ok(None);
        };
        if let Some(UqffModel { refusal, unknown }) = all.prepared() {
            if let Some(refusal) = refusal {
                return Err(refused(t, FAMILY, refusal));
            }
            if let Some(name) = unknown.get(t.name()) {
                return Err(refused(t, FAMILY, format_args!("`{name}` beside it is not known")));
            }
        }
        UqffLayer::new(t, &format, all).claim().map(Some)
    }
}
