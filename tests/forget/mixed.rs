//! Models whose tensors have several schemes (`Forget::schemes`).

use std::collections::BTreeMap;
use std::path::Path;

use anamnesis::{ConvertOptions, Forget, ForgetScheme, TargetDtype, parse};

use crate::common::directory::{write_files, write_shards};
use crate::common::forget::{PLAIN, Stored, every_scheme, shards, stored_at, values_at};
use crate::common::{effort, tempdir};

/// The weight that gets another scheme, and a part of the names of what is stored of it.
const GIVEN: [&str; 2] = ["model.layers.1.mlp.up_proj.weight", "layers.1.mlp.up_proj."];

fn forget(scheme: &str) -> Forget {
    scheme.parse::<ForgetScheme>().unwrap().into()
}

/// Encodes the model at `input` and decodes it: what is stored, and its values.
fn both_ways(
    input: &Path,
    forget: Forget,
) -> (BTreeMap<String, Stored>, BTreeMap<String, Vec<f32>>) {
    let directory = tempdir().unwrap();
    let [encoded, decoded] = ["encoded", "decoded"].map(|name| directory.path().join(name));
    let model = parse(input).unwrap();
    model
        .forget(&encoded, ConvertOptions::from(forget))
        .unwrap();
    let back = parse(&encoded).unwrap();
    back.remember(&decoded, TargetDtype::F32).unwrap();
    (stored_at(&encoded), values_at(&decoded))
}

/// Of all pairs of schemes that stand beside each other, each tensor has the bytes and the values of
/// its own: the config says which.
#[test]
fn each_tensor_is_that_of_its_scheme() {
    let directory = tempdir().unwrap();
    let input = directory.path().join("model");
    write_shards(&input, &shards(2, 128, 256));
    write_files(&input, &[("config.json", PLAIN)]);
    let has_mixtures = |scheme: &String| scheme.parse::<ForgetScheme>().unwrap().has_mixtures();
    let schemes: Vec<String> = every_scheme().into_iter().filter(has_mixtures).collect();
    let alone: Vec<_> = schemes
        .iter()
        .map(|scheme| both_ways(&input, forget(scheme)))
        .collect();
    let (mut pairs, step) = (0, effort([4, 1, 1]));
    for (scheme, (stored, values)) in schemes.iter().zip(&alone) {
        for (other, (other_stored, other_values)) in schemes.iter().zip(&alone) {
            let mut mixed = forget(scheme);
            if mixed.give(GIVEN[0], other).is_err() {
                continue;
            }
            pairs += 1;
            if pairs % step != 0 {
                continue;
            }
            let found = both_ways(&input, mixed);
            let of_other = |name: &String| name.contains(GIVEN[1]);
            let mut wanted = (stored.clone(), values.clone());
            wanted.0.retain(|name, _| !of_other(name));
            wanted.1.retain(|name, _| !of_other(name));
            let given = other_stored.iter().filter(|(name, _)| of_other(name));
            wanted
                .0
                .extend(given.map(|(name, t)| (name.clone(), t.clone())));
            let given = other_values.iter().filter(|(name, _)| of_other(name));
            wanted
                .1
                .extend(given.map(|(name, t)| (name.clone(), t.clone())));
            let names = |map: &BTreeMap<String, Stored>| map.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&found.0), names(&wanted.0), "{scheme} {other}");
            assert!(found.0 == wanted.0, "{scheme} {other}: what is stored");
            assert!(found.1 == wanted.1, "{scheme} {other}: values");
        }
    }
    assert!(pairs > 200, "{pairs}");
}

#[test]
fn what_has_no_place_is_refused() {
    let refused = |scheme: &str, pattern: &str, kind: &str, what: &str| {
        let mut forget = forget(scheme);
        let given = forget.give(pattern, kind);
        let error = given.and_then(|()| {
            let model = anamnesis::parse_bytes(crate::common::forget::whole(1, 64, 256))?;
            crate::common::forget::encoded(&model, forget.into()).map(drop)
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    refused("w4a16", "*", "nf4", "of its library are");
    refused("w4a16", "*", "mlx-4bit", "of its library are");
    refused("nf4", "*", "fp4", "stand beside others");
    refused("mlx-4bit", "*", "mlx-mixed-2-6", "has no tensors of it");
    refused("w4a16", "*", "q8_0", "has no tensors of it");
    refused("w4a16", "*.qproj.*", "w8a16", "no tensor has a name like");
    refused("mlx-4bit", "model.layers.7.mlp.up_proj.weight", "mlx-8bit", "no tensor has a name");
    refused("gguf:q4_k_m", "*", "w4a16", "types of ggml");
    // The field takes what `give` refuses.
    let mut direct = forget("w4a16");
    direct.schemes.push(("*".to_owned(), ForgetScheme::NF4));
    let model = anamnesis::parse_bytes(crate::common::forget::whole(1, 64, 256)).unwrap();
    let error = crate::common::forget::encoded(&model, direct.into()).unwrap_err();
    assert!(error.to_string().contains("of its library are"), "{error}");
}
