//! Pre-tokenizers: how text is cut before byte pairs are merged. tokenizer.json spells the steps
//! out; a GGUF file has a name in `tokenizer.ggml.pre`, for which llama.cpp has the regexes.
//!
//! llama.cpp's converter finds the name by a hash over the ids of a test text, which differs with
//! the vocabulary and with added tokens. Here the steps themselves are compared. Names whose steps
//! and flags are equal behave alike.

mod classes;

use serde_json::Value;

pub(crate) use self::classes::CLASSES;
use crate::{AnamnesisError, Result};

/// A step of a pre-tokenizer, as tokenizer.json has it in `pre_tokenizer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PreStep<'a> {
    /// `Split` at a regex, with the behavior `Isolated`.
    Split(&'a str),
    /// `Digits`.
    Digits { individual: bool },
    /// `Punctuation` with the behavior `Contiguous`.
    Punctuation,
    /// `ByteLevel` without `add_prefix_space`. With `use_regex` it splits as GPT-2 does.
    ByteLevel { use_regex: bool },
    /// Any other step, of which this is the type. It is equal to none of a class.
    Other(&'a str),
}

/// Names of `tokenizer.ggml.pre` that stand for the same steps.
#[derive(Debug)]
pub(crate) struct PreTokenizerClass {
    /// Sequences of steps in tokenizer.json, all of the same effect; the first is the usual one.
    /// Empty if the steps have no form there that is known.
    pub forms: &'static [&'static [PreStep<'static>]],
    /// Whether the merges of these vocabularies lead to every token, so that `ignore_merges`
    /// changes nothing.
    pub merges_are_complete: bool,
    /// Earlier names take precedence where several fit.
    pub names: &'static [PreTokenizerName],
}

/// A name of `tokenizer.ggml.pre`, with what llama.cpp sets by it (`llama_vocab::impl::load`).
#[derive(Debug)]
pub(crate) struct PreTokenizerName {
    pub name: &'static str,
    /// Whether a word that is a token stays whole, whatever the merges make of it.
    pub ignore_merges: bool,
    /// Whether text begins with BOS if the file has no `tokenizer.ggml.add_bos_token`.
    pub add_bos: bool,
    /// Whether tokenizer.json of these models normalizes text to NFC, which llama.cpp does not.
    pub nfc: bool,
    /// GGUF architectures whose tokenizers have this name.
    pub architectures: &'static [&'static str],
    /// A token that only vocabularies of this name have; empty if there is none.
    pub token: &'static str,
}

/// What chooses the name of a pre-tokenizer.
pub(crate) struct PreTokenizerFacts<'a> {
    pub steps: &'a [PreStep<'a>],
    /// `model.ignore_merges` of tokenizer.json.
    pub ignore_merges: bool,
    /// GGUF architecture.
    pub architecture: &'a str,
    /// Whether the vocabulary has a token.
    pub has_token: &'a dyn Fn(&str) -> bool,
}

/// The class of the name `name` in `tokenizer.ggml.pre`, and the name's own flags; `None` if
/// llama.cpp has no such name.
pub(crate) fn find(name: &str) -> Option<(&'static PreTokenizerClass, &'static PreTokenizerName)> {
    CLASSES.iter().find_map(|class| {
        let row = class.names.iter().find(|row| row.name == name)?;
        Some((class, row))
    })
}

/// Names of pre-tokenizers that work on text whose blanks are `▁`, instead of bytes.
pub(crate) const ON_TEXT: [&str; 4] =
    ["gemma4", "granite-embed-multi-311m", "mmbert", "sarvam-moe"];

/// Checks a name that the caller gave for `tokenizer.ggml.pre`.
///
/// # Errors
/// `Usage` if llama.cpp has no such name.
pub(crate) fn require(name: &str) -> Result<&'static str> {
    match find(name) {
        Some((_, row)) => Ok(row.name),
        None => {
            let names: Vec<_> = CLASSES.iter().flat_map(|class| class.names).collect();
            let names: Vec<_> = names.iter().map(|row| row.name).collect();
            Err(AnamnesisError::usage(format!(
                "--tokenizer-pre: llama.cpp has no pre-tokenizer {name}; it knows {}",
                names.join(", ")
            )))
        }
    }
}

