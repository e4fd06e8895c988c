//! The heap while a whole model goes to GGUF or MLX and back: experts that are stacked, heads whose
//! rows move.

use std::path::Path;

use anamnesis::{ConvertOptions, ConvertTarget, ForgetScheme, ModelScope, TargetDtype, parse};
use serde_json::json;

use crate::common::{Random, Raw, data, effort, file, raw};
use crate::profiler::Profiler;
use crate::{BOUND, LEAST_OUTPUT, THREADS};

const HIDDEN: usize = 1024;
const INNER: usize = 2048;
const LAYERS: usize = 1;
const VOCAB: usize = 288;

/// A tensor of random finite values in BF16: their exponents are below the largest.
fn tensor(random: &mut Random, name: &str, shape: &[usize]) -> Raw {
    let values: usize = shape.iter().product();
    let mut bytes = random.bytes(values * 2);
    bytes.iter_mut().skip(1).step_by(2).for_each(|b| *b &= 0xbf);
    raw(name, "BF16", shape, bytes)
}

/// Tensors of a Mixtral with so many experts, of 6 Mi values each.
fn mixtral(experts: usize) -> Vec<Raw> {
    let mut random = Random(3);
    let mut tensor = |name: &str, shape: &[usize]| tensor(&mut random, name, shape);
    let mut all = vec![
        tensor("model.embed_tokens.weight", &[VOCAB, HIDDEN]),
        tensor("model.norm.weight", &[HIDDEN]),
        tensor("lm_head.weight", &[VOCAB, HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let mut add = |name: &str, shape: &[usize]| {
            all.push(tensor(&format!("model.layers.{layer}.{name}.weight"), shape));
        };
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            add(norm, &[HIDDEN]);
        }
        for (name, rows) in [("q", HIDDEN), ("k", HIDDEN / 4), ("v", HIDDEN / 4), ("o", HIDDEN)] {
            add(&format!("self_attn.{name}_proj"), &[rows, HIDDEN]);
        }
        add("block_sparse_moe.gate", &[experts, HIDDEN]);
        for expert in 0..experts {
            let mut add = |name: &str, shape: &[usize]| {
                add(&format!("block_sparse_moe.experts.{expert}.{name}"), shape);
            };
            add("w1", &[INNER, HIDDEN]);
            add("w2", &[HIDDEN, INNER]);
            add("w3", &[INNER, HIDDEN]);
        }
    }
    all
}

/// Heads of keys and of values in linear attention, and the size of each.
const LINEAR: [usize; 3] = [16, 32, 128];

/// Tensors of a Qwen 3.5 of 23 Mi values, whose layer has linear attention.
fn qwen3_5() -> Vec<Raw> {
    let mut random = Random(5);
    let mut tensor = |name: &str, shape: &[usize]| tensor(&mut random, name, shape);
    let [keys, values] = [LINEAR[0] * LINEAR[2], LINEAR[1] * LINEAR[2]];
    let mut all = vec![
        tensor("model.embed_tokens.weight", &[VOCAB, HIDDEN]),
        tensor("model.norm.weight", &[HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let rows: [(&str, &[usize]); 14] = [
            ("input_layernorm.weight", &[HIDDEN]),
            ("post_attention_layernorm.weight", &[HIDDEN]),
            ("linear_attn.in_proj_qkv.weight", &[2 * keys + values, HIDDEN]),
            ("linear_attn.in_proj_z.weight", &[values, HIDDEN]),
            ("linear_attn.in_proj_a.weight", &[LINEAR[1], HIDDEN]),
            ("linear_attn.in_proj_b.weight", &[LINEAR[1], HIDDEN]),
            ("linear_attn.conv1d.weight", &[2 * keys + values, 1, 4]),
            ("linear_attn.A_log", &[LINEAR[1]]),
            ("linear_attn.dt_bias", &[LINEAR[1]]),
            ("linear_attn.norm.weight", &[LINEAR[2]]),
            ("linear_attn.out_proj.weight", &[HIDDEN, values]),
            ("mlp.gate_proj.weight", &[INNER, HIDDEN]),
            ("mlp.up_proj.weight", &[INNER, HIDDEN]),
            ("mlp.down_proj.weight", &[HIDDEN, INNER]),
        ];
        let named =
            rows.map(|(name, shape)| tensor(&format!("model.layers.{layer}.{name}"), shape));
        all.extend(named);
    }
    all
}

/// Writes a model like `whole/NAME` of the test data, but with these tensors and fields of its
/// config.
fn write(directory: &Path, name: &str, tensors: &[Raw], fields: &serde_json::Value) {
    std::fs::create_dir(directory).unwrap();
    std::fs::write(directory.join("model.safetensors"), file(tensors, &[])).unwrap();
    let from = data().join("whole").join(name).join("hf");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(from.join(name), directory.join(name)).unwrap();
    }
    let config = std::fs::read(from.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    let all = config.as_object_mut().unwrap();
    all.extend(fields.as_object().unwrap().clone());
    std::fs::write(directory.join("config.json"), config.to_string()).unwrap();
}

/// Checks the heap of every way: to GGUF and back alone, but for the gate.
pub fn whole_models(profiler: &Profiler, directory: &Path) {
    let [hf, gguf, back] = ["whole", "whole.gguf", "back"].map(|name| directory.join(name));
    let experts = effort([2, 4, 4]);
    let fields = json!({
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "num_hidden_layers": LAYERS,
        "num_local_experts": experts,
    });
    write(&hf, "mixtral", &mixtral(experts), &fields);
    let check = |from: &Path, to: &Path, mut options: ConvertOptions| {
        options.run = options.run.with_threads(THREADS).with_force(true);
        let convert = || parse(from).unwrap().convert(to, options).unwrap();
        let (peak, report) = profiler.peak(convert);
        let name = to.display();
        assert!(report.output_bytes as usize >= LEAST_OUTPUT, "{name} proves nothing");
        assert!(peak <= BOUND, "{name}: {peak} bytes of heap, {BOUND} allowed");
    };
    check(&hf, &gguf, ConvertTarget::Gguf.into());
    let options = ConvertOptions::from(TargetDtype::F32).with_scope(ModelScope::Model);
    check(&gguf, &back, options);
    if effort([true, false, false]) {
        return;
    }
    let scheme: ForgetScheme = "gguf:q8_0".parse().unwrap();
    check(&hf, &directory.join("q8_0.gguf"), scheme.into());
    let mlx = directory.join("mlx");
    check(&hf, &mlx, ForgetScheme::MLX_8BIT.into());
    check(&mlx, &directory.join("from_mlx"), TargetDtype::F32.into());

    let [hf, gguf, back] =
        ["linear", "linear.gguf", "linear_back"].map(|name| directory.join(name));
    let layer_types = ["linear_attention"; LAYERS];
    let fields = json!({
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "layer_types": layer_types,
        "linear_num_key_heads": LINEAR[0],
        "linear_num_value_heads": LINEAR[1],
        "linear_key_head_dim": LINEAR[2],
        "linear_value_head_dim": LINEAR[2],
    });
    write(&hf, "qwen3_5", &qwen3_5(), &fields);
    check(&hf, &gguf, ConvertTarget::Gguf.into());
    let options = ConvertOptions::from(TargetDtype::F32).with_scope(ModelScope::Model);
    check(&gguf, &back, options);
}
