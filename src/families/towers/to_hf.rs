//! A language model and its tower, two GGUF files, as the Hugging Face directory of the multimodal
//! class: the rows that [`to_mmproj`](super::to_mmproj) reads, read backwards.

use serde_json::{Map, Value, json};

use super::to_mmproj::renumbered;
use super::{FLAT, TEXT_FIELD, TEXT_HIDDEN, TOKEN_ROW, TOWERS, Tower, Whole, WholeConfig};
use crate::config::object;
use crate::families::engine::dims::{Dim, Dims};
use crate::families::engine::fields::{Fields, HIDDEN, float, missing_key, wrong_key};
use crate::families::engine::mapping::Mapping;
use crate::families::engine::names::{BASE_PREFIX, find, split_suffix};
use crate::families::engine::rope::SECTIONS;
use crate::families::engine::settings::fields_of_keys;
use crate::families::engine::source::{SourceTensor, computed};
use crate::families::engine::table::{Kind, ModelClass, Sign};
use crate::families::engine::to_hf::{
    DirectoryModel, flags_of, language_model, main_dtype, make_items, pretty, shape_of,
};
use crate::model::gguf::{GgufMetadata, GgufMetadataArray, GgufMetadataValue};
use crate::remember::{Group, ResolvedItem};
use crate::{AnamnesisError, Result, TargetDtype};

/// A file's tensors and metadata.
pub(crate) type GgufItems<'a, 'm> = (Vec<ResolvedItem<'m>>, &'a GgufMetadata);

/// The multimodal model of the language model `text` and of `tower`; what is quantized is decoded to
/// `to`, by way of `decoded`.
///
/// # Errors
/// `Unsupported` if the two are no class of transformers here; `Parse` that names the key or the
/// tensor which is missing, contradicts another, or is none of the class.
pub(crate) fn join_tower<'m>(
    (items, metadata): GgufItems<'_, 'm>,
    (of_tower, tower_metadata): GgufItems<'_, 'm>,
    (to, decoded): (TargetDtype, TargetDtype),
) -> Result<DirectoryModel<'m>> {
    let has_tensor = |name: &str| of_tower.iter().any(|item| item.name() == name);
    let (tower, whole) = find_whole(metadata, tower_metadata, has_tensor)?;
    let mut model = language_model(items, metadata, (to, decoded))?;
    let mut config = WholeConfig {
        root: Map::new(),
        text: take_config(&mut model.files)?,
        fields: Fields(Map::new()),
        vision: Map::new(),
        processor: processor_of(tower, whole, tower_metadata)?,
        notes: Vec::new(),
    };
    let inner = model.items.into_iter();
    model.items = inner.map(|item| inner_item(item, whole)).collect();
    let (mut sections, mut of_root) = (Map::new(), Map::new());
    for (tower, items) in apart(tower, of_tower) {
        config.fields = Fields(fields_of_keys(&tower.class, tower_metadata)?);
        require_same_width(&config)?;
        let items = tower_items(tower, items, &mut config.fields, (to, decoded))?;
        (tower.restore)(&mut config)?;
        for name in tower.of_processor {
            let value = config.fields.0.remove(*name);
            config
                .processor
                .extend(value.map(|value| ((*name).to_owned(), value)));
        }
        model.items.extend(items.into_iter().map(|mut group| {
            group.name = stored_name(&group.name, (tower, whole), &config).into();
            ResolvedItem::from(group)
        }));
        for row in tower.of_model {
            let value = config.fields.0.remove(row.name);
            of_root.extend(value.map(|value| (row.field.to_owned(), value)));
        }
        let expected = tower.expected.iter();
        of_root.extend(expected.map(|(name, _, value)| ((*name).to_owned(), value.into())));
        let (fields, own) =
            (std::mem::take(&mut config.fields.0), std::mem::take(&mut config.vision));
        let section = vision_of(tower, Fields(fields), own);
        sections.insert(tower.config.to_owned(), Value::Object(section));
    }
    add_tokens(&mut config, whole, metadata);
    add_sections(&mut config.text, metadata);
    let processor = Value::Object(std::mem::take(&mut config.processor));
    model.notes.append(&mut config.notes);
    model.notes.push(
        "preprocessor_config.json: what GGUF does not say of images or sounds is left to the processor's class"
            .to_owned(),
    );
    let root = root_of(config, (of_root, sections), whole);
    model
        .files
        .insert(0, ("config.json".to_owned(), pretty(&Value::Object(root))));
    model
        .files
        .push(("preprocessor_config.json".to_owned(), pretty(&processor)));
    Ok(model)
}

