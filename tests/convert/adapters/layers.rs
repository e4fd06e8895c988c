//! Adapters of convolutions, of biases and of stacks of experts that do not fit, and stacks that
//! are quantized. What fits is compared with PEFT in `values_are_those_of_peft`.

use super::refused::{named, refusal_by};
use super::*;

/// Tensors of a base, all 1.
fn base_of(tensors: &[(&str, &[usize])]) -> Vec<Raw> {
    let tensor = |(name, shape): &(&str, &[usize])| {
        raw(name, "F32", shape, f32s(&vec![1.0; shape.iter().product()]))
    };
    tensors.iter().map(tensor).collect()
}

fn pair(module: &str, a: &[usize], b: &[usize]) -> Vec<Raw> {
    vec![named(&format!("{module}.lora_A.weight"), a), named(&format!("{module}.lora_B.weight"), b)]
}

#[test]
fn convolutions_that_do_not_fit_are_errors() {
    let base = base_of(&[("c.weight", &[6, 4, 3, 2]), ("l.weight", &[6, 4, 5])]);
    let refusal = |tensors: &[Raw]| refusal_by(&base, tensors, &json!({"r": 2}));
    assert_eq!(refusal(&pair("c", &[2, 4, 3, 2], &[6, 2, 1, 1])), "");
    assert_eq!(refusal(&pair("l", &[2, 4, 5], &[6, 2, 1])), "");
    for (module, a, b, what) in [
        // Of the size of B there is no product.
        ("c", &[2, 4, 3, 2][..], &[6, 2, 3, 2][..], "convolution of any size and one of size 1"),
        ("c", &[2, 4, 3, 2], &[6, 2], "convolution of any size"),
        ("c", &[2, 24], &[6, 2], "`c.weight` is [6, 4, 3, 2]"),
        ("c", &[2, 4, 2, 3], &[6, 2, 1, 1], "`c.weight` is [6, 4, 3, 2]"),
        ("c", &[3, 4, 3, 2], &[6, 3, 1, 1], "rank is 3, and 2"),
        ("c", &[2, 4, 3, 2], &[6, 3, 1, 1], "rank is 2, and that of"),
        // Two groups, for which PEFT does not merge: A has the channels of all groups, B the ranks
        // of one.
        ("c", &[2, 8, 3, 2], &[6, 1, 1, 1], "rank is 2, and that of"),
        ("l", &[2, 4, 5, 2], &[6, 2, 1, 1], "`l.weight` is [6, 4, 5]"),
        ("l", &[2, 4], &[6, 2], "`l.weight` is [6, 4, 5]"),
        ("l", &[2], &[6], "neither matrices"),
    ] {
        let error = refusal(&pair(module, a, b));
        assert!(error.contains(what), "{what}: `{error}`");
    }
}

/// PEFT saves the `fan_in_fan_out` of the last module: a square weight can be of another class.
#[test]
fn classes_of_square_weights() {
    let (in_out, out_in) = ([6.0, 8.0, 11.0, 15.0], [6.0, 11.0, 8.0, 15.0]);
    for (module, others, is_transposed, expected) in [
        // The module beside it is a `Conv1D`, whatever the settings say, or a linear layer.
        ("h.attn.c_proj", Some(("h.attn.c_attn", [2, 6])), false, Ok(in_out)),
        ("h.attn.c_proj", Some(("h.attn.c_attn", [2, 6])), true, Ok(in_out)),
        ("h.attn.c_proj", Some(("h.attn.c_attn", [6, 2])), true, Ok(out_in)),
        ("h.attn.c_proj", Some(("h.attn.c_attn", [6, 2])), false, Ok(out_in)),
        // A linear layer beside a `Conv1D`.
        ("h.attn.q_proj", Some(("h.attn.c_attn", [2, 6])), false, Ok(out_in)),
        ("h.attn.q_proj", Some(("h.attn.c_attn", [2, 6])), true, Err("`fan_in_fan_out`")),
        ("h.mlp.c_fc", None, true, Ok(in_out)),
        ("encoder.query", None, false, Ok(out_in)),
        ("encoder.query", None, true, Err("`fan_in_fan_out`")),
    ] {
        let root = crate::common::tempdir().unwrap();
        let base = root.path().join("base.safetensors");
        let weight = format!("{module}.weight");
        let other = others.map(|(name, shape)| (format!("{name}.weight"), shape));
        let mut tensors: Vec<(&str, &[usize])> = vec![(&weight, &[2, 2])];
        tensors.extend(
            other
                .iter()
                .map(|(name, shape)| (name.as_str(), shape.as_slice())),
        );
        std::fs::write(&base, file(&base_of(&tensors), &[])).unwrap();
        let settings =
            json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "fan_in_fan_out": is_transposed});
        let config = root.path().join("adapter_config.json");
        std::fs::write(config, settings.to_string()).unwrap();
        let factor = |end: &str, shape: &[usize], values: &[f32]| {
            let name = format!("base_model.model.{module}.lora_{end}.weight");
            raw(&name, "F32", shape, f32s(values))
        };
        let factors = [factor("A", &[1, 2], &[1.0, 2.0]), factor("B", &[2, 1], &[5.0, 7.0])];
        let adapter = root.path().join("adapter_model.safetensors");
        std::fs::write(adapter, file(&factors, &[])).unwrap();
        let adapter = Adapter::open(root.path()).unwrap();
        let out = root.path().join("out.safetensors");
        let options = options(TargetDtype::F32, vec![adapter]);
        let result = parse(&base).unwrap().convert(&out, options);
        match (result, expected) {
            (Ok(_), Ok(expected)) => {
                let model = parse(&out).unwrap();
                assert_eq!(values(&model, &weight), expected, "{module}, {others:?}");
            }
            (Err(error), Err(word)) => assert!(error.to_string().contains(word), "{error}"),
            (result, _) => panic!("{module}, {others:?}: {result:?}"),
        }
    }
}

