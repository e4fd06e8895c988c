//! The table of schemes: name, description, container, default tensors, keys in `config.json`, and the method.
//!
//! File types of GGUF are not in it: they are in `gguf/mixture/file_type.rs`. A scheme is added by a row here.

use std::sync::Arc;

use super::awq::Awq;
use super::bnb::{Bnb4, Bnb4QuantType, BnbInt8};
use super::compressed_tensors::CompressedTensors;
use super::fp8::{Fp8, Fp8Layout};
use super::gptq::Gptq;
use super::mlx::Mlx;
use super::mx::{Mx, MxLayout};
use super::nvfp4::Nvfp4;
use super::qnat::Qnat;
use super::scheme::SchemeParameters;
use super::{Method, Scope};
use crate::ConvertTarget;
use crate::kernels::lethe::mlx::MlxFloatMode;
use crate::scheme::Granularity;

/// A row of the table.
pub(super) struct SchemeRow {
    pub name: &'static str,
    /// A second name; empty if there is none.
    pub alias: &'static str,
    /// Description in `amn forget --list`.
    pub about: &'static str,
    pub container: ConvertTarget,
    /// Which tensors are encoded by default.
    pub scope: Scope,
    /// Keys in `config.json` under which the scheme's description is stored.
    pub config_keys: &'static [&'static str],
    /// Whether it quantizes scales, too.
    pub quantizes_scales: bool,
    pub make: fn(&SchemeParameters) -> Arc<dyn Method>,
}

