//! DeciLM, Nemotron 51B and Ultra: layers with other numbers of heads and widths, or without
//! attention.
//!
//! Source: `conversion/deci.py` of llama.cpp; defaults of the code beside published models.

use serde_json::{Map, Value, json};

use super::llama::ROTATED;
use super::{ENDS, MLP, NORMS, VALUES};
use crate::Result;
use crate::families::engine::dims::{Dims, MOST_LAYERS, OwnSizes};
use crate::families::engine::fields::{Fields, HEADS, HIDDEN, LAYERS, array, wrong, wrong_key};
use crate::families::engine::rows::*;
use crate::families::engine::table::{Model, TensorShapes};
use crate::model::gguf::GgufMetadataArray;

/// List of what each layer has of attention; some attend.
const ATTENTION: &str = "attention_kinds";
const ATTENDING: &str = "attending";
/// List of which layers have a norm in front of it.
const NORM_KINDS: &str = "attention_norm_kinds";
/// A projection in place of attention.
const LINEAR: &str = "linear";
const NOTHING: &str = "nothing";
/// List of the widths of feed-forward layers.
const WIDTHS: &str = "ffn_widths";
/// List of which layers have one.
const FEED_FORWARD: &str = "ffn_kinds";
const DENSE: &str = "dense";
/// List of heads of keys and values.
const KV_HEADS: &str = "num_key_value_heads_per_layer";
/// What the config says of each layer.
const BLOCKS: &str = "block_configs";

const fn attending(rule: TensorRule) -> TensorRule {
    in_layers(Need::KindIn(ATTENTION, ATTENDING), rule)
}

const fn dense(rule: TensorRule) -> TensorRule {
    in_layers(Need::KindIn(FEED_FORWARD, DENSE), rule)
}

const TENSORS: &[TensorRule] = &[
    in_layers(Need::KindIn(NORM_KINDS, ATTENDING), NORMS[0]),
    attending(ROTATED[0]),
    attending(ROTATED[1]),
    attending(VALUES[0]),
    attending(VALUES[1]),
    only(
        Need::KindIn(ATTENTION, LINEAR),
        "blk.{i}.attn_output",
        "model.layers.{i}.self_attn.linear_attn",
        &[Hidden, Hidden],
    ),
    dense(NORMS[1]),
    dense(MLP[0]),
    dense(MLP[1]),
    dense(MLP[2]),
];

pub(super) const DECI: ModelClass = ModelClass {
    gguf: "deci",
    classes: &["DeciLMForCausalLM"],
    model_type: "nemotron-nas",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("mlp_bias", Bool(false)),
    ],
    tensors: &[ENDS, TENSORS],
    settings: &[&[
        setting(Kind::Own(&HEADS_BY_LAYER), "attention.head_count", &["num_attention_heads"]),
        setting(Kind::Own(&KV_HEADS_BY_LAYER), "attention.head_count_kv", &[KV_HEADS]),
        setting(Kind::Own(&WIDTHS_BY_LAYER), "feed_forward_length", &["intermediate_size"]),
        setting(Kind::Own(&HEAD), "attention.key_length", &[]),
        setting(Kind::Own(&HEAD), "attention.value_length", &[]),
        count("vocab_size", &["vocab_size"]),
        setting(Kind::HeadSize, "rope.dimension_count", &["head_dim"]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        rope: RopeTraits::LLAMA3,
        by_layer: Some(&ByLayer { sizes, restore_rope: None }),
        completes: &[complete],
        from_tensors: &[filled],
        restores: &[restore],
        ..Traits::PLAIN
    },
    mlx: Some(&DECI_MLX),
    ..ModelClass::PLAIN
};

const DECI_MLX: MlxClass = MlxClass {
    implied: &[SILU, NO_BIAS, ("mlp_bias", Bool(false))],
    stated_fields: &[COMMON_FIELDS, &["max_position_embeddings"]],
    laws: &[blocks_in_mlx],
    ..MlxClass::PLAIN
};

/// mlx-lm has no DeciLM 7B, and another name of the projection in place of attention.
fn blocks_in_mlx(model: &Model<'_>) -> Result<Option<String>> {
    if model.stated.get(BLOCKS).is_none_or(Value::is_null) {
        return Err(wrong(BLOCKS, "it is missing, and mlx-lm's nemotron-nas needs it"));
    }
    match list(&model.fields, ATTENTION).is_some_and(|kinds| kinds.contains(&LINEAR.into())) {
        false => Ok(None),
        true => Err(wrong(
            BLOCKS,
            "mlx-lm's nemotron-nas does not load what stands in place of attention (`linear_attn`)",
        )),
    }
}

fn list<'f>(fields: &'f Fields, name: &str) -> Option<&'f Vec<Value>> {
    fields.0.get(name)?.as_array()
}

