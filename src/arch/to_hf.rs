//! A GGUF model as a Hugging Face directory: its tensors under the names and in the order of rows of transformers, and the
//! configs beside them.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::dims::Dims;
use super::families::CLASSES;
use super::fields::{Fields, attention_scalar};
use super::mapping::{Mapped, Mapping, shape_of};
use super::names::{Place, fill, find, split_suffix};
use super::rope::scaling_of;
use super::settings::config_of;
use super::table::{ModelClass, Sign, Transform};
use super::to_gguf::{group_of, head_rows};
use crate::containers::model::gguf::GgufMetadata;
use crate::scheme::layout::assembled::{Assembled, Change, Piece, RowOrder};
use crate::scheme::{Buffers, Decode, Group, PlainFloats, ResolvedItem, Tile, Widening, Window};
use crate::simd::Level;
use crate::{AnamnesisError, Result, TargetDtype, tokenizer};

/// A model that is ready to be written as a directory.
pub(crate) struct DirectoryModel<'m> {
    pub items: Vec<ResolvedItem<'m>>,
    /// Name and text of each file beside the weights.
    pub files: Vec<(String, String)>,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// The factors of Llama 3's rope, which are no tensor of transformers.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The model of `items`, whose metadata is `metadata`; what is quantized is decoded to `to`.
///
/// # Errors
/// `Unsupported` if the architecture is unknown; `Parse` that names the key or the tensor which is missing, contradicts another,
/// or is none of the architecture.
pub(crate) fn to_hf<'m>(
    items: Vec<ResolvedItem<'m>>,
    metadata: &GgufMetadata,
    to: TargetDtype,
) -> Result<DirectoryModel<'m>> {
    let class = class_of(metadata)?;
    let mut config = config_of(class, metadata)?;
    let (made, items): (Vec<_>, Vec<_>) = items
        .into_iter()
        .partition(|item| item.name() == ROPE_FACTORS);
    let sizes = |name: &str| items.iter().find(|item| item.name() == name).map(shape_of);
    if let Some(&[rows, _]) = sizes("token_embd.weight") {
        config.insert("vocab_size".to_owned(), rows.into());
    }
    let is_tied = sizes("output.weight").is_none();
    config.insert("tie_word_embeddings".to_owned(), is_tied.into());
    let dims = Dims::new(&Fields(config.clone()))?;
    let scalar = attention_scalar(class, &dims);
    config.extend(scalar.map(|scalar| ("query_pre_attn_scalar".to_owned(), scalar.into())));
    let factors = made.first().map(values_of).transpose()?;
    let scaling = scaling_of(class.gguf, metadata, factors.as_deref(), &dims)?;
    config.extend(scaling.map(|scaling| ("rope_scaling".to_owned(), scaling)));
    let mapped = Mapping { class, dims: &dims }.to_hf(items)?;
    config.extend(biases(class, &mapped)?);
    let main = main_dtype(&mapped, to);
    config.insert("torch_dtype".to_owned(), main.torch_name().into());
    let mut out = Vec::with_capacity(mapped.len());
    for tensor in mapped {
        tensors_of(tensor, class, &dims, (main, to), &mut out)?;
    }
    let context = config
        .get("max_position_embeddings")
        .and_then(Value::as_u64);
    let tokenizer = tokenizer::from_gguf(metadata, context)?;
    let ids = token_ids(metadata);
    config.extend(ids.clone());
    let mut files = vec![("config.json".to_owned(), pretty(&Value::Object(config)))];
    if !ids.is_empty() {
        files.push((
            "generation_config.json".to_owned(),
            pretty(&Value::Object(ids)),
        ));
    }
    let of_tokenizer = tokenizer.files.into_iter();
    files.extend(of_tokenizer.map(|(name, text)| (name.to_owned(), text)));
    Ok(DirectoryModel {
        items: out.into_iter().map(ResolvedItem::Group).collect(),
        files,
        notes: tokenizer.notes,
    })
}

