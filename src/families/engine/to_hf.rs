//! A GGUF model as a Hugging Face directory: its tensors under the names and in the order of rows
//! of transformers, and the configs beside them.

mod class;
mod loadable;

use serde_json::{Map, Value, json};

use self::class::class_of;
use super::checks::{WINDOW, check_yarn};
use super::dims::{Dims, Need};
use super::fields::{FULL_ATTENTION, Fields, LAYER_KINDS, LETTERS};
use super::keyed::tensors_of_keys;
use super::mapping::{Mapped, Mapping, refused};
use super::names::{BASE_MODEL, BASE_PREFIX, Place, fill};
use super::rope::{ROPE_FACTORS, Rope, is_factors};
use super::rope_of_class::{
    add_kinds, add_scaling, check_attention_factor, restore_base, scaling_of,
};
use super::settings::{causal_note, config_of};
use super::source::SourceTensor;
use super::table::{Kind, ModelClass, Prediction, TensorRule, TensorShapes};
use super::tied::take_output;
use super::to_gguf::has_offset;
use super::transform::{self, WaitingParts};
use super::values::{is_exact, values_of};
use super::{draft, fills, fused, integers, pooling, prediction};
use crate::config::object;
use crate::error::InTensor;
use crate::model::gguf::GgufMetadata;
use crate::model::gguf_keys::TOKENS;
use crate::remember::layout::assembled::Change;
use crate::remember::{Group, QuantScheme, ResolvedItem};
use crate::tokenizer::{self, kept};
use crate::{AnamnesisError, Result, TargetDtype, families};

/// A model that is ready to be written as a directory.
pub(crate) struct DirectoryModel<'m> {
    pub items: Vec<ResolvedItem<'m>>,
    /// Name and text of each file beside the weights.
    pub files: Vec<(String, String)>,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// The model of `items`, whose metadata is `metadata`; what is quantized is decoded to `to`, by way
/// of `decoded`. A language model for images is written as the class without them.
///
/// # Errors
/// As [`language_model`].
pub(crate) fn to_hf<'m>(
    items: Vec<ResolvedItem<'m>>,
    metadata: &GgufMetadata,
    types: (TargetDtype, TargetDtype),
) -> Result<DirectoryModel<'m>> {
    let class = class_of(metadata, |name| items.iter().any(|item| item.name() == name))?;
    let mut model = language_model(items, metadata, types)?;
    model.notes.extend(image_note(class));
    Ok(model)
}

/// As [`to_hf`], of a language model that may become part of a model for images.
///
/// # Errors
/// `Unsupported` if the architecture is unknown; `Parse` that names the key or the tensor which is
/// missing, contradicts another, or is none of the architecture.
pub(crate) fn language_model<'m>(
    mut items: Vec<ResolvedItem<'m>>,
    metadata: &GgufMetadata,
    (to, decoded): (TargetDtype, TargetDtype),
) -> Result<DirectoryModel<'m>> {
    let class = class_of(metadata, |name| items.iter().any(|item| item.name() == name))?;
    if items.is_empty() {
        let what = "the file has no tensors, as `--vocab-only` of llama.cpp's converter writes it";
        return Err(AnamnesisError::unsupported("a whole model", what));
    }
    let shapes = loadable::shapes_of(&items);
    let ReadConfig { mut config, dims, mut notes, factors } =
        ReadConfig::new(class, metadata, &mut items)?;
    restore_rope(&mut config, (class, metadata), &factors, &dims)?;
    let mut tables = draft::ids_for_hf(class, &dims, &mut items, metadata)?;
    tables.extend(integers::take(class, &dims, &mut items, false)?);
    let sources = items.into_iter().map(SourceTensor::new);
    let mapping = Mapping { class, dims: &dims };
    let mut sources = sources.collect::<Result<Vec<_>>>()?;
    sources.extend(tensors_of_keys(class, metadata)?);
    let apart = |source| fused::taken_apart(&mapping, source);
    let mapped = mapping.to_hf(sources.into_iter().flat_map(apart).collect())?;
    config.extend(mapping.biases(&mapped)?);
    loadable::require(class.gguf, metadata, &shapes)?;
    let main = main_dtype(&mapped, to);
    config.insert("torch_dtype".to_owned(), main.torch_name().into());
    let mut items = make_items(mapped, class, &dims, (main, decoded))?;
    if let Some(own) = class.traits.own_tensors {
        (own.to_hf)(&mut config, &mut items)?;
    }
    restore_letters(&mut config, class);
    prediction::rename_count(&mut config, class.traits.prediction);
    let context = config
        .get("max_position_embeddings")
        .and_then(Value::as_u64);
    let mut tokenizer = tokenizer::from_gguf(metadata, context)?;
    let becomes = written_class(class, &config);
    let kept = kept::write(metadata, becomes.gguf, &tokenizer.files);
    tokenizer.files.push((kept::GGUF_METADATA, kept));
    tokenizer.notes.append(&mut notes);
    tokenizer.notes.extend(pooling::note(&config));
    tokenizer.notes.extend(causal_note(&config));
    let other_scores = class.traits.other_scores.map(|[_, what]| what.to_owned());
    tokenizer.notes.extend(other_scores);
    let ids = token_ids(metadata);
    for (field, id) in ids.clone() {
        config.entry(field).or_insert(id);
    }
    if let Some(nested) = class.traits.nested {
        config = nested.around(config);
    }
    Ok(DirectoryModel {
        items: items
            .into_iter()
            .chain(tables)
            .map(ResolvedItem::from)
            .collect(),
        files: files_of(config, ids, tokenizer.files),
        notes: tokenizer.notes,
    })
}

