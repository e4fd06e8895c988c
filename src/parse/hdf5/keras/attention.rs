//! Layers inside of others, which no config describes: projections of attentions, and layers of the
//! models of KerasHub. Their kernels follow from the config of the layer or model around them.

use serde_json::Value;

use super::kernel::{KerasKernel, sizes};

/// Where the heads are in a kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heads {
    /// `[in, heads, dim]`.
    Last,
    /// `[heads, in, dim]`.
    First,
    /// `[heads, dim, out]`: the output of an attention.
    Summed,
    /// None: a matrix.
    No,
}

/// How layers and models of some classes lay out their projections.
#[derive(PartialEq, Eq)]
struct AttentionRow {
    classes: &'static [&'static str],
    /// Fields with the number of heads of queries, and of keys and values.
    heads: [&'static str; 2],
    /// Fields with the size of a head of queries and keys, and of values, which some models have.
    dims: [&'static str; 2],
    /// Where the heads of queries, keys and values are, and those of the output.
    layout: [Heads; 2],
    /// Whether there are other layers inside: `Dense` and embeddings.
    is_model: bool,
}

const BY_HEADS: [&str; 2] = ["num_heads", "num_heads"];
const GROUPED: [&str; 2] = ["num_query_heads", "num_key_value_heads"];
const USUAL: [Heads; 2] = [Heads::Last, Heads::Summed];

const fn models(
    classes: &'static [&'static str],
    heads: [&'static str; 2],
    layout: [Heads; 2],
) -> AttentionRow {
    AttentionRow { classes, heads, dims: ["head_dim"; 2], layout, is_model: true }
}

static ATTENTIONS: [AttentionRow; 6] = [
    AttentionRow {
        classes: &[
            "MultiHeadAttention",
            "CachedMultiHeadAttention",
            "WhisperCachedMultiHeadAttention",
        ],
        heads: BY_HEADS,
        dims: ["key_dim", "value_dim"],
        layout: USUAL,
        is_model: false,
    },
    AttentionRow {
        classes: &["GroupQueryAttention", "GroupedQueryAttention"],
        heads: GROUPED,
        dims: ["head_dim"; 2],
        layout: USUAL,
        is_model: false,
    },
    models(
        &[
            "AlbertBackbone",
            "BartBackbone",
            "BertBackbone",
            "CLIPTextEncoder",
            "DistilBertBackbone",
            "ElectraBackbone",
            "ESMBackbone",
            "FNetBackbone",
            "GPT2Backbone",
            "OPTBackbone",
            "RobertaBackbone",
            "T5Backbone",
            "TransformerDecoder",
            "TransformerEncoder",
            "ViTBackbone",
            "WhisperBackbone",
            "XLMRobertaBackbone",
        ],
        BY_HEADS,
        USUAL,
    ),
    models(
        &[
            "GptOssBackbone",
            "Llama3Backbone",
            "LlamaBackbone",
            "MistralBackbone",
            "MixtralBackbone",
            "Phi3Backbone",
            "Qwen3Backbone",
            "Qwen3MoeBackbone",
            "QwenBackbone",
            "QwenMoeBackbone",
        ],
        GROUPED,
        USUAL,
    ),
    models(
        &["Gemma3Backbone", "GemmaBackbone", "PaliGemmaBackbone"],
        GROUPED,
        [Heads::First, Heads::Summed],
    ),
    models(&["DebertaV3Backbone", "GPTNeoXBackbone"], BY_HEADS, [Heads::Last, Heads::No]),
];

/// A layer or model with projections inside, and the sizes that its config tells.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Attention {
    row: &'static AttentionRow,
    heads: [Option<usize>; 2],
    dims: [Option<usize>; 2],
    /// Sizes of the last dimension of queries, keys and values.
    inputs: [Option<usize>; 3],
    /// Dimensions of the output.
    output: Vec<Option<usize>>,
    /// Columns of embeddings.
    hidden: Option<usize>,
}

/// The shape of an input of `layer`: as it was built, or as it is called, by its place or by name.
fn input_shape<'v>(layer: &'v Value, at: usize, name: &str) -> Option<&'v Value> {
    let built = layer
        .get("build_config")
        .and_then(|config| config.get("shapes_dict"));
    if let Some(built) = built {
        return built.get(format!("{name}_shape"));
    }
    let call = layer.get("inbound_nodes")?.get(0)?;
    let by_name = || call.get("kwargs")?.get(name);
    let input = call
        .get("args")
        .and_then(|args| args.get(at))
        .or_else(by_name)?;
    input.get("config")?.get("shape")
}

impl Attention {
    /// The layer or model that `layer` describes.
    pub(super) fn read(layer: &Value) -> Option<Self> {
        let (class, config) = (layer.get("class_name")?.as_str()?, layer.get("config")?);
        let row = ATTENTIONS.iter().find(|row| row.classes.contains(&class))?;
        // People call layers of their own `TransformerEncoder`, too.
        let is_of_hub = ["module", "registered_name"].iter().any(|key| {
            let package = layer.get(key).and_then(Value::as_str).unwrap_or("");
            package.starts_with("keras_hub") || package.starts_with("keras_nlp")
        });
        if row.is_model && !is_of_hub {
            return None;
        }
        let size = |key: &str| sizes(config.get(key)).first().copied().flatten();
        let last = |at, key| sizes(input_shape(layer, at, key)).last().copied();
        let [query, value] = [last(0, "query"), last(1, "value")].map(Option::flatten);
        // Where keys have no shape of their own, they are the values.
        let key = last(2, "key").unwrap_or(value);
        let output = match config.get("output_shape") {
            None | Some(Value::Null) => vec![query],
            output => sizes(output),
        };
        Some(Self {
            row,
            heads: row.heads.map(size),
            dims: row.dims.map(size),
            inputs: [query, key, value],
            output,
            hidden: size("embedding_dim").or_else(|| size("hidden_dim")),
        })
    }

    /// The class and the kernel of the layer `name` inside; `None` if it has no such layer.
    pub(super) fn layer(&self, name: &str) -> Option<(&'static str, KerasKernel)> {
        let ([queries, others], [dim, value_dim]) = (self.heads, self.dims);
        let [query, key, value] = self.inputs;
        let [inner, outer] = self.row.layout;
        let (at, heads, dim, input) = match name {
            "query" | "query_key_value" => (inner, queries, dim, query),
            "key" => (inner, others, dim, key),
            "value" => (inner, others, value_dim, value),
            "gate" => (inner, queries, value_dim, query),
            "attention_output" => (outer, queries, value_dim, None),
            _ if !self.row.is_model => return None,
            _ if name.ends_with("embedding") => {
                let shape = vec![None, self.hidden];
                let kernel = KerasKernel { is_by_row: true, shape, reduced: 1, ahead: 0 };
                return Some(("ReversibleEmbedding", kernel));
            }
            _ => (Heads::No, None, None, None),
        };
        let (shape, ahead) = match at {
            Heads::Last => (vec![input, heads, dim], 0),
            Heads::First => (vec![heads, input, dim], 1),
            Heads::Summed => ([&[heads, dim], &*self.output].concat(), 0),
            Heads::No => (vec![None, None], 0),
        };
        let reduced = if at == Heads::Summed { 2 } else { 1 };
        let class = if at == Heads::No {
            "Dense"
        } else {
            "EinsumDense"
        };
        Some((class, KerasKernel { is_by_row: false, shape, reduced, ahead }))
    }
}