/// The class of a GGUF file.
///
/// # Errors
/// `Unsupported` if no class has its architecture.
fn class_of(metadata: &GgufMetadata) -> Result<&'static ModelClass> {
    let architecture = metadata.get("general.architecture");
    let name = architecture
        .as_ref()
        .and_then(|value| value.as_string())
        .unwrap_or_default();
    let experts = metadata.get(&format!("{name}.expert_count"));
    let has_experts = experts
        .and_then(|value| value.as_unsigned())
        .is_some_and(|n| n > 0);
    let fits = |class: &&&ModelClass| {
        let is_one = match class.traits.sign {
            Sign::Experts => has_experts,
            Sign::Rest => true,
            Sign::Never => false,
        };
        class.gguf == name && is_one
    };
    CLASSES.iter().find(fits).copied().ok_or_else(|| {
        let what = "general.architecture: it has no names of transformers here; its tensors alone are written to a FILE.safetensors";
        AnamnesisError::unsupported(name, what)
    })
}

/// Element type of what is not quantized: that of the embedding, unless it is quantized, or `to`.
fn main_dtype(mapped: &[Mapped<'_>], to: TargetDtype) -> TargetDtype {
    let is_quantized = |mapped: &Mapped<'_>| matches!(mapped.items[0].1, ResolvedItem::Group(_));
    if mapped.iter().any(is_quantized) {
        return to;
    }
    let matrices = mapped.iter().filter(|mapped| mapped.shape.len() > 1);
    let mut dtypes = matrices.filter_map(|mapped| match &mapped.items[0].1 {
        ResolvedItem::Plain(t) => TargetDtype::of(t.dtype()),
        ResolvedItem::Group(_) => None,
    });
    dtypes
        .find(|dtype| *dtype != TargetDtype::F32)
        .unwrap_or(TargetDtype::F32)
}

/// The tensors of transformers that are made of `tensor`.
fn tensors_of<'m>(
    tensor: Mapped<'m>,
    class: &ModelClass,
    dims: &Dims,
    (main, to): (TargetDtype, TargetDtype),
    out: &mut Vec<Group<'m>>,
) -> Result<()> {
    let Mapped {
        name,
        rule,
        items,
        shape,
    } = tensor;
    let Some((_, item)) = items.into_iter().next() else {
        return Ok(());
    };
    let (base, suffix) = split_suffix(&name);
    let place = find(rule.gguf, base).unwrap_or_default();
    let hf_name = |expert| format!("{}{suffix}", fill(rule.hf, Place { expert, ..place }));
    let group = group_of(item)?;
    let stored = group.keeps;
    let is_offset = class.traits.norms_plus_one && name.ends_with("norm.weight");
    let change = if is_offset {
        Change::MinusOne
    } else {
        Change::None
    };
    let order = match rule.transform {
        Transform::Heads => RowOrder::Split(head_rows(&name, &shape, dims)?),
        Transform::None | Transform::Experts => RowOrder::From(0),
    };
    if rule.transform == Transform::Experts {
        let dtype = stored.unwrap_or(to);
        let inner: Arc<dyn Decode + 'm> = Arc::from(group.decoder);
        let rows = shape[1];
        for expert in 0..shape[0] {
            let window = Window {
                inner: inner.clone(),
                first: expert * rows,
                rows,
            };
            let (name, parts) = (hf_name(Some(expert)), group.parts.clone());
            let mut one = Group::new(
                name,
                shape[1..].to_vec(),
                group.scheme,
                parts,
                Box::new(window),
            );
            one.keeps = Some(dtype);
            out.push(one);
        }
        return Ok(());
    }
    let mut group = group;
    if order != RowOrder::From(0) || change != Change::None {
        let piece = Piece {
            decoder: Arc::from(group.decoder),
            rows: shape[0],
            order,
        };
        group.decoder = Box::new(Assembled {
            pieces: vec![piece],
            cols: shape[1..].iter().product(),
            dtype: stored.unwrap_or(to),
            change,
        });
        group.is_copied = false;
    }
    group.name = hf_name(None);
    let dtype = match stored {
        None => to,
        Some(TargetDtype::F32) if is_exact(&*group.decoder, main)? => main,
        Some(stored) => stored,
    };
    group.is_copied &= stored == Some(dtype);
    group.keeps = Some(dtype);
    out.push(group);
    Ok(())
}

