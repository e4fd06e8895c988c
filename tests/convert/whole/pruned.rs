//! Models without some of their layers: the GGUF file of such a directory is that which the same layers
//! are taken out of.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use anamnesis::{AnamnesisError, ConvertOptions, ConvertTarget, NameChanges, parse};
use serde_json::Value;

use super::{metadata, models, tensors, to_gguf};
use crate::common::data;

/// Takes `layers` out of `from`.
fn prune(
    from: &Path,
    layers: RangeInclusive<usize>,
    to: &Path,
    target: ConvertTarget,
) -> anamnesis::Result<()> {
    let names = NameChanges::default().with_prune_layers(layers);
    let options = ConvertOptions::from(target).with_names(names);
    parse(from)?.convert(to, options).map(drop)
}

fn config(directory: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(directory.join("config.json")).unwrap()).unwrap()
}

fn layers(config: &Value) -> Option<usize> {
    let fields = ["num_hidden_layers", "n_layer", "n_layers"];
    fields
        .iter()
        .find_map(|field| Some(config[*field].as_u64()? as usize))
}

#[test]
fn directories_and_files_lose_the_same_layers() {
    let (mut equal, mut refused, mut unknown) = (0, 0, 0);
    for model in models() {
        let Some(layers) = layers(&config(&model.join("hf"))) else {
            continue;
        };
        for layer in [0, layers - 1] {
            let directory = crate::common::tempdir().unwrap();
            let at = |name: &str| directory.path().join(name);
            std::fs::create_dir(at("b")).unwrap();
            let gguf = to_gguf(&model.join("hf"), directory.path());
            let of_file = prune(&gguf, layer..=layer, &at("c.gguf"), ConvertTarget::Gguf);
            let hf = at("hf");
            let of_directory =
                prune(&model.join("hf"), layer..=layer, &hf, ConvertTarget::Safetensors);
            if let Err(AnamnesisError::Unsupported { detail, .. }) = &of_directory
                && detail.contains("it is not known what else")
            {
                assert!(
                    of_file
                        .unwrap_err()
                        .to_string()
                        .contains("it is not known what else")
                );
                unknown += 1;
                continue;
            }
            of_directory.unwrap();
            // llama.cpp goes by the number of a layer where transformers has a list, or by how many
            // layers there are.
            let again = parse(&hf)
                .unwrap()
                .convert(at("b/model.gguf"), ConvertTarget::Gguf);
            if again.is_err() || of_file.is_err() {
                let what = format!("{} {layer}: {again:?} {of_file:?}", model.display());
                assert!(again.is_err(), "{what}");
                refused += 1;
                continue;
            }
            let (a, b) = (at("b/model.gguf"), at("c.gguf"));
            assert!(tensors(&a) == tensors(&b), "{} {layer}", model.display());
            let [a, b] = [a, b].map(|path| metadata(&path));
            let differing: BTreeMap<_, _> = a
                .iter()
                .filter(|(key, value)| b.get(*key) != Some(*value))
                .collect();
            assert!(
                differing.is_empty() && a.len() == b.len(),
                "{} {layer}: {differing:?}",
                model.display()
            );
            equal += 1;
        }
    }
    assert!(equal >= 85 && refused >= 4 && unknown >= 50, "{equal} {refused} {unknown}");
}

#[test]
fn what_goes_by_numbers_of_layers_is_refused() {
    let directory = crate::common::tempdir().unwrap();
    let llama = data().join("whole/llama/hf");
    let case = directory.path().join("case");
    let run = |change: &dyn Fn(&mut Value), layers: RangeInclusive<usize>| {
        let _ = std::fs::remove_dir_all(&case);
        std::fs::create_dir(&case).unwrap();
        for name in ["model.safetensors", "config.json"] {
            std::fs::copy(llama.join(name), case.join(name)).unwrap();
        }
        let mut changed = config(&case);
        change(&mut changed);
        std::fs::write(case.join("config.json"), changed.to_string()).unwrap();
        let output = directory.path().join("out");
        let _ = std::fs::remove_dir_all(&output);
        let done = prune(&case, layers, &output, ConvertTarget::Safetensors);
        done.map(|()| config(&output)).map_err(|e| e.to_string())
    };
    let refused = |change: &dyn Fn(&mut Value), what: &str| {
        let error = run(change, 0..=0).unwrap_err();
        assert!(error.contains(what), "{error}");
    };
    refused(&|config| config["own_list"] = serde_json::json!([1, 2]), "own_list");
    refused(
        &|config| config["skips"] = serde_json::json!(["model.layers.1.mlp"]),
        "model.layers.1.mlp",
    );
    refused(
        &|config| config["skips"] = serde_json::json!({ "re:.*layers\\.[01]\\.": 1 }),
        "names one",
    );
    refused(
        &|config| config["vision_config"] = serde_json::json!({ "num_hidden_layers": 2 }),
        "vision_config",
    );
    refused(
        &|config| config["architectures"] = serde_json::json!(["Llama4ForCausalLM"]),
        "it is not known",
    );
    refused(
        &|config| config["scale_attn_by_inverse_layer_idx"] = true.into(),
        "computes by its number",
    );
    let wrong = |layers| run(&|_| (), layers).unwrap_err();
    assert!(wrong(2..=2).contains("the layers 0 to 1"));
    assert!(wrong(0..=1).contains("no layer is left"));
    let lists = |config: &mut Value| {
        config["layer_types"] = serde_json::json!(["a", "b"]);
        config["mlp_only_layers"] = serde_json::json!([0, 1]);
        config["first_k_dense_replace"] = 1.into();
    };
    let left = run(&lists, 0..=0).unwrap();
    let expected = serde_json::json!([1, ["b"], [0], 0]);
    let found = ["num_hidden_layers", "layer_types", "mlp_only_layers", "first_k_dense_replace"];
    assert_eq!(
        found
            .map(|field| left[field].clone())
            .into_iter()
            .collect::<Value>(),
        expected
    );
}