/// `tower` with its tensors among `items`, and the tower of sounds in the same file with its own.
fn apart<'m>(
    tower: &'static Tower,
    items: Vec<ResolvedItem<'m>>,
) -> impl Iterator<Item = (&'static Tower, Vec<ResolvedItem<'m>>)> {
    let is_of_sounds = |item: &ResolvedItem<'_>| {
        ["a.", "mm.a."]
            .iter()
            .any(|start| item.name().starts_with(start))
    };
    let (of_sounds, rest) = match tower.sounds {
        Some(_) => items.into_iter().partition(is_of_sounds),
        None => (vec![], items),
    };
    let sounds = tower.sounds.filter(|_| !of_sounds.is_empty());
    [(tower, rest)]
        .into_iter()
        .chain(sounds.map(|tower| (tower, of_sounds)))
}

/// The tower of a file, and what it becomes with the language model of another.
fn find_whole(
    metadata: &GgufMetadata,
    of_tower: &GgufMetadata,
    has_tensor: impl Fn(&str) -> bool,
) -> Result<(&'static Tower, &'static Whole)> {
    let text = |metadata: &GgufMetadata, key: &str| {
        let value = metadata.get(key)?;
        value.as_string().map(str::to_owned)
    };
    let keys = ["clip.projector_type", "clip.vision.projector_type", "clip.audio.projector_type"];
    let kind = keys.iter().find_map(|key| text(of_tower, key));
    let kind = kind.ok_or_else(|| missing_key(keys[0]))?;
    let is_of_kind = |class: &ModelClass| {
        let mut settings = class.settings();
        settings.any(|setting| matches!(setting.kind, Kind::Text(text) if text == kind))
    };
    let architecture = text(metadata, "general.architecture").unwrap_or_default();
    let fits = |tower: &&&Tower| {
        let sign = match tower.class.traits.sign {
            Sign::Tensor(name) => has_tensor(name),
            Sign::Key(key, value) => {
                let found = of_tower.get(&format!("clip.{key}"));
                found.and_then(|found| found.as_unsigned()) == Some(value)
            }
            _ => true,
        };
        sign && is_of_kind(&tower.class)
    };
    let found = TOWERS.iter().filter(fits).find_map(|tower| {
        let mut wholes = tower.wholes.iter();
        let whole = wholes.find(|whole| whole.text.is_empty() || whole.text == architecture)?;
        Some((*tower, whole))
    });
    found.ok_or_else(|| {
        let mut of_kind = TOWERS.iter().filter(|tower| is_of_kind(&tower.class));
        let why = of_kind.next().map_or("", |tower| tower.one_way);
        let why = match why {
            "" => format!(
                "beside a language model `{architecture}` it is no class of transformers here"
            ),
            why => format!("no directory comes back: {why}"),
        };
        let what = format!(
            "clip.projector_type: {why}; each file's tensors alone are written to a FILE.safetensors"
        );
        AnamnesisError::unsupported(kind.as_str(), what)
    })
}

/// Takes `config.json` out of the files of a language model.
fn take_config(files: &mut Vec<(String, String)>) -> Result<Map<String, Value>> {
    let at = files.iter().position(|(name, _)| name == "config.json");
    let text = at.map(|at| files.remove(at).1).unwrap_or_default();
    serde_json::from_str(&text).map_err(|e| AnamnesisError::parse(e.to_string()))
}

