//! What a class of the converter adds to a tokenizer's keys (`set_vocab` in `conversion/*.py`): rows
//! that the tables of families are made of.

use serde_json::Value;

use super::TokenizerFiles;
use super::added::AddedTokens;
use super::file::HfAddedToken;
use super::keys::{ADDED_SCORE, KeyList, TokenTable, TokenType, added_token};
use super::sentencepiece_model::SentencePieceModel;
use super::special::SpecialVocab;
use crate::Result;
use crate::model::gguf::GgufMetadataValue;

/// What the converter has of a class's tokenizer alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenizerRules {
    /// A number, by the config, whose next multiple `vocab_size` becomes.
    pub multiple: fn(&Value) -> usize,
    /// Keys before those of the tokenizer.
    pub before: &'static [KeyRule],
    /// Keys between the tokens of a SentencePiece model and its special tokens.
    pub between: &'static [KeyRule],
    /// Keys after those of the tokenizer.
    pub after: &'static [KeyRule],
    /// Special tokens of byte-level BPE by their texts, besides those that the files name.
    pub by_text: &'static [(&'static str, &'static str)],
    /// Changes the special tokens of a SentencePiece model.
    pub special: Option<fn(&TokenizerFiles<'_>, &mut SpecialVocab) -> Result<()>>,
    /// Changes the pieces of a SentencePiece model, before tokens are added.
    pub pieces: Option<fn(&SentencePieceModel, &mut TokenTable)>,
    /// How the added tokens of a SentencePiece model are taken.
    pub added: AddedStyle,
    /// Writes the keys of a tokenizer in a file of its own, and returns the number of tokens.
    pub own: Option<fn(&TokenizerFiles<'_>, &mut KeyList) -> Result<usize>>,
}

/// A key that the converter writes for a class.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KeyRule {
    Flag(&'static str, bool),
    Id(&'static str, u32),
    /// `add_space_prefix` as `add_prefix_space` in tokenizer_config.json, if it is there.
    SpacePrefix,
    /// `add_space_prefix` as a SentencePiece model has it; for [`TokenizerRules::between`].
    DummyPrefix,
    /// `token_type_count` as the config has it, if no other key says it.
    TokenTypes,
    /// The chat template, in place of that of the files.
    Template(&'static str),
    /// Keys of one family.
    Own(fn(&TokenizerFiles<'_>, &mut KeyList) -> Result<()>),
}

/// How the converter takes the added tokens of a SentencePiece model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddedStyle {
    /// Those of tokenizer_config.json; what looks like a control token is one.
    ByLook,
    /// Those of tokenizer_config.json and tokenizer.json, by the flag `special` alone.
    AsFlagged,
}

impl TokenizerRules {
    /// Nothing beyond what all classes have.
    pub(crate) const PLAIN: Self = Self {
        multiple: |_| 1,
        before: &[],
        between: &[],
        after: &[],
        by_text: &[],
        special: None,
        pieces: None,
        added: AddedStyle::ByLook,
        own: None,
    };

    /// `vocab_size`, padded.
    pub(super) fn padded(&self, config: &Value, vocab_size: usize) -> usize {
        let multiple = (self.multiple)(config).max(1);
        vocab_size
            .checked_next_multiple_of(multiple)
            .unwrap_or(usize::MAX)
    }

    /// Sets special tokens by their texts.
    ///
    /// # Errors
    /// Those of setting an id.
    pub(super) fn add_by_text(
        &self,
        added: &AddedTokens<'_>,
        special: &mut SpecialVocab,
    ) -> Result<()> {
        for (kind, text) in self.by_text {
            if let Some(token) = added.get(text) {
                special.set_id(kind, &Value::from(token.id), "tokenizer.json")?;
            }
        }
        Ok(())
    }
}

impl KeyRule {
    /// Writes the keys of `rules`, of a tokenizer with a SentencePiece `model` if it has one.
    ///
    /// # Errors
    /// Those of a family's own rules.
    pub(super) fn write_all(
        rules: &[Self],
        files: &TokenizerFiles<'_>,
        model: Option<&SentencePieceModel>,
        keys: &mut KeyList,
    ) -> Result<()> {
        rules
            .iter()
            .try_for_each(|rule| rule.write(files, model, keys))
    }

    fn write(
        self,
        files: &TokenizerFiles<'_>,
        model: Option<&SentencePieceModel>,
        keys: &mut KeyList,
    ) -> Result<()> {
        match self {
            Self::Flag(key, flag) => keys.ggml_flag(key, flag),
            Self::Id(key, id) => keys.ggml_number(key, id),
            Self::SpacePrefix => {
                if let Some(Value::Bool(flag)) = files.config.get("add_prefix_space") {
                    keys.ggml_flag("add_space_prefix", *flag);
                }
            }
            Self::DummyPrefix => {
                if let Some(model) = model {
                    keys.ggml_flag("add_space_prefix", model.add_dummy_prefix);
                }
            }
            Self::TokenTypes => {
                if keys.get("tokenizer.ggml.token_type_count").is_none() {
                    files.write_token_types(keys);
                }
            }
            Self::Template(text) => {
                let text = GgufMetadataValue::String(text.to_owned());
                keys.set("tokenizer.chat_template".to_owned(), text);
            }
            Self::Own(write) => write(files, keys)?,
        }
        Ok(())
    }
}

impl TokenizerFiles<'_> {
    /// Writes `token_type_count`, which is `type_vocab_size` of the config.
    pub(super) fn write_token_types(&self, keys: &mut KeyList) {
        let n = self
            .request
            .config
            .get("type_vocab_size")
            .and_then(Value::as_u64);
        let n = n.and_then(|n| u32::try_from(n).ok()).unwrap_or(1);
        keys.ggml_number("token_type_count", n);
    }

    /// Sets the token that ends a turn, unless the files name another.
    ///
    /// # Errors
    /// Those of reading special tokens.
    pub(crate) fn write_end_of_turn(&self, id: u32, keys: &mut KeyList) -> Result<()> {
        let mut special =
            SpecialVocab::read_kinds(self.request.texts, self.json.as_ref(), None, &["eot"])?;
        special.set_id("eot", &Value::from(id), "config.json")?;
        if let Some(id) = special.id("eot").and_then(|id| u32::try_from(id).ok()) {
            keys.ggml_number("eot_token_id", id);
        }
        Ok(())
    }

    /// The tokens that tokenizer_config.json lists.
    ///
    /// # Errors
    /// `Parse` if they have another form.
    pub(crate) fn listed_tokens(&self) -> Result<Vec<HfAddedToken>> {
        super::added::listed_in(&self.config)
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
