//! Stacks of experts of mlx-lm: bases that have a stack, and what does not fit.

use super::*;

const MODULE: &str = "model.layers.0.mlp.switch_mlp.up_proj";
const EXPERT: &str = "model.layers.0.mlp.experts";

/// The error of merging factors of these shapes into a base of these tensors; empty if there is
/// none.
fn refusal(base: &[(&str, &[usize])], [a, b]: [&[usize]; 2]) -> String {
    let root = crate::common::tempdir().unwrap();
    let tensor = |name: &str, shape: &[usize]| {
        raw(name, "F32", shape, f32s(&vec![0.5; shape.iter().product()]))
    };
    let base: Vec<Raw> = base
        .iter()
        .map(|(name, shape)| tensor(name, shape))
        .collect();
    let base_path = root.path().join("base.safetensors");
    std::fs::write(&base_path, file(&base, &[])).unwrap();
    let factors = [tensor(&format!("{MODULE}.lora_a"), a), tensor(&format!("{MODULE}.lora_b"), b)];
    std::fs::write(root.path().join("adapters.safetensors"), file(&factors, &[])).unwrap();
    let config = json!({"lora_parameters": {"rank": 1, "scale": 2.0}});
    std::fs::write(root.path().join("adapter_config.json"), config.to_string()).unwrap();
    let run = || {
        let adapter = Adapter::open(root.path())?;
        let out = root.path().join("out.safetensors");
        parse(&base_path)?.convert(&out, options(TargetDtype::F32, vec![adapter]))
    };
    run().map_or_else(|error| error.to_string(), |_| String::new())
}

#[test]
fn what_does_not_fit_is_an_error() {
    let stack = format!("{MODULE}.weight");
    let [first, second] = [0, 1].map(|e| format!("{EXPERT}.{e}.up_proj.weight"));
    let apart: &[(&str, &[usize])] = &[(&first, &[3, 2]), (&second, &[3, 2])];
    let of_stack: &[(&str, &[usize])] = &[(&stack, &[2, 3, 2])];
    let fitting: [&[usize]; 2] = [&[2, 1, 2], &[2, 3, 1]];
    assert_eq!(refusal(apart, fitting), "");
    assert_eq!(refusal(of_stack, fitting), "");
    for (base, shapes, what) in [
        (apart, [&[2, 1, 2][..], &[2, 3, 2]], "its rank is 2, and 1"),
        (apart, [&[2, 2, 2], &[2, 3, 1]], "no factors of a stack"),
        (apart, [&[1, 1, 2], &[2, 3, 1]], "no factors of a stack"),
        (apart, [&[2, 2], &[2, 3, 1]], "one of the two factors"),
        (apart, [&[2, 1, 0], &[2, 3, 1]], "no factors of a stack"),
        (apart, [&[1, 1, 2], &[1, 3, 1]], "the model has more experts"),
        (apart, [&[3, 1, 2], &[3, 3, 1]], "the model has no `model.layers.0.mlp.experts.2."),
        (apart, [&[2, 1, 4], &[2, 3, 1]], "it makes [3, 4]"),
        (of_stack, [&[2, 1, 4], &[2, 3, 1]], "it makes [2, 3, 4]"),
        (&[(&format!("{EXPERT}.gate_up_proj"), &[2, 6, 3])], fitting, "of a stack [2, 6, 2]"),
        (&[(&format!("{EXPERT}.gate_up_proj"), &[2, 3, 2])], fitting, "of a stack [2, 6, 2]"),
        (
            &[(&format!("{EXPERT}.gate_up_proj"), &[2, 6, 6])],
            [&[2, 1, 6], &[2, 3, 1]],
            "has square matrices",
        ),
        (&[("other.weight", &[3, 2])], fitting, "the model has no `model.layers.0.mlp.switch_mlp"),
    ] {
        let got = refusal(base, shapes);
        assert!(got.contains(what), "{what}: {got:?}");
    }
}