/// The name in `tokenizer.ggml.pre` for a tokenizer.json.
///
/// # Errors
/// `Unsupported` with the steps if no class has them, or if no name of the class has the flag
/// `ignore_merges`.
pub(crate) fn choose(facts: &PreTokenizerFacts<'_>) -> Result<&'static str> {
    let same = |form: &&&[PreStep<'_>]| same_steps(form, facts.steps);
    let Some(class) = CLASSES
        .iter()
        .find(|class| class.forms.iter().any(|form| same(&form)))
    else {
        return Err(unknown(facts.steps));
    };
    let has_flag = |row: &&PreTokenizerName| {
        class.merges_are_complete || row.ignore_merges == facts.ignore_merges
    };
    let fits = |row: &&PreTokenizerName| {
        row.architectures.contains(&facts.architecture)
            || (!row.token.is_empty() && (facts.has_token)(row.token))
    };
    let names = || class.names.iter().filter(has_flag);
    // The first name is the default; one that is for other architectures alone is a default, too,
    // for it behaves alike.
    match names().find(fits).or_else(|| names().next()) {
        Some(row) => Ok(row.name),
        None => Err(AnamnesisError::unsupported(
            format!("pre-tokenizer {}", class.names.first().map_or("", |row| row.name)),
            format!(
                "tokenizer.json: `model.ignore_merges` is {}, and llama.cpp has the steps {} only with the other value; \
                 `--tokenizer-pre NAME` chooses a name in spite of that",
                facts.ignore_merges,
                listed(facts.steps)
            ),
        )),
    }
}

/// The error for steps that no class has.
fn unknown(steps: &[PreStep<'_>]) -> AnamnesisError {
    AnamnesisError::unsupported(
        "pre-tokenizer",
        format!(
            "tokenizer.json: llama.cpp has no name for the steps {}; `--tokenizer-pre NAME` chooses one that splits alike",
            listed(steps)
        ),
    )
}

/// The steps as messages list them.
fn listed(steps: &[PreStep<'_>]) -> String {
    let each: Vec<_> = steps
        .iter()
        .map(|step| match step {
            PreStep::Split(regex) => format!("Split({regex})"),
            PreStep::Digits { individual } => format!("Digits(individual_digits {individual})"),
            PreStep::Punctuation => "Punctuation".to_owned(),
            PreStep::ByteLevel { use_regex } => format!("ByteLevel(use_regex {use_regex})"),
            PreStep::Other(name) => (*name).to_owned(),
        })
        .collect();
    format!("[{}]", each.join(", "))
}

fn same_steps(a: &[PreStep<'_>], b: &[PreStep<'_>]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|pair| match pair {
            (PreStep::Split(a), PreStep::Split(b)) => escaped(a).eq(escaped(b)),
            (PreStep::Other(_), _) | (_, PreStep::Other(_)) => false,
            (a, b) => a == b,
        })
}

/// The characters of a regex, line ends as escapes: files have them in either way.
fn escaped(regex: &str) -> impl Iterator<Item = char> {
    regex
        .chars()
        .flat_map(|c| match c {
            '\r' => [Some('\\'), Some('r')],
            '\n' => [Some('\\'), Some('n')],
            _ => [Some(c), None],
        })
        .flatten()
}

/// Most steps of one pre-tokenizer. Real ones have at most seven.
const MAX_STEPS: usize = 64;

/// The steps of `pre_tokenizer` in tokenizer.json, sequences dissolved.
pub(crate) fn steps(pre_tokenizer: &Value) -> Vec<PreStep<'_>> {
    let mut out = Vec::new();
    flatten(pre_tokenizer, &mut out);
    // Fields that are absent have the defaults of the `tokenizers` library. A `Split` that removes
    // what its regex does not match is the same as one that isolates matches if the regex matches
    // everything. Those that stand alone do.
    let splits = out.iter().filter(|step| matches!(step, Flat::Inverted(_)));
    let alone = splits.count() == 1
        && !out
            .iter()
            .any(|step| matches!(step, Flat::Step(PreStep::Split(_))));
    out.into_iter()
        .map(|step| match step {
            Flat::Step(step) => step,
            Flat::Inverted(regex) if alone => PreStep::Split(regex),
            Flat::Inverted(_) => PreStep::Other("Split(Removed, inverted)"),
        })
        .collect()
}

/// A step, or a `Split` of which everything but the matches is removed.
enum Flat<'a> {
    Step(PreStep<'a>),
    Inverted(&'a str),
}

fn flatten<'a>(step: &'a Value, out: &mut Vec<Flat<'a>>) {
    if step.is_null() || out.len() >= MAX_STEPS {
        return;
    }
    let text = |key: &str| step.get(key).and_then(Value::as_str);
    let flag = |key: &str, default| step.get(key).and_then(Value::as_bool).unwrap_or(default);
    let kind = text("type").unwrap_or("without a type");
    let behavior = text("behavior").unwrap_or("");
    let regex = step.pointer("/pattern/Regex").and_then(Value::as_str);
    out.push(match (kind, regex) {
        ("Sequence", _) => {
            let inner = step.get("pretokenizers").and_then(Value::as_array);
            inner
                .into_iter()
                .flatten()
                .for_each(|step| flatten(step, out));
            return;
        }
        ("Split", Some(regex)) => match (behavior, flag("invert", false)) {
            ("Isolated", false) => Flat::Step(PreStep::Split(regex)),
            ("Removed", true) => Flat::Inverted(regex),
            _ => Flat::Step(PreStep::Other("Split(another behavior)")),
        },
        ("Digits", _) => {
            Flat::Step(PreStep::Digits { individual: flag("individual_digits", false) })
        }
        ("Punctuation", _) if behavior == "Contiguous" => Flat::Step(PreStep::Punctuation),
        ("ByteLevel", _) if !flag("add_prefix_space", true) => {
            Flat::Step(PreStep::ByteLevel { use_regex: flag("use_regex", true) })
        }
        ("ByteLevel", _) => Flat::Step(PreStep::Other("ByteLevel(add_prefix_space true)")),
        (other, _) => Flat::Step(PreStep::Other(other)),
    });
}

#[cfg(test)]
mod tests;
