//! The language models of Qwen 2-VL, 2.5-VL and 3-VL, dense and with experts: those of Qwen 2 and
//! 3, whose heads rotate by three axes of an image. The three positions of a token of a text are
//! one, so that a file comes back as the class without images.
//!
//! Source: `conversion/qwenvl.py` and `conversion/qwen3vl.py` of llama.cpp; defaults of
//! transformers 5.24.

use serde_json::Value;

use super::qwen::{QWEN2, QWEN2_MLX, QWEN3, QWEN3_MLX, QWEN3_MOE, QWEN3_MOE_MLX, QWEN3_RERANKER};
use crate::Result;
use crate::families::engine::rows::*;

const SECTIONS: &[Setting] = &[setting(Kind::TextSections, "rope.dimension_sections", &[])];

/// Layers behind which features of an image are added.
const IMAGE_LAYERS: &[Setting] = &[setting(
    Kind::Own(&LIST_LEN),
    "n_deepstack_layers",
    &["vision_config", "deepstack_visual_indexes"],
)];

/// All experts of a layer in one tensor, as published models have them: matrices are `[in, out]`.
const FUSED_EXPERTS: &[TensorRule] = &[
    half(0, "blk.{i}.ffn_gate_exps.weight"),
    half(1, "blk.{i}.ffn_up_exps.weight"),
    parameter(
        "blk.{i}.ffn_down_exps.weight",
        "model.layers.{i}.mlp.experts.down_proj",
        (Transform::Transposed, &[Experts, ExpertInner, Hidden], &[Experts, Hidden, ExpertInner]),
    ),
];

/// One half of the columns of each expert.
const fn half(half: usize, gguf: &'static str) -> TensorRule {
    parameter(
        gguf,
        "model.layers.{i}.mlp.experts.gate_up_proj",
        (
            Transform::Parts(Parts { is_transposed: true, ..Parts::one(Turn::Equal(2), half) }),
            &[Experts, Hidden, Sum(&[ExpertInner, ExpertInner])],
            &[Experts, ExpertInner, Hidden],
        ),
    )
}

pub(super) const QWEN2_VL: ModelClass = ModelClass {
    gguf: "qwen2vl",
    classes: &[
        "Qwen2ForCausalLM",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
    ],
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("num_key_value_heads", Int(8)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(1e6)),
    ],
    settings: &[SECTIONS],
    traits: Traits { reads_causal: false, ..QWEN2.traits },
    mlx: Some(&QWEN2_VL_MLX),
    ..QWEN2
};

/// Qwen 2.5-Omni, which hears and speaks as well, and the name of Qwen 2-VL without its output.
pub(super) const QWEN2_OMNI: ModelClass = ModelClass {
    classes: &[
        "Qwen2ForCausalLM",
        "Qwen2_5OmniModel",
        "Qwen2_5OmniThinkerForConditionalGeneration",
        "Qwen2VLModel",
    ],
    traits: Traits { sign: Sign::Never, ..QWEN2_VL.traits },
    mlx: None,
    ..QWEN2_VL
};

const QWEN2_VL_MLX: MlxClass =
    MlxClass { scalings: &["mrope"], prefix: Prefix::Always("language_model."), ..QWEN2_MLX };

pub(super) const QWEN3_VL: ModelClass = ModelClass {
    gguf: "qwen3vl",
    classes: &["Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration"],
    defaults: &[
        ("max_position_embeddings", Int(128_000)),
        ("num_key_value_heads", Int(32)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(500_000.0)),
    ],
    settings: &[QWEN3.settings[0], SECTIONS, IMAGE_LAYERS],
    traits: Traits { reads_causal: false, ..QWEN3.traits },
    mlx: Some(&QWEN3_VL_MLX),
    ..QWEN3
};

const QWEN3_VL_MLX: MlxClass = MlxClass { prefix: Prefix::Always("language_model."), ..QWEN3_MLX };

/// The reranker for images, a language model whose output is a classifier.
pub(super) const QWEN3_VL_RERANKER: ModelClass = ModelClass {
    classes: QWEN3_RERANKER.classes,
    tensors: QWEN3_RERANKER.tensors,
    settings: &[QWEN3_RERANKER.settings[0], SECTIONS, IMAGE_LAYERS],
    traits: Traits { reads_causal: false, ..QWEN3_RERANKER.traits },
    ..QWEN3_VL
};

