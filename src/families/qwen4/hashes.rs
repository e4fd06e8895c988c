//! A table with rows for the last tokens, which a layer of Qwen 4 reads by hashes. In transformers it
//! has many parts, and numbers of hashes are tensors of integers; GGUF has one tensor, and keys.

use serde_json::{Map, Value};

use super::STATE;
use crate::error::InTensor;
use crate::families::engine::dims::{Dims, MOST_LAYERS};
use crate::families::engine::fields::{Fields, LAYER_KINDS, LAYERS, array, wrong};
use crate::families::engine::integers::read;
use crate::families::engine::names::{Place, fill, find, of_language_model};
use crate::families::engine::rows::*;
use crate::families::engine::source::{Rearrangement, SourceRows, SourceTensor, assembled};
use crate::model::gguf::GgufMetadataArray;
use crate::remember::layout::assembled::{Change, ComputedIntegers, RowOrder};
use crate::remember::{Group, QuantScheme, ResolvedItem};
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

/// Whether each layer reads the table, and one more. No config has this list.
const READERS: &str = "layers that read the table of hashes";
const READS: &str = "reads";
const READER: Need = Need::KindIn(READERS, READS);
/// The length of a row of the table. No config has this field.
const ROW: &str = "length of a row of the table of hashes";
/// The token that ends what hashes see. No config has this field.
const END: &str = "token that ends what hashes see";

/// Numbers of hashes, by the keys of GGUF and the ends of names of tensors.
const MULTIPLIERS: &str = "layer_multipliers";
const OFFSETS: &str = "ngram_heads_offsets";
const COUNTS: &str = "ngram_heads_vocab_sizes";
const NUMBERS: [&str; 3] = [MULTIPLIERS, OFFSETS, COUNTS];

const READING: &str = "ple_layer_ids";
pub(super) const NGRAM: &str = "ngram_size";
pub(super) const HASHES_OF_SIZE: &str = "heads_per_ngram";
/// Fields that say nothing of a model without a table.
const OF_TABLE: &[&str] = &[NGRAM, HASHES_OF_SIZE, "ple_conv_kernel_size", "image_token_id"];

/// A vector that is stored with 1 added, whose name in GGUF does not say so.
const fn plus_one(rule: TensorRule) -> TensorRule {
    TensorRule { transform: Transform::Reshaped(Change::PlusOne), ..rule }
}

/// The table, with all its parts, and what a layer has to read it.
pub(super) const TABLE: &[TensorRule] = &[
    only(Need::With(ROW), "per_layer_token_embd", JOINED, &[Field("ngram rows"), Field(ROW)]),
    only(READER, "blk.{i}.ple_key", "model.layers.{i}.ple.key_proj", &[STATE, Hidden]),
    only(READER, "blk.{i}.ple_value", "model.layers.{i}.ple.value_proj", &[Hidden, Hidden]),
    plus_one(only(READER, "blk.{i}.ple_norm_key", "model.layers.{i}.ple.norm_key", &[STATE])),
    plus_one(only(READER, "blk.{i}.ple_norm_query", "model.layers.{i}.ple.norm_query", &[STATE])),
    plus_one(only(READER, "blk.{i}.ple_norm_conv", "model.layers.{i}.ple.norm_conv", &[STATE])),
    TensorRule {
        transform: Transform::RESHAPED,
        gguf_shape: Some(&[STATE, Field("ple_conv_kernel_size")]),
        ..only(
            READER,
            "blk.{i}.ple_conv1d",
            "model.layers.{i}.ple.conv1d",
            &[STATE, One, Field("ple_conv_kernel_size")],
        )
    },
];

/// Its keys.
pub(super) const HASHES: &[Setting] = &[
    setting(Kind::Own(&READERS_OF_TABLE), "ple.layers", &[READING]),
    count("ple.ngram_size", &[NGRAM]),
    count("ple.heads_per_ngram", &[HASHES_OF_SIZE]),
    count("ple.conv_kernel", &["ple_conv_kernel_size"]),
    count("ple.eos_token_id", &[END]),
    count("ple.image_token_id", &["image_token_id"]),
    count("embedding_length_per_layer_input", &[ROW]),
    setting(Kind::Own(&WIDE), "ple.layer_multipliers", &[MULTIPLIERS]),
    setting(Kind::Own(&WIDE), "ple.head_offsets", &[OFFSETS]),
    setting(Kind::Own(&WIDE), "ple.head_vocab_sizes", &[COUNTS]),
];