/// What a GGUF file says of a model, as the fields of a config.
struct ReadConfig {
    config: Map<String, Value>,
    dims: Dims,
    /// What the config cannot say.
    notes: Vec<String>,
    /// Tensors of factors of rope, which are fields of a config.
    factors: Vec<(String, Vec<f32>)>,
}

impl ReadConfig {
    /// Takes out of `items` those that are no tensors of transformers.
    ///
    /// # Errors
    /// As [`language_model`].
    fn new(
        class: &'static ModelClass,
        metadata: &GgufMetadata,
        items: &mut Vec<ResolvedItem<'_>>,
    ) -> Result<Self> {
        let mut config = config_of(class, metadata)?;
        fills::take(class, items, &mut config)?;
        let other_output = take_output(class, items)?;
        let left_out = prediction::leave_out(class, metadata, &mut config, items)?;
        let made = items.extract_if(.., |item| is_factors(item.name()));
        let factors = made.map(|item| Ok((item.name().to_owned(), values_of(&item)?)));
        let factors = factors.collect::<Result<Vec<_>>>()?;
        let tensors: TensorShapes<'_> = items
            .iter()
            .map(|item| (item.name(), shape_of(item)))
            .collect();
        set_sizes(&mut config, &tensors)?;
        draft::add_vocab_size(&mut config, class, metadata);
        let is_tied = !tensors.contains_key("output.weight");
        config.insert("tie_word_embeddings".to_owned(), is_tied.into());
        config.extend(flags_of(class, |name| tensors.contains_key(name)));
        let mut from_tensors = class.traits.from_tensors.iter();
        from_tensors.try_for_each(|set| set(&mut config, &tensors))?;
        let dims = Dims::of_class(&Fields::of(config.clone()), class)?;
        add_full_layers(&mut config, dims.layers);
        let mut restores = class.traits.restores.iter();
        restores.try_for_each(|restore| restore(&mut config, &dims))?;
        let notes = other_output.into_iter().chain(left_out).collect();
        Ok(Self { config, dims, notes, factors })
    }
}

/// Sets the fields of `config` that are numbers of rows of tensors.
///
/// # Errors
/// `Parse` that names the tensor, if the metadata say something else.
fn set_sizes(config: &mut Map<String, Value>, tensors: &TensorShapes<'_>) -> Result<()> {
    for (name, field) in SIZED {
        if let Some(&&[rows, _]) = tensors.get(name) {
            let stated = config.get(*field).and_then(Value::as_u64);
            if let Some(stated) = stated.filter(|stated| *stated != rows as u64) {
                let what = format!("{rows} rows, and the metadata say {stated} (`{field}`)");
                return Err(refused(name, what));
            }
            config.insert((*field).to_owned(), rows.into());
        }
    }
    Ok(())
}

/// Sets the fields of rope by the metadata and the tensors of `factors`.
///
/// # Errors
/// `Parse` or `Unsupported` if transformers has no such rope.
fn restore_rope(
    config: &mut Map<String, Value>,
    (class, metadata): (&ModelClass, &GgufMetadata),
    factors: &[(String, Vec<f32>)],
    dims: &Dims,
) -> Result<()> {
    let has_long_factors = factors.iter().any(|(name, _)| name != ROPE_FACTORS);
    let fields = Fields::of(config.clone());
    check_attention_factor(class, metadata, &fields, has_long_factors)?;
    let by_layer = class.traits.by_layer;
    if let Some(restore) = by_layer.and_then(|by_layer| by_layer.restore_rope) {
        restore(config, factors)?;
    } else if let Some(scaling) = scaling_of(class, metadata, factors, dims)? {
        add_scaling(config, scaling);
        check_yarn(class, &Rope::new(&Fields::of(config.clone()))?)?;
    }
    add_kinds(config, class);
    restore_base(config);
    Ok(())
}

