//! Summaries: all count alike, and as a recovery writes; their texts and their JSON.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anamnesis::{
    Container, Dtype, DtypeCount, InspectInfo, ParsedModel, TargetDtype, TensorRole, parse,
};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use super::{SAFETENSORS, is_value};

/// Every file below `directory` that may be a model.
fn files(directory: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            files(&path, out);
        } else if !name.contains("expected") && !name.ends_with(".json") {
            out.push(path);
        }
    }
}

/// Number and bytes of tensors by the name of their dtype.
type Counts = BTreeMap<String, (usize, u64)>;

fn counts(all: &[DtypeCount]) -> Counts {
    all.iter()
        .map(|c| (c.dtype.to_string(), (c.tensors, c.bytes)))
        .collect()
}

/// What a recovery of `model` gives, counted in its output by the `safetensors` crate.
fn recovered(model: &ParsedModel) -> Option<(u64, Counts)> {
    let file = model.remember_to_bytes(TargetDtype::BF16).ok()?;
    let output = SafeTensors::deserialize(&file).unwrap();
    let mut found = Counts::new();
    for (_, tensor) in output.tensors() {
        let dtype = found.entry(tensor.dtype().to_string()).or_default();
        *dtype = (dtype.0 + 1, dtype.1 + tensor.data().len() as u64);
    }
    Some((found.values().map(|(_, bytes)| bytes).sum(), found))
}

/// The summary that the container's own functions give: stored and recovered bytes, and the dtypes
/// of both.
type View = (u64, u64, Vec<Dtype>, Vec<Dtype>);

fn views(path: &Path, model: &ParsedModel) -> Vec<View> {
    let mut views: Vec<View> = Vec::new();
    // These functions take one file, which of a split model is a part.
    let is_part = path.to_string_lossy().contains("-of-");
    if model.container() == Container::Gguf && !is_part {
        let file = std::fs::File::open(path).unwrap();
        let read = anamnesis::inspect_gguf_from_reader(file).unwrap();
        for info in [read, anamnesis::parse_gguf(path).unwrap().inspect()] {
            views.push((info.total_bytes, info.dequantized_size, info.dtypes, info.output_dtypes));
        }
    }
    // Headers alone do not tell what compressed arrays of objects hold.
    let is_listed = !path.to_string_lossy().contains("objects_deflated");
    if model.container() == Container::Npz && !is_part && is_listed {
        let info = anamnesis::inspect_npz(path).unwrap();
        views.push((info.total_bytes, info.dequantized_size, info.dtypes, info.output_dtypes));
    }
    if model.container() == Container::Pth {
        let file = std::fs::File::open(path).unwrap();
        // Only archives are read from a stream.
        let read = anamnesis::inspect_pth_from_reader(file).ok();
        for info in read
            .into_iter()
            .chain([anamnesis::parse_pth(path).unwrap().inspect()])
        {
            views.push((info.total_bytes, info.dequantized_size, info.dtypes, info.output_dtypes));
        }
    }
    views
}

#[test]
fn sizes_and_dtypes_are_those_of_the_output() {
    let (mut seen, mut all) = (BTreeMap::new(), Vec::new());
    for family in
        ["demo", "npz", "pth", "gguf", "gguf-files", "fp8", "hqq", "nvfp4", "compressed_tensors"]
    {
        files(&Path::new("tests/data").join(family), &mut all);
    }
    for path in all {
        let Ok(model) = parse(&path) else { continue };
        let info = model.inspect();
        let name = path.display();
        assert_eq!(info.dtypes.iter().map(|c| c.tensors).sum::<usize>(), info.tensor_count);
        assert_eq!(info.current_size, model.tensor_bytes(), "{name}");
        if !info.problems.is_empty() {
            continue;
        }
        let Some((bytes, dtypes)) = recovered(&model) else {
            continue;
        };
        assert_eq!(info.dequantized_size, bytes, "{name}");
        assert_eq!(counts(&info.output_dtypes), dtypes, "{name}");
        let is_sorted = info.output_dtypes.is_sorted_by_key(|c| u64::MAX - c.bytes);
        assert!(is_sorted, "{name}");
        let of = |counts: &[DtypeCount]| counts.iter().map(|c| c.dtype).collect::<Vec<_>>();
        for view in views(&path, &model) {
            let expected = (
                info.current_size,
                info.dequantized_size,
                of(&info.dtypes),
                of(&info.output_dtypes),
            );
            assert_eq!(view, expected, "{name}");
        }
        *seen.entry(info.container.to_string()).or_insert(0) += 1;
    }
    let least = |container: Container, n: usize| {
        let found = seen.get(&container.to_string()).copied().unwrap_or(0);
        assert!(found >= n, "{container}: {found}");
    };
    least(Container::Safetensors, 20);
    if cfg!(feature = "npz") {
        least(Container::Npz, 10);
        least(Container::Npy, 20);
    }
    if cfg!(feature = "pth") {
        least(Container::Pth, 20);
    }
    if cfg!(feature = "gguf") {
        least(Container::Gguf, 20);
    }
}

