//! Bundles of LiteRT-LM (`.litertlm`): a header that names sections, of which some are models of
//! LiteRT. Others hold tokenizers and settings of the runtime.
//!
//! Format: [`litertlm_header_schema.fbs`](https://github.com/google-ai-edge/LiteRT-LM/blob/main/schema/core/litertlm_header_schema.fbs).

use std::collections::HashMap;
use std::ops::Range;

use super::{finish, read_range};
use crate::limits::Budget;
use crate::parse::flatbuffer::{FlatBuffer, FlatTable};
use crate::source::Source;
use crate::{AnamnesisError, Container, ParsedModel, Result};

/// Where the header begins: behind the mark, three numbers of the version, and the header's end.
const HEADER_AT: u64 = 32;

/// The major version that is read. Sections are only added in later minor ones.
const VERSION: u32 = 1;

/// Numbers of kinds of sections.
const TFLITE_MODEL: u8 = 3;
const DEPRECATED: u8 = 2;

/// Names of the kinds of sections, by their numbers.
const KINDS: [&str; 12] = [
    "NONE",
    "GenericBinaryData",
    "Deprecated",
    "TFLiteModel",
    "SP_Tokenizer",
    "LlmMetadataProto",
    "HF_Tokenizer_Zlib",
    "TFLiteWeights",
    "EmbeddingMetadataProto",
    "ExecutorMetadataProto",
    "TtsMetadataProto",
    "AsrMetadataProto",
];

/// The value of a pair that is a text.
const STRING: u8 = 9;

/// A section of the file.
struct Section {
    /// What kind of model it is, or belongs to. Empty if the file does not say.
    model_type: String,
    kind: u8,
    range: Range<u64>,
}

fn wrong(what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("LiteRT-LM: {what}"))
}

/// Reads the models in a bundle. If there are several, what kind of model each is comes before the
/// names of its tensors.
///
/// # Errors
/// `Parse` if it is malformed; `Unsupported` for another version; those of reading a model.
pub(in crate::parse) fn read(source: &Source, budget: &Budget) -> Result<ParsedModel> {
    let len = source.len().unwrap_or(0);
    budget.tables(0, 0, len)?;
    let mut contents = ParsedModel::new(Container::Tflite, 0);
    contents.sources.push(source.share());
    let sections = sections(source, len, &mut contents, budget)?;
    let is_model = |s: &&Section| s.kind == TFLITE_MODEL;
    let names = names(&sections);
    for (section, name) in sections.iter().zip(&names) {
        if !is_model(&section) {
            continue;
        }
        let before = match names.len() {
            _ if sections.iter().filter(is_model).count() == 1 => String::new(),
            _ => format!("{name}."),
        };
        let added = read_range(&mut contents, source, section.range.clone(), &before, budget);
        added.map_err(|error| error.about(format_args!("section `{name}`")))?;
    }
    let others = sections
        .iter()
        .filter(|s| ![TFLITE_MODEL, DEPRECATED].contains(&s.kind));
    let others: Vec<&str> = others.map(|s| kind_name(s.kind)).collect();
    if !others.is_empty() {
        contents
            .notes
            .push(format!("sections that are no models are left out: {}", others.join(", ")));
    }
    if !sections.iter().any(|s| is_model(&s)) {
        return Err(wrong("no section is a model"));
    }
    finish(&mut contents, len);
    Ok(contents)
}

fn kind_name(kind: u8) -> &'static str {
    KINDS
        .get(usize::from(kind))
        .copied()
        .unwrap_or("of a later version")
}

/// What each section is called: the kind of its model, with its number where several have one.
fn names(sections: &[Section]) -> Vec<String> {
    let models = || sections.iter().filter(|s| s.kind == TFLITE_MODEL);
    let mut counts: HashMap<&str, usize> = HashMap::new();
    models().for_each(|s| *counts.entry(&s.model_type).or_default() += 1);
    let name = |(i, s): (usize, &Section)| match s.model_type.as_str() {
        "" => format!("section_{i}"),
        one if counts.get(one) > Some(&1) => format!("{one}_{i}"),
        one => one.to_owned(),
    };
    sections.iter().enumerate().map(name).collect()
}

