//! Directories as outputs: weights, index, and the files beside them.

#[cfg(unix)]
mod beside;
mod place;

use std::path::{Path, PathBuf};

use anamnesis::{ConvertOptions, RememberOptions, TargetDtype, parse};

use crate::common::directory::{
    CONFIG, KEPT, LEFT_OUT, PLAIN_CONFIG, assert_same_tree, in_one_file, joined, make, names_in,
    placement, shards, tree, write_files, write_shards,
};
use crate::common::{TARGETS, assert_same, raw};

/// A model of `layers` layers in `dir`, as shards and as one file.
fn model(dir: &Path, layers: usize) -> (PathBuf, PathBuf) {
    let shards = shards(layers, 256);
    make(&dir.join("model"), &shards);
    (dir.join("model"), in_one_file(&dir.join("one"), &shards))
}

fn bf16() -> ConvertOptions {
    ConvertOptions::from(TargetDtype::BF16)
}

fn forced() -> ConvertOptions {
    RememberOptions::new(TargetDtype::BF16)
        .with_force(true)
        .into()
}

#[test]
fn weights_are_those_of_the_model() {
    let root = crate::common::tempdir().unwrap();
    let (input, one) = model(root.path(), 4);
    let one = parse(one).unwrap();
    for (target, name) in TARGETS {
        let output = root.path().join(name);
        let report = parse(&input).unwrap().remember(&output, target).unwrap();
        assert_same(&one.remember_to_bytes(target).unwrap(), &joined(&output), name);
        let weights = names_in(&output, ".safetensors");
        let bytes: u64 = weights
            .iter()
            .map(|name| output.join(name).metadata().unwrap().len())
            .sum();
        assert_eq!((report.recovered(), report.output_bytes), (4, bytes));
        let again = parse(&output).unwrap();
        assert!(!again.config().is_quantized());
        assert_same(&joined(&output), &again.remember_to_bytes(target).unwrap(), "read again");
    }
}

#[test]
fn tensors_stay_in_the_shard_of_their_codes() {
    let root = crate::common::tempdir().unwrap();
    let (input, _) = model(root.path(), 3);
    let output = root.path().join("out");
    parse(input)
        .unwrap()
        .remember(&output, TargetDtype::BF16)
        .unwrap();
    let layer = |i: usize| {
        [format!("model.layers.{i}.proj.weight"), format!("model.layers.{i}.norm.weight")]
    };
    let first = [vec!["model.embed_tokens.weight".to_owned()], layer(0).to_vec()].concat();
    let last = [vec!["model.ids".to_owned()], layer(2).to_vec()].concat();
    // The second shard had nothing but scales. Within a shard, wider elements come first if
    // alignment needs it.
    let mut found = placement(&output);
    found.iter_mut().for_each(|names| names.sort());
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    assert_eq!(found, [sorted(first), sorted(layer(1).to_vec()), sorted(last)]);
}

#[test]
fn files_beside_the_weights() {
    let root = crate::common::tempdir().unwrap();
    let (input, _) = model(root.path(), 2);
    let output = root.path().join("out");
    parse(&input)
        .unwrap()
        .remember(&output, TargetDtype::BF16)
        .unwrap();
    let found = tree(&output);
    for (name, text) in KEPT {
        assert_eq!(found[*name], text.as_bytes(), "{name}");
    }
    assert_eq!(String::from_utf8_lossy(&found["config.json"]), PLAIN_CONFIG);
    for (name, _) in LEFT_OUT {
        assert!(!found.contains_key(*name), "{name}");
    }
    let weights = names_in(&output, ".safetensors").len();
    assert_eq!((weights, found.len()), (2, weights + KEPT.len() + 2), "{:?}", found.keys());
    assert_eq!(names_in(root.path(), ""), ["model", "one", "out"]);
    let plain = tree(&input);
    assert_eq!(String::from_utf8_lossy(&plain["config.json"]), CONFIG, "the input is as it was");
}

