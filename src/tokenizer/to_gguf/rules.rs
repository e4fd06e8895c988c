//! What the converter's classes of architectures add to a tokenizer's keys (`set_vocab` in
//! `conversion/*.py`).

use serde_json::Value;

use super::added::AddedTokens;
use super::file::HfAddedToken;
use super::keys::{ADDED_SCORE, KeyList, TokenTable, TokenType, added_token};
use super::sentencepiece_model::SentencePieceModel;
use super::special::SpecialVocab;
use super::{TokenizerFiles, TokenizerRequest};
use crate::Result;
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};

/// Architectures of the converter's class of Llama, which takes `add_prefix_space` from
/// tokenizer_config.json.
const LLAMA: &[&str] = &[
    "llama",
    "mistral3",
    "arcee",
    "llama-embed",
    "smollm3",
    "apertus",
    "afmoe",
    "granite",
    "granitemoe",
    "granite_swa",
    "nanbeige",
];

/// Tokens of GLM 4's dense models that are special by their texts.
const GLM4: &[(&str, &str)] = &[
    ("eos", "<|endoftext|>"),
    ("eot", "<|user|>"),
    ("unk", "<|endoftext|>"),
    ("bos", "<|endoftext|>"),
];

/// Those of GLM's mixtures of experts.
const GLM: &[(&str, &str)] = &[
    ("bos", "[gMASK]"),
    ("eot", "<|user|>"),
    ("unk", "<|endoftext|>"),
    ("eom", "<|observation|>"),
];

/// Those of ChatGLM.
const CHATGLM: &[(&str, &str)] =
    &[("eos", "<|endoftext|>"), ("eot", "<|user|>"), ("unk", "<|endoftext|>")];

/// Tokens of Solar Open, which has GLM's architecture.
const SOLAR_OPEN: &[(&str, &str)] = &[
    ("eos", "<|endoftext|>"),
    ("eot", "<|endoftext|>"),
    ("unk", "<unk>"),
    ("bos", "<|startoftext|>"),
];

/// `vocab_size`, padded as the converter's classes of Mamba do.
pub(super) fn padded(request: &TokenizerRequest<'_>) -> usize {
    let has_mamba_layers = || {
        let layers = request.config.get("layer_types").and_then(Value::as_array);
        layers.is_none_or(|layers| {
            layers
                .iter()
                .any(|layer| layer == "mamba" || layer == "linear_attention")
        })
    };
    let of_config = |default: usize| {
        let multiple = request
            .config
            .get("pad_vocab_size_multiple")
            .and_then(Value::as_u64);
        multiple
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(default)
            .max(1)
    };
    let multiple = match request.architecture {
        "mamba" => of_config(8),
        "mamba2" => of_config(16),
        "nemotron_h" | "nemotron_h_moe" => 8,
        "granitehybrid" if has_mamba_layers() => 8,
        _ => 1,
    };
    request
        .vocab_size
        .checked_next_multiple_of(multiple)
        .unwrap_or(usize::MAX)
}

/// Keys before those of the tokenizer.
pub(super) fn before(files: &TokenizerFiles<'_>, keys: &mut KeyList) {
    let architecture = files.request.architecture;
    if is_of_llama(files) {
        space_prefix(files, keys);
    }
    match architecture {
        "eurobert" => keys.ggml_flag("add_bos_token", false),
        "modern-bert" => {
            for key in ["add_bos_token", "add_eos_token", "add_sep_token"] {
                keys.ggml_flag(key, true);
            }
        }
        _ => {}
    }
}

/// Whether the converter's class of Llama takes the tokenizer. InternLM 3 and Granite 4 without
/// state spaces have the name of such an architecture, and classes of their own.
fn is_of_llama(files: &TokenizerFiles<'_>) -> bool {
    let class = files.request.config.pointer("/architectures/0");
    LLAMA.contains(&files.request.architecture)
        && !is_internlm3(files)
        && class != Some(&Value::from("GraniteMoeHybridForCausalLM"))
}

/// Whether the model is InternLM 3, which is of the architecture `llama` and has a class of its
/// own.
fn is_internlm3(files: &TokenizerFiles<'_>) -> bool {
    is_class(files, "InternLM3ForCausalLM")
}

/// Whether config.json names this class.
fn is_class(files: &TokenizerFiles<'_>, name: &str) -> bool {
    let class = files.request.config.pointer("/architectures/0");
    class.and_then(Value::as_str) == Some(name)
}

fn space_prefix(files: &TokenizerFiles<'_>, keys: &mut KeyList) {
    if let Some(Value::Bool(flag)) = files.config.get("add_prefix_space") {
        keys.ggml_flag("add_space_prefix", *flag);
    }
}

