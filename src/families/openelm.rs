//! OpenELM, whose layers have other numbers of heads and widths.
//!
//! Source: `conversion/openelm.py` of llama.cpp; `configuration_openelm.py` beside published models.

use serde_json::{Map, Value, json};

use super::MLP;
use crate::Result;
use crate::families::engine::dims::{Dims, OwnSizes};
use crate::families::engine::fields::{Fields, array, wrong, wrong_key};
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;
use crate::model::gguf::GgufMetadataArray;

const HEADS: &str = "num_query_heads";
const KV_HEADS: &str = "num_kv_heads";
const FACTORS: &str = "ffn_multipliers";
const STEP: &str = "ffn_dim_divisor";

/// One of the halves of the gate and the projection, which are one matrix.
const fn half(part: usize, gguf: &'static str) -> TensorRule {
    TensorRule {
        transform: Transform::Parts(Parts::one(Turn::Equal(2), part)),
        gguf_shape: Some(&[Inner, Hidden]),
        ..same(gguf, "transformer.layers.{i}.ffn.proj_1", &[TwoInner, Hidden])
    }
}

const TENSORS: &[TensorRule] = &[
    same("token_embd", "transformer.token_embeddings", &[Vocab, Hidden]),
    same("output_norm", "transformer.norm", &[Hidden]),
    same("blk.{i}.attn_norm", "transformer.layers.{i}.attn_norm", &[Hidden]),
    same(
        "blk.{i}.attn_qkv",
        "transformer.layers.{i}.attn.qkv_proj",
        &[Sum(&[Queries, Keys, Keys]), Hidden],
    ),
    same("blk.{i}.attn_q_norm", "transformer.layers.{i}.attn.q_norm", &[Head]),
    same("blk.{i}.attn_k_norm", "transformer.layers.{i}.attn.k_norm", &[Head]),
    same("blk.{i}.attn_output", "transformer.layers.{i}.attn.out_proj", &[Hidden, Queries]),
    same("blk.{i}.ffn_norm", "transformer.layers.{i}.ffn_norm", &[Hidden]),
    half(0, "blk.{i}.ffn_gate"),
    half(1, "blk.{i}.ffn_up"),
    TensorRule { hf: "transformer.layers.{i}.ffn.proj_2", ..MLP[2] },
];