/// Fails if the tower is that of another language model.
fn require_same_width(config: &WholeConfig) -> Result<()> {
    let text = HIDDEN.iter().find_map(|name| config.text.get(*name));
    let tower = config.fields.0.get(TEXT_HIDDEN);
    if text.and_then(Value::as_u64) == tower.and_then(Value::as_u64) {
        return Ok(());
    }
    let [text, tower] = [text, tower].map(|size| size.cloned().unwrap_or_default());
    let what = format!(
        "it is {tower}, and the language model's embedding_length {text}; the tower is another model's"
    );
    Err(wrong_key("clip.vision.projection_dim", what))
}

/// The tensors of the tower under the names of the table. Adds to `fields` what they say.
fn tower_items<'m>(
    tower: &Tower,
    items: Vec<ResolvedItem<'m>>,
    fields: &mut Fields,
    (to, decoded): (TargetDtype, TargetDtype),
) -> Result<Vec<Group<'m>>> {
    let class = &tower.class;
    let implied = class.implied.iter().chain(class.traits.also_implied);
    for (name, value) in implied {
        fields.0.entry(*name).or_insert_with(|| value.into());
    }
    fields.0.insert("vocab_size".to_owned(), 1.into());
    let sizes = Dims::of_class(fields, class)?;
    for item in &items {
        add_sizes(fields, &sizes, class, (item.name(), shape_of(item)));
    }
    let has = |name: &str| items.iter().any(|item| item.name() == name);
    let flags: Vec<_> = flags_of(class, has).collect();
    fields.0.extend(flags);
    let dims = Dims::of_class(fields, class)?;
    let is_in_gguf_alone = |item: &ResolvedItem<'_>| match item.name() {
        TOKEN_ROW => tower.token.is_some(),
        name => tower.added.is_some_and(|(added, _)| name == added),
    };
    let items = items.into_iter().filter(|item| !is_in_gguf_alone(item));
    let sources = items.map(SourceTensor::new).collect::<Result<Vec<_>>>()?;
    let mapping = Mapping { class, dims: &dims };
    let mut mapped = mapping.to_hf(sources)?;
    // The type of the model is that of a tensor which has it.
    let has_own = |name: &str| tower.types.iter().any(|(known, _)| *known == name);
    mapped.sort_by_key(|tensor| has_own(&tensor.name));
    fields.0.extend(mapping.biases(&mapped)?);
    let main = main_dtype(&mapped, to);
    let mut made = make_items(mapped, class, &dims, (main, decoded))?;
    for (name, lengths) in tower.unread {
        let shape = lengths.iter().map(|dim| dims.need_size(*dim));
        let shape = shape.collect::<Result<Vec<_>>>()?;
        let zeros = computed((name, vec![0.0; shape.iter().product()]));
        let zeros = SourceTensor::new(ResolvedItem::from(zeros))?;
        made.push(zeros.reshaped((*name).to_owned(), shape, main));
    }
    Ok(made)
}

/// Adds the sizes that only the shape of the tensor `name` says.
fn add_sizes(
    fields: &mut Fields,
    dims: &Dims,
    class: &ModelClass,
    (name, shape): (&str, &[usize]),
) {
    let (base, suffix) = split_suffix(name);
    let rules = class.tensors.iter().flat_map(|rules| rules.iter());
    let found = rules.filter(|rule| match rule.is_whole_name {
        true => find(rule.gguf, name).is_some(),
        false => suffix == ".weight" && find(rule.gguf, base).is_some(),
    });
    for rule in found {
        let lengths = rule.gguf_shape.unwrap_or(rule.shape);
        for (dim, size) in lengths.iter().zip(shape) {
            if let Some((field, size)) = unknown_of(*dim, *size, dims) {
                fields.0.entry(field).or_insert(size.into());
            }
        }
    }
}