/// Features of images, if there are any, are added in front of the first layer alone.
const NO_IMAGE_LAYERS: &[Setting] = &[setting(Kind::Fixed(0), "n_deepstack_layers", &[])];

/// Qwen 3-ASR, which writes what it hears.
pub(super) const QWEN3_ASR: ModelClass = ModelClass {
    classes: &["Qwen3ForCausalLM", "Qwen3ASRForConditionalGeneration"],
    settings: &[QWEN3.settings[0], SECTIONS, NO_IMAGE_LAYERS],
    traits: Traits { sign: Sign::Never, ..QWEN3_VL.traits },
    tokenizer: &ASR_TOKENIZER,
    mlx: None,
    ..QWEN3_VL
};

/// Qwen 3-Omni, which hears and speaks as well.
pub(super) const QWEN3_OMNI: ModelClass = ModelClass {
    classes: &[
        "Qwen3MoeForCausalLM",
        "Qwen3OmniMoeForConditionalGeneration",
        "Qwen3OmniMoeThinkerForConditionalGeneration",
    ],
    settings: &[QWEN3_MOE.settings[0], SECTIONS, NO_IMAGE_LAYERS],
    traits: Traits { sign: Sign::Never, ..QWEN3_VL_MOE.traits },
    tokenizer: &TokenizerRules { after: &[KeyRule::Own(ends_of_turn)], ..TokenizerRules::PLAIN },
    mlx: None,
    ..QWEN3_VL_MOE
};

pub(super) const QWEN3_VL_MOE: ModelClass = ModelClass {
    gguf: "qwen3vlmoe",
    classes: &["Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration"],
    defaults: &[
        ("max_position_embeddings", Int(128_000)),
        ("num_key_value_heads", Int(16)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(500_000.0)),
        ("moe_intermediate_size", Int(1408)),
        ("norm_topk_prob", Bool(true)),
        ("num_experts", Int(60)),
        ("num_experts_per_tok", Int(4)),
    ],
    other_tensors: FUSED_EXPERTS,
    settings: &[QWEN3_MOE.settings[0], SECTIONS, IMAGE_LAYERS],
    traits: Traits::PLAIN,
    mlx: Some(&QWEN3_VL_MOE_MLX),
    ..QWEN3_MOE
};

// It always has an output of its own.
const QWEN3_VL_MOE_MLX: MlxClass = MlxClass {
    implied: &[SILU, NO_BIAS, ("decoder_sparse_step", Int(1))],
    scalings: &[],
    output: OutputLayer::Stored,
    prefix: Prefix::Always("language_model."),
    ..QWEN3_MOE_MLX
};

/// UINT32: how many entries the list has that the second field names in the object of the first; 0
/// without it. Of a text it says nothing.
const LIST_LEN: OwnSetting = own(
    |setting, model| {
        let object = model.fields.get(&setting.fields[..1]);
        let list = object.and_then(|(_, object)| object.get(setting.fields[1]));
        let len = list.and_then(Value::as_array).map_or(0, Vec::len);
        setting.count(len).map(Some)
    },
    |_, _| Ok(None),
);

const ASR_TOKENIZER: TokenizerRules = TokenizerRules {
    after: &[KeyRule::Own(ends_of_turn), KeyRule::Template(CHAT_ML)],
    ..TokenizerRules::PLAIN
};

/// Sets the tokens that begin and end a text to that which ends a turn.
fn ends_of_turn(files: &TokenizerFiles<'_>, keys: &mut KeyList) -> Result<()> {
    let listed = files.listed_tokens()?;
    let end = listed.iter().find(|token| token.content == "<|im_end|>");
    if let Some(id) = end.and_then(|token| u32::try_from(token.id).ok()) {
        for key in ["bos_token_id", "eos_token_id"] {
            keys.ggml_number(key, id);
        }
    }
    Ok(())
}

/// What the converter writes in place of a template for sounds.
const CHAT_ML: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