/// Special tokens that an architecture has by their texts, besides those that the files name.
pub(super) fn special_by_text(
    architecture: &str,
    added: &AddedTokens<'_>,
    special: &mut SpecialVocab,
) -> Result<()> {
    let table = match architecture {
        "glm4" => GLM4,
        "chatglm" => CHATGLM,
        "muse-glimmer" => &[("eot", "<|eot|>")],
        "glm4moe" | "glm-dsa" | "glm5-next" | "deepseek2" if added.get("[gMASK]").is_some() => GLM,
        "glm4moe" => SOLAR_OPEN,
        _ => return Ok(()),
    };
    for (kind, text) in table {
        if let Some(token) = added.get(text) {
            special.set_id(kind, &Value::from(token.id), "tokenizer.json")?;
        }
    }
    Ok(())
}

/// Keys after those of the tokenizer.
///
/// # Errors
/// Those of reading special tokens again.
pub(super) fn after(files: &TokenizerFiles<'_>, keys: &mut KeyList) -> Result<()> {
    let u32 = GgufMetadataValue::U32;
    let architecture = files.request.architecture;
    let model = keys
        .get("tokenizer.ggml.model")
        .and_then(GgufMetadataValue::as_string);
    let is_sentencepiece = model == Some("llama");
    let has_count = keys.get("tokenizer.ggml.token_type_count").is_some();
    match architecture {
        // Code Llama and small Granite models, told by the sizes of their vocabularies.
        _ if is_of_llama(files) => match files.request.vocab_size {
            32016 => end_of_turn(files, 32010, keys)?,
            49152 => keys.ggml_flag("add_bos_token", false),
            _ => {}
        },
        "gemma" => {
            end_of_turn(files, 107, keys)?;
            keys.ggml_flag("add_space_prefix", false);
        }
        "gemma2" | "gemma3" | "gemma3n" | "gemma-embedding" if is_sentencepiece => {
            keys.ggml_flag("add_space_prefix", false);
        }
        // What tokenizer.model says of the blank in front of a text counts, and tokenizer.json
        // cannot say it.
        "jamba" if is_sentencepiece && files.request.texts.read("tokenizer.model")?.is_none() => {
            keys.ggml_flag("add_space_prefix", false);
        }
        "nemotron" => {
            keys.ggml("padding_token_id", u32(0));
            keys.ggml("unknown_token_id", u32(1));
        }
        "ernie4_5" | "ernie4_5-moe" | "paddleocr" | "pangu-embedded" => space_prefix(files, keys),
        // The generation's config has the end of a turn first, and the end of text after that.
        "hunyuan-dense" => {
            let eod = files.request.config.get("eod_token_id");
            if let Some(eod) = eod.and_then(Value::as_u64)
                && let Ok(eod) = u32::try_from(eod)
            {
                keys.ggml("eos_token_id", u32(eod));
            }
            let generation = files.request.texts.json("generation_config.json")?;
            let ends = generation
                .as_ref()
                .and_then(|config| config.get("eos_token_id")?.as_array());
            let end = ends
                .filter(|ends| ends.len() > 1)
                .and_then(|ends| ends.first()?.as_u64());
            if let Some(end) = end.and_then(|id| u32::try_from(id).ok()) {
                keys.ggml("eot_token_id", u32(end));
            }
        }
        "gemma4" if is_class(files, "Gemma4UnifiedForConditionalGeneration") => {
            suppressed(files, keys)?;
        }
        "qwen3vl" if is_class(files, "Qwen3ASRForConditionalGeneration") => {
            turns(files, keys)?;
            let template = GgufMetadataValue::String(CHAT_ML.to_owned());
            keys.set("tokenizer.chat_template".to_owned(), template);
        }
        "qwen3vlmoe" if is_class(files, "Qwen3OmniMoeForConditionalGeneration") => {
            turns(files, keys)?;
        }
        // Tokens that stand around a gap in a text.
        "refact" => {
            for (key, id) in
                [("prefix_token_id", 1), ("suffix_token_id", 3), ("middle_token_id", 2)]
            {
                keys.ggml(key, u32(id));
            }
        }
        "phi2" => keys.ggml_flag("add_bos_token", false),
        "llada" => keys.ggml_flag("add_bos_token", true),
        // BPE of RoBERTa; WordPiece has the key before its tokens.
        "bert" | "nomic-bert" | "nomic-bert-moe" if !has_count => {
            keys.ggml("token_type_count", u32(type_vocab_size(files)));
        }
        "jina-bert-v2" if !has_count => keys.ggml("token_type_count", u32(2)),
        _ => {}
    }
    Ok(())
}

/// What the converter writes for the template of Qwen 3-ASR, which has one for sounds.
const CHAT_ML: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Sets the tokens that begin and end a text to that which ends a turn.
fn turns(files: &TokenizerFiles<'_>, keys: &mut KeyList) -> Result<()> {
    let listed = super::added::listed_in(&files.config)?;
    let end = listed.iter().find(|token| token.content == "<|im_end|>");
    if let Some(id) = end.and_then(|token| u32::try_from(token.id).ok()) {
        for key in ["bos_token_id", "eos_token_id"] {
            keys.ggml(key, GgufMetadataValue::U32(id));
        }
    }
    Ok(())
}

