//! Rotary positions: their base, and how they are scaled to texts longer than those of the
//! training.
//!
//! Source: `TextModel.__init__` and `set_gguf_parameters` in `conversion/base.py`,
//! `LlamaModel.generate_extra_tensors` in `conversion/llama.py` of llama.cpp.

mod by_kind;
mod llama3;
mod long;
mod proportional;

use serde_json::Value;

pub(crate) use self::by_kind::WINDOWED;
pub(crate) use self::llama3::Llama3;
pub(crate) use self::long::{LONG_FACTORS, long_attention_factor};
pub(crate) use self::proportional::proportional;

use super::fields::{CONTEXT, Fields, wrong};
use crate::Result;

/// Object of the rotary positions, as transformers 5 names it; in some classes it has one for each
/// kind of layers.
pub(crate) const PARAMETERS: &str = "rope_parameters";

/// Object of the scaling alone, as transformers names it before version 5.
pub(crate) const SCALING: &str = "rope_scaling";

/// Fields of the base.
const BASES: &[&str] = &[
    "global_rope_theta",
    "rope_global_theta",
    "rope_theta_global",
    "rope_theta",
    "rotary_emb_base",
];

/// Fields of the part of each head that rotates.
pub(super) const PARTIAL: &[&str] =
    &["partial_rotary_factor", "rotary_pct", "rope_pct", "rope_percent"];

/// The rotary positions of a model.
#[derive(Debug, Clone)]
pub(crate) struct Rope {
    pub base: Option<f64>,
    pub local_base: Option<f64>,
    /// Whether `rope_parameters` is stated by the kind of the layers, if it says anything.
    pub is_by_kind: Option<bool>,
    /// Whether `rope_scaling` has `type`, and no `rope_type`.
    pub has_old_type: bool,
    /// Whether the config says more of layers with a sliding window than their base.
    pub has_local_scaling: bool,
    /// Name of the scaling; `default` if there is none.
    pub kind: String,
    /// The part of each head that rotates, if the config says it.
    pub partial: Option<f64>,
    /// What the config says of the scaling.
    pub scaling: Fields,
}

impl Rope {
    /// # Errors
    /// `Parse` that names a field of another type.
    pub(crate) fn new(fields: &Fields) -> Result<Self> {
        let nested = |name: &str| match fields.get(&[name]) {
            None => Ok(None),
            Some((_, Value::Object(map))) => Ok(Some(map.clone())),
            Some((name, value)) => Err(wrong(name, format_args!("{value} is no object"))),
        };
        let mut all = match nested(PARAMETERS)? {
            Some(all) => all,
            None => nested(SCALING)?.unwrap_or_default(),
        };
        // Either of all layers, or of each kind of layers.
        let local = all.remove("sliding_attention");
        if let Some(Value::Object(full)) = all.remove("full_attention") {
            all = full;
        }
        let scaling = Fields::of(all);
        let base = match scaling.number(&["rope_theta"])? {
            Some(base) => Some(base),
            None => fields.agreed(BASES)?,
        };
        let local = local.as_ref().and_then(Value::as_object);
        let is_plain = |(name, value): (&String, &Value)| match name.as_str() {
            "rope_theta" => true,
            "rope_type" | "type" => value == "default",
            _ => value.is_null() || value.as_f64() == Some(1.0),
        };
        let has_local_scaling = !local.into_iter().flatten().all(is_plain);
        let local_base = by_kind::local_base(local, fields)?;
        let kind = scaling.get(&["rope_type", "type"]).map(|(_, kind)| kind);
        let kind = match kind {
            None => "default".to_owned(),
            Some(Value::String(kind)) => kind.to_lowercase(),
            Some(kind) => return Err(wrong("rope_type", format_args!("{kind} is no name"))),
        };
        let partial = match scaling.number(PARTIAL)? {
            Some(partial) => Some(partial),
            None => fields.agreed(PARTIAL)?,
        };
        if partial.is_some_and(|part| part <= 0.0 || part > 1.0) {
            return Err(wrong(PARTIAL[0], "it is no part of a head"));
        }
        Ok(Self {
            base,
            local_base,
            is_by_kind: by_kind::is_by_kind(fields),
            has_old_type: by_kind::has_old_type(fields),
            has_local_scaling,
            kind,
            partial,
            scaling,
        })
    }

    /// A tenth of YaRN's `mscale_all_dim`.
    pub(crate) fn yarn_log(&self) -> Result<Option<f64>> {
        let scale = self.scaling.number(&[SCALE])?;
        Ok(scale.map(|scale| 0.1 * scale))
    }

    /// Whether YaRN's bounds are not rounded.
    pub(super) fn is_exact(&self) -> bool {
        let truncates = self.scaling.get(&["truncate"]).map(|(_, value)| value);
        truncates.and_then(Value::as_bool) == Some(false)
    }

