//! The table of schemes.

use std::sync::Arc;

#[cfg(feature = "awq")]
use super::awq::Awq;
#[cfg(feature = "bnb")]
use super::bnb::{Bnb4, Codes, Int8};
use super::compressed_tensors::CompressedTensors;
use super::fp8::{Fp8, Fp8Layout};
#[cfg(feature = "gptq")]
use super::gptq::Gptq;
use super::mlx::Mlx;
use super::mx::{Mx, MxLayout};
#[cfg(feature = "nvfp4")]
use super::nvfp4::Nvfp4;
#[cfg(feature = "qnat")]
use super::qnat::Qnat;
use super::scheme::Parameters;
use super::{Method, Scope};
use crate::ConvertTarget;
use crate::kernels::lethe::mlx::MlxFloatMode;
use crate::scheme::Granularity;

/// A scheme.
pub(super) struct Row {
    pub name: &'static str,
    /// Another name for it; empty if there is none.
    pub alias: &'static str,
    /// What it is, for people.
    pub about: &'static str,
    pub container: ConvertTarget,
    /// Which tensors it is for.
    pub scope: Scope,
    /// Keys of its description in `config.json`.
    pub config_keys: &'static [&'static str],
    pub make: fn(&Parameters) -> Arc<dyn Method>,
}

impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

const CONFIG: &[&str] = &["quantization_config"];

/// A scheme of safetensors, for linear layers.
const fn linear(
    name: &'static str,
    about: &'static str,
    make: fn(&Parameters) -> Arc<dyn Method>,
) -> Row {
    let (container, scope) = (ConvertTarget::Safetensors, Scope::Linear);
    Row {
        name,
        alias: "",
        about,
        container,
        scope,
        config_keys: CONFIG,
        make,
    }
}

/// One of MLX's, which quantizes embeddings too.
const fn mlx(
    name: &'static str,
    about: &'static str,
    make: fn(&Parameters) -> Arc<dyn Method>,
) -> Row {
    let config_keys = &["quantization", "quantization_config"];
    Row {
        scope: Scope::LinearAndEmbeddings,
        config_keys,
        ..linear(name, about, make)
    }
}

/// One of qlora-rs's container, in which everything is quantized.
#[cfg(feature = "qnat")]
const fn qnat(
    name: &'static str,
    about: &'static str,
    make: fn(&Parameters) -> Arc<dyn Method>,
) -> Row {
    Row {
        container: ConvertTarget::Qnat,
        scope: Scope::All,
        config_keys: &[],
        ..linear(name, about, make)
    }
}