/// Writes the tokens that the model must not generate.
fn suppressed(files: &TokenizerFiles<'_>, keys: &mut KeyList) -> Result<()> {
    let generation = files.request.texts.json("generation_config.json")?;
    let tokens = generation
        .as_ref()
        .and_then(|config| config.get("suppress_tokens")?.as_array());
    let id = |token: &Value| token.as_i64().and_then(|id| i32::try_from(id).ok());
    let tokens: Option<Vec<i32>> = tokens.and_then(|tokens| tokens.iter().map(id).collect());
    keys.ggml_array("suppress_tokens", GgufMetadataArray::I32(tokens.unwrap_or_default()));
    Ok(())
}

/// `type_vocab_size` of the config.
pub(super) fn type_vocab_size(files: &TokenizerFiles<'_>) -> u32 {
    let n = files
        .request
        .config
        .get("type_vocab_size")
        .and_then(Value::as_u64);
    n.and_then(|n| u32::try_from(n).ok()).unwrap_or(1)
}

/// Sets the token that ends a turn, unless the files name another.
fn end_of_turn(files: &TokenizerFiles<'_>, id: u32, keys: &mut KeyList) -> Result<()> {
    let mut special =
        SpecialVocab::read_kinds(files.request.texts, files.json.as_ref(), None, &["eot"])?;
    special.set_id("eot", &Value::from(id), "config.json")?;
    if let Some(id) = special.id("eot").and_then(|id| u32::try_from(id).ok()) {
        keys.ggml("eot_token_id", GgufMetadataValue::U32(id));
    }
    Ok(())
}

/// How the converter takes the added tokens of a SentencePiece model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddedStyle {
    /// Those of tokenizer_config.json; what looks like a control token is one.
    ByLook,
    /// Those of tokenizer_config.json and tokenizer.json, by the flag `special` alone.
    AsFlagged,
}

/// How the converter's class of `architecture` takes added tokens.
pub(super) fn added_style(architecture: &str) -> AddedStyle {
    match architecture {
        "phi3" | "phimoe" | "internlm2" => AddedStyle::AsFlagged,
        _ => AddedStyle::ByLook,
    }
}

impl AddedStyle {
    /// Sets an added token; one that the model has no room for is left out, as by the converter.
    pub(super) fn set(self, table: &mut TokenTable, token: &HfAddedToken) {
        let (text, kind) = match self {
            Self::ByLook => added_token(&token.content, token.special),
            Self::AsFlagged if token.special => (token.content.clone(), TokenType::Control),
            Self::AsFlagged => (token.content.clone(), TokenType::UserDefined),
        };
        if let Ok(id) = usize::try_from(token.id) {
            table.set(id, text, kind, ADDED_SCORE);
        }
    }
}

/// Pieces of InternLM 2 that C++ would take for something else. Added tokens come after that.
pub(super) fn adjust(architecture: &str, model: &SentencePieceModel, table: &mut TokenTable) {
    if architecture != "internlm2" {
        return;
    }
    for (id, piece) in model.pieces.iter().enumerate() {
        // A text of one zero byte ends before it begins.
        if piece.text == "\0" {
            table.set(id, "🐉".to_owned(), piece.kind, piece.score);
        } else if piece.text.starts_with("[UNUSED") {
            table.set(id, piece.text.clone(), TokenType::Unused, piece.score);
        }
    }
}

/// Keys between the tokens of a SentencePiece model and its special tokens.
pub(super) fn between(files: &TokenizerFiles<'_>, model: &SentencePieceModel, keys: &mut KeyList) {
    if files.request.architecture == "internlm2" {
        keys.ggml_flag("add_space_prefix", model.add_dummy_prefix);
    } else if is_internlm3(files) {
        space_prefix(files, keys);
    }
}

/// InternLM's chat models end a turn with a token that the files do not name as EOS.
///
/// # Errors
/// `Parse` if tokenizer_config.json lists tokens in another form.
pub(super) fn special(files: &TokenizerFiles<'_>, special: &mut SpecialVocab) -> Result<()> {
    let is_internlm2 = files.request.architecture == "internlm2";
    if !is_internlm2 && !is_internlm3(files) {
        return Ok(());
    }
    let listed = super::added::listed_in(&files.config)?;
    // Of InternLM 3 only what tokenizer_config.json marks as special counts.
    let json = files.json.iter().flat_map(|json| &json.added_tokens);
    let mut all = listed.iter().chain(json.filter(|_| is_internlm2));
    let is_end =
        |token: &&HfAddedToken| token.content == "<|im_end|>" && (is_internlm2 || token.special);
    if let Some(end) = all.rfind(is_end) {
        special.replace_id("eos", end.id);
    }
    Ok(())
}
