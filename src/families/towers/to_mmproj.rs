//! The image tower of a multimodal Hugging Face model as GGUF (`mmproj`): its tensors under GGUF's
//! names, and the metadata that llama.cpp loads it by.

use serde_json::{Map, Value};

use super::token::token_row;
use super::{FLAT, MLP_WIDTH, OfModel, Tower, TowerConfig, TowerType, tower_of};
use crate::config::Texts;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{
    Fields, HEADS, HIDDEN, INNER, KV_HEADS, KeyValue, is_same, wrong,
};
use crate::families::engine::general::identity;
use crate::families::engine::graphs::problems;
use crate::families::engine::mapping::{Mapped, MappedModel, Mapping};
use crate::families::engine::request::GgufRequest;
use crate::families::engine::source::{SourceTensor, sources_of};
use crate::families::engine::table::Model;
use crate::families::engine::to_gguf::{GgufModel, is_always_f32, main_dtype};
use crate::families::engine::{settings, transform};
use crate::model::gguf::{GGML_QNT_VERSION, GgufMetadataArray, GgufMetadataValue};
use crate::model::gguf_keys::{FILE_TYPE, VERSION};
use crate::remember::layout::assembled::Change;
use crate::remember::{EncodedAs, Group, ResolvedItem};
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

/// Whether it is a table of integers, which language models alone have.
fn is_table(item: &ResolvedItem<'_>) -> bool {
    matches!(item, ResolvedItem::Plain(t) if [Dtype::I64, Dtype::I32].contains(&t.stored.dtype()))
}

/// Files of how images become pixels. What the second says goes before the first.
const PROCESSORS: [&str; 2] = ["preprocessor_config.json", "processor_config.json"];

/// Objects in them that may hold it in place of the whole file.
const NESTED: [&str; 3] = ["media_proc_cfg", "image_processor", "vision_config"];

/// The image tower of the model of `items` as GGUF.
///
/// # Errors
/// `Unsupported` if the class has no tower here; `Parse` that names the field, the file or the tensor
/// which is missing, contradicts another, or is none of the tower.
pub(crate) fn to_mmproj<'m>(
    items: &mut Vec<ResolvedItem<'m>>,
    request: &GgufRequest<'_>,
) -> Result<GgufModel<'m>> {
    let texts = Texts::new(request.directory, request.limits);
    let config = texts.json("config.json")?;
    let Some(config @ Value::Object(root)) = &config else {
        let what = "no config.json beside the weights names a class in `architectures`";
        return Err(AnamnesisError::unsupported("an image tower", what));
    };
    let (tower, class_name) = tower_of(config)?;
    let processor = processor(&texts)?;
    let stated = config;
    // Qwen's models that speak have the towers in the config of the part that thinks.
    let root = root.get(THINKER).and_then(Value::as_object).unwrap_or(root);
    let config = TowerConfig { root, processor: &processor };
    items.retain(|item| !is_table(item));
    let sources = sources_of(std::mem::take(items).into_iter())?;
    let mut out = Vec::with_capacity(sources.len() + 1);
    let (mut keys, mut notes) = (Vec::new(), Vec::new());
    if let Some(token) = tower.token {
        let fields = fields_of(tower, &config)?;
        out.push(token_row(token, &sources, (&texts, &fields))?);
    }
    let towers = towers_of(tower, class_name, (stated, &config), sources)?;
    let tensors: Vec<_> = towers
        .iter()
        .map(|(_, _, mapped)| &mapped.tensors[..])
        .collect();
    let main = main_dtype(&tensors, request);
    for (tower, model, mapped) in towers {
        keys.extend(keys_of(tower, &model, &processor)?);
        let Model { fields, dims, .. } = &model;
        for tensor in mapped.tensors {
            out.push(tensor_of(tensor, tower, (dims, main, request))?);
        }
        out.extend(tower.added.map(|(_, added)| {
            let encoded_as = request.encodes.then_some(EncodedAs::Nothing);
            Group { encoded_as, ..added(dims) }
        }));
        notes.extend(mapped.notes);
        notes.extend(tower.note.map(str::to_owned));
        let function = fields.0.get("hidden_act");
        if function.is_some_and(|name| name == "gelu") {
            notes.push("hidden_act: llama.cpp has an approximation of gelu".to_owned());
        }
    }
    let (mut metadata, note) = identity((tower.class.gguf, "mmproj"), request, &texts, &out)?;
    let file_type = request.file_type.unwrap_or(main.gguf_file_type());
    metadata.push((FILE_TYPE.to_owned(), GgufMetadataValue::U32(file_type)));
    metadata.extend(keys);
    metadata.push((VERSION.to_owned(), GgufMetadataValue::U32(GGML_QNT_VERSION)));
    require_loadable(&metadata, &out)?;
    Ok(GgufModel {
        items: out.into_iter().map(ResolvedItem::from).collect(),
        metadata,
        notes: notes.into_iter().chain(note).chain(texts.note()).collect(),
        companions: texts.companions(),
    })
}

