//! Manifests that are malformed, and blobs that are missing or cut.

use std::process::Command;

use serde_json::json;

use super::{HEX, LLAMA, MODEL, Store, TENSOR, demo, good, layer, manifest, model};

#[test]
fn layers_that_are_not_one_model() {
    let store = Store::new();
    let digest = format!("sha256:{HEX}");
    let license = || layer("application/vnd.ollama.image.license", &digest, 1);
    let tensor = || layer(TENSOR, &digest, 1);
    let two = "2 of `application/vnd.ollama.image.model`";
    for (layers, found) in [
        (vec![], "no layers"),
        (vec![license()], "1 of `application/vnd.ollama.image.license`"),
        (vec![model(), model(), license()], two),
        (vec![model(), tensor()], "1 of `application/vnd.ollama.image.tensor`"),
        (vec![json!({})], "1 of ``"),
    ] {
        store.add(LLAMA, &manifest(&layers));
        store.fails("ollama:llama3", 6, &["not one file", "llama3", found]);
    }
    // The layers are read, and this one is of another size.
    store.add(LLAMA, &manifest(&[tensor(), tensor(), license()]));
    store.fails("ollama:llama3", 3, &["layer `", "bytes of 1: truncated"]);
    // Models that only run remotely have such a manifest.
    for text in [r#"{"schemaVersion": 2, "layers": null}"#, "{}"] {
        store.add_text(LLAMA, text);
        store.fails("ollama:llama3", 6, &["no layers"]);
    }
}

#[test]
fn malformed_manifests() {
    let store = Store::new();
    for text in ["", "[1", "null", "7", r#"{"layers": 7}"#, r#"{"layers": [7]}"#, "\u{0}"] {
        store.add_text(LLAMA, text);
        store.fails("ollama:llama3", 3, &["parse error", "llama3"]);
    }
    let mut negative = model();
    negative["size"] = json!(-1);
    store.add(LLAMA, &manifest(&[negative]));
    store.fails("ollama:llama3", 3, &["parse error", "llama3"]);
    // Nested deeply enough to overflow the stack of a recursive parser.
    for key in ["layers", "other"] {
        store.add_text(LLAMA, &format!("{{\"{key}\": {}", "[".repeat(1_000_000)));
        store.fails("ollama:llama3", 3, &["parse error", "llama3"]);
    }

    let mut text = good().to_string();
    text.push_str(&" ".repeat((1 << 20) - text.len()));
    store.add_text(LLAMA, &text);
    store.finds("ollama:llama3");
    store.add_text(LLAMA, &(text + " "));
    store.fails("ollama:llama3", 4, &["OLLAMA_MAX_MANIFEST_BYTES", "llama3"]);

    std::fs::create_dir_all(store.manifest("registry.ollama.ai/library/folder/latest")).unwrap();
    store.fails("ollama:folder", 7, &["not a regular file", "folder"]);
}

#[test]
fn malformed_digests_are_refused() {
    let store = Store::new();
    std::fs::copy(demo(), store.root().join("secret")).unwrap();
    let size = std::fs::metadata(demo()).unwrap().len();
    let upper = HEX.to_uppercase();
    for digest in [
        String::new(),
        HEX.to_owned(),
        format!("sha256:{}", &HEX[1..]),
        format!("sha256:{HEX}0"),
        format!("sha256:{upper}"),
        format!("SHA256:{HEX}"),
        format!("sha256-{HEX}"),
        format!("sha512:{HEX}"),
        format!("sha256:{}\n", &HEX[1..]),
        format!("sha256:{}g", &HEX[1..]),
        format!("sha256:../blobs/{HEX}"),
        "sha256:../secret".to_owned(),
        "sha256:/etc/passwd".to_owned(),
        format!("sha256:{}", "../".repeat(21) + "x"),
        format!("sha256:{}", "é".repeat(32)),
    ] {
        store.add(LLAMA, &manifest(&[layer(MODEL, &digest, size)]));
        let named = format!("the digest `{}` is not", digest.replace('\n', "\\u{a}"));
        store.fails("ollama:llama3", 3, &[&named, "llama3"]);
    }
    store.add(LLAMA, &manifest(&[json!({"mediaType": MODEL})]));
    store.fails("ollama:llama3", 3, &["the digest `` is not"]);
}

#[test]
fn missing_and_truncated_blobs_are_refused() {
    let store = Store::with(&[LLAMA]);
    let bytes = std::fs::read(demo()).unwrap();
    for wrong in [&bytes[..bytes.len() - 1], &[&bytes[..], &[0]].concat(), &[]] {
        std::fs::write(store.blob(), wrong).unwrap();
        let lengths = format!("{} bytes of {}", wrong.len(), bytes.len());
        store.fails("ollama:llama3", 3, &[HEX, &lengths, "truncated or still being downloaded\n"]);
    }
    let partial = store.blob().with_file_name(format!("sha256-{HEX}-partial"));
    std::fs::write(&partial, "").unwrap();
    store.fails(
        "ollama:llama3",
        3,
        &[HEX, "still being downloaded; the file with `-partial` beside it"],
    );
    std::fs::remove_file(store.blob()).unwrap();
    store.fails("ollama:llama3", 7, &[HEX, "unfinished download"]);
    std::fs::remove_file(&partial).unwrap();
    store.fails("ollama:llama3", 7, &["sha256-", HEX]);
    std::fs::create_dir(store.blob()).unwrap();
    store.fails("ollama:llama3", 7, &[HEX, "not a regular file"]);
}

#[test]
fn a_layer_without_a_size_is_taken_as_it_is() {
    let store = Store::new();
    for layer in [
        json!({"mediaType": MODEL, "digest": format!("sha256:{HEX}")}),
        json!({"mediaType": MODEL, "digest": format!("sha256:{HEX}"), "size": null, "from": "x", "new": [{}]}),
    ] {
        store.add(LLAMA, &manifest(&[layer]));
        store.finds("ollama:llama3");
    }
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_pipes_are_not_opened() {
    let store = Store::new();
    let (elsewhere, blob) = (store.0.path().join("elsewhere"), store.0.path().join("weights"));
    std::fs::write(&elsewhere, good().to_string()).unwrap();
    std::fs::rename(store.blob(), &blob).unwrap();
    std::os::unix::fs::symlink(&blob, store.blob()).unwrap();
    std::fs::create_dir_all(store.manifest(LLAMA).parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&elsewhere, store.manifest(LLAMA)).unwrap();
    store.finds("ollama:llama3");

    std::fs::remove_file(store.manifest(LLAMA)).unwrap();
    let made = Command::new("mkfifo").arg(store.manifest(LLAMA)).status();
    if made.is_ok_and(|status| status.success()) {
        store.fails("ollama:llama3", 7, &["not a regular file"]);
    }
}
