//! A model of mlx-lm under the names of transformers.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{MlxModel, NamedClass};
use crate::error::InTensor;
use crate::families::CLASSES;
use crate::families::engine::dims::{Dim, Dims};
use crate::families::engine::fields::Fields;
use crate::families::engine::names::{Place, fill, find, is_of_tower, split_suffix};
use crate::families::engine::rope::{PARAMETERS, SCALING};
use crate::families::engine::source::{Rearrangement, SourceTensor, assembled};
use crate::families::engine::table::mlx::Prefix;
use crate::families::engine::table::{Kind, Model, ModelClass, TensorRule, Transform, Turn};
use crate::families::engine::to_gguf::has_offset;
use crate::families::engine::transform::{self, WaitingParts};
use crate::remember::layout::assembled::{Change, RowOrder};
use crate::remember::{ExpertCount, Group, MAX_EXPERTS, ResolvedItem};
use crate::{AnamnesisError, Result, TargetDtype};

/// The model of `items`, whose config is `config`, with the names of transformers where mlx-lm has
/// others; what is quantized is decoded to `to`. `None`, and `items` as they were, if no tensor has
/// another name or the class is unknown.
///
/// # Errors
/// `Parse` that names a stack of experts of another shape, or a projection whose other half is
/// missing; `Unsupported` for too many experts.
pub(crate) fn from_mlx<'m>(
    items: &mut Vec<ResolvedItem<'m>>,
    config: &Value,
    to: TargetDtype,
) -> Result<Option<MlxModel<'m>>> {
    let Some(found) = NamedClass::new(config) else {
        return Ok(None);
    };
    let is_text = is_language_model(items, config, &found);
    let has_other_names = |item: &ResolvedItem<'_>| found.rule_of(item).is_some();
    // Under transformers' names the prefix is behind `model.`.
    let begins = |item: &ResolvedItem<'_>| item.name().starts_with(found.prefix());
    let is_mlx = match found.mlx.prefix {
        // With other towers it is not mlx-lm's.
        _ if found.is_nested => is_text,
        Prefix::Always(_) => !items.is_empty() && items.iter().all(begins),
        _ => {
            let has_own_type = found
                .mlx
                .mlx_type
                .is_some_and(|own| config["model_type"] == own);
            has_own_type || items.iter().any(has_other_names)
        }
    };
    if !is_mlx {
        return Ok(None);
    }
    // Tensors alone were encoded: the fused projections are a whole tensor, and the others are not
    // mlx-lm's either.
    if items.iter().any(|item| found.is_fused(item.name())) {
        return Ok(None);
    }
    let mut fields = Fields::new(config)?;
    fields.complete(found.class)?;
    let model = Model::new(found.class, config, fields)?;
    let mut maker = Maker {
        to,
        norms_plus_one: found.mlx.norms_plus_one,
        head_rows: found.mlx.head_rows,
        dims: &model.dims,
        stacks: ExpertCount::default(),
        waiting: WaitingParts::default(),
        experts: BTreeMap::new(),
        out: Vec::with_capacity(items.len()),
    };
    for item in std::mem::take(items) {
        let name = found.without_prefix(item.name());
        let name = name.map_or_else(|| item.name().to_owned(), Cow::into_owned);
        match found.rule_of(&item).or_else(|| found.norm_of(&item)) {
            Some(found) => maker.add(SourceTensor::new(item)?, found)?,
            None if name == item.name() => maker.out.push(item),
            None => {
                let source = SourceTensor::new(item)?;
                let dtype = source.stored.unwrap_or(to);
                maker.push(source.renamed(name, dtype));
            }
        }
    }
    if let Some((name, _)) = maker.experts.first_key_value() {
        let count = model.dims.need_size(Dim::Experts)?;
        let what = format!("its experts are not those of config.json, which has {count}");
        return Err(AnamnesisError::parse(what).in_tensor(name));
    }
    if let Some((name, half)) = maker.waiting.into_waiting() {
        let what = format!("{}: the other projection of `{name}` is missing", InTensor(&half.name));
        return Err(AnamnesisError::parse(what));
    }
    Ok(Some(MlxModel {
        items: maker.out,
        config: match is_text {
            true => Some(config_of_text(config, &found)),
            false => config_of_class(config, &found),
        },
        notes: vec![],
    }))
}

