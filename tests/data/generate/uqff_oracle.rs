// Decodes and writes UQFF files with mistral.rs's crate `mistralrs-quant`, for uqff.py.
// ../README.md says which version.

use std::path::PathBuf;
use std::sync::{atomic::AtomicUsize, Arc};

use candle_core::quantized::{ggml_file::qtensor_from_ggml, GgmlDType};
use candle_core::{DType, Device, Tensor};
use candle_nn::Linear;
use mistralrs_quant::{
    uqff_version_tensors, IsqType, QuantMethod, QuantMethodConfig, QuantizeOntoGuard, Shard,
    UnquantLinear, UqffReader, UqffTensor,
};
use safetensors::SafeTensors;

fn ggml_dtype(id: u32) -> GgmlDType {
    match id {
        0 => GgmlDType::F32,
        1 => GgmlDType::F16,
        2 => GgmlDType::Q4_0,
        3 => GgmlDType::Q4_1,
        6 => GgmlDType::Q5_0,
        7 => GgmlDType::Q5_1,
        8 => GgmlDType::Q8_0,
        9 => GgmlDType::Q8_1,
        10 => GgmlDType::Q2K,
        11 => GgmlDType::Q3K,
        12 => GgmlDType::Q4K,
        13 => GgmlDType::Q5K,
        14 => GgmlDType::Q6K,
        15 => GgmlDType::Q8K,
        30 => GgmlDType::BF16,
        _ => panic!("{id}"),
    }
}

fn decode(out: &str, files: &[String]) {
    let paths: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
    let reader = UqffReader::open(&paths).unwrap();
    let mut decoded = vec![];
    for path in &paths {
        let bytes = std::fs::read(path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let mut names: Vec<&str> = tensors.names().into_iter().collect();
        names.sort();
        for name in names {
            let Some(key) = name.strip_suffix(".weight.format") else {
                continue;
            };
            // mistral.rs's own reader must take the layer, whatever decodes it.
            let layer = reader.load_linear(key, &Device::Cpu, Shard::default()).unwrap().unwrap();
            let values = if tensors.tensor(name).unwrap().data() == [0] {
                let words = |name: &str| -> Vec<u32> {
                    let t = tensors.tensor(&format!("{key}.weight.{name}")).unwrap();
                    t.data().chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
                };
                let dims = words("shape").iter().map(|&n| n as usize).collect();
                let data = tensors.tensor(&format!("{key}.weight")).unwrap();
                let id = words("dtype")[0];
                // candle reads blocks where they are, and they have to be aligned.
                let mut words = vec![0u64; data.data().len().div_ceil(8)];
                let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
                let bytes = &mut bytes[..data.data().len()];
                bytes.copy_from_slice(data.data());
                let blocks = qtensor_from_ggml(ggml_dtype(id), bytes, dims, &Device::Cpu);
                let values = blocks.unwrap().dequantize(&Device::Cpu).unwrap();
                let float = [(1, DType::F16), (30, DType::BF16)].iter().find(|(n, _)| *n == id);
                values.to_dtype(float.map_or(DType::F32, |&(_, dtype)| dtype)).unwrap()
            } else {
                layer.dequantize_w().unwrap()
            };
            decoded.push(UqffTensor::from_tensor(format!("{key}.weight"), &values).unwrap());
        }
    }
    write(out, &decoded);
}

fn quantize(out: &str) {
    let mut tensors = uqff_version_tensors();
    let types = [
        IsqType::Q4_0, IsqType::Q4_1, IsqType::Q5_0, IsqType::Q5_1, IsqType::Q8_0, IsqType::Q2K,
        IsqType::Q3K, IsqType::Q4K, IsqType::Q5K, IsqType::Q6K, IsqType::HQQ8, IsqType::HQQ4,
        IsqType::F8E4M3, IsqType::AFQ8, IsqType::AFQ6, IsqType::AFQ4, IsqType::AFQ3, IsqType::AFQ2,
        IsqType::F8Q8, IsqType::MXFP4,
    ];
    for ty in types {
        let (rows, cols) = (2, 256);
        let value = |i: usize| (((i * 7919) % 1000) as f32 - 500.0) / 1234.5;
        let values: Vec<f32> = (0..rows * cols).map(value).collect();
        let weight = Tensor::from_vec(values, (rows, cols), &Device::Cpu).unwrap();
        let weight = weight.to_dtype(DType::BF16).unwrap();
        let layer = <UnquantLinear as QuantMethod>::new(QuantMethodConfig::Unquantized(Linear::new(weight, None)));
        let layer: Arc<dyn QuantMethod> = Arc::new(layer.unwrap());
        let (count, guard) = (AtomicUsize::new(0), QuantizeOntoGuard::new());
        let layer = layer.apply_isq(Some(ty), Device::Cpu, &count, None, guard).unwrap();
        let key = format!("layer.{ty:?}").to_lowercase();
        tensors.extend(layer.serialize_uqff(&key, ty).unwrap());
    }
    write(out, &tensors);
}

fn write(out: &str, tensors: &[UqffTensor]) {
    let named = tensors.iter().map(|tensor| (tensor.name(), tensor));
    safetensors::serialize_to_file(named, None, out.as_ref()).unwrap();
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args[1].as_str() {
        "decode" => decode(&args[2], &args[3..]),
        _ => quantize(&args[2]),
    }
}
