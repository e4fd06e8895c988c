//! Which of ggml's types each tensor of a model gets: the mixtures behind llama.cpp's file types, such as Q4_K_M.
//!
//! Source: llama.cpp 0.6.0 `src/llama-quant.cpp` (`llama_tensor_get_type`, `tensor_allows_quantization`,
//! `tensor_type_fallback`, `tensor_requires_imatrix`) and, for the order of tensors, `src/llama-model-loader.h`
//! (`weight_name_comparer`).

mod facts;
mod file_type;
mod names;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub(crate) use self::facts::ModelFacts;
pub(crate) use self::file_type::FileType;
pub(crate) use self::names::{Canonical, canonical};
use self::rules::{Category, Counters, Rules};
use crate::{AnamnesisError, Dtype, Result};

/// A tensor as it is before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape<'a> {
    /// In llama.cpp's words or in those of Hugging Face.
    pub name: &'a str,
    /// Outermost dimension first.
    pub dims: &'a [usize],
    pub dtype: Dtype,
}

/// What becomes of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    /// It stays as it is, and why.
    Keep(String),
    /// It is encoded as `dtype`; the note says why that is not the one that the mixture has for it.
    Type { dtype: Dtype, note: Option<String> },
}

/// How a model is to be quantized.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mixture {
    pub file_type: FileType,
    /// Whether there is an importance matrix, for whichever tensors.
    pub has_imatrix: bool,
    /// Whether all tensors get the type that most of them have.
    pub pure: bool,
}

/// A tensor as llama.cpp would see it: all experts of a layer together.
struct Stacked<'a> {
    name: String,
    /// The number after `blk.`, or −1.
    layer: i64,
    /// Outermost dimension first, as few as will do.
    dims: Vec<usize>,
    dtype: Dtype,
    /// Whether it belongs to an encoder of images or sounds, which llama.cpp keeps in a file of its own.
    foreign: bool,
    /// Where its parts are among the tensors of the model.
    parts: Vec<usize>,
    /// A part's name, for messages.
    shown: &'a str,
}

impl Mixture {
    /// What becomes of each of `tensors`, which are all of the model's.
    ///
    /// # Errors
    /// `Unsupported` if a model with experts has feed-forward tensors outside its layers.
    pub(crate) fn choose(&self, facts: &ModelFacts, tensors: &[Shape<'_>]) -> Result<Vec<Choice>> {
        let mut stacked = stack(tensors);
        // What a GGUF file has is one model, whatever its parts are called.
        stacked
            .iter_mut()
            .for_each(|tensor| tensor.foreign &= !facts.are_certain());
        let facts = facts.completed(&stacked);
        let categories: Vec<Category> = stacked
            .iter()
            .map(|tensor| Category::of(&tensor.name))
            .collect();
        let mut own = stacked
            .iter()
            .zip(&categories)
            .filter(|(tensor, _)| !tensor.foreign);
        let rules = Rules {
            file_type: self.file_type,
            has_imatrix: self.has_imatrix,
            attention_values: own
                .clone()
                .filter(|(_, category)| category.is_values())
                .count(),
            is_tied: !own.any(|(_, category)| *category == Category::Output),
            facts: &facts,
        };
        let mut counters = Counters::default();
        let mut choices = vec![Choice::Keep(String::new()); tensors.len()];
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
        rules: &Rules<'_>,
        counters: &mut Counters,
        tensor: &Stacked<'_>,
        category: Category,
    ) -> Result<Choice> {
        if let Some(reason) = kept(tensor, rules.facts) {
            return Ok(Choice::Keep(reason));
        }
        let mut dtype = self.file_type.dtype;
        if !dtype.is_ggml_block() {
            return Ok(Choice::Type { dtype, note: None });
        }
        if self.file_type.is_mixture() && !self.pure {
            dtype = rules.dtype(counters, tensor, category)?;
        }
        Ok(fit(dtype, tensor.dims.last().copied().unwrap_or(1)))
    }

    /// Whether a tensor that gets `dtype` is worthless without an importance matrix.
    pub(crate) fn requires_imatrix(&self, name: &str, dtype: Dtype) -> bool {
        let name = canonical(name).name;
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

/// Whether `name`, one of llama.cpp's, is that of a table of tokens.
pub(crate) fn is_token_embedding(name: &str) -> bool {
    matches!(name, "token_embd.weight" | "per_layer_token_embd.weight")
}

/// The tensors under llama.cpp's names and in its order: by layer, what is in none before, and by name.
fn stack<'a>(tensors: &[Shape<'a>]) -> Vec<Stacked<'a>> {
    let mut stacked: Vec<Stacked<'_>> = Vec::new();
    let mut experts: HashMap<String, usize> = HashMap::new();
    for (i, tensor) in tensors.iter().enumerate() {
        let Canonical {
            name,
            expert,
            foreign,
        } = canonical(tensor.name);
        if expert.is_some() {
            if let Some(there) = experts.get(&name).and_then(|&at| stacked.get_mut(at)) {
                there.parts.push(i);
                continue;
            }
            experts.insert(name.clone(), stacked.len());
        }
        let leading = tensor.dims.iter().take_while(|&&dim| dim == 1).count();
        let dims = tensor
            .dims
            .get(leading.min(tensor.dims.len().saturating_sub(1))..)
            .unwrap_or_default()
            .to_vec();
        let (dtype, shown, layer) = (tensor.dtype, tensor.name, layer(&name));
        stacked.push(Stacked {
            name,
            layer,
            dims,
            dtype,
            foreign,
            parts: vec![i],
            shown,
        });
    }
    // An encoder beside a language model is none of its parts; by itself it is a model like others.
    let is_language = stacked
        .iter()
        .any(|tensor| tensor.name == "token_embd.weight");
    for tensor in &mut stacked {
        if tensor.parts.len() > 1 {
            tensor.dims.insert(0, tensor.parts.len());
        }
        tensor.foreign &= is_language;
    }
    stacked.sort_by(|a, b| (a.layer, &a.name).cmp(&(b.layer, &b.name)));
    stacked
}

