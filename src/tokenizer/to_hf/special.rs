//! [`SpecialTokens`]: ids of tokens with a meaning, and which of them stand before and after a
//! text.

use std::collections::BTreeMap;

use super::json::{PostProcessor, TemplatePiece, TemplateToken};
use super::keys::{GgufTokenizer, malformed};
use super::vocabulary::Vocabulary;
use crate::Result;

/// Ids of tokens with a meaning.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SpecialTokens {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub sep: Option<u32>,
    pub pad: Option<u32>,
    pub cls: Option<u32>,
    pub mask: Option<u32>,
    /// Whether BOS stands before a text.
    pub add_bos: bool,
    /// Whether EOS stands after a text.
    pub add_eos: bool,
    /// Whether SEP stands between two texts.
    pub add_sep: bool,
}

impl SpecialTokens {
    /// Reads the ids of `tokens` tokens; what the file does not say is as in `defaults`. An id out of
    /// range of those that no text gets is none: a [note](Self::notes_of_missing) says so.
    ///
    /// # Errors
    /// `Parse` if a value is of another type, or another id is out of range.
    pub(super) fn read(keys: GgufTokenizer<'_>, tokens: usize, defaults: Self) -> Result<Self> {
        let in_range = |id: &u32| (*id as usize) < tokens;
        let id = |name: &str, default: Option<u32>| -> Result<_> {
            if IN_NO_TEXT.contains(&name) && missing(keys, name, tokens)?.is_some() {
                return Ok(None);
            }
            let found = keys.token_id(&id_key(name), tokens)?;
            Ok(found.or(default.filter(in_range)))
        };
        let flag = |name: &str, default: bool| -> Result<_> {
            let found = keys.flag(&format!("tokenizer.ggml.add_{name}_token"))?;
            Ok(found.unwrap_or(default))
        };
        // `seperator` is the format's own spelling.
        Ok(Self {
            bos: id("bos", defaults.bos)?,
            eos: id("eos", defaults.eos)?,
            unk: id("unknown", defaults.unk)?,
            sep: id("seperator", defaults.sep)?,
            pad: id("padding", defaults.pad)?,
            cls: id("cls", defaults.cls)?,
            mask: id("mask", defaults.mask)?,
            add_bos: flag("bos", defaults.add_bos)?,
            add_eos: flag("eos", defaults.add_eos)?,
            add_sep: flag("sep", defaults.add_sep)?,
        })
    }

    /// What is said of ids of tokens that are not there, and are left out.
    ///
    /// # Errors
    /// `Parse` if a value is of another type.
    pub(super) fn notes_of_missing(keys: GgufTokenizer<'_>, tokens: usize) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        for name in IN_NO_TEXT {
            if let Some(id) = missing(keys, name, tokens)? {
                notes.push(format!(
                    "metadata key `{}` is left out, as llama.cpp does: there is no token {id} among {tokens}",
                    id_key(name)
                ));
            }
        }
        Ok(notes)
    }

    /// Every id with its name in `tokenizer_config.json`, in alphabetical order.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, u32)> {
        [
            ("bos_token", self.bos),
            ("cls_token", self.cls),
            ("eos_token", self.eos),
            ("mask_token", self.mask),
            ("pad_token", self.pad),
            ("sep_token", self.sep),
            ("unk_token", self.unk),
        ]
        .into_iter()
        .filter_map(|(name, id)| Some((name, id?)))
    }

    /// The template that puts the tokens around one text and around two.
    ///
    /// # Errors
    /// `Parse` if the file says that a token is added, and not which.
    pub(super) fn template(&self, vocabulary: &Vocabulary) -> Result<Option<PostProcessor>> {
        let added = |add: bool, name: &str, id: Option<u32>| match (add, id) {
            (false, _) => Ok(None),
            (true, Some(id)) => Ok(Some(id)),
            (true, None) => Err(malformed(
                &format!("tokenizer.ggml.add_{name}_token"),
                format_args!("there is no `tokenizer.ggml.{name}_token_id`"),
            )),
        };
        let bos = added(self.add_bos, "bos", self.bos)?;
        let eos = added(self.add_eos, "eos", self.eos)?;
        // RoBERTa and its kin: `<s> A </s> </s> B </s>`.
        let second = match self.sep.filter(|_| self.add_sep && eos.is_some()) {
            Some(sep) => (Some(sep), 0),
            None => (bos, 1),
        };
        Ok(Template { vocabulary }.around(bos, eos, second))
    }

    /// BERT's template: `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`. llama.cpp adds both whatever
    /// the file says (`llama_vocab::impl::tokenize`).
    pub(super) fn bert_template(&self, vocabulary: &Vocabulary) -> Option<PostProcessor> {
        Template { vocabulary }.around(self.cls, self.sep, (None, 1))
    }
}

/// Tokens that are put around no text.
const IN_NO_TEXT: [&str; 2] = ["padding", "mask"];

/// The key of the id of a special token.
fn id_key(name: &str) -> String {
    format!("tokenizer.ggml.{name}_token_id")
}

/// The id of a special token, if there are not as many tokens.
fn missing(keys: GgufTokenizer<'_>, name: &str, tokens: usize) -> Result<Option<u64>> {
    Ok(keys
        .number(&id_key(name))?
        .filter(|id| *id >= tokens as u64))
}

/// Makes templates with the texts of tokens.
struct Template<'a> {
    vocabulary: &'a Vocabulary,
}

impl Template<'_> {
    /// `first A last`, and the same followed by `second.0 B last`, whose type is `second.1`.
    fn around(
        &self,
        first: Option<u32>,
        last: Option<u32>,
        second: (Option<u32>, u32),
    ) -> Option<PostProcessor> {
        if first.is_none() && last.is_none() {
            return None;
        }
        let single = self.text(first, "A", last, 0);
        let mut pair = single.clone();
        pair.extend(self.text(second.0, "B", last, second.1));
        let tokens = [first, last, second.0].into_iter().flatten();
        let special_tokens: BTreeMap<_, _> = tokens
            .map(|id| {
                let text = self.token(id);
                let token = TemplateToken { id: text.clone(), ids: [id], tokens: [text.clone()] };
                (text, token)
            })
            .collect();
        Some(PostProcessor::TemplateProcessing { single, pair, special_tokens })
    }

    fn text(
        &self,
        before: Option<u32>,
        text: &'static str,
        after: Option<u32>,
        type_id: u32,
    ) -> Vec<TemplatePiece> {
        let special = |id: u32| TemplatePiece::SpecialToken { id: self.token(id), type_id };
        let sequence = TemplatePiece::Sequence { id: text, type_id };
        let before = before.map(special).into_iter();
        let after = after.map(special);
        before.chain([sequence]).chain(after).collect()
    }

    fn token(&self, id: u32) -> String {
        self.vocabulary.tokens[id as usize].clone()
    }
}
