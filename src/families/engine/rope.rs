//! Rotary positions: their base, and how they are scaled to texts longer than those of the
//! training.
//!
//! Source: `TextModel.__init__` and `set_gguf_parameters` in `conversion/base.py`,
//! `LlamaModel.generate_extra_tensors` in `conversion/llama.py` of llama.cpp.

mod alpha;
mod by_kind;
mod from_gguf;
mod llama3;
mod long;
mod proportional;

use serde_json::Value;

pub(crate) use self::alpha::restore_base;
pub(crate) use self::by_kind::add_kinds;
pub(crate) use self::from_gguf::{add_scaling, check_attention_factor, scaling_of};
pub(crate) use self::llama3::Llama3;
pub(crate) use self::long::long_attention_factor;
pub(crate) use self::proportional::proportional;

use self::long::LONG_FACTORS;
use super::dims::Dims;
use super::fields::{Fields, wrong};
use super::settings::{CONTEXT, KeyValue};
use super::table::{Kind, ModelClass};
use crate::Result;
use crate::model::gguf::GgufMetadataValue;

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
const PARTIAL: &[&str] = &["partial_rotary_factor", "rotary_pct", "rope_pct", "rope_percent"];

/// The base of classes whose GGUF files state none.
const FIXED_BASE: f64 = 10_000.0;

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

    /// Fails if the config says what llama.cpp does not do with models of `class`.
    ///
    /// # Errors
    /// `Parse` that names the field.
    pub(crate) fn check(&self, class: &ModelClass) -> Result<()> {
        let refuse = |field: &str, what: &str| {
            let what = format!("{what}, which llama.cpp's {} cannot be told", class.gguf);
            Err(wrong(field, what))
        };
        let is_whole = self.partial.is_none_or(|part| part == 1.0);
        if class.traits.partial_rotary.is_none() && !is_whole {
            return refuse(PARTIAL[0], "only a part of each head rotates");
        }
        if self.is_alpha(class) {
            return Ok(());
        }
        let has_log = class.settings().any(|s| s.fields.contains(&SCALE));
        let scales = ["mscale", SCALE].map(|field| self.scaling.number(&[field]));
        let [scale, all] = scales;
        let (scale, all) = (scale?, all?);
        if scale.or(all).is_some() && (!has_log || scale != all) {
            return refuse("mscale", "it is not `mscale_all_dim`");
        }
        let is_other = match () {
            () if class.has_setting(Kind::Text("none")) => self.kind != "default",
            () if class.has_setting(Kind::LinearOrNone) => {
                !matches!(self.kind.as_str(), "default" | "linear")
            }
            () if class.has_setting(Kind::Scaling) => self.kind != "yarn",
            // llama.cpp scales attention of these by the logarithm of any factor.
            () => has_log && self.kind == "linear",
        };
        if is_other {
            return refuse("rope_type", &format!("it is `{}`", self.kind));
        }
        if has_log && self.kind == "yarn" && all.is_none() {
            return refuse(SCALE, "it is missing");
        }
        if self.has_local_scaling {
            return refuse(PARAMETERS, "layers with a window have a scaling");
        }
        if class.traits.by_layer.is_some() {
            if self.kind != "proportional" {
                return refuse("rope_type", &format!("it is `{}`", self.kind));
            }
            if self
                .scaling
                .number(&["factor"])?
                .is_some_and(|factor| factor != 1.0)
            {
                return refuse("factor", "it is not 1");
            }
        }
        if self.kind == "llama3" && !class.traits.stores_rope_factors {
            return refuse("rope_type", "it is `llama3`");
        }
        if class.traits.has_fixed_rope {
            if self.kind != "default" {
                return refuse("rope_type", &format!("it is `{}`", self.kind));
            }
            if self.base.is_some_and(|base| base != FIXED_BASE) {
                return refuse("rope_theta", &format!("it is not {FIXED_BASE}"));
            }
        }
        Ok(())
    }

    /// Dimensions of a head of a model of `class` that rotate.
    pub(crate) fn rotating(&self, class: &ModelClass, dims: &Dims) -> usize {
        let part = self.partial.or(class.traits.partial_rotary).unwrap_or(1.0);
        (dims.head as f64 * part) as usize
    }

    /// A tenth of YaRN's `mscale_all_dim`.
    pub(crate) fn yarn_log(&self) -> Result<Option<f64>> {
        let scale = self.scaling.number(&[SCALE])?;
        Ok(scale.map(|scale| 0.1 * scale))
    }

    /// What a user should know of the scaling of a model of `class`.
    pub(crate) fn note(&self, class: &ModelClass) -> Option<String> {
        let is_dynamic = self.kind == "dynamic" && !self.is_alpha(class);
        let is_rounded = self.kind == "yarn" && class.traits.has_exact_yarn && !self.is_exact();
        let what = match () {
            () if is_dynamic => {
                "texts longer than those of the training scale rope, which GGUF does not say"
            }
            () if is_rounded => {
                "`truncate` is true, as llama.cpp computes it; GGUF does not say so, and a directory that is made of it says false"
            }
            () => return None,
        };
        Some(what.to_owned())
    }

    /// Whether YaRN's bounds are not rounded.
    fn is_exact(&self) -> bool {
        let truncates = self.scaling.get(&["truncate"]).map(|(_, value)| value);
        truncates.and_then(Value::as_bool) == Some(false)
    }

    /// Fails if `dynamic` rope scales texts that fit into the context of the model: llama.cpp
    /// scales none. transformers scales those that are longer.
    ///
    /// Source: `_compute_dynamic_ntk_parameters` in `modeling_rope_utils.py` of transformers.
    fn check_dynamic(&self, fields: &Fields) -> Result<()> {
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

    /// Whether an `alpha` raises the base.
    fn is_alpha(&self, class: &ModelClass) -> bool {
        class.traits.has_alpha_rope && self.kind == "dynamic"
    }

    /// The keys of a model of `class`.
    ///
    /// # Errors
    /// `Parse` if the scaling is none that GGUF has, or lacks a number.
    pub(crate) fn keys(&self, class: &ModelClass, fields: &Fields) -> Result<Vec<KeyValue>> {
        if self.is_alpha(class) {
            return alpha::keys(class.gguf, (&self.scaling, self.base), fields);
        }
        let mut keys = Vec::new();
        let float = |x: f64| GgufMetadataValue::F32(x as f32);
        let mut add = |key: &str, value| keys.push((format!("{}.rope.{key}", class.gguf), value));
        match self.kind.as_str() {
            // Llama 3's factors are a tensor.
            "default" | "llama3" => {}
            "mrope" if class.has_setting(Kind::TextSections) => {}
            "dynamic" => self.check_dynamic(fields)?,
            "proportional" if class.traits.by_layer.is_some() => {}
            "longrope" | "su" if class.traits.has_long_factors => {
                add("scaling.attn_factor", float(long_attention_factor(fields)?));
            }
            kind @ ("linear" | "yarn") => {
                add("scaling.type", GgufMetadataValue::String(kind.to_owned()));
                add("scaling.factor", float(self.need("factor")?));
            }
            kind => {
                let what = format!("`{kind}` is not converted; known are linear, yarn, llama3");
                return Err(wrong("rope_type", what));
            }
        }
        if self.kind == "yarn" {
            if self.is_exact() && !class.traits.has_exact_yarn {
                return Err(wrong("truncate", "GGUF cannot say that it is false"));
            }
            let length = self.scaling.need(&["original_max_position_embeddings"])?;
            add("scaling.original_context_length", GgufMetadataValue::U32(length));
            for (key, fields) in YARN {
                if let Some(x) = self.scaling.number(fields)? {
                    add(key, float(x));
                }
            }
        }
        if let Some(base) = self.base {
            add("freq_base", float(base));
        }
        if let Some(base) = self.own_local_base(class) {
            add("freq_base_swa", float(base));
        }
        Ok(keys)
    }

    /// The tensors of a model of `class` that GGUF has for rope.
    pub(crate) fn tensors(
        &self,
        class: &ModelClass,
        dims: &Dims,
    ) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let rotating = self.rotating(class, dims);
        match self.kind.as_str() {
            "llama3" if class.traits.stores_rope_factors => {
                Ok(vec![(ROPE_FACTORS, self.llama3_factors(rotating)?)])
            }
            "proportional" => {
                let part = self.partial.or(class.traits.partial_rotary).unwrap_or(1.0);
                let factors = proportional(dims.full_head(), part).unwrap_or_default();
                Ok(vec![(ROPE_FACTORS, factors)])
            }
            "longrope" | "su" if class.traits.has_long_factors => {
                let factors = |(name, field)| Ok((name, self.list(field, rotating / 2)?));
                LONG_FACTORS.into_iter().map(factors).collect()
            }
            _ => Ok(vec![]),
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
    fn list(&self, name: &str, len: usize) -> Result<Vec<f32>> {
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
    fn llama3_factors(&self, rotating: usize) -> Result<Vec<f32>> {
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
const SCALE: &str = "mscale_all_dim";

/// Field of how many pairs of a head rotate by each axis of an image.
pub(crate) const SECTIONS: &str = "mrope_section";

/// The tensor of the factors of Llama 3's rope.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Whether the tensor `name` of GGUF is made of fields of the config.
pub(crate) fn is_factors(name: &str) -> bool {
    name == ROPE_FACTORS || LONG_FACTORS.iter().any(|(tensor, _)| name == *tensor)
}

/// Keys of YaRN that a config may have, with their fields.
const YARN: &[(&str, &[&str])] = &[
    ("scaling.yarn_ext_factor", &["extrapolation_factor"]),
    ("scaling.yarn_attn_factor", &["attention_factor", "attn_factor"]),
    ("scaling.yarn_beta_fast", &["beta_fast"]),
    ("scaling.yarn_beta_slow", &["beta_slow"]),
];
