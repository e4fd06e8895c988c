//! Schemes: which stored tensors belong together as one logical tensor, and how to decode them.
//! Files here know names, shapes and configs; the arithmetic is in `kernels/remember/`.

#[cfg(feature = "awq")]
mod awq;
mod bitnet;
#[cfg(feature = "bnb")]
mod bnb;
mod comfy;
mod compressed_tensors;
mod foreign;
mod fp8;
mod gemma_qat;
#[cfg(feature = "gguf")]
mod ggml;
#[cfg(feature = "gptq")]
mod gptq;
mod hqq;
mod int8;
mod layout;
#[cfg(any(feature = "gptq", feature = "awq"))]
mod marlin;
mod mlx;
mod modelopt;
mod mxfp4;
#[cfg(feature = "nvfp4")]
mod nvfp4;
#[cfg(feature = "qnat")]
mod qnat;
mod quanto;
mod quark;
pub(crate) mod seam;
mod sparse;
mod torchao;

use self::seam::Scheme;
pub(crate) use self::seam::{
    Buffers, Decode, Family, Grid, Group, GroupCodes, Item, Resolution, Tile, count, read,
    role_of_dropped,
};
pub use self::seam::{Fp8Format, Granularity, QuantScheme, SchemeCount, TensorRole};
#[cfg(feature = "lethe")]
pub(crate) use self::seam::{Plain, lcm};
pub(crate) use self::torchao::is_description;

/// Every scheme. The first that claims or refuses a tensor settles it.
pub(crate) const SCHEMES: &[&dyn Scheme] = &[
    #[cfg(feature = "qnat")]
    &qnat::Qnat,
    &torchao::Torchao,
    &bitnet::BitNet,
    &gemma_qat::GemmaQat,
    &quanto::Quanto,
    &hqq::Hqq,
    &comfy::ComfyUi,
    &modelopt::ModelOpt,
    &quark::Quark,
    #[cfg(feature = "nvfp4")]
    &nvfp4::Nvfp4,
    &compressed_tensors::CompressedTensors,
    &int8::Int8,
    &mxfp4::Mxfp4,
    &mlx::Mlx,
    &sparse::Sparse,
    &foreign::Foreign,
    #[cfg(feature = "gptq")]
    &gptq::Gptq,
    #[cfg(feature = "awq")]
    &awq::Awq,
    #[cfg(feature = "awq")]
    &awq::AwqWide,
    #[cfg(feature = "awq")]
    &awq::Gemv,
    #[cfg(any(feature = "gptq", feature = "awq"))]
    &marlin::Marlin,
    #[cfg(feature = "bnb")]
    &bnb::Bnb4,
    #[cfg(feature = "bnb")]
    &bnb::BnbInt8,
    &foreign::Disabled,
    &fp8::Fp8,
];
