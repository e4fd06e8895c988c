//! Nunchaku's layers that are incomplete or contradict their config.

use anamnesis::{TargetDtype, parse, parse_bytes};

use crate::common::verdict::{Kind, Parse, Unsupported, check, recover, tensors, verdict};
use crate::common::{data, file};

/// A model in two files, which do not name its class.
#[test]
fn files_of_the_older_format() {
    let directory = crate::common::tempdir().unwrap();
    let layer = file(&tensors("X.qweight I8 128,64; X.wscales BF16 2,128"), &[]);
    for name in ["transformer_blocks", "unquantized_layers"] {
        std::fs::write(directory.path().join(format!("{name}.safetensors")), &layer).unwrap();
    }
    let result = parse(directory.path());
    let named = ["Nunchaku", "transformer_blocks.safetensors", "merge_safetensors"];
    assert_eq!(verdict(result, Unsupported, &named), None);
}

#[test]
fn nunchaku() {
    let text = r#"
        # Its own models, and a file without a config.
        {a} |  | Unsupported: `X.qweight` & Nunchaku & nunchaku_lite
        {a} | {"method":"svdquant","weight":{"dtype":"int4"}} | Unsupported: `X.qweight` & Nunchaku & model_class
        # SVDQuant.
        {a} | {"quant_method":"nunchaku_lite"} | Parse: `X.qweight` & svdq_w4a4
        {a} | {"quant_method":"nunchaku_lite","svdq_w4a4":{"precision":"nvfp4","group_size":16}} | Parse: `X.qweight` & nvfp4
        {a} | {"quant_method":"nunchaku_lite","svdq_w4a4":{"precision":"int4","group_size":32}} | Parse: `X.qweight` & 32
        {a} | {"quant_method":"nunchaku_lite","svdq_w4a4":{"precision":"int4","group_size":64,"act_unsigned":[]}} | Unsupported: `X.qweight` & act_unsigned
        {q}; {d}; {s} | {lite} | Parse: `X.qweight` & X.smooth_factor
        {q}; {d} | {lite} | Parse: `X.qweight` & X.wscales
        {s} | {lite} | Parse: `X.wscales`
        {d} | {lite} | Parse: `X.proj_down` & X.qweight
        {a}; X.smooth BF16 128 | {lite} | Parse: `X.qweight` & both
        {q}; {s}; X.smooth_factor BF16 128; X.proj_up BF16 128,16 | {lite} | Parse: `X.qweight` & X.proj_down
        X.qweight I8 120,64; {d}; {s}; X.smooth_factor BF16 128 | {lite} | Parse: `X.qweight` & 128
        X.qweight I8 128,32; {d}; {s}; X.smooth_factor BF16 128 | {lite} | Parse: `X.qweight` & 128
        X.qweight I8 8192; {d}; {s}; X.smooth_factor BF16 128 | {lite} | Parse: `X.qweight`
        X.qweight U8 128,64; {d}; {s}; X.smooth_factor BF16 128 | {lite} | Parse: `X.qweight` & I8
        {q}; {d}; X.wscales BF16 128,2; X.smooth_factor BF16 128 | {lite} | Parse: `X.qweight` & `X.wscales` & [128, 2]
        {q}; {d}; {s}; X.smooth_factor BF16 64 | {lite} | Parse: `X.smooth_factor` & [64]
        {q}; {s}; X.smooth_factor BF16 128; X.proj_down BF16 128,8; X.proj_up BF16 128,8 | {lite} | Parse: `X.qweight` & rank 8
        {q}; {s}; X.smooth_factor BF16 128; X.proj_down BF16 128,16; X.proj_up BF16 128,32 | {lite} | Parse: `X.proj_up` & [128, 32]
        {a}; X.bias BF16 64 | {lite} | Parse: `X.bias` & [64]
        {a}; X.bias I32 128 | {lite} | Parse: `X.bias` & I32
        {a}; X.smooth_factor_orig BF16 128 | {lite} | Parse: `X.smooth_factor_orig`
        {q}; {d}; X.wscales F8_E4M3 8,128; X.smooth_factor BF16 128 | {"quant_method":"nunchaku_lite","svdq_w4a4":{"precision":"nvfp4","group_size":16}} | Parse: `X.qweight` & X.wcscales
        # AWQ.
        X.qweight I32 2,64; X.wscales BF16 2,8; X.wzeros BF16 2,8 | {lite} | Parse: `X.qweight` & awq_w4a16
        X.qweight I32 2,64; X.wscales BF16 2,8 | {awq} | Parse: `X.qweight` & X.wzeros
        X.qweight I32 2,64; X.wscales BF16 2,4; X.wzeros BF16 2,8 | {awq} | Parse: `X.qweight` & [2, 4]
        X.qweight I32 2,40; X.wscales BF16 2,8; X.wzeros BF16 2,8 | {awq} | Parse: `X.qweight` & 64
    "#;
    let names = [
        ("{a}", "{q}; {d}; {s}; X.smooth_factor BF16 128"),
        ("{q}", "X.qweight I8 128,64"),
        ("{s}", "X.wscales BF16 2,128"),
        ("{d}", "X.proj_down BF16 128,16; X.proj_up BF16 128,16"),
        (
            "{lite}",
            r#"{"quant_method":"nunchaku_lite","svdq_w4a4":{"precision":"int4","group_size":64,"rank":16,"targets":["X"]}}"#,
        ),
        (
            "{awq}",
            r#"{"quant_method":"nunchaku_lite","awq_w4a16":{"precision":"int4","group_size":64,"targets":["X"]}}"#,
        ),
    ];
    let replace = |text: String, (name, value): &(&str, &str)| text.replace(name, value);
    check(&names.iter().fold(text.to_owned(), replace));
}

