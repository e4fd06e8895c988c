//! SINQ's layers that are incomplete or contradictory.

use anamnesis::TargetDtype;

use crate::common::file;
use crate::common::verdict::{Kind, Parse, Unsupported, parse_beside, tensors, verdict};

const SIDECAR: &str = "model.safetensors.index.json.meta.json";

const LAYER: &str = "X.W_q U8 16,64; X.meta.scale.x U8 32,1; X.meta.scale.s F16 1,1; X.meta.scale.m F16 1,1; \
                     X.meta.zero.x U8 32,1; X.meta.zero.s F16 1,1; X.meta.zero.m F16 1,1; X.meta.scale2 F16 1,64";

/// A description of [`LAYER`].
const META: &str = r#""nbits": 4, "group_size": 64, "shape": [32, 64], "axis": 1, "packing": "4bit_u8",
    "method": "sinq_quantAux", "compute_dtype": "torch.float16", "view_as_float": false"#;

const CONFIG: &str = r#"{"quantization_config": {"quant_method": "sinq", "nbits": 4}}"#;

/// [`LAYER`] with `change` in place of the first tensor of that name, and [`META`] with the second
/// of `edit` for the first.
fn decoded(change: &str, edit: [&str; 2], config: &str) -> anamnesis::Result<Vec<u8>> {
    let name = change.split(' ').next().unwrap();
    let kept = LAYER
        .split("; ")
        .filter(|t| t.split(' ').next() != Some(name));
    let change = (change != name).then_some(change);
    let layer: Vec<&str> = kept.chain(change).collect();
    let meta = META.replace(edit[0], edit[1]);
    assert!(edit[0].is_empty() || meta != META);
    let sidecar = format!(r#"{{"X": {{"meta": {{{meta}}}}}}}"#);
    let files = [("config.json", config), (SIDECAR, sidecar.as_str())];
    parse_beside(&file(&tensors(&layer.join("; ")), &[]), &files)?
        .remember_to_bytes(TargetDtype::F32)
}

#[test]
fn sinq() {
    assert!(decoded("Y F32 1", ["", ""], CONFIG).is_ok());
    let cases: &[(&str, [&str; 2], Kind, &[&str])] = &[
        ("X.meta.scale2", ["", ""], Parse, &["X.meta.scale2"]),
        ("X.meta.scale.x", ["", ""], Parse, &["X.meta.scale.x"]),
        ("X.meta.zero.m", ["", ""], Parse, &["X.meta.zero.m"]),
        ("X.meta.scale2 F16 32,64", ["", ""], Parse, &["`X.W_q`", "[1, 64]"]),
        ("X.meta.scale2 F16 4,1,64", ["", ""], Unsupported, &["`X.W_q`", "2D"]),
        ("X.meta.scale2 F16 1,32", ["", ""], Parse, &["`X.W_q`", "[1, 64]"]),
        ("X.meta.scale2 F32 1,64", ["", ""], Unsupported, &["`X.W_q`", "several dtypes"]),
        ("X.meta.zero.m F32 1,1", ["", ""], Parse, &["`X.meta.zero.m`", "another dtype"]),
        ("X.meta.zero.x U8 31,1", ["", ""], Parse, &["`X.meta.zero.x`", "32 numbers"]),
        ("X.meta.scale.x I8 32,1", ["", ""], Parse, &["`X.meta.scale.x`"]),
        ("X.meta.scale.s F16 1,0", ["", ""], Parse, &["`X.meta.scale.x`", "0 scales"]),
        ("X.meta.awq_scale F16 1,64", ["", ""], Unsupported, &["`X.meta.awq_scale`"]),
        ("X.W_q U8 15,64", ["", ""], Parse, &["`X.W_q`", "4bit_u8"]),
        ("X.W_q U8 16,32", ["", ""], Parse, &["`X.W_q`", "4bit_u8"]),
        ("X.W_q U8 16,0", ["", ""], Parse, &["`X.W_q`", "4bit_u8"]),
        ("X.W_q I32 16,64", ["", ""], Parse, &["`X.W_q`", "4bit_u8"]),
        ("Y F32 1", ["4bit_u8", "4bit_u9"], Unsupported, &["`X.W_q`", "4bit_u9"]),
        ("Y F32 1", ["\"nbits\": 4", "\"nbits\": 3"], Parse, &["`X.W_q`", "3 bits"]),
        ("Y F32 1", ["\"axis\": 1", "\"axis\": 0"], Unsupported, &["`X.W_q`", "axis"]),
        ("Y F32 1", ["false", "true"], Unsupported, &["`X.W_q`", "view_as_float"]),
        ("Y F32 1", ["sinq_quant", "sinq_nf4_quant"], Unsupported, &["`X.W_q`", "codebooks"]),
        ("Y F32 1", ["sinq_quant", "sinq_noz_quant"], Unsupported, &["`X.W_q`", "zero point"]),
        ("Y F32 1", ["sinq_quantAux", "sinq"], Parse, &["`X.W_q`", "X.meta.scale"]),
        ("Y F32 1", ["torch.float16", "torch.float64"], Parse, &["`X.W_q`", "float64"]),
        ("Y F32 1", ["\"axis\": 1, ", ""], Unsupported, &["`X.W_q`", "axis"]),
        ("Y F32 1", ["[32, 64]", "[32, 64, 1]"], Parse, &["`X.W_q`", "32,64,1"]),
        ("Y F32 1", ["[32, 64]", "[32, 0]"], Parse, &["`X.W_q`", "32,0"]),
        ("Y F32 1", ["[32, 64]", "[4294967296, 4294967296]"], Parse, &["`X.W_q`", "4294967296"]),
        ("Y F32 1", ["[32, 64]", "[64, 64]"], Parse, &["`X.W_q`", "[64, 64]"]),
        ("Y F32 1", ["\"group_size\": 64", "\"group_size\": 96"], Parse, &["`X.W_q`", "[32, 64]"]),
    ];
    for (change, edit, kind, words) in cases {
        let wrong = verdict(decoded(change, *edit, CONFIG), *kind, words);
        assert_eq!(wrong, None, "{change} {edit:?}");
    }
    let other = CONFIG.replace("\"nbits\": 4", "\"nbits\": 8");
    let wrong = verdict(decoded("Y F32 1", ["", ""], &other), Parse, &["`X.W_q`"]);
    assert_eq!(wrong, None);
    // Codes of experts, in files and in pickles.
    let experts = "X.gate_up_W_q.0 U8 16,64; X.gate_up_meta.0.scale.x U8 32,1; X.gate_up_meta.0.scale2 F16 1,64";
    for stored in ["X.gate_up_W_q.0 U8 16,64", "X.down_W_q.12 I32 4,64", experts] {
        for config in ["{}", CONFIG] {
            let bytes = file(&tensors(stored), &[]);
            let model = parse_beside(&bytes, &[("config.json", config)]).unwrap();
            let result = model.remember_to_bytes(TargetDtype::F32);
            let wrong = verdict(result, Unsupported, &["_W_q.", "experts"]);
            assert_eq!(wrong, None, "{stored}");
        }
    }
    // Without the description nobody knows how codes are packed.
    let bytes = file(&tensors(LAYER), &[]);
    let alone = parse_beside(&bytes, &[("config.json", CONFIG)]).unwrap();
    let wrong =
        verdict(alone.remember_to_bytes(TargetDtype::F32), Unsupported, &["`X.W_q`", SIDECAR]);
    assert_eq!(wrong, None);
}
