//! FP8 whose activations are quantized with a known scale for each layer.
//!
//! - compressed-tensors: `P.input_scale` `[1]` in the type of the model, static `input_activations`.
//! - transformers: `P.activation_scale` F32 `[]`, `activation_scheme` `static`.
//! - ComfyUI: `P.input_scale` F32 `[]`.

use std::sync::Arc;

use serde_json::Value;

use super::{Fp8, Fp8Layout, ct};
use crate::lethe::activation_scales::ActivationScales;
use crate::lethe::seam::grouped::float_bytes;
use crate::lethe::seam::rows::stored_tensor;
use crate::lethe::{
    Encode, EncodeBuffers, Method, Put, StoredTensor, Survey, TileValues, WeightInfo,
};
use crate::remember::{Granularity, Grid};
use crate::{Result, TargetDtype};

/// FP8 with the scales of activations.
pub(crate) struct StaticFp8 {
    fp8: Fp8,
    scales: Arc<ActivationScales>,
}

impl StaticFp8 {
    /// `fp8` with `scales`, if its layout has a place for them.
    pub(super) fn new(fp8: Fp8, scales: &Arc<ActivationScales>) -> Option<Self> {
        let has_scales = match fp8.layout {
            Fp8Layout::Transformers { .. } | Fp8Layout::ComfyUi { .. } => {
                fp8.granularity == Granularity::Tensor
            }
            Fp8Layout::CompressedTensors => {
                matches!(fp8.granularity, Granularity::Tensor | Granularity::Channel)
            }
        };
        has_scales.then(|| Self { fp8, scales: Arc::clone(scales) })
    }
}

impl Method for StaticFp8 {
    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        let is_unknown = self.scales.of(weight.base()).is_none();
        let objection = self.fp8.objection(weight);
        objection
            .or_else(|| is_unknown.then(|| "the file has no scale of its activations".to_owned()))
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        let (end, dtype, shape): (_, _, &[usize]) = match self.fp8.layout {
            Fp8Layout::CompressedTensors => (".input_scale", weight.dtype, &[1]),
            Fp8Layout::Transformers { .. } => (".activation_scale", TargetDtype::F32, &[]),
            Fp8Layout::ComfyUi { .. } => (".input_scale", TargetDtype::F32, &[]),
        };
        let scale = self.scales.of(weight.base()).unwrap_or_default();
        Ok(Box::new(StaticFp8Encoder {
            inner: self.fp8.encoder(weight)?,
            stored: stored_tensor(format!("{}{end}", weight.base()), dtype.dtype(), shape),
            bytes: float_bytes([scale].iter(), dtype),
        }))
    }

    fn config(&self, skipped: &[String]) -> Option<Value> {
        let mut config = self.fp8.config(skipped)?;
        match self.fp8.layout {
            Fp8Layout::Transformers { .. } => config["activation_scheme"] = "static".into(),
            _ => {
                config["config_groups"]["group_0"]["input_activations"] =
                    ct::float_args(8, "tensor", false, None, Value::Null);
            }
        }
        Some(config)
    }
}

/// Encodes a weight, and stores the scale of its activations.
struct StaticFp8Encoder {
    inner: Box<dyn Encode>,
    stored: StoredTensor,
    bytes: Vec<u8>,
}

impl Encode for StaticFp8Encoder {
    fn stored(&self) -> Vec<StoredTensor> {
        let mut stored = self.inner.stored();
        stored.push(self.stored.clone());
        stored
    }

    fn grid(&self) -> Grid {
        self.inner.grid()
    }

    fn survey(&self) -> Option<Survey> {
        self.inner.survey()
    }

    fn blocks(&self) -> Option<[usize; 2]> {
        self.inner.blocks()
    }

    fn encode(
        &self,
        values: &TileValues<'_>,
        buffers: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()> {
        self.inner.encode(values, buffers, back, put)?;
        match values.tile.is_first() {
            true => put(self.inner.stored().len(), 0, &self.bytes),
            false => Ok(()),
        }
    }
}