/// DoRA gives lengths to the columns of weights `[in, out]`, and a column of zeros has no
/// direction.
#[test]
fn columns_of_zeros_get_no_length() {
    let zeros = |name: &str, shape: &[usize]| {
        raw(name, "F32", shape, vec![0; 4 * shape.iter().product::<usize>()])
    };
    let tensors = [
        named("q.lora_A.weight", &[1, 3]),
        zeros("base_model.model.q.lora_B.weight", &[2, 1]),
        named("q.lora_magnitude_vector", &[2]),
    ];
    let dora = json!({"use_dora": true});
    let base = [zeros("q.weight", &[3, 2])];
    let error = refusal_by(&base, &tensors, &dora);
    assert!(error.contains("`q.weight`: column 0 is to be 0.5"), "{error}");
    assert_eq!(refusal_by(&base_of(&[("q.weight", &[3, 2])]), &tensors, &dora), "");
}

#[test]
fn biases_that_do_not_fit_are_errors() {
    let base = base_of(&[("q.weight", &[3, 2]), ("q.bias", &[3]), ("k.weight", &[3, 2])]);
    let of = |module: &str, bias: &[usize]| {
        let mut tensors = pair(module, &[1, 2], &[3, 1]);
        tensors.push(named(&format!("{module}.lora_B.bias"), bias));
        tensors
    };
    let trained = |bias: &str| {
        let mut tensors = pair("q", &[1, 2], &[3, 1]);
        tensors.push(named(bias, &[3]));
        tensors
    };
    let (on, all) = (json!({"lora_bias": true}), json!({"bias": "all"}));
    let lora_only = json!({"bias": "lora_only"});
    assert_eq!(refusal_by(&base, &of("q", &[3]), &on), "");
    assert_eq!(refusal_by(&base, &trained("q.base_layer.bias"), &all), "");
    // As releases saved it that had no `base_layer`.
    assert_eq!(refusal_by(&base, &trained("q.bias"), &lora_only), "");
    assert_eq!(refusal_by(&base, &pair("k", &[1, 2], &[3, 1]), &all), "");
    let plain = || pair("q", &[1, 2], &[3, 1]);
    for (tensors, settings, what) in [
        (of("q", &[2]), &on, "`q.bias` is [3]"),
        (of("q", &[1, 3]), &on, "it is [1, 3]"),
        (of("k", &[3]), &on, "no `k.bias`"),
        (plain(), &on, "no `lora_B.bias`"),
        (of("q", &[3]), &json!({}), "`lora_bias`"),
        (vec![named("q.lora_B.bias", &[3])], &on, "one of the two factors"),
        (plain(), &all, "no `q.bias`"),
        (plain(), &lora_only, "no `q.bias`"),
    ] {
        let error = refusal_by(&base, &tensors, settings);
        assert!(error.contains(what), "{what}: `{error}`");
    }
}

