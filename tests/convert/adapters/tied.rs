//! Embeddings and heads: vocabularies that have grown or shrunk, copies that were trained, LoRA of
//! a head that is the embedding, rows of single tokens, and heads that the base does not have.

use std::collections::BTreeMap;

use super::refused::named;
use super::*;

const BOTH: &[&str] = &["tied", "untied"];
const UNTIED: &[&str] = &["untied"];
const TIED: &[&str] = &["tied"];

const ADAPTERS: [(&str, &[&str]); 25] = [
    ("grown", BOTH),
    ("grown-dora", BOTH),
    ("shrunk", BOTH),
    ("saved-as-they-are", BOTH),
    ("copy-head", BOTH),
    ("copy-both", BOTH),
    ("copy-both-grown", BOTH),
    ("copy-tied", BOTH),
    ("copy-tied-grown", BOTH),
    ("lora-head", BOTH),
    ("lora-head-saved", BOTH),
    ("lora-head-dora", BOTH),
    ("lora-both", BOTH),
    ("lora-both-tied", BOTH),
    ("lora-embedding-grown", TIED),
    ("lora-head-copy-embedding", BOTH),
    ("lora-embedding-copy-head", BOTH),
    ("tokens", BOTH),
    ("tokens-tied", BOTH),
    ("tokens-of-both", BOTH),
    ("tokens-of-both-alike", BOTH),
    ("tokens-of-head", BOTH),
    ("tokens-grown", BOTH),
    ("tokens-lora-head", UNTIED),
    ("score", UNTIED),
];

fn tied() -> PathBuf {
    data().join("adapters_tied")
}

/// Base and adapter of a case.
fn open_case(name: &str, base: &str, bases: &[&str]) -> (ParsedModel, Adapter) {
    let directory = match bases.len() {
        1 => name.to_owned(),
        _ => format!("{name}-{base}"),
    };
    (
        parse(tied().join(format!("base-{base}"))).unwrap(),
        Adapter::open(tied().join(directory)).unwrap(),
    )
}

