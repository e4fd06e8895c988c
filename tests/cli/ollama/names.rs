//! Names of models, and those that are refused.

use super::{HEX, LLAMA, Store, good};

#[test]
fn names_and_their_defaults() {
    for (path, specs) in [
        (
            LLAMA,
            &[
                "llama3",
                "llama3:latest",
                "library/llama3",
                "registry.ollama.ai/library/llama3:latest",
            ][..],
        ),
        ("registry.ollama.ai/library/llama3/8b-instruct-q4_0", &["llama3:8b-instruct-q4_0"]),
        ("registry.ollama.ai/some_user/my.model-2/v1.0", &["some_user/my.model-2:v1.0"]),
        (
            "hf.co/org/Repo-GGUF/Q4_K_M",
            &["hf.co/org/Repo-GGUF:Q4_K_M", "https://hf.co/org/Repo-GGUF:Q4_K_M"],
        ),
        ("hf.co/org/Repo-GGUF/latest", &["hf.co/org/Repo-GGUF", "http://hf.co/org/Repo-GGUF"]),
    ] {
        let store = Store::with(&[path]);
        specs
            .iter()
            .for_each(|spec| store.finds(&format!("ollama:{spec}")));
    }
}

#[cfg(not(windows))]
#[test]
fn a_registry_with_a_port() {
    let store = Store::with(&["localhost:5000/ns/model/tag", "localhost:5000/ns/model/latest"]);
    store.finds("ollama:localhost:5000/ns/model:tag");
    store.finds("ollama:http://localhost:5000/ns/model");
}

#[test]
fn the_case_of_letters_does_not_matter() {
    let store = Store::with(&["hf.co/Bartowski/Some-Repo-GGUF/Q4_K_M"]);
    store.add_text("hf.co/Bartowski/Some-Repo-GGUF/Q8_0", "another tag");
    store.add_text("hf.co/Bartowski/Other/Q4_K_M", "another model");
    for spec in ["hf.co/bartowski/some-repo-gguf:q4_k_m", "HF.CO/BARTOWSKI/SOME-REPO-GGUF:Q4_K_M"] {
        store.finds(&format!("ollama:{spec}"));
    }
}

/// Needs a case-sensitive file system.
#[cfg(target_os = "linux")]
#[test]
fn names_that_differ_only_in_case() {
    let store = Store::with(&["hf.co/org/repo/Q8_0"]);
    store.add_text("hf.co/org/repo/q8_0", "the other one");
    store.finds("ollama:hf.co/org/repo:Q8_0");
    store.fails("ollama:hf.co/org/repo:q8_0", 3, &["parse error", "line 1"]);
    store.fails("ollama:hf.co/Org/repo:Q8_0", 3, &["only in case", "repo/q8_0", "repo/Q8_0"]);
    // A directory of the exact name does not hide the model in the other one.
    store.add("hf.co/Org2/repo/latest", &good());
    std::fs::create_dir(store.manifest("hf.co/org2")).unwrap();
    store.finds("ollama:hf.co/org2/repo");
}

#[test]
fn malformed_names_are_refused_by_the_part() {
    let store = Store::with(&[LLAMA]);
    std::fs::write(store.root().join("secret"), good().to_string()).unwrap();
    let (n81, n351) = ("n".repeat(81), "h".repeat(351));
    for (spec, part) in [
        (":latest", "model `` is empty"),
        ("llama3:", "tag `` is empty"),
        ("/llama3", "namespace `` is empty"),
        ("llama3/", "model `` is empty"),
        ("/library/llama3", "host `` is empty"),
        ("registry.ollama.ai//llama3", "namespace `` is empty"),
        ("/etc/passwd", "host `` is empty"),
        ("//server/share", "host `/` contains '/'"),
        ("a/registry.ollama.ai/library/llama3", "host `a/registry.ollama.ai` contains '/'"),
        ("..", "model `..` does not begin"),
        (".", "model `.` does not begin"),
        ("../llama3", "namespace `..` contains '.'"),
        ("../library/llama3", "host `..` does not begin"),
        ("library/..:x", "model `..` does not begin"),
        ("llama3:..", "tag `..` does not begin"),
        ("llama3:../../../../secret", "host `llama3:../../..` contains '/'"),
        ("hf.co/llama3", "namespace `hf.co` contains '.'"),
        ("host/name:space/model:tag", "namespace `name:space` contains ':'"),
        ("llama3:8b:local", "model `llama3:8b` contains ':'"),
        ("-llama3", "model `-llama3` does not begin"),
        ("llama3:-8b", "tag `-8b` does not begin"),
        ("lib\\llama3", "model `lib\\llama3` contains '\\\\'"),
        ("C:\\models\\x", "tag `\\models\\x` contains '\\\\'"),
        ("C:/ns/model", "host `C:` looks like a drive"),
        ("c:foo/ns/model", "host `c:foo` looks like a drive"),
        ("C:/model", "namespace `C:` contains ':'"),
        ("llama3\n", "model `llama3\\u{a}` contains '\\n'"),
        ("llama3\u{1b}[31m", "contains '\\u{1b}'"),
        ("llama3\u{202e}", "contains '\\u{202e}'"),
        ("\u{212a}imi", "model `\u{212a}imi` contains"),
        ("llama 3", "contains ' '"),
        (" llama3", "contains ' '"),
        ("llama3@tag", "contains '@'"),
        ("https://llama3", "namespace `` is empty"),
        ("https://library/llama3", "host `https:/` contains '/'"),
        ("ftp://hf.co/org/repo", "host `ftp://hf.co` contains '/'"),
        (n81.as_str(), "has 81 bytes, of at most 80"),
        (&format!("{n81}/m"), "has 81 bytes, of at most 80"),
        (&format!("m:{n81}"), "has 81 bytes, of at most 80"),
        (&format!("{n351}/n/m"), "has 351 bytes, of at most 350"),
    ] {
        store.fails(&format!("ollama:{spec}"), 3, &["model name", part]);
    }
    // No argument of a process can hold a NUL, so the function is called directly. It refuses names
    // before it looks for a store.
    let error = anamnesis::resolve_ollama_model("ollama:a\0b").unwrap_err();
    assert!(matches!(&error, anamnesis::AnamnesisError::Parse { .. }), "{error}");
    assert!(error.to_string().contains("contains '\\0'"), "{error}");
}

#[test]
fn digests_are_refused_by_name() {
    let store = Store::with(&[LLAMA]);
    for spec in
        [format!("ollama:llama3@sha256:{HEX}"), format!("ollama:llama3:latest@sha256-{HEX}")]
    {
        store.fails(&spec, 6, &["Ollama digest", "by tag, not by digest"]);
    }
}