#[test]
fn stacks_that_do_not_fit_are_errors() {
    let base = base_of(&[
        ("a.e.up", &[3, 6, 4]),
        ("a.e.down", &[3, 4, 5]),
        ("a.e.square", &[3, 4, 4]),
        ("a.e.copy", &[3, 4, 5]),
        ("a.e.router.weight", &[3, 4]),
        ("b.e.square", &[3, 4, 4]),
        ("b.e.weight", &[2, 2, 2, 2]),
    ]);
    let named_in = |names: &[&str]| json!({"r": 2, "target_parameters": names});
    let one = |a, b| pair("a.e", a, b);
    let both = |first: Vec<Raw>, second: [&[usize]; 2]| {
        [first, pair("a.e.base_layer", second[0], second[1])].concat()
    };
    let up = || one(&[6, 4], &[6, 6]);
    let down: [&[usize]; 2] = [&[6, 5], &[4, 6]];
    let square: [&[usize]; 2] = [&[6, 4], &[4, 6]];
    assert_eq!(refusal_by(&base, &up(), &named_in(&["e.up"])), "");
    assert_eq!(refusal_by(&base, &one(&[6, 6], &[4, 6]), &named_in(&["a.e.up"])), "");
    assert_eq!(refusal_by(&base, &both(up(), down), &named_in(&["e.up", "e.down"])), "");
    assert_eq!(refusal_by(&base, &both(up(), square), &named_in(&["e.up", "a.e.square"])), "");
    let cases = [
        // Nothing names the parameter, and the module has no weight of its own.
        (up(), named_in(&[]), "no `a.e.weight`"),
        (up(), named_in(&["x.up"]), "no `a.e.weight`"),
        (up(), named_in(&["p"]), "no `a.e.weight`"),
        (up(), named_in(&["e.up", "e.down"]), "1 pairs of factors"),
        (both(up(), down), named_in(&["e.up"]), "2 pairs of factors"),
        (one(&[6, 4], &[5, 6]), named_in(&["e.up"]), "none or several"),
        (both(one(down[0], down[1]), down), named_in(&["e.down", "e.copy"]), "none or several"),
        (one(square[0], square[1]), named_in(&["a.e.square"]), "as many rows as columns"),
        (one(&[4, 4], &[6, 4]), named_in(&["e.up"]), "4 rows are not of 3 matrices"),
        (one(&[9, 4], &[6, 9]), named_in(&["e.up"]), "rank is 3, and 2"),
        (one(&[6, 4], &[6, 3]), named_in(&["e.up"]), "rank is 6, and that of"),
        (pair("b.e", &[2, 2], &[2, 2]), named_in(&["b.e.weight"]), "none or several"),
        (one(&[6, 4, 1], &[6, 6, 1]), named_in(&["e.up"]), "are matrices"),
        (vec![named("a.e.lora_A.weight", &[6, 4])], named_in(&["e.up"]), "one of the two factors"),
        (
            [up(), vec![named("a.e.lora_B.bias", &[6])]].concat(),
            json!({"r": 2, "lora_bias": true, "target_parameters": ["e.up"]}),
            "`lora_bias`",
        ),
        (
            [up(), vec![named("a.e.lora_magnitude_vector", &[6])]].concat(),
            json!({"r": 2, "use_dora": true, "target_parameters": ["e.up"]}),
            "DoRA is merged into matrices",
        ),
    ];
    for (tensors, settings, what) in cases {
        let error = refusal_by(&base, &tensors, &settings);
        assert!(error.contains(what), "{what}: {settings}: `{error}`");
    }
}

