//! ModelSlim's layers that are incomplete, contradictory or of a type that is not decoded.

use anamnesis::TargetDtype;

use crate::common::file;
use crate::common::verdict::{Kind, Parse, Unsupported, parse_beside, recover, tensors, verdict};

fn decoded(stored: &str, description: &str) -> anamnesis::Result<Vec<u8>> {
    let files = [("quant_model_description.json", description)];
    parse_beside(&file(&tensors(stored), &[]), &files)?.remember_to_bytes(TargetDtype::F32)
}

/// Stored tensors, the type of `X.weight`, and what is said of them.
const CASES: &[(&str, &str, Kind, &[&str])] = &[
    ("{w}; {s}", "W8A8_DYNAMIC", Parse, &["`X.weight`", "X.weight_offset"]),
    ("{w}; {o}", "W8A8_DYNAMIC", Parse, &["`X.weight`", "X.weight_scale"]),
    (
        "{w}; {s}; X.weight_offset F32 4",
        "W8A8_DYNAMIC",
        Parse,
        &["`X.weight`", "`X.weight_offset`"],
    ),
    (
        "{w}; X.weight_scale F32 4,2; {o}",
        "W8A8_DYNAMIC",
        Parse,
        &["`X.weight`", "`X.weight_scale`"],
    ),
    ("{w}; X.weight_scale I32 4,1; {o}", "W8A8_DYNAMIC", Parse, &["`X.weight_scale`", "I32"]),
    ("X.weight U8 4,64; {s}; {o}", "W8A8_DYNAMIC", Parse, &["`X.weight`", "I8"]),
    ("X.weight I8 2,4,64; {s}; {o}", "W8A16", Parse, &["`X.weight`", "W8A16"]),
    ("{w}; {s}; {o}", "W4A8_DYNAMIC", Parse, &["`X.weight`", "[8, 1]"]),
    (
        "{w}; {s}; {o}; X.weight_scale_second F32 4,2",
        "W4A8_DYNAMIC",
        Unsupported,
        &["`X.weight`", "X.weight_scale_second"],
    ),
    (
        "{w}; X.quant_bias I32 4; X.input_scale F32 1; X.input_offset F32 1",
        "W8A8",
        Parse,
        &["`X.weight`", "X.deq_scale"],
    ),
    (
        "{w}; X.deq_scale I64 4; X.quant_bias I32 4; X.input_offset F32 1",
        "W8A8",
        Parse,
        &["`X.weight`", "X.input_scale"],
    ),
    (
        "{w}; X.deq_scale I64 4; X.input_scale F32 1; X.input_offset F32 1",
        "W8A8",
        Parse,
        &["`X.weight`", "X.quant_bias"],
    ),
    (
        "{w}; X.deq_scale I64 3; X.quant_bias I32 4; X.input_scale F32 1; X.input_offset F32 1",
        "W8A8",
        Parse,
        &["`X.weight`", "`X.deq_scale`"],
    ),
    (
        "{w}; X.deq_scale I32 4; X.quant_bias I32 4; X.input_scale F32 1; X.input_offset F32 1",
        "W8A8",
        Parse,
        &["`X.deq_scale`", "I32"],
    ),
    (
        "{w}; X.deq_scale F32 4; X.quant_bias I32 4; X.input_scale F32 2; X.input_offset F32 1",
        "W8A8",
        Parse,
        &["`X.input_scale`", "one"],
    ),
    (
        "{w}; X.deq_scale F32 4; X.quant_bias I64 4; X.input_scale F32 1; X.input_offset F32 1",
        "W8A8",
        Parse,
        &["`X.quant_bias`", "I32"],
    ),
    (
        "{w}; {s}; {o}",
        "W4A4_FLATQUANT_DYNAMIC",
        Unsupported,
        &["`X.weight`", "`W4A4_FLATQUANT_DYNAMIC`"],
    ),
    (
        "X.weight U8 4,32; X.weight_scale U8 4,2",
        "W4A4_MXFP4_SVD",
        Unsupported,
        &["`X.weight`", "`W4A4_MXFP4_SVD`"],
    ),
    (
        "X.weight U8 4,32; X.weight_scale U8 4,2; X.weight_dual_scale F32 4",
        "W4A4_MXFP4",
        Unsupported,
        &["`X.weight`", "X.weight_dual_scale"],
    ),
    (
        "X.weight U8 4,32; X.weight_scale U8 4,3",
        "W4A4_MXFP4",
        Parse,
        &["`X.weight`", "`X.weight_scale`"],
    ),
    ("X.weight U8 4,32; X.weight_scale F32 4,2", "W4A8_MXFP", Parse, &["`X.weight_scale`", "U8"]),
    (
        "X.weight F8_E4M3 4,64; X.weight_scale U8 4,4",
        "W8A8_MXFP8",
        Parse,
        &["`X.weight`", "[4, 2]"],
    ),
    (
        "X.weight F8_E4M3 4,40; X.weight_scale U8 4,2",
        "W8A8_MXFP8",
        Unsupported,
        &["`X.weight`", "40 inputs"],
    ),
    (
        "X.weight F8_E5M2 4,64; X.weight_scale U8 4,2",
        "W8A8_MXFP8",
        Parse,
        &["`X.weight`", "F8_E4M3"],
    ),
    (
        "{w}; {s}; {o}; Y.fa_q.scale F32 4,1",
        "W8A8_DYNAMIC",
        Unsupported,
        &["`Y.fa_q.scale`", "`FAQuant`"],
    ),
    (
        "{w}; {s}; {o}; Y.heads_rotation F32 4,4",
        "W8A8_DYNAMIC",
        Unsupported,
        &["`Y.heads_rotation`", "rotated"],
    ),
    (
        "{w}; {s}; {o}; X.svd_lowrank_l1 F32 64,4; X.svd_lowrank_l2 F32 4,4",
        "W8A8_DYNAMIC",
        Unsupported,
        &["`X.weight`", "X.svd_lowrank_l1"],
    ),
    ("X.weight_offset F32 4,1", "W8A8_DYNAMIC", Parse, &["`X.weight_offset`"]),
];

