//! The table of schemes: names, description, container, default tensors, keys in `config.json`, and
//! the method.
//!
//! File types of GGUF are not in it: they are in `gguf/mixture/file_type.rs`. A scheme is added by
//! a row here.

use std::sync::Arc;

use super::awq::Awq;
use super::bnb::{Bnb4, Bnb4QuantType, BnbInt8};
use super::comfy::{ComfyBlocks, ComfyConvRot};
use super::compressed_tensors::CompressedTensors;
use super::dfloat11::DFloat11;
use super::fp8::{Fp8, Fp8Layout};
use super::gptq::Gptq;
use super::hqq::Hqq;
use super::mlx::Mlx;
use super::mx::{Mx, MxCodes, MxLayout};
use super::nvfp4::Nvfp4;
use super::qnat::Qnat;
use super::scheme::{ForgetScheme, Library, SchemeParameters, SchemeRow};
use super::sdnq::{Sdnq, SdnqCodes};
use super::{Method, Scope};
use crate::lethe::kernels::mlx::MlxFloatMode;
use crate::remember::Granularity;
use crate::{ConvertTarget, TargetDtype};

/// A scheme in safetensors that encodes linear layers. [`schemes!`] fills in its names.
const fn linear(make: fn(&SchemeParameters) -> Arc<dyn Method>) -> SchemeRow {
    SchemeRow {
        name: "",
        aliases: &[],
        about: "",
        container: ConvertTarget::Safetensors,
        dtype: TargetDtype::BF16,
        scope: Scope::Linear,
        config_keys: &["quantization_config"],
        quantizes_scales: false,
        library: None,
        recipe: None,
        is_comfy: false,
        has_group_sizes: false,
        has_search: false,
        has_scale_rules: false,
        instead: &[],
        make,
    }
}

/// DFloat11, which loses nothing and so takes embeddings too.
const DFLOAT11_ROW: SchemeRow = SchemeRow {
    scope: Scope::LinearAndUntiedEmbeddings,
    config_keys: &["dfloat11_config"],
    ..linear(|_| Arc::new(DFloat11::default()))
};

/// A scheme of MLX, which quantizes embeddings too. mlx-lm writes the description under both keys.
const fn mlx(make: fn(&SchemeParameters) -> Arc<dyn Method>) -> SchemeRow {
    SchemeRow {
        scope: Scope::LinearAndEmbeddings,
        config_keys: &["quantization", "quantization_config"],
        library: Some(Library::Mlx),
        ..linear(make)
    }
}

/// MLX's affine mode in the widths of one of mlx-lm's recipes, whose model has 4 bits by name.
const fn recipe(bits: [u8; 2]) -> SchemeRow {
    SchemeRow { recipe: Some(bits), ..mlx(|p| affine(p, 4)) }
}

/// A scheme of ComfyUI, which describes it beside each weight.
const fn comfy(make: fn(&SchemeParameters) -> Arc<dyn Method>) -> SchemeRow {
    SchemeRow { is_comfy: true, ..linear(make) }
}

/// A scheme in the container of qlora-rs, which has no other kind of tensor.
const fn qnat(make: fn(&SchemeParameters) -> Arc<dyn Method>) -> SchemeRow {
    SchemeRow {
        container: ConvertTarget::Qnat,
        dtype: TargetDtype::F32,
        scope: Scope::All,
        config_keys: &[],
        ..linear(make)
    }
}

/// `row`, whose scales are quantized as well.
const fn with_quantized_scales(row: SchemeRow) -> SchemeRow {
    SchemeRow { quantizes_scales: true, ..row }
}

/// `row`, which is one of compressed-tensors.
const fn of_ct(row: SchemeRow) -> SchemeRow {
    SchemeRow { library: Some(Library::CompressedTensors), ..row }
}

/// `row`, which is one of ModelOpt.
const fn of_modelopt(row: SchemeRow) -> SchemeRow {
    SchemeRow { library: Some(Library::ModelOpt), ..row }
}

/// `row`, some of whose tensors other schemes take.
const fn or(instead: &'static [&'static str], row: SchemeRow) -> SchemeRow {
    SchemeRow { instead, ..row }
}

