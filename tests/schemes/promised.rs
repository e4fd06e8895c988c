//! Codes whose companions are promised and missing: by the index of a shard that is parsed alone,
//! by the name of its file, or by the other layers of a file. They are no plain tensors.

use std::path::Path;

use anamnesis::{TargetDtype, TensorRole, parse};

use crate::common::verdict::{Parse, check, tensors, verdict};
use crate::common::{Raw, effort, file, find_dtype, raw, some_case_directories};

/// What every refusal of a shard says.
const WAY_OUT: &str = "give the directory instead";

/// The tensors of a model of safetensors files, with their roles.
fn with_roles(dir: &Path) -> Option<Vec<(Raw, TensorRole)>> {
    let model = parse(dir).ok()?;
    let is_whole = model.container() == anamnesis::Container::Safetensors
        && model.inspect().problems.is_empty()
        && model.tensor_bytes() < 1 << 20;
    let stored = |t: anamnesis::Tensor<'_>| {
        let (dtype, _) = find_dtype(&t.dtype().to_string())?;
        let bytes = t.bytes().unwrap().to_vec();
        Some((raw(t.name(), dtype, t.shape(), bytes), t.role()))
    };
    model.tensors().filter(|_| is_whole).map(stored).collect()
}

/// Writes `tensors` as a shard beside an index that lists `all`, and parses it alone.
fn recover_shard(
    shard: &[Raw],
    all: &[&Raw],
    index: &str,
    config: Option<&[u8]>,
) -> anamnesis::Result<Vec<u8>> {
    let dir = crate::common::tempdir().unwrap();
    let path = dir.path().join("model-00001-of-00002.safetensors");
    std::fs::write(&path, file(shard, &[])).unwrap();
    let is_here = |t: &Raw| shard.iter().any(|here| here.name == t.name);
    let files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let map: serde_json::Map<_, _> = all
        .iter()
        .map(|t| (t.name.clone(), files[usize::from(!is_here(t))].into()))
        .collect();
    let map = serde_json::json!({ "weight_map": map });
    std::fs::write(dir.path().join(index), map.to_string()).unwrap();
    if let Some(config) = config {
        std::fs::write(dir.path().join("config.json"), config).unwrap();
    }
    parse(&path)?.remember_to_bytes(TargetDtype::F32)
}

/// Every model of the test data, of which one shard has the codes and another one their companions.
#[test]
fn companions_in_another_shard() {
    let mut failures = String::new();
    let mut tried = 0;
    for dir in some_case_directories(2) {
        let Some(all) = with_roles(&dir) else {
            continue;
        };
        let (codes, others): (Vec<_>, Vec<_>) = all
            .iter()
            .partition(|(_, role)| matches!(role, TensorRole::Quantized | TensorRole::Passthrough));
        let is_needed = |role: TensorRole| role != TensorRole::Activation;
        if !codes.iter().any(|(_, role)| *role == TensorRole::Quantized)
            || !others.iter().any(|(_, role)| is_needed(*role))
        {
            continue;
        }
        tried += 1;
        let names: Vec<&Raw> = all.iter().map(|(t, _)| t).collect();
        let shard: Vec<Raw> = codes.iter().map(|(t, _)| t.clone()).collect();
        let config = std::fs::read(dir.join("config.json")).ok();
        for config in [None, config.as_deref()] {
            let result = recover_shard(&shard, &names, "model.safetensors.index.json", config);
            let wrong = match result {
                // Codes of F16 are floats without the config that says so.
                Ok(_) if config.is_none() && dir.ends_with("wide_matmul_float8/model") => None,
                Ok(_) => Some("no error".to_owned()),
                Err(e) if e.to_string().contains(WAY_OUT) => None,
                Err(e) => Some(e.to_string()),
            };
            let with = if config.is_some() {
                " with its config"
            } else {
                ""
            };
            failures.extend(wrong.map(|wrong| format!("\n{}{with}: {wrong}", dir.display())));
        }
    }
    assert!(failures.is_empty(), "{failures}");
    assert!(tried > effort([10, 100, 100]), "{tried}");
}