/// Whether the model is the language model of a larger one, without its other towers. mlx-lm leaves
/// out their settings, too.
fn is_language_model(items: &[ResolvedItem<'_>], config: &Value, found: &NamedClass<'_>) -> bool {
    let is_part = |item: &ResolvedItem<'_>| item.name().starts_with(found.prefix());
    found.is_nested
        && config.get("vision_config").is_none()
        && items.iter().all(is_part)
        && !items.iter().any(|item| is_of_tower(item.name()))
}

/// The config of the language model alone.
fn config_of_text(config: &Value, found: &NamedClass<'_>) -> Value {
    let mut text = config["text_config"].clone();
    if let (Some(text), Some(outer)) = (text.as_object_mut(), config.as_object()) {
        const TOKENS: &[&str] = &["bos_token_id", "eos_token_id", "pad_token_id", "torch_dtype"];
        let kept = outer
            .iter()
            .filter(|(key, _)| TOKENS.contains(&key.as_str()));
        for (key, value) in kept {
            text.entry(key.clone()).or_insert(value.clone());
        }
        text.insert("architectures".to_owned(), json!([without_images(found.class)]));
        text.insert("model_type".to_owned(), found.class.model_type.into());
        leave_out_axes(text, found);
    }
    text
}

/// The class of the language model of `class`, which may have a row of its own.
fn without_images(class: &ModelClass) -> &'static str {
    let name = class.classes[0];
    let is_alike = |other: &&&ModelClass| {
        (other.gguf, other.model_type) == (class.gguf, class.model_type)
            && other.classes[0].ends_with("ForCausalLM")
    };
    match name.ends_with("ForConditionalGeneration") {
        true => CLASSES
            .iter()
            .find(is_alike)
            .map_or(name, |other| other.classes[0]),
        false => name,
    }
}

/// Takes out of `config` what it says of axes of an image: a text has none, and the class that is
/// written does not know them.
fn leave_out_axes(config: &mut Map<String, Value>, found: &NamedClass<'_>) {
    if !found.has_axes() {
        return;
    }
    for name in [SCALING, PARAMETERS] {
        let Some(Value::Object(rope)) = config.get_mut(name) else {
            continue;
        };
        rope.retain(|name, value| !name.starts_with("mrope_") && value != "mrope");
        let is_default =
            |(name, value): (&String, &Value)| name.ends_with("type") && value == "default";
        if rope.iter().all(is_default) {
            config.remove(name);
        }
    }
}

/// The config with the `model_type` of transformers; `None`: it has it.
fn config_of_class(config: &Value, found: &NamedClass<'_>) -> Option<Value> {
    let is_other = (found.mlx.mlx_type.is_some() || found.has_axes()) && !found.is_nested;
    is_other.then(|| {
        let mut config = config.clone();
        config["model_type"] = found.class.model_type.into();
        if let Some(config) = config.as_object_mut().filter(|_| found.has_axes()) {
            config.remove("vision_config");
            config.insert("architectures".to_owned(), json!([found.class.classes[0]]));
            leave_out_axes(config, found);
        }
        config
    })
}

/// The rule of a tensor, the numbers in its name, and what follows it.
type FoundRule = (&'static TensorRule, Place, &'static str);