/// Most values of a tensor that are read to see whether they fit a narrower type.
const MOST_VALUES: usize = 4 << 20;

/// Whether all values fit `dtype`, so that a vector which GGUF widened gets its type back.
fn is_exact(decoder: &dyn Decode, dtype: TargetDtype) -> Result<bool> {
    let grid = decoder.grid();
    if grid.rows.saturating_mul(grid.cols) > MOST_VALUES {
        return Ok(false);
    }
    let wide = all_values(decoder, TargetDtype::F32)?;
    let narrow = all_values(decoder, dtype)?;
    Ok(wide
        .iter()
        .zip(&narrow)
        .all(|(a, b)| a.to_bits() == b.to_bits()))
}

/// All values of `decoder`, rounded to `dtype`.
fn all_values(decoder: &dyn Decode, dtype: TargetDtype) -> Result<Vec<f32>> {
    let grid = decoder.grid();
    let tile = Tile {
        rows: 0..grid.rows,
        cols: 0..grid.cols,
    };
    let (mut buffers, mut rounded) = (Buffers::default(), Vec::new());
    let mut values = vec![0.0; tile.values()];
    decoder.load(&tile, &mut buffers)?;
    let widening = Widening {
        dtype,
        level: Level::default(),
    };
    let all = (&tile, tile.rows.clone());
    widening.decode(decoder, all, &buffers, &mut rounded, &mut values);
    Ok(values)
}

/// The values of a stored vector.
fn values_of(item: &ResolvedItem<'_>) -> Result<Vec<f32>> {
    let plain = match item {
        ResolvedItem::Plain(t) => PlainFloats::of(t).filter(|_| t.elements() <= MOST_VALUES),
        ResolvedItem::Group(_) => None,
    };
    let Some(plain) = plain else {
        let what = format!("tensor `{}`: it is no short vector of floats", item.name());
        return Err(AnamnesisError::parse(what));
    };
    all_values(&plain, TargetDtype::F32)
}

/// Fields that say which projections have biases.
///
/// # Errors
/// `Unsupported` if a projection has one, and none has it in transformers.
fn biases(class: &ModelClass, mapped: &[Mapped<'_>]) -> Result<Map<String, Value>> {
    let mut fields = Map::new();
    let with_bias = |rule: &str| {
        let of_rule = |mapped: &&Mapped<'_>| mapped.rule.gguf == rule;
        mapped
            .iter()
            .filter(of_rule)
            .any(|mapped| mapped.name.ends_with(".bias"))
    };
    let mut known: Vec<&str> = Vec::new();
    for (field, rules) in class.biases {
        let found = rules.iter().filter(|rule| with_bias(rule)).count();
        if found != 0 && found != rules.len() {
            let what = format!(
                "of {}, only some have a bias, which {} has not",
                rules.join(", "),
                class.classes[0]
            );
            return Err(AnamnesisError::unsupported("a whole model", what));
        }
        known.extend(*rules);
        if !field.is_empty() {
            fields.insert((*field).to_owned(), (found > 0).into());
        }
    }
    let other = mapped
        .iter()
        .find(|mapped| mapped.name.ends_with(".bias") && !known.contains(&mapped.rule.gguf));
    match other {
        Some(other) => {
            let what = format!(
                "tensor `{}`: {} has no such bias",
                other.name, class.classes[0]
            );
            Err(AnamnesisError::unsupported("a whole model", what))
        }
        None => Ok(fields),
    }
}

/// The ids of special tokens, as configs have them.
fn token_ids(metadata: &GgufMetadata) -> Map<String, Value> {
    let keys = [
        ("bos", "bos_token_id"),
        ("eos", "eos_token_id"),
        ("padding", "pad_token_id"),
    ];
    let id = |(key, field): (&str, &str)| {
        let id = metadata.get(&format!("tokenizer.ggml.{key}_token_id"))?;
        Some((field.to_owned(), json!(id.as_unsigned()?)))
    };
    keys.into_iter().filter_map(id).collect()
}

/// `value` as a file has it.
fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