/// The layer that reads the table, counted from 0.
fn reader(fields: &Map<String, Value>) -> Result<Option<usize>> {
    let listed = fields.get(READING).and_then(Value::as_array);
    let layers = fields.get(LAYERS[0]).and_then(Value::as_u64);
    match listed.map(Vec::as_slice) {
        None | Some([]) => Ok(None),
        Some([one]) => {
            let layer = one.as_u64().filter(|&at| at > 0 && Some(at) <= layers);
            let layer = layer.ok_or_else(|| wrong(READING, format!("{one} is none of the layers")));
            Ok(Some(layer? as usize - 1))
        }
        Some(all) => {
            let what = format!("{} layers read tables, and llama.cpp has one table", all.len());
            Err(wrong(READING, what))
        }
    }
}

/// Lists which layers read the table.
fn add_readers(fields: &mut Map<String, Value>) -> Result<Option<usize>> {
    let reader = reader(fields)?;
    let layers = fields.get(LAYERS[0]).and_then(Value::as_u64).unwrap_or(0);
    let kind = |layer| if Some(layer) == reader { READS } else { "" };
    let all = (0..=layers.min(MOST_LAYERS.into()) as usize).map(kind);
    fields.insert(READERS.to_owned(), all.collect());
    Ok(reader)
}

/// Sets what follows for the table.
pub(super) fn complete(fields: &mut Fields) -> Result<()> {
    let Some(reader) = add_readers(&mut fields.0)? else {
        for field in OF_TABLE {
            fields.0.remove(*field);
        }
        return Ok(());
    };
    let kind = fields
        .0
        .get(LAYER_KINDS)
        .and_then(|kinds| kinds.get(reader));
    if kind.is_some_and(|kind| kind != "linear_attention") {
        return Err(wrong(READING, "the layer has no linear attention"));
    }
    let (size, heads) = (fields.need(&[NGRAM])?, fields.need(&[HASHES_OF_SIZE])?);
    if !(2..=8).contains(&size) {
        return Err(wrong(NGRAM, "llama.cpp has 2 to 8"));
    }
    let heads = heads.saturating_mul(size - 1);
    let hidden = fields.need(&["hidden_size"])?;
    if heads == 0 || heads > 64 || !hidden.is_multiple_of(heads) {
        let what = format!("{heads} hashes; llama.cpp has up to 64, which divide hidden_size");
        return Err(wrong(HASHES_OF_SIZE, what));
    }
    fields.0.insert(ROW.to_owned(), (hidden / heads).into());
    // The first of several, as transformers has it. llama.cpp's converter takes the last.
    let end = match fields.0.get("eos_token_id") {
        Some(Value::Array(all)) => all.first().cloned(),
        other => other.cloned(),
    };
    let end = end.ok_or_else(|| wrong("eos_token_id", "it is missing, and hashes end there"))?;
    fields.0.insert(END.to_owned(), end);
    Ok(())
}

const TENSOR: &str = "layers.{i}.ple.ple_embedding.";
/// What the table is called between the two sides, of which one has parts of it.
const JOINED: &str = "model.ngram_embedding";

/// The tensor that `name` is, among those of the table.
fn of_table(name: &str, layer: usize) -> Option<String> {
    let name = of_language_model(name);
    let name = name.strip_prefix("model.").unwrap_or(&name);
    let start = fill(TENSOR, Place { layer: Some(layer), expert: None });
    name.strip_prefix(&start).map(str::to_owned)
}

/// The number of a part of the table, which is called `name`.
fn part_of(name: &str) -> Option<usize> {
    let number = name.strip_prefix("ngram_embedding.shard_")?;
    find("{e}.weight", number)?.expert
}

fn refused(name: &str, what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("{}: {what}", InTensor(&name)))
}

/// Makes fields of the numbers of hashes, and one table of its parts.
fn take(fields: &mut Fields, items: &mut Vec<ResolvedItem<'_>>) -> Result<()> {
    let Some(layer) = reader(&fields.0)? else {
        return Ok(());
    };
    let mut parts = Vec::new();
    for item in std::mem::take(items) {
        match of_table(item.name(), layer) {
            Some(name) if NUMBERS.contains(&name.as_str()) => {
                let numbers = numbers_of(&item)?;
                fields.0.insert(name, numbers.into());
            }
            Some(name) if part_of(&name).is_some() => {
                parts.push((part_of(&name), SourceTensor::new(item)?));
            }
            _ => items.push(item),
        }
    }
    parts.sort_by_key(|(number, _)| *number);
    let count = fields.need(&["split_ngram_parts"])? as usize;
    let found = parts.iter().map(|(number, _)| *number);
    if !found.eq((0..count).map(Some)) {
        let what = format!("there are {} parts, and split_ngram_parts is {count}", parts.len());
        return Err(refused(&name_of(layer, "ngram_embedding"), what));
    }
    let parts: Vec<_> = parts.into_iter().map(|(_, part)| part).collect();
    let table = joined(parts)?;
    check_numbers(&fields.0, table.shape[0])?;
    items.push(ResolvedItem::from(table));
    Ok(())
}

