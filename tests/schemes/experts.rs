//! MLX's stacks of experts: names by architecture, as mlx-lm's `sanitize` reads them, stacks that
//! stay, and stacks that are not quantized.

use anamnesis::{Dtype, ParsedModel, TargetDtype};

use crate::common::verdict::{Unsupported, parse_beside, tensors, verdict};
use crate::common::{Raw, file, raw};

/// A quantized stack of two experts, `[2, 4, 32]`.
fn stack(base: &str) -> Vec<Raw> {
    tensors(&format!("{base}.weight U32 2,4,4; {base}.scales BF16 2,4,1; {base}.biases BF16 2,4,1"))
}

fn parsed(all: &[Raw], model_type: &str) -> ParsedModel {
    let config =
        format!(r#"{{"model_type":"{model_type}","quantization":{{"bits":4,"group_size":32}}}}"#);
    parse_beside(&file(all, &[]), &[("config.json", &config)]).unwrap()
}

fn recovered(model: &ParsedModel) -> ParsedModel {
    let bytes = model.remember_to_bytes(TargetDtype::BF16).unwrap();
    anamnesis::parse_bytes(bytes).unwrap()
}

fn names(model: &ParsedModel) -> Vec<String> {
    model.tensors().map(|t| t.name().to_owned()).collect()
}

/// Architectures with a stack of mlx-lm's, and the name of its second expert in the checkpoints
/// that mlx-lm converts; empty if these have a stack as well. Source: `sanitize` of the models of
/// mlx-lm d78bf58.
#[test]
fn names_by_architecture() {
    let layer = "model.layers.0";
    let rows = [
        ("qwen3_moe", "mlp", "up_proj", "mlp.experts.1.up_proj"),
        ("deepseek_v3", "mlp", "gate_proj", "mlp.experts.1.gate_proj"),
        ("kimi_k2", "mlp", "down_proj", "mlp.experts.1.down_proj"),
        ("jamba", "feed_forward", "up_proj", "feed_forward.experts.1.up_proj"),
        ("mixtral", "block_sparse_moe", "gate_proj", "block_sparse_moe.experts.1.w1"),
        ("mixtral", "block_sparse_moe", "down_proj", "block_sparse_moe.experts.1.w2"),
        ("minimax_m2", "block_sparse_moe", "up_proj", "block_sparse_moe.experts.1.w3"),
        ("lfm2_moe", "feed_forward", "down_proj", "feed_forward.experts.1.w2"),
        ("kimi_linear", "mlp", "gate_proj", "block_sparse_moe.experts.1.w1"),
        ("nemotron_h", "mixer", "fc1", "mixer.experts.1.up_proj"),
        ("nemotron_h", "mixer", "fc2", "mixer.experts.1.down_proj"),
        ("phixtral", "moe", "fc2", "moe.mlp.1.fc2"),
        ("granitemoe", "block_sparse_moe", "gate_proj", ""),
        ("granitemoehybrid", "block_sparse_moe", "down_proj", ""),
        ("qwen3_5_moe", "mlp", "up_proj", ""),
        ("qwen3_vl_moe", "mlp", "up_proj", ""),
        ("step3p5", "mlp", "up_proj", ""),
        ("of_next_year", "mlp", "up_proj", ""),
    ];
    for (model_type, parent, projection, expert) in rows {
        let base = format!("{layer}.{parent}.switch_mlp.{projection}");
        let got = recovered(&parsed(&stack(&base), model_type));
        let wanted = match expert {
            "" => vec![format!("{base}.weight")],
            second => {
                let second = format!("{layer}.{second}.weight");
                vec![second.replace(".1.", ".0."), second]
            }
        };
        assert_eq!(names(&got), wanted, "{model_type}");
        let shape: &[usize] = if expert.is_empty() {
            &[2, 4, 32]
        } else {
            &[4, 32]
        };
        assert!(got.tensors().all(|t| t.shape() == shape), "{model_type}");
    }
    // Nothing says what the model is. Codes of three bits need no config.
    let base = "model.layers.0.mlp.switch_mlp.up_proj";
    let text =
        format!("{base}.weight U32 2,4,3; {base}.scales BF16 2,4,1; {base}.biases BF16 2,4,1");
    let bytes = file(&tensors(&text), &[]);
    let got = recovered(&anamnesis::parse_bytes(bytes).unwrap());
    assert_eq!(names(&got), ["model.layers.0.mlp.switch_mlp.up_proj.weight"]);
}

/// One projection of the experts stays in floats, with a bias; its bytes are those of the stack.
#[test]
fn stacks_that_are_not_quantized() {
    let base = "model.layers.0.mlp.switch_mlp";
    let bytes: Vec<u8> = (0..2 * 3 * 5 * 4).map(|i| (i % 113) as u8).collect();
    let bias: Vec<u8> = (0..2 * 3 * 2).collect();
    let mut all = stack(&format!("{base}.up_proj"));
    all.push(raw(&format!("{base}.down_proj.weight"), "F32", &[2, 3, 5], bytes.clone()));
    all.push(raw(&format!("{base}.down_proj.bias"), "F16", &[2, 3], bias.clone()));
    let model = parsed(&all, "qwen3_moe");
    let info = model.inspect();
    assert_eq!((info.quantized, info.passthrough, info.schemes.len()), (1, 2, 1));
    assert!(info.problems.is_empty());
    let got = recovered(&model);
    for e in 0..2 {
        let name =
            |parameter: &str| format!("model.layers.0.mlp.experts.{e}.down_proj.{parameter}");
        let t = got.tensor(&name("weight")).unwrap();
        assert_eq!((t.dtype(), t.shape()), (Dtype::F32, &[3, 5][..]));
        assert_eq!(&*t.bytes().unwrap(), &bytes[e * 60..][..60]);
        let t = got.tensor(&name("bias")).unwrap();
        assert_eq!((t.dtype(), t.shape()), (Dtype::F16, &[3][..]));
        assert_eq!(&*t.bytes().unwrap(), &bias[e * 6..][..6]);
    }
    assert_eq!(got.tensors().count(), 6);
    // Without names of single experts the stack is copied.
    let got = recovered(&parsed(&all, "step3p5"));
    let t = got.tensor(&format!("{base}.down_proj.weight")).unwrap();
    assert_eq!((t.dtype(), t.shape()), (Dtype::F32, &[2, 3, 5][..]));
    assert_eq!(&*t.bytes().unwrap(), &bytes[..]);
}

/// Each expert becomes a tensor, so that their number is bounded: in a stack, and of small ones in
/// all stacks.
#[test]
fn too_many_experts() {
    let refused = |all: &[Raw], word: &str| {
        let result = parsed(all, "qwen3_moe").remember_to_bytes(TargetDtype::BF16);
        assert_eq!(verdict(result, Unsupported, &["switch_mlp", word]), None);
    };
    let one = |name: &str, n: usize| {
        let base = format!("model.layers.{name}.mlp.switch_mlp.up_proj");
        tensors(&format!(
            "{base}.weight U32 {n},1,4; {base}.scales BF16 {n},1,1; {base}.biases BF16 {n},1,1"
        ))
    };
    refused(&one("0", 4097), "4097 experts");
    let many: Vec<Raw> = (0..17).flat_map(|i| one(&i.to_string(), 4000)).collect();
    refused(&many, "128 bytes");
    let fine: Vec<Raw> = (0..4).flat_map(|i| one(&i.to_string(), 4000)).collect();
    assert_eq!(parsed(&fine, "qwen3_moe").inspect().problems, [""; 0]);
}