/// Field of the config of the part of a model that thinks.
const THINKER: &str = "thinker_config";

/// A tower with its settings and its tensors.
type FoundTower<'a, 'm> = (&'static Tower, Model<'a>, MappedModel<'m>);

/// The towers of a model, `tower` first, each with its tensors among `sources`.
///
/// # Errors
/// As [`to_mmproj`].
fn towers_of<'a, 'm>(
    tower: &'static Tower,
    class_name: &str,
    (stated, config): (&'a Value, &TowerConfig<'_>),
    sources: Vec<SourceTensor<'m>>,
) -> Result<Vec<FoundTower<'a, 'm>>> {
    let of_sounds = tower
        .sounds
        .filter(|sounds| config.root.contains_key(sounds.config));
    let (mut rest, mut all) = (sources, Vec::new());
    for tower in of_sounds.into_iter().chain([tower]) {
        let model = Model::new(&tower.class, stated, fields_of(tower, config)?)?;
        let mapping = Mapping { class: &tower.class, dims: &model.dims };
        let fields = &model.fields;
        let table_name = |name: &str| {
            let name = name.strip_prefix("thinker.").unwrap_or(name);
            let Some((part, list)) = tower.listed else {
                return name.to_owned();
            };
            renumbered(name, part, |position| fields.0.get(list)?.get(position)?.as_u64())
        };
        // What the tower of sounds does not know is of the other, or of neither.
        let knows =
            |source: &SourceTensor<'_>| !mapping.rules_of(&table_name(&source.name)).is_empty();
        let is_second = of_sounds.is_some() && all.is_empty();
        let mut own = match is_second {
            true => rest.extract_if(.., |source| knows(source)).collect(),
            false => std::mem::take(&mut rest),
        };
        if let Some(start) = tower.unread_layer {
            let last = format!("{start}{}.", model.dims.layers);
            own.retain(|source| !source.name.starts_with(&last));
        }
        let mapped = mapping.to_gguf(own, class_name, &table_name)?;
        mapping.check_biases(&mapped.tensors, fields)?;
        all.insert(0, (tower, model, mapped));
    }
    Ok(all)
}

/// The settings of `tower`: of towers of images, what the processor says of colours stands behind those
/// that all have.
fn keys_of(
    tower: &Tower,
    model: &Model<'_>,
    processor: &Map<String, Value>,
) -> Result<Vec<KeyValue>> {
    let mut keys = settings::keys_of(tower.class.settings(), model)?;
    if tower.is_of_images() {
        let own = keys.split_off(super::SETTINGS.len());
        for (number, field) in ["image_mean", "image_std"].into_iter().enumerate() {
            keys.push(match tower.colours.filter(|_| !processor.contains_key(field)) {
                Some(usual) => colours_key(field, usual[number].to_vec()),
                None => colours(processor, field)?,
            });
        }
        keys.extend(own);
    }
    Ok(keys)
}

/// Fails if llama.cpp would not load the tower.
///
/// # Errors
/// `Parse` that names the tensor or the key.
fn require_loadable(metadata: &[KeyValue], tensors: &[Group<'_>]) -> Result<()> {
    let keys = metadata.iter().map(|(key, value)| (key.as_str(), value));
    let tensors = tensors.iter().map(|group| (&*group.name, &group.shape[..]));
    match problems("clip", keys, tensors).first() {
        None => Ok(()),
        Some(problem) => Err(AnamnesisError::parse(format!("in GGUF, {problem}"))),
    }
}

/// The fields of the tower, with the defaults of its class.
fn fields_of(tower: &Tower, config: &TowerConfig<'_>) -> Result<Fields> {
    let own = match tower.config {
        FLAT => config.root,
        field => match config.root.get(field) {
            Some(Value::Object(own)) => own,
            _ => return Err(wrong(field, "it is missing")),
        },
    };
    let mut fields = Fields::of(own.clone());
    let implied = [tower.class.implied, tower.class.traits.also_implied].concat();
    for (key, default) in tower.class.defaults.iter().chain(&implied) {
        let value = || Value::from(default);
        fields.0.entry((*key).to_owned()).or_insert_with(value);
    }
    for (usual, own) in tower.class.own_fields {
        if let Some(value) = fields.0.remove(*own) {
            fields.0.insert((*usual).to_owned(), value);
        }
    }
    for OfModel { name, field, default } in tower.of_model {
        let stated = config.root.get(*field).cloned();
        let value = stated.unwrap_or_else(|| default.into());
        fields.0.insert((*name).to_owned(), value);
    }
    for name in tower.of_processor {
        let value = of_processor(config.processor, name);
        fields
            .0
            .extend(value.map(|value| ((*name).to_owned(), value.clone())));
    }
    for (name, default, expected) in tower.expected {
        let [default, expected] = [default, expected].map(Value::from);
        let found = config.root.get(*name).unwrap_or(&default);
        if !is_same(found, &expected) {
            let what = format!("it is {found}, and llama.cpp's projector has {expected}");
            return Err(wrong(name, what));
        }
    }
    (tower.complete)(&mut fields, config)?;
    check_sizes(tower, &fields)?;
    // A tower has no tokens.
    fields.0.insert("vocab_size".to_owned(), 1.into());
    fields.check_values(&implied, "llama.cpp's image tower")?;
    Ok(fields)
}

/// The field `name` of the processor. Later versions of transformers have numbers of pixels in `size`.
fn of_processor<'a>(processor: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let later = || {
        let edge = match name {
            "min_pixels" => "shortest_edge",
            "max_pixels" => "longest_edge",
            _ => return None,
        };
        processor.get("size")?.get(edge)
    };
    processor.get(name).or_else(later)
}