/// The class of a directory with the `config` of `class`: models for images are written as classes
/// without them.
fn written_class(class: &'static ModelClass, config: &Map<String, Value>) -> &'static ModelClass {
    let name = class.classes.first().copied().unwrap_or_default();
    families::class_of(name, &Value::Object(config.clone())).unwrap_or(class)
}

/// The tensors of Hugging Face that are made of those in `mapped`. `main` is the type of weights,
/// and what is quantized is decoded to `to`.
pub(crate) fn make_items<'m>(
    mapped: Vec<Mapped<'m>>,
    class: &ModelClass,
    dims: &Dims,
    (main, to): (TargetDtype, TargetDtype),
) -> Result<Vec<Group<'m>>> {
    let mut maker = Maker {
        class,
        dims,
        main,
        to,
        waiting: WaitingParts::default(),
        out: Vec::with_capacity(mapped.len()),
    };
    mapped
        .into_iter()
        .try_for_each(|tensor| maker.add(tensor))?;
    if let Some((name, _)) = maker.waiting.into_waiting() {
        let what =
            format!("{}: one of the projections that it is made of is missing", InTensor(&name));
        return Err(AnamnesisError::parse(what));
    }
    Ok(maker.out)
}

/// Writes the kinds of layers as letters, if the config of the class has them so.
fn restore_letters(config: &mut Map<String, Value>, class: &ModelClass) {
    let letters = class.traits.layer_letters;
    if letters.is_empty() {
        return;
    }
    let kinds = config.remove(LAYER_KINDS).unwrap_or_default();
    let letter = |kind: &Value| {
        letters
            .iter()
            .find(|(name, _)| kind == name)
            .map(|(_, c)| *c)
    };
    let kinds = kinds.as_array().map(Vec::as_slice).unwrap_or_default();
    let text: String = kinds.iter().filter_map(letter).collect();
    config.insert(LETTERS.to_owned(), text.into());
}

