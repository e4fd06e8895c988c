//! A model of transformers as mlx-lm has it.

use serde_json::{Map, Value};

use super::{MlxClass, MlxModel, NamedClass, OutputLayer};
use crate::arch::dims::Dims;
use crate::arch::fields::{Fields, LAYER_KINDS, layer_kinds, wrong};
use crate::arch::mapping::{Mapped, Mapping};
use crate::arch::names::fill;
use crate::arch::rope::Rope;
use crate::arch::source::SourceTensor;
use crate::arch::table::{ModelClass, Transform};
use crate::arch::transform;
use crate::scheme::layout::assembled::Change;
use crate::scheme::{CodeType, EncodedAs, Granularity, Group, QuantScheme, ResolvedItem};
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

/// The model of `items`, whose config is `config`, under mlx-lm's names; `None` if its class has none here. What is quantized is
/// decoded to `to`, and everything else gets the type that the config states.
///
/// # Errors
/// `Parse` that names the field or the tensor which is missing, contradicts another, or is none of the class.
pub(crate) fn to_mlx<'m>(
    items: &mut Vec<ResolvedItem<'m>>,
    config: &Value,
    to: TargetDtype,
) -> Result<Option<MlxModel<'m>>> {
    let Some(found) = NamedClass::new(config) else {
        return Ok(None);
    };
    let NamedClass {
        name, class, mlx, ..
    } = found;
    let mut fields = Fields::new(config)?;
    fields.complete(class)?;
    let dims = Dims::new(&fields)?;
    check_config(mlx, class, &fields, &dims)?;
    let sources = std::mem::take(items).into_iter().map(SourceTensor::new);
    let sources = sources.collect::<Result<Vec<_>>>()?;
    let mapping = Mapping { class, dims: &dims };
    let mapped = mapping.to_gguf(sources, name)?;
    check_biases(mlx, &fields, &mapping.biases(&mapped.tensors)?)?;
    let is_tied = match mlx.output {
        OutputLayer::AsConfigured => fields.flag("tie_word_embeddings"),
        OutputLayer::Tied => true,
        OutputLayer::Stored => false,
    };
    if !is_tied && !mapped.tensors.iter().any(|t| t.rule.gguf == "output") {
        let what = "tensor `lm_head.weight`: there is none, and mlx-lm's model has one";
        return Err(AnamnesisError::parse(what));
    }
    let stated = stated_dtype(config);
    let mut out = Vec::with_capacity(mapped.tensors.len());
    for tensor in mapped.tensors {
        if tensor.rule.gguf == "output" && is_tied {
            continue;
        }
        let dtype = match tensor.sources[0].1.stored {
            Some(stored) if mlx.kept_types.contains(&tensor.rule.gguf) => stored,
            Some(stored) => stated.unwrap_or(stored),
            None => to,
        };
        out.push(ResolvedItem::Group(tensor_of(
            tensor, &found, dtype, &dims,
        )?));
    }
    Ok(Some(MlxModel {
        items: out,
        config: config_of(config, (&found, &fields, &dims), is_tied)?,
        notes: mapped.notes,
    }))
}

/// The tensor of mlx-lm that is made of `tensor`.
fn tensor_of<'m>(
    mut tensor: Mapped<'m>,
    found: &NamedClass<'_>,
    dtype: TargetDtype,
    dims: &Dims,
) -> Result<Group<'m>> {
    let (mlx, rule) = (found.mlx, tensor.rule);
    let renamed = mlx.renamed.iter().find(|(gguf, _)| *gguf == rule.gguf);
    let pattern = renamed.map_or(rule.hf, |(_, name)| name);
    let name = fill(pattern, tensor.place);
    let name = format!("{}{name}{}", found.prefix(), tensor.suffix);
    let is_mxfp4 = mlx.keeps_mxfp4 && is_mxfp4(tensor.sources[0].1.scheme);
    let mut group = match rule.transform {
        Transform::Experts
        | Transform::Transposed
        | Transform::TransposedHalf(_)
        | Transform::Half(_)
        | Transform::Halves(_)
        | Transform::Latent(_) => {
            transform::to_gguf(Mapped { name, ..tensor }, dtype, Change::None, dims)?
        }
        Transform::Filters => {
            let source = tensor.sources.swap_remove(0).1;
            let shape = vec![source.shape[0], source.shape[2], 1];
            source.reshaped(name, shape, dtype)
        }
        // Of the classes here, all else that differs is GGUF's alone.
        _ => {
            let source = tensor.sources.swap_remove(0).1;
            source.renamed(name, dtype)
        }
    };
    let mode = mlx.modes.iter().find(|(gguf, _)| *gguf == rule.gguf);
    group.encoded_as = Some(match mode {
        // Of the classes here, modules whose weights are matrices or stacks of them can all be quantized.
        _ if group.shape.len() < 2 || !group.name.ends_with(".weight") => EncodedAs::Nothing,
        _ if is_mxfp4 => EncodedAs::Mxfp4,
        Some((_, mode)) => *mode,
        None => EncodedAs::Scheme,
    });
    Ok(group)
}