#[test]
fn modelslim() {
    for (stored, kind, error, words) in CASES {
        let stored = stored
            .replace("{w}", "X.weight I8 4,64")
            .replace("{s}", "X.weight_scale F32 4,1")
            .replace("{o}", "X.weight_offset F32 4,1");
        let description = format!(
            r#"{{"model_quant_type": "{kind}", "X.weight": "{kind}", "X.weight_scale": "{kind}", "Y.fa_q.scale": "FAQuant"}}"#
        );
        let wrong = verdict(decoded(&stored, &description), *error, words);
        assert_eq!(wrong, None, "{stored}: {kind}");
    }
    let outer = "X.linear.weight I8 4,64; X.linear.weight_scale F32 4,1; X.linear.weight_offset F32 4,1; X.div.mul_scale F32 64";
    let description =
        r#"{"model_quant_type": "W8A16", "X.linear.weight": "W8A16", "X.div.mul_scale": "FLOAT"}"#;
    let wrong = verdict(
        decoded(outer, description),
        Unsupported,
        &["`X.linear.weight`", "X.div.mul_scale"],
    );
    assert_eq!(wrong, None);
    // Rotations, whatever the description says of their matrices, and without the matrices.
    let layer = "X.weight I8 4,64; X.weight_scale F32 4,1; X.weight_offset F32 4,1";
    let rotation = format!("{layer}; Y.kronecker_rotation_m F32 8,8");
    for (stored, rest, name) in [
        (rotation.as_str(), "", "`Y.kronecker_rotation_m`"),
        (rotation.as_str(), r#", "Y.kronecker_rotation_m": "FLOAT""#, "`Y.kronecker_rotation_m`"),
        (layer, r#", "metadata": {"quarot": {"max_tp_size": 4}}"#, "`X.weight`"),
        (
            layer,
            r#", "optional": {"quarot": {"rotation_map": {"global_rotation": "a", "heads_rotation": "b"}}}"#,
            "`X.weight`",
        ),
        (layer, r#", "optional": {"quarot": {"rotation_map": ["heads_rotation"]}}"#, "`X.weight`"),
    ] {
        let description = format!(r#"{{"X.weight": "W8A8_DYNAMIC"{rest}}}"#);
        let wrong = verdict(decoded(stored, &description), Unsupported, &[name, "rotated"]);
        assert_eq!(wrong, None, "{description}");
    }
    // A layer of type `W8A8`, whose description has another name or is gone.
    let static_layer = "X.weight I8 4,64; X.deq_scale I64 4; X.quant_bias I32 4; X.input_scale F32 1; X.input_offset F32 1";
    let wrong = verdict(recover(file(&tensors(static_layer), &[]), ""), Parse, &["`X.deq_scale`"]);
    assert_eq!(wrong, None);
    // A bias that is in no tensor of its own, with scales and without.
    for scales in ["", "; X.weight_scale F32 4,1; X.weight_offset F32 4,1"] {
        let mut all = tensors(&format!(
            "X.weight I8 4,64; X.deq_scale F32 4; X.quant_bias I32 4; X.input_scale F32 1; X.input_offset F32 1{scales}"
        ));
        all[2].bytes[4] = 9;
        let files = [("quant_model_description.json", r#"{"X.weight": "W8A8"}"#)];
        let folded = parse_beside(&file(&all, &[]), &files).unwrap();
        let wrong = verdict(
            folded.remember_to_bytes(TargetDtype::F32),
            Unsupported,
            &["`X.weight`", "bias"],
        );
        assert_eq!(wrong, None, "{scales}");
    }
    // Older versions store the scales of `W8A8`, too.
    let mut older = tensors(
        "X.weight I8 1,2; X.weight_scale F32 1,1; X.weight_offset F32 1,1; X.bias F32 1; X.deq_scale F32 1; \
         X.quant_bias I32 1; X.input_scale F32 1; X.input_offset F32 1",
    );
    older[0].bytes = vec![3, 5];
    older[1].bytes = 0.5f32.to_le_bytes().to_vec();
    older[2].bytes = 1.0f32.to_le_bytes().to_vec();
    let [layer, plain] =
        [(&older[..], "W8A8"), (&older[..4], "W8A8_DYNAMIC")].map(|(stored, kind)| {
            let description = format!(r#"{{"X.weight": "{kind}"}}"#);
            let files = [("quant_model_description.json", description.as_str())];
            let model = parse_beside(&file(stored, &[]), &files).unwrap();
            model.remember_to_bytes(TargetDtype::F32).unwrap()
        });
    assert_eq!(layer, plain);
    let values = [1.0f32, 2.0].map(f32::to_le_bytes).concat();
    assert!(layer.windows(8).any(|bytes| bytes == values));
    // Without the description nobody knows what the offset is for.
    let alone = "X.weight I8 4,64; X.weight_scale F32 4,1; X.weight_offset F32 4,1";
    let wrong = verdict(decoded(alone, "{}"), Parse, &["`X.weight_offset`"]);
    assert_eq!(wrong, None);
}