/// Reads the header: the sections, and what the file says of itself into `contents`.
fn sections(
    source: &Source,
    len: u64,
    contents: &mut ParsedModel,
    budget: &Budget,
) -> Result<Vec<Section>> {
    let mut head = [0; HEADER_AT as usize];
    if len < HEADER_AT {
        return Err(wrong("it is truncated"));
    }
    source.read_at(0, &mut head)?;
    let number = |at: usize| u32::from_le_bytes(*head[at..].first_chunk().unwrap_or(&[0; 4]));
    let [major, minor, patch] = [8, 12, 16].map(number);
    let version = format!("{major}.{minor}.{patch}");
    if major != VERSION {
        let what = format!("LiteRT-LM version {version}");
        return Err(AnamnesisError::unsupported(what, "version 1 is read"));
    }
    let end = u64::from_le_bytes(*head[24..].first_chunk().unwrap_or(&[0; 8]));
    if !(HEADER_AT..=len).contains(&end) {
        return Err(wrong(format!("its header ends at {end}, and it has {len} bytes")));
    }
    contents
        .metadata
        .insert("litertlm.version".to_owned(), version);
    let mut file = FlatBuffer::new(source, HEADER_AT..end);
    let root = file.root()?;
    if let Some(system) = file.child(&root, 0)? {
        for (key, value) in texts(&mut file, &system, budget)? {
            contents
                .metadata
                .entry(format!("litertlm.{key}"))
                .or_insert(value);
        }
    }
    let list = file
        .child(&root, 1)?
        .ok_or_else(|| wrong("it has no sections"))?;
    let objects = file.vector(&list, 0, 4)?;
    let mut found = Vec::new();
    for i in 0..objects.len {
        budget.items(1, "sections")?;
        budget.tables(1, 0, 0)?;
        let object = file.item(objects, i)?;
        let [begin, stop] = [1, 2].map(|id| file.number(&object, id));
        let [begin, stop] = [begin?, stop?].map(|n| n.map_or(0, u64::from_le_bytes));
        let kind = file.byte(&object, 3)?;
        if begin < end || stop < begin || stop > len {
            let kind = kind_name(kind);
            let what = format!("section {i} ({kind}) is bytes {begin} to {stop} of {len}");
            return Err(wrong(what));
        }
        let texts = texts(&mut file, &object, budget)?;
        let model_type = texts.into_iter().find(|(key, _)| key == "model_type");
        let model_type = model_type.map_or_else(String::new, |(_, value)| value);
        found.push(Section { model_type, kind, range: begin..stop });
    }
    check_overlap(&found)?;
    Ok(found)
}

/// Fails if two sections share bytes: no writer makes such a file.
fn check_overlap(sections: &[Section]) -> Result<()> {
    let mut ranges: Vec<&Range<u64>> = sections.iter().map(|s| &s.range).collect();
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    for pair in ranges.windows(2) {
        if pair[0].end > pair[1].start {
            let (a, b) = (pair[0].start, pair[1].start);
            return Err(wrong(format!("the sections at {a} and {b} overlap")));
        }
    }
    Ok(())
}

/// The pairs of the first field of `table` whose values are texts.
fn texts(
    file: &mut FlatBuffer<'_>,
    table: &FlatTable,
    budget: &Budget,
) -> Result<Vec<(String, String)>> {
    let pairs = file.vector(table, 0, 4)?;
    let mut found = Vec::new();
    for i in 0..pairs.len {
        let pair = file.item(pairs, i)?;
        if file.byte(&pair, 1)? != STRING {
            continue;
        }
        let Some(value) = file.child(&pair, 2)? else {
            continue;
        };
        let (key, value) = (file.text(&pair, 0)?, file.text(&value, 0)?);
        // Pairs may share tables and texts.
        budget.tables(0, 1 + (key.len() + value.len()) as u64 / 64, 0)?;
        found.push((key, value));
    }
    Ok(found)
}