/// The number of each layer in the list `name`.
fn numbers(fields: &Fields, name: &str) -> Option<Vec<usize>> {
    let all = list(fields, name)?.iter();
    all.map(|n| Some(u32::try_from(n.as_u64()?).ok()? as usize))
        .collect()
}

fn sizes(fields: &Fields, dims: &Dims) -> Result<Vec<OwnSizes>> {
    let kv_heads = numbers(fields, KV_HEADS);
    let kv_heads = kv_heads.filter(|all| all.len() == dims.layers);
    let kv_heads = kv_heads.ok_or_else(|| {
        let what = format!("it is no list of {} numbers of heads", dims.layers);
        wrong(KV_HEADS, what)
    })?;
    let widths = numbers(fields, WIDTHS).unwrap_or_default();
    let of = |(layer, kv_heads)| OwnSizes {
        head: dims.head,
        heads: dims.heads,
        kv_heads,
        inner: widths.get(layer).copied(),
        keys: None,
        values: None,
    };
    let fits = |n: &usize| *n == 0 || dims.heads.is_multiple_of(*n);
    match kv_heads.iter().find(|n| !fits(n)) {
        Some(n) => {
            let what = format!("{n} does not divide num_attention_heads, {}", dims.heads);
            Err(wrong(KV_HEADS, what))
        }
        None => Ok(kv_heads.into_iter().enumerate().map(of).collect()),
    }
}

/// What the class rounds widths up to.
const STEP: u64 = 256;

/// Width of a feed-forward layer with such a factor.
fn width(factor: f64, hidden: u32) -> u64 {
    ((2.0 * factor * f64::from(hidden) / 3.0) as u64).next_multiple_of(STEP)
}

/// Makes lists of what the config says of each layer.
fn complete(fields: &mut Fields) -> Result<()> {
    let (hidden, heads) = (fields.need(HIDDEN)?, fields.need(HEADS)?);
    let layers = fields.need(LAYERS)?.min(MOST_LAYERS) as usize;
    let Some(Value::Array(blocks)) = fields.0.remove(BLOCKS) else {
        // DeciLM 7B states heads alone.
        if let Some(heads) = fields.0.get("num_key_value_heads").cloned() {
            let all = vec![heads; layers];
            fields.0.entry(KV_HEADS).or_insert_with(|| all.into());
        }
        return fill(fields);
    };
    if blocks.len() != layers {
        return Err(wrong(BLOCKS, format!("there are {} for {layers} layers", blocks.len())));
    }
    let (mut kinds, mut kv_heads, mut widths) = (vec![], vec![], vec![]);
    for block in &blocks {
        let (attention, feed_forward) = (&block["attention"], &block["ffn"]);
        let others = ["window_length", "num_sink_tokens", "sparsify", "sparse"];
        let is_set = |name: &&str| attention.get(*name).is_some_and(|value| !value.is_null());
        if let Some(name) = others.iter().find(|name| is_set(name)) {
            return Err(wrong(BLOCKS, format!("`{name}` of attention is not null")));
        }
        if feed_forward["replace_with_linear"] == true {
            return Err(wrong(BLOCKS, "llama.cpp has no layer in place of a feed-forward layer"));
        }
        let group = attention["n_heads_in_group"].as_u64();
        let per_group = group.map(|n| u64::from(heads).checked_div(n).unwrap_or(0));
        kinds.push(match per_group {
            Some(0) => return Err(wrong(BLOCKS, "`n_heads_in_group` is 0, or above all heads")),
            Some(_) => ATTENDING,
            None if attention["replace_with_linear"] == true => LINEAR,
            None => NOTHING,
        });
        kv_heads.push(per_group.unwrap_or(0));
        let factor = feed_forward["ffn_mult"].as_f64();
        widths.push(factor.map_or(0, |factor| width(factor, hidden)));
    }
    fields.0.insert(ATTENTION.to_owned(), kinds.into());
    fields.0.insert(KV_HEADS.to_owned(), kv_heads.into());
    fields.0.insert(WIDTHS.to_owned(), widths.into());
    fill(fields)
}