fn config(directory: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(directory.join("config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Tensors, their values, and what `config.json` says are what peft makes of them.
#[test]
fn embeddings_and_heads_are_those_of_peft() {
    let root = crate::common::tempdir().unwrap();
    for (name, bases) in ADAPTERS {
        for base in bases {
            let context = format!("{name} {base}");
            let (model, adapter) = open_case(name, base, bases);
            let out = root.path().join(&context);
            let report = model.convert(&out, options(TargetDtype::F32, vec![adapter]));
            let report = report.unwrap_or_else(|e| panic!("{context}: {e}"));
            let got = parse(&out).unwrap();
            let expected = tied().join(format!("expected-{base}-{name}.safetensors"));
            let want = parse(expected).unwrap();
            let mut names: BTreeMap<&str, &ParsedModel> =
                model.tensors().map(|t| (t.name(), &model)).collect();
            names.extend(want.tensors().map(|t| (t.name(), &want)));
            let stored: Vec<&str> = got.tensors().map(|t| t.name()).collect();
            assert_eq!(stored.len(), names.len(), "{context}: {stored:?}");
            for (tensor, of) in names {
                let (want, got) = (of.tensor(tensor).unwrap(), got.tensor(tensor).unwrap());
                assert_eq!(want.shape(), got.shape(), "{context} {tensor}");
                let pairs = values(of, tensor)
                    .into_iter()
                    .zip(values(&parse(&out).unwrap(), tensor));
                for (want, got) in pairs {
                    assert!(ulps(want, got) <= 1, "{context} {tensor}: {want} {got}");
                }
            }
            let config = config(&out);
            for key in ["vocab_size", "tie_word_embeddings"] {
                assert_eq!(config[key].to_string(), want.metadata()[key], "{context} {key}");
            }
            let notes = report.notes.join("\n");
            let is_noted = notes.contains("config.json");
            let before = self::config(&tied().join(format!("base-{base}")));
            assert_eq!(is_noted, config != before || name == "score", "{context}: {notes}");
        }
    }
}

/// What is merged is encoded in the same pass; the head that was added, too. It is left out with
/// `exclude`, and a container whose config was made of the base before is refused.
#[test]
fn other_outputs() {
    let root = crate::common::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    for (name, base) in [("grown", "tied"), ("copy-head", "tied"), ("score", "untied")] {
        let bases = if name == "score" { UNTIED } else { BOTH };
        let (model, adapter) = open_case(name, base, bases);
        let merged = at(&format!("{name}-merged"));
        let plain = options(TargetDtype::F32, vec![adapter.clone()]);
        model.convert(&merged, plain.clone()).unwrap();
        let mut scheme = ConvertOptions::from("fp8-channel".parse::<ForgetScheme>().unwrap());
        scheme.run.to = TargetDtype::F32;
        let (one, two) = (at(&format!("{name}-one")), at(&format!("{name}-two")));
        parse(&merged).unwrap().convert(&two, &scheme).unwrap();
        model
            .convert(&one, scheme.with_adapters(vec![adapter]))
            .unwrap();
        assert_eq!(config(&one), config(&two), "{name}");
        let (one, two) = (parse(one).unwrap(), parse(two).unwrap());
        assert_eq!(one.tensors().len(), two.tensors().len(), "{name}");
        for t in one.tensors() {
            let same = two.tensor(t.name()).unwrap();
            assert_eq!((t.dtype(), t.shape()), (same.dtype(), same.shape()), "{name}");
            assert!(t.bytes().unwrap() == same.bytes().unwrap(), "{name} {}", t.name());
        }
        if name == "score" {
            let mut without = plain;
            without.exclude = vec!["score.*".to_owned()];
            model.convert(at("without"), without).unwrap();
            let without = parse(at("without")).unwrap();
            assert!(without.tensor("score.weight").is_none());
            assert_eq!(without.tensors().len(), model.tensors().len());
        } else {
            let mut gguf = plain;
            gguf.target = anamnesis::ConvertTarget::Gguf;
            gguf.scope = ModelScope::Tensors;
            model.convert(at(&format!("{name}.gguf")), gguf).unwrap();
        }
    }
}

/// A head that the base stores although it is the embedding once more is left out; another one is
/// an error, as only one of the two would be loaded.
#[test]
fn stored_heads_of_tied_models() {
    let root = crate::common::tempdir().unwrap();
    let base = tied().join("base-tied");
    let write = |head: &[u8]| {
        let model = parse(base.join("model.safetensors")).unwrap();
        let mut tensors: Vec<Raw> = model
            .tensors()
            .map(|t| raw(t.name(), "F32", t.shape(), t.bytes().unwrap().to_vec()))
            .collect();
        tensors.push(raw("lm_head.weight", "F32", &[20, 16], head.to_vec()));
        std::fs::write(root.path().join("model.safetensors"), file(&tensors, &[])).unwrap();
    };
    std::fs::copy(base.join("config.json"), root.path().join("config.json")).unwrap();
    let model = parse(&base).unwrap();
    let embedding = model
        .tensor("model.embed_tokens.weight")
        .unwrap()
        .bytes()
        .unwrap();
    let run = |name: &str, out: &str| {
        let (_, adapter) = open_case(name, "tied", BOTH);
        let out = root.path().join(out);
        let model = parse(root.path().join("model.safetensors")).unwrap();
        let mut options = options(TargetDtype::F32, vec![adapter]);
        options.single_file = true;
        let report = model.convert(&out, options)?;
        Ok::<_, anamnesis::AnamnesisError>((parse(out).unwrap(), report.notes.join("\n")))
    };
    write(&embedding);
    let (got, notes) = run("grown", "grown.safetensors").unwrap();
    assert!(got.tensor("lm_head.weight").is_none(), "{notes}");
    assert!(notes.contains("`lm_head.weight`"), "{notes}");
    let (got, _) = run("copy-head", "head.safetensors").unwrap();
    assert!(got.tensor("lm_head.weight").is_some());
    write(&f32s(&[1.0; 320]));
    for name in ["grown", "lora-head", "copy-head", "tokens"] {
        let error = run(name, "no.safetensors").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
        assert!(error.to_string().contains("tie_word_embeddings"), "{error}");
    }
}

/// The error of merging `tensors` with `settings` into a base of two embeddings and a layer.
#[allow(clippy::needless_pass_by_value)]
fn refusal(head_rows: Option<usize>, settings: serde_json::Value, tensors: &[Raw]) -> String {
    let root = crate::common::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(root.path().join(name), bytes).unwrap();
    let mut base = vec![
        raw("model.embed_tokens.weight", "F32", &[3, 2], f32s(&[1.0; 6])),
        raw("model.q.weight", "F32", &[2, 2], f32s(&[1.0; 4])),
    ];
    base.extend(head_rows.map(|n| raw("lm_head.weight", "F32", &[n, 2], f32s(&vec![2.0; 2 * n]))));
    write("model.safetensors", &file(&base, &[]));
    let config = json!({"tie_word_embeddings": head_rows.is_none(), "vocab_size": 3, "architectures": ["LlamaForCausalLM"]});
    write("config.json", config.to_string().as_bytes());
    let mut all = json!({"peft_type": "LORA", "r": 1, "lora_alpha": 1});
    all.as_object_mut()
        .unwrap()
        .extend(settings.as_object().unwrap().clone());
    let adapter = root.path().join("adapter");
    std::fs::create_dir(&adapter).unwrap();
    std::fs::write(adapter.join("adapter_config.json"), all.to_string()).unwrap();
    std::fs::write(adapter.join("adapter_model.safetensors"), file(tensors, &[])).unwrap();
    let adapter = match Adapter::open(&adapter) {
        Ok(adapter) => adapter,
        Err(error) => return error.to_string(),
    };
    let model = parse(root.path().join("model.safetensors")).unwrap();
    let error = model.plan(options(TargetDtype::F32, vec![adapter])).err();
    error.map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn what_does_not_fit_is_refused() {
    let rows = "model.embed_tokens.token_adapter.trainable_tokens_delta";
    let of_head = "lm_head.token_adapter.trainable_tokens_delta";
    let (embedding, head) = ("model.embed_tokens.weight", "lm_head.weight");
    let tokens = |tokens: serde_json::Value| json!({"trainable_token_indices": tokens});
    let other = |name: &str, shape: &[usize]| {
        let n: usize = shape.iter().product();
        raw(&format!("base_model.model.{name}"), "F32", shape, f32s(&vec![5.0; n]))
    };
    for (head_rows, settings, tensors, what) in [
        // The embedding and the head would have different vocabularies.
        (Some(3), json!({}), vec![named(embedding, &[4, 2])], "has 3 rows"),
        (Some(3), json!({}), vec![named(head, &[2, 2])], "has 3 rows"),
        (Some(3), json!({}), vec![named(embedding, &[4, 2]), named(head, &[5, 2])], "rows"),
        (None, json!({}), vec![named(embedding, &[4, 3])], "is [3, 2]"),
        (None, json!({}), vec![named(embedding, &[0, 2])], "is [3, 2]"),
        // Other weights have no rows of tokens.
        (None, json!({}), vec![named("model.q.weight", &[3, 2])], "is [2, 2]"),
        // Two tensors for one, that are not copies.
        (None, json!({}), vec![named(embedding, &[3, 2]), other(head, &[3, 2])], "other values"),
        (
            None,
            json!({"modules_to_save": ["embed_tokens", "lm_head"], "ensure_weight_tying": true}),
            vec![named(embedding, &[3, 2]), other(head, &[3, 2])],
            "other values",
        ),
        // A module that is not said to be trained is a mistake in a name.
        (None, json!({}), vec![named("score.weight", &[5, 2])], "has no `score.weight`"),
        (None, json!({}), vec![named(rows, &[2, 2])], "`trainable_token_indices`"),
        (None, tokens(json!([0, 3])), vec![named(rows, &[2, 2])], "token 3"),
        (None, tokens(json!([0])), vec![named(rows, &[2, 2])], "1 tokens"),
        (None, tokens(json!([0, 1])), vec![named(rows, &[2, 3])], "is [3, 2]"),
        (None, tokens(json!([0, 0])), vec![named(rows, &[2, 2])], "different numbers"),
        (None, tokens(json!([-1, 0])), vec![named(rows, &[2, 2])], "different numbers"),
        (
            Some(3),
            tokens(json!({"embed_tokens": [0], "lm_head": [1]})),
            vec![named(rows, &[1, 2])],
            "of `lm_head`",
        ),
        // Of one tensor, a token has one row.
        (
            None,
            tokens(json!({"embed_tokens": [0], "lm_head": [0]})),
            vec![named(rows, &[1, 2]), other(of_head, &[1, 2])],
            "another row",
        ),
        (
            None,
            tokens(json!([0])),
            vec![
                named(rows, &[1, 2]),
                named("lm_head.lora_A.weight", &[1, 2]),
                named("lm_head.lora_B.weight", &[3, 1]),
            ],
            "trainable_token_indices",
        ),
        (
            None,
            json!({"use_dora": true}),
            vec![
                named("lm_head.lora_A.weight", &[1, 2]),
                named("lm_head.lora_B.weight", &[3, 1]),
                named("lm_head.lora_magnitude_vector", &[3]),
                named("model.embed_tokens.lora_embedding_A", &[1, 3]),
                named("model.embed_tokens.lora_embedding_B", &[2, 1]),
                named("model.embed_tokens.lora_magnitude_vector", &[2]),
            ],
            "DoRA for both",
        ),
    ] {
        let error = refusal(head_rows, settings.clone(), &tensors);
        assert!(error.contains(what), "{what}, {settings}: `{error}`");
    }
}
