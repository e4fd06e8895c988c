//! A model of mlx-lm under the names of transformers.

use serde_json::{Value, json};

use super::{MlxModel, NamedClass};
use crate::arch::dims::Dims;
use crate::arch::fields::Fields;
use crate::arch::mapping::is_of_other_tower;
use crate::arch::names::{Place, fill, find, split_suffix};
use crate::arch::source::SourceTensor;
use crate::arch::table::{TensorRule, Transform};
use crate::arch::transform::{self, Halves};
use crate::scheme::layout::assembled::Change;
use crate::scheme::{ExpertCount, Group, MAX_EXPERTS, ResolvedItem};
use crate::{AnamnesisError, Result, TargetDtype};

/// The model of `items`, whose config is `config`, with the names of transformers where mlx-lm has others; what is quantized is
/// decoded to `to`. `None`, and `items` as they were, if no tensor has another name or the class is unknown.
///
/// # Errors
/// `Parse` that names a stack of experts of another shape, or a projection whose other half is missing; `Unsupported` for too
/// many experts.
pub(crate) fn from_mlx<'m>(
    items: &mut Vec<ResolvedItem<'m>>,
    config: &Value,
    to: TargetDtype,
) -> Result<Option<MlxModel<'m>>> {
    let Some(found) = NamedClass::new(config) else {
        return Ok(None);
    };
    let is_text = is_language_model(items, config, &found);
    let has_other_names = |item: &ResolvedItem<'_>| found.rule_of(item.name()).is_some();
    if !is_text && !items.iter().any(has_other_names) {
        return Ok(None);
    }
    // Tensors alone were encoded: the fused projections are a whole tensor, and the others are not mlx-lm's either.
    if items.iter().any(|item| found.is_fused(item.name())) {
        return Ok(None);
    }
    let mut fields = Fields::new(config)?;
    fields.complete(found.class)?;
    let dims = Dims::new(&fields)?;
    let mut maker = Maker {
        to,
        dims: &dims,
        stacks: ExpertCount::default(),
        halves: Halves::default(),
        out: Vec::with_capacity(items.len()),
    };
    for item in std::mem::take(items) {
        let name = item.name().strip_prefix(found.prefix()).filter(|_| is_text);
        let name = name.unwrap_or(item.name()).to_owned();
        match found.rule_of(item.name()) {
            Some(found) => maker.add(SourceTensor::new(item)?, found)?,
            None if name == item.name() => maker.out.push(item),
            None => {
                let source = SourceTensor::new(item)?;
                let dtype = source.stored.unwrap_or(to);
                maker.push(source.renamed(name, dtype));
            }
        }
    }
    if let Some((name, half)) = maker.halves.into_waiting() {
        let what = format!(
            "tensor `{}`: the other projection of `{name}` is missing",
            half.name
        );
        return Err(AnamnesisError::parse(what));
    }
    Ok(Some(MlxModel {
        items: maker.out,
        config: is_text.then(|| config_of_text(config, &found)),
        notes: vec![],
    }))
}

