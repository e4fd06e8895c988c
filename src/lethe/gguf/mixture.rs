//! The ggml type of each tensor of a model: the mixtures behind llama.cpp's file types, such as
//! Q4_K_M.
//!
//! A mixture gives more bits to tensors that lose much: the output layer, values of attention,
//! `ffn_down` and the first and last layers. llama.cpp counts the tensors of a kind while it visits
//! them in file order, and the count decides. So the tensors are brought under llama.cpp's names
//! (`names`) and into its order first; then `rules` gives each a type, and [`fallback`] replaces
//! types whose blocks do not divide the row.
//!
//! Source: llama.cpp 0.6.0 `src/llama-quant.cpp` (`llama_tensor_get_type`,
//! `tensor_allows_quantization`, `tensor_type_fallback`, `tensor_requires_imatrix`) and, for the
//! order of tensors, `src/llama-model-loader.h` (`weight_name_comparer`).

mod facts;
mod file_type;
mod image;
mod overrides;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub(crate) use self::facts::ModelFacts;
pub(crate) use self::file_type::FileType;
pub(crate) use self::overrides::TypeOverrides;
use self::rules::{Category, Counters, TypeRules};
use crate::error::InTensor;
use crate::lethe::llama_names::{LlamaName, is_token_embedding, llama_name};
use crate::remember::image_models::ImageModel;
use crate::sort::sort_by;
use crate::{AnamnesisError, Dtype, Result};

/// A tensor of the model before it is encoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MixtureTensor<'a> {
    /// Name in llama.cpp's or in Hugging Face's naming.
    pub name: &'a str,
    /// Outermost dimension first.
    pub dims: &'a [usize],
    pub dtype: Dtype,
}

/// The mixture's choice for a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TypeChoice {
    /// llama.cpp does not quantize it, for this reason.
    Keep(String),
    /// It is encoded to `dtype`. The note tells why it is not the type that the rules give.
    Type { dtype: Dtype, note: Option<String> },
}

/// The arguments of `llama-quantize` that decide on types.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mixture<'a> {
    pub file_type: FileType,
    /// Types that the user gives to some tensors.
    pub overrides: Option<&'a TypeOverrides>,
    /// Whether there is an importance matrix, no matter for which tensors.
    pub has_imatrix: bool,
    /// Whether all tensors get the main type of the file type.
    pub pure: bool,
}

/// A tensor of llama.cpp's conversion of the model, in which all experts of a layer are one tensor.
struct LlamaTensor<'a> {
    name: String,
    /// Layer number after `blk.`, or −1.
    layer: i64,
    /// Outermost dimension first, without leading ones.
    dims: Vec<usize>,
    dtype: Dtype,
    /// Whether it belongs to an encoder of images or sounds, which llama.cpp stores in another file
    /// (`mmproj`).
    is_multimodal: bool,
    /// Indices of the model's tensors that it consists of.
    parts: Vec<usize>,
    /// Name of its first part, for messages.
    shown: &'a str,
}

