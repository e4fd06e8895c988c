//! A model of transformers as mlx-lm has it.

use serde_json::Value;

use super::config::{check, check_biases, config_of};
use super::{MlxModel, NamedClass, has_each_expert};
use crate::families::engine::dims::{Dim, Dims, Need};
use crate::families::engine::fields::{Fields, PREDICTION};
use crate::families::engine::mapping::{Mapped, Mapping};
use crate::families::engine::names::{Place, fill, of_language_model};
use crate::families::engine::prediction::is_predicting;
use crate::families::engine::source::{Rearrangement, SourceTensor, assembled, sources_of};
use crate::families::engine::table::mlx::{MlxClass, OutputLayer};
use crate::families::engine::table::{Model, TensorRule, Transform};
use crate::families::engine::to_gguf::has_offset;
use crate::families::engine::transform;
use crate::remember::layout::assembled::Change;
use crate::remember::{CodeType, EncodedAs, Granularity, Group, QuantScheme, ResolvedItem};
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

/// The model of `items`, whose config is `config`, under mlx-lm's names; `None` if its class has
/// none here. What is quantized is decoded to `to`, and everything else gets the type that the
/// config states.
///
/// # Errors
/// `Parse` that names the field or the tensor which is missing, contradicts another, or is none of
/// the class.
pub(crate) fn to_mlx<'m>(
    items: &mut Vec<ResolvedItem<'m>>,
    config: &Value,
    to: TargetDtype,
) -> Result<Option<MlxModel<'m>>> {
    let Some(found) = NamedClass::new(config) else {
        return Ok(None);
    };
    let NamedClass { name, class, mlx, .. } = found;
    let mut fields = Fields::new(config)?;
    fields.complete(class)?;
    // mlx-lm has no layers that predict further tokens, which are layers of GGUF.
    fields.0.remove(PREDICTION);
    let model = Model::new(class, config, fields)?;
    let Model { fields, dims, .. } = &model;
    let of_class = check(&found, &model)?;
    let count = items.len();
    let kept = std::mem::take(items).into_iter();
    let prediction = class.traits.prediction;
    let kept = kept.filter(|item| !is_predicting(prediction, item.name(), dims.layers));
    let kept: Vec<_> = kept.collect();
    let predicting = count - kept.len();
    let sources = sources_of(kept.into_iter())?;
    let mapping = Mapping { class, dims };
    let mapped = mapping.to_gguf(sources, name, &of_language_model)?;
    check_biases(mlx, fields, &mapping.biases(&mapped.tensors)?)?;
    let is_tied = match mlx.output {
        OutputLayer::AsConfigured => fields.flag("tie_word_embeddings"),
        OutputLayer::Tied => true,
        OutputLayer::Stored => false,
    };
    if !is_tied && !mapped.tensors.iter().any(|t| is_output(t.rule)) {
        let error = AnamnesisError::parse("there is none, and mlx-lm's model has one");
        return Err(error.in_tensor("lm_head.weight"));
    }
    let stated = stated_dtype(config);
    let mut notes = mapped.notes;
    if predicting > 0 {
        let what = "tensors left out that predict several tokens at once";
        notes.push(format!("{predicting} {what}"));
    }
    notes.extend(of_class);
    let mut out = Vec::with_capacity(mapped.tensors.len());
    let tensors = mapped.tensors.into_iter();
    let mut parts = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        match found.name_of(tensor.rule) {
            Some((name, _)) if has_each_expert(name, tensor.rule) => {
                parts.extend(experts_of(tensor, dims, to)?);
            }
            _ => parts.extend(parts_of(tensor, mlx)),
        }
    }
    for tensor in parts {
        let (rule, layer) = (tensor.rule, tensor.place.layer.unwrap_or(0));
        let has_name = found.name_of(rule).is_some();
        let is_second = rule
            .transform
            .some_parts()
            .is_some_and(|parts| parts.first > 0);
        // A layer may have keys and values that it does not use.
        let may_be_unused = matches!(rule.need, Need::OwnKeys | Need::OwnValues);
        let is_unused = may_be_unused && dims.has(rule.need, layer).is_none();
        // What GGUF alone takes apart is whole in MLX, and made of the first part. It alone has copies.
        if is_output(rule) && is_tied || is_second && !has_name || is_unused || rule.is_copy {
            continue;
        }
        let dtype = match tensor.sources[0].1.stored {
            Some(stored) if mlx.kept_types.contains(&rule.gguf) => stored,
            Some(stored) => stated.unwrap_or(stored),
            None => to,
        };
        out.push(ResolvedItem::from(tensor_of(tensor, &found, dtype, dims)?));
    }
    Ok(Some(MlxModel { items: out, config: config_of(&found, &model, is_tied)?, notes }))
}

