// Burnpack files, and the tensors that burn-pack reads from them. ../README.md says which version.
//
// A package with the dependencies burn-pack, burn-std, safetensors and serde_json, of which this is main.rs: cargo run DIRECTORY

use std::collections::BTreeMap;
use std::path::Path;

use burn_pack::{Bytes, DType, Reader, Scalar, Tensor, Writer};
use burn_std::BoolStore;
use burn_std::quantization::{QuantScheme, QuantStore, QuantValue};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

const TYPES: [(&str, DType, Dtype); 15] = [
    ("f64", DType::F64, Dtype::F64),
    ("f32", DType::F32, Dtype::F32),
    ("flex32", DType::Flex32, Dtype::F32),
    ("f16", DType::F16, Dtype::F16),
    ("bf16", DType::BF16, Dtype::BF16),
    ("i64", DType::I64, Dtype::I64),
    ("i32", DType::I32, Dtype::I32),
    ("i16", DType::I16, Dtype::I16),
    ("i8", DType::I8, Dtype::I8),
    ("u64", DType::U64, Dtype::U64),
    ("u32", DType::U32, Dtype::U32),
    ("u16", DType::U16, Dtype::U16),
    ("u8", DType::U8, Dtype::U8),
    ("bool", DType::Bool(BoolStore::Native), Dtype::BOOL),
    ("bool_u8", DType::Bool(BoolStore::U8), Dtype::BOOL),
];

fn tensor(name: &str, dtype: DType, shape: &[usize], id: Option<u64>) -> Tensor {
    let len = shape.iter().product::<usize>() * dtype.size();
    let byte = |at: usize| match dtype {
        DType::Bool(_) => (at % 3 == 0) as u8,
        // No NaN, so that values can be compared.
        _ => (at * 37 + len) as u8 & 0x3f,
    };
    let bytes = Bytes::from_bytes_vec((0..len).map(byte).collect());
    Tensor::new(name.to_string(), dtype, shape.to_vec(), id, bytes)
}

fn main() {
    let root = std::env::args().nth(1).unwrap();
    let root = Path::new(&root);
    std::fs::create_dir_all(root).unwrap();
    let all = TYPES.iter().map(|(name, dtype, _)| tensor(name, *dtype, &[3, 5], None));
    let types = Writer::new(all.collect());
    let module = Writer::new(vec![
        tensor("linear.weight", DType::F32, &[4, 2], Some(u64::MAX)),
        tensor("linear.bias", DType::F32, &[2], Some(7)),
        tensor("count", DType::I64, &[], None),
        tensor("empty", DType::F32, &[0, 3], None),
        tensor("a name with `marks`", DType::BF16, &[1, 2, 3, 4, 5], None),
    ]);
    let module = module.with_metadata("producer", "burn").with_metadata("note", "ä");
    let numbers = [Scalar::Int(-300), Scalar::UInt(70_000), Scalar::Float(0.5), Scalar::Bool(true)];
    let module = numbers.iter().enumerate().fold(module, |w, (i, s)| w.with_scalar(&i.to_string(), *s));
    let many = (0..60).map(|n| tensor(&format!("layers.{n}.weight"), DType::F16, &[2, n % 4], None));
    let scheme = QuantScheme::default().with_value(QuantValue::Q8S).with_store(QuantStore::Native);
    let quantized = Writer::new(vec![tensor("q", DType::QFloat(scheme), &[4, 4], None)]);
    let wide = Writer::new(vec![tensor("wide", DType::Bool(BoolStore::U32), &[4], None)]);
    let files = [
        ("types", types, "ok", "each dtype"),
        ("module", module, "ok", "numbers of parameters, notes and scalars"),
        ("many", Writer::new(many.collect()), "ok", "60 tensors"),
        ("quantized", quantized, "error", "codes of eight bits"),
        ("wide", wide, "error", "booleans of four bytes"),
    ];
    let (mut rows, mut expected, mut read) = (Vec::new(), Vec::new(), Vec::new());
    for (name, writer, expect, detail) in files {
        let bytes = writer.into_bytes().unwrap();
        std::fs::write(root.join(format!("{name}.bpk")), &bytes[..]).unwrap();
        let tensors = Reader::from_bytes(bytes).unwrap().into_tensors().unwrap();
        let count = tensors.len();
        rows.push(format!(
            r#"  {{"file": "{name}.bpk", "expect": "{expect}", "tensors": {count}, "detail": "{detail}"}}"#
        ));
        if expect == "ok" {
            read.push(name);
            for tensor in tensors {
                let (_, _, dtype) = TYPES.iter().find(|(_, dtype, _)| *dtype == tensor.dtype).unwrap();
                let bytes = tensor.to_bytes().unwrap().to_vec();
                expected.push((format!("{name}/{}", tensor.name), *dtype, tensor.shape.to_vec(), bytes));
            }
        }
    }
    std::fs::write(root.join("index.json"), format!("[\n{}\n]\n", rows.join(",\n"))).unwrap();
    let views: BTreeMap<_, _> = expected
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()))
        .collect();
    let files = BTreeMap::from([("files".to_string(), serde_json::to_string(&read).unwrap())]);
    let bytes = safetensors::serialize(views, Some(files.into_iter().collect())).unwrap();
    std::fs::write(root.join("expected.safetensors"), bytes).unwrap();
}
