//! Decoding of every scheme: a model of `tests/data`, with edits that an input chooses. The files
//! stay valid, so the edits reach the schemes.

use std::collections::HashMap;

use anamnesis::parse_with_limits;
use safetensors::SafeTensors;

use super::bytes::{Bytes, by_id};
use super::directory::place;
use super::golden::{File, Golden, goldens};
use super::model::{check, limits};
use crate::common::{DTYPES, Raw, find_dtype};

/// Parts of names that mean something to a scheme.
const ENDINGS: &[&str] = &[
    "weight",
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_packed",
    "weight_shape",
    "weight_zero_point",
    "weight_g_idx",
    "weight_global_scale",
    "input_scale",
    "scale",
    "scales",
    "biases",
    "bias",
    "qweight",
    "qzeros",
    "g_idx",
    "SCB",
    "weight_format",
    "weight.absmax",
    "weight.quant_map",
    "weight.nested_absmax",
    "weight.nested_quant_map",
    "weight.quant_state.bitsandbytes__nf4",
    "weight.quant_state.bitsandbytes__fp4",
    "W_q",
    "zero",
    "meta",
    "weight._data",
    "weight._scale",
    "weight._shift",
    "comfy_quant",
    "blocks",
    "gate_up_proj_blocks",
    "gate_up_proj_scales",
    "pre_quant_scale",
    "svdquant_lora_a",
    "weight_s_rel",
    "weight_s_channel",
    "weight_codebook",
    "weight_correction",
    "weight_zeros",
    "smooth_factor",
    "proj_down",
    "proj_up",
    "tables",
    "tables2",
    "theta",
    "pairs",
    "channel_scales",
    "encoded_exponent",
    "sign_mantissa",
    "luts",
    "output_positions",
    "gaps",
    "codes",
    "codebooks",
    "indices",
    "centroids.weight",
    "res_centroids.weight",
    "outlier_indices",
    "perm",
    "dense_weights",
    "row_offsets",
    "col_vals",
    "in_perm",
    "weight_scales",
    "wscales",
    "wzeros",
    "wtscale",
    "q_weight",
    "q_invperm",
    "q_scale",
    "q_groups",
    "trellis",
    "suh",
    "svh",
    "mcg",
    "mul1",
    "zero_point",
    "zero_point_scale",
    "svd_up",
    "svd_down",
    "weight_offset",
    "deq_scale",
    "quant_bias",
    "weight.format",
    "weight.dtype",
    "s_channel",
    "s_group",
    "gate_up_weight_theta",
    "down_weight_channel_scales",
    "forward_hadamard_matrix",
    "scale2",
    "",
];

/// Numbers for dimensions.
const DIMENSIONS: &[usize] = &[0, 1, 2, 3, 4, 7, 8, 16, 31, 32, 33, 64, 100, 128, 129, 256, 1024];

/// What a value of a config may become.
const VALUES: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "8",
    "16",
    "32",
    "33",
    "64",
    "128",
    "129",
    "-1",
    "null",
    "true",
    "false",
    "4.0",
    "1e400",
    "18446744073709551615",
    "[]",
    "[128,128]",
    "[1,32]",
    "{}",
    "\"\"",
    "\"gptq\"",
    "\"awq\"",
    "\"gptq_v2\"",
    "\"fp8\"",
    "\"bitsandbytes\"",
    "\"compressed-tensors\"",
    "\"mxfp4\"",
    "\"hqq\"",
    "\"quanto\"",
    "\"paroquant\"",
    "\"fp_quant\"",
    "\"higgs\"",
    "\"sinq\"",
    "\"sdnq\"",
    "\"nunchaku_lite\"",
    "\"exl2\"",
    "\"exl3\"",
    "\"blockwise_int8\"",
    "\"w4afp8\"",
    "\"torchao\"",
    "\"aqlm\"",
    "\"eetq\"",
    "\"qqq\"",
    "\"spqr\"",
    "\"vptq\"",
    "\"svdquant\"",
    "\"channel\"",
    "\"group\"",
    "\"tensor\"",
    "\"block\"",
    "\"int\"",
    "\"float\"",
    "\"gemm\"",
    "\"gemv\"",
    "\"marlin\"",
    "\"nf4\"",
    "\"fp4\"",
    "\"pack-quantized\"",
    "\"nvfp4-pack-quantized\"",
    "\"float-quantized\"",
    "\"Linear\"",
    "\"re:.*\"",
];

