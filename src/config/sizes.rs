//! [`LayerSizes`]: sizes of a language model's linear layers, from `config.json` and the layers'
//! names. They settle the shape of a weight whose stored shape is ambiguous.

use serde_json::Value;

use super::diffusion::{DiffusionClass, unquantized_modules};

/// Keys that are read besides the quantization config, at the top of `config.json` and in its
/// `text_config`: sizes and the architecture.
pub(super) const KEYS: &[&str] = &[
    "model_type",
    "hidden_size",
    "num_attention_heads",
    "head_dim",
    "v_head_dim",
    "global_head_dim",
    "per_layer_config",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "num_key_value_heads",
    "vocab_size",
    "_class_name",
    "dim",
    "attention_head_dim",
    "attention_value_scale",
    "attention_projection_layout",
];

/// Width of a head of Gemma in configs without it (transformers `GemmaConfig` to
/// `Gemma3nTextConfig`).
const GEMMA_HEAD: usize = 256;

/// Sizes from `config.json`; of a multimodal model, those of its language model.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct LayerSizes {
    pub(super) hidden: Option<usize>,
    intermediate: Option<usize>,
    expert_intermediate: Option<usize>,
    /// Width of the queries of all heads together.
    queries: Option<usize>,
    /// Width of what all heads give together.
    attended: Option<usize>,
    /// Width of the keys of all key-value heads together, and of the values.
    keys: Option<usize>,
    /// Width of the latent vector of keys and values, with the key that rotates.
    latent_keys: Option<usize>,
    vocabulary: Option<usize>,
    pub(super) key_value_heads: Option<usize>,
    /// Whether a fused projection of queries, keys and values has the rows of each head of keys
    /// together (`attention_projection_layout: fused_qkv`, MiMo-V2.5).
    pub(super) has_fused_heads: bool,
    /// Whether the model multiplies values by a factor (`attention_value_scale`).
    pub(super) scales_values: bool,
    /// The class of a transformer of diffusers, and its width.
    diffusion: Option<(&'static DiffusionClass, usize)>,
    /// Parts of the names of modules of which a class of diffusers makes no quantized layers.
    pub(super) unquantized: &'static [&'static str],
    /// Whether the config is of a class of diffusers.
    pub(super) is_of_diffusers: bool,
}

/// Whether `module` is of attention to another tower, which makes keys and values of what that one
/// gives.
pub(crate) fn is_cross_attention(module: &str) -> bool {
    let names = ["cross", "encoder_attn"];
    names.iter().any(|name| module.contains(name))
}

impl LayerSizes {
    pub(super) fn new(root: &Value) -> Self {
        let text = root.get("text_config");
        let size = |key: &str| {
            let found = text
                .and_then(|text| text.get(key))
                .or_else(|| root.get(key));
            found
                .and_then(Value::as_u64)
                .and_then(|n| usize::try_from(n).ok())
                // A size of 0 would be taken for a known one.
                .filter(|&n| n > 0)
        };
        let (hidden, heads) = (size("hidden_size"), size("num_attention_heads"));
        let of_type = |config: &'_ Value| config.get("model_type")?.as_str().map(str::to_owned);
        let model_type = text.and_then(of_type).or_else(|| of_type(root));
        // What transformers takes where a config has no `head_dim`. Configs of Gemma 3 have none,
        // and other heads than that.
        let head = size("head_dim").or_else(|| match model_type.as_deref() {
            // Its layers have heads of two lengths.
            Some(gemma) if gemma.starts_with("gemma4") => None,
            Some(gemma) if gemma.starts_with("gemma") => Some(GEMMA_HEAD),
            _ => hidden?.checked_div(heads?),
        });
        // Where keys and values are made of a latent vector, `head_dim` is the part of a head that
        // rotates.
        let values = size("v_head_dim");
        let head = head.filter(|_| values.is_none());
        // Names do not tell which layers have heads of another length, as of Gemma 4.
        let is_same = size("global_head_dim").is_none_or(|other| Some(other) == head);
        let has_layers = [text, Some(root)].into_iter().flatten();
        let mut has_layers = has_layers.filter_map(|all| all.get("per_layer_config"));
        let head = head.filter(|_| is_same && has_layers.all(Value::is_null));
        let all = |heads: Option<usize>| {
            heads
                .zip(head)
                .and_then(|(heads, head)| heads.checked_mul(head))
        };
        Self {
            hidden,
            intermediate: size("intermediate_size"),
            expert_intermediate: size("moe_intermediate_size"),
            queries: all(heads),
            attended: match values {
                Some(values) => heads.and_then(|heads| heads.checked_mul(values)),
                None => all(heads),
            },
            // Without grouped-query attention the key is missing, and there are as many key-value
            // heads as heads.
            keys: all(size("num_key_value_heads").or(heads)),
            latent_keys: size("kv_lora_rank")
                .zip(size("qk_rope_head_dim"))
                .and_then(|(rank, head)| rank.checked_add(head)),
            vocabulary: size("vocab_size"),
            key_value_heads: size("num_key_value_heads"),
            has_fused_heads: match root
                .get("attention_projection_layout")
                .and_then(Value::as_str)
            {
                Some(layout) => layout == "fused_qkv",
                None => model_type
                    .as_deref()
                    .is_some_and(|name| name.starts_with("mimo_v2")),
            },
            scales_values: [Some(root), text, root.get("dflash_config")]
                .into_iter()
                .flatten()
                .filter_map(|config| config.get("attention_value_scale")?.as_f64())
                .any(|factor| factor != 1.0),
            diffusion: DiffusionClass::of(root),
            unquantized: unquantized_modules(root),
            is_of_diffusers: root.get("_class_name").is_some(),
        }
    }

    /// `[out_features, in_features]` of the layer at path `module`, as far as its name tells.
    pub(super) fn layer(&self, module: &str) -> [Option<usize>; 2] {
        if let Some((class, width)) = self.diffusion {
            return class.layer(module, width);
        }
        // Layers of other towers have the same names and other sizes.
        let others = ["vision", "visual", "audio", "per_layer"];
        if others.iter().any(|other| module.contains(other)) || is_cross_attention(module) {
            return [None, None];
        }
        // In mixture-of-experts models the experts are narrower than the dense layers of the same
        // names.
        let of_expert = self
            .expert_intermediate
            .filter(|_| module.contains("expert") || module.contains("switch_mlp"));
        let intermediate = of_expert.or(self.intermediate);
        // An unknown name tells nothing, so that the caller refuses instead of guessing.
        match module.rsplit('.').next().unwrap_or_default() {
            "q_proj" => [self.queries, self.hidden],
            "k_proj" | "v_proj" => [self.keys, self.hidden],
            "kv_a_proj_with_mqa" => [self.latent_keys, self.hidden],
            "o_proj" => [self.hidden, self.attended],
            "gate_proj" | "up_proj" | "fc1" | "w1" | "w3" => [intermediate, self.hidden],
            "down_proj" | "fc2" | "w2" => [self.hidden, intermediate],
            "lm_head" | "embed_tokens" => [self.vocabulary, self.hidden],
            _ => [None, None],
        }
    }
}