#[test]
fn text_of_an_archive() {
    let info = anamnesis::inspect_npz("tests/data/demo/arrays.npz").unwrap();
    let text = "Format:      NPZ archive\nTensors:     5\nTotal size:  160 B\nDtypes:      F32";
    assert_eq!(info.to_string(), text);
    is_value::<anamnesis::NpzInspectInfo>();
    let some = anamnesis::inspect_npz("tests/data/npz/no_tensors_among.npz").unwrap();
    let last = some.to_string();
    let last = last.lines().last().unwrap();
    assert_eq!(last, "Not read:    16 arrays that no tensor can hold");
}

#[test]
fn text_of_a_checkpoint() {
    let text = |path: &str| anamnesis::parse_pth(path).unwrap().inspect().to_string();
    let little = "Format:      PyTorch state_dict (.pth)\nTensors:     3\nTotal size:  40 B\nDtypes:      F32\n\
                  Byte order:  little-endian";
    assert_eq!(text("tests/data/demo/checkpoint.pth"), little);
    let big = text("tests/data/pth/big_endian.pt");
    assert_eq!(big.lines().last().unwrap(), "Byte order:  big-endian");
}

#[test]
fn texts_of_roles_and_containers() {
    use TensorRole::{
        Activation, GroupIndex, LowRank, NestedScale, Passthrough, QuantMap, QuantState, Quantized,
        Scale, ZeroPoint,
    };
    for (role, text) in [
        (Quantized, "quantized"),
        (Scale, "scale"),
        (Passthrough, "passthrough"),
        (ZeroPoint, "zero-point"),
        (GroupIndex, "g_idx"),
        (QuantMap, "quant-map"),
        (NestedScale, "nested"),
        (QuantState, "quant-state"),
        (LowRank, "low-rank"),
        (Activation, "activation"),
    ] {
        assert_eq!(format!("{role:<12}|"), format!("{text:<12}|"));
    }
    assert_eq!(parse(SAFETENSORS).unwrap().container(), Container::Safetensors);
    assert_eq!(Container::Npz.to_string(), "NPZ archive");
}

/// The text of a summary says what comes out, and what tensors are.
#[test]
fn text_of_a_summary() {
    use crate::common::{file, verdict::tensors};
    let text = |list: &str| {
        let model = anamnesis::parse_bytes(file(&tensors(list), &[])).unwrap();
        model.inspect().to_string()
    };
    let plain = "Format:      Unquantized\nQuantized:   0 tensors (weights)\nPassthrough: 1 tensor\n\
                 Size:        24 B (unquantized) -> 24 B (F32)";
    assert_eq!(text("W_enc F32 2,3"), plain);
    let passthrough = |list: &str| {
        let text = text(list);
        let line = text.lines().find(|l| l.starts_with("Passthrough")).unwrap();
        line.to_owned()
    };
    for (list, expected) in [
        ("model.norm.weight F32 2", "1 tensor (norms)"),
        (
            "lm_head.weight F32 2; model.embed_tokens.weight F32 2; model.norm.weight F32 2",
            "3 tensors (norms, embeddings, lm_head)",
        ),
        ("model.norm.weight F32 2; x F32 2", "2 tensors (norms, others)"),
        ("a.q_proj.weight F32 2,2", "1 tensor"),
    ] {
        assert_eq!(passthrough(list), format!("Passthrough: {expected}"));
    }
    for (list, expected) in [
        (
            "a.weight F8_E4M3 4,2; a.weight_scale F32 1",
            "Per-tensor FP8 (E4M3), single scale factor per tensor",
        ),
        (
            "a.weight F8_E4M3 4,2; a.weight_scale F32 4,1",
            "Per-channel FP8 (E4M3), one scale per row",
        ),
        (
            "a.weight F8_E4M3 256,256; a.weight_scale_inv F32 2,2",
            "Fine-grained FP8 (E4M3), 128x128 blocks",
        ),
    ] {
        let text = text(list);
        assert_eq!(text.lines().next().unwrap(), format!("Format:      {expected}"));
    }
    let mixed = text("a.weight F8_E4M3 4,2; a.weight_scale F32 1; a.norm.weight F32 2");
    assert!(mixed.contains("Size:        20 B (FP8) -> 24 B (BF16, F32)"), "{mixed}");
}