pub fn run(bytes: &[u8]) {
    let mut input = Bytes(bytes);
    let golden = by_id(goldens(), input.u16());
    let salt = crc32fast::hash(bytes);
    let place = place();
    let (weights, configs) = edited(golden, &mut input);
    for (name, content) in weights.iter().chain(&configs) {
        let path = place.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let path = match (golden.tree, weights.as_slice()) {
        (Some(open), _) => place.path().join(open),
        (None, [(name, _)]) => place.path().join(name),
        (None, _) => place.path().to_owned(),
    };
    if let Ok(model) = parse_with_limits(path, &limits()) {
        check(&model, salt);
    }
}

/// The files of `golden` with the edits of `input`.
pub fn edited(golden: &Golden, input: &mut Bytes<'_>) -> (Vec<File>, Vec<File>) {
    let mut weights: Vec<(String, Weights)> = golden
        .weights
        .iter()
        .map(|(name, bytes)| match golden.tree {
            // Another file than the manifest or the metadata describes would only be refused for
            // its length.
            Some(_) => (name.clone(), Weights::Other(bytes.clone())),
            None => (name.clone(), Weights::read(bytes)),
        })
        .collect();
    let mut configs = golden.configs.clone();
    for _ in 0..6 {
        if input.0.is_empty() {
            break;
        }
        let kind = input.below(8);
        if kind >= 6 && !configs.is_empty() {
            let i = input.below(configs.len());
            edit_config(&mut configs[i].1, input);
        } else {
            let i = input.below(weights.len());
            weights[i].1.edit(kind % 6, input);
        }
    }
    let weights = weights.into_iter().map(|(name, w)| (name, w.bytes()));
    (weights.collect(), configs)
}

/// Replaces a value of a config.
fn edit_config(config: &mut Vec<u8>, input: &mut Bytes<'_>) {
    let text = String::from_utf8_lossy(config).into_owned();
    let values: Vec<usize> = text.match_indices(": ").map(|(at, _)| at + 2).collect();
    if values.is_empty() {
        return;
    }
    let from = values[input.below(values.len())];
    let to = text[from..]
        .find([',', '\n', '}', ']'])
        .map_or(text.len(), |n| from + n);
    *config = [&text[..from], input.of(VALUES), &text[to..]]
        .concat()
        .into_bytes();
}

/// A weight file: tensors, if it is safetensors.
enum Weights {
    Tensors(Vec<Raw>, HashMap<String, String>),
    Other(Vec<u8>),
}

impl Weights {
    fn read(bytes: &[u8]) -> Self {
        let Ok((_, header)) = SafeTensors::read_metadata(bytes) else {
            return Self::Other(bytes.to_vec());
        };
        let file = SafeTensors::deserialize(bytes).unwrap();
        let tensors = header.offset_keys().into_iter().map(|name| {
            let view = file.tensor(&name).unwrap();
            let dtype = anamnesis::Dtype::try_from(view.dtype())
                .unwrap()
                .to_string();
            Raw {
                dtype: find_dtype(&dtype).unwrap().0,
                shape: view.shape().to_vec(),
                bytes: view.data().to_vec(),
                name,
            }
        });
        Self::Tensors(tensors.collect(), header.metadata().clone().unwrap_or_default())
    }

    fn edit(&mut self, kind: usize, input: &mut Bytes<'_>) {
        match self {
            Self::Other(bytes) => {
                let at = input.below(bytes.len());
                bytes[at] ^= input.u8().max(1);
            }
            Self::Tensors(tensors, _) if tensors.is_empty() => {}
            Self::Tensors(tensors, _) => {
                let i = input.below(tensors.len());
                if kind == 0 && tensors.len() > 1 {
                    tensors.remove(i);
                } else {
                    edit(&mut tensors[i], kind, input);
                }
                let name = tensors[i.min(tensors.len() - 1)].name.clone();
                if tensors.iter().filter(|t| t.name == name).count() > 1 {
                    tensors.remove(i);
                }
            }
        }
    }

    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Other(bytes) => bytes,
            Self::Tensors(tensors, metadata) => {
                let pairs: Vec<_> = metadata.iter().map(|(k, v)| (&k[..], &v[..])).collect();
                crate::common::file(&tensors, &pairs)
            }
        }
    }
}

/// Changes dtype, shape, name or data, and makes the data as long as dtype and shape say.
fn edit(t: &mut Raw, kind: usize, input: &mut Bytes<'_>) {
    let before = (t.dtype, t.shape.clone());
    match kind {
        1 => t.dtype = input.of(DTYPES).0,
        2 if !t.shape.is_empty() => {
            let axis = input.below(t.shape.len());
            let old = t.shape[axis];
            t.shape[axis] = match input.below(6) {
                0 => old + 1,
                1 => old.saturating_sub(1),
                2 => old * 2,
                3 => old / 2,
                _ => input.of(DIMENSIONS),
            };
        }
        3 => match input.below(3) {
            0 => t.shape.reverse(),
            1 => t.shape.push(1),
            _ => t.shape = vec![t.shape.iter().product()],
        },
        4 => {
            let stem = t.name.rsplit_once('.').map_or("", |(stem, _)| stem);
            t.name = format!("{stem}.{}", input.of(ENDINGS));
        }
        _ if !t.bytes.is_empty() => {
            let at = usize::from(input.u16()) % t.bytes.len();
            let with = input.take(4);
            t.bytes
                .iter_mut()
                .skip(at)
                .zip(with)
                .for_each(|(b, w)| *b = *w);
        }
        _ => {}
    }
    let (_, bits) = find_dtype(t.dtype).unwrap();
    let bits = t.shape.iter().try_fold(bits, |n, &d| n.checked_mul(d));
    match bits.filter(|bits| bits.is_multiple_of(8) && bits / 8 <= 1 << 18) {
        Some(bits) => {
            let pattern = if t.bytes.is_empty() {
                vec![0]
            } else {
                t.bytes.clone()
            };
            t.bytes = pattern.into_iter().cycle().take(bits / 8).collect();
        }
        None => (t.dtype, t.shape) = before,
    }
}
