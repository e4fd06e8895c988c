//! The config of a model as mlx-lm reads it, and what it must not say.

use serde_json::{Map, Value, json};

use super::{NamedClass, rope};
use crate::Result;
use crate::families::engine::checks::{has_sliding_kind, ignored_window, latent_norms};
use crate::families::engine::dims::Need;
use crate::families::engine::fields::{EXPERTS, Fields, LAYER_KINDS, layer_kinds, wrong};
use crate::families::engine::rope::PARAMETERS;
use crate::families::engine::table::mlx::{Activation, MlxClass, OutputLayer, RopeFields};
use crate::families::engine::table::{Default, Model};

/// Fails if projections have biases and the fields say that they have none, or the other way round:
/// mlx-lm would not load them.
pub(super) fn check_biases(
    mlx: &MlxClass,
    fields: &Fields,
    found: &Map<String, Value>,
) -> Result<()> {
    for field in mlx.bias_fields {
        let (stated, found) = (fields.flag(field), found.get(*field) == Some(&true.into()));
        if stated != found {
            let what = format!("it is {stated}, and the tensors say {found}");
            return Err(wrong(field, what));
        }
    }
    Ok(())
}

/// Notes on what mlx-lm computes otherwise than transformers, whichever model of the class it is.
///
/// # Errors
/// `Parse` if the config says something else than what mlx-lm takes for granted of the class.
pub(super) fn check(found: &NamedClass<'_>, model: &Model<'_>) -> Result<Vec<String>> {
    let Model { class, stated: config, fields, dims, .. } = model;
    let mlx = found.mlx;
    let owner = format!("mlx-lm's {}", class.model_type);
    fields.check_values(mlx.implied, &owner)?;
    let of_class = |field: &str| mlx.implied.iter().any(|(name, _)| *name == field);
    let mut others = COMMON_VALUES.iter().filter(|(field, _)| !of_class(field));
    others.try_for_each(|value| fields.check_values(&[*value], &owner))?;
    for field in mlx.alike {
        let entries = fields.0.get(*field).and_then(Value::as_array);
        if entries.is_some_and(|entries| entries.iter().any(|entry| *entry != entries[0])) {
            return Err(wrong(field, format!("{owner} has no layers of several kinds")));
        }
    }
    let laws = mlx.laws.iter().filter_map(|law| law(model).transpose());
    let of_laws: Vec<_> = laws.collect::<Result<_>>()?;
    let is_tied = match mlx.output {
        OutputLayer::AsConfigured => None,
        OutputLayer::Tied => Some(true),
        OutputLayer::Stored => Some(false),
    };
    if let Some(is_tied) = is_tied {
        let implied = [(TIED, Default::Bool(is_tied))];
        fields.check_values(&implied, &owner)?;
        // That of a nested config hides the one around it, by which newer versions of transformers
        // go.
        let outer = config.get(TIED).map(|tied| (TIED.to_owned(), tied.clone()));
        Fields::of(outer.into_iter().collect()).check_values(&implied, &owner)?;
    }
    if mlx.reads_kinds && has_sliding_kind(fields) == Some(true) {
        let what =
            format!("{owner} has windows in some layers; transformers goes by no such field");
        return Err(wrong(LAYER_KINDS, what));
    }
    if fields
        .0
        .get(BIDIRECTIONAL)
        .is_some_and(|value| *value == true || *value == "all")
    {
        let what = format!("{owner} sees the text before a token alone");
        return Err(wrong(BIDIRECTIONAL, what));
    }
    let activation = match &mlx.activation {
        Some(activation) => activation_note(activation, &owner, fields)?,
        None => None,
    };
    rope::check(found, model)?;
    for (size, expected) in mlx.equal_sizes {
        if let (Some(found), Some(n)) = (dims.size(*size, None), dims.size(*expected, None))
            && found != n
        {
            let what = format!("it is {found}, and {owner} has {n}");
            return Err(wrong(&dims.fields_of(*size), what));
        }
    }
    let traits = &class.traits;
    let default_every = traits.layer_kinds.map(|(_, every)| every);
    if let Some((field, kind)) = mlx.counted_kind
        && let Some(default_every) = default_every.or(traits.full_attention_every)
    {
        let every = fields.count(&[field])?;
        let every = every.map_or(default_every, |n| n as usize);
        let expected = layer_kinds(dims.layers, kind, every);
        if fields
            .0
            .get(LAYER_KINDS)
            .is_some_and(|kinds| *kinds != expected)
        {
            let what = format!("{owner} sees the whole text every {every} layers");
            return Err(wrong(LAYER_KINDS, what));
        }
    }
    let window = ignored_window(mlx.lost_windows, class, (config, fields), &owner)?;
    let mut notes: Vec<_> = of_laws
        .into_iter()
        .chain(window)
        .chain(activation)
        .collect();
    if mlx.has_latent_eps {
        notes.extend(latent_norms(fields, &owner)?);
    }
    notes.extend(rope::note(model));
    Ok(notes)
}