impl Mixture<'_> {
    /// The choice for each of `tensors`, which are all tensors of the model, in their order.
    ///
    /// # Errors
    /// `Unsupported` if a model with experts has feed-forward tensors outside its layers, as in
    /// llama.cpp.
    pub(crate) fn choose(
        &self,
        facts: &ModelFacts,
        tensors: &[MixtureTensor<'_>],
    ) -> Result<Vec<TypeChoice>> {
        if let Some(image) = ImageModel::of(tensors.iter().map(|tensor| tensor.name)) {
            return self.choose_of_image(image, tensors);
        }
        let mut stacked = stack(tensors);
        // A GGUF file holds one model, whatever its tensors are called.
        stacked
            .iter_mut()
            .for_each(|tensor| tensor.is_multimodal &= !facts.are_from_gguf());
        if let Some(overrides) = self.overrides {
            overrides.require_matches(&stacked)?;
        }
        let facts = facts.completed(&stacked);
        let categories: Vec<Category> = stacked
            .iter()
            .map(|tensor| Category::of(&tensor.name))
            .collect();
        let mut language = stacked
            .iter()
            .zip(&categories)
            .filter(|(tensor, _)| !tensor.is_multimodal);
        let rules = TypeRules {
            file_type: self.file_type,
            has_imatrix: self.has_imatrix,
            // Counted before any type is chosen, as `init_quantize_state_counters` does: rules ask
            // for a share of all.
            attention_values: language
                .clone()
                .filter(|(_, category)| category.is_values())
                .count(),
            // A model without an output layer multiplies with its embeddings again.
            is_tied: !language.any(|(_, category)| *category == Category::Output),
            facts: &facts,
        };
        let mut counters = Counters::default();
        // Every part is visited through its stack, so no empty reason is left in the end.
        let mut choices = vec![TypeChoice::Keep(String::new()); tensors.len()];
        for (tensor, &category) in stacked.iter().zip(&categories) {
            let choice = self.choose_one(&rules, &mut counters, tensor, category)?;
            tensor
                .parts
                .iter()
                .for_each(|&part| choices[part] = choice.clone());
        }
        Ok(choices)
    }

    fn choose_one(
        &self,
        rules: &TypeRules<'_>,
        counters: &mut Counters,
        tensor: &LlamaTensor<'_>,
        category: Category,
    ) -> Result<TypeChoice> {
        if let Some(reason) = keep_reason(tensor, rules.facts) {
            return Ok(TypeChoice::Keep(reason));
        }
        let mut dtype = self.file_type.dtype;
        if let Some(overrides) = self.overrides
            && let Some(given) = overrides.of_kind(tensor, category)
        {
            return overrides::fitting(given, tensor);
        }
        // F32, F16 and BF16 have blocks of one value: no rule applies, and no row is too short.
        if !dtype.is_ggml_block() {
            return Ok(TypeChoice::Type { dtype, note: None });
        }
        // A bare block type has no file type and no rules in llama.cpp, and is taken for every
        // tensor that is quantized.
        let given = self.overrides.and_then(|given| given.of_name(tensor));
        if let Some(given) = given {
            // llama.cpp does not count a tensor whose type is given.
            dtype = given;
        } else if self.file_type.is_mixture() && !self.pure {
            dtype = match self.overrides.and_then(|given| given.output) {
                Some(given) if rules.is_tied && category == Category::TokenEmbedding => given,
                _ => rules.dtype(counters, tensor, category)?,
            };
        }
        // After the rule: llama.cpp counts the tensor whatever its row allows.
        Ok(fallback(dtype, tensor.dims.last().copied().unwrap_or(1)))
    }

    /// Whether llama.cpp refuses to encode the tensor to `dtype` without an importance matrix
    /// (`tensor_requires_imatrix`).
    pub(crate) fn requires_imatrix(&self, name: &str, dtype: Dtype) -> bool {
        let name = llama_name(name).name;
        match dtype {
            _ if is_token_embedding(&name) || name == "output.weight" => false,
            Dtype::IQ3_XXS
            | Dtype::IQ2_XXS
            | Dtype::IQ2_XS
            | Dtype::IQ2_S
            | Dtype::IQ1_M
            | Dtype::IQ1_S => true,
            Dtype::Q2_K => self.file_type.name == "Q2_K_S",
            _ => false,
        }
    }
}

/// The tensors under llama.cpp's names and in its order (`weight_name_comparer`): those outside
/// layers first, then by layer, and by name within a layer. The experts of a layer become one
/// tensor.
fn stack<'a>(tensors: &[MixtureTensor<'a>]) -> Vec<LlamaTensor<'a>> {
    let mut stacked: Vec<LlamaTensor<'_>> = Vec::new();
    let mut experts: HashMap<String, usize> = HashMap::new();
    for (i, tensor) in tensors.iter().enumerate() {
        let LlamaName { name, expert, is_multimodal } = llama_name(tensor.name);
        if expert.is_some() {
            // The place of a stack is that of its first expert. Sorting puts it among the others by
            // name.
            if let Some(there) = experts.get(&name).and_then(|&at| stacked.get_mut(at)) {
                there.parts.push(i);
                continue;
            }
            experts.insert(name.clone(), stacked.len());
        }
        // ggml counts dimensions without trailing ones, which come first here. One dimension always
        // stays.
        let leading = tensor.dims.iter().take_while(|&&dim| dim == 1).count();
        let dims = tensor
            .dims
            .get(leading.min(tensor.dims.len().saturating_sub(1))..)
            .unwrap_or_default()
            .to_vec();
        let (dtype, shown, layer) = (tensor.dtype, tensor.name, layer(&name));
        stacked.push(LlamaTensor {
            name,
            layer,
            dims,
            dtype,
            is_multimodal,
            parts: vec![i],
            shown,
        });
    }
    // An encoder of images beside a language model goes to another file. By itself it is a model
    // like others.
    let is_language = stacked
        .iter()
        .any(|tensor| tensor.name == "token_embd.weight");
    for tensor in &mut stacked {
        if tensor.parts.len() > 1 {
            tensor.dims.insert(0, tensor.parts.len());
        }
        tensor.is_multimodal &= is_language;
    }
    sort_by(&mut stacked, |a, b| (a.layer, &a.name).cmp(&(b.layer, &b.name)));
    stacked
}

/// The layer number after `blk.`, or −1. Like llama.cpp's `sscanf("blk.%d.")`, it ignores what
/// follows the digits.
fn layer(name: &str) -> i64 {
    let Some(rest) = name.strip_prefix("blk.") else {
        return -1;
    };
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    rest.get(..digits)
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(-1)
}