/// Whether the model is the language model of a larger one, without its other towers. mlx-lm leaves out their settings, too.
fn is_language_model(items: &[ResolvedItem<'_>], config: &Value, found: &NamedClass<'_>) -> bool {
    let is_part = |item: &ResolvedItem<'_>| item.name().starts_with(found.prefix());
    found.is_nested
        && config.get("vision_config").is_none()
        && items.iter().all(is_part)
        && !items.iter().any(|item| is_of_other_tower(item.name()))
}

/// The config of the language model alone.
fn config_of_text(config: &Value, found: &NamedClass<'_>) -> Value {
    let mut text = config["text_config"].clone();
    if let (Some(text), Some(outer)) = (text.as_object_mut(), config.as_object()) {
        const TOKENS: &[&str] = &[
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "torch_dtype",
        ];
        let kept = outer
            .iter()
            .filter(|(key, _)| TOKENS.contains(&key.as_str()));
        for (key, value) in kept {
            text.entry(key.clone()).or_insert(value.clone());
        }
        text.insert("architectures".to_owned(), json!([found.class.classes[0]]));
        text.insert("model_type".to_owned(), found.class.model_type.into());
    }
    text
}

/// The rule of a tensor, the numbers in its name, and what follows it.
type FoundRule = (&'static TensorRule, Place, &'static str);

impl NamedClass<'_> {
    /// Whether `name` is that of projections that transformers fuses and mlx-lm does not.
    fn is_fused(&self, name: &str) -> bool {
        let (base, _) = split_suffix(name);
        let mut rules = self.class.tensors.iter().flat_map(|rules| rules.iter());
        rules.any(|rule| {
            matches!(rule.transform, Transform::TransposedHalf(_)) && find(rule.hf, base).is_some()
        })
    }

    /// The rule of the tensor that mlx-lm calls `name`; `None` if transformers calls it so as well.
    fn rule_of(&self, name: &str) -> Option<FoundRule> {
        let name = name.strip_prefix(self.prefix())?;
        let (base, suffix) = split_suffix(name);
        let rules = || self.class.tensors.iter().flat_map(|rules| rules.iter());
        self.mlx.renamed.iter().find_map(|(gguf, pattern)| {
            let rule = rules().find(|rule| rule.gguf == *gguf)?;
            Some(match rule.is_whole_name {
                true => (rule, find(pattern, name)?, ""),
                false => (rule, find(pattern, base)?, suffix),
            })
        })
    }
}

/// Makes tensors of transformers.
struct Maker<'a, 'm> {
    to: TargetDtype,
    dims: &'a Dims,
    stacks: ExpertCount,
    halves: Halves<'m>,
    out: Vec<ResolvedItem<'m>>,
}

impl<'m> Maker<'_, 'm> {
    fn push(&mut self, group: Group<'m>) {
        self.out.push(ResolvedItem::Group(group));
    }

    /// Counts the experts of a stack: each becomes a tensor, and a small file could otherwise fill any memory.
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
        let what = format!("tensor `{name}`: {experts} experts, {all} in all");
        Err(AnamnesisError::unsupported("MLX", what))
    }

    /// Makes what `source` becomes by its rule.
    fn add(&mut self, source: SourceTensor<'m>, found: FoundRule) -> Result<()> {
        let (rule, place, suffix) = found;
        let hf_name = |expert| format!("{}{suffix}", fill(rule.hf, Place { expert, ..place }));
        let (name, own) = (hf_name(None), source.stored.unwrap_or(self.to));
        let rank = match rule.transform {
            Transform::Experts | Transform::Transposed | Transform::TransposedHalf(_) => 3,
            _ => 2,
        };
        if source.shape.len() != rank || source.shape.contains(&0) {
            let what = format!(
                "tensor `{}`: its shape is {:?}, and stacks of experts have {rank} dimensions",
                source.name, source.shape
            );
            return Err(AnamnesisError::parse(what));
        }
        if rule.transform == Transform::Experts {
            self.count(&source)?;
        }
        let Some(is_first) = transform::half_of(rule.transform) else {
            let of_rule = (&hf_name as &dyn Fn(_) -> _, rule);
            let source = (name, source);
            let made = transform::to_hf(source, of_rule, own, Change::None, self.dims)?;
            made.into_iter().for_each(|group| self.push(group));
            return Ok(());
        };
        let Some(pair) = self.halves.pair(&name, source, is_first) else {
            return Ok(());
        };
        let [first, second] = &pair;
        if first.shape != second.shape {
            let what = format!(
                "tensor `{}`: its shape is not that of `{}`",
                second.name, first.name
            );
            return Err(AnamnesisError::parse(what));
        }
        let group = transform::fused(pair, (name, rule.transform), own, self.dims)?;
        self.push(group);
        Ok(())
    }
}
