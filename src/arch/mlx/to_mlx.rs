//! A model of transformers as mlx-lm has it.

use serde_json::{Map, Value};

use super::{MlxClass, MlxModel, NamedClass, OutputLayer};
use crate::arch::dims::Dims;
use crate::arch::fields::{Fields, wrong};
use crate::arch::mapping::{Mapped, Mapping};
use crate::arch::names::fill;
use crate::arch::source::SourceTensor;
use crate::arch::table::Transform;
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
    fields.check_values(mlx.implied, &format!("mlx-lm's {}", mlx.model_type))?;
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
            Some(stored) => stated.unwrap_or(stored),
            None => to,
        };
        out.push(ResolvedItem::Group(tensor_of(
            tensor, &found, dtype, &dims,
        )?));
    }
    Ok(Some(MlxModel {
        items: out,
        config: config_of(config, &found),
        notes: mapped.notes,
    }))
}

/// The tensor of mlx-lm that is made of `tensor`.
fn tensor_of<'m>(
    tensor: Mapped<'m>,
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
        | Transform::Half(_) => {
            transform::to_gguf(Mapped { name, ..tensor }, dtype, Change::None, dims)?
        }
        // Of the classes here, all else that differs is GGUF's alone.
        _ => {
            let mut sources = tensor.sources;
            sources.swap_remove(0).1.renamed(name, dtype)
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

/// The config of the output, if it is another than `config`.
fn config_of(config: &Value, found: &NamedClass<'_>) -> Option<Value> {
    let mut edited = config.clone();
    let fields = edited.as_object_mut()?;
    if found.is_nested {
        // The towers that it is about are not in the output.
        fields.remove("vision_config");
    }
    if found.mlx.output == OutputLayer::AsConfigured {
        // transformers takes a missing field for false, and some classes of mlx-lm for true.
        let tied = fields.entry("tie_word_embeddings");
        tied.or_insert(false.into());
    }
    (edited != *config).then_some(edited)
}

/// The error that a model of the class `name` has no names of mlx-lm.
pub(crate) fn unknown_class(name: &str) -> AnamnesisError {
    let what = "config.json: the class of the model has no names of mlx-lm here; its tensors alone are written with --tensors-only";
    AnamnesisError::unsupported(name, what)
}