/// Architectures and parts of llama.cpp names of the tensors that are not quantized
/// (`tensor_allows_quantization`): they are small and lose much. An empty architecture means all.
const NOT_QUANTIZED: &[(&str, &str)] = &[
    ("", "_norm.weight"),
    ("", "ffn_gate_inp.weight"),
    ("", "ffn_gate_tid2eid.weight"),
    ("", "altup"),
    ("", "laurel"),
    ("", "per_layer_model_proj"),
    ("", "ssm_conv1d"),
    ("", "shortconv.conv.weight"),
    ("", "indexer.k_proj.weight"),
    ("", "indexer.q_proj.weight"),
    ("glm5-next", "hc_"),
    ("glm5-next", "indexer.attn_q_b"),
    ("glm5-next", "indexer.attn_k"),
    ("glm5-next", "indexer.proj"),
    ("glm5-next", "indexer_compressor_gate"),
    ("glm5-next", "indexer_compressor_ape"),
    ("glm5-next", "ssm_f_a.weight"),
    ("glm5-next", "ssm_f_b.weight"),
    ("glm5-next", "ssm_g_a.weight"),
    ("glm5-next", "ssm_g_b.weight"),
    ("glm5-next", "ssm_beta.weight"),
    ("glm5-next", "attn_kv_a_mqa.weight"),
    ("glm5-next", "attn_k_b.weight"),
    ("glm5-next", "attn_v_b.weight"),
    ("", "time_mix_first.weight"),
    ("", "time_mix_w0.weight"),
    ("", "time_mix_w1.weight"),
    ("", "time_mix_w2.weight"),
    ("", "time_mix_v0.weight"),
    ("", "time_mix_v1.weight"),
    ("", "time_mix_v2.weight"),
    ("", "time_mix_a0.weight"),
    ("", "time_mix_a1.weight"),
    ("", "time_mix_a2.weight"),
    ("", "time_mix_g1.weight"),
    ("", "time_mix_g2.weight"),
    ("", "time_mix_decay_w1.weight"),
    ("", "time_mix_decay_w2.weight"),
    ("", "time_mix_lerp_fused.weight"),
    ("", "attn_rel_b.weight"),
    ("", ".position_embd"),
    ("", "sam.pos_embd"),
    ("", "sam.neck."),
    ("", "sam.net_"),
    ("", ".rel_pos"),
    ("", ".patch_embd"),
    ("", ".patch_merger"),
    ("", "a.rvq.codebook"),
    ("", "mm.a.code_embd"),
];

/// The reason why llama.cpp does not quantize `tensor`, if there is one.
fn keep_reason(tensor: &LlamaTensor<'_>, facts: &ModelFacts) -> Option<String> {
    let name = tensor.name.as_str();
    let is_kept = |(arch, part): &&(&str, &str)| {
        (arch.is_empty() || *arch == facts.architecture) && name.contains(part)
    };
    let reason = if tensor.is_multimodal {
        "it is no part of the language model"
    } else if tensor.dims.len() < 2 {
        "it is a vector"
    } else if !name.ends_with("weight") {
        "its name does not end in `weight`"
    } else if matches!(name, "position_embd.weight" | "token_types.weight")
        || NOT_QUANTIZED.iter().any(|part| is_kept(&part))
    {
        "llama.cpp does not quantize tensors of this name"
    } else if !tensor.dtype.is_floating_point() && !tensor.dtype.is_quantized() {
        return Some(format!("its values are {}", tensor.dtype));
    } else {
        return None;
    };
    Some(reason.to_owned())
}

/// `dtype`, or the type that replaces it in rows of `cols` values that are not whole blocks
/// (`tensor_type_fallback`): a type of at least as many bits in blocks of 32, or F16 if those do
/// not divide the row either.
fn fallback(dtype: Dtype, cols: usize) -> TypeChoice {
    let block = dtype.block_size();
    if cols.is_multiple_of(block) {
        return TypeChoice::Type { dtype, note: None };
    }
    let short = match dtype {
        Dtype::IQ1_S | Dtype::IQ1_M | Dtype::IQ2_XXS | Dtype::IQ2_XS | Dtype::IQ2_S => {
            Dtype::IQ4_NL
        }
        Dtype::IQ3_XXS | Dtype::IQ3_S | Dtype::IQ4_XS => Dtype::IQ4_NL,
        Dtype::Q2_0 | Dtype::Q2_K | Dtype::Q3_K | Dtype::TQ1_0 | Dtype::TQ2_0 => Dtype::Q4_0,
        Dtype::Q4_K => Dtype::Q5_0,
        Dtype::Q5_K => Dtype::Q5_1,
        Dtype::Q6_K => Dtype::Q8_0,
        _ if block <= 32 => dtype,
        // llama.cpp fails for the whole model here.
        _ => return TypeChoice::Keep(format!("its {cols} columns are no multiple of {block}")),
    };
    let instead = if cols.is_multiple_of(short.block_size()) {
        short
    } else {
        Dtype::F16
    };
    let note =
        format!("its {cols} columns are no multiple of {block}: {instead} instead of {dtype}");
    TypeChoice::Type { dtype: instead, note: Some(note) }
}

/// The error for a feed-forward tensor of a model with experts that is in no layer.
fn no_layer(tensor: &LlamaTensor<'_>, layers: i64) -> AnamnesisError {
    let what =
        format!("{} is in none of the {layers} layers that the model has", InTensor(&tensor.shown));
    AnamnesisError::unsupported("mixture", what)
}
