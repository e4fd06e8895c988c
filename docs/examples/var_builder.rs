//! A candle `VarBuilder` over a quantized model: each weight is decoded when a layer asks for it by
//! name.
//!
//! cargo run --manifest-path tests/candle/Cargo.toml --example var_builder -- [MODEL]

use anamnesis::{Conversion, TargetDtype};
use candle_core::{DType, Device, Error, Module, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder, linear_no_bias};

/// A planned recovery that serves its tensors to candle.
struct Recovered<'m>(Conversion<'m>);

impl SimpleBackend for Recovered<'_> {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        if *tensor.shape() != shape {
            candle_core::bail!("{name} is {:?} and not {shape:?}", tensor.shape());
        }
        Ok(tensor)
    }

    fn get_unchecked(
        &self,
        name: &str,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let Some(output) = self.0.output(name) else {
            return Err(Error::CannotFindTensor { path: name.to_owned() });
        };
        let stored = match output.dtype {
            anamnesis::Dtype::BF16 => DType::BF16,
            anamnesis::Dtype::F16 => DType::F16,
            anamnesis::Dtype::F32 => DType::F32,
            anamnesis::Dtype::F64 => DType::F64,
            anamnesis::Dtype::I64 => DType::I64,
            anamnesis::Dtype::U32 => DType::U32,
            anamnesis::Dtype::U8 => DType::U8,
            other => candle_core::bail!("{name} is {other}, which candle does not have"),
        };
        let bytes = self.0.tensor(name).map_err(Error::wrap)?;
        Tensor::from_raw_buffer(&bytes, stored, output.shape, device)?.to_dtype(dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.output(name).is_some()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "tests/data/fp8_dirs/tiny_qwen3/model".to_owned());
    let model = anamnesis::parse(&path)?;
    let conversion = model.plan(TargetDtype::F32)?;
    // The matrices, as a program that knows the architecture would name them.
    let matrices: Vec<(String, usize, usize)> = conversion
        .outputs()
        .filter_map(|tensor| {
            let module = tensor.name.strip_suffix(".weight")?;
            let &[rows, columns] = tensor.shape else {
                return None;
            };
            Some((module.to_owned(), rows, columns))
        })
        .collect();
    let weights: VarBuilder =
        VarBuilder::from_backend(Box::new(Recovered(conversion)), DType::F32, Device::Cpu);
    for (module, rows, columns) in matrices {
        let layer = linear_no_bias(columns, rows, weights.pp(&module))?;
        let ones = Tensor::ones((1, columns), DType::F32, &Device::Cpu)?;
        let mean = layer.forward(&ones)?.mean_all()?.to_scalar::<f32>()?;
        println!("{module} [{rows}, {columns}]: mean output {mean:e}");
    }
    Ok(())
}