/// `row`, which leaves a choice of the group or the block.
const fn in_groups(row: SchemeRow) -> SchemeRow {
    SchemeRow { has_group_sizes: true, ..row }
}

/// `row`, whose scales can be searched.
const fn searched(row: SchemeRow) -> SchemeRow {
    SchemeRow { has_search: true, ..row }
}

/// `row`, whose scales are powers of two that a rule chooses.
const fn with_scale_rule(row: SchemeRow) -> SchemeRow {
    SchemeRow { has_scale_rules: true, ..row }
}

/// Makes the table, and of each row a constant of [`ForgetScheme`].
macro_rules! schemes {
    ($($constant:ident $name:literal [$($alias:literal)*] $about:literal $row:expr;)*) => {
        impl SchemeRow {
            $(const $constant: Self =
                Self { name: $name, aliases: &[$($alias),*], about: $about, ..$row };)*
        }

        /// Every scheme except the file types of GGUF.
        pub(super) const SCHEMES: &[SchemeRow] = &[$(SchemeRow::$constant),*];

        /// Schemes by name. Their options are set by methods such as
        /// [`with_group_size`](Self::with_group_size).
        impl ForgetScheme {
            $(
                #[doc = concat!("`", $name, "`: ", $about, ".")]
                pub const $constant: Self = Self::of_row(&SchemeRow::$constant);
            )*
        }

        /// The constants, in the order of the table.
        #[cfg(test)]
        pub(super) const CONSTANTS: &[ForgetScheme] = &[$(ForgetScheme::$constant),*];
    };
}