/// Indexes of all names, and parts of every kind.
#[test]
fn names_of_indexes() {
    for index in [
        "model.safetensors.index.json",
        "model.fp8.safetensors.index.json",
        "diffusion_pytorch_model.safetensors.index.json",
        "consolidated.safetensors.index.json",
        "pytorch_model.bin.index.json",
    ] {
        for list in [
            "X.weight F8_E4M3 4,8; X.weight_scale F32 4,1",
            "X.weight F8_E4M3 4,8; X.scale F32 4,1",
            "X.weight F8_E4M3 4,8; Y.weight F8_E4M3 4,8; Y.weight_scale F32 ()",
            "X.shard_0.weight F8_E4M3 4,8; X.weight_scale F32 1",
            "X.weight I8 4,8; X.weight_scale F32 4,1",
            "X.weight I8 4,8; X.SCB F32 4",
            "X.weight U8 16,1; X.weight.absmax F32 1",
            "X.weight I8 4,8; X.some_scale F32 4",
            "X.weight U8 4,8; X.weight_quantizer.scale U8 4,1",
            "X.experts.down_proj F8_E4M3 2,4,8; X.experts.down_proj_scale F32 2,1,1",
            "X.weight_packed I32 4,8; X.weight_scale F32 4,1",
            "X.qweight I32 4,8; X.scales F16 1,8",
        ] {
            let all = tensors(list);
            let names: Vec<&Raw> = all.iter().collect();
            let result = recover_shard(&all[..1], &names, index, None);
            assert_eq!(verdict(result, Parse, &[WAY_OUT, "`X."]), None, "{index}: {list}");
        }
    }
}

/// A shard that has all that its weights need is decoded alone, whatever the other shards have.
#[test]
fn shards_that_are_whole() {
    for (here, other) in [
        (
            "X.weight F8_E4M3 4,8; X.weight_scale F32 4,1",
            "Y.weight F8_E4M3 4,8; Y.weight_scale F32 4,1",
        ),
        ("X.weight F8_E4M3 4,8; X.weight_scale F32 4,1", "X.bias F32 4; X.input_scale F32 ()"),
        ("X.weight F8_E4M3 4,8", "Y.weight F8_E4M3 4,8; Y.norm.scale F32 4"),
        ("X.weight I8 4,8; X.weight_scale F32 4,1", "Y.position_ids I64 1,8"),
        (
            "X.experts.down_proj F8_E4M3 2,4,8; X.experts.down_proj_scale F32 2,1,1",
            "X.experts.gate_up_proj F8_E4M3 2,8,4; X.experts.gate_up_proj_scale F32 2,1,1",
        ),
        ("X.weight BF16 4,8", "X.bias BF16 4"),
    ] {
        let (shard, all) = (tensors(here), tensors(&format!("{here}; {other}")));
        let names: Vec<&Raw> = all.iter().collect();
        let result = recover_shard(&shard, &names, "model.safetensors.index.json", None);
        assert!(result.is_ok(), "{here}: {:?}", result.err());
    }
}

/// Of several files without an index, each may lack what another one has.
#[test]
fn a_numbered_file_without_an_index() {
    let dir = crate::common::tempdir().unwrap();
    let bytes = file(&tensors("X.weight F8_E4M3 4,8"), &[]);
    for (name, is_refused) in [
        ("model-00001-of-00002.safetensors", true),
        ("model-00001-of-00001.safetensors", false),
        ("model.safetensors", false),
    ] {
        let path = dir.path().join(name);
        std::fs::write(&path, &bytes).unwrap();
        let result = parse(&path).unwrap().remember_to_bytes(TargetDtype::F32);
        assert_eq!(
            verdict(result, Parse, &["`X.weight`", WAY_OUT]).is_none(),
            is_refused,
            "{name}"
        );
    }
}

/// A layer that lacks what the others have.
#[test]
fn companions_that_siblings_have() {
    check(
        r#"
        a.weight I8 4,8; a.weight_scale F32 4,1; b.weight I8 4,8 |  | Parse: `b.weight` & `a.weight` & missing
        a.weight F8_E4M3 4,8; a.weight_scale F32 4,1; b.weight F8_E4M3 4,8 |  | Parse: `b.weight` & missing
        a.experts.w1 I8 2,4,8; a.experts.w1_scale F32 2,4,1; b.weight I8 4,8; b.weight_scale F32 4,1; c.weight I8 4,8 |  | Parse: `c.weight`
        "#,
    );
}
