//! Whole models between a Hugging Face directory, GGUF and MLX, a file for each family: what an
//! architecture's tensors and settings are called on either side, and how their rows lie.
//!
//! An architecture is a row of a table ([`ModelClass`](engine::table::ModelClass)): classes of
//! transformers, llama.cpp's name, tensors with their transforms, and keys with the fields of
//! `config.json` that they come from. `engine` reads the same rows in every direction; `towers` has
//! the image towers.

mod afmoe;
mod apertus;
mod arctic;
mod baichuan;
mod bailing;
mod bailing3;
mod bamba;
mod bert;
mod bloom;
mod chameleon;
mod chatglm;
mod codeshell;
mod cogvlm;
mod cohere;
mod dbrx;
mod deci;
mod deepseek;
mod deepseek4;
mod deepseek_moe;
mod dense_first;
mod dflash;
mod diffusion;
mod distilbert;
mod dots;
mod dots3;
mod dspark4;
mod eagle3;
mod engine;
mod ernie_moe;
mod eurobert;
mod exaone;
mod exaone_moe;
mod falcon;
mod falcon_h1;
mod gemma;
mod gemma3n;
mod gemma4;
mod glm;
mod glm_next;
mod glm_vl;
mod gpt2;
mod gpt_bigcode;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod granite_swa;
mod granite_switch;
mod grok;
mod hunyuan;
mod hunyuan_vl;
mod hy;
mod internlm;
mod jamba;
mod jina_bert;
mod kimi;
mod laguna;
mod lfm;
mod llama;
mod llama4;
mod mamba;
mod maple;
mod mellum;
mod mimo;
mod minicpm;
mod minimax;
mod minimax_01;
mod modern_bert;
mod mpt;
mod muse;
mod nemotron_h;
mod nemotron_puzzle;
mod neo_bert;
mod nomic_bert;
mod olmo;
mod openelm;
mod phi;
mod plain;
mod plamo;
mod qwen;
mod qwen4;
mod qwen_lm;
mod qwen_next;
mod qwen_vl;
mod refact;
mod rwkv;
mod rwkv_qwen;
mod smallthinker;
mod smollm;
mod spark;
mod sparse;
mod starcoder;
mod step;
mod t5;
mod talkie;
mod towers;

use std::ops::RangeInclusive;

use serde_json::Value;

pub(crate) use self::engine::apart::{is_early_expert, stack_early_experts, stack_experts};
pub(crate) use self::engine::general::size_label;
pub(crate) use self::engine::graphs::{GraphProblem, is_whole_model, problems};
pub(crate) use self::engine::lora::{
    LoraPair, LoraRequest, PEFT_PREFIX, PeftSettings, lora_to_gguf, lora_to_hf,
};
pub(crate) use self::engine::mlx::{MlxModel, from_mlx, to_mlx, unknown_class};
#[cfg(feature = "lethe")]
pub(crate) use self::engine::pre_norms::PreNorm;
#[cfg(feature = "lethe")]
use self::engine::pre_norms::pre_norms;
pub(crate) use self::engine::pruned::{ChangedField, LayersLeft};
pub(crate) use self::engine::request::{FusedTensors, GgufRequest, ModelPart};
pub(crate) use self::engine::source::{SourceTensor, computed};
pub(crate) use self::engine::tied::{is_tied, other_output};
pub(crate) use self::engine::to_gguf::{GgufModel, to_gguf};
pub(crate) use self::engine::to_hf::to_hf;
pub(crate) use self::engine::transform::transposed;
pub(crate) use self::towers::to_hf::join_tower;
pub(crate) use self::towers::to_mmproj::to_mmproj;
use crate::Result;
use crate::families::engine::fields::{LAYER_KINDS, LAYERS};
use crate::families::engine::rows::*;
use crate::model::gguf::{GgufMetadata, GgufMetadataValue};

