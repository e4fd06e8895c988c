//! Small synthetic models to encode, and readers of their encodings.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::Path;

use anamnesis::{
    AnamnesisError, ConvertOptions, Forget, ForgetScheme, ModelScope, ParsedModel, Report,
    TargetDtype, Tensor, parse, parse_bytes,
};

use super::{Random, Raw, bytes_of, f32s, file, raw, values_of_bytes};

/// GGUF file types whose encoders need an importance matrix.
const NEED_IMPORTANCE: &[&str] =
    &["iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq3_xxs", "iq3_xs", "q2_k_s"];

/// Every scheme by name, those of GGUF last, but for recipes of MLX: they are of whole models, and
/// tests of MLX compare them with mlx-lm.
pub fn every_scheme() -> Vec<String> {
    let gguf = ForgetScheme::all_gguf().map(str::to_lowercase);
    // Block types without a file type of their name.
    let blocks = ["mxfp4", "nvfp4"].map(str::to_owned);
    ForgetScheme::all()
        .map(|(name, _)| name.to_owned())
        .filter(|name| !name.starts_with("mlx-mixed"))
        .chain(gguf.chain(blocks).map(|t| format!("gguf:{t}")))
        .collect()
}

/// Whether a scheme needs an importance matrix.
pub fn needs_importance(scheme: &str) -> bool {
    scheme
        .strip_prefix("gguf:")
        .is_some_and(|name| NEED_IMPORTANCE.contains(&name))
}

/// An importance matrix in llama.cpp's older format, for every matrix of `model`.
pub fn importance(model: &ParsedModel) -> Vec<u8> {
    let matrices: Vec<_> = model
        .tensors()
        .filter(|t| t.shape().len() >= 2 && t.elements() > 0)
        .collect();
    let mut out = (matrices.len() as i32).to_le_bytes().to_vec();
    for t in matrices {
        let (rows, cols) = (
            t.shape().iter().rev().skip(1).take(1).product::<usize>(),
            t.shape()[t.shape().len() - 1],
        );
        let n = t.elements() / rows;
        assert_eq!(n % cols, 0);
        out.extend((t.name().len() as i32).to_le_bytes());
        out.extend(t.name().as_bytes());
        out.extend([1i32, n as i32].map(i32::to_le_bytes).as_flattened());
        out.extend((0..n).flat_map(|i| (0.5 + (i * 37 % 101) as f32 / 16.0).to_le_bytes()));
    }
    out
}

/// Options for a scheme.
pub fn options(scheme: &str) -> ConvertOptions {
    ConvertOptions::from(scheme.parse::<ForgetScheme>().unwrap())
}

/// Options for a scheme, with an importance matrix for `model` in `directory` if the scheme needs
/// one.
pub fn options_for(scheme: &str, model: &ParsedModel, directory: &Path) -> ConvertOptions {
    let mut forget = Forget::from(scheme.parse::<ForgetScheme>().unwrap());
    if needs_importance(scheme) {
        let path = directory.join("importance.dat");
        std::fs::write(&path, importance(model)).unwrap();
        forget.imatrix = Some(path);
    }
    forget.into()
}

/// Encodes the tensors of `model` in memory, and returns the parsed output with its report.
pub fn encoded(
    model: &ParsedModel,
    mut options: ConvertOptions,
) -> Result<(ParsedModel, Report), AnamnesisError> {
    (options.single_file, options.scope) = (true, ModelScope::Tensors);
    let conversion = model.plan(options)?;
    Ok((parse_bytes(conversion.to_bytes()?)?, conversion.report().clone()))
}

/// `model` decoded to F32.
pub fn decoded(model: &ParsedModel) -> Result<ParsedModel, AnamnesisError> {
    let mut options = ConvertOptions::from(TargetDtype::F32);
    options.single_file = true;
    parse_bytes(model.plan(options)?.to_bytes()?)
}

/// The values of a float tensor; `None` for other dtypes.
pub fn values(t: &Tensor<'_>) -> Option<Vec<f32>> {
    let bytes = t.bytes().unwrap();
    match t.dtype().to_string().as_str() {
        "F32" => Some(values_of_bytes(&bytes, f32::from_le_bytes)),
        "BF16" => Some(values_of_bytes(&bytes, |b| half::bf16::from_le_bytes(b).to_f32())),
        "F16" => Some(values_of_bytes(&bytes, |b| half::f16::from_le_bytes(b).to_f32())),
        _ => None,
    }
}

/// Dtype, shape and bytes of a tensor.
pub type Stored = (String, Vec<usize>, Vec<u8>);