/// Whether it is the layer behind the last norm.
fn is_output(rule: &TensorRule) -> bool {
    matches!(rule.gguf, "output" | "output.weight")
}

/// The matrix of each expert in `tensor`, which has them below each other.
///
/// # Errors
/// `Parse` if its rows are not those of as many experts as the config says.
fn experts_of<'m>(tensor: Mapped<'m>, dims: &Dims, to: TargetDtype) -> Result<Vec<Mapped<'m>>> {
    let Mapped { name, rule, place, suffix, sources } = tensor;
    let source = &sources[0].1;
    let experts = dims.need_size(Dim::Experts)?.max(1);
    if !source.shape[0].is_multiple_of(experts) {
        let what = format!("it has {} rows, and there are {experts} experts", source.shape[0]);
        return Err(AnamnesisError::parse(what).in_tensor(&source.name));
    }
    let rows = source.shape[0] / experts;
    let matrix = |expert: usize| {
        let matrix = source.rows_of(source.name.clone(), expert * rows, (rows, false));
        let matrix = match rule.transform {
            Transform::Parts(_) => transform::transposed(matrix, source.stored.unwrap_or(to)),
            _ => matrix,
        };
        let place = Place { expert: Some(expert), ..place };
        Mapped { name: name.clone(), rule, place, suffix, sources: vec![(0, matrix)] }
    };
    Ok((0..experts).map(matrix).collect())
}

/// What `tensor` is taken apart to in MLX, or itself.
fn parts_of<'m>(tensor: Mapped<'m>, mlx: &MlxClass) -> Vec<Mapped<'m>> {
    let is_part = |part: &&TensorRule| part.hf == tensor.rule.hf;
    let parts = mlx.parts.iter().filter(is_part);
    let part = |rule| Mapped {
        name: tensor.name.clone(),
        rule,
        place: tensor.place,
        suffix: tensor.suffix,
        sources: tensor.sources.clone(),
    };
    if matches!(tensor.rule.transform, Transform::Stack(_) | Transform::Joined(_)) {
        // Of all stacks but those of experts, mlx-lm has each matrix alone, as transformers has it.
        let one = |(number, source)| Mapped {
            place: Place { expert: Some(number), ..tensor.place },
            sources: vec![(number, source)],
            ..part(tensor.rule)
        };
        return tensor.sources.iter().cloned().map(one).collect();
    }
    let parts: Vec<_> = parts.map(part).collect();
    match parts.is_empty() {
        true => vec![tensor],
        false => parts,
    }
}