/// Every class, in the order in which a GGUF file is compared with them.
pub(crate) const CLASSES: &[&ModelClass] = &[
    &eagle3::EAGLE3,
    &eagle3::EAGLE3_OF_LLAMA,
    &dflash::DFLASH2,
    &gemma4::dspark::GEMMA4_DSPARK,
    &dspark4::DSPARK4,
    &dflash::DSPARK,
    &dflash::DFLASH,
    &dflash::MUSE_ASSISTANT,
    &llama::MIXTRAL,
    &llama::LLAMA,
    &llama::LLAVA,
    &llama::INTERNLM3,
    &llama::MISTRAL,
    &llama::MINISTRAL3,
    &llama::MISTRAL3,
    &qwen::QWEN2,
    &qwen::QWEN2_NESTED,
    &qwen::QWEN2_AUDIO,
    &qwen::QWEN2_MOE,
    &qwen::QWEN3_RERANKER,
    &qwen::QWEN3,
    &qwen::QWEN3_NESTED,
    &qwen::QWEN3_MOE,
    &qwen_vl::QWEN2_VL,
    &qwen_vl::QWEN2_OMNI,
    &qwen_vl::QWEN3_VL_RERANKER,
    &qwen_vl::QWEN3_VL,
    &qwen_vl::QWEN3_ASR,
    &qwen_vl::QWEN3_VL_MOE,
    &qwen_vl::QWEN3_OMNI,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &gemma::GEMMA_EMBEDDING,
    &gemma3n::GEMMA3N,
    &gemma4::assistant::GEMMA4_ASSISTANT,
    &gemma4::GEMMA4,
    &gemma4::GEMMA4_UNIFIED,
    &gpt_oss::GPT_OSS,
    &deepseek::YOUTU,
    &deepseek::GLM4_MOE_LITE,
    &deepseek::DEEPSEEK3,
    &deepseek::DEEPSEEK2,
    &sparse::DEEPSEEK3_2,
    &sparse::GLM5,
    &glm_vl::GLM_OCR,
    &glm_vl::GLM4V,
    &glm_vl::GLM4V_MOE,
    &chatglm::CHATGLM,
    &glm::GLM,
    &glm::GLM4,
    &glm::SOLAR_OPEN,
    &glm::GLM4_MOE,
    &qwen_next::QWEN3_NEXT,
    &qwen_next::QWEN3_5,
    &qwen_next::QWEN3_5_NESTED,
    &qwen_next::QWEN3_5_MOE,
    &qwen4::QWEN4,
    &phi::PHI3,
    &phi::PHI4_V,
    &granite_hybrid::GRANITE_ATTENDING,
    &granite::GRANITE,
    &granite::GRANITE_MOE_SHARED,
    &granite::GRANITE_MOE,
    &lfm::LFM2_BIDIRECTIONAL,
    &lfm::LFM2_EMBEDDING,
    &lfm::LFM2,
    &lfm::LFM2_MOE,
    &mamba::FALCON_MAMBA,
    &mamba::MAMBA,
    &mamba::MAMBA2,
    &bamba::BAMBA,
    &granite_hybrid::GRANITE_HYBRID,
    &nemotron_puzzle::NEMOTRON_H_PUZZLE,
    &nemotron_h::NEMOTRON_H_LATENT,
    &nemotron_h::NEMOTRON_H_MOE,
    &nemotron_h::NEMOTRON_H,
    &smollm::SMOLLM3,
    &smollm::ARCEE,
    &olmo::OLMO,
    &olmo::OLMO3,
    &olmo::OLMO2,
    &olmo::OLMOE,
    &starcoder::STARCODER2,
    &starcoder::STABLELM,
    &gpt_bigcode::GPT_BIGCODE,
    &exaone::EXAONE4,
    &exaone::SEED_OSS,
    &exaone::ERNIE4_5,
    &cohere::COHERE,
    &cohere::COHERE2,
    &cohere::NEMOTRON,
    &apertus::APERTUS,
    &bailing::BAILING_MOE2,
    &bailing::SARVAM_MOE,
    &dots::DOTS1,
    &minimax::MINIMAX_M2,
    &gpt_neox::GPT_NEOX,
    &gpt2::GPT2,
    &bloom::BLOOM,
    &mpt::MPT,
    &phi::PHI2,
    &falcon::FALCON_11B,
    &falcon::FALCON_NEW,
    &falcon::FALCON,
    &hunyuan::HUNYUAN,
    &hunyuan::HUNYUAN_MOE,
    &ernie_moe::ERNIE4_5_MOE,
    &internlm::INTERNLM2,
    &jamba::JAMBA,
    &llama4::LLAMA4,
    &nomic_bert::NOMIC_BERT,
    &t5::UMT5,
    &t5::T5,
    &t5::T5_UNGATED,
    &t5::UMT5_ENCODER,
    &t5::T5_ENCODER,
    &t5::T5_UNGATED_ENCODER,
    &modern_bert::MODERN_BERT_CLASSIFIER,
    &modern_bert::MODERN_BERT,
    &bert::XLM_ROBERTA_CLASSIFIER,
    &bert::XLM_ROBERTA,
    &bert::ROBERTA_CLASSIFIER,
    &bert::ROBERTA,
    &bert::BERT_CLASSIFIER,
    &bert::BERT,
    &distilbert::DISTILBERT_CLASSIFIER,
    &distilbert::DISTILBERT,
    &jina_bert::JINA_BERT2,
    &eurobert::EUROBERT,
    &llama::LLAMA_EMBED,
    &phi::PHI_MOE,
    &exaone::EXAONE,
    &exaone_moe::EXAONE_MOE,
    &afmoe::AFMOE,
    &bailing::BAILING_MOE,
    &deepseek_moe::DEEPSEEK,
    &minicpm::MINICPM,
    &plain::ORION,
    &plain::PANGU,
    &plain::JAIS2,
    &plain::MAINCODER,
    &minicpm::MINICPM3,
    &exaone::PADDLE_OCR,
    &hunyuan_vl::HUNYUAN_VL,
    &hy::HY3,
    &hy::HY4,
    &mellum::MELLUM,
    &minimax::MINIMAX_M3,
    &kimi::KIMI_LINEAR,
    &diffusion::DREAM,
    &diffusion::RND1,
    &diffusion::LLADA,
    &diffusion::LLADA_MOE,
    &llama::NANBEIGE,
    &llama::SARASHINA,
    &minicpm::PLM,
    &smallthinker::SMALLTHINKER,
    &maple::MAPLE,
    &spark::SPARK2_5,
    &granite::GRANITE_SPEECH,
    &deepseek_moe::DEEPSEEK_OCR,
    &mamba::MAMBA_LM_HEAD,
    &cohere::COHERE2_MOE,
    &granite_swa::GRANITE_MOE_SWA,
    &granite_swa::GRANITE_SWA,
    &plain::XVERSE,
    &dbrx::DBRX,
    &arctic::ARCTIC,
    &grok::GROK2,
    &grok::GROK1,
    &deci::DECI,
    &minimax_01::MINIMAX_01,
    &mimo::MIMO_V2_FLASH,
    &mimo::MIMO_V2,
    &laguna::LAGUNA,
    &bailing3::BAILING_MOE3,
    &step::STEP3_5,
    &openelm::OPENELM,
    &qwen_lm::QWEN,
    &baichuan::BAICHUAN,
    &glm_next::GLM5_NEXT,
    &muse::MUSE_GLIMMER,
    &codeshell::CODESHELL,
    &refact::REFACT,
    &falcon_h1::FALCON_H1,
    &gpt2::RUGPT3,
    &cogvlm::COGVLM,
    &plamo::PLAMO,
    &plamo::PLAMO2,
    &plamo::PLAMO3,
    &rwkv::RWKV7,
    &rwkv::RWKV6,
    &rwkv_qwen::RWKV6_QWEN2,
    &rwkv_qwen::ARWKV7,
    &dots3::DOTS3,
    &chameleon::CHAMELEON,
    &talkie::TALKIE,
    &granite_switch::GRANITE_SWITCH,
    &deepseek4::DEEPSEEK4,
    &neo_bert::NEO_BERT_CLASSIFIER,
    &neo_bert::NEO_BERT,
];

