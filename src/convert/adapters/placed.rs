//! Products of modules that a base may have elsewhere, and those of two matrices.

use super::collect::Collector;
use super::composed::ComposedForm;
use super::matrices::{AdapterMatrix, PlacedMatrix};
use super::product::ModuleProduct;
use super::sorted::{LoraTensors, PlacedRows};
use super::tensor::AdapterTensor;
use crate::error::InTensor;
use crate::model::Tensor;
use crate::remember::layout::adapted::{AddedMatrix, Lengths};
use crate::remember::seam::wrong;
use crate::{AnamnesisError, Result};

impl Collector<'_, '_> {
    /// A product of which `places` are parts.
    pub(super) fn add_placed(&mut self, tensors: LoraTensors, places: &[PlacedRows]) -> Result<()> {
        let model = self.adapter.files.tensors.clone();
        let tensor = ModuleProduct::new(&model, &tensors)?.tensor().clone();
        let t = tensor.get();
        let scale = tensors.scale.unwrap_or(1.0) * self.adapter.weight;
        for place in places {
            let product = ModuleProduct::new(&model, &tensors)?;
            let weight = format!("{}.weight", place.module);
            let (item, whole) = self.item(&weight, &t)?;
            let (mut shape, rows) = (whole.clone(), product.rows());
            let Some(first) = shape.first_mut() else {
                continue;
            };
            let height = std::mem::replace(first, rows);
            let size = product.fit((&weight, &shape))?;
            let mut added = product.scaled(size, scale)?;
            let is_part = place.rows != height || place.rows != rows;
            if is_part {
                added = placed(added, place);
            }
            self.add(item, ([height, size.cols], added), &t)?;
            if let Some(index) = tensors.lengths {
                let lengths = self.dora_scale(&self.tensor(index), &whole, is_part)?;
                self.change(item).lengths = Some(lengths);
            }
            self.require_alone(item, &t)?;
        }
        match places {
            [only] => self.add_bias((&only.module, None), (tensors, scale), &t),
            _ => Ok(()),
        }
    }

    /// The lengths that LyCORIS has for the rows or the inputs of a weight of this `shape`.
    fn dora_scale(
        &self,
        tensor: &AdapterTensor,
        shape: &[usize],
        is_part: bool,
    ) -> Result<Lengths> {
        let t = tensor.get();
        let refused = |what: &str| {
            let what = format!("{}: {what}", InTensor(&t.name()));
            AnamnesisError::unsupported("DoRA of LyCORIS", what)
        };
        if is_part {
            return Err(refused(
                "the module's rows lie elsewhere in BASE, whose lengths are others",
            ));
        }
        if self.adapter.weight != 1.0 {
            return Err(refused(
                "it is merged with weight 1; LyCORIS and ComfyUI do not agree on others",
            ));
        }
        let (n, own) = (t.elements(), t.shape());
        let &[rows, inputs, ref taps @ ..] = shape else {
            return Err(wrong(&t, "its weight is no matrix"));
        };
        match *own {
            [height, _, ..] if height == rows && n == rows => {
                Ok(Lengths::Rows(AdapterMatrix::boxed(tensor.clone(), [rows, 1], false)?))
            }
            [1, width, ..] if width == inputs && n == inputs && n > 0 => {
                let lengths = AdapterMatrix::boxed(tensor.clone(), [1, inputs], false)?;
                // The weight has values, so no size is 0.
                Ok(Lengths::Columns { lengths, group: taps.iter().product::<usize>().max(1) })
            }
            _ => {
                let what = format!(
                    "its shape is {own:?}, neither [{rows}, 1…] nor [1, {inputs}, 1…], for a weight {shape:?}"
                );
                Err(wrong(&t, what))
            }
        }
    }

    /// The product of two matrices of PEFT's LoHa or LoKr.
    pub(super) fn add_composed(&mut self, module: &str, tensors: LoraTensors) -> Result<()> {
        let product = ModuleProduct::new(&self.adapter.files.tensors, &tensors)?;
        let tensor = product.tensor().clone();
        let t = tensor.get();
        self.require_kind(&tensors, &t)?;
        let weight = format!("{module}.weight");
        let (item, shape) = self.item(&weight, &t)?;
        let size = product.fit((&weight, &shape))?;
        let Some(config) = self.adapter.peft() else {
            return Err(wrong(&t, "nothing says its scale"));
        };
        let (rank, scale) = config.rank_and_scale(module)?;
        if let Some(stored) = product.rank().filter(|&stored| stored as f64 != rank) {
            let what = format!("its rank is {stored}, and {rank} in the settings of the adapter");
            return Err(wrong(&t, what));
        }
        let added = product.scaled(size, scale * self.adapter.weight)?;
        self.add(item, (size.whole(), added), &t)?;
        self.require_alone(item, &t)
    }

    /// Fails if the settings of PEFT are those of another kind of adapter than `tensors`, the first
    /// of which is `t`, or if PEFT multiplies these otherwise.
    pub(super) fn require_kind(&self, tensors: &LoraTensors, t: &Tensor<'_>) -> Result<()> {
        let Some(config) = self.adapter.peft() else {
            return Ok(());
        };
        let form = tensors.composed.map(|composed| composed.form);
        let of_lora = tensors.lengths.or(tensors.bias);
        if form != config.form || (form.is_some() && of_lora.is_some()) {
            return Err(wrong(t, "the settings of the adapter have another `peft_type`"));
        }
        let whole = tensors
            .composed
            .and_then(|composed| composed.second_whole());
        let whole = whole.map(|index| self.tensor(index));
        let is_line = whole.is_some_and(|tensor| tensor.get().shape().len() == 3);
        if form == Some(ComposedForm::Kronecker) && is_line {
            let what = format!(
                "{}: PEFT multiplies whole kernels of a Conv1d along other axes than LyCORIS",
                InTensor(&t.name())
            );
            return Err(AnamnesisError::unsupported("LoKr of PEFT", what));
        }
        Ok(())
    }
}

/// The rows of `matrix` that are those of a place.
fn placed(matrix: AddedMatrix, place: &PlacedRows) -> AddedMatrix {
    let rows = |inner| PlacedMatrix::boxed(inner, (place.from, place.to), place.rows);
    matrix.map(&rows, &|inner| inner)
}