/// Whether the output layer is the embedding.
const TIED: &str = "tie_word_embeddings";

/// Whether tokens see those behind them: `true` or `all`. With `vision` only tokens of images do.
const BIDIRECTIONAL: &str = "use_bidirectional_attention";

/// What mlx-lm takes for granted of a class, unless `implied` has another value. `rope_traditional`
/// is a field of mlx-lm alone: transformers does not read it.
const COMMON_VALUES: &[(&str, Default)] =
    &[("is_causal", Default::Bool(true)), ("rope_traditional", Default::Bool(false))];

/// A note that mlx-lm computes another form of the activation than transformers.
///
/// # Errors
/// `Parse` if it is another activation.
fn activation_note(
    activation: &Activation,
    owner: &str,
    fields: &Fields,
) -> Result<Option<String>> {
    let (field, computed) = (activation.field, activation.computed[0]);
    let found = fields.0.get(field);
    let is = |name: &&str| found.is_some_and(|found| found == name);
    if activation.computed.iter().any(is) {
        return Ok(None);
    }
    if let Some(found) = found.filter(|found| *found != activation.usual) {
        let what = format!("it is {found}, and {owner} has \"{computed}\"");
        return Err(wrong(field, what));
    }
    let usual = activation.usual;
    Ok(Some(format!(
        "`{field}`: it is `{usual}`, and {owner} computes `{computed}`, which is nearly the same"
    )))
}

/// Field of the least and the most that a time step of a state space may be.
const TIME_STEPS: &str = "time_step_limit";

/// Infinity as transformers 5 and mlx-lm write it in JSON.
fn infinity() -> Value {
    json!({ "__float__": "Infinity" })
}

/// The config `text` of a language model in one of the class `class`.
fn nested(text: Value, (class, model_type): (&str, &str)) -> Value {
    const OUTER: &[&str] = &["bos_token_id", "eos_token_id", "pad_token_id", "torch_dtype", TIED];
    let mut text = text;
    let mut outer = Map::new();
    if let Some(text) = text.as_object_mut() {
        let kept = OUTER
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), text.get(*name)?.clone())));
        outer.extend(kept);
        text.remove("architectures");
    }
    outer.insert("architectures".to_owned(), json!([class]));
    outer.insert("model_type".to_owned(), model_type.into());
    outer.insert("text_config".to_owned(), text);
    Value::Object(outer)
}

/// The config of the output, if it is another than that of `model`.
pub(super) fn config_of(
    found: &NamedClass<'_>,
    model: &Model<'_>,
    is_tied: bool,
) -> Result<Option<Value>> {
    let (mlx, mut edited) = (found.mlx, model.stated.clone());
    if let Some(all) = edited.as_object_mut() {
        // The towers that it is about are not in the output.
        all.remove("vision_config");
        if mlx.reads_outer_vocab && found.is_nested {
            all.entry("vocab_size").or_insert(model.dims.vocab.into());
        }
    }
    if let Some(name) = mlx.mlx_type.filter(|_| !found.is_nested) {
        edited["model_type"] = name.into();
    }
    let Some(all) = found.text(&mut edited) else {
        return Ok(None);
    };
    if mlx.output == OutputLayer::AsConfigured {
        // Some classes of mlx-lm take a missing field for true, and none looks for it beside a
        // nested config.
        let tied = all.entry("tie_word_embeddings");
        if !is_tied || found.is_nested {
            tied.or_insert(is_tied.into());
        }
    }
    rope::state(all, found, model)?;
    if let Some(Value::Array(limits)) = all.get_mut(TIME_STEPS)
        && let [_, most @ Value::Null] = &mut limits[..]
    {
        // Python's `Infinity`, which no other reader of JSON knows.
        *most = infinity();
    }
    let has_rope = match mlx.rope {
        RopeFields::Nested | RopeFields::NestedByKind => all.contains_key(PARAMETERS),
        kind => kind == RopeFields::NestedAlone,
    };
    let fields_of_class = mlx.stated_fields.iter().copied().flatten();
    for field in fields_of_class.filter(|field| !has_rope || **field != "rope_theta") {
        if all.get(*field).is_none_or(Value::is_null) {
            let value = stated(field, found, model, is_tied)?;
            all.insert((*field).to_owned(), value);
        }
    }
    if let Some(around) = mlx.around.filter(|_| !found.is_nested) {
        return Ok(Some(nested(edited, around)));
    }
    Ok((edited != *model.stated).then_some(edited))
}

