//! The rules of llama.cpp's mixtures: which tensors get more or fewer bits than most.
//!
//! Each function is one branch of `llama_tensor_get_type_impl`, of which the first case that
//! applies decides. Some cases depend on the number of tensors of a kind that were visited before,
//! so tensors must come in llama.cpp's order.
//!
//! Source: llama.cpp 0.6.0 `src/llama-quant.cpp` (`tensor_get_category`,
//! `llama_tensor_get_type_impl`, `init_quantize_state_counters`).

use super::{FileType, LlamaTensor, ModelFacts, no_layer};
use crate::lethe::llama_names::is_token_embedding;
use crate::{Dtype, Result};

/// The kind of a tensor by its name (`tensor_category`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Category {
    TokenEmbedding,
    Query,
    Value,
    Key,
    QueryKeyValue,
    KeyValueB,
    AttentionOutput,
    Up,
    Gate,
    Down,
    Output,
    Other,
}

/// Parts of names with their category. The first that a name contains decides.
const CATEGORIES: &[(&str, Category)] = &[
    ("attn_qkv.weight", Category::QueryKeyValue),
    ("attn_kv_b.weight", Category::KeyValueB),
    ("attn_v.weight", Category::Value),
    ("attn_k.weight", Category::Key),
    ("attn_q.weight", Category::Query),
    ("attn_output.weight", Category::AttentionOutput),
    ("ffn_up", Category::Up),
    ("ffn_gate", Category::Gate),
    ("ffn_down", Category::Down),
];

impl Category {
    pub(crate) fn of(name: &str) -> Self {
        if name == "output.weight" {
            return Self::Output;
        }
        if is_token_embedding(name) {
            return Self::TokenEmbedding;
        }
        let found = CATEGORIES.iter().find(|(part, _)| name.contains(part));
        found.map_or(Self::Other, |(_, category)| *category)
    }

    /// Whether it holds values of an attention, which lose more than queries and keys
    /// (`category_is_attn_v`).
    pub(crate) fn is_values(self) -> bool {
        matches!(self, Self::Value | Self::QueryKeyValue | Self::KeyValueB)
    }
}

/// Numbers of tensors of each kind that have been visited (`quantize_state_impl`).
#[derive(Debug, Default)]
pub(crate) struct Counters {
    values: usize,
    down: i64,
    gate: i64,
    up: i64,
}

/// The file type and the model that the rules are applied to.
pub(crate) struct TypeRules<'a> {
    pub file_type: FileType,
    pub has_imatrix: bool,
    /// Number of tensors that hold values of an attention.
    pub attention_values: usize,
    /// Whether the token embedding is the output layer, too, so that it gets the type of the
    /// latter.
    pub is_tied: bool,
    pub facts: &'a ModelFacts,
}

/// Whether `layer` gets more bits (`use_more_bits`): the first and the last eighth of layers, and
/// every third between.
fn uses_more_bits(layer: i64, layers: i64) -> bool {
    // llama.cpp divides integers, so that the shares of a small model are rounded down.
    layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2
}