/// A tensor as it is stored.
pub fn stored(t: &Tensor<'_>) -> Stored {
    (t.dtype().to_string(), t.shape().to_vec(), t.bytes().unwrap().into_owned())
}

/// Every tensor of `model` as it is stored, by name.
pub fn all_stored(model: &ParsedModel) -> BTreeMap<String, Stored> {
    model
        .tensors()
        .map(|t| (t.name().to_owned(), stored(&t)))
        .collect()
}

/// Every tensor of the file or directory at `path` as it is stored, by name.
pub fn stored_at(path: &Path) -> BTreeMap<String, Stored> {
    all_stored(&parse(path).unwrap())
}

/// The values in F32 of every tensor of the file or directory at `path`, decoded, by name.
pub fn values_at(path: &Path) -> BTreeMap<String, Vec<f32>> {
    decoded(&parse(path).unwrap())
        .unwrap()
        .tensors()
        .filter_map(|t| Some((t.name().to_owned(), values(&t)?)))
        .collect()
}

/// The values of the tensor called `name`.
pub fn values_of(model: &ParsedModel, name: &str) -> Vec<f32> {
    let t = model.tensor(name).unwrap_or_else(|| panic!("no {name}"));
    values(&t).unwrap_or_else(|| panic!("{name} is {}", t.dtype()))
}

/// Values like those of weights: roughly normal, with a few outliers.
pub fn weights(random: &mut Random, n: usize) -> Vec<f32> {
    let (mut out, mut i) = (vec![0.0; n], 0);
    while i < n {
        let [a, b, c, d] = [random.float(), random.float(), random.float(), random.float()];
        let factor = if random.next().is_multiple_of(499) {
            20.0
        } else {
            1.0
        };
        out[i] = (a + b + c + d) * factor;
        i += 1;
    }
    out
}

/// Values as BF16.
pub fn bf16s(values: &[f32]) -> Vec<u8> {
    bytes_of(values, |v| half::bf16::from_f32(v).to_le_bytes())
}

/// Values as F16.
pub fn f16s(values: &[f32]) -> Vec<u8> {
    bytes_of(values, |v| half::f16::from_f32(v).to_le_bytes())
}

/// One layer of a model in every float type: matrices of `rows` × `cols` and stacks of experts,
/// with norms and biases.
pub fn layer(random: &mut Random, no: usize, rows: usize, cols: usize) -> Vec<Raw> {
    let name = |end: &str| format!("model.layers.{no}.{end}");
    let mut floats = |n: usize| weights(random, n);
    vec![
        raw(&name("input_layernorm.weight"), "BF16", &[cols], bf16s(&floats(cols))),
        raw(&name("self_attn.q_proj.weight"), "BF16", &[rows, cols], bf16s(&floats(rows * cols))),
        raw(&name("self_attn.q_proj.bias"), "BF16", &[rows], bf16s(&floats(rows))),
        raw(&name("mlp.up_proj.weight"), "F16", &[rows, cols], f16s(&floats(rows * cols))),
        raw(&name("mlp.down_proj.weight"), "F32", &[cols, rows], f32s(&floats(rows * cols))),
        raw(&name("mlp.experts.gate_up_proj"), "BF16", &[2, 64, 96], bf16s(&floats(2 * 64 * 96))),
    ]
}

/// A model of `layers` layers, one per shard. The first shard also has the embedding, the last one
/// the final norm and the head.
pub fn shards(layers: usize, rows: usize, cols: usize) -> Vec<Vec<Raw>> {
    let mut random = Random(23);
    let mut all: Vec<Vec<Raw>> = (0..layers)
        .map(|no| layer(&mut random, no, rows, cols))
        .collect();
    let mut table =
        |name: &str| raw(name, "BF16", &[64, cols], bf16s(&weights(&mut random, 64 * cols)));
    let (embedding, head) = (table("model.embed_tokens.weight"), table("lm_head.weight"));
    all[0].insert(0, embedding);
    all[layers - 1].push(raw("model.norm.weight", "BF16", &[cols], vec![0x3f; 2 * cols]));
    all[layers - 1].push(head);
    all
}

/// The model of [`shards`] as one file.
pub fn whole(layers: usize, rows: usize, cols: usize) -> Vec<u8> {
    file(&shards(layers, rows, cols).concat(), &[])
}

/// A config of a model that is not quantized.
pub const PLAIN: &str = r#"{
  "architectures": ["TestForCausalLM"],
  "model_type": "llama",
  "num_hidden_layers": 3,
  "rms_norm_eps": 1e-06,
  "torch_dtype": "bfloat16"
}
"#;
