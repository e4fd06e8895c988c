//! Mixtures of models of images and videos, by the rules of ComfyUI-GGUF's `llama-quantize`.
//!
//! Rows that are not whole blocks get the type that llama.cpp falls back to; that program falls
//! back to F16.
//!
//! Source:
//! [ComfyUI-GGUF](https://github.com/city96/ComfyUI-GGUF/blob/795e45156ece99afbc3efef911e63fcb46e6a20d/tools/lcpp.patch)
//! (`img_tensor_get_type`).

use super::rules::Category;
use super::{FileType, LlamaTensor, Mixture, MixtureTensor, TypeChoice, fallback, overrides};
use crate::remember::image_models::{ImageModel, ImageWeight};
use crate::sort::sort_by_key;
use crate::{Dtype, Result};

/// Parts of the names of values of an attention.
const VALUES: &[&str] = &[
    "attn_v.weight",
    ".to_v.weight",
    ".v.weight",
    ".attn.w1v.weight",
    ".attn.w2v.weight",
    "_attn.v_proj.weight",
];

/// Parts of the names of queries, keys and values in one matrix.
const FUSED: &[&str] = &["attn_qkv.weight", "attn.qkv.weight", "attention.qkv.weight"];

/// Parts of the names of layers that end a feed-forward network.
const DOWN: &[&str] = &[
    "ffn_down",
    ".ffn.2.weight",
    ".ff.net.2.weight",
    ".mlp.layer2.weight",
    ".adaln_modulation_mlp.2.weight",
    ".feed_forward.w2.weight",
];

impl Mixture<'_> {
    /// The choice for each of `tensors`, which are those of an image model, in their order.
    ///
    /// # Errors
    /// A type that the user gives fits no tensor.
    pub(super) fn choose_of_image(
        &self,
        image: &ImageModel,
        tensors: &[MixtureTensor<'_>],
    ) -> Result<Vec<TypeChoice>> {
        let apart: Vec<LlamaTensor<'_>> = tensors.iter().enumerate().map(apart).collect();
        if let Some(overrides) = self.overrides {
            overrides.require_matches(&apart)?;
        }
        // Counted in the order of names, as llama.cpp visits tensors that are in no layer of its
        // own names.
        let mut order: Vec<usize> = (0..apart.len()).collect();
        sort_by_key(&mut order, |&i| apart[i].shown);
        let mut choices = vec![TypeChoice::Keep(String::new()); apart.len()];
        let mut values = 0;
        for i in order {
            choices[i] = self.choose_one_of_image(image, &mut values, &apart[i])?;
        }
        Ok(choices)
    }

    /// `values`: number of matrices of values that were visited.
    fn choose_one_of_image(
        &self,
        image: &ImageModel,
        values: &mut usize,
        tensor: &LlamaTensor<'_>,
    ) -> Result<TypeChoice> {
        let (name, rank) = (tensor.shown, tensor.dims.len());
        let keep = |reason: &str| Ok(TypeChoice::Keep(reason.to_owned()));
        if rank < 2 {
            return keep("it is a vector");
        }
        if !name.ends_with("weight") {
            return keep("its name does not end in `weight`");
        }
        let is_float = tensor.dtype.is_floating_point() || tensor.dtype.is_quantized();
        if !is_float {
            return Ok(TypeChoice::Keep(format!("its values are {}", tensor.dtype)));
        }
        let mut dtype = self.file_type.dtype;
        if let Some(overrides) = self.overrides
            && let Some(given) = overrides.of_kind(tensor, Category::Other)
        {
            return overrides::fitting(given, tensor);
        }
        let plain = |dtype| Ok(TypeChoice::Type { dtype, note: None });
        match image.weight(name, rank) {
            ImageWeight::Parameter => return plain(Dtype::F32),
            _ if !dtype.is_ggml_block() => return plain(dtype),
            // Convolutions in BF16 are decoded by ComfyUI-GGUF alone.
            ImageWeight::Kept if rank > 2 && tensor.dtype == Dtype::BF16 => {
                return plain(Dtype::F16);
            }
            ImageWeight::Kept => {
                return keep("ComfyUI-GGUF does not quantize tensors of this name");
            }
            ImageWeight::Quantized => {}
        }
        let given = self.overrides.and_then(|given| given.of_name(tensor));
        if let Some(given) = given {
            dtype = given;
        } else if self.file_type.is_mixture() && !self.pure {
            dtype = dtype_by_name(self.file_type, name, values);
        }
        Ok(fallback(dtype, tensor.dims.last().copied().unwrap_or(1)))
    }
}

/// A tensor under its own name; no experts are stacked.
fn apart<'a>((i, tensor): (usize, &MixtureTensor<'a>)) -> LlamaTensor<'a> {
    LlamaTensor {
        name: tensor.name.to_owned(),
        layer: -1,
        dims: tensor.dims.to_vec(),
        dtype: tensor.dtype,
        is_multimodal: false,
        parts: vec![i],
        shown: tensor.name,
    }
}

/// The type of the weight called `name`, before it is known whether its rows are whole blocks.
fn dtype_by_name(file_type: FileType, name: &str, values: &mut usize) -> Dtype {
    let is_one_of = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    let is_down = || is_one_of(DOWN) || name.contains("experts.") && name.contains(".w2.weight");
    let other = if is_one_of(VALUES) {
        let before = *values;
        *values += 1;
        match file_type.name {
            "Q2_K" => Some(Dtype::Q3_K),
            "Q3_K_M" if before < 2 => Some(Dtype::Q5_K),
            "Q3_K_M" => Some(Dtype::Q4_K),
            "Q3_K_L" => Some(Dtype::Q5_K),
            "Q4_K_M" | "Q5_K_M" => Some(Dtype::Q6_K),
            "Q4_K_S" if before < 4 => Some(Dtype::Q5_K),
            _ => None,
        }
    } else if is_one_of(FUSED) {
        match file_type.name {
            "Q3_K_M" | "Q3_K_L" => Some(Dtype::Q4_K),
            "Q4_K_M" => Some(Dtype::Q5_K),
            "Q5_K_M" => Some(Dtype::Q6_K),
            _ => None,
        }
    } else if is_down() {
        match file_type.name {
            "Q3_K_M" => Some(Dtype::Q4_K),
            "Q3_K_L" | "Q4_K_S" => Some(Dtype::Q5_K),
            "Q4_K_M" | "Q5_K_M" => Some(Dtype::Q6_K),
            "Q4_0" => Some(Dtype::Q4_1),
            "Q5_0" => Some(Dtype::Q5_1),
            _ => None,
        }
    } else {
        None
    };
    other.unwrap_or(file_type.dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_by_name() {
        let of = |file_type: &str, name: &str, values: &mut usize| {
            dtype_by_name(FileType::from_name(file_type).unwrap(), name, values)
        };
        let v = "blocks.0.self_attn.v.weight";
        assert_eq!(of("Q3_K_M", v, &mut 1), Dtype::Q5_K);
        assert_eq!(of("Q3_K_M", v, &mut 2), Dtype::Q4_K);
        assert_eq!(of("Q4_K_M", "blocks.0.ffn.2.weight", &mut 0), Dtype::Q6_K);
        assert_eq!(of("Q4_K_M", "blocks.0.ffn.0.weight", &mut 0), Dtype::Q4_K);
        let fused = "double_blocks.0.img_attn.qkv.weight";
        assert_eq!(of("Q4_K_M", fused, &mut 0), Dtype::Q5_K);
        assert_eq!(of("Q4_0", "blocks.0.ff.net.2.weight", &mut 0), Dtype::Q4_1);
    }
}