/// `name` with what `renumber` makes of the number behind `part`, if both are there.
pub(super) fn renumbered(
    name: &str,
    part: &str,
    renumber: impl Fn(usize) -> Option<u64>,
) -> String {
    let found = || {
        let (before, rest) = name.split_once(part)?;
        let (number, rest) = rest.split_once('.')?;
        let number = renumber(number.parse().ok()?)?;
        Some(format!("{before}{part}{number}.{rest}"))
    };
    found().unwrap_or_else(|| name.to_owned())
}

/// Fails if heads or feed-forward layers have other sizes than llama.cpp finds: GGUF does not say
/// them.
fn check_sizes(tower: &Tower, fields: &Fields) -> Result<()> {
    let (hidden, heads) = (fields.need(HIDDEN)?, fields.need(HEADS)?);
    if let Some(head) = fields.count(&["head_dim"])?
        && heads.checked_mul(head) != Some(hidden)
    {
        let what = format!("{heads} heads of {head} are not hidden_size, {hidden}");
        return Err(wrong("head_dim", what));
    }
    let mut settings = tower.class.settings();
    if settings.all(|setting| setting.fields != KV_HEADS)
        && let Some(keys) = fields.count(KV_HEADS)?
        && keys != heads
    {
        let what = format!("it is {keys}, and llama.cpp's image tower has {heads}");
        return Err(wrong(KV_HEADS[0], what));
    }
    let width = fields.count(&[MLP_WIDTH])?.or(fields.count(INNER)?);
    match tower.swaps_square && width == Some(hidden) {
        true => {
            let what = "it is hidden_size, and llama.cpp takes one projection for the other then";
            Err(wrong(INNER[0], what))
        }
        false => Ok(()),
    }
}