schemes! {
    NF4 "nf4" ["bnb-nf4" "bnb-4bit" "bitsandbytes-4bit"]
        "BitsAndBytes NF4, blocks of 64"
        searched(in_groups(linear(|p| bnb4(p, Bnb4QuantType::Nf4, false))));
    NF4_DQ "nf4-dq" ["bnb-nf4-dq" "qlora"]
        "BitsAndBytes NF4 with quantized scales"
        searched(in_groups(with_quantized_scales(linear(|p| bnb4(p, Bnb4QuantType::Nf4, true)))));
    FP4 "fp4" ["bnb-fp4"]
        "BitsAndBytes FP4, blocks of 64"
        searched(in_groups(linear(|p| bnb4(p, Bnb4QuantType::Fp4, false))));
    FP4_DQ "fp4-dq" ["bnb-fp4-dq"]
        "BitsAndBytes FP4 with quantized scales"
        searched(in_groups(with_quantized_scales(linear(|p| bnb4(p, Bnb4QuantType::Fp4, true)))));
    INT8 "int8" ["bnb-int8" "bnb-8bit" "bitsandbytes-8bit" "llm-int8"]
        "BitsAndBytes LLM.int8(), a scale for each row"
        searched(linear(|_| Arc::new(BnbInt8)));
    FP8 "fp8" ["fp8-e4m3" "fp8-static"]
        "FP8 of compressed-tensors, one scale for each tensor"
        of_ct(linear(|_| ct_fp8(Granularity::Tensor)));
    FP8_CHANNEL "fp8-channel" ["fp8-per-channel" "fp8-dynamic"]
        "FP8 of compressed-tensors, a scale for each row"
        searched(of_ct(linear(|_| ct_fp8(Granularity::Channel))));
    FP8_BLOCK_CT "fp8-block-ct" []
        "FP8 of compressed-tensors, blocks of 128x128"
        searched(or(&["fp8-channel"], in_groups(of_ct(linear(|p| ct_fp8(square_blocks(p)))))));
    FP8_BLOCK "fp8-block" ["fp8-fine-grained"]
        "FP8 of transformers and DeepSeek, blocks of 128x128"
        searched(or(&["fp8-block-ragged"], in_groups(linear(|p| tf_fp8(square_blocks(p), false, false)))));
    FP8_BLOCK_RAGGED "fp8-block-ragged" []
        "FP8 of DeepSeek, blocks of 128x128, smaller ones at the edges"
        searched(in_groups(linear(|p| tf_fp8(square_blocks(p), false, true))));
    FP8_BLOCK_UE8M0 "fp8-block-ue8m0" []
        "FP8 of transformers, blocks of 128x128, scales are powers of two"
        or(&["fp8-block-ragged"], in_groups(linear(|p| tf_fp8(square_blocks(p), true, false))));
    FP8_TENSOR "fp8-tensor" ["fp8-per-tensor"]
        "FP8 of transformers, one scale for each tensor"
        linear(|_| tf_fp8(Granularity::Tensor, false, false));
    FP8_COMFY "fp8-comfy" ["fp8-e4m3fn" "fp8-scaled"]
        "FP8 E4M3 of ComfyUI, one scale for each tensor"
        comfy(|_| comfy_fp8(false));
    FP8_COMFY_E5M2 "fp8-comfy-e5m2" ["fp8-e5m2"]
        "FP8 E5M2 of ComfyUI, one scale for each tensor"
        comfy(|_| comfy_fp8(true));
    COMFY_INT8_CONVROT "comfy-int8-convrot" ["int8-convrot"]
        "INT8 of ComfyUI, rotated (ConvRot), a scale for each row"
        comfy(|_| Arc::new(ComfyConvRot::Int8));
    COMFY_W4A4 "comfy-w4a4" ["convrot-w4a4"]
        "INT4 of ComfyUI, rotated (ConvRot), a scale for each row"
        or(&["comfy-int8-convrot"], comfy(|_| Arc::new(ComfyConvRot::W4A4)));
    COMFY_NVFP4 "comfy-nvfp4" ["nvfp4-comfy"]
        "NVFP4 of ComfyUI"
        searched(or(&["fp8-comfy"], comfy(|_| Arc::new(ComfyBlocks::Nvfp4))));
    COMFY_MXFP8 "comfy-mxfp8" ["mxfp8-comfy"]
        "MXFP8 of ComfyUI"
        or(&["fp8-comfy"], comfy(|_| Arc::new(ComfyBlocks::Mxfp8)));
    MXFP8 "mxfp8" []
        "MXFP8 of compressed-tensors"
        or(&["fp8-channel"], with_scale_rule(of_ct(linear(|p| mx(p, MxLayout::CompressedTensors, MxCodes::Fp8)))));
    MXFP8_MODELOPT "mxfp8-modelopt" []
        "MXFP8 of ModelOpt"
        or(&["fp8-tensor"], with_scale_rule(of_modelopt(linear(|p| mx(p, MxLayout::ModelOpt, MxCodes::Fp8)))));
    MXFP6 "mxfp6" ["mxfp6-e2m3"]
        "MXFP6 (E2M3) of compressed-tensors"
        or(&["fp8-channel"], of_ct(linear(|p| mx(p, MxLayout::CompressedTensors, MxCodes::Fp6))));
    MXFP4 "mxfp4" []
        "MXFP4 of compressed-tensors"
        searched(or(&["nvfp4-ct"], with_scale_rule(of_ct(linear(|p| mx(p, MxLayout::CompressedTensors, MxCodes::Fp4))))));
    MXFP4_MODELOPT "mxfp4-modelopt" []
        "MXFP4 of ModelOpt"
        searched(or(&["nvfp4"], with_scale_rule(of_modelopt(linear(|p| mx(p, MxLayout::ModelOpt, MxCodes::Fp4))))));
    MXFP4_GPT_OSS "mxfp4-gpt-oss" ["gpt-oss"]
        "MXFP4 of gpt-oss, for stacks of experts"
        searched(with_scale_rule(linear(|p| mx(p, MxLayout::GptOss, MxCodes::Fp4))));
    NVFP4 "nvfp4" ["nvfp4-modelopt"]
        "NVFP4 of ModelOpt"
        searched(or(&["fp8-tensor"], of_modelopt(linear(|_| Arc::new(Nvfp4::ModelOpt)))));
    NVFP4_CT "nvfp4-ct" []
        "NVFP4 of compressed-tensors"
        searched(or(&["fp8-channel"], of_ct(linear(|_| Arc::new(Nvfp4::CompressedTensors)))));
    W4A16 "w4a16" ["int4"]
        "INT4 of compressed-tensors, groups of 128"
        searched(in_groups(of_ct(linear(|p| ct(p, CompressedTensors::W4A16)))));
    W4A16_ASYM "w4a16-asym" ["int4-asym"]
        "INT4 of compressed-tensors, groups of 128, with zero points"
        searched(in_groups(of_ct(linear(|p| ct(p, CompressedTensors::W4A16_ASYM)))));
    W8A16 "w8a16" []
        "INT8 of compressed-tensors, groups of 128"
        searched(in_groups(of_ct(linear(|p| ct(p, CompressedTensors::W8A16)))));
    W8A16_CHANNEL "w8a16-channel" []
        "INT8 of compressed-tensors, a scale for each row"
        searched(of_ct(linear(|p| ct(p, CompressedTensors::W8A16_CHANNEL))));
    W8A8 "w8a8" []
        "INT8 of compressed-tensors, for INT8 activations"
        searched(of_ct(linear(|p| ct(p, CompressedTensors::W8A8))));
    GPTQ "gptq" ["gptq-int4" "gptq-4bit"]
        "GPTQ's layout, 4 bits, groups of 128, rounded to nearest"
        searched(in_groups(linear(|p| gptq(p, Gptq::INT4))));
    GPTQ_INT8 "gptq-int8" ["gptq-8bit"]
        "GPTQ's layout, 8 bits, groups of 128"
        searched(in_groups(linear(|p| gptq(p, Gptq::INT8))));
    GPTQ_INT3 "gptq-int3" ["gptq-3bit"]
        "GPTQ's layout, 3 bits, groups of 128"
        searched(in_groups(linear(|p| gptq(p, Gptq { bits: 3, ..Gptq::INT4 }))));
    GPTQ_INT2 "gptq-int2" ["gptq-2bit"]
        "GPTQ's layout, 2 bits, groups of 128"
        searched(in_groups(linear(|p| gptq(p, Gptq { bits: 2, ..Gptq::INT4 }))));
    GPTQ_ASYM "gptq-asym" []
        "GPTQ's layout, version 2, 4 bits with zero points"
        searched(in_groups(linear(|p| gptq(p, GPTQ_ASYM))));
    AWQ "awq" ["awq-int4" "awq-4bit"]
        "AWQ's layout, 4 bits, groups of 128, rounded to nearest"
        searched(in_groups(linear(|p| Arc::new(p.group.map_or_else(Awq::default, |group| Awq { group })))));
    HQQ "hqq" ["hqq-4bit" "hqq-int4"]
        "HQQ, 4 bits, groups of 64"
        searched(in_groups(linear(|p| hqq(p, 4))));
    HQQ_8BIT "hqq-8bit" ["hqq-int8"]
        "HQQ, 8 bits, groups of 64"
        searched(in_groups(linear(|p| hqq(p, 8))));
    HQQ_3BIT "hqq-3bit" ["hqq-int3"]
        "HQQ, 3 bits, groups of 64"
        searched(in_groups(linear(|p| hqq(p, 3))));
    HQQ_2BIT "hqq-2bit" ["hqq-int2"]
        "HQQ, 2 bits, groups of 64"
        searched(in_groups(linear(|p| hqq(p, 2))));
    SDNQ_INT8 "sdnq-int8" ["sdnq"]
        "INT8 of SDNQ, groups of 1024"
        searched(in_groups(linear(|p| sdnq(p, SdnqCodes::Int(8)))));
    SDNQ_INT7 "sdnq-int7" []
        "INT7 of SDNQ, groups of 512"
        searched(in_groups(linear(|p| sdnq(p, SdnqCodes::Int(7)))));
    SDNQ_INT6 "sdnq-int6" []
        "INT6 of SDNQ, groups of 256"
        searched(in_groups(linear(|p| sdnq(p, SdnqCodes::Int(6)))));
    SDNQ_INT4 "sdnq-int4" []
        "INT4 of SDNQ, groups of 64"
        searched(in_groups(linear(|p| sdnq(p, SdnqCodes::Int(4)))));
    SDNQ_UINT8 "sdnq-uint8" []
        "UINT8 of SDNQ, groups of 1024"
        searched(in_groups(linear(|p| sdnq(p, SdnqCodes::Uint(8)))));
    SDNQ_UINT5 "sdnq-uint5" []
        "UINT5 of SDNQ, groups of 128"
        searched(in_groups(linear(|p| sdnq(p, SdnqCodes::Uint(5)))));
    SDNQ_UINT4 "sdnq-uint4" []
        "UINT4 of SDNQ, groups of 64"
        searched(in_groups(linear(|p| sdnq(p, SdnqCodes::Uint(4)))));
    SDNQ_UINT3 "sdnq-uint3" []
        "UINT3 of SDNQ, groups of 32"
        searched(in_groups(linear(|p| sdnq(p, SdnqCodes::Uint(3)))));
    SDNQ_UINT2 "sdnq-uint2" []
        "UINT2 of SDNQ, groups of 16"
        searched(in_groups(linear(|p| sdnq(p, SdnqCodes::Uint(2)))));
    SDNQ_FP8 "sdnq-fp8" ["sdnq-float8"]
        "FP8 (E4M3) of SDNQ, groups of 1024"
        searched(in_groups(linear(|p| sdnq(p, SdnqCodes::Fp8))));
    MLX_2BIT "mlx-2bit" []
        "MLX affine, 2 bits, groups of 64"
        searched(in_groups(mlx(|p| affine(p, 2))));
    MLX_3BIT "mlx-3bit" []
        "MLX affine, 3 bits, groups of 64"
        searched(in_groups(mlx(|p| affine(p, 3))));
    MLX_4BIT "mlx-4bit" []
        "MLX affine, 4 bits, groups of 64"
        searched(in_groups(mlx(|p| affine(p, 4))));
    MLX_5BIT "mlx-5bit" []
        "MLX affine, 5 bits, groups of 64"
        searched(in_groups(mlx(|p| affine(p, 5))));
    MLX_6BIT "mlx-6bit" []
        "MLX affine, 6 bits, groups of 64"
        searched(in_groups(mlx(|p| affine(p, 6))));
    MLX_8BIT "mlx-8bit" []
        "MLX affine, 8 bits, groups of 64"
        searched(in_groups(mlx(|p| affine(p, 8))));
    MLX_MIXED_2_6 "mlx-mixed-2-6" ["mixed-2-6"]
        "MLX affine, 2 and 6 bits as mlx-lm's recipe mixed_2_6"
        searched(in_groups(recipe([2, 6])));
    MLX_MIXED_3_4 "mlx-mixed-3-4" ["mixed-3-4"]
        "MLX affine, 3 and 4 bits as mlx-lm's recipe mixed_3_4"
        searched(in_groups(recipe([3, 4])));
    MLX_MIXED_3_6 "mlx-mixed-3-6" ["mixed-3-6"]
        "MLX affine, 3 and 6 bits as mlx-lm's recipe mixed_3_6"
        searched(in_groups(recipe([3, 6])));
    MLX_MIXED_4_6 "mlx-mixed-4-6" ["mixed-4-6"]
        "MLX affine, 4 and 6 bits as mlx-lm's recipe mixed_4_6"
        searched(in_groups(recipe([4, 6])));
    MLX_MXFP4 "mlx-mxfp4" []
        "MLX MXFP4"
        searched(or(&["mlx-nvfp4"], mlx(|_| Arc::new(Mlx::Floating(MlxFloatMode::Mxfp4)))));
    MLX_MXFP8 "mlx-mxfp8" []
        "MLX MXFP8"
        or(&["mlx-nvfp4"], mlx(|_| Arc::new(Mlx::Floating(MlxFloatMode::Mxfp8))));
    MLX_NVFP4 "mlx-nvfp4" []
        "MLX NVFP4"
        searched(mlx(|_| Arc::new(Mlx::Floating(MlxFloatMode::Nvfp4))));
    DFLOAT11 "dfloat11" ["df11"]
        "DFloat11: BF16 without loss, exponents as Huffman codes"
        DFLOAT11_ROW;
    QNAT "qnat" []
        "NF4 of qlora-rs"
        qnat(|_| { Arc::new(Qnat { double_quant: false }) });
    QNAT_DQ "qnat-dq" []
        "NF4 of qlora-rs with quantized scales"
        with_quantized_scales(qnat(|_| { Arc::new(Qnat { double_quant: true }) }));
}

