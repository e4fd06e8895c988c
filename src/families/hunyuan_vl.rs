//! Hunyuan OCR: Hunyuan whose heads rotate by four axes of an image. Of a text it is Hunyuan with a raised
//! base of rope, which it comes back as.
//!
//! Source: `HunyuanVLTextModel` in `conversion/hunyuan.py` of llama.cpp.

use serde_json::{Map, Value};

use super::hunyuan::HUNYUAN;
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, array, wrong};
use crate::families::engine::rows::*;
use crate::model::gguf::GgufMetadataArray;

pub(super) const HUNYUAN_VL: ModelClass = ModelClass {
    gguf: "hunyuan_vl",
    classes: &["HunYuanDenseV1ForCausalLM", "HunYuanVLForConditionalGeneration"],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("use_qk_norm", Bool(true)),
    ],
    settings: &[&[
        number("rope.scaling.alpha", &[ALPHA]),
        setting(Kind::Text("none"), "rope.scaling.type", &[]),
        number("rope.scaling.factor", &[FACTOR]),
        setting(Kind::Count, "rope.scaling.original_context_length", &["max_position_embeddings"]),
        setting(Kind::Own(&SECTIONS), "rope.dimension_sections", &[SECTION_FIELD]),
        // Of Hunyuan OCR, a number of experts of 1 means none.
        setting(Kind::Omitted, "expert_count", &[]),
    ]],
    traits: Traits {
        rope: RopeTraits::PLAIN,
        completes: &[flat],
        restores: &[raised],
        ..HUNYUAN.traits
    },
    tokenizer: &TokenizerRules::PLAIN,
    mlx: None,
    ..HUNYUAN
};

const ALPHA: &str = "rope_alpha";
const FACTOR: &str = "rope_factor";
const SECTION_FIELD: &str = "xdrope_section";

/// Takes the scaling of rope apart.
fn flat(fields: &mut Fields) -> Result<()> {
    if fields.count(&["num_experts"])?.is_some_and(|n| n > 1) {
        return Err(wrong("num_experts", "llama.cpp's hunyuan_vl has no experts"));
    }
    fields.0.remove("num_experts");
    let stated = ["rope_parameters", "rope_scaling"].into_iter();
    let mut objects: Vec<_> = stated
        .filter_map(|name| Some((name, fields.0.remove(name)?)))
        .collect();
    let Some((name, Value::Object(rope))) = objects.drain(..).next() else {
        return Ok(());
    };
    let kind = rope.get("rope_type").or_else(|| rope.get("type"));
    let sections = rope
        .get(SECTION_FIELD)
        .or_else(|| rope.get("mrope_section"));
    let is_known = kind.is_some_and(|kind| kind == "xdrope" || kind == "dynamic");
    let alpha = Fields(rope.clone())
        .number(&["alpha"])?
        .filter(|alpha| *alpha > 0.0);
    let (Some(alpha), Some(sections), true) = (alpha, sections, is_known) else {
        return Err(wrong(name, "it is no scaling by four axes with an `alpha`"));
    };
    let base = rope.get("rope_theta").cloned();
    fields
        .0
        .extend(base.map(|base| ("rope_theta".to_owned(), base)));
    let factor = rope.get("factor").cloned().unwrap_or_else(|| 1.0.into());
    let all = [(ALPHA, alpha.into()), (FACTOR, factor), (SECTION_FIELD, sections.clone())];
    fields
        .0
        .extend(all.map(|(name, value)| (name.to_owned(), value)));
    Ok(())
}

/// INT32\[4\]: how many pairs of a head rotate by each axis.
const SECTIONS: OwnSetting = required(own(
    |setting, model| {
        let list = model
            .fields
            .get(setting.fields)
            .and_then(|(_, list)| list.as_array());
        let number = |n: &Value| i32::try_from(n.as_u64()?).ok();
        let all = list.and_then(|list| list.iter().map(number).collect::<Option<Vec<_>>>());
        let all = all.filter(|all| all.len() == 4);
        let all = all.ok_or_else(|| setting.wrong("it is no list of four numbers"))?;
        Ok(Some(array(GgufMetadataArray::I32(all))))
    },
    |stated, _| stated.numbers().map(|_| None),
));

/// Raises the base as `alpha` says.
fn raised(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    config.remove(FACTOR);
    let base = config
        .get("rope_theta")
        .and_then(Value::as_f64)
        .unwrap_or(10_000.0);
    if let Some(alpha) = config.remove(ALPHA).and_then(|alpha| alpha.as_f64()) {
        let head = dims.head as f64;
        if head <= 2.0 || alpha <= 0.0 {
            return Err(wrong("alpha", "it is not above 0, or heads are too short"));
        }
        let base = base * alpha.powf(head / (head - 2.0));
        config.insert("rope_theta".to_owned(), base.into());
    }
    Ok(())
}