const FLUX: &str = "NunchakuFluxTransformer2dModel";

/// nunchaku's own config, as its models have it.
const CONFIG: &str = r#"{"method":"svdquant","weight":{"dtype":"int4","scale_dtype":null,"group_size":64},"activation":{"dtype":"int4"},"rank":16}"#;

/// Parts of a layer of integers without its codes.
const PARTS: &str =
    "$.wscales BF16 2,128; $.smooth BF16 128; $.lora_down BF16 128,16; $.lora_up BF16 128,16";

/// A layer of AWQ.
const AWQ: &str = "$.qweight I32 6,64; $.wscales BF16 2,24; $.wzeros BF16 2,24";

/// A kind of error, and words of its message.
type Expected<'a> = (Kind, &'a [&'a str]);

fn refusal(list: &str, class: &str, config: &str, (kind, words): Expected<'_>) {
    let metadata = [("model_class", class), ("quantization_config", config)];
    let metadata = if class.is_empty() {
        &metadata[1..]
    } else {
        &metadata
    };
    let result = recover(file(&tensors(list), metadata), "");
    assert_eq!(verdict(result, kind, words), None, "{list} {class} {config}");
}

#[test]
fn classes_and_modules_of_own_models() {
    let layer = |name: &str| format!("$.qweight I8 128,64; {PARTS}").replace('$', name);
    let awq = |name: &str| AWQ.replace('$', name);
    let cases: &[(String, &str, Expected<'_>)] = &[
        (layer("mlp_fc1"), "", (Unsupported, &["`mlp_fc1.qweight`", "model_class"])),
        (
            layer("mlp_fc1"),
            "NunchakuSanaTransformer2DModel",
            (Unsupported, &["`mlp_fc1.qweight`", "NunchakuSana"]),
        ),
        (layer("a.mlp_fc3"), FLUX, (Unsupported, &["`a.mlp_fc3.qweight`", FLUX])),
        (layer("a.amlp_fc1"), FLUX, (Unsupported, &["`a.amlp_fc1.qweight`"])),
        (layer("a.norm.linear"), FLUX, (Unsupported, &["`a.norm.linear.qweight`", "modulation"])),
        (awq("a.mlp_fc1"), FLUX, (Unsupported, &["`a.mlp_fc1.qweight`", "modulations"])),
        (
            awq("a.norm1.linear"),
            FLUX,
            (Parse, &["`a.norm1.linear.qweight`", "a.norm1.linear.bias"]),
        ),
        (
            awq("a.norm1.linear")
                .replace("24", "20")
                .replace("I32 6", "I32 5"),
            FLUX,
            (Parse, &["`a.norm1.linear.qweight`", "20 outputs", "6 vectors"]),
        ),
        (
            awq("a.norm1.linear") + "; a.norm1.linear.bias I32 24",
            FLUX,
            (Parse, &["`a.norm1.linear.bias`", "I32"]),
        ),
        (
            awq("a.norm1.linear")
                + "; a.norm1.linear.bias BF16 24; a.norm1.linear.lora_up BF16 24,16",
            FLUX,
            (Unsupported, &["`a.norm1.linear.qweight`", "lora_up"]),
        ),
        // Behind a GELU.
        (layer("a.mlp_fc2"), FLUX, (Unsupported, &["`a.mlp_fc2.qweight`", "GELU", "bias"])),
        (
            layer("a.mlp_fc2") + "; a.mlp_fc2.bias BF16 64",
            FLUX,
            (Parse, &["`a.mlp_fc2.bias`", "[64]"]),
        ),
    ];
    for (list, class, expected) in cases {
        refusal(list, class, CONFIG, *expected);
    }
}

#[test]
fn tensors_and_configs_of_own_models() {
    let list = |text: &str| text.replace("{p}", PARTS).replace('$', "out_proj");
    let with = |old: &str, new: &str| CONFIG.replace(old, new);
    let qweight = "`out_proj.qweight`";
    let cases: &[(&str, String, Expected<'_>)] = &[
        (
            "$.qweight I8 128,64; {p}; $.smooth_factor BF16 128",
            CONFIG.into(),
            (Parse, &[qweight, "both"]),
        ),
        (
            "$.qweight I8 128,64; {p}; $.smooth_orig BF16 64",
            CONFIG.into(),
            (Parse, &["`out_proj.smooth_orig`", "[64]"]),
        ),
        ("{p}", CONFIG.into(), (Parse, &["out_proj.qweight"])),
        ("$.smooth_orig BF16 64", CONFIG.into(), (Parse, &["`out_proj.smooth_orig`"])),
        (
            "$.qweight I8 128,64; {p}",
            with(",\"rank\":16", ",\"runtime_manifest\":{}"),
            (Unsupported, &[qweight, "runtime_manifest"]),
        ),
        (
            "$.qweight I8 128,64; {p}",
            with("\"scale_dtype\"", "\"zero_point\""),
            (Unsupported, &[qweight, "zero_point"]),
        ),
        ("$.qweight I8 128,64; {p}", with("int4\",\"s", "int8\",\"s"), (Parse, &[qweight, "int8"])),
        ("$.qweight I8 128,64; {p}", with("64", "32"), (Parse, &[qweight, "32"])),
        (
            "$.qweight I8 128,64; {p}",
            r#"{"method":"svdquant"}"#.into(),
            (Parse, &[qweight, "`weight`"]),
        ),
        // E2M1 with neither of its outer scales.
        (
            "$.qweight I8 128,64; $.wscales F8_E4M3 8,128; $.smooth BF16 128; $.lora_down BF16 128,16; $.lora_up BF16 128,16",
            with("int4\",\"s", "fp4_e2m1_all\",\"s").replace("64", "16"),
            (Parse, &[qweight, "wcscales"]),
        ),
        (
            "$.qweight I8 128,64; $.wscales F8_E4M3 8,128; $.smooth BF16 128; $.lora_down BF16 128,16; $.lora_up BF16 128,16; $.wtscale BF16 2",
            with("int4\",\"s", "fp4_e2m1_all\",\"s").replace("64", "16"),
            (Parse, &["`out_proj.wtscale`", "[2]"]),
        ),
    ];
    for (text, config, expected) in cases {
        refusal(&list(text), FLUX, config, *expected);
    }
}

/// What a decoded file says of itself: neither nunchaku's class, nor its quantization.
#[test]
fn metadata_of_decoded_models() {
    let path = data().join("nunchaku/flux_int4/model/model.safetensors");
    let model = parse(path).unwrap();
    assert!(model.inspect().to_string().contains("Nunchaku"));
    let decoded = model.remember_to_bytes(TargetDtype::BF16).unwrap();
    let header = String::from_utf8_lossy(&decoded[..2048]).into_owned();
    assert!(!header.contains("model_class") && !header.contains("svdquant"), "{header}");
    parse_bytes(decoded)
        .unwrap()
        .remember_to_bytes(TargetDtype::F32)
        .unwrap();
}