/// A model of MLX has stacks, which get what the experts get one by one.
#[test]
fn stacks_are_as_experts() {
    let root = crate::common::tempdir().unwrap();
    let want = expected("qwen3_moe", "mlx-experts");
    let model = parse(base("qwen3_moe")).unwrap();
    let mut tensors = vec![];
    for t in model.tensors() {
        let dtype = match t.dtype() {
            anamnesis::Dtype::BF16 => "BF16",
            other => panic!("{other}"),
        };
        let name = t.name();
        let Some((before, after)) = name.split_once(".experts.") else {
            let bytes = t.bytes().unwrap().into_owned();
            tensors.push(raw(name, dtype, t.shape(), bytes));
            continue;
        };
        let Some(projection) = after.strip_prefix("0.") else {
            continue;
        };
        let experts = (0..).map_while(|e| {
            let tensor = model.tensor(&format!("{before}.experts.{e}.{projection}"))?;
            Some(tensor.bytes().unwrap().into_owned())
        });
        let experts: Vec<Vec<u8>> = experts.collect();
        let shape = [&[experts.len()], t.shape()].concat();
        let stack = format!("{before}.switch_mlp.{projection}");
        tensors.push(raw(&stack, dtype, &shape, experts.concat()));
    }
    let stacked = root.path().join("stacked.safetensors");
    std::fs::write(&stacked, file(&tensors, &[])).unwrap();
    let got = merged(&stacked, "mlx-experts", TargetDtype::F32, &root.path().join("out"));
    for t in want.tensors() {
        let Some((before, after)) = t.name().split_once(".experts.") else {
            continue;
        };
        let (expert, projection) = after.split_once('.').unwrap();
        let all = values(&got, &format!("{before}.switch_mlp.{projection}"));
        let first = expert.parse::<usize>().unwrap() * t.elements();
        let got = &all[first..first + t.elements()];
        let differs = |(want, got): (&f32, &f32)| ulps(*want, *got) > 1;
        assert!(!values(&want, t.name()).iter().zip(got).any(differs), "{}", t.name());
    }
}

/// A model of transformers may have the experts in two parameters, which get what the experts get one
/// by one.
#[test]
fn joined_experts_are_as_experts() {
    let root = crate::common::tempdir().unwrap();
    let want = expected("qwen3_moe", "mlx-experts");
    let model = parse(base("qwen3_moe")).unwrap();
    let mut tensors = vec![];
    for t in model.tensors() {
        let (name, bytes) = (t.name(), t.bytes().unwrap().into_owned());
        let Some((before, after)) = name.split_once(".experts.") else {
            tensors.push(raw(name, "BF16", t.shape(), bytes));
            continue;
        };
        let (joined, parts) = match after {
            "0.gate_proj.weight" => ("gate_up_proj", &["gate_proj", "up_proj"][..]),
            "0.down_proj.weight" => ("down_proj", &["down_proj"][..]),
            _ => continue,
        };
        let matrix = |e: usize, part: &str| {
            let tensor = model.tensor(&format!("{before}.experts.{e}.{part}.weight"))?;
            Some(tensor.bytes().unwrap().into_owned())
        };
        let experts = (0..).map_while(|e| parts.iter().map(|part| matrix(e, part)).collect());
        let experts: Vec<Vec<Vec<u8>>> = experts.collect();
        let shape = [experts.len(), parts.len() * t.shape()[0], t.shape()[1]];
        let name = format!("{before}.experts.{joined}");
        tensors.push(raw(&name, "BF16", &shape, experts.concat().concat()));
    }
    let joined = root.path().join("joined.safetensors");
    std::fs::write(&joined, file(&tensors, &[])).unwrap();
    let got = merged(&joined, "mlx-experts", TargetDtype::F32, &root.path().join("out"));
    for t in want.tensors() {
        let Some((before, after)) = t.name().split_once(".experts.") else {
            continue;
        };
        let (expert, projection) = after.split_once('.').unwrap();
        let expert: usize = expert.parse().unwrap();
        let (joined, parts, at) = match projection {
            "gate_proj.weight" => ("gate_up_proj", 2, 0),
            "up_proj.weight" => ("gate_up_proj", 2, 1),
            _ => ("down_proj", 1, 0),
        };
        let all = values(&got, &format!("{before}.experts.{joined}"));
        let first = (expert * parts + at) * t.elements();
        let got = &all[first..first + t.elements()];
        let differs = |(want, got): (&f32, &f32)| ulps(*want, *got) > 1;
        assert!(!values(&want, t.name()).iter().zip(got).any(differs), "{}", t.name());
    }
}