impl NamedClass<'_> {
    /// Whether heads rotate by the axes of an image.
    fn has_axes(&self) -> bool {
        self.class.has_setting(Kind::TextSections)
    }

    /// Whether `name` is that of projections that transformers fuses and mlx-lm does not.
    fn is_fused(&self, name: &str) -> bool {
        let (base, _) = split_suffix(name);
        let mut rules = self
            .rules()
            .filter(|rule| find(rule.hf, base).is_some())
            .peekable();
        let is_split = |rule: &TensorRule| {
            let parts = rule.transform.some_parts();
            parts.is_some_and(|parts| !matches!(parts.turn, Turn::Rows(_)))
                && self.name_of(rule).is_some()
        };
        rules.peek().is_some() && rules.all(is_split)
    }

    fn rules(&self) -> impl Iterator<Item = &'static TensorRule> + use<> {
        let own = self.class.tensors.iter().flat_map(|rules| rules.iter());
        own.chain(self.mlx.parts)
    }

    /// The rule of a tensor that mlx-lm calls otherwise than transformers, or has in another shape;
    /// `None` for all others.
    fn rule_of(&self, item: &ResolvedItem<'_>) -> Option<FoundRule> {
        let name = self.without_prefix(item.name())?;
        let name = name.as_ref();
        let (base, suffix) = split_suffix(name);
        let renamed = self.mlx.renamed.iter().find_map(|(gguf, pattern)| {
            let rule = self.rules().find(|rule| rule.gguf == *gguf)?;
            Some(match rule.is_whole_name {
                true => (rule, find(pattern, name)?, ""),
                false => (rule, find(pattern, base)?, suffix),
            })
        });
        renamed.or_else(|| {
            let is_reshaped = |rule: &&TensorRule| match item.shape() {
                // Filters of one value are the same on both sides.
                [_, len, 1] => *len > 1 && rule.is_filter(),
                [_, _] => self.mlx.head_rows.contains(&rule.gguf),
                [] => {
                    let is_number = matches!(rule.transform, Transform::Key(_));
                    self.mlx.bare_numbers && is_number && !rule.shape.is_empty()
                }
                _ => false,
            };
            let mut reshaped = self.rules().filter(is_reshaped);
            reshaped.find_map(|rule| match rule.is_whole_name {
                true => Some((rule, find(rule.hf, name)?, "")),
                false => Some((rule, find(rule.hf, base)?, suffix)),
            })
        })
    }

    /// The rule of a norm to which mlx-lm adds 1; `None` for all other tensors.
    fn norm_of(&self, item: &ResolvedItem<'_>) -> Option<FoundRule> {
        if !self.mlx.norms_plus_one {
            return None;
        }
        let name = self.without_prefix(item.name())?;
        let name = name.as_ref();
        let (base, suffix) = split_suffix(name);
        let is_norm = |rule: &TensorRule| has_offset(&format!("{}{suffix}", rule.gguf));
        let mut norms = self.rules().filter(|rule| is_norm(rule));
        norms.find_map(|rule| Some((rule, find(rule.hf, base)?, suffix)))
    }
}

/// Makes tensors of transformers.
struct Maker<'a, 'm> {
    to: TargetDtype,
    norms_plus_one: bool,
    head_rows: &'static [&'static str],
    dims: &'a Dims,
    stacks: ExpertCount,
    waiting: WaitingParts<'m>,
    /// Matrices of experts that transformers has below each other, by its name for all and by their
    /// numbers.
    experts: BTreeMap<String, BTreeMap<usize, SourceTensor<'m>>>,
    out: Vec<ResolvedItem<'m>>,
}

