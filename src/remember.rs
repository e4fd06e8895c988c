//! Decoding (dequantizing). The public functions decode single tensors from slices, with a module for
//! each kind of weights.
//!
//! A scheme has a file here: which stored tensors belong together as one logical tensor, by their
//! names, shapes and configs, and how they are decoded. The arithmetic is in `kernels`.

mod aqlm;
pub mod awq;
mod bitnet;
pub mod bnb;
mod comfy;
mod compressed_tensors;
pub(crate) mod conv1d;
mod dfloat11;
mod eetq;
mod exl2;
mod exl3;
mod foreign;
pub mod fp8;
mod fp_quant;
mod gemma_qat;
#[cfg(feature = "gguf")]
mod ggml;
mod ggml_blocks;
pub mod gptq;
mod graph;
mod higgs;
mod hqq;
#[cfg_attr(not(feature = "gguf"), allow(dead_code))]
pub(crate) mod image_models;
mod int8;
pub(crate) mod kernels;
pub(crate) mod layout;
mod marlin;
mod marlin24;
mod mlc;
mod mlx;
mod modelopt;
mod modelslim;
pub(crate) mod module_names;
mod mxfp4;
mod nunchaku;
mod nvfp4;
mod packed;
mod paroquant;
mod qnat;
mod qqq;
mod quanto;
mod quark;
mod rotations;
mod sdnq;
pub(crate) mod seam;
mod sglang;
mod sinq;
mod sparse;
mod spqr;
mod torchao;
mod transforms;
mod uqff;
mod vptq;

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

#[cfg(feature = "gguf")]
pub use self::gguf::*;
pub(crate) use self::mlx::experts::names_of_experts;
#[cfg(feature = "models")]
pub(crate) use self::mlx::experts::{ExpertCount, MAX_EXPERTS};
#[cfg(feature = "npz")]
pub use self::npz::*;
#[cfg(feature = "pth")]
pub use self::pth::*;
#[cfg(any(feature = "lethe", feature = "models"))]
pub(crate) use self::seam::EncodedAs;
pub(crate) use self::seam::assumptions::Assumption;
pub(crate) use self::seam::have_same_values;
pub(crate) use self::seam::{
    BlockPool, Buffers, Decode, Grid, Group, ReadAhead, Resolution, ResolvedItem, StoredRectangle,
    StoredRows, Tile, count, lcm,
};
#[cfg(feature = "lethe")]
pub(crate) use self::seam::{CodeFamily, GroupCodes, RelaySource, TopExponent, Widening};
pub use self::seam::{CodeType, Fp8Format, Granularity, QuantScheme, SchemeCount, TensorRole};
#[cfg(feature = "models")]
pub(crate) use self::seam::{PIECE, Window, values_of_rows};
pub(crate) use self::seam::{PlainFloats, is_plain_float};
use self::seam::{Registry, Scheme};
#[cfg(feature = "lethe")]
pub(crate) use self::seam::{covering, is_kept};
pub use self::{awq::*, bnb::*, fp8::*, gptq::*};
use crate::ParsedModel;

#[cfg(feature = "gguf")]
pub mod gguf {
    //! Block types of ggml.

    pub use crate::compat::dequantize::{dequantize_gguf_blocks_to_bf16, dequantize_gguf_to_bf16};
}

#[cfg(feature = "npz")]
pub mod npz {
    //! Arrays of NPZ archives, as safetensors files.

    pub use crate::compat::npz::{npz_to_safetensors, npz_to_safetensors_bytes};
}

#[cfg(feature = "pth")]
pub mod pth {
    //! Tensors of PyTorch checkpoints, as safetensors files.

    pub use crate::compat::pth::{pth_to_safetensors, pth_to_safetensors_bytes};
}

/// Every scheme. Which of several claims stands is declared in [`Identity::over`](seam::Identity), and
/// not by this order; those that are over others come first only so that fewer are asked.
const SCHEMES: &[&dyn Scheme] = &[
    #[cfg(feature = "gguf")]
    &ggml::Ggml,
    &qnat::Qnat,
    &graph::ONNX,
    &graph::TFLITE,
    &graph::EXECUTORCH,
    &graph::KERAS,
    &graph::OPENVINO,
    &graph::PADDLE,
    &graph::CORE_ML,
    &uqff::Uqff,
    // Claims nothing unless a config names its method, and then whatever is called like its codes.
    &sdnq::Sdnq,
    // Claims what its own file names, and nothing else.
    &modelslim::ModelSlim,
    &torchao::Torchao,
    &bitnet::BitNet,
    &gemma_qat::GemmaQat,
    &quanto::Quanto,
    &sinq::Sinq,
    &hqq::Hqq,
    &comfy::ComfyUi,
    &modelopt::ModelOpt,
    &quark::Quark,
    &marlin24::Marlin24,
    &nvfp4::Nvfp4,
    &compressed_tensors::CompressedTensors,
    &sglang::Sglang,
    &int8::Int8,
    &mxfp4::Mxfp4,
    // Claims nothing in any other container.
    &mlc::Mlc,
    &mlx::Mlx,
    &sparse::Sparse,
    &dfloat11::DFloat11,
    &nunchaku::Nunchaku,
    &fp_quant::FpQuant,
    &exl2::Exl2,
    &exl3::Exl3,
    &higgs::Higgs,
    &spqr::Spqr,
    &aqlm::Aqlm,
    &vptq::Vptq,
    // Claims nothing unless a config names its method: plain INT8 has the same shapes.
    &eetq::Eetq,
    &foreign::Foreign,
    &paroquant::ParoQuant,
    &gptq::Gptq,
    &awq::Awq,
    &awq::AwqWide,
    &awq::Gemv,
    &qqq::Qqq,
    &marlin::Marlin,
    &bnb::Bnb4,
    &bnb::BnbInt8,
    &fp8::Fp8,
    &fp8::CastFp8,
];

/// [`SCHEMES`], with the names of all of them put together once.
static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::new(SCHEMES));

impl ParsedModel {
    /// Sorts every tensor into groups, plain tensors, dropped ones and problems.
    pub(crate) fn resolve(&self) -> Resolution<'_> {
        let mut resolution = Resolution::new(self, &REGISTRY);
        // A container that states the types of its tensors has no layers whose inputs are
        // multiplied.
        if REGISTRY.owner(self).is_none() {
            transforms::undo(self, &mut resolution);
            rotations::undo(self, &mut resolution);
            conv1d::transpose(self, &mut resolution);
        }
        #[cfg(feature = "gguf")]
        ggml::prism::undo(self, &mut resolution);
        resolution
    }
}

/// The role of a tensor called `name` that is in no output.
pub(crate) fn role_of_dropped(name: &str) -> TensorRole {
    REGISTRY.role_of_dropped(name)
}

/// Keys of a file's metadata that describe the quantization of its tensors, and are untrue of
/// tensors decoded from them.
pub(crate) fn descriptions(metadata: &HashMap<String, String>) -> HashSet<String> {
    REGISTRY.descriptions(metadata)
}

/// Whether a file called `name` beside a model describes its quantization and nothing else.
pub(crate) fn is_sidecar(name: &str) -> bool {
    REGISTRY.is_sidecar(name)
}

#[cfg(test)]
mod tests;