// Names are unique, and functions have no useful equality.
impl PartialEq for SchemeRow {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl std::fmt::Debug for SchemeRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

const CONFIG: &[&str] = &["quantization_config"];

/// A scheme in safetensors that encodes linear layers.
const fn linear(
    name: &'static str,
    about: &'static str,
    make: fn(&SchemeParameters) -> Arc<dyn Method>,
) -> SchemeRow {
    let (container, scope) = (ConvertTarget::Safetensors, Scope::Linear);
    SchemeRow {
        name,
        alias: "",
        about,
        container,
        scope,
        config_keys: CONFIG,
        quantizes_scales: false,
        make,
    }
}

/// A scheme of MLX, which quantizes embeddings too. mlx-lm writes the description under both keys.
const fn mlx(
    name: &'static str,
    about: &'static str,
    make: fn(&SchemeParameters) -> Arc<dyn Method>,
) -> SchemeRow {
    let config_keys = &["quantization", "quantization_config"];
    SchemeRow {
        scope: Scope::LinearAndEmbeddings,
        config_keys,
        ..linear(name, about, make)
    }
}

/// A scheme in the container of qlora-rs, which has no other kind of tensor.
const fn qnat(
    name: &'static str,
    about: &'static str,
    make: fn(&SchemeParameters) -> Arc<dyn Method>,
) -> SchemeRow {
    SchemeRow {
        container: ConvertTarget::Qnat,
        scope: Scope::All,
        config_keys: &[],
        ..linear(name, about, make)
    }
}

/// Every scheme except the file types of GGUF.
pub(super) const SCHEMES: &[SchemeRow] = &[
    SchemeRow {
        alias: "bnb-nf4",
        ..linear("nf4", "BitsAndBytes NF4, blocks of 64", |p| {
            bnb4(p, Bnb4QuantType::Nf4, false)
        })
    },
    SchemeRow {
        quantizes_scales: true,
        ..linear("nf4-dq", "BitsAndBytes NF4 with quantized scales", |p| {
            bnb4(p, Bnb4QuantType::Nf4, true)
        })
    },
    linear("fp4", "BitsAndBytes FP4, blocks of 64", |p| {
        bnb4(p, Bnb4QuantType::Fp4, false)
    }),
    SchemeRow {
        quantizes_scales: true,
        ..linear("fp4-dq", "BitsAndBytes FP4 with quantized scales", |p| {
            bnb4(p, Bnb4QuantType::Fp4, true)
        })
    },
    SchemeRow {
        alias: "bnb-int8",
        ..linear(
            "int8",
            "BitsAndBytes LLM.int8(), a scale for each row",
            |_| Arc::new(BnbInt8),
        )
    },
    linear(
        "fp8",
        "FP8 of compressed-tensors, one scale for each tensor",
        |_| ct_fp8(Granularity::Tensor),
    ),
    linear(
        "fp8-channel",
        "FP8 of compressed-tensors, a scale for each row",
        |_| ct_fp8(Granularity::Channel),
    ),
    linear(
        "fp8-block-ct",
        "FP8 of compressed-tensors, blocks of 128 × 128",
        |p| ct_fp8(square_blocks(p)),
    ),
    linear(
        "fp8-block",
        "FP8 of transformers and DeepSeek, blocks of 128 × 128",
        |p| tf_fp8(square_blocks(p), false, false),
    ),
    linear(
        "fp8-block-ragged",
        "FP8 of DeepSeek, blocks of 128 × 128, smaller ones at the edges",
        |p| tf_fp8(square_blocks(p), false, true),
    ),
    linear(
        "fp8-block-ue8m0",
        "FP8 of transformers, blocks of 128 × 128, scales are powers of two",
        |p| tf_fp8(square_blocks(p), true, false),
    ),
    linear(
        "fp8-tensor",
        "FP8 of transformers, one scale for each tensor",
        |_| tf_fp8(Granularity::Tensor, false, false),
    ),
    linear(
        "fp8-comfy",
        "FP8 E4M3 of ComfyUI, one scale for each tensor",
        |_| comfy_fp8(false),
    ),
    linear(
        "fp8-comfy-e5m2",
        "FP8 E5M2 of ComfyUI, one scale for each tensor",
        |_| comfy_fp8(true),
    ),
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
    linear("nvfp4", "NVFP4 of ModelOpt", |_| Arc::new(Nvfp4::ModelOpt)),
    linear("nvfp4-ct", "NVFP4 of compressed-tensors", |_| {
        Arc::new(Nvfp4::CompressedTensors)
    }),
    linear("w4a16", "INT4 of compressed-tensors, groups of 128", |p| {
        ct(p, CompressedTensors::W4A16)
    }),
    linear(
        "w4a16-asym",
        "INT4 of compressed-tensors, groups of 128, with zero points",
        |p| ct(p, CompressedTensors::W4A16_ASYM),
    ),
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
    linear(
        "gptq",
        "GPTQ's layout, 4 bits, groups of 128, rounded to nearest",
        |p| gptq(p, Gptq::INT4),
    ),
    linear("gptq-int8", "GPTQ's layout, 8 bits, groups of 128", |p| {
        gptq(p, Gptq::INT8)
    }),
    linear(
        "gptq-asym",
        "GPTQ's layout, version 2, 4 bits with zero points",
        |p| gptq(p, GPTQ_ASYM),
    ),
    linear(
        "awq",
        "AWQ's layout, 4 bits, groups of 128, rounded to nearest",
        |p| Arc::new(p.group.map_or_else(Awq::default, |group| Awq { group })),
    ),
    mlx("mlx-2bit", "MLX affine, 2 bits, groups of 64", |p| {
        affine(p, 2)
    }),
    mlx("mlx-3bit", "MLX affine, 3 bits, groups of 64", |p| {
        affine(p, 3)
    }),
    mlx("mlx-4bit", "MLX affine, 4 bits, groups of 64", |p| {
        affine(p, 4)
    }),
    mlx("mlx-5bit", "MLX affine, 5 bits, groups of 64", |p| {
        affine(p, 5)
    }),
    mlx("mlx-6bit", "MLX affine, 6 bits, groups of 64", |p| {
        affine(p, 6)
    }),
    mlx("mlx-8bit", "MLX affine, 8 bits, groups of 64", |p| {
        affine(p, 8)
    }),
    mlx("mlx-mxfp4", "MLX MXFP4", |_| {
        Arc::new(Mlx::Floating(MlxFloatMode::Mxfp4))
    }),
    mlx("mlx-mxfp8", "MLX MXFP8", |_| {
        Arc::new(Mlx::Floating(MlxFloatMode::Mxfp8))
    }),
    mlx("mlx-nvfp4", "MLX NVFP4", |_| {
        Arc::new(Mlx::Floating(MlxFloatMode::Nvfp4))
    }),
    qnat("qnat", "NF4 of qlora-rs", |_| {
        Arc::new(Qnat {
            double_quant: false,
        })
    }),
    SchemeRow {
        quantizes_scales: true,
        ..qnat("qnat-dq", "NF4 of qlora-rs with quantized scales", |_| {
            Arc::new(Qnat { double_quant: true })
        })
    },
];

fn bnb4(p: &SchemeParameters, quant_type: Bnb4QuantType, double_quant: bool) -> Arc<dyn Method> {
    Arc::new(Bnb4 {
        quant_type,
        block: p.group.unwrap_or(64),
        double_quant,
        compute_dtype: p.dtype,
    })
}

/// Blocks with as many rows as columns: 128, as DeepSeek and transformers have them, or the group size.
fn square_blocks(p: &SchemeParameters) -> Granularity {
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

fn tf_fp8(granularity: Granularity, is_ue8m0: bool, allows_edge_blocks: bool) -> Arc<dyn Method> {
    Arc::new(Fp8 {
        layout: Fp8Layout::Transformers {
            is_ue8m0,
            allows_edge_blocks,
        },
        granularity,
    })
}

fn comfy_fp8(is_e5m2: bool) -> Arc<dyn Method> {
    Arc::new(Fp8 {
        layout: Fp8Layout::ComfyUi { is_e5m2 },
        granularity: Granularity::Tensor,
    })
}

fn mx(p: &SchemeParameters, layout: MxLayout, is_mxfp8: bool) -> Arc<dyn Method> {
    Arc::new(Mx {
        layout,
        rule: p.rule,
        is_mxfp8,
    })
}

fn ct(p: &SchemeParameters, scheme: CompressedTensors) -> Arc<dyn Method> {
    Arc::new(CompressedTensors {
        group: p.group.or(scheme.group),
        ..scheme
    })
}

const GPTQ_ASYM: Gptq = Gptq {
    symmetric: false,
    version_2: true,
    ..Gptq::INT4
};

fn gptq(p: &SchemeParameters, scheme: Gptq) -> Arc<dyn Method> {
    Arc::new(Gptq {
        group: p.group.or(scheme.group),
        ..scheme
    })
}

fn affine(p: &SchemeParameters, bits: usize) -> Arc<dyn Method> {
    Arc::new(Mlx::Affine {
        bits,
        group: p.group.unwrap_or(64),
    })
}