/// The class that `config` names. That of a nested language model comes first.
fn class_name(config: &Value) -> Option<&str> {
    let nested = config.pointer("/text_config/architectures/0");
    nested
        .or_else(|| config.pointer("/architectures/0"))?
        .as_str()
}

/// The class that `config` names `name`; `None` if there is none. What transformers has in one
/// class may be several in GGUF.
fn class_of(name: &str, config: &Value) -> Option<&'static ModelClass> {
    let is_true = |field: &str| match config.get(field) {
        Some(Value::Bool(flag)) => *flag,
        value => value.and_then(Value::as_u64) > Some(0),
    };
    let kinds = config.get(LAYER_KINDS).and_then(Value::as_array);
    let lacks = |class: &ModelClass, kind: &str| {
        let means = |found: &Value| {
            let mut names = class.traits.kind_names.iter();
            found == kind || names.any(|(name, meant)| found == name && *meant == kind)
        };
        kinds.is_some_and(|kinds| !kinds.iter().any(means))
    };
    let nested_type = config.pointer("/text_config/model_type");
    let is_nested = |expected| nested_type.is_none_or(|found| found == expected);
    // A class without its output has the tensors of the one with it.
    let stem = name.strip_suffix(WITHOUT_OUTPUT).filter(|_| is_base(name));
    let is_base_of = |known: &&str| {
        let with_output = stem.and_then(|stem| known.strip_prefix(stem));
        with_output.is_some_and(|end| WITH_OUTPUT.contains(&end))
    };
    let fits = |class: &&&ModelClass| {
        let traits = &class.traits;
        // A language model for images is written as the class without them, which has a row of its
        // own.
        let first = usize::from(class.has_setting(Kind::TextSections));
        let names = &class.classes[first..];
        (names.contains(&name) || names.iter().any(is_base_of))
            && traits.nested_type.is_none_or(is_nested)
            && traits.config_sign.is_none_or(is_true)
            && traits
                .config_value
                .is_none_or(|(field, value)| config[field] == Value::from(&value))
            && traits.lacks_kind.is_none_or(|kind| lacks(class, kind))
    };
    CLASSES.iter().find(fits).copied()
}