/// A stack that is stored as MXFP4 gets what its decoded values get.
/// Parameters that transformers joins of experts, which the model has apart.
#[test]
fn experts_apart_that_do_not_fit_are_errors() {
    let names = |experts: usize| {
        let parts: [(&str, &[usize]); 3] =
            [("gate_proj", &[3, 4]), ("up_proj", &[3, 4]), ("down_proj", &[4, 3])];
        let all = (0..experts).flat_map(move |e| {
            parts.map(|(part, shape)| (format!("a.e.{e}.{part}.weight"), shape))
        });
        all.collect::<Vec<_>>()
    };
    let base = |experts: usize, without: &str| {
        let mut names = names(experts);
        names.retain(|(name, _)| name != without);
        let names: Vec<_> = names.iter().map(|(name, s)| (name.as_str(), *s)).collect();
        base_of(&names)
    };
    let named_in = |names: &[&str]| json!({"r": 2, "target_parameters": names});
    let up = || pair("a.e", &[4, 4], &[6, 4]);
    let down = || pair("a.e.base_layer", &[4, 3], &[4, 4]);
    let both = || [up(), down()].concat();
    let all = named_in(&["e.gate_up_proj", "e.down_proj"]);
    assert_eq!(refusal_by(&base(2, ""), &both(), &all), "");
    let last = "a.e.1.up_proj.weight";
    for (base, tensors, settings, what) in [
        (base(2, ""), up(), all.clone(), "1 pairs of factors"),
        (base(2, ""), both(), named_in(&["e.gate_up_proj"]), "2 pairs of factors"),
        (base(2, ""), up(), named_in(&["e.up_proj"]), "no `a.e.weight`"),
        (base(2, ""), up(), named_in(&[]), "no `a.e.weight`"),
        // The adapter is one of more experts, or of fewer.
        (base(3, ""), both(), all.clone(), "4 rows are not of 3 matrices"),
        (base(4, ""), both(), all.clone(), "rank is 1, and 2"),
        (base(2, last), both(), all.clone(), "rank is 4, and 2"),
        (base(0, ""), both(), all.clone(), "no `a.e"),
        (
            base(2, ""),
            pair("a.e", &[4, 3], &[4, 4]),
            named_in(&["e.gate_up_proj"]),
            "none or several",
        ),
        (
            base(2, ""),
            [up(), vec![named("a.e.lora_B.bias", &[6])]].concat(),
            json!({"r": 2, "lora_bias": true, "target_parameters": ["e.gate_up_proj"]}),
            "`lora_bias`",
        ),
    ] {
        let error = refusal_by(&base, &tensors, &settings);
        assert!(error.contains(what), "{what}: {settings}: `{error}`");
    }
}

#[test]
fn quantized_stacks_are_merged() {
    let root = crate::common::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let stored = parse(data().join("mxfp4/tiny_gpt_oss/model")).unwrap();
    stored
        .convert(at("decoded"), options(TargetDtype::F32, vec![]))
        .unwrap();
    let decoded = parse(at("decoded")).unwrap();
    let module = "model.layers.0.mlp.experts";
    let mut factors = vec![];
    for (key, weight) in
        [(module.to_owned(), "down_proj"), (format!("{module}.base_layer"), "gate_up_proj")]
    {
        let &[n, rows, cols] = decoded
            .tensor(&format!("{module}.{weight}"))
            .unwrap()
            .shape()
        else {
            panic!("{weight}");
        };
        let numbers = |shape: [usize; 2]| {
            let values = (0..shape[0] * shape[1]).map(|i| (i * 37 % 101) as f32 / 64.0 - 0.7);
            f32s(&values.collect::<Vec<_>>())
        };
        for (half, shape) in [("A", [2 * n, rows]), ("B", [cols, 2 * n])] {
            let name = format!("base_model.model.{key}.lora_{half}.weight");
            factors.push(raw(&name, "F32", &shape, numbers(shape)));
        }
    }
    let config = json!({
        "peft_type": "LORA", "r": 2, "lora_alpha": 3, "target_parameters": ["experts.down_proj", "experts.gate_up_proj"],
    });
    std::fs::create_dir(at("adapter")).unwrap();
    std::fs::write(at("adapter/adapter_config.json"), config.to_string()).unwrap();
    std::fs::write(at("adapter/adapter_model.safetensors"), file(&factors, &[])).unwrap();
    for (model, out) in [(&stored, "one"), (&decoded, "two")] {
        let adapters = vec![Adapter::open(at("adapter")).unwrap()];
        model
            .convert(at(out), options(TargetDtype::F32, adapters))
            .unwrap();
    }
    let (one, two) = (parse(at("one")).unwrap(), parse(at("two")).unwrap());
    let mut changed = 0;
    for t in one.tensors() {
        let bytes = |model: &ParsedModel| {
            model
                .tensor(t.name())
                .unwrap()
                .bytes()
                .unwrap()
                .into_owned()
        };
        assert!(bytes(&one) == bytes(&two), "{}", t.name());
        changed += usize::from(bytes(&one) != bytes(&decoded));
    }
    assert_eq!(changed, 2);
}
