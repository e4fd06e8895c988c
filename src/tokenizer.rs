//! Tokenizers between the files of Hugging Face (tokenizer.json, tokenizer.model and their configs) and the keys
//! `tokenizer.*` of a GGUF file, as llama.cpp's converter writes them.

pub(crate) mod pre;
mod to_hf;

pub(crate) use self::to_hf::from_gguf;

use crate::Result;
use crate::config::Texts;
use crate::containers::model::gguf::GgufMetadataValue;
pub(crate) struct TokenizerRequest<'a> {
    pub texts: &'a Texts,
    pub config: &'a serde_json::Value,
    pub vocab_size: usize,
    pub pre: Option<&'a str>,
    pub architecture: &'a str,
}
pub(crate) struct TokenizerKeys {
    pub keys: Vec<(String, GgufMetadataValue)>,
    pub tokens: usize,
}
pub(crate) fn to_gguf(request: &TokenizerRequest<'_>) -> Result<TokenizerKeys> {
    let _ = (
        request.texts,
        request.config,
        request.pre,
        request.architecture,
    );
    Ok(TokenizerKeys {
        keys: vec![],
        tokens: request.vocab_size,
    })
}
