//! Tokenizers between the files of Hugging Face (tokenizer.json, tokenizer.model and their configs)
//! and the keys `tokenizer.*` of a GGUF file, as llama.cpp's converter writes them.

pub(crate) mod kept;
pub(crate) mod pre;
mod to_gguf;
mod to_hf;

pub(crate) use self::to_gguf::{
    AddedStyle, KeyList, KeyRule, SentencePieceModel, SpecialVocab, TokenTable, TokenType,
    TokenizerFiles, TokenizerKeys, TokenizerRequest, TokenizerRules, to_gguf,
};
pub(crate) use self::to_hf::from_gguf;