fn bnb4(p: &SchemeParameters, quant_type: Bnb4QuantType, double_quant: bool) -> Arc<dyn Method> {
    Arc::new(Bnb4 {
        quant_type,
        block: p.group.unwrap_or(64),
        double_quant,
        compute_dtype: p.dtype,
    })
}

/// Blocks with as many rows as columns: 128, as DeepSeek and transformers have them, or the group
/// size.
fn square_blocks(p: &SchemeParameters) -> Granularity {
    let side = p.group.unwrap_or(128);
    Granularity::Block { rows: side, cols: side }
}

fn ct_fp8(granularity: Granularity) -> Arc<dyn Method> {
    Arc::new(Fp8 { layout: Fp8Layout::CompressedTensors, granularity })
}

fn tf_fp8(granularity: Granularity, is_ue8m0: bool, allows_edge_blocks: bool) -> Arc<dyn Method> {
    Arc::new(Fp8 { layout: Fp8Layout::Transformers { is_ue8m0, allows_edge_blocks }, granularity })
}

fn comfy_fp8(is_e5m2: bool) -> Arc<dyn Method> {
    Arc::new(Fp8 { layout: Fp8Layout::ComfyUi { is_e5m2 }, granularity: Granularity::Tensor })
}

fn mx(p: &SchemeParameters, layout: MxLayout, codes: MxCodes) -> Arc<dyn Method> {
    Arc::new(Mx { layout, rule: p.rule, codes })
}