/// The tensor of mlx-lm that is made of `tensor`.
fn tensor_of<'m>(
    mut tensor: Mapped<'m>,
    found: &NamedClass<'_>,
    dtype: TargetDtype,
    dims: &Dims,
) -> Result<Group<'m>> {
    let (mlx, rule) = (found.mlx, tensor.rule);
    let renamed = found.name_of(rule);
    let (name, end) = match renamed {
        Some((pattern, end)) => (fill(pattern, tensor.place), end),
        None => (rule.hf_name(tensor.place), ""),
    };
    let name = format!("{}{end}{}", found.with_prefix(&name), tensor.suffix);
    let is_mxfp4 = mlx.keeps_mxfp4 && is_mxfp4(tensor.sources[0].1.scheme);
    let is_split = rule.transform.some_parts().is_some() && renamed.is_some();
    let mut group = match rule.transform {
        Transform::Experts | Transform::Transposed => {
            transform::to_gguf(Mapped { name, ..tensor }, dtype, Change::None, dims)?
        }
        _ if is_split => transform::to_gguf(Mapped { name, ..tensor }, dtype, Change::None, dims)?,
        _ if rule.is_filter() => {
            let source = tensor.sources.swap_remove(0).1;
            let shape = vec![source.shape[0], source.shape[2], 1];
            source.reshaped(name, shape, dtype)
        }
        _ if mlx.head_rows.contains(&rule.gguf) => {
            let source = tensor.sources.swap_remove(0).1;
            let (count, head) = (source.shape[0], dims.head.max(1));
            if !count.is_multiple_of(head) {
                let what = format!("it has {count} values, and heads have {head}");
                return Err(AnamnesisError::parse(what).in_tensor(&source.name));
            }
            let shape = vec![count / head, head];
            source.reshaped(name, shape, dtype)
        }
        // A number of a layer has no dimensions.
        Transform::Key(_) if mlx.bare_numbers => {
            tensor
                .sources
                .swap_remove(0)
                .1
                .reshaped(name, vec![], dtype)
        }
        _ if mlx.norms_plus_one && has_offset(&tensor.name) => {
            let source = tensor.sources.swap_remove(0).1;
            let (shape, own) = (source.shape.clone(), source.stored.unwrap_or(dtype));
            let moved = Rearrangement::changed(&shape, Change::PlusOne);
            // mlx-lm adds in the type that is stored, and rounds to that of the model afterwards.
            let sum = assembled(vec![source], (name.clone(), shape), own, &moved);
            SourceTensor::new(ResolvedItem::from(sum))?.renamed(name, dtype)
        }
        // Of the classes here, all else that differs is GGUF's alone.
        _ => {
            let source = tensor.sources.swap_remove(0).1;
            source.renamed(name, dtype)
        }
    };
    let mode = mlx.modes.iter().find(|(gguf, _)| *gguf == rule.gguf);
    group.encoded_as = Some(match mode {
        // Of the classes here, modules whose weights are matrices or stacks of them can all be
        // quantized.
        _ if group.shape.len() < 2 || !group.name.ends_with(".weight") => EncodedAs::Nothing,
        // Convolutions are no linear modules, and norms of heads are none either.
        _ if rule.is_filter() || mlx.head_rows.contains(&rule.gguf) => EncodedAs::Nothing,
        _ if mlx.unencoded == Some((rule.gguf, rule.need)) => EncodedAs::Nothing,
        _ if is_mxfp4 => EncodedAs::Mxfp4,
        Some((_, mode)) => *mode,
        None => EncodedAs::Scheme,
    });
    Ok(group)
}

/// Whether values are E2M1 in groups of 32 with an exponent each, in the layout of gpt-oss, MLX or
/// ggml.
fn is_mxfp4(scheme: QuantScheme) -> bool {
    match scheme {
        QuantScheme::Grouped { codes, scales, .. } => {
            matches!(codes, CodeType::Mxfp4 | CodeType::Fp4) && scales == Granularity::Group(32)
        }
        QuantScheme::Ggml { dtype } => dtype == Dtype::MXFP4,
        _ => false,
    }
}

/// The type that mlx-lm gives all floats: `torch_dtype`, or that of a nested config.
///
/// Source: `convert` in `mlx_lm/convert.py`, which does not read `dtype` of the outer config.
fn stated_dtype(config: &Value) -> Option<TargetDtype> {
    let outer = config.get("torch_dtype").filter(|name| !name.is_null());
    let name = outer.or_else(|| config.pointer("/text_config/dtype"))?;
    match name.as_str()? {
        "float16" => Some(TargetDtype::F16),
        "bfloat16" => Some(TargetDtype::BF16),
        "float32" => Some(TargetDtype::F32),
        _ => None,
    }
}

/// The error that a model of the class `name` has no names of mlx-lm.
pub(crate) fn unknown_class(name: &str) -> AnamnesisError {
    let what = "config.json: the class of the model has no names of mlx-lm here; its tensors alone are written with --tensors-only";
    AnamnesisError::unsupported(name, what)
}