/// What names of classes end with that have no output, and the ends of those that have one.
const WITHOUT_OUTPUT: &str = "Model";
const WITH_OUTPUT: &[&str] = &["ForCausalLM", "LMHeadModel"];

/// What stays of a GGUF file with this metadata without the layers `pruned`, and the keys that change.
///
/// # Errors
/// Those of [`LayersLeft`]; `Parse` if a key is missing.
pub(crate) fn without_layers(
    metadata: &GgufMetadata,
    pruned: &[RangeInclusive<usize>],
) -> Result<(LayersLeft, Vec<(String, GgufMetadataValue)>)> {
    let name = metadata.get("general.architecture");
    let found = classes_of(None, name.as_ref().and_then(GgufMetadataValue::as_string));
    let (name, classes) = found.unwrap_or_default();
    let count = |key: &str| metadata.get(&format!("{name}.{key}"))?.as_unsigned();
    let behind = count("nextn_predict_layers").unwrap_or(0);
    let layers = count("block_count").unwrap_or(0).saturating_sub(behind);
    let left = LayersLeft::new(&classes, (name, layers as usize), pruned, true)?;
    let keys = left.keys(&classes, metadata)?;
    Ok((left, keys))
}

/// What stays of a model with this config without the layers `pruned`, and the fields that change.
///
/// # Errors
/// Those of [`LayersLeft`].
pub(crate) fn without_layers_of_config(
    config: &Value,
    pruned: &[RangeInclusive<usize>],
) -> Result<(LayersLeft, Vec<ChangedField>)> {
    let (name, classes) = classes_of(Some(config), None).unwrap_or_default();
    let layers = LAYERS.iter().find_map(|&field| config[field].as_u64());
    let layers = (name, layers.unwrap_or(0) as usize);
    let left = LayersLeft::new(&classes, layers, pruned, false)?;
    let fields = left.fields(&classes, config)?;
    Ok((left, fields))
}

/// The name of a model's class, which `config` says, or of a GGUF file's `architecture`, and its class,
/// of which there may be several in GGUF; `None`: nothing names it.
fn classes_of<'a>(
    config: Option<&'a Value>,
    architecture: Option<&'a str>,
) -> Option<(&'a str, Vec<&'static ModelClass>)> {
    if let Some(gguf) = architecture {
        let all = CLASSES.iter().filter(|class| class.gguf == gguf);
        return Some((gguf, all.copied().collect()));
    }
    let (config, name) = (config?, config.and_then(class_name)?);
    Some((name, class_of(name, config).into_iter().collect()))
}