/// The name of a tensor of the table of layer `layer`.
fn name_of(layer: usize, end: &str) -> String {
    format!("model.{}{end}", fill(TENSOR, Place { layer: Some(layer), expert: None }))
}

/// The integers of a vector.
fn numbers_of(item: &ResolvedItem<'_>) -> Result<Vec<i64>> {
    const MOST: u64 = 64 * 8;

    let ResolvedItem::Plain(plain) = item else {
        return Err(refused(item.name(), "it is quantized"));
    };
    let numbers = read(&plain.stored, MOST)?;
    numbers
        .ok_or_else(|| refused(item.name(), format!("{} is no type of it", plain.stored.dtype())))
}

/// The table of these parts, one behind another.
fn joined<'m>(parts: Vec<SourceTensor<'m>>) -> Result<Group<'m>> {
    let cols = parts.first().and_then(|part| part.shape.get(1)).copied();
    let is_other = |part: &&SourceTensor<'_>| part.shape.len() != 2 || Some(part.shape[1]) != cols;
    if let Some(other) = parts.iter().find(is_other) {
        let what = format!("its shape is {:?}, and rows of parts are as long", other.shape);
        return Err(refused(&other.name, what));
    }
    let rows = |part: &SourceTensor<'_>| part.shape[0];
    let piece = |(source, part): (usize, &SourceTensor<'_>)| SourceRows {
        source,
        order: RowOrder::From(0),
        rows: rows(part),
        turn: 1,
    };
    let cols = cols.unwrap_or(0);
    let moved = Rearrangement {
        pieces: parts.iter().enumerate().map(piece).collect(),
        ..Rearrangement::of_each(0, RowOrder::From(0), (0, cols))
    };
    let shape = vec![parts.iter().map(rows).fold(0, usize::saturating_add), cols];
    let quantized = parts.iter().map(|part| part.scheme);
    let quantized = quantized
        .into_iter()
        .find(|scheme| *scheme != QuantScheme::Unquantized);
    let first = parts.first().and_then(|part| part.stored);
    let stored = first.filter(|_| parts.iter().all(|part| part.stored == first));
    let dtype = stored.unwrap_or(TargetDtype::F32);
    let mut group = assembled(parts, (format!("{JOINED}.weight"), shape), dtype, &moved);
    // What is quantized is rounded where the tensor is written.
    if let Some(scheme) = quantized {
        (group.scheme, group.keeps) = (scheme, None);
    }
    Ok(group)
}

/// Fails if hashes by these numbers are no rows of a table of `rows`, or others in llama.cpp, which has
/// unsigned products.
fn check_numbers(fields: &Map<String, Value>, rows: usize) -> Result<()> {
    let list = |field: &str| -> Result<Vec<u64>> {
        let missing = || refused(field, "there is none, or it is no list of numbers from 0 on");
        let all = fields
            .get(field)
            .and_then(Value::as_array)
            .ok_or_else(missing)?;
        all.iter().map(|n| n.as_u64().ok_or_else(missing)).collect()
    };
    let number = |field: &str| fields.get(field).and_then(Value::as_u64).unwrap_or(0);
    let (size, tokens) = (number(NGRAM), number("vocab_size"));
    let heads = size
        .saturating_sub(1)
        .saturating_mul(number(HASHES_OF_SIZE));
    let (multipliers, offsets, counts) = (list(MULTIPLIERS)?, list(OFFSETS)?, list(COUNTS)?);
    for (name, found, wanted) in [
        (MULTIPLIERS, multipliers.len(), size),
        (OFFSETS, offsets.len(), heads),
        (COUNTS, counts.len(), heads),
    ] {
        if found as u64 != wanted {
            return Err(refused(name, format!("it has {found} numbers, and the config {wanted}")));
        }
    }
    let is_large = |n: &&u64| {
        n.checked_mul(tokens)
            .is_none_or(|n| i64::try_from(n).is_err())
    };
    if let Some(large) = multipliers.iter().find(is_large) {
        let what = format!("{large} × {tokens} tokens is more than I64 holds");
        return Err(refused(MULTIPLIERS, what));
    }
    let most = (rows as u64).min(i32::MAX as u64);
    let is_outside = |(first, count): &(&u64, &u64)| {
        **count == 0 || first.checked_add(**count).is_none_or(|end| end > most)
    };
    match offsets.iter().zip(&counts).find(is_outside) {
        None => Ok(()),
        Some((first, count)) => {
            let what = format!("{count} rows from {first} on, and the table has {rows}");
            Err(refused(COUNTS, what))
        }
    }
}