/// Adds what the lists say, and fails if llama.cpp would not compute it.
fn fill(fields: &mut Fields) -> Result<()> {
    let layers = fields.need(LAYERS)?.min(MOST_LAYERS) as usize;
    let kinds = list(fields, ATTENTION)
        .cloned()
        .unwrap_or_else(|| vec![ATTENDING.into(); layers]);
    let norms = kinds
        .iter()
        .map(|kind| if *kind == NOTHING { NOTHING } else { ATTENDING });
    let norms: Value = norms.collect();
    let widths = numbers(fields, WIDTHS).unwrap_or_default();
    let has = |width: &usize| if *width > 0 { DENSE } else { NOTHING };
    let mut lost = kinds.iter().zip(&widths);
    if lost.any(|(kind, width)| *width == 0 && kind != NOTHING) {
        let what =
            "a layer has attention and no feed-forward layer, of which llama.cpp computes nothing";
        return Err(wrong(BLOCKS, what));
    }
    if widths.last() == Some(&0) {
        return Err(wrong(BLOCKS, "the last layer has nothing, which llama.cpp cannot compute"));
    }
    let feeds = match widths.is_empty() {
        true => vec![DENSE; layers].into(),
        false => widths.iter().map(has).collect(),
    };
    for (field, list) in [(ATTENTION, kinds.into()), (NORM_KINDS, norms), (FEED_FORWARD, feeds)] {
        fields.0.insert(field.to_owned(), list);
    }
    Ok(())
}

/// Adds the lists that follow from those of the file.
fn filled(config: &mut Map<String, Value>, _: &TensorShapes<'_>) -> Result<()> {
    let mut fields = Fields::of(config.clone());
    if let Some(heads) = fields.0.get("num_key_value_heads").cloned() {
        let layers = fields.need(LAYERS)?.min(MOST_LAYERS) as usize;
        let all = vec![heads; layers];
        fields.0.entry(KV_HEADS).or_insert_with(|| all.into());
    }
    fill(&mut fields)?;
    *config = fields.0;
    Ok(())
}

/// States each layer as configs of Nemotron do, unless heads of keys and values are all that
/// differs.
fn restore(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    for field in [NORM_KINDS, FEED_FORWARD] {
        config.remove(field);
    }
    let (kinds, widths) = (config.remove(ATTENTION), config.remove(WIDTHS));
    config.remove("num_key_value_heads");
    let (Some(Value::Array(kinds)), Some(Value::Array(widths))) = (kinds, widths) else {
        config.insert("model_type".to_owned(), "deci".into());
        return Ok(());
    };
    let kv_heads = config.remove(KV_HEADS).unwrap_or_default();
    let kv_heads = kv_heads.as_array().map(Vec::as_slice).unwrap_or_default();
    let layers = kinds.iter().zip(kv_heads).zip(&widths);
    let block = |((kind, kv_heads), width): ((&Value, &Value), &Value)| {
        let width = width.as_u64().filter(|width| *width > 0);
        let factor = width.map(|width| width as f64 * 3.0 / (2.0 * dims.hidden as f64));
        let group = kv_heads
            .as_u64()
            .and_then(|n| (dims.heads as u64).checked_div(n));
        json!({
            "attention": {"n_heads_in_group": group, "no_op": kind == NOTHING, "replace_with_linear": kind == LINEAR},
            "ffn": {"ffn_mult": factor, "no_op": factor.is_none(), "replace_with_linear": false},
        })
    };
    let blocks: Value = layers.map(block).collect();
    config.insert(BLOCKS.to_owned(), blocks);
    config.insert("num_key_value_heads".to_owned(), Value::Null);
    config.insert("intermediate_size".to_owned(), Value::Null);
    Ok(())
}