/// The field in a dimension of `size` whose other parts are known, with its value.
fn unknown_of(dim: Dim, size: usize, dims: &Dims) -> Option<(&'static str, usize)> {
    let of_parts = |parts: &'static [Dim]| {
        let is_open = |part: &&Dim| dims.size(**part, None).is_none();
        let mut open = parts.iter().filter(is_open);
        let only = open.next().filter(|_| open.next().is_none())?;
        let known = parts
            .iter()
            .filter_map(|part| dims.size(*part, None))
            .collect::<Vec<_>>();
        Some((*only, known))
    };
    match dim {
        Dim::Field(name) => dims.size(dim, None).is_none().then_some((name, size)),
        Dim::Sum(parts) => {
            let (part, known) = of_parts(parts)?;
            let known = known.into_iter().fold(0, usize::saturating_add);
            unknown_of(part, size.checked_sub(known)?, dims)
        }
        // A square of which GGUF has the number of places.
        Dim::Product([side, other]) if side == other => {
            let length = size.isqrt();
            (length.checked_mul(length) == Some(size)).then_some(())?;
            unknown_of(*side, length, dims)
        }
        Dim::Product(parts) => {
            let (part, known) = of_parts(parts)?;
            let known = known.into_iter().fold(1, usize::saturating_mul);
            unknown_of(part, size.checked_div(known)?, dims)
        }
        _ => None,
    }
}

/// The name in the whole of the tensor `name` of the tower: with its position in the list of layers,
/// where it has one, and with what all names begin with.
fn stored_name(name: &str, (tower, whole): (&Tower, &Whole), config: &WholeConfig) -> String {
    let name = match tower.listed {
        None => name.to_owned(),
        Some((part, list)) => {
            let layers = config.vision.get(list).and_then(Value::as_array);
            renumbered(name, part, |layer| {
                let position = layers?.iter().position(|found| *found == layer);
                position.map(|position| position as u64)
            })
        }
    };
    let is_below = whole.inner != BASE_PREFIX && whole.inner.starts_with(BASE_PREFIX);
    match is_below && !name.starts_with(BASE_PREFIX) {
        true => format!("{BASE_PREFIX}{name}"),
        false => name,
    }
}

/// A tensor of the language model under its name in the whole.
fn inner_item<'m>(mut item: ResolvedItem<'m>, whole: &Whole) -> ResolvedItem<'m> {
    let outer = whole.inner.strip_suffix(BASE_PREFIX);
    let outer = outer
        .filter(|outer| outer.is_empty() || outer.ends_with('.'))
        .unwrap_or("");
    let name = match item.name().strip_prefix(BASE_PREFIX) {
        Some(rest) => format!("{}{rest}", whole.inner),
        None => format!("{outer}{}", item.name()),
    };
    item.rename(name);
    item
}

/// What the files say of images, and what all processors of the class have.
fn processor_of(
    tower: &Tower,
    whole: &Whole,
    metadata: &GgufMetadata,
) -> Result<Map<String, Value>> {
    let constants = whole.processor.iter();
    let constants = constants.map(|(name, value)| ((*name).to_owned(), value.into()));
    let mut all = object(constants);
    let colours: &[&str] = if tower.is_of_images() {
        &["image_mean", "image_std"]
    } else {
        &[]
    };
    for name in colours {
        let key = format!("clip.vision.{name}");
        let value = metadata.get(&key).ok_or_else(|| missing_key(&key))?;
        let colours = match value.as_array() {
            Some(GgufMetadataArray::F32(colours)) if colours.len() == 3 => colours,
            _ => return Err(wrong_key(&key, "it is no number for each of 3 colours")),
        };
        let colours = colours.iter().map(|x| float(&GgufMetadataValue::F32(*x)));
        let colours: Option<Vec<Value>> = colours.collect();
        let colours = colours.ok_or_else(|| wrong_key(&key, "a number is not finite"))?;
        all.insert((*name).to_owned(), colours.into());
    }
    Ok(all)
}