/// What the files of the processor say of images.
fn processor(texts: &Texts) -> Result<Map<String, Value>> {
    let mut all = Map::new();
    for file in PROCESSORS {
        let Some(Value::Object(mut found)) = texts.json(file)? else {
            continue;
        };
        for nested in NESTED {
            if let Some(Value::Object(nested)) = found.remove(nested) {
                found.extend(nested);
            }
        }
        all.extend(found);
    }
    Ok(all)
}

/// The key of the field `name` of the processor: a number for each colour.
fn colours(processor: &Map<String, Value>, name: &str) -> Result<KeyValue> {
    let number = |value: &Value| value.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
    let all = processor.get(name).and_then(Value::as_array);
    let all = all.and_then(|all| all.iter().map(number).collect::<Option<Vec<f32>>>());
    let all = all.filter(|all| all.len() == 3).ok_or_else(|| {
        let files = PROCESSORS.join(" and ");
        AnamnesisError::parse(format!("{files}: `{name}` has no number for each of 3 colours"))
    })?;
    Ok(colours_key(name, all))
}

/// The key of the field `name` of the processor, with a number for each colour.
fn colours_key(name: &str, all: Vec<f32>) -> KeyValue {
    let all = GgufMetadataArray::F32(all);
    (format!("clip.vision.{name}"), GgufMetadataValue::Array(Box::new(all)))
}

/// The tensor of GGUF that is made of `tensor`.
fn tensor_of<'m>(
    tensor: Mapped<'m>,
    tower: &Tower,
    (dims, main, request): (&Dims, TargetDtype, &GgufRequest<'_>),
) -> Result<Group<'m>> {
    let is_f16 = main == TargetDtype::F16 && !request.encodes;
    let own = tensor.sources[0].1.stored.unwrap_or(request.decoded);
    let name = tensor.name.as_str();
    let mut types = tower.types.iter();
    let stated = types.find(|(known, _)| *known == name || *known == tensor.rule.gguf);
    // Convolutions of llama.cpp take no BF16; what merges patches is one in some towers.
    let is_filter = name.contains(".patch_embd.weight") || name.contains(".patch_merger.weight");
    let fixed = match stated {
        Some((_, TowerType::F16)) => Some(TargetDtype::F16),
        Some((_, TowerType::F32)) => Some(TargetDtype::F32),
        Some((_, TowerType::Filter)) if is_f16 => Some(main),
        None if is_filter && is_f16 => Some(main),
        Some((_, TowerType::Filter)) => Some(TargetDtype::F32),
        None if is_filter || is_always_f32(name, tensor.shape().len()) => Some(TargetDtype::F32),
        None => None,
    };
    // What is encoded is exact before, as far as it is stored.
    let dtype = fixed.unwrap_or(if request.encodes { own } else { main });
    let change = match tower.class.traits.norms_plus_one && name.ends_with("norm.weight") {
        true => Change::PlusOne,
        false => Change::None,
    };
    let mut group = transform::to_gguf(tensor, dtype, change, dims)?;
    if request.encodes {
        // The converter encodes what it gives no type.
        group.encoded_as = Some(fixed.map_or(EncodedAs::Scheme, |_| EncodedAs::Nothing));
    }
    Ok(group)
}