/// INT32\[\], or UINT32 if all layers attend: heads of queries, 0 in layers without attention.
const HEADS_BY_LAYER: OwnSetting = required(own(
    |setting, model| {
        let kinds =
            list(&model.fields, ATTENTION).filter(|_| list(&model.fields, WIDTHS).is_some());
        let Some(kinds) = kinds else {
            return Ok(Some(setting.count(model.dims.heads)?));
        };
        let heads =
            i32::try_from(model.dims.heads).map_err(|_| setting.wrong("it is too large"))?;
        let all = kinds
            .iter()
            .map(|kind| if *kind == NOTHING { 0 } else { heads });
        Ok(Some(array(GgufMetadataArray::I32(all.collect()))))
    },
    |stated, config| {
        if let Some(heads) = stated.value.as_unsigned() {
            return Ok(Some(heads.into()));
        }
        let heads = stated.numbers()?;
        let kv_heads = match config.metadata.get("deci.attention.head_count_kv") {
            Some(value) => match value.as_array() {
                Some(GgufMetadataArray::I32(all)) => all.clone(),
                _ => return Err(stated.other_type()),
            },
            None => return Err(stated.other_type()),
        };
        let most = heads.iter().copied().max().unwrap_or(0);
        if heads.iter().any(|n| *n != 0 && *n != most) || heads.len() != kv_heads.len() {
            let what = "the class has one number of heads, or 0";
            return Err(wrong_key(stated.key, what));
        }
        let kind = |(heads, kv_heads): (&i32, &i32)| match (heads, kv_heads) {
            (0, _) => NOTHING,
            (_, 0) => LINEAR,
            _ => ATTENDING,
        };
        let kinds: Value = heads.iter().zip(&kv_heads).map(kind).collect();
        config.set(ATTENTION, kinds, stated.key)?;
        Ok(Some(most.into()))
    },
));

/// INT32\[\]: heads of keys and values.
const KV_HEADS_BY_LAYER: OwnSetting = own(
    |_, model| {
        let layers = model.dims.layer_sizes.iter();
        let all = layers.map(|sizes| i32::try_from(sizes.kv_heads).unwrap_or(i32::MAX));
        Ok(Some(array(GgufMetadataArray::I32(all.collect()))))
    },
    |stated, config| match stated.value.as_unsigned() {
        Some(heads) => {
            config.set("num_key_value_heads", heads.into(), stated.key)?;
            Ok(None)
        }
        None => Ok(Some(stated.numbers()?.to_vec().into())),
    },
);

/// INT32\[\], or UINT32: widths of feed-forward layers.
const WIDTHS_BY_LAYER: OwnSetting = required(own(
    |setting, model| {
        let Some(widths) = numbers(&model.fields, WIDTHS) else {
            let width = model.fields.need(setting.fields)?;
            return Ok(Some(setting.count(width as usize)?));
        };
        let all = widths.iter();
        let all = all.map(|width| i32::try_from(*width).unwrap_or(i32::MAX));
        Ok(Some(array(GgufMetadataArray::I32(all.collect()))))
    },
    |stated, config| {
        if let Some(width) = stated.value.as_unsigned() {
            return Ok(Some(width.into()));
        }
        let widths = stated.numbers()?;
        if widths.iter().any(|width| *width % STEP as i32 != 0) {
            let what = format!("a width is no multiple of {STEP}, which the class rounds up to");
            return Err(wrong_key(stated.key, what));
        }
        config.set(WIDTHS, widths.to_vec().into(), stated.key)?;
        Ok(None)
    },
));

/// UINT32 that models with different layers have: the length of a head.
const HEAD: OwnSetting = own(
    |setting, model| match list(&model.fields, WIDTHS) {
        Some(_) => Ok(Some(setting.count(model.dims.head)?)),
        None => Ok(None),
    },
    |_, _| Ok(None),
);

#[cfg(test)]
mod tests {
    use super::width;

    /// Layers of Llama 3.1 Nemotron 51B and of DeciLM 7B, as published.
    #[test]
    fn widths_of_layers() {
        let widths = [5.25, 1.3125, 2.625].map(|factor| width(factor, 8192));
        assert_eq!(widths, [28_672, 7_168, 14_336]);
        assert_eq!(width(5.25, 4096), 14_336);
    }
}