/// Lists which layers read the table, and checks its numbers.
pub(super) fn list_readers(
    config: &mut Map<String, Value>,
    tensors: &TensorShapes<'_>,
) -> Result<()> {
    let table = tensors.get("per_layer_token_embd.weight");
    match (add_readers(config)?, table) {
        (Some(_), Some(shape)) => check_numbers(config, shape[0]),
        _ => Ok(()),
    }
}

/// Sets fields by which transformers makes a table of as many rows.
pub(super) fn restore(config: &mut Map<String, Value>, _: &Dims) -> Result<()> {
    config.remove(READERS);
    config.remove(ROW);
    let rows = config.remove("vocab_size_per_layer_input");
    let end = config.remove(END);
    config.extend(end.map(|end| ("eos_token_id".to_owned(), end)));
    let counts = config.get(COUNTS).and_then(Value::as_array);
    let (Some(rows), Some(counts)) = (rows.and_then(|rows| rows.as_u64()), counts) else {
        return Ok(());
    };
    let base = counts.first().cloned();
    let all = counts
        .iter()
        .filter_map(Value::as_u64)
        .fold(0, u64::saturating_add);
    let is_usual = all.checked_next_multiple_of(128) == Some(rows);
    config.extend(base.map(|base| ("ngram_vocab_size_base".to_owned(), base)));
    let divisor = if is_usual { 128 } else { rows };
    config.insert("make_ngram_vocab_size_divisible_by".to_owned(), divisor.into());
    config.insert("split_ngram_parts".to_owned(), 1.into());
    Ok(())
}

/// Makes tensors of the numbers of hashes, and one part of the table.
fn make(config: &mut Map<String, Value>, items: &mut Vec<Group<'_>>) -> Result<()> {
    let Some(layer) = reader(config)? else {
        return Ok(());
    };
    for field in NUMBERS {
        let numbers = config.remove(field);
        let numbers = numbers.as_ref().and_then(Value::as_array);
        let values = numbers.and_then(|all| all.iter().map(Value::as_i64).collect());
        let values: Vec<i64> = values.ok_or_else(|| wrong(field, "it is no list of numbers"))?;
        let shape = vec![values.len()];
        let decoder = Box::new(ComputedIntegers { dtype: Dtype::I64, values });
        let (name, scheme) = (name_of(layer, field), QuantScheme::Unquantized);
        items.push(Group::new(name, shape, scheme, vec![], decoder));
    }
    if let Some(table) = items
        .iter_mut()
        .find(|item| item.name == format!("{JOINED}.weight"))
    {
        table.name = name_of(layer, "ngram_embedding.shard_0.weight").into();
    }
    Ok(())
}

/// INT32\[\]: the layer that reads the table. Configs count from 1.
const READERS_OF_TABLE: OwnSetting = own(
    |_, model| {
        let layer = reader(&model.fields.0)?.and_then(|layer| i32::try_from(layer).ok());
        Ok(layer.map(|layer| array(GgufMetadataArray::I32(vec![layer]))))
    },
    |stated, _| {
        let layers = stated.numbers()?.iter().map(|layer| i64::from(*layer) + 1);
        Ok(Some(layers.collect()))
    },
);

/// UINT64\[\]
const WIDE: OwnSetting = own(
    |setting, model| {
        let numbers = model
            .fields
            .0
            .get(setting.fields[0])
            .and_then(Value::as_array);
        let numbers = numbers.and_then(|all| all.iter().map(Value::as_u64).collect());
        Ok(numbers.map(|all| array(GgufMetadataArray::U64(all))))
    },
    |stated, _| match stated.value.as_array() {
        Some(GgufMetadataArray::U64(all)) => Ok(Some(all.clone().into())),
        _ => Err(stated.other_type()),
    },
);

pub(super) const OWN: OwnTensors = OwnTensors {
    to_gguf: take,
    to_hf: make,
    keys: [&["ple.", "embedding_length_per_layer_input"], &["embedding_length_per_layer_input"]],
};
