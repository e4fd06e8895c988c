//! What an adapter changes of biases, and whole tensors that it adds.

use super::collect::Collector;
use super::matrices::AdapterMatrix;
use super::parameters::Assignment;
use super::sorted::{LoraTensors, SortedTensors};
use super::tensor::AdapterTensor;
use crate::Result;
use crate::model::Tensor;
use crate::remember::layout::adapted::{AddedMatrix, ScaledProduct};
use crate::remember::seam::scale_matrix::Ones;
use crate::remember::seam::wrong;

impl Collector<'_, '_> {
    /// What the second factor of a module adds to the bias, where the settings say so
    /// (`lora_bias`).
    pub(super) fn add_bias(
        &mut self,
        (module, assigned): (&str, Option<&Assignment>),
        (tensors, scale): (LoraTensors, f64),
        a: &Tensor<'_>,
    ) -> Result<()> {
        let config = self.adapter.peft();
        let is_expected = config.is_none_or(|config| config.has_bias_of_b);
        let Some(index) = tensors.bias else {
            return match is_expected && config.is_some() {
                true => Err(wrong(
                    a,
                    "the settings say `lora_bias`, and the module has no `lora_B.bias`",
                )),
                false => Ok(()),
            };
        };
        let tensor = self.tensor(index);
        let t = tensor.get();
        if !is_expected || assigned.is_some() {
            let what =
                "the settings of the adapter do not say that the module has it (`lora_bias`)";
            return Err(wrong(&t, what));
        }
        self.add_values(&format!("{module}.bias"), &tensor, scale)
    }

    /// Adds the values of `tensor`, times `scale`, to the tensor `name` of the base.
    pub(super) fn add_values(
        &mut self,
        name: &str,
        tensor: &AdapterTensor,
        scale: f64,
    ) -> Result<()> {
        let t = tensor.get();
        let (item, shape) = self.item(name, &t)?;
        if shape != t.shape() {
            let what = format!("it is {:?}, and `{name}` is {shape:?}", t.shape());
            return Err(wrong(&t, what));
        }
        let (size, added) = match *shape {
            [] => return Err(wrong(&t, "it is a number, and vectors and matrices are added")),
            [n] => {
                let a = AdapterMatrix::boxed(tensor.clone(), [1, n], false)?;
                let product =
                    ScaledProduct { a, b: Box::new(Ones), rank: 1, scale, matrix_rows: 1 };
                ([1, n], AddedMatrix::LowRank(product))
            }
            [rows, ref rest @ ..] => {
                let cols = rest
                    .iter()
                    .try_fold(1_usize, |n, &size| n.checked_mul(size));
                let size = [rows, cols.unwrap_or(0)];
                let matrix = AdapterMatrix::boxed(tensor.clone(), size, false)?;
                (size, AddedMatrix::Stored { matrix, scale })
            }
        };
        self.add(item, (size, added), &t)?;
        self.require_alone(item, &t)
    }

    /// Fails if the settings say that biases were trained, the model has one for a module of the
    /// adapter, and the adapter has none: the output would have the untrained one.
    pub(super) fn require_biases(&self, sorted: &SortedTensors) -> Result<()> {
        let config = self.adapter.peft();
        if !config.is_some_and(|config| config.has_trained_biases) {
            return Ok(());
        }
        for (module, tensors) in &sorted.lora {
            let name = format!("{module}.bias");
            let is_left =
                self.names.contains_key(&name) && !sorted.replacements.contains_key(&name);
            if let (true, Some(a)) = (is_left, tensors.a) {
                let what = format!(
                    "the settings say that biases were trained (`bias`), and the adapter has no `{name}`"
                );
                return Err(wrong(&self.tensor(a).get(), what));
            }
        }
        Ok(())
    }
}