impl TypeRules<'_> {
    /// The type of a tensor, regardless of whether its rows are whole blocks. Counts the tensor.
    ///
    /// # Errors
    /// `Unsupported` if the model has experts and a feed-forward tensor is in no layer.
    pub(crate) fn dtype(
        &self,
        counters: &mut Counters,
        tensor: &LlamaTensor<'_>,
        category: Category,
    ) -> Result<Dtype> {
        let dtype = self.file_type.dtype;
        let name = self.file_type.name;
        let is_glm = self.facts.architecture == "glm5-next";
        if is_glm
            && ["attn_q_a", "attn_q_b", "nextn.eh_proj"]
                .iter()
                .any(|part| tensor.name.contains(part))
        {
            return Ok(Dtype::Q8_0);
        }
        // llama.cpp gives a tied embedding the type of an output layer, for it is one as well.
        if category == Category::Output || self.is_tied && category == Category::TokenEmbedding {
            return Ok(self.output(tensor));
        }
        if name == "MXFP4_MOE" {
            return Ok(self.mxfp4(tensor, category));
        }
        if category == Category::TokenEmbedding {
            return Ok(match name {
                "IQ2_XXS" | "IQ2_XS" | "IQ1_S" | "IQ1_M" => Dtype::Q2_K,
                "IQ2_S" | "IQ2_M" | "IQ3_XXS" => Dtype::IQ3_S,
                "TQ1_0" | "TQ2_0" | "Q2_0" => Dtype::Q4_K,
                _ => dtype,
            });
        }
        // For these file types llama.cpp has a branch that replaces all that follows.
        if matches!(name, "IQ2_XXS" | "IQ2_XS" | "IQ1_S" | "IQ2_S" | "IQ2_M" | "IQ1_M") {
            return Ok(self.low_bits(counters, category));
        }
        match category {
            _ if category.is_values() => Ok(self.values(counters)),
            Category::Key | Category::Query => Ok(self.key_or_query(category)),
            Category::AttentionOutput => Ok(self.attention_output()),
            Category::Down => {
                let layer = self.layer(tensor, counters.down)?;
                // The count is taken first and raised afterwards: the first tensor of a kind has
                // the number 0.
                counters.down += 1;
                Ok(self.down(layer))
            }
            Category::Gate | Category::Up => {
                let count = if category == Category::Gate {
                    &mut counters.gate
                } else {
                    &mut counters.up
                };
                // Both kinds are counted by themselves; only `IQ3_XS` asks for the layer of either.
                let (layer, layers) = (self.layer(tensor, *count)?, self.facts.layers);
                *count += 1;
                let is_middle = name == "IQ3_XS" && layer >= layers / 8 && layer < 7 * layers / 8;
                Ok(if is_middle { Dtype::IQ3_XXS } else { dtype })
            }
            _ => Ok(dtype),
        }
    }

    /// The layer of a feed-forward tensor (`layer_info`): the count of such tensors, or the number
    /// in its name if the model has experts, because some layers may have none.
    fn layer(&self, tensor: &LlamaTensor<'_>, count: i64) -> Result<i64> {
        if self.facts.experts <= 1 {
            return Ok(count);
        }
        if (0..self.facts.layers).contains(&tensor.layer) {
            Ok(tensor.layer)
        } else {
            Err(no_layer(tensor, self.facts.layers))
        }
    }

    fn output(&self, tensor: &LlamaTensor<'_>) -> Dtype {
        let (name, dtype) = (self.file_type.name, self.file_type.dtype);
        let cols = tensor.dims.last().copied().unwrap_or(1);
        let is_whole = cols.is_multiple_of(dtype.block_size());
        match name {
            "MXFP4_MOE" => Dtype::Q8_0,
            _ if self.facts.architecture == "falcon" || !is_whole || dtype == Dtype::Q8_0 => {
                Dtype::Q8_0
            }
            "IQ2_XXS" | "IQ2_XS" | "IQ3_XXS" | "IQ1_S" | "IQ2_S" | "IQ2_M" | "IQ1_M" => Dtype::Q5_K,
            _ => Dtype::Q6_K,
        }
    }

    /// The type in `MXFP4_MOE`: MXFP4 for experts, which llama.cpp recognizes by their third
    /// dimension.
    fn mxfp4(&self, tensor: &LlamaTensor<'_>, category: Category) -> Dtype {
        let outer = tensor
            .dims
            .len()
            .checked_sub(3)
            .and_then(|at| tensor.dims.get(at));
        let is_stacked = outer.is_some_and(|&experts| experts > 1);
        let is_expert = matches!(category, Category::Up | Category::Gate | Category::Down);
        let is_other = self.facts.architecture == "bailingmoe3" && !is_expert;
        if is_stacked && !is_other {
            Dtype::MXFP4
        } else {
            Dtype::Q8_0
        }
    }

    /// The type in file types of fewer than three bits.
    fn low_bits(&self, counters: &mut Counters, category: Category) -> Dtype {
        let (name, facts) = (self.file_type.name, self.facts);
        let is_larger = matches!(name, "IQ2_S" | "IQ2_M");
        let more = if is_larger { Dtype::IQ3_S } else { Dtype::Q2_K };
        match category {
            _ if category.is_values() => {
                counters.values += 1;
                if facts.gqa_ratio() >= 4 || facts.experts >= 4 {
                    Dtype::Q4_K
                } else {
                    more
                }
            }
            Category::Key if facts.experts == 8 => Dtype::Q4_K,
            Category::Down => {
                let is_early = counters.down < facts.layers / 8;
                counters.down += 1;
                if is_early { more } else { self.file_type.dtype }
            }
            Category::AttentionOutput if facts.experts == 8 => Dtype::Q5_K,
            Category::AttentionOutput if matches!(name, "IQ1_S" | "IQ1_M") => Dtype::IQ2_XXS,
            Category::AttentionOutput if is_larger => Dtype::IQ3_S,
            _ => self.file_type.dtype,
        }
    }

    fn values(&self, counters: &mut Counters) -> Dtype {
        let (facts, many) = (self.facts, self.facts.gqa_ratio() >= 4);
        let (i, n) = (counters.values, self.attention_values);
        counters.values += 1;
        // With four or more heads to a key the tensor of values is small, so that more bits cost
        // little.
        let dtype = match self.file_type.name {
            // The order of the arms is llama.cpp's order of branches. `Q2_K` is in two of them and
            // differs by `many`.
            "Q2_K" if !many => Dtype::Q3_K,
            "IQ3_XXS" if !many && !self.has_imatrix => Dtype::IQ3_S,
            "Q2_K" | "Q2_K_S" | "IQ3_XXS" | "IQ3_XS" | "IQ3_S" if many => Dtype::Q4_K,
            "IQ3_M" => Dtype::Q4_K,
            "Q3_K_M" => {
                if i < 2 {
                    Dtype::Q5_K
                } else {
                    Dtype::Q4_K
                }
            }
            "Q3_K_L" => Dtype::Q5_K,
            "IQ4_NL" | "IQ4_XS" if many => Dtype::Q5_K,
            "Q4_K_M" | "Q5_K_M" if uses_more_bits(i as i64, n as i64) => Dtype::Q6_K,
            "Q4_K_S" if i < 4 => Dtype::Q5_K,
            _ => self.file_type.dtype,
        };
        match dtype {
            // In a model of 8 experts attention is a small part of all values (Mixtral 8x7B).
            _ if facts.experts == 8 => Dtype::Q8_0,
            // In 70B models 8 heads share a key, so values are an eighth of the size of queries.
            Dtype::Q3_K | Dtype::Q4_K if facts.is_70b() => Dtype::Q5_K,
            _ => dtype,
        }
    }

    fn key_or_query(&self, category: Category) -> Dtype {
        match self.file_type.name {
            _ if category == Category::Key && self.facts.experts == 8 => Dtype::Q8_0,
            "IQ3_XS" => Dtype::IQ3_XXS,
            "IQ3_XXS" => Dtype::IQ2_S,
            _ => self.file_type.dtype,
        }
    }

    fn down(&self, layer: i64) -> Dtype {
        let layers = self.facts.layers;
        let is_falcon = self.facts.architecture == "falcon";
        let (is_first, more) = (layer < layers / 8, uses_more_bits(layer, layers));
        match self.file_type.name {
            "Q2_K" => Dtype::Q3_K,
            "Q2_K_S" if is_first => Dtype::Q4_K,
            "IQ3_XXS" if !self.has_imatrix => {
                if is_first {
                    Dtype::Q4_K
                } else {
                    Dtype::Q3_K
                }
            }
            "Q3_K_M" if layer < layers / 16 => Dtype::Q5_K,
            "Q3_K_M" if !is_falcon || more => Dtype::Q4_K,
            "IQ3_M" if is_first || self.facts.experts == 8 && more => Dtype::Q4_K,
            "Q3_K_L" => {
                if is_falcon {
                    Dtype::Q4_K
                } else {
                    Dtype::Q5_K
                }
            }
            "Q4_K_M" if is_falcon && layer >= layers / 16 => {
                if more {
                    Dtype::Q5_K
                } else {
                    Dtype::Q4_K
                }
            }
            "Q4_K_M" if is_falcon || more => Dtype::Q6_K,
            "IQ4_NL" | "IQ4_XS" if is_first && !self.has_imatrix => Dtype::Q5_K,
            "Q5_K_M" if more => Dtype::Q6_K,
            "Q4_K_S" if !is_falcon && is_first => Dtype::Q5_K,
            "Q4_0" if self.has_imatrix && is_first => Dtype::Q4_1,
            "Q5_0" if self.has_imatrix && is_first => Dtype::Q5_1,
            _ => self.file_type.dtype,
        }
    }

    fn attention_output(&self) -> Dtype {
        let dtype = self.file_type.dtype;
        match (self.file_type.name, self.facts.architecture == "falcon", self.facts.experts == 8) {
            ("Q3_K_L", true, _) => Dtype::Q4_K,
            (_, true, _) => dtype,
            ("Q2_K" | "IQ3_XS" | "IQ3_XXS" | "Q3_K_S" | "Q3_K_M" | "IQ4_NL", _, true) => {
                Dtype::Q5_K
            }
            ("Q4_K_S" | "Q4_K_M" | "IQ3_S" | "IQ3_M" | "IQ4_XS", _, true) => Dtype::Q5_K,
            (_, _, true) => dtype,
            ("Q2_K", ..) => Dtype::Q3_K,
            ("IQ3_XXS", ..) => Dtype::IQ3_S,
            ("Q3_K_M" | "IQ3_M", ..) => Dtype::Q4_K,
            ("Q3_K_L", ..) => Dtype::Q5_K,
            _ => dtype,
        }
    }
}