/// Adds the numbers of the tokens that stand for images.
fn add_tokens(config: &mut WholeConfig, whole: &Whole, metadata: &GgufMetadata) {
    let value = metadata.get("tokenizer.ggml.tokens");
    let all = match value.as_ref().and_then(|value| value.as_array()) {
        Some(GgufMetadataArray::String(all)) => &all[..],
        _ => &[],
    };
    for (field, token) in whole.tokens {
        match all.iter().position(|text| text == token) {
            Some(number) => {
                config.root.insert((*field).to_owned(), number.into());
            }
            None => config.notes.push(format!(
                "config.json: `{field}` is not known: no token is `{token}`; write the number of yours there"
            )),
        }
    }
}

/// Adds how many pairs of a head rotate by each axis of an image.
fn add_sections(text: &mut Map<String, Value>, metadata: &GgufMetadata) {
    let key = metadata
        .keys()
        .find(|key| key.ends_with(".rope.dimension_sections"));
    let value = key.and_then(|key| metadata.get(key));
    let sections: &[i32] = match value.as_ref().and_then(|value| value.as_array()) {
        Some(GgufMetadataArray::I32(sections)) => sections,
        _ => return,
    };
    let parameters = ["rope_parameters", "rope_scaling"];
    let has_own = parameters
        .iter()
        .find(|name| text.get(**name).is_some_and(Value::is_object));
    let field = has_own.copied().unwrap_or(parameters[1]);
    let usual = || json!({"rope_type": "default"});
    let rope = text.entry(field).or_insert_with(usual);
    if let Some(rope) = rope.as_object_mut() {
        let used = sections.strip_suffix(&[0]).unwrap_or(sections).to_vec();
        rope.entry(SECTIONS).or_insert(used.into());
    }
}

/// Fields that the whole model has of its language model.
const SHARED: [&str; 2] = ["torch_dtype", "tie_word_embeddings"];

/// `config.json` of the whole model, with what the towers say of it, and their sections.
fn root_of(
    mut config: WholeConfig,
    (mut of_root, mut sections): (Map<String, Value>, Map<String, Value>),
    whole: &Whole,
) -> Map<String, Value> {
    let mut root = Map::new();
    root.insert("architectures".to_owned(), json!([whole.class]));
    root.insert("model_type".to_owned(), whole.model_type.into());
    for field in SHARED {
        let value = config.text.get(field).cloned();
        root.extend(value.map(|value| (field.to_owned(), value)));
    }
    root.append(&mut of_root);
    root.append(&mut config.root);
    if let Some(kind) = whole.text_type {
        config.text.insert("model_type".to_owned(), kind.into());
    }
    let text_field = match root.remove(TEXT_FIELD) {
        Some(Value::String(field)) if field == FLAT => {
            for (field, value) in std::mem::take(&mut config.text) {
                root.entry(field).or_insert(value);
            }
            None
        }
        Some(Value::String(field)) => Some(field),
        _ => {
            config.text.remove("architectures");
            Some("text_config".to_owned())
        }
    };
    root.extend(text_field.map(|field| (field, Value::Object(config.text))));
    root.append(&mut sections);
    root
}

/// The config of the tower: the fields that a config of the class has, under its names, and `own`.
fn vision_of(tower: &Tower, mut fields: Fields, own: Map<String, Value>) -> Map<String, Value> {
    let class = &tower.class;
    for (usual, own) in class.own_fields.iter().rev() {
        if let Some(value) = fields.0.remove(*usual) {
            fields.0.insert((*own).to_owned(), value);
        }
    }
    let implied = class.implied.iter().chain(class.traits.also_implied);
    let named = class.defaults.iter().chain(implied).map(|(name, _)| *name);
    let known: Vec<&str> = named
        .chain(class.biases.iter().map(|(name, _)| *name))
        .collect();
    fields.0.retain(|name, _| known.contains(&name.as_str()));
    let mut vision = Map::new();
    vision.insert("model_type".to_owned(), class.model_type.into());
    vision.append(&mut fields.0);
    vision.extend(own);
    vision
}