impl<'m> Maker<'_, 'm> {
    fn push(&mut self, group: Group<'m>) {
        self.out.push(ResolvedItem::from(group));
    }

    /// Counts the experts of a stack: each becomes a tensor, and a small file could otherwise fill
    /// any memory.
    fn count(&mut self, stack: &SourceTensor<'m>) -> Result<()> {
        // A value has half a byte at least.
        let values = stack
            .shape
            .iter()
            .fold(1u64, |n, &size| n.saturating_mul(size as u64));
        let is_too_many = self.stacks.add(&stack.shape, values / 2);
        if stack.shape[0] <= MAX_EXPERTS && !is_too_many {
            return Ok(());
        }
        let (name, experts, all) = (&stack.name, stack.shape[0], self.stacks.experts);
        let what = format!("{}: {experts} experts, {all} in all", InTensor(&name));
        Err(AnamnesisError::unsupported("MLX", what))
    }

    /// Fails unless a part whose length the config says has the shape that it says.
    fn check_lengths(&self, source: &SourceTensor<'m>, rule: &TensorRule) -> Result<()> {
        let dims = rule.gguf_shape.unwrap_or(rule.shape);
        let expected = dims.iter().map(|dim| self.dims.size(*dim, None));
        if expected.eq(source.shape.iter().copied().map(Some)) {
            return Ok(());
        }
        let fields: Vec<_> = dims.iter().map(|dim| self.dims.fields_of(*dim)).collect();
        let what = format!(
            "{}: its shape is {:?}, and the config says {}",
            InTensor(&source.name),
            source.shape,
            fields.join(", ")
        );
        Err(AnamnesisError::parse(what))
    }

    /// Adds the matrix `source` of an expert, and makes the tensor of all if it is the last one.
    fn add_expert(
        &mut self,
        (name, expert): (String, usize),
        source: SourceTensor<'m>,
        rule: &TensorRule,
    ) -> Result<()> {
        let own = source.stored.unwrap_or(self.to);
        let of_rule = rule.gguf_shape.unwrap_or(rule.shape).iter().skip(1);
        let expected = of_rule.map(|dim| self.dims.size(*dim, None));
        if !expected.eq(source.shape.iter().copied().map(Some)) {
            let what = format!("its shape is {:?}, and the config says another", source.shape);
            return Err(AnamnesisError::parse(what).in_tensor(&source.name));
        }
        let matrix = match rule.transform {
            Transform::Parts(_) => transform::transposed(source, own),
            _ => source,
        };
        let all = self.experts.entry(name.clone()).or_default();
        all.insert(expert, matrix);
        let count = self.dims.need_size(Dim::Experts)?;
        if all.len() < count || all.keys().next_back().is_some_and(|last| *last >= count) {
            return Ok(());
        }
        let all: Vec<_> = self.experts.remove(&name).into_iter().flatten().collect();
        let all: Vec<_> = all.into_iter().map(|(_, matrix)| matrix).collect();
        let [rows, cols] = [all[0].shape[0], all[0].shape[1]];
        let moved = Rearrangement::of_each(count, RowOrder::From(0), (rows, cols));
        self.push(assembled(all, (name, vec![count * rows, cols]), own, &moved));
        Ok(())
    }

    /// Makes what `source` becomes by its rule.
    fn add(&mut self, source: SourceTensor<'m>, found: FoundRule) -> Result<()> {
        let (rule, place, suffix) = found;
        let hf_name = |expert| format!("{}{suffix}", fill(rule.hf, Place { expert, ..place }));
        let (name, own) = (hf_name(None), source.stored.unwrap_or(self.to));
        if let Some(expert) = place.expert.filter(|_| !rule.hf.contains("{e}")) {
            return self.add_expert((name, expert), source, rule);
        }
        if rule.is_filter() {
            let [filters, len, 1] = source.shape[..] else {
                return Err(AnamnesisError::parse(format!(
                    "{}: its shape is {:?}, and filters are [n, k, 1]",
                    InTensor(&source.name),
                    source.shape
                )));
            };
            self.push(source.reshaped(name, vec![filters, 1, len], own));
            return Ok(());
        }
        if self.head_rows.contains(&rule.gguf) {
            let count = source.shape.iter().product();
            self.push(source.reshaped(name, vec![count], own));
            return Ok(());
        }
        // Of classes with dimensions, numbers have no other names.
        if matches!(rule.transform, Transform::Key(_)) {
            self.push(source.reshaped(name, vec![1; rule.shape.len()], own));
            return Ok(());
        }
        let gguf_name = format!("{}{suffix}", rule.gguf);
        if self.norms_plus_one && has_offset(&gguf_name) {
            let moved = Rearrangement::changed(&source.shape, Change::MinusOne);
            let shape = source.shape.clone();
            self.push(assembled(vec![source], (name, shape), own, &moved));
            return Ok(());
        }
        let is_moved = match rule.transform {
            Transform::Experts => true,
            // mlx-lm has all parts in one matrix, as transformers has them.
            Transform::Parts(_) => rule.transform.some_parts().is_some(),
            // A bias stays as it is.
            Transform::Transposed => suffix != ".bias",
            // All other transforms are GGUF's alone.
            _ => false,
        };
        if !is_moved {
            self.push(source.renamed(name, own));
            return Ok(());
        }
        let is_stack = rule.transform == Transform::Experts;
        let rank = rule.gguf_shape.unwrap_or(rule.shape).len() + usize::from(is_stack);
        if source.shape.len() != rank || source.shape.contains(&0) {
            let what = format!(
                "{}: its shape is {:?}, and stacks of experts have {rank} dimensions",
                InTensor(&source.name),
                source.shape
            );
            return Err(AnamnesisError::parse(what));
        }
        if is_stack {
            self.count(&source)?;
        }
        let Some(parts) = rule.transform.some_parts() else {
            let of_rule = (&hf_name as &dyn Fn(_) -> _, rule);
            let source = (name, source);
            let made = transform::to_hf(source, of_rule, own, Change::None, self.dims)?;
            made.into_iter().for_each(|group| self.push(group));
            return Ok(());
        };
        let has_lengths = matches!(parts.turn, Turn::Rows(_));
        if has_lengths {
            self.check_lengths(&source, rule)?;
        }
        let Some(parts) = self.waiting.complete(&name, source, parts) else {
            return Ok(());
        };
        if let [(_, first), (_, second)] = &parts[..]
            && !has_lengths
            && first.shape != second.shape
        {
            let what =
                format!("{}: its shape is not that of `{}`", InTensor(&second.name), first.name);
            return Err(AnamnesisError::parse(what));
        }
        self.push(transform::joined(parts, (name, rule), own, self.dims)?);
        Ok(())
    }
}