/// The number after `blk.`, or −1, as C's `sscanf` has it.
fn layer(name: &str) -> i64 {
    let Some(rest) = name.strip_prefix("blk.") else {
        return -1;
    };
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    rest.get(..digits)
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(-1)
}

/// Parts of names, in llama.cpp's words, of tensors that are small and lose much. What is marked with an architecture
/// is so in that one only.
const KEPT: &[(&str, &str)] = &[
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

/// Why a tensor stays as it is, if it does.
fn kept(tensor: &Stacked<'_>, facts: &ModelFacts) -> Option<String> {
    let name = tensor.name.as_str();
    let is_kept = |(arch, part): &&(&str, &str)| {
        (arch.is_empty() || *arch == facts.architecture) && name.contains(part)
    };
    let reason = if tensor.foreign {
        "it is no part of the language model"
    } else if tensor.dims.len() < 2 {
        "it is a vector"
    } else if !name.ends_with("weight") {
        "its name does not end in `weight`"
    } else if matches!(name, "position_embd.weight" | "token_types.weight")
        || KEPT.iter().any(|part| is_kept(&part))
    {
        "llama.cpp does not quantize tensors of this name"
    } else if !tensor.dtype.is_floating_point() && !tensor.dtype.is_quantized() {
        return Some(format!("its values are {}", tensor.dtype));
    } else {
        return None;
    };
    Some(reason.to_owned())
}

/// `dtype`, or what replaces it for rows of `cols` values that are not whole blocks.
fn fit(dtype: Dtype, cols: usize) -> Choice {
    let block = dtype.block_size();
    if cols.is_multiple_of(block) {
        return Choice::Type { dtype, note: None };
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
        // There llama.cpp gives up.
        _ => return Choice::Keep(format!("its {cols} columns are no multiple of {block}")),
    };
    let instead = if cols.is_multiple_of(short.block_size()) {
        short
    } else {
        Dtype::F16
    };
    let note =
        format!("its {cols} columns are no multiple of {block}: {instead} instead of {dtype}");
    Choice::Type {
        dtype: instead,
        note: Some(note),
    }
}

/// What a model cannot be for its tensors to have types.
fn no_layer(tensor: &Stacked<'_>, layers: i64) -> AnamnesisError {
    let what = format!(
        "tensor `{}` is in none of the {layers} layers that the model has",
        tensor.shown
    );
    AnamnesisError::unsupported("mixture", what)
}
