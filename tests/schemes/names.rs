//! Names of tensors that several producers use, or that belong to another shard; long names and
//! long lists of names.

use crate::common::verdict::{check, recover, tensors};
use crate::common::{cpu_time, file};

/// Names that many producers use for weights and scales. Under an unknown method they are refused;
/// codes under unusual names are still recognised as codes.
#[test]
fn generic_names() {
    check(
        r#"
        X.weight F8_E4M3 4,8; X.scale F32 4,1; X.svd_up F16 4,2; X.svd_down F16 2,8 | {"quant_method":"sdnq"} | Unsupported: `X.weight` & SDNQ & weights_dtype
        X.weight I8 4,8; X.weight_scale F32 4,1 | {"quant_method":"w4a8"} | Unsupported: w4a8
        X.weight I8 4,8; X.scale F32 4,1 |  | Unsupported: `X.weight` & SDNQ
        X.W_q U8 4,8; X.scale F16 4,1; X.zero F16 4,1; X.scale2 F16 8 |  | Unsupported: `X.W_q` & SINQ
        X.W_q U8 4,8; X.meta.scale F16 4,1; X.meta.zero F16 4,1; X.meta.scale2 F16 8 |  | Unsupported: `X.W_q` & SINQ
        X.experts.gate_up_proj U8 2,4,8 | {"quant_method":"modelopt","quant_algo":"NVFP4"} | Parse: `X.experts.gate_up_proj`
        X.gate_up_proj_packed I32 2,4,8 | {"quant_method":"compressed-tensors"} | Parse: `X.gate_up_proj_packed`
        X.experts._gate_up_proj_qdata I8 2,4,8 |  | Unsupported: `X.experts._gate_up_proj_qdata`
        X.weight I8 2,64; X.weight_scale F32 2,2 | {"config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"group_size":64}}}} | Parse: `X.weight` & groups of 64
        X.weight I8 2,64; X.weight_scale F32 2,1 | {"config_groups":{"g":{"targets":["Linear"],"weights":{"symmetric":false}}}} | Parse: `X.weight_zero_point` & missing
        X.weight_packed I32 2,8; X.weight_shape I64 2; X.weight_scale F32 4,2 |  | Parse: `X.weight_packed`
        X.switch_mlp.up_proj.weight U32 1099511627776,0,3; X.switch_mlp.up_proj.scales F16 1099511627776,0,1 |  | Parse: `X.switch_mlp.up_proj.weight`
        "#,
    );
    // A scale for each head is no activation scale, unless the config has a quantized cache.
    let heads = "X.weight F8_E4M3 4,8; qk_norm_q_scale F32 2,1,3; X.k_scale F32 ()";
    let output = recover(file(&tensors(heads), &[]), "").unwrap();
    let output = anamnesis::parse_bytes(output).unwrap();
    assert_eq!(
        output
            .tensors()
            .map(|t| t.name().to_owned())
            .collect::<Vec<_>>(),
        ["X.weight", "qk_norm_q_scale"]
    );
}

/// Models have parameters of names that companions have, too: global scales of Inkling's layers,
/// factors of the residual stream of MiniMax-H3's VAE, norms of PLaMo 2's queries. They stay also
/// beside quantized weights.
#[test]
fn parameters_with_names_of_scales() {
    let parameters = "m.mlp.global_scale F32 1; m.mlp.gate.global_scale F32 1; m.mlp.gate.weight BF16 4,8; \
                      m.blocks.0.scale2 BF16 16; m.mixer.q_weight BF16 4,8";
    let names = |text: &str| -> Vec<String> {
        let output = recover(file(&tensors(text), &[]), "").unwrap();
        let output = anamnesis::parse_bytes(output).unwrap();
        output.tensors().map(|t| t.name().to_owned()).collect()
    };
    assert_eq!(names(parameters).len(), 5);
    let quantized = "m.X.weight U32 8,8; m.X.scales U8 8,4; m.X.global_scale F32 ()";
    let both = names(&format!("{parameters}; {quantized}"));
    assert_eq!(both.len(), 6);
    assert!(!both.contains(&"m.X.global_scale".to_owned()));
}

/// One shard of several: the index has some of its weights' companions in other shards.
#[test]
fn a_shard_is_no_model() {
    let nvfp4 = "X.weight U32 8,8; X.scales U8 8,4";
    for (text, elsewhere) in [
        ("X.weight I8 4,8; X.weight_scale F32 4,1", "X.weight_zero_point"),
        ("X.weight I8 4,8; X.weight_scale F32 4,1", "X.pre_quant_scale"),
        (nvfp4, "X.global_scale"),
    ] {
        let dir = crate::common::tempdir().unwrap();
        let shard = dir.path().join("model-00001-of-00002.safetensors");
        std::fs::write(&shard, file(&tensors(text), &[])).unwrap();
        let index =
            format!(r#"{{"weight_map": {{"{elsewhere}": "model-00002-of-00002.safetensors"}}}}"#);
        std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
        let error = anamnesis::parse(&shard)
            .unwrap()
            .remember_to_bytes(anamnesis::TargetDtype::F32)
            .unwrap_err();
        assert!(error.to_string().contains("another shard"), "{text}: {error}");
    }
}

/// Work on names and configs is linear in their length.
#[test]
fn long_names_and_lists() {
    let started = cpu_time();
    let name = format!("{}weight", "a.".repeat(20_000));
    let bytes = file(&[crate::common::raw(&name, "F8_E4M3", &[1, 1], vec![0])], &[]);
    assert!(recover(bytes, r#"{"quant_method":"fp8","ignore":["lm_head"]}"#).is_err());
    let rules = vec![format!("\"re:.{{{}}}\"", 9000); 2_000].join(",");
    let bytes = file(&tensors("X.weight F8_E4M3 4,8"), &[]);
    assert!(recover(bytes, &format!(r#"{{"quant_method":"fp8","ignore":[{rules}]}}"#)).is_err());
    let time = cpu_time() - started;
    assert!(time.as_secs() < 10, "{time:?}");
}
