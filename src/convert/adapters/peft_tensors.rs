//! The tensors of a PEFT adapter, by the weights of the base that they change.

use std::collections::HashSet;
use std::ops::Range;

use super::composed::{ComposedRole, ComposedTensors};
use super::sorted::{LoraTensors, SortedTensors};
use super::tensor::AdapterTensor;
use crate::element::Out;
use crate::error::InTensor;
use crate::remember::seam::wrong;
use crate::remember::{Buffers, Decode, Grid, PlainFloats, Tile};
use crate::simd::Level;
use crate::{AnamnesisError, ParsedModel, Result};

/// What the names of an adapter's tensors begin with, before the name of the base's module.
const PREFIX: &str = "base_model.model.";

impl SortedTensors {
    /// The tensors of an adapter of PEFT.
    ///
    /// # Errors
    /// `Parse` if a tensor has a name that PEFT does not give, or two have one place.
    pub(super) fn of_peft(model: &ParsedModel) -> Result<Self> {
        let mut sorted = Self::default();
        let names: HashSet<&str> = model.tensors().map(|t| t.name()).collect();
        for (index, t) in model.tensors().enumerate() {
            if is_wrapper_of(t.name(), &names) {
                continue;
            }
            let Some(name) = t.name().strip_prefix(PREFIX) else {
                let what = format!("its name does not begin with `{PREFIX}`, as those of PEFT do");
                return Err(wrong(&t, what));
            };
            if !sorted.add(name, index) {
                return Err(wrong(&t, "another tensor of the adapter has its place"));
            }
            let is_left = sorted.replacements.contains_key(&weight_name(name));
            if is_left && name.contains("lora_") {
                return Err(wrong(&t, "its name is none of a LoRA for weights"));
            }
        }
        Ok(sorted)
    }

    /// Sorts a tensor in. Returns whether its place was free.
    fn add(&mut self, name: &str, index: usize) -> bool {
        type Place = fn(&mut LoraTensors) -> &mut Option<usize>;
        let endings: [(&str, bool, Place); 7] = [
            (".lora_A.weight", false, |t| &mut t.a),
            (".lora_B.weight", false, |t| &mut t.b),
            (".lora_B.bias", false, |t| &mut t.bias),
            (".lora_embedding_A", true, |t| &mut t.a),
            (".lora_embedding_B", true, |t| &mut t.b),
            (".lora_magnitude_vector", false, |t| &mut t.lengths),
            (".lora_magnitude_vector.weight", false, |t| &mut t.lengths),
        ];
        for (ending, is_embedding, place) in endings {
            if let Some(module) = name.strip_suffix(ending) {
                let tensors = self.lora.entry(module.to_owned()).or_default();
                tensors.is_embedding |= is_embedding;
                return place(tensors).replace(index).is_none();
            }
        }
        if let Some((module, role)) = ComposedRole::of(name) {
            let tensors = self.lora.entry(module.to_owned()).or_default();
            return ComposedTensors::add(&mut tensors.composed, role, index);
        }
        if let Some(module) = name.strip_suffix(TRAINED_ROWS) {
            return self
                .rows
                .insert(format!("{module}.weight"), index)
                .is_none();
        }
        let weight = weight_name(name);
        self.replacements.insert(weight, index).is_none()
    }
}

/// Name of the rows of a module that were trained, behind that of the module.
const TRAINED_ROWS: &str = ".token_adapter.trainable_tokens_delta";

/// The name in the base of a weight that the adapter has as `name`: that of a module with a LoRA is
/// below `base_layer`, that of one with trained rows below `token_adapter.base_layer`.
fn weight_name(name: &str) -> String {
    let name = name.replace(".token_adapter.base_layer.", ".");
    name.replace(".base_layer.", ".")
}

/// Whether PEFT does not read the tensor `name`. For a module that was trained as a whole and has
/// other rows than the base's, it saves the weight, the same once more below `modules_to_save`, and
/// the untrained one below `original_module`.
fn is_wrapper_of(name: &str, names: &HashSet<&str>) -> bool {
    let mut parts = [".modules_to_save.", ".original_module."].iter();
    parts.any(|part| name.contains(part) && names.contains(&*name.replacen(part, ".", 1)))
}

/// Decoder of a weight that an adapter replaces.
pub(super) struct Replacement {
    tensor: AdapterTensor,
    grid: Grid,
}

impl Replacement {
    /// # Errors
    /// `Unsupported` if the tensor is not F32, F16 or BF16.
    pub(super) fn new(tensor: AdapterTensor) -> Result<Self> {
        let Some(grid) = PlainFloats::of(&tensor.get()).map(|plain| plain.grid()) else {
            let t = tensor.get();
            let what =
                format!("{}: it is {}, not F32, F16 or BF16", InTensor(&t.name()), t.dtype());
            return Err(AnamnesisError::unsupported("an adapter", what));
        };
        Ok(Self { tensor, grid })
    }
}

impl Decode for Replacement {
    fn grid(&self) -> Grid {
        self.grid
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        match PlainFloats::of(&self.tensor.get()) {
            Some(plain) => plain.load(tile, buffers),
            None => Ok(()),
        }
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        // The constructor has seen that there is a decoder.
        if let Some(plain) = PlainFloats::of(&self.tensor.get()) {
            plain.decode(tile, rows, buffers, level, out);
        }
    }
}