/// The norms of a model whose outputs only projections of their layers read, among `tensors`, with
/// these: names, and whether each is of a matrix. The class is that of `config`, or of a GGUF file's
/// `architecture`.
///
/// # Errors
/// The reason why they are not known.
#[cfg(feature = "lethe")]
pub(crate) fn find_pre_norms(
    config: Option<&Value>,
    architecture: Option<&str>,
    tensors: &[(&str, bool)],
    is_mlx: bool,
) -> std::result::Result<Vec<PreNorm>, String> {
    let Some((name, classes)) = classes_of(config, architecture) else {
        return Err("the model has no config that names its class".to_owned());
    };
    if classes.is_empty() || !classes.iter().all(|class| class.traits.has_pre_norms) {
        return Err(format!("of `{name}` it is not known what reads the outputs of its norms"));
    }
    // Several classes may be one in GGUF: the model is of that whose tensors it has.
    let mut found = classes
        .into_iter()
        .map(|class| pre_norms(class, tensors, is_mlx));
    let first = found.next().unwrap_or_else(|| Ok(vec![]));
    found.fold(first, |best, next| match (&best, &next) {
        (Err(_), Ok(_)) => next,
        _ => best,
    })
}

/// Whether the class that `config` names is a draft for speculative decoding.
pub(crate) fn is_draft_class(config: &Value) -> bool {
    let class = class_name(config).and_then(|name| class_of(name, config));
    class.is_some_and(|class| class.traits.is_draft)
}

/// Whether models of the class that `config` names have an image tower here.
fn has_tower(config: &Value) -> bool {
    towers::tower_of(config).is_ok()
}

/// Whether the class `name` of transformers is the model without its output.
fn is_base(name: &str) -> bool {
    let is_whole = |end: &&str| name.ends_with(*end);
    name.ends_with(WITHOUT_OUTPUT) && !WITH_OUTPUT.iter().any(is_whole)
}

/// Of classes that compute something else than transformers if tokens see those behind them, as in
/// windows.
const CAUSAL: (&str, Default) = ("is_causal", Bool(true));

/// Embedding, last norm and output.
const ENDS: &[TensorRule] = &[
    same("token_embd", "model.embed_tokens", &[Vocab, Hidden]),
    same("output_norm", "model.norm", &[Hidden]),
    optional("output", "lm_head", &[Vocab, Hidden]),
];

/// Norms in front of attention and of the feed-forward layer.
const NORMS: &[TensorRule] = &[
    same("blk.{i}.attn_norm", "model.layers.{i}.input_layernorm", &[Hidden]),
    same("blk.{i}.ffn_norm", "model.layers.{i}.post_attention_layernorm", &[Hidden]),
];

/// As [`NORMS`], of which GGUF names the second by what it follows.
const POST_NORMS: &[TensorRule] = &[
    NORMS[0],
    same("blk.{i}.post_attention_norm", "model.layers.{i}.post_attention_layernorm", &[Hidden]),
];

/// Norms behind attention and the feed-forward layer.
const LATER_NORMS: &[TensorRule] = &[
    POST_NORMS[1],
    same("blk.{i}.post_ffw_norm", "model.layers.{i}.post_feedforward_layernorm", &[Hidden]),
];

/// The feed-forward layer with a gate.
const MLP: &[TensorRule] = &[
    same("blk.{i}.ffn_gate", "model.layers.{i}.mlp.gate_proj", &[Inner, Hidden]),
    same("blk.{i}.ffn_up", "model.layers.{i}.mlp.up_proj", &[Inner, Hidden]),
    same("blk.{i}.ffn_down", "model.layers.{i}.mlp.down_proj", &[Hidden, Inner]),
];

/// The feed-forward layer without a gate.
const UNGATED_MLP: &[TensorRule] = &[MLP[1], MLP[2]];

/// The feed-forward layer whose gate and projection are one matrix.
const FUSED_MLP: &[TensorRule] =
    &[same("blk.{i}.ffn_up", "model.layers.{i}.mlp.gate_up_proj", &[TwoInner, Hidden]), MLP[2]];