/// Whether values are E2M1 in groups of 32 with an exponent each, in the layout of gpt-oss, MLX or ggml.
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

/// Fails if projections have biases and the fields say that they have none, or the other way round: mlx-lm would not load them.
fn check_biases(mlx: &MlxClass, fields: &Fields, found: &Map<String, Value>) -> Result<()> {
    for field in mlx.bias_fields {
        let (stated, found) = (fields.flag(field), found.get(*field) == Some(&true.into()));
        if stated != found {
            let what = format!("it is {stated}, and the tensors say {found}");
            return Err(wrong(field, what));
        }
    }
    Ok(())
}

/// Fails if the config says something else than what mlx-lm takes for granted of the class.
fn check_config(mlx: &MlxClass, class: &ModelClass, fields: &Fields, dims: &Dims) -> Result<()> {
    let owner = format!("mlx-lm's {}", mlx.model_type);
    fields.check_values(mlx.implied, &owner)?;
    for (size, expected) in mlx.equal_sizes {
        if let (Some(found), Some(n)) = (dims.size(*size, None), dims.size(*expected, None))
            && found != n
        {
            let what = format!("it is {found}, and {owner} has {n}");
            return Err(wrong(&dims.fields_of(*size), what));
        }
    }
    if let Some(default_every) = class
        .traits
        .full_attention_every
        .filter(|_| mlx.counts_windows)
    {
        let every = fields.count(&["sliding_window_pattern"])?;
        let every = every.map_or(default_every, |n| n as usize);
        let expected = layer_kinds(dims.layers, "sliding_attention", every);
        if fields
            .0
            .get(LAYER_KINDS)
            .is_some_and(|kinds| *kinds != expected)
        {
            let what = format!("{owner} sees the whole text every {every} layers");
            return Err(wrong(LAYER_KINDS, what));
        }
    }
    Ok(())
}

/// The config of the output, if it is another than `config`.
fn config_of(
    config: &Value,
    (found, fields, dims): (&NamedClass<'_>, &Fields, &Dims),
    is_tied: bool,
) -> Result<Option<Value>> {
    let mut edited = config.clone();
    let Some(all) = edited.as_object_mut() else {
        return Ok(None);
    };
    if found.is_nested {
        // The towers that it is about are not in the output.
        all.remove("vision_config");
    }
    if found.mlx.output == OutputLayer::AsConfigured && !is_tied {
        // Some classes of mlx-lm take a missing field for true.
        let tied = all.entry("tie_word_embeddings");
        tied.or_insert(false.into());
    }
    for field in found.mlx.stated_fields {
        let is_silent = all.get(*field).is_none_or(Value::is_null);
        let value = match *field {
            "num_key_value_heads" => dims.kv_heads.into(),
            "head_dim" => dims.head.into(),
            "block_dim" => dims.hidden.into(),
            "rope_theta" => Rope::new(fields)?.base.into(),
            "partial_rotary_factor" => {
                let default = found.class.traits.partial_rotary;
                fields.number(&[*field])?.or(default).into()
            }
            "tie_word_embeddings" => is_tied.into(),
            _ => fields.0.get(*field).cloned().unwrap_or_default(),
        };
        if is_silent {
            all.insert((*field).to_owned(), value);
        }
    }
    Ok((edited != *config).then_some(edited))
}

/// The error that a model of the class `name` has no names of mlx-lm.
pub(crate) fn unknown_class(name: &str) -> AnamnesisError {
    let what = "config.json: the class of the model has no names of mlx-lm here; its tensors alone are written with --tensors-only";
    AnamnesisError::unsupported(name, what)
}