/// What the output states in `field`, where the input does not.
fn stated(field: &str, found: &NamedClass<'_>, model: &Model<'_>, is_tied: bool) -> Result<Value> {
    let Model { fields, dims, rope, .. } = model;
    Ok(match field {
        // A field that is null would be positions by rotation.
        "position_embedding_type" => match fields.0.get(field) {
            Some(kind) => kind.clone(),
            None => "nope".into(),
        },
        "num_key_value_heads" => dims.kv_heads.into(),
        "head_dim" => dims.head.into(),
        "num_attention_heads" => dims.heads.into(),
        "block_dim" | "hidden_size" => dims.hidden.into(),
        "num_hidden_layers" => dims.layers.into(),
        "rope_theta" | "rotary_emb_base" => rope.base.into(),
        "partial_rotary_factor" | "rotary_pct" => {
            rope.partial.or(found.class.traits.rope.partial).into()
        }
        "rotary_dim" => fields
            .count(&[field])?
            .map_or(rope.rotating(found.class, dims) as u64, u64::from)
            .into(),
        "tie_word_embeddings" => is_tied.into(),
        // A field that is null is four times the hidden size to transformers.
        "n_inner" => {
            let inner = fields.count(&[field])?.map(u64::from);
            inner.unwrap_or(4 * dims.hidden as u64).into()
        }
        // The length of texts once more. mlx-lm needs it, and does not read it.
        "n_ctx" => fields.need(&["n_positions"])?.into(),
        // Defaults of transformers that its converter to GGUF has no use for.
        "mlp_only_layers" => json!([]),
        "is_moe_layer" => {
            let has_experts = |layer| dims.has(Need::Sparse, layer) == Some(true);
            (0..dims.layers).map(has_experts).collect()
        }
        "shared_intermediate_size" if dims.experts.is_some() => {
            fields.0.get(field).cloned().unwrap_or(0.into())
        }
        "norm_topk_prob" | "use_expert_bias" | "mamba_conv_bias" | "use_conv_bias" => {
            fields.0.get(field).cloned().unwrap_or(true.into())
        }
        "mlp_bias" | "use_bias" | "mamba_proj_bias" | "attention_bias" => fields.flag(field).into(),
        TIME_STEPS => json!([0.0, infinity()]),
        "intermediate_size" if found.class.traits.is_recurrent => {
            let expand = u64::from(fields.need(&["expand"])?);
            fields
                .0
                .get(field)
                .cloned()
                .unwrap_or((expand * dims.hidden as u64).into())
        }
        "time_step_rank" => fields.0.get(field).cloned().unwrap_or("auto".into()),
        // The other fields have the width that it is adjusted from.
        "block_auto_adjust_ff_dim" => true.into(),
        _ => {
            let mut implied = found.mlx.implied.iter();
            let implied = implied.find(|(name, _)| *name == field);
            let implied = implied.map(|(_, value)| Value::from(value));
            match fields.0.get(field).cloned().or(implied) {
                Some(value) => value,
                None => restored(model)?.remove(field).unwrap_or_default(),
            }
        }
    })
}

/// The config as the class names its fields: what a model of GGUF would come back with.
fn restored(model: &Model<'_>) -> Result<Map<String, Value>> {
    let Model { class, fields, dims, .. } = model;
    let mut config = fields.0.clone();
    for (usual, own) in class.own_fields {
        let experts = dims.experts.filter(|_| *usual == EXPERTS[0]);
        let value = config.get(*usual).cloned().or(experts.map(Value::from));
        if let Some(value) = value {
            config.entry(*own).or_insert(value);
        }
    }
    for restore in class.traits.restores {
        restore(&mut config, dims)?;
    }
    Ok(config)
}
