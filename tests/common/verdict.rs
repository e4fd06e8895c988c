//! Checks of errors: their kind, and words of their message.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::fmt::Display;

use anamnesis::{AnamnesisError, ParsedModel, Result, TargetDtype};

use super::{Raw, file, raw};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Parse,
    Unsupported,
    Limit,
    Usage,
}
pub use Kind::{Limit, Parse, Unsupported, Usage};

/// Tensors of zeros from a list `name dtype dim,dim; …`, where `()` is the shape of a scalar. `name
/// TEXT text` is a U8 tensor with that text.
pub fn tensors(text: &str) -> Vec<Raw> {
    let one = |t: &str| {
        let [name, dtype, dims] = t.split_whitespace().collect::<Vec<_>>().try_into().unwrap();
        if dtype == "TEXT" {
            return raw(name, "U8", &[dims.len()], dims.into());
        }
        let shape: Vec<usize> = dims
            .split(',')
            .filter(|d| *d != "()")
            .map(|d| d.parse().unwrap())
            .collect();
        let (dtype, bits) = super::find_dtype(dtype).unwrap();
        let elements = if shape.contains(&0) {
            0
        } else {
            shape.iter().product::<usize>()
        };
        raw(name, dtype, &shape, vec![0; elements * bits / 8])
    };
    text.split(';')
        .filter(|t| !t.trim().is_empty())
        .map(one)
        .collect()
}

/// Parses `bytes` with `configs` (file name, content) beside them.
pub fn parse_beside(bytes: &[u8], configs: &[(&str, &str)]) -> Result<ParsedModel> {
    let directory = crate::common::tempdir().unwrap();
    std::fs::write(directory.path().join("model.safetensors"), bytes).unwrap();
    configs
        .iter()
        .for_each(|(name, text)| std::fs::write(directory.path().join(name), text).unwrap());
    anamnesis::parse(directory.path().join("model.safetensors"))
}

/// Decodes `bytes` to F32, with the `quantization_config` `config` beside them unless it is empty.
pub fn recover(bytes: Vec<u8>, config: &str) -> Result<Vec<u8>> {
    let model = match config {
        "" => anamnesis::parse_bytes(bytes)?,
        _ => parse_beside(
            &bytes,
            &[("config.json", &format!(r#"{{"quantization_config":{config}}}"#))],
        )?,
    };
    let result = model.remember_to_bytes(TargetDtype::F32);
    let (info, said) = (model.inspect(), result.as_ref().err().map(ToString::to_string));
    assert!(
        info.problems.is_empty() || said == Some(info.problems[0].clone()),
        "{said:?} {:?}",
        info.problems
    );
    result
}

/// `None` if `result` is an error of `kind` whose message has all of `words`, else a description of
/// the difference.
pub fn verdict<T>(result: Result<T>, kind: Kind, words: &[&str]) -> Option<String> {
    let Err(error) = result else {
        return Some("no error".to_owned());
    };
    let got = match error {
        AnamnesisError::Parse { .. } => Some(Parse),
        AnamnesisError::Unsupported { .. } => Some(Unsupported),
        AnamnesisError::LimitExceeded { .. } => Some(Limit),
        AnamnesisError::Usage { .. } => Some(Usage),
        _ => None,
    };
    let text = error.to_string();
    if let Some(name) = named_twice(&text) {
        return Some(format!("`{name}` is named twice: {text}"));
    }
    let lacking: Vec<_> = words.iter().filter(|w| !text.contains(**w)).collect();
    (got != Some(kind) || !lacking.is_empty())
        .then(|| format!("wanted {kind:?} with {lacking:?}: {text}"))
}

/// The tensor or array that `text` names more than once as what the error is about.
fn named_twice(text: &str) -> Option<&str> {
    ["tensor `", "array `"].iter().find_map(|kind| {
        let names: Vec<&str> = text
            .split(kind)
            .skip(1)
            .filter_map(|rest| Some(rest.split_once('`')?.0))
            .collect();
        let twice = |(i, name): (usize, &&str)| names[..i].contains(name);
        let i = names.iter().enumerate().position(twice)?;
        Some(names[i])
    })
}

/// [`verdict`] of the value that `result` returns. A panic is a difference too.
pub fn verdict_of<T>(
    result: impl FnOnce() -> Result<T>,
    kind: Kind,
    words: &[&str],
) -> Option<String> {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(result));
    caught.map_or_else(|_| Some("panic".to_owned()), |result| verdict(result, kind, words))
}

/// As [`check`], of rows of a list of tensors, a config and what is expected.
pub fn check_rows<T: Display, C: Display>(rows: &[(T, C, &str)]) {
    let lines = rows
        .iter()
        .map(|(list, config, expected)| format!("{list} | {config} | {expected}"));
    check(&lines.collect::<Vec<_>>().join("\n"));
}

/// Checks every line of `table`, `tensors | quantization_config | kind: word & word`, and reports
/// all lines that fail.
pub fn check(table: &str) {
    let mut failures = String::new();
    for line in table
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
    {
        let [list, config, expected] = line
            .split(" | ")
            .map(str::trim)
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        let (kind, words) = expected.split_once(": ").unwrap();
        let kind = [Parse, Unsupported]
            .into_iter()
            .find(|k| format!("{k:?}") == kind)
            .unwrap();
        let bytes = file(&tensors(list), &[]);
        let wrong =
            verdict_of(|| recover(bytes, config), kind, &words.split(" & ").collect::<Vec<_>>());
        failures.extend(wrong.map(|w| format!("\n{list:.300} | {config}\n    {w}")));
    }
    assert!(failures.is_empty(), "{failures}");
}