/// Every scheme but those of GGUF.
pub(super) const SCHEMES: &[Row] = &[
    #[cfg(feature = "bnb")]
    Row {
        alias: "bnb-nf4",
        ..linear("nf4", "BitsAndBytes NF4, blocks of 64", |p| {
            bnb4(p, Codes::Nf4, false)
        })
    },
    #[cfg(feature = "bnb")]
    linear("nf4-dq", "BitsAndBytes NF4 with quantized scales", |p| {
        bnb4(p, Codes::Nf4, true)
    }),
    #[cfg(feature = "bnb")]
    linear("fp4", "BitsAndBytes FP4, blocks of 64", |p| {
        bnb4(p, Codes::Fp4, false)
    }),
    #[cfg(feature = "bnb")]
    linear("fp4-dq", "BitsAndBytes FP4 with quantized scales", |p| {
        bnb4(p, Codes::Fp4, true)
    }),
    #[cfg(feature = "bnb")]
    Row {
        alias: "bnb-int8",
        ..linear(
            "int8",
            "BitsAndBytes LLM.int8(), a scale for each row",
            |_| Arc::new(Int8),
        )
    },
    linear("fp8", "FP8 of compressed-tensors, one scale", |_| {
        ct_fp8(Granularity::Tensor)
    }),
    linear(
        "fp8-channel",
        "FP8 of compressed-tensors, a scale for each row",
        |_| ct_fp8(Granularity::Channel),
    ),
    linear(
        "fp8-block-ct",
        "FP8 of compressed-tensors, blocks of 128 × 128",
        |p| ct_fp8(square(p)),
    ),
    linear(
        "fp8-block",
        "FP8 of transformers and DeepSeek, blocks of 128 × 128",
        |p| tf_fp8(square(p), false, false),
    ),
    linear(
        "fp8-block-ragged",
        "the same, with smaller blocks at the edges",
        |p| tf_fp8(square(p), false, true),
    ),
    linear(
        "fp8-block-ue8m0",
        "the same, with powers of two as scales",
        |p| tf_fp8(square(p), true, false),
    ),
    linear("fp8-tensor", "FP8 of transformers, one scale", |_| {
        tf_fp8(Granularity::Tensor, false, false)
    }),
    linear("fp8-comfy", "FP8 E4M3 of ComfyUI, one scale", |_| {
        comfy_fp8(false)
    }),
    linear("fp8-comfy-e5m2", "FP8 E5M2 of ComfyUI, one scale", |_| {
        comfy_fp8(true)
    }),
    linear("mxfp8", "MXFP8 of compressed-tensors", |p| {
        mx(p, MxLayout::CompressedTensors, true)
    }),
    linear("mxfp8-modelopt", "MXFP8 of ModelOpt", |p| {
        mx(p, MxLayout::ModelOpt, true)
    }),
    linear("mxfp4", "MXFP4 of compressed-tensors", |p| {
        mx(p, MxLayout::CompressedTensors, false)
    }),
    linear("mxfp4-modelopt", "MXFP4 of ModelOpt", |p| {
        mx(p, MxLayout::ModelOpt, false)
    }),
    linear(
        "mxfp4-gpt-oss",
        "MXFP4 of gpt-oss, for stacks of experts",
        |p| mx(p, MxLayout::GptOss, false),
    ),
    #[cfg(feature = "nvfp4")]
    linear("nvfp4", "NVFP4 of ModelOpt", |_| Arc::new(Nvfp4::ModelOpt)),
    #[cfg(feature = "nvfp4")]
    linear("nvfp4-ct", "NVFP4 of compressed-tensors", |_| {
        Arc::new(Nvfp4::CompressedTensors)
    }),
    linear("w4a16", "INT4 of compressed-tensors, groups of 128", |p| {
        ct(p, CompressedTensors::W4A16)
    }),
    linear("w4a16-asym", "the same, with zero points", |p| {
        ct(p, CompressedTensors::W4A16_ASYM)
    }),
    linear(
        "w8a16",
        "INT8 of compressed-tensors, a scale for each row",
        |p| ct(p, CompressedTensors::W8A16),
    ),
    linear(
        "w8a8",
        "INT8 of compressed-tensors, for INT8 activations",
        |p| ct(p, CompressedTensors::W8A8),
    ),
    #[cfg(feature = "gptq")]
    linear(
        "gptq",
        "GPTQ's layout, 4 bits, groups of 128, rounded to nearest",
        |p| gptq(p, Gptq::INT4),
    ),
    #[cfg(feature = "gptq")]
    linear("gptq-int8", "GPTQ's layout, 8 bits, groups of 128", |p| {
        gptq(p, Gptq::INT8)
    }),
    #[cfg(feature = "gptq")]
    linear(
        "gptq-asym",
        "GPTQ's layout, version 2, 4 bits with zero points",
        |p| gptq(p, GPTQ_ASYM),
    ),
    #[cfg(feature = "awq")]
    linear(
        "awq",
        "AWQ's layout, 4 bits, groups of 128, rounded to nearest",
        |p| Arc::new(p.group.map_or_else(Awq::default, |group| Awq { group })),
    ),
    mlx("mlx-2bit", "MLX affine, groups of 64", |p| affine(p, 2)),
    mlx("mlx-3bit", "MLX affine, groups of 64", |p| affine(p, 3)),
    mlx("mlx-4bit", "MLX affine, groups of 64", |p| affine(p, 4)),
    mlx("mlx-5bit", "MLX affine, groups of 64", |p| affine(p, 5)),
    mlx("mlx-6bit", "MLX affine, groups of 64", |p| affine(p, 6)),
    mlx("mlx-8bit", "MLX affine, groups of 64", |p| affine(p, 8)),
    mlx("mlx-mxfp4", "MLX MXFP4", |_| {
        Arc::new(Mlx::Floating(MlxFloatMode::Mxfp4))
    }),
    mlx("mlx-mxfp8", "MLX MXFP8", |_| {
        Arc::new(Mlx::Floating(MlxFloatMode::Mxfp8))
    }),
    mlx("mlx-nvfp4", "MLX NVFP4", |_| {
        Arc::new(Mlx::Floating(MlxFloatMode::Nvfp4))
    }),
    #[cfg(feature = "qnat")]
    qnat("qnat", "NF4 of qlora-rs", |_| {
        Arc::new(Qnat { double: false })
    }),
    #[cfg(feature = "qnat")]
    qnat("qnat-dq", "NF4 of qlora-rs with quantized scales", |_| {
        Arc::new(Qnat { double: true })
    }),
];

#[cfg(feature = "bnb")]
fn bnb4(p: &Parameters, codes: Codes, double: bool) -> Arc<dyn Method> {
    Arc::new(Bnb4 {
        codes,
        block: p.group.unwrap_or(64),
        double,
        compute: p.dtype,
    })
}

/// Square blocks.
fn square(p: &Parameters) -> Granularity {
    let side = p.group.unwrap_or(128);
    Granularity::Block {
        rows: side,
        cols: side,
    }
}

fn ct_fp8(granularity: Granularity) -> Arc<dyn Method> {
    Arc::new(Fp8 {
        layout: Fp8Layout::CompressedTensors,
        granularity,
    })
}

fn tf_fp8(granularity: Granularity, powers: bool, ragged: bool) -> Arc<dyn Method> {
    Arc::new(Fp8 {
        layout: Fp8Layout::Transformers { powers, ragged },
        granularity,
    })
}

fn comfy_fp8(wide: bool) -> Arc<dyn Method> {
    Arc::new(Fp8 {
        layout: Fp8Layout::ComfyUi { wide },
        granularity: Granularity::Tensor,
    })
}

fn mx(p: &Parameters, layout: MxLayout, wide: bool) -> Arc<dyn Method> {
    Arc::new(Mx {
        layout,
        rule: p.rule,
        wide,
    })
}

fn ct(p: &Parameters, scheme: CompressedTensors) -> Arc<dyn Method> {
    Arc::new(CompressedTensors {
        group: p.group.or(scheme.group),
        ..scheme
    })
}

#[cfg(feature = "gptq")]
const GPTQ_ASYM: Gptq = Gptq {
    symmetric: false,
    version_2: true,
    ..Gptq::INT4
};

#[cfg(feature = "gptq")]
fn gptq(p: &Parameters, scheme: Gptq) -> Arc<dyn Method> {
    Arc::new(Gptq {
        group: p.group.or(scheme.group),
        ..scheme
    })
}

fn affine(p: &Parameters, bits: usize) -> Arc<dyn Method> {
    Arc::new(Mlx::Affine {
        bits,
        group: p.group.unwrap_or(64),
    })
}