fn ct(p: &SchemeParameters, scheme: CompressedTensors) -> Arc<dyn Method> {
    Arc::new(CompressedTensors { group: p.group.or(scheme.group), ..scheme })
}

const GPTQ_ASYM: Gptq = Gptq { symmetric: false, version_2: true, ..Gptq::INT4 };

fn gptq(p: &SchemeParameters, scheme: Gptq) -> Arc<dyn Method> {
    Arc::new(Gptq { group: p.group.or(scheme.group), ..scheme })
}

fn hqq(p: &SchemeParameters, bits: usize) -> Arc<dyn Method> {
    Arc::new(Hqq { bits, group: p.group.unwrap_or(64) })
}

fn sdnq(p: &SchemeParameters, codes: SdnqCodes) -> Arc<dyn Method> {
    Arc::new(Sdnq { codes, group: p.group })
}

fn affine(p: &SchemeParameters, bits: usize) -> Arc<dyn Method> {
    Arc::new(Mlx::Affine { bits, group: p.group.unwrap_or(64) })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{CONSTANTS, ForgetScheme, SCHEMES};

    /// A name that two schemes had would silently choose one of them.
    #[test]
    fn names_are_unique() {
        let mut seen = HashSet::new();
        for name in ForgetScheme::all_names() {
            assert!(seen.insert(name.clone()), "{name} is given twice");
        }
    }

    /// Every name leads to the scheme that has it, in either spelling, and so does its constant.
    #[test]
    fn names_and_constants_lead_to_their_schemes() {
        for (row, constant) in SCHEMES.iter().zip(CONSTANTS) {
            assert_eq!(constant.to_string(), row.name);
            for name in row.aliases.iter().chain([&row.name]) {
                for spelling in [name.to_uppercase(), name.replace('-', "_")] {
                    assert_eq!(spelling.parse::<ForgetScheme>().unwrap(), *constant);
                }
            }
        }
        let file_type: ForgetScheme = "Q4_K_M".parse().unwrap();
        assert_eq!(file_type, ForgetScheme::Q4_K_M);
        assert_eq!(file_type, "gguf:q4_k_m".parse().unwrap());
        // Alone, the name of a float type is no scheme.
        assert!("bf16".parse::<ForgetScheme>().is_err());
        assert_eq!("gguf:bf16".parse::<ForgetScheme>().unwrap(), ForgetScheme::BF16);
    }
}
