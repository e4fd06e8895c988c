//! Configs of transforms that weights cannot undo, or that contradict the tensors.

use anamnesis::{TargetDtype, parse_bytes};

use crate::common::file;
use crate::common::verdict::{check_rows, recover, tensors};

/// A config of one scheme: its type, more of its keys, and its uses.
fn config(kind: &str, more: &str, uses: &[&str]) -> String {
    let uses: Vec<String> = uses
        .iter()
        .map(|one| match one.split_once(' ') {
            Some((location, more)) => {
                format!(r#"{{"targets":["Linear"],"location":"{location}",{more}}}"#)
            }
            None => format!(r#"{{"targets":["Linear"],"location":"{one}"}}"#),
        })
        .collect();
    let scheme = format!(r#"{{"type":"{kind}"{more},"apply":[{}]}}"#, uses.join(","));
    format!(r#"{{"transform_config":{{"config_groups":{{"v":{scheme}}}}}}}"#)
}

const X: &str = "X.weight F8_E4M3 4,8; X.weight_scale F32 ()";

#[test]
fn refusals() {
    let hadamard = |uses: &[&str]| config("hadamard", "", uses);
    let random = |uses: &[&str]| config("random-hadamard", "", uses);
    let twice = r#"{"transform_config":{"config_groups":{"u":{"type":"hadamard","apply":[{"targets":"X","location":"input"}]},"v":{"type":"hadamard","apply":[{"targets":"re:.*","location":"input"}]}}}}"#;
    let rows = [
        // What the library does not write.
        (X, config("hadamard", r#","seed":1"#, &[]), "Unsupported: transform_config & `seed`"),
        (X, config("householder", "", &["input"]), "Unsupported: transform_config & householder"),
        (X, hadamard(&["middle"]), "Unsupported: transform_config & middle"),
        (X, hadamard(&[r#"input "scale":2"#]), "Unsupported: transform_config & `scale`"),
        (X, hadamard(&[r#"input "inverse":1"#]), "Unsupported: transform_config & `inverse`"),
        (X, hadamard(&[r#"input "ignore":3"#]), "Unsupported: transform_config & `ignore`"),
        (
            X,
            config("hadamard", r#","head_dim":0"#, &["input"]),
            "Unsupported: transform_config & head_dim",
        ),
        (
            X,
            r#"{"transform_config":{"groups":{}}}"#.into(),
            "Unsupported: transform_config & `groups`",
        ),
        (X, r#"{"transform_config":3}"#.into(), "Unsupported: transform_config"),
        // What weights cannot undo.
        (
            X,
            config("hadamard", r#","randomize":true"#, &["output"]),
            "Unsupported: randomize & `output`",
        ),
        (X, hadamard(&["q_attn"]), "Unsupported: `q_attn`"),
        (X, hadamard(&["k_cache"]), "Unsupported: `k_cache`"),
        (X, hadamard(&["k_cache", r#"q_attn "inverse":true"#]), "Unsupported: `k_cache`"),
        (X, config("random-matrix", "", &["k_cache", "q_attn"]), "Unsupported: `k_cache`"),
        (X, hadamard(&["input", "input"]), "Unsupported: `X.weight` & twice & `input`"),
        (X, twice.into(), "Unsupported: `X.weight` & twice"),
        (X, hadamard(&[r#"input "ignore":["re:X"]"#]), "Unsupported: `input` & no weight"),
        (
            "wte.weight F8_E4M3 4,8; wte.weight_scale F32 ()",
            hadamard(&["output"]),
            "Unsupported: `output` & no weight",
        ),
        ("X.weight BF16 4,8", hadamard(&["input"]), "Unsupported: `X.weight` & Linear"),
        (
            "X.weight BF16 2,4,8",
            hadamard(&["input"]).replace("Linear", "X"),
            "Unsupported: `X.weight` & no matrix",
        ),
        (
            "X.weight F64 4,8",
            hadamard(&["input"]).replace("Linear", "X"),
            "Unsupported: `X.weight` & floats",
        ),
        (
            "wte.weight BF16 4,8",
            hadamard(&["output"]).replace("Linear", "wte"),
            "Unsupported: `wte.weight` & embedding",
        ),
        (
            "X.weight F8_E4M3 2048,1024; X.weight_scale F32 ()",
            hadamard(&["input", "output"]),
            "Unsupported: `X.weight` & 2048 x 1024",
        ),
        // Modules that files do not tell.
        (
            X,
            hadamard(&["input", r#"input "ignore":[]"#]).replacen("Linear", "Embedding", 1),
            "Unsupported: `input` & no weight",
        ),
        (
            X,
            hadamard(&["input"]).replace(r#""Linear""#, r#""X","Conv1d""#),
            "Unsupported: `Conv1d` & `input`",
        ),
        (
            X,
            hadamard(&[r#"input "ignore":["QuantLinear"]"#]),
            "Unsupported: `QuantLinear` & `input`",
        ),
        (
            "X.weight F8_E4M3 4,8; X.weight_scale F32 (); model.embed_tokens.weight BF16 4,8",
            hadamard(&["input"]),
            "Unsupported: `model.embed_tokens.weight` & `lm_head` & `input`",
        ),
        // A matrix and its inverse, one of which is not there.
        (
            "X.weight F8_E4M3 8,8; X.weight_scale F32 (); Y.weight F8_E4M3 8,8; Y.weight_scale F32 (); Y.v_input.weight F32 8,8",
            config("random-matrix", "", &["input", r#"input "inverse":true"#])
                .replacen("Linear", "X", 1)
                .replacen("Linear", "Y", 1),
            "Parse: `X.weight` & v_input.weight",
        ),
        // Tensors that do not fit.
        (
            "X.weight F8_E4M3 4,12; X.weight_scale F32 ()",
            hadamard(&["input"]),
            "Parse: `X.weight` & 12 rows",
        ),
        (
            X,
            config("hadamard", r#","head_dim":3"#, &["input"]),
            "Parse: `X.weight` & 3 & `input` & 8",
        ),
        (X, random(&["input"]), "Parse: `X.weight` & v_input.weight"),
        (
            "X.weight F8_E4M3 4,8; X.weight_scale F32 (); X.v_input.weight F32 4,4",
            random(&["input"]),
            "Parse: `X.v_input.weight` & [8, 8]",
        ),
        (
            "X.weight F8_E4M3 4,8; X.weight_scale F32 (); X.v_input.weight I32 8,8",
            random(&["input"]),
            "Parse: `X.v_input.weight` & I32",
        ),
        (
            "X.weight F8_E4M3 4,8; X.weight_scale F32 (); Y.v_input.weight F32 8,8; Z.v_input.weight F32 8,8",
            random(&["input"]),
            "Parse: `X.weight` & v_input.weight",
        ),
        (
            "X.weight F8_E4M3 8,8; X.weight_scale F32 (); Y.v_input.weight F32 8,8",
            config("random-matrix", "", &["input", "output"]),
            "Parse: `X.weight` & v_output.weight",
        ),
        (
            "X.weight F8_E4M3 4,8; X.weight_scale F32 (); X.bias I32 4",
            hadamard(&["output"]),
            "Unsupported: `X.bias`",
        ),
        (
            "X.weight F8_E4M3 4,8; X.weight_scale F32 (); X.bias F32 2",
            hadamard(&["output"]),
            "Parse: `X.weight` & `X.bias`",
        ),
        (
            "X.weight F8_E4M3 4,8; X.weight_scale F32 (); X.v_output.weight F32 4,4",
            hadamard(&["input"]),
            "Parse: `X.v_output.weight` & `output`",
        ),
        (
            "X.weight F8_E4M3 4,8; X.weight_scale F32 (); a.v_q_attn.weight F32 4,4",
            hadamard(&[]),
            "Parse: `a.v_q_attn.weight` & `q_attn`",
        ),
        // Neither Sylvester's nor small enough.
        (
            "X.weight F8_E4M3 1,1024; X.weight_scale F32 (); X.v_input.weight F32 1024,1024",
            random(&["input"]),
            "Unsupported: `X.v_input.weight` & 1024 rows",
        ),
    ];
    check_rows(&rows);
}

/// Weights that were multiplied before they were stored, and attention whose matrices cancel, are
/// as they are.
#[test]
fn nothing_to_undo() {
    let list = "X.weight F8_E4M3 4,8; X.weight_scale F32 (); a.v_q_attn.weight F32 2,2; a.v_k_cache.weight F32 2,2";
    let uses = [r#"weight_input "inverse":true"#, "weight_output", "q_attn", "k_cache"];
    for kind in ["hadamard", "random-hadamard"] {
        let bytes = file(&tensors(list), &[]);
        let decoded = recover(bytes, &config(kind, "", &uses)).unwrap();
        let names: Vec<String> = parse_bytes(decoded)
            .unwrap()
            .tensors()
            .map(|t| t.name().to_owned())
            .collect();
        assert_eq!(names, ["X.weight"]);
    }
    // A tied output layer that is ignored.
    let tied = "X.weight F8_E4M3 4,8; X.weight_scale F32 (); model.embed_tokens.weight BF16 4,8";
    let ignored = config("hadamard", "", &[r#"input "ignore":["lm_head"]"#]);
    recover(file(&tensors(tied), &[]), &ignored).unwrap();
    let randomized = config("random-matrix", r#","randomize":true"#, &uses[..2]);
    let offline = file(&tensors(X), &[]);
    recover(offline, &randomized).unwrap();
    let plain = file(&tensors("X.weight BF16 4,8"), &[]);
    let model = parse_bytes(recover(plain, &randomized).unwrap()).unwrap();
    model.remember_to_bytes(TargetDtype::F32).unwrap();
}
