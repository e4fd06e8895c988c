//! What tokenizer.json does to a text before the merges of SentencePiece: blanks become `▁`, and one
//! may be put in front. llama.cpp does these two, and nothing else.

use serde_json::Value;

use super::file::{HfTokenizerFile, TOKENIZER_JSON};
use crate::{AnamnesisError, Result};

/// The steps of a tokenizer.json.
pub(super) struct TextSteps {
    /// Whether a blank is put in front of a text.
    pub has_prefix: bool,
    /// Whether blanks become `▁`.
    has_blanks: bool,
    /// Steps that llama.cpp does not have.
    others: Vec<String>,
    /// Texts that get no blank in front, and do in llama.cpp.
    without_prefix: Option<&'static str>,
}

/// Most steps of one kind. Real ones have at most three.
const MAX_STEPS: usize = 64;

impl TextSteps {
    /// # Errors
    /// `Unsupported` if text is decoded in another way.
    pub(super) fn read(json: &HfTokenizerFile) -> Result<Self> {
        if kind(&json.decoder) != "Sequence" {
            return Err(AnamnesisError::unsupported(
                "tokenizer BPE with byte_fallback",
                format!(
                    "{TOKENIZER_JSON}: llama.cpp's converter needs a `decoder` of the type Sequence"
                ),
            ));
        }
        let mut out =
            Self { has_prefix: false, has_blanks: false, others: Vec::new(), without_prefix: None };
        for step in flat(&json.normalizer, "normalizers") {
            out.normalize(step);
        }
        for step in flat(&json.pre_tokenizer, "pretokenizers") {
            out.cut(step);
        }
        Ok(out)
    }

    fn normalize(&mut self, step: &Value) {
        let text = |pointer: &str| step.pointer(pointer).and_then(Value::as_str);
        match kind(step) {
            "Prepend" if text("/prepend") == Some("▁") => self.has_prefix = true,
            "Replace" if text("/pattern/String") == Some(" ") && text("/content") == Some("▁") => {
                self.has_blanks = true;
            }
            // It makes no difference for nearly all text.
            "NFC" => {}
            other => self.others.push(format!("normalizer {other}")),
        }
    }

    fn cut(&mut self, step: &Value) {
        let text = |pointer: &str| step.pointer(pointer).and_then(Value::as_str);
        let flag = |key: &str| step.get(key).and_then(Value::as_bool).unwrap_or(true);
        match kind(step) {
            "Metaspace" => {
                self.has_blanks = true;
                let scheme = text("/prepend_scheme");
                self.has_prefix |= match scheme {
                    Some(scheme) => scheme != "never",
                    None => flag("add_prefix_space"),
                };
                self.without_prefix = self.has_prefix.then_some(match scheme {
                    Some("first") => "a text that begins with one or follows a special token",
                    _ => "a text that begins with one",
                });
                if flag("split") {
                    self.others
                        .push("pre-tokenizer Metaspace that splits".to_owned());
                }
            }
            // There is no blank left to split at.
            "Split" if self.has_blanks && text("/pattern/String") == Some(" ") => {}
            other => self.others.push(format!("pre-tokenizer {other}")),
        }
    }

    /// What a user should know of a tokenizer that llama.cpp does not follow in everything.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut others = self.others.clone();
        if !self.has_blanks {
            others.push("tokens with blanks instead of `▁`".to_owned());
        }
        if !others.is_empty() {
            let others = others.join(", ");
            notes.push(format!(
                "{TOKENIZER_JSON}: llama.cpp has no {others}: some texts get other tokens there"
            ));
        }
        if let Some(texts) = self.without_prefix {
            notes.push(format!(
                "{TOKENIZER_JSON}: Metaspace puts no blank in front of {texts}; llama.cpp does"
            ));
        }
        notes
    }
}

/// The type of a step; empty if there is none.
fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// A step, or the steps of a sequence.
fn flat<'a>(step: &'a Value, inner: &str) -> impl Iterator<Item = &'a Value> {
    let steps = match step.get(inner).and_then(Value::as_array) {
        Some(steps) => steps.as_slice(),
        None => std::slice::from_ref(step),
    };
    steps.iter().filter(|step| !step.is_null()).take(MAX_STEPS)
}