fn json(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

#[test]
fn json_of_a_summary() {
    let info: InspectInfo = parse(SAFETENSORS).unwrap().inspect();
    let json = json(&info);
    assert_eq!(json["container"], "safetensors");
    assert_eq!(json["output_dtype"], "BF16");
    let bf16 = json!([{"dtype": "BF16", "tensors": 1, "bytes": 131_072}]);
    assert_eq!(json["output_dtypes"], bf16);
    assert_eq!(json["passthrough_kinds"], json!([]));
}

#[test]
fn json_of_a_safetensors_header() {
    use crate::common::{file, verdict::tensors};
    let bytes = file(&tensors("x F16 2,3"), &[("b", "2"), ("a", "1")]);
    let header = anamnesis::parse_safetensors_header(&bytes).unwrap();
    let expected = json!({
        "tensors": [{
            "name": "x", "dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12], "role": "Passthrough"
        }],
        "scheme": "unquantized",
        "metadata": {"a": "1", "b": "2"},
        "header_size": header.header_size,
        "gptq_config": null, "awq_config": null, "bnb_config": null,
    });
    assert_eq!(json(&header), expected);
    let text = serde_json::to_string(&header).unwrap();
    assert!(text.contains(r#""metadata":{"a":"1","b":"2"}"#), "{text}");
}

#[test]
fn json_of_a_gguf_header() {
    use anamnesis::{GgufMetadataArray, GgufMetadataValue};
    let path = "tests/data/demo/model-q4_k.gguf";
    let file = std::fs::File::open(path).unwrap();
    let front = anamnesis::parse_gguf_front_matter_from_reader(file).unwrap();
    let header = json(&front);
    assert_eq!((&header["version"], &header["alignment"]), (&json!(3), &json!(32)));
    assert_eq!(header["metadata"]["general.architecture"], "llama");
    let tensor = json!([{
        "name": "blk.0.ffn_up.weight", "dtype": "Q4_K", "shape": [256, 32],
        "data_offset": front.tensor_infos[0].data_offset, "byte_len": 4608
    }]);
    assert_eq!(header["tensor_infos"], tensor);
    let model = parse(path).unwrap();
    assert_eq!(json(model.gguf().unwrap())["metadata"], header["metadata"]);
    let info = json!({
        "version": 3, "architecture": "llama", "tensor_count": 1, "total_bytes": 4608, "unknown_size_tensors": 0,
        "dtypes": ["Q4_K"], "alignment": 32, "dequantized_size": 16_384, "output_dtype": "BF16",
        "output_dtypes": ["BF16"]
    });
    assert_eq!(json(&front.inspect()), info);
    let array = GgufMetadataArray::Array(vec![GgufMetadataArray::U8(vec![1, 2])]);
    for (value, expected) in [
        (GgufMetadataValue::U8(3), json!(3)),
        (GgufMetadataValue::F32(0.5), json!(0.5)),
        (GgufMetadataValue::F64(f64::NAN), Value::Null),
        (GgufMetadataValue::Bool(true), json!(true)),
        (GgufMetadataValue::String("a".to_owned()), json!("a")),
        (GgufMetadataValue::Array(Box::new(array)), json!([[1, 2]])),
    ] {
        assert_eq!(json(&value), expected);
    }
}

#[test]
fn json_of_an_archive() {
    let info = json(&anamnesis::inspect_npz("tests/data/demo/arrays.npz").unwrap());
    let first = json!({"name": "W_dec", "shape": [8], "dtype": "F32", "byte_len": 32});
    assert_eq!(info["tensors"][0], first);
    let rest =
        json!([info["skipped"], info["total_bytes"], info["dtypes"], info["dequantized_size"]]);
    assert_eq!(rest, json!([[], 160, ["F32"], 160]));
    assert_eq!(info["output_dtypes"], json!(["F32"]));
}

#[test]
fn json_of_a_checkpoint() {
    let file = std::fs::File::open("tests/data/demo/checkpoint.pth").unwrap();
    let front = anamnesis::parse_pth_front_matter_from_reader(file).unwrap();
    let first = json!({"name": "rnn.weight_ih_l0", "shape": [2, 1], "dtype": "F32", "byte_len": 8});
    let header = json(&front);
    assert_eq!((&header["tensors"][0], &header["big_endian"]), (&first, &json!(false)));
    let info = json!({
        "tensor_count": 3, "total_bytes": 40, "dtypes": ["F32"], "big_endian": false, "dequantized_size": 40,
        "output_dtype": "BF16", "output_dtypes": ["F32"]
    });
    assert_eq!(json(&front.inspect()), info);
}