pub(super) const OPENELM: ModelClass = ModelClass {
    gguf: "openelm",
    classes: &["OpenELMForCausalLM"],
    model_type: "openelm",
    // The class has no field for the epsilon, and this is its number.
    defaults: &[
        ("max_context_length", Int(2048)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_freq_constant", Float(10_000.0)),
    ],
    implied: &[
        ("rms_norm_eps", Float(1e-6)),
        ("activation_fn_name", Text("swish")),
        ("ffn_with_glu", Bool(true)),
        ("normalize_qk_projections", Bool(true)),
        ("share_input_output_layers", Bool(true)),
    ],
    own_fields: &[
        ("max_position_embeddings", "max_context_length"),
        ("rope_theta", "rope_freq_constant"),
    ],
    tensors: &[TENSORS],
    settings: &[&[
        count("context_length", &["max_context_length"]),
        setting(Kind::Own(&WIDTHS), "feed_forward_length", &[FACTORS]),
        setting(Kind::Own(&HEADS_BY_LAYER), "attention.head_count", &[HEADS]),
        setting(Kind::Own(&KV_HEADS_BY_LAYER), "attention.head_count_kv", &[KV_HEADS]),
        number("rope.freq_base", &["rope_freq_constant"]),
        setting(Kind::HeadSize, "rope.dimension_count", &["head_dim"]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Stated,
        rope: RopeTraits::FIXED,
        ties_output: true,
        by_layer: Some(&ByLayer { sizes, restore_rope: None }),
        completes: &[usual],
        restores: &[restore],
        ..Traits::PLAIN
    },
    mlx: Some(&OPENELM_MLX),
    ..ModelClass::PLAIN
};

const OPENELM_MLX: MlxClass = MlxClass {
    implied: &[
        ("activation_fn_name", Text("swish")),
        ("ffn_with_glu", Bool(true)),
        ("normalize_qk_projections", Bool(true)),
        ("share_input_output_layers", Bool(true)),
        NO_SCALING,
    ],
    stated_fields: &[&["head_dim", "rope_freq_constant"]],
    output: OutputLayer::Tied,
    ..MlxClass::PLAIN
};

/// Width of a feed-forward layer, as the class rounds it.
fn width(factor: f64, hidden: u32, step: u32) -> u64 {
    let (wanted, step) = (factor * f64::from(hidden), u64::from(step.max(1)));
    let rounded = ((wanted + step as f64 / 2.0) as u64) / step * step;
    let width = rounded.max(step);
    // Not more than a tenth is lost.
    if (width as f64) < 0.9 * wanted {
        width + step
    } else {
        width
    }
}

/// Gives fields their usual names, beside lists of layers.
fn usual(fields: &mut Fields) -> Result<()> {
    for (own, usual) in
        [("model_dim", "hidden_size"), ("num_transformer_layers", "num_hidden_layers")]
    {
        let value = fields.0.get(own).cloned();
        fields
            .0
            .extend(value.map(|value| (usual.to_owned(), value)));
    }
    let hidden = fields.need(&["hidden_size"])?;
    let step = fields.need(&[STEP])?;
    let factors = fields.0.get(FACTORS).and_then(Value::as_array);
    let widths: Option<Vec<u64>> = factors.and_then(|all| {
        let all = all.iter();
        all.map(|factor| Some(width(factor.as_f64()?, hidden, step)))
            .collect()
    });
    let widths = widths.ok_or_else(|| wrong(FACTORS, "it is no list of numbers"))?;
    fields.0.insert(INNERS.to_owned(), widths.into());
    first(&mut fields.0);
    Ok(())
}

/// List of widths.
const INNERS: &str = "ffn_widths";

/// States the heads of the first layer as those of the model.
fn first(config: &mut Map<String, Value>) {
    for (list, field) in [(HEADS, "num_attention_heads"), (KV_HEADS, "num_key_value_heads")] {
        let first = config.get(list).and_then(|list| list.get(0)).cloned();
        config.extend(first.map(|first| (field.to_owned(), first)));
    }
}

fn sizes(fields: &Fields, dims: &Dims) -> Result<Vec<OwnSizes>> {
    let numbers = |name: &str| -> Result<Vec<usize>> {
        let list = fields.0.get(name).and_then(Value::as_array);
        let number = |n: &Value| {
            let n = u32::try_from(n.as_u64()?).ok()? as usize;
            (n > 0).then_some(n)
        };
        let all: Option<Vec<usize>> = list.and_then(|list| list.iter().map(number).collect());
        let all = all.filter(|all| all.len() == dims.layers);
        all.ok_or_else(|| wrong(name, format!("it is no list of {} numbers", dims.layers)))
    };
    let (heads, kv_heads, widths) = (numbers(HEADS)?, numbers(KV_HEADS)?, numbers(INNERS)?);
    let layers = heads.into_iter().zip(kv_heads).zip(widths);
    let of = |((heads, kv_heads), inner): ((usize, usize), usize)| {
        if !heads.is_multiple_of(kv_heads) {
            return Err(wrong(KV_HEADS, format!("{kv_heads} does not divide {heads} heads")));
        }
        let inner = Some(inner);
        Ok(OwnSizes { head: dims.head, heads, kv_heads, inner, keys: None, values: None })
    };
    layers.map(of).collect()
}

fn restore(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    let widths = config.remove(INNERS).unwrap_or_default();
    let widths = widths.as_array().into_iter().flatten();
    let factor = |width: &Value| width.as_f64().unwrap_or(0.0) / dims.hidden as f64;
    config.insert(FACTORS.to_owned(), widths.map(factor).collect());
    // Each width is a multiple of it.
    config.insert(STEP.to_owned(), json!(1));
    config.insert("model_dim".to_owned(), dims.hidden.into());
    config.insert("num_transformer_layers".to_owned(), dims.layers.into());
    config.insert("tie_word_embeddings".to_owned(), true.into());
    Ok(())
}

fn list(name: &str, model: &Model<'_>) -> Vec<i32> {
    let sizes = model.dims.layer_sizes.iter();
    let number = |sizes: &OwnSizes| match name {
        HEADS => sizes.heads,
        KV_HEADS => sizes.kv_heads,
        _ => sizes.inner.unwrap_or(0),
    };
    sizes
        .map(|sizes| i32::try_from(number(sizes)).unwrap_or(i32::MAX))
        .collect()
}

/// INT32\[\]: heads of each layer.
const HEADS_BY_LAYER: OwnSetting = required(own(
    |_, model| Ok(Some(array(GgufMetadataArray::I32(list(HEADS, model))))),
    |stated, config| {
        let first = stated.numbers()?.first().copied().unwrap_or(0);
        config
            .fields
            .insert("num_attention_heads".to_owned(), first.into());
        Ok(Some(stated.numbers()?.to_vec().into()))
    },
));

const KV_HEADS_BY_LAYER: OwnSetting = required(own(
    |_, model| Ok(Some(array(GgufMetadataArray::I32(list(KV_HEADS, model))))),
    |stated, config| {
        let first = stated.numbers()?.first().copied().unwrap_or(0);
        config
            .fields
            .insert("num_key_value_heads".to_owned(), first.into());
        Ok(Some(stated.numbers()?.to_vec().into()))
    },
));

/// INT32\[\]: widths of feed-forward layers.
const WIDTHS: OwnSetting = required(own(
    |_, model| Ok(Some(array(GgufMetadataArray::I32(list(FACTORS, model))))),
    |stated, config| {
        if stated.numbers()?.iter().any(|width| *width <= 0) {
            return Err(wrong_key(stated.key, "a width is not above 0"));
        }
        config.set(INNERS, stated.numbers()?.to_vec().into(), stated.key)?;
        Ok(None)
    },
));

#[cfg(test)]
mod tests {
    use super::width;

    /// Layers of the smallest published model, whose matrices have these rows.
    #[test]
    fn widths_of_layers() {
        let widths = [0.5, 0.63, 0.76, 0.89, 0.69, 4.0].map(|factor| width(factor, 1280, 256));
        assert_eq!(widths, [768, 768, 1024, 1280, 1024, 5120]);
    }
}
