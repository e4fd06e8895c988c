//! Scales of the inputs of layers, with which activations are quantized. Only data tell them, so they
//! come from a file that somebody has calibrated.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::remember::kernels::widen::Widen;
use crate::simd::Level;
use crate::source::Source;
use crate::{AnamnesisError, ParseLimits, Result, TargetDtype, Tensor};

/// Bytes of a JSON file at most.
const MAX_JSON: u64 = 64 << 20;

/// What libraries call the scale of a layer's input, behind the name of the module.
const ENDS: [&str; 4] =
    [".input_scale", ".activation_scale", ".scale_input", ".input_activation_scale"];

/// Scales of the inputs of modules, by which FP8 codes are multiplied.
#[derive(Debug, Default)]
pub(crate) struct ActivationScales(HashMap<String, f32>);

impl ActivationScales {
    /// Reads a JSON object of numbers by the names of modules or of scales, or the scales of a model
    /// that has them.
    ///
    /// # Errors
    /// `Io` if the file cannot be read, `Parse` if a scale is no positive number, `Usage` if there is
    /// none, those of parsing.
    pub(crate) fn open(path: &Path, limits: &ParseLimits) -> Result<Self> {
        let is_json = path
            .extension()
            .is_some_and(|end| end.eq_ignore_ascii_case("json"));
        let scales = if is_json {
            of_json(path)
        } else {
            of_model(path, limits)
        };
        let about = format_args!("scales of activations {}", path.display());
        let scales = scales.map_err(|error| error.about(about))?;
        if let Some((name, scale)) = scales.iter().find(|(_, x)| !(x.is_finite() && **x > 0.0)) {
            let what = format!("{}: the scale of `{name}` is {scale:e}", path.display());
            return Err(AnamnesisError::parse(what));
        }
        if scales.is_empty() {
            let what = format!(
                "--activation-scales: {} has no scale of an input, such as `P{}`",
                path.display(),
                ENDS[0]
            );
            return Err(AnamnesisError::usage(what));
        }
        Ok(Self(scales))
    }

    /// The scale of the input of `module`.
    pub(crate) fn of(&self, module: &str) -> Option<f32> {
        self.0.get(module).copied()
    }
}

/// The scales of a JSON object.
fn of_json(path: &Path) -> Result<HashMap<String, f32>> {
    let source = Source::open(path)?;
    let len = source.len().filter(|&len| len <= MAX_JSON);
    let Some(len) = len else {
        return Err(AnamnesisError::parse(format!("it has more than {MAX_JSON} bytes")));
    };
    let mut text = vec![0; len as usize];
    source.read_at(0, &mut text)?;
    source.require_unchanged()?;
    let object: Map<String, Value> = serde_json::from_slice(&text)
        .map_err(|error| AnamnesisError::parse(format!("it is no JSON object: {error}")))?;
    let number = |(name, value): (String, Value)| {
        let number = value
            .as_f64()
            .ok_or_else(|| AnamnesisError::parse(format!("the value of `{name}` is no number")))?;
        Ok((module_of(&name).unwrap_or(&name).to_owned(), number as f32))
    };
    object.into_iter().map(number).collect()
}

/// The scales of a model.
fn of_model(path: &Path, limits: &ParseLimits) -> Result<HashMap<String, f32>> {
    let model = crate::parse_with_limits(path, limits)?;
    let mut scales = HashMap::new();
    for tensor in model.tensors() {
        if let Some(module) = module_of(tensor.name()) {
            scales.insert(module.to_owned(), only_number(&tensor)?);
        }
    }
    model.require_unchanged().map(|()| scales)
}

/// The module whose input's scale has this name.
fn module_of(name: &str) -> Option<&str> {
    ENDS.iter().find_map(|end| name.strip_suffix(end))
}

/// The value of a tensor of one float.
fn only_number(tensor: &Tensor<'_>) -> Result<f32> {
    if tensor.elements() != 1 || TargetDtype::of(tensor.dtype()).is_none() {
        let what = format!("{} {:?} is not one float", tensor.dtype(), tensor.shape());
        return Err(AnamnesisError::parse(what).in_tensor(tensor.name()));
    }
    let mut bytes = vec![0; tensor.dtype().bits() / 8];
    tensor.part().read_at(0, &mut bytes)?;
    let values = Widen { dtype: tensor.dtype(), bytes: &bytes }.to_f32(Level::default());
    Ok(values.first().copied().unwrap_or_default())
}