/// The files of a model: its configs, and those of the tokenizer.
fn files_of(
    config: Map<String, Value>,
    ids: Map<String, Value>,
    of_tokenizer: Vec<(&'static str, String)>,
) -> Vec<(String, String)> {
    let mut files = vec![("config.json".to_owned(), pretty(&Value::Object(config)))];
    if !ids.is_empty() {
        files.push(("generation_config.json".to_owned(), pretty(&Value::Object(ids))));
    }
    let of_tokenizer = of_tokenizer.into_iter();
    files.extend(of_tokenizer.map(|(name, text)| (name.to_owned(), text)));
    files
}

/// What a user should know of the language model of a class for images.
fn image_note(class: &ModelClass) -> Option<String> {
    let is_for_images = class.has_setting(Kind::TextSections);
    let what = "which has no images; it computes the same of a text";
    is_for_images.then(|| format!("{} is written as {}, {what}", class.gguf, class.classes[0]))
}

/// Adds the kinds of the layers of a model whose window is null: without them transformers takes
/// the number of each layer modulo 0.
fn add_full_layers(config: &mut Map<String, Value>, layers: usize) {
    if config.get(WINDOW).is_some_and(Value::is_null) && !config.contains_key(LAYER_KINDS) {
        let kinds: Value = std::iter::repeat_n(FULL_ATTENTION, layers).collect();
        config.insert(LAYER_KINDS.to_owned(), kinds);
    }
}

/// Tensors whose numbers of rows are fields of the config.
const SIZED: &[(&str, &str)] = &[
    ("token_embd.weight", "vocab_size"),
    ("token_types.weight", "type_vocab_size"),
    ("per_layer_token_embd.weight", "vocab_size_per_layer_input"),
    ("blk.0.laurel_l.weight", "laurel_rank"),
];

/// The flags that say which tensors there are, if `has` tells whether there is one.
pub(crate) fn flags_of(
    class: &ModelClass,
    has: impl Fn(&str) -> bool,
) -> impl Iterator<Item = (String, Value)> {
    let rules = class.tensors.iter().flat_map(|rules| rules.iter());
    let first = Place { layer: Some(0), expert: None };
    rules.filter_map(move |rule| match rule.need {
        Need::If(field) => {
            let suffix = if rule.is_whole_name { "" } else { ".weight" };
            let name = format!("{}{suffix}", fill(rule.gguf, first));
            Some((field.to_owned(), has(&name).into()))
        }
        _ => None,
    })
}

pub(crate) fn shape_of<'a>(item: &'a ResolvedItem<'_>) -> &'a [usize] {
    match item {
        ResolvedItem::Group(group) => &group.shape,
        ResolvedItem::Plain(t) => t.stored.shape(),
    }
}

/// Element type of what is not quantized: that of the first matrix in two bytes, or `to` if
/// anything is quantized.
pub(crate) fn main_dtype(mapped: &[Mapped<'_>], to: TargetDtype) -> TargetDtype {
    let stored = || {
        mapped
            .iter()
            .map(|mapped| (mapped.shape().len(), mapped.sources[0].1.stored))
    };
    if stored().any(|(_, stored)| stored.is_none()) {
        return to;
    }
    let matrices = stored().filter(|(rank, _)| *rank > 1);
    let mut narrow = matrices.filter_map(|(_, stored)| stored.filter(|d| *d != TargetDtype::F32));
    narrow.next().unwrap_or(TargetDtype::F32)
}

/// Makes tensors of transformers.
struct Maker<'a, 'm> {
    class: &'a ModelClass,
    dims: &'a Dims,
    /// Element type of what is not quantized.
    main: TargetDtype,
    /// Element type of what is quantized.
    to: TargetDtype,
    waiting: WaitingParts<'m>,
    out: Vec<Group<'m>>,
}

impl<'m> Maker<'_, 'm> {
    /// Makes what `tensor` becomes.
    fn add(&mut self, tensor: Mapped<'m>) -> Result<()> {
        let Mapped { name, rule, place, suffix, sources } = tensor;
        if rule.is_copy {
            return Ok(());
        }
        let hf_name = |expert| {
            let name = format!("{}{suffix}", rule.hf_name(Place { expert, ..place }));
            let is_base = has_no_output(self.class);
            let name = match name.strip_prefix(BASE_PREFIX) {
                Some(short) if is_base => short.to_owned(),
                _ => name,
            };
            match self.class.traits.prediction {
                Prediction::Apart(names) => {
                    let own = names.of_transformers(&name, self.dims.layers);
                    own.unwrap_or(name)
                }
                _ => name,
            }
        };
        if place.expert.is_some() {
            // Experts that GGUF has one by one, too.
            return sources.into_iter().try_for_each(|(expert, source)| {
                let own = source.stored.unwrap_or(self.to);
                let made = source.renamed(hf_name(Some(expert)), own);
                self.push(made, rule)
            });
        }
        let Some((_, source)) = sources.into_iter().next() else {
            return Ok(());
        };
        let own = source.stored.unwrap_or(self.to);
        if let Some(parts) = rule.transform.some_parts() {
            let name = hf_name(None);
            let Some(parts) = self.waiting.complete(&name, source, parts) else {
                return Ok(());
            };
            let own = parts[0].1.stored.unwrap_or(self.to);
            let whole = transform::joined(parts, (name, rule), own, self.dims)?;
            return self.push(whole, rule);
        }
        let change = match self.class.traits.norms_plus_one && has_offset(&name) {
            true => Change::MinusOne,
            false => Change::None,
        };
        let rule_of = (&hf_name as &dyn Fn(_) -> _, rule);
        let made = transform::to_hf((name, source), rule_of, own, change, self.dims)?;
        made.into_iter()
            .try_for_each(|group| self.push(group, rule))
    }

    /// Adds a tensor. A vector that GGUF has widened gets the model's type back, where no value
    /// changes by that.
    fn push(&mut self, mut group: Group<'m>, rule: &TensorRule) -> Result<()> {
        let is_stored = group.scheme == QuantScheme::Unquantized;
        let is_wide = match group.keeps {
            Some(TargetDtype::F32) => self.main != TargetDtype::F32,
            // llama.cpp has some tensors of towers in F16, whatever the others are.
            own => self.class.traits.is_tower && own != Some(self.main),
        };
        let may_narrow = is_stored && is_wide && !rule.keeps_f32;
        if may_narrow && is_exact(&*group.decoder, self.main, rule.transform.change())? {
            (group.keeps, group.is_copied) = (Some(self.main), false);
        }
        self.out.push(group);
        Ok(())
    }
}

/// The ids of special tokens, as configs have them. transformers makes no model whose padding is no
/// token, which llama.cpp ignores.
fn token_ids(metadata: &GgufMetadata) -> Map<String, Value> {
    let is_token = |id: u64| {
        let tokens = metadata.get(TOKENS);
        let tokens = tokens.as_ref().and_then(|value| value.as_array());
        tokens.is_none_or(|tokens| id < tokens.len() as u64)
    };
    let keys = [("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")];
    let id = |(key, field): (&str, &str)| {
        let id = metadata.get(&format!("tokenizer.ggml.{key}_token_id"))?;
        let id = id.as_unsigned()?;
        (key != "padding" || is_token(id)).then(|| (field.to_owned(), json!(id)))
    };
    object(keys.into_iter().filter_map(id))
}

/// `value` as a file has it.
pub(crate) fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Whether names of tensors lack what those of models with an output begin with.
fn has_no_output(class: &ModelClass) -> bool {
    let mut rules = class.tensors.iter().flat_map(|rules| rules.iter());
    let writes_output = !class.traits.ties_output && rules.any(|rule| rule.gguf == "output");
    let is_base = class.traits.is_draft || !writes_output;
    class.classes[0].ends_with(BASE_MODEL) && is_base
}