    /// Fails if `dynamic` rope scales texts that fit into the context of the model: llama.cpp
    /// scales none. transformers scales those that are longer.
    ///
    /// Source: `_compute_dynamic_ntk_parameters` in `modeling_rope_utils.py` of transformers.
    pub(super) fn check_dynamic(&self, fields: &Fields) -> Result<()> {
        if self.scaling.number(&["alpha"])?.is_some() {
            return Err(wrong("alpha", "dynamic rope with it is not converted"));
        }
        let name = "original_max_position_embeddings";
        let (original, longest) = (self.scaling.number(&[name])?, fields.number(CONTEXT)?);
        match (original, longest) {
            (Some(original), Some(longest)) if original < longest => {
                let what = format!(
                    "it is {original}, and texts have up to {longest} tokens: GGUF does not say that dynamic rope scales the longer ones"
                );
                Err(wrong(name, what))
            }
            _ => Ok(()),
        }
    }

    /// How many pairs of a head, of which `rotating` dimensions rotate, do so by each axis of an
    /// image: four numbers.
    ///
    /// # Errors
    /// `Parse` if the config says something else, or nothing and there is no `default`.
    pub(crate) fn sections(&self, default: Option<[i32; 4]>, rotating: usize) -> Result<Vec<i32>> {
        let Some((name, list)) = self.scaling.get(&[SECTIONS]) else {
            let missing = || wrong(SECTIONS, "it is missing");
            return default.map(|list| list.to_vec()).ok_or_else(missing);
        };
        let number = |n: &Value| n.as_i64().and_then(|n| i32::try_from(n).ok());
        let list = list.as_array().filter(|list| list.len() <= 4);
        let list = list.and_then(|list| list.iter().map(number).collect::<Option<Vec<_>>>());
        let mut list = list.ok_or_else(|| wrong(name, "it is no list of up to four numbers"))?;
        let pairs: i64 = list.iter().map(|n| i64::from(*n)).sum();
        if usize::try_from(pairs).ok() != Some(rotating / 2) {
            let what = format!("{pairs} pairs, and {rotating} dimensions of a head rotate");
            return Err(wrong(name, what));
        }
        list.resize(4, 0);
        Ok(list)
    }

    /// The field `name`: a list of `len` numbers.
    pub(super) fn list(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let list = self
            .scaling
            .get(&[name])
            .and_then(|(_, list)| list.as_array());
        let numbers = list.and_then(|list| {
            let numbers = list.iter().map(|x| Some(x.as_f64()? as f32));
            numbers.collect::<Option<Vec<f32>>>()
        });
        let fits = |numbers: &Vec<f32>| numbers.len() == len;
        let wrong = || wrong(name, format_args!("it is no list of {len} numbers"));
        numbers.filter(fits).ok_or_else(wrong)
    }

    /// The factors by which Llama 3's scaling divides each frequency of a head of which `rotating`
    /// dimensions rotate.
    ///
    /// Waves shorter than `original / high` stay, those longer than `original / low` are stretched
    /// by the factor, and between them the stretching grows.
    pub(super) fn llama3_factors(&self, rotating: usize) -> Result<Vec<f32>> {
        let or =
            |name, default| -> Result<f64> { Ok(self.scaling.number(&[name])?.unwrap_or(default)) };
        let scaling = Llama3 {
            base: self.base.unwrap_or(10_000.0),
            factor: or("factor", 8.0)?,
            low: or("low_freq_factor", 1.0)?,
            high: or("high_freq_factor", 4.0)?,
            // llama.cpp's converter has 8192 without it, and transformers 5 the longest text.
            original: self.need("original_max_position_embeddings")?,
        };
        Ok(scaling.factors(rotating))
    }

    /// The number `name` of the scaling.
    ///
    /// # Errors
    /// `Parse` if it is missing or no number.
    pub(crate) fn need(&self, name: &str) -> Result<f64> {
        let number = self.scaling.number(&[name])?;
        number.ok_or_else(|| wrong(name, format_args!("it is missing in {} rope", self.kind)))
    }
}

/// What YaRN by `factor` multiplies rotated heads by, where `mscale` is `weight`.
///
/// Source: `_compute_yarn_parameters` in `modeling_rope_utils.py` of transformers.
pub(crate) fn yarn_attention_factor(factor: f64, weight: f64) -> f64 {
    match factor > 1.0 {
        true => 0.1 * weight * factor.ln() + 1.0,
        false => 1.0,
    }
}

/// Field of the weight of YaRN's factor of attention.
pub(super) const SCALE: &str = "mscale_all_dim";

/// Field of how many pairs of a head rotate by each axis of an image.
pub(crate) const SECTIONS: &str = "mrope_section";

/// The tensor of the factors of Llama 3's rope.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Whether the tensor `name` of GGUF is made of fields of the config.
pub(crate) fn is_factors(name: &str) -> bool {
    name == ROPE_FACTORS || LONG_FACTORS.iter().any(|(tensor, _)| name == *tensor)
}
