//! Numbers that tensors, configs and descriptions state of one weight. Where two of them say
//! different things, the weight is refused, however well the number of its bytes fits.

use std::path::{Path, PathBuf};

use anamnesis::parse;

use crate::common::verdict::{Parse, check, parse_beside, recover, tensors, verdict};
use crate::common::{
    Raw, case_directories, data, effort, file, find_dtype, raw, some_case_directories,
};

/// Groups and axes of scales.
#[test]
fn scales_of_other_groups() {
    let table = r#"
        X.weight F8_E4M3 4,8; X.weight_scale F32 1,8 |  | Parse: `X.weight` & does not fit
        X.weight F8_E4M3 26,8; X.weight_scale F32 2,2 | {ct "strategy":"channel","num_bits":8,"type":"float"}}}} | Parse: `X.weight` & channel
        X.weight I8 4,8; X.weight_scale F32 4,1 | {ct "strategy":"channel","num_bits":8,"type":"float"}}}} | Parse: `X.weight` & float
        X.weight_packed U8 4,16; X.weight_scale F8_E4M3 4,1; X.weight_global_scale F32 1 |  | Parse: `X.weight_packed` & 16 values
        X.qweight I32 256,1; X.qzeros I32 2,1; X.scales F16 2,8 | {"quant_method":"awq","bits":4,"group_size":129} | Parse: `X.qweight` & 129
        X.qweight I32 200,1; X.qzeros I32 2,1; X.scales F16 2,8 | {"quant_method":"awq","bits":4,"group_size":128} | Parse: `X.qweight` & 200
        X.qweight I32 32,8; X.qzeros I32 2,1; X.scales F16 2,8 | {"quant_method":"gptq","bits":4,"group_size":129} | Parse: `X.qweight` & 129
        X.weight._data I8 4,8; X.weight._scale F32 1,8 |  | Parse: `X.weight._data` & [1, 8]
        X_blocks U8 2,4,1,16 |  | Parse: `X_blocks` & missing
        X.experts.down_proj_scales U8 2,4,1 |  | Parse: `X.experts.down_proj_scales`
    "#;
    check(&table.replace("{ct ", r#"{"config_groups":{"g":{"targets":["Linear"],"weights":{"#));
}

/// Tensors as [`tensors`] makes them, with the content of some.
fn filled(list: &str, contents: &[(&str, Vec<u8>)]) -> Vec<Raw> {
    let mut all = tensors(list);
    for (name, bytes) in contents {
        let t = all.iter_mut().find(|t| t.name == *name).unwrap();
        t.bytes.clone_from(bytes);
    }
    all
}

/// Integers with a stored shape: groups that do not divide its columns, and scales that were
/// transposed.
#[test]
fn scales_of_packed_integers() {
    let config = |size: usize| {
        format!(
            r#"{{"config_groups":{{"g":{{"targets":["Linear"],"weights":{{"num_bits":4,"group_size":{size}}}}}}}}}"#
        )
    };
    let shape = [4i64, 64].iter().flat_map(|n| n.to_le_bytes()).collect();
    let contents = [("X.weight_shape", shape)];
    let weight = |scale: &str, rest: &str| {
        let list = format!(
            "X.weight_packed I32 4,8; X.weight_scale BF16 {scale}; X.weight_shape I64 2{rest}"
        );
        file(&filled(&list, &contents), &[])
    };
    recover(weight("4,2", ""), &config(32)).unwrap();
    recover(weight("4,2", "; X.weight_g_idx I32 64"), &config(32)).unwrap();
    for (scale, rest, size, words) in [
        ("4,2", "", 33, ["`X.weight_packed`", "groups of 33"]),
        ("2,4", "", 32, ["`X.weight_packed`", "[2, 4]"]),
        ("4,2", "; X.weight_g_idx I32 63", 32, ["`X.weight_g_idx`", "64 columns"]),
    ] {
        let result = recover(weight(scale, rest), &config(size));
        assert_eq!(verdict(result, Parse, &words), None, "{scale} {rest}");
    }
    // Groups of columns in another order, without the order. Only `weight` leaves them as they are.
    for (order, is_refused) in [
        (r#""group""#, true),
        (r#""dynamic""#, true),
        ("true", true),
        (r#""weight""#, false),
        ("null", false),
    ] {
        let ordered = format!(r#""actorder":{order},"num_bits""#);
        let config = config(32).replace(r#""num_bits""#, &ordered);
        let result = recover(weight("4,2", ""), &config);
        let words = ["`X.weight_packed`", "_g_idx"];
        assert_eq!(verdict(result, Parse, &words).is_none(), is_refused, "{order}");
    }
}

/// An index for all inputs but one, whose code would be lost.
#[test]
fn an_index_that_is_short() {
    let list = |inputs: usize| {
        format!("X.qweight I32 4,8; X.qzeros I32 1,1; X.scales F16 1,8; X.g_idx I32 {inputs}")
    };
    let contents = [("X.qweight", vec![0x99; 4 * 8 * 4])];
    let config = r#"{"quant_method":"gptq","bits":4,"group_size":-1}"#;
    recover(file(&filled(&list(32), &contents), &[]), config).unwrap();
    let result = recover(file(&filled(&list(31), &contents), &[]), config);
    assert_eq!(verdict(result, Parse, &["`X.qweight`"]), None);
}

/// Swapped sizes keep the number of values, and a scale for each row fits them. The bias and
/// `config.json` tell.
#[test]
fn shapes_that_are_swapped() {
    let name = "model.layers.0.mlp.up_proj";
    let weight = |shape: &str, bias: &str| {
        let rows = shape.split(',').next().unwrap();
        let list = format!("{name}.weight I8 {shape}; {name}.weight_scale F32 {rows},1{bias}");
        file(&tensors(&list), &[])
    };
    let config =
        [("config.json", r#"{"model_type":"llama","hidden_size":8,"intermediate_size":4}"#)];
    let bias = format!("; {name}.bias F32 4");
    for (bias, configs) in [(bias.as_str(), &[][..]), ("", &config[..])] {
        for (shape, is_right) in [("4,8", true), ("8,4", false)] {
            let model = parse_beside(&weight(shape, bias), configs).unwrap();
            let result = model.remember_to_bytes(anamnesis::TargetDtype::F32);
            let words = [name, "its shape is [8, 4]"];
            assert_eq!(verdict(result, Parse, &words).is_some(), is_right, "{shape} {bias}");
        }
    }
}

/// Four bits in groups of 64 fill the words that eight bits in groups of 32 do. A module that the
/// config does not name has the bits that give it the columns of its layer, as mlx-lm infers them.
#[test]
fn mlx_modules_without_an_entry() {
    let name = "model.layers.0.mlp.up_proj";
    let list = format!("{name}.weight U32 4,16; {name}.scales BF16 4,2; {name}.biases BF16 4,2");
    for (hidden, cols) in [(128, 128), (64, 64)] {
        let config = format!(
            r#"{{"model_type":"llama","hidden_size":{hidden},"intermediate_size":4,"quantization":{{"bits":4,"group_size":64}}}}"#
        );
        let bytes = file(&tensors(&list), &[]);
        let model = parse_beside(&bytes, &[("config.json", &config)]).unwrap();
        let conversion = model.plan(anamnesis::TargetDtype::BF16).unwrap();
        let output = conversion.outputs().next().unwrap();
        assert_eq!(output.shape, [4, cols], "hidden size {hidden}");
    }
}

/// The sizes of `config.json` are those of one model. Layers beside norms of another width are of
/// another model in the file.
#[test]
fn sizes_of_another_model() {
    let name = "model.decoder.layers.0.self_attn.k_proj";
    let weight = |width: usize| {
        let list = format!(
            "{name}.weight I8 4,16; {name}.weight_scale F32 4,1; \
             model.decoder.layers.0.input_layernorm.weight F32 {width}"
        );
        file(&tensors(&list), &[])
    };
    let config =
        [("config.json", r#"{"model_type":"llama","hidden_size":8,"num_attention_heads":1}"#)];
    for (width, is_right) in [(16, true), (8, false)] {
        let model = parse_beside(&weight(width), &config).unwrap();
        let result = model.remember_to_bytes(anamnesis::TargetDtype::F32);
        let words = [name, "its shape is [4, 16]", "[8, 8]"];
        assert_eq!(verdict(result, Parse, &words).is_some(), is_right);
    }
}

/// Attention to another tower: its keys and values have other inputs than its queries.
#[test]
fn mlx_cross_attention() {
    for (name, is_right) in [
        ("layers.0.encoder_attn", true),
        ("layers.0.cross_attention", true),
        ("layers.0.self_attn", false),
    ] {
        let layer = |end: &str, groups: usize| {
            let words = groups * 8;
            format!(
                "{name}.{end}.weight U32 4,{words}; {name}.{end}.scales BF16 4,{groups}; \
                 {name}.{end}.biases BF16 4,{groups}"
            )
        };
        let list = [layer("q_proj", 1), layer("k_proj", 2), layer("v_proj", 2)].join("; ");
        let config = r#"{"model_type":"x","quantization":{"bits":4,"group_size":64}}"#;
        let model = parse_beside(&file(&tensors(&list), &[]), &[("config.json", config)]).unwrap();
        let result = model.remember_to_bytes(anamnesis::TargetDtype::F32);
        let words = ["columns", "q_proj.weight"];
        assert_eq!(verdict(result, Parse, &words).is_some(), is_right, "{name}");
    }
}

/// HQQ: groups that do not divide the weight, though codes, scales and zero points agree on their
/// number.
#[test]
fn groups_of_hqq() {
    let shape = [4i64, 8].iter().flat_map(|n| n.to_le_bytes()).collect();
    let contents = [("X.shape", shape)];
    let weight = |rows: usize, group: usize| {
        let list = format!(
            "X.W_q U8 {rows},{group}; X.scale F16 {rows},1; X.zero F16 {rows},1; X.shape I64 2; \
             X.axis TEXT 1; X.packing TEXT 8bit_u8; X.group_size TEXT {group}"
        );
        file(&filled(&list, &contents), &[])
    };
    recover(weight(4, 8), "").unwrap();
    recover(weight(2, 16), "").unwrap();
    for (rows, group) in [(6, 5), (10, 3), (1, 31)] {
        let words = ["`X.W_q`", &format!("groups of {group}")];
        let result = recover(weight(rows, group), "");
        assert_eq!(verdict(result, Parse, &words), None, "groups of {group}");
    }
}

/// The tensors of `model` as they are stored; `None` if test files cannot have one.
fn stored(model: &anamnesis::ParsedModel) -> Option<Vec<Raw>> {
    let one = |t: anamnesis::Tensor<'_>| {
        let (dtype, _) = find_dtype(&t.dtype().to_string())?;
        Some(raw(t.name(), dtype, t.shape(), t.bytes().unwrap().to_vec()))
    };
    model.tensors().map(one).collect()
}

/// The small models of the test data that are of safetensors files, with their directories.
fn small_models(
    directories: Vec<PathBuf>,
) -> impl Iterator<Item = (PathBuf, anamnesis::ParsedModel)> {
    directories.into_iter().filter_map(|dir| {
        let model = parse(&dir).ok()?;
        let is_fit = model.container() == anamnesis::Container::Safetensors
            && model.inspect().problems.is_empty()
            && model.tensor_bytes() < 1 << 18;
        is_fit.then_some((dir, model))
    })
}

/// Decodes `tensors` beside the config of `dir`, with the metadata of `model`.
fn recover_beside(
    dir: &Path,
    model: &anamnesis::ParsedModel,
    tensors: &[Raw],
) -> anamnesis::Result<Vec<u8>> {
    let metadata: Vec<(&str, &str)> = model
        .metadata()
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    let config = std::fs::read_to_string(dir.join("config.json"));
    let configs: Vec<_> = config
        .iter()
        .map(|text| ("config.json", text.as_str()))
        .collect();
    parse_beside(&file(tensors, &metadata), &configs)?
        .remember_to_bytes(anamnesis::TargetDtype::F32)
}

/// Every model of the test data with a bias of another length beside its first weight.
#[test]
fn biases_of_other_lengths() {
    let (mut failures, mut tried) = (String::new(), 0);
    for (dir, model) in small_models(some_case_directories(1)) {
        let Some(mut tensors) = stored(&model) else {
            continue;
        };
        let Ok(conversion) = model.plan(anamnesis::TargetDtype::F32) else {
            continue;
        };
        let names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
        let weight = conversion.outputs().find_map(|output| {
            let base = output.name.strip_suffix("weight")?;
            // Experts that are taken apart have the bias of their stack.
            let is_quantized = match model.tensor(output.name) {
                Some(t) => t.role() == anamnesis::TensorRole::Quantized,
                None => names.iter().any(|name| name.starts_with(base)),
            };
            let &[rows, cols] = output.shape else {
                return None;
            };
            let bias = format!("{base}bias");
            let is_free = !names.contains(&bias.as_str());
            (is_quantized && is_free).then_some((bias, rows.max(cols) + 200))
        });
        let Some((bias, values)) = weight else {
            continue;
        };
        if recover_beside(&dir, &model, &tensors).is_err() {
            continue;
        }
        tried += 1;
        tensors.push(raw(&bias, "F32", &[values], vec![0; values * 4]));
        if recover_beside(&dir, &model, &tensors).is_ok() {
            failures += &format!("{}: {bias}\n", dir.display());
        }
    }
    assert!(failures.is_empty(), "accepted:\n{failures}");
    assert!(tried > effort([10, 100, 100]), "{tried}");
}

/// Every model of the test data without the factors of one of several layers of one input.
#[test]
fn factors_of_some_layers() {
    let mut tried = 0;
    for (dir, model) in small_models(case_directories()) {
        let Some(tensors) = stored(&model) else {
            continue;
        };
        let is_factor = |t: &&Raw| {
            let layers = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"];
            let layer = t.name.strip_suffix(".pre_quant_scale");
            layer.is_some_and(|layer| layers.iter().any(|end| layer.ends_with(end)))
        };
        let factors: Vec<&Raw> = tensors.iter().filter(is_factor).collect();
        let module = |t: &Raw| t.name.rsplitn(3, '.').last().unwrap_or_default().to_owned();
        for factor in &factors {
            if factors
                .iter()
                .filter(|other| module(other) == module(factor))
                .count()
                < 2
            {
                continue;
            }
            let rest: Vec<Raw> = tensors
                .iter()
                .filter(|t| t.name != factor.name)
                .cloned()
                .collect();
            let result = recover_beside(&dir, &model, &rest);
            let words = [factor.name.as_str(), "is missing"];
            assert_eq!(verdict(result, Parse, &words), None, "{}", dir.display());
            tried += 1;
        }
    }
    assert!(tried >= 5, "{tried}");
}

/// A width in `config.json` that the last norm refutes: by it MLX's bits would be told.
#[test]
fn mlx_width_of_another_model() {
    let name = "model.layers.0.mlp.up_proj";
    let config = r#"{"model_type":"llama","hidden_size":128,"intermediate_size":4,"quantization":{"bits":4,"group_size":64}}"#;
    for (norm, is_right) in [(128, true), (64, false)] {
        let list = format!(
            "{name}.weight U32 4,16; {name}.scales BF16 4,2; {name}.biases BF16 4,2; model.norm.weight BF16 {norm}"
        );
        let model = parse_beside(&file(&tensors(&list), &[]), &[("config.json", config)]).unwrap();
        let result = model.remember_to_bytes(anamnesis::TargetDtype::F32);
        let words = ["`hidden_size` 128", "`model.norm.weight` has 64"];
        assert_eq!(verdict(result, Parse, &words).is_some(), is_right, "{norm}");
    }
}

/// Every model of Quark whose companions have the names of its quantizers, as checkpoints that were
/// not exported have them.
#[test]
fn companions_in_quantizers() {
    let mut tried = 0;
    for (dir, model) in small_models(case_directories()) {
        let Some(tensors) = stored(&model).filter(|_| dir.starts_with(data().join("quark"))) else {
            continue;
        };
        let renamed = |t: &Raw| {
            let mut t = t.clone();
            for (exported, own) in [
                (".weight_scale", ".weight_quantizer.scale"),
                (".weight_zero_point", ".weight_quantizer.zero_point"),
            ] {
                if let Some(module) = t.name.strip_suffix(exported) {
                    t.name = format!("{module}{own}");
                }
            }
            t
        };
        let others: Vec<Raw> = tensors.iter().map(renamed).collect();
        let is_renamed = others.iter().zip(&tensors).any(|(a, b)| a.name != b.name);
        let want = recover_beside(&dir, &model, &tensors);
        let (true, Ok(want)) = (is_renamed, want) else {
            continue;
        };
        // Two scales of one weight have no names in quantizers.
        let Ok(got) = recover_beside(&dir, &model, &others) else {
            assert!(dir.to_string_lossy().contains("fp8_scales"), "{}", dir.display());
            continue;
        };
        assert!(got == want, "{}", dir.display());
        tried += 1;
    }
    assert!(tried > 20, "{tried}");
}

/// Two groups of compressed-tensors that are both for all linear layers: the stored shape tells
/// which of them a layer is of.
#[test]
fn two_groups_for_one_layer() {
    let mut tried = 0;
    for (dir, model) in small_models(case_directories()) {
        let Ok(config) = std::fs::read_to_string(dir.join("config.json")) else {
            continue;
        };
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        let is_stored = model.tensors().any(|t| t.name().ends_with(".weight_shape"));
        let groups = config.pointer_mut("/quantization_config/config_groups");
        let Some(groups) = groups
            .and_then(|groups| groups.as_object_mut())
            .filter(|_| is_stored)
        else {
            continue;
        };
        let [(_, own)] = &groups.iter().collect::<Vec<_>>()[..] else {
            continue;
        };
        let own = (*own).clone();
        let Some(bits) = own["weights"]["num_bits"].as_u64() else {
            continue;
        };
        let mut other = own.clone();
        other["weights"]["num_bits"] = (if bits == 8 { 4 } else { 8 }).into();
        let Some(tensors) = stored(&model) else {
            continue;
        };
        let want = recover_beside(&dir, &model, &tensors).unwrap();
        for order in [[&own, &other], [&other, &own]] {
            let groups = serde_json::json!({ "group_0": order[0], "group_1": order[1] });
            *config
                .pointer_mut("/quantization_config/config_groups")
                .unwrap() = groups;
            let metadata: Vec<(&str, &str)> = vec![];
            let text = config.to_string();
            let parsed =
                parse_beside(&file(&tensors, &metadata), &[("config.json", &text)]).unwrap();
            let got = parsed.remember_to_bytes(anamnesis::TargetDtype::F32);
            match got {
                Ok(got) => assert!(got == want, "{}", dir.display()),
                Err(error) => panic!("{}: {error}", dir.display()),
            }
        }
        tried += 1;
    }
    assert!(tried > 5, "{tried}");
}
