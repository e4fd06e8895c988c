//! Loads a quantized model into candle: every weight decoded to BF16, nothing written to disk.
//!
//! cargo run --manifest-path tests/candle/Cargo.toml --example candle -- [MODEL]

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "tests/data/demo/model-fp8.safetensors".to_owned());
    let model = anamnesis::parse(&path)?;
    let mut tensors: HashMap<String, Tensor> = HashMap::new();
    // One tensor is in memory at a time beside candle's own copies.
    model.for_each_tensor(anamnesis::TargetDtype::BF16, |name, shape, dtype, bytes| {
        let dtype = match dtype {
            anamnesis::Dtype::BF16 => DType::BF16,
            anamnesis::Dtype::F16 => DType::F16,
            anamnesis::Dtype::F32 => DType::F32,
            // Plain tensors keep their type: token ids, masks. candle has no need of them here.
            _ => return Ok(()),
        };
        let tensor = Tensor::from_raw_buffer(bytes, dtype, shape, &Device::Cpu)
            .map_err(std::io::Error::other)?;
        tensors.insert(name.to_owned(), tensor);
        Ok(())
    })?;
    for (name, tensor) in &tensors {
        let mean = tensor
            .to_dtype(DType::F32)?
            .mean_all()?
            .to_scalar::<f32>()?;
        println!("{name} {:?} mean {mean:e}", tensor.shape());
    }
    Ok(())
}
