//! What the products of a LoRA for an image or video model are multiplied by.
//!
//! `alpha / rank`, with a tensor `alpha` for each module; without one the product is added as it
//! is. diffusers writes PEFT's settings into the metadata instead, behind the part of the pipeline,
//! and PEFT has them in a file of their own.
//!
//! Source: diffusers 0.42.1 `utils/peft_utils.py` (`get_peft_kwargs`, `_create_lora_config`).

use serde_json::{Map, Value};

use crate::config::unique_json;
use crate::convert::adapters::CONFIG;
use crate::convert::adapters::composed::ComposedForm;
use crate::convert::adapters::peft_config::PeftConfig;
use crate::limits::FREE_JSON_BYTES;
use crate::model::Tensor;
use crate::remember::seam::{Floats, wrong};
use crate::{AnamnesisError, Dtype, ParsedModel, Result};

/// Key of the metadata that has PEFT's settings as JSON.
const SETTINGS: &str = "lora_adapter_metadata";

/// Where a part of a pipeline has its scales from.
pub(super) enum Scales<'a> {
    /// The tensor of each module.
    Tensors,
    /// Settings in the metadata.
    Metadata(PeftConfig),
    /// Settings beside the adapter.
    File(&'a PeftConfig),
}

impl<'a> Scales<'a> {
    /// Those of the part `component` of the adapter `model`, which has the settings `file` beside
    /// it.
    ///
    /// # Errors
    /// `Parse` if the settings in the metadata are malformed; `Unsupported` if they have something
    /// that is not merged.
    pub(super) fn new(
        model: &ParsedModel,
        component: &str,
        file: Option<&'a PeftConfig>,
    ) -> Result<Self> {
        if let Some(config) = file {
            return Ok(Self::File(config));
        }
        let Some(text) = model.metadata().get(SETTINGS) else {
            return Ok(Self::Tensors);
        };
        let about = |error: AnamnesisError| error.about(SETTINGS);
        let all = unique_json::parse_embedded(text.as_bytes(), &mut FREE_JSON_BYTES.clone());
        let all = all.map_err(|what| about(AnamnesisError::parse(what)))?;
        let all = all.as_object();
        let prefix = format!("{component}.");
        let own = |(key, value): (&String, &Value)| match component.is_empty() {
            true => Some((key.clone(), value.clone())),
            false => Some((key.strip_prefix(&prefix)?.to_owned(), value.clone())),
        };
        let mut settings: Map<String, Value> = all.into_iter().flatten().filter_map(own).collect();
        if settings.is_empty() {
            return Ok(Self::Tensors);
        }
        settings.entry("peft_type").or_insert_with(|| "LORA".into());
        let config = PeftConfig::new(&Value::Object(settings)).map_err(about)?;
        match config.has_lengths {
            true => {
                let what = "its `use_dora` is on, which is merged from adapters of PEFT alone";
                Err(about(AnamnesisError::unsupported("an adapter", what)))
            }
            false => Ok(Self::Metadata(config)),
        }
    }

    /// The factor of the product of `module`, of rank `rank`, or of whole matrices, which LyCORIS
    /// and ComfyUI add as they are. `form` is that of its matrices, if it is of LoHa or LoKr.
    ///
    /// # Errors
    /// `Parse` if `alpha` is no single finite F32, F16, BF16 or I64, is 0, or there is one beside the
    /// settings; or if these are of another kind of adapter.
    pub(super) fn of(
        &self,
        module: &str,
        (rank, form): (Option<usize>, Option<ComposedForm>),
        alpha: Option<Tensor<'_>>,
    ) -> Result<f64> {
        let (config, place) = match self {
            Self::Tensors => (None, ""),
            Self::Metadata(config) => (Some(config), SETTINGS),
            Self::File(config) => (Some(*config), CONFIG),
        };
        match (config, alpha, rank) {
            (None, None, _) => Ok(1.0),
            (None, Some(t), rank) => {
                let alpha = number(&t)?;
                if alpha == 0.0 {
                    let what = "it is 0, for which kohya's scripts and LyCORIS take the rank, and others nothing";
                    return Err(wrong(&t, what));
                }
                Ok(rank.map_or(1.0, |rank| alpha / rank as f64))
            }
            (Some(_), Some(t), _) => {
                Err(wrong(&t, format!("there is `{place}`, which says another alpha")))
            }
            (Some(config), None, rank) => {
                if form != config.form {
                    let what =
                        format!("`{module}`: `{place}` is of another `peft_type` than its tensors");
                    return Err(AnamnesisError::parse(what));
                }
                let (stated, scale) = config.rank_and_scale(module)?;
                match rank.filter(|&rank| stated != rank as f64) {
                    None => Ok(scale),
                    Some(rank) => {
                        let what =
                            format!("`{module}`: its rank is {rank}, and {stated} in `{place}`");
                        Err(AnamnesisError::parse(what))
                    }
                }
            }
        }
    }
}

/// The finite number that a tensor of one value holds. diffusers writes integers
/// (`convert_state_dict_to_kohya`).
fn number(t: &Tensor<'_>) -> Result<f64> {
    if t.dtype() == Dtype::I64 && t.elements() == 1 {
        let mut bytes = [0; 8];
        t.part().read_at(0, &mut bytes)?;
        return Ok(i64::from_le_bytes(bytes) as f64);
    }
    let floats =
        Floats::ieee(t).map_err(|_| wrong(t, "it is a number in F32, F16, BF16 or I64"))?;
    let mut values = vec![];
    if t.elements() == 1 {
        floats.extend(1, 0..1, 0..1, &mut vec![], &mut values)?;
    }
    match *values {
        [number] if number.is_finite() => Ok(number.into()),
        _ => Err(wrong(t, "it is no finite number")),
    }
}