/// The output's config for an FP8 model with the config `config`.
fn edited(config: &str) -> String {
    let root = crate::common::tempdir().unwrap();
    let tensors = vec![
        raw("a.weight", "F8_E4M3", &[256, 256], vec![0x38; 256 * 256]),
        raw("a.weight_scale_inv", "F32", &[2, 2], crate::common::f32s(&[1.0; 4])),
    ];
    write_shards(&root.path().join("model"), &[tensors]);
    write_files(&root.path().join("model"), &[("config.json", config)]);
    parse(root.path().join("model"))
        .unwrap()
        .remember(root.path().join("out"), TargetDtype::F16)
        .unwrap();
    std::fs::read_to_string(root.path().join("out/config.json")).unwrap()
}

#[test]
fn configs_of_every_kind() {
    let fp8 = r#"{"quant_method": "fp8", "weight_block_size": [128, 128]}"#;
    let check = |config: &str, want: &str| assert_eq!(edited(&config.replace("FP8", fp8)), want);
    check(r#"{"dtype":"float8","quantization_config":FP8}"#, r#"{"dtype":"float16"}"#);
    check(
        r#"{"quantization":{"mode":"x"}, "x": 1.50}"#,
        r#"{"torch_dtype": "float16", "x": 1.50}"#,
    );
    check(
        r#"{"text_config":{"quantization_config":FP8,"x":[1 ,2]},"quantization_config":FP8}"#,
        r#"{"torch_dtype": "float16", "text_config":{"x":[1 ,2]}}"#,
    );
    check(
        r#"{"a":{"b":{"quantization_config":FP8,"x":"}"},"y":2},"z":3,"quantization":{},"quantization_config":FP8,"w":4}"#,
        r#"{"torch_dtype": "float16", "a":{"b":{"x":"}"},"y":2},"z":3,"w":4}"#,
    );
    check(
        r#"{"torch_dtype":null,"text_config":{"torch_dtype":"bfloat16","quantization_config":FP8},"n":NaN}"#,
        r#"{"torch_dtype":"float16","text_config":{"torch_dtype":"float16"},"n":NaN}"#,
    );
    check(
        r#"{"torch_dtype":"x","compression_config":FP8,"v":{"quantization_config":FP8},"quantization_config":FP8}"#,
        r#"{"torch_dtype":"float16","v":{}}"#,
    );
}

/// Copied weights keep their dtypes, whichever output dtype is requested.
#[test]
fn a_model_without_quantization_keeps_its_dtype() {
    let root = crate::common::tempdir().unwrap();
    let input = root.path().join("model");
    write_shards(&input, &[vec![raw("x", "F32", &[1], vec![1; 4])]]);
    let config = "{\"quantization\": null, \"torch_dtype\": \"float32\", \"text_config\": {\"dtype\": \"float32\"}}";
    write_files(&input, &[("config.json", config)]);
    parse(&input)
        .unwrap()
        .remember(root.path().join("out"), TargetDtype::BF16)
        .unwrap();
    let found = tree(&root.path().join("out"));
    let want = "{\"torch_dtype\": \"float32\", \"text_config\": {\"dtype\": \"float32\"}}";
    assert_eq!(String::from_utf8_lossy(&found["config.json"]), want);
    write_files(&input, &[("config.json", "{\"x\": 1}")]);
    parse(&input)
        .unwrap()
        .convert(root.path().join("out"), forced())
        .unwrap();
    assert_eq!(std::fs::read_to_string(root.path().join("out/config.json")).unwrap(), "{\"x\": 1}");
}

#[cfg(unix)]
#[test]
fn links_out_of_the_directory() {
    use std::os::unix::fs::symlink;
    let root = crate::common::tempdir().unwrap();
    let (input, _) = model(root.path(), 2);
    write_files(root.path(), &[("secret.txt", "secret"), ("elsewhere/more.txt", "secret")]);
    symlink(root.path().join("secret.txt"), input.join("extra/file-link")).unwrap();
    symlink(root.path().join("elsewhere"), input.join("directory-link")).unwrap();
    symlink("nowhere", input.join("dangling-link")).unwrap();
    symlink("notes.txt", input.join("extra/inner-link")).unwrap();
    let output = root.path().join("out");
    let report = parse(&input)
        .unwrap()
        .remember(&output, TargetDtype::BF16)
        .unwrap();
    let found = tree(&output);
    assert_eq!(found["extra/inner-link"], found["extra/notes.txt"]);
    assert!(!output.join("extra/inner-link").is_symlink());
    for name in ["file-link", "directory-link", "dangling-link"] {
        assert!(report.notes.iter().any(|note| note.contains(name)), "{name}: {:?}", report.notes);
        assert!(found.keys().all(|key| !key.contains(name)), "{name}");
    }
    assert!(found.values().all(|bytes| bytes != b"secret"));
}

#[test]
fn shards_of_a_size() {
    let root = crate::common::tempdir().unwrap();
    let (input, one) = model(root.path(), 4);
    for (from, size) in [(&input, 250_000), (&input, 1), (&one, 250_000), (&input, 1 << 40)] {
        let output = root.path().join("out");
        let model = parse(from).unwrap();
        model
            .convert(&output, forced().with_max_shard_size(size))
            .unwrap();
        let files = placement(&output);
        let tensors = |names: &[String]| -> u64 {
            let lens = names.iter().map(|name| {
                parse(&output)
                    .unwrap()
                    .tensor(name)
                    .unwrap()
                    .bytes()
                    .unwrap()
                    .len()
            });
            lens.sum::<usize>() as u64
        };
        assert!(
            files
                .iter()
                .all(|names| names.len() == 1 || tensors(names) <= size),
            "{files:?}"
        );
        assert_eq!(files.len() == 1, size == 1 << 40);
        assert_eq!(files.concat().len() == files.len(), size == 1);
        assert_same(
            &parse(&one)
                .unwrap()
                .remember_to_bytes(TargetDtype::BF16)
                .unwrap(),
            &joined(&output),
            "sizes",
        );
        // From a single file, the directory gets the files beside that file: none.
        assert_eq!(output.join("tokenizer.json").exists(), from == &input);
    }
}

#[test]
fn thread_count_does_not_matter() {
    let root = crate::common::tempdir().unwrap();
    let (input, _) = model(root.path(), 4);
    let made = |threads: usize| {
        let output = root.path().join(threads.to_string());
        let options = RememberOptions::new(TargetDtype::BF16).with_threads(threads);
        parse(&input).unwrap().remember(&output, options).unwrap();
        tree(&output)
    };
    let one = made(1);
    for threads in [2, 4, 9] {
        assert_same_tree(&one, &made(threads), &format!("{threads} threads"));
    }
}

#[test]
fn selected_tensors() {
    let root = crate::common::tempdir().unwrap();
    let (input, _) = model(root.path(), 3);
    let model = parse(input).unwrap();
    let made = |include: &[&str], exclude: &[&str]| {
        let mut options = forced();
        options.include = include.iter().map(|text| (*text).to_owned()).collect();
        options.exclude = exclude.iter().map(|text| (*text).to_owned()).collect();
        let output = root.path().join("out");
        model.convert(&output, options).map(|_| {
            let mut names = placement(&output).concat();
            names.sort();
            names
        })
    };
    let layer = |i: usize| {
        [format!("model.layers.{i}.norm.weight"), format!("model.layers.{i}.proj.weight")]
    };
    assert_eq!(made(&["*.layers.1.*"], &[]).unwrap(), layer(1));
    assert_eq!(made(&["*.layers.?.*"], &["re:.*[02].*"]).unwrap(), layer(1));
    assert_eq!(made(&[r"re:model\.(ids|embed)"], &["*.weight"]).unwrap(), ["model.ids"]);
    assert_eq!(
        made(&["*.layers.0.*", "model.layers.2.*"], &["*.norm.*"])
            .unwrap()
            .len(),
        2
    );
    assert_eq!(made(&[], &["*.proj.weight"]).unwrap().len(), 5);
    let before = tree(&root.path().join("out"));
    for (include, exclude) in
        [(&["layers"][..], &[][..]), (&[], &["*"]), (&["model.ids"], &["re:model"])]
    {
        let error = made(include, exclude).unwrap_err().to_string();
        assert!(error.contains("no tensor is left"), "{error}");
    }
    assert!(
        made(&["re:("], &[])
            .unwrap_err()
            .to_string()
            .contains("re:(")
    );
    assert_same_tree(&before, &tree(&root.path().join("out")), "a refusal changes nothing");
}
