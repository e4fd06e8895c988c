//! What llama.cpp can be told of the rope of a class: checks, keys and tensors of factors, and the
//! config that they come from.

mod alpha;
mod bases;
mod from_gguf;

pub(crate) use self::alpha::restore_base;
pub(crate) use self::bases::add_kinds;
pub(crate) use self::from_gguf::{add_scaling, check_attention_factor, scaling_of};

use super::dims::Dims;
use super::fields::{Fields, KeyValue, wrong};
use super::rope::{
    LONG_FACTORS, PARAMETERS, PARTIAL, ROPE_FACTORS, Rope, SCALE, long_attention_factor,
    proportional,
};
use super::table::{Kind, ModelClass, OwnScaling};
use crate::Result;
use crate::model::gguf::GgufMetadataValue;

/// The base of classes whose GGUF files state none.
const FIXED_BASE: f64 = 10_000.0;

/// Keys of YaRN that a config may have, with their fields.
const YARN: &[(&str, &[&str])] = &[
    ("scaling.yarn_ext_factor", &["extrapolation_factor"]),
    ("scaling.yarn_attn_factor", &["attention_factor", "attn_factor"]),
    ("scaling.yarn_beta_fast", &["beta_fast"]),
    ("scaling.yarn_beta_slow", &["beta_slow"]),
];

/// Whether rope of `class` has factors for heads of other lengths.
fn has_proportional(class: &ModelClass) -> bool {
    let by_layer = class.traits.by_layer;
    by_layer.is_some_and(|by_layer| by_layer.restore_rope.is_some())
}

impl Rope {
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
        if class.traits.rope.partial.is_none() && !is_whole {
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
        if has_proportional(class) {
            let is_whole = self.kind == "default" && class.traits.rope.may_be_whole;
            if self.kind != "proportional" && !is_whole {
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
        if self.kind == "llama3" && !class.traits.rope.has(OwnScaling::Llama3) {
            return refuse("rope_type", "it is `llama3`");
        }
        if class.traits.rope.is_fixed {
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
        let part = self.partial.or(class.traits.rope.partial).unwrap_or(1.0);
        (dims.head as f64 * part) as usize
    }

    /// What a user should know of the scaling of a model of `class`.
    pub(crate) fn note(&self, class: &ModelClass) -> Option<String> {
        let is_dynamic = self.kind == "dynamic" && !self.is_alpha(class);
        let is_rounded =
            self.kind == "yarn" && class.traits.rope.has(OwnScaling::ExactYarn) && !self.is_exact();
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

    /// Whether an `alpha` raises the base.
    fn is_alpha(&self, class: &ModelClass) -> bool {
        class.traits.rope.has(OwnScaling::Alpha) && self.kind == "dynamic"
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
            "proportional" if has_proportional(class) => {}
            "longrope" | "su" if class.traits.rope.has(OwnScaling::Long) => {
                let factor = long_attention_factor(fields)?;
                let stated = self.scaling.number(&["attention_factor"])?;
                if let Some(found) = stated.filter(|found| (found - factor).abs() > 1e-4) {
                    let what =
                        format!("it is {found}, and llama.cpp's {} has {factor}", class.gguf);
                    return Err(wrong("attention_factor", what));
                }
                add("scaling.attn_factor", float(factor));
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
            if self.is_exact() && !class.traits.rope.has(OwnScaling::ExactYarn) {
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
            "llama3" if class.traits.rope.has(OwnScaling::Llama3) => {
                let mut factors = self.llama3_factors(rotating)?;
                if class.traits.by_layer.is_some() {
                    // Layers of which more rotates have no factors for it.
                    factors.resize(dims.head / 2, 1.0);
                }
                Ok(vec![(ROPE_FACTORS, factors)])
            }
            "proportional" => {
                let part = self.partial.or(class.traits.rope.partial).unwrap_or(1.0);
                let factors = proportional(dims.full_head(), part).unwrap_or_default();
                Ok(vec![(ROPE_FACTORS, factors)])
            }
            "longrope" | "su" if class.traits.rope.has(OwnScaling::Long) => {
                let factors = |(name, field)| Ok((name, self.list(field, rotating / 2)?));
                LONG_FACTORS.into_iter().map(factors).collect()
            }
            _ => Ok(vec![]),
        }
    }
}