/// Projections of the feed-forward layer that all have a bias or all have none.
const MLP_BIASES: &[&str] = &["blk.{i}.ffn_gate", "blk.{i}.ffn_up", "blk.{i}.ffn_down"];

/// Queries and keys whose heads rotate halves.
const QUERIES: &[TensorRule] = &[
    same("blk.{i}.attn_q", "model.layers.{i}.self_attn.q_proj", &[Queries, Hidden]),
    same("blk.{i}.attn_k", "model.layers.{i}.self_attn.k_proj", &[Keys, Hidden]),
];

/// Values, and what follows them.
const VALUES: &[TensorRule] = &[
    same("blk.{i}.attn_v", "model.layers.{i}.self_attn.v_proj", &[Keys, Hidden]),
    same("blk.{i}.attn_output", "model.layers.{i}.self_attn.o_proj", &[Hidden, Queries]),
];

/// Projections of attention that all have a bias or all have none.
const ATTENTION_BIASES: &[&str] =
    &["blk.{i}.attn_q", "blk.{i}.attn_k", "blk.{i}.attn_v", "blk.{i}.attn_output"];

/// Norms of queries and keys.
const HEAD_NORMS: &[TensorRule] = &[
    same("blk.{i}.attn_q_norm", "model.layers.{i}.self_attn.q_norm", &[Head]),
    same("blk.{i}.attn_k_norm", "model.layers.{i}.self_attn.k_norm", &[Head]),
];

/// The feed-forward layer of layers without experts.
const DENSE_MLP: &[TensorRule] = &[
    only(Need::Dense, "blk.{i}.ffn_gate", "model.layers.{i}.mlp.gate_proj", &[Inner, Hidden]),
    only(Need::Dense, "blk.{i}.ffn_up", "model.layers.{i}.mlp.up_proj", &[Inner, Hidden]),
    only(Need::Dense, "blk.{i}.ffn_down", "model.layers.{i}.mlp.down_proj", &[Hidden, Inner]),
];

/// Width of all experts that every token sees.
const SHARED: Dim = Product(&[ExpertInner, Field("n_shared_experts")]);

/// Experts behind the dense layers, with a bias that only chooses among them, and some that every
/// token sees.
const SPARSE_MLP: &[TensorRule] = &[
    only(Need::Sparse, "blk.{i}.ffn_gate_inp", "model.layers.{i}.mlp.gate", &[Experts, Hidden]),
    sparse(experts(
        "blk.{i}.ffn_gate_exps",
        "model.layers.{i}.mlp.experts.{e}.gate_proj",
        &[ExpertInner, Hidden],
    )),
    sparse(experts(
        "blk.{i}.ffn_up_exps",
        "model.layers.{i}.mlp.experts.{e}.up_proj",
        &[ExpertInner, Hidden],
    )),
    sparse(experts(
        "blk.{i}.ffn_down_exps",
        "model.layers.{i}.mlp.experts.{e}.down_proj",
        &[Hidden, ExpertInner],
    )),
    only(
        Need::Sparse,
        "blk.{i}.ffn_gate_shexp",
        "model.layers.{i}.mlp.shared_experts.gate_proj",
        &[SHARED, Hidden],
    ),
    only(
        Need::Sparse,
        "blk.{i}.ffn_up_shexp",
        "model.layers.{i}.mlp.shared_experts.up_proj",
        &[SHARED, Hidden],
    ),
    only(
        Need::Sparse,
        "blk.{i}.ffn_down_shexp",
        "model.layers.{i}.mlp.shared_experts.down_proj",
        &[Hidden, SHARED],
    ),
];

/// The bias that is added to scores only to choose experts.
const CHOICE_BIAS: &[TensorRule] = &[sparse(parameter(
    "blk.{i}.exp_probs_b.bias",
    "model.layers.{i}.mlp.gate.e_score_correction_bias",
    (Transform::None, &[Experts], &[Experts]),
))];

/// As [`CHOICE_BIAS`], of a class that has it in F32.
const F32_CHOICE_BIAS: &[TensorRule] = &[TensorRule { keeps_f32: true, ..CHOICE_BIAS[0] }];

/// The rule for layers with experts alone.
const fn sparse(rule: TensorRule) -> TensorRule {
    in_layers(Need::Sparse, rule)
}
