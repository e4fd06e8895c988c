//! Changes that cannot be made, and files that cannot be edited.

use super::{copy, refused};

#[test]
fn changes_that_cannot_be_made() {
    let root = crate::common::tempdir().unwrap();
    let gguf = copy("demo/model-q4_k.gguf", root.path());
    let long = format!("general.name={}", "x".repeat(70_000));
    for (change, words) in [
        (["--set", "nothing"], "KEY=VALUE"),
        (["--set", "=x"], "KEY=VALUE"),
        (["--set", "a:u33=1"], "there is no type `u33`; types are u8, "),
        (["--set", "a:str=x"], "string"),
        (["--set", "a:[u8]=1,2"], "is no list such as [1, 2]"),
        (["--set", "a:u8=256"], "`256` is no u8"),
        (["--set", "a:[u8]=[1, 256]"], "`256` is no u8"),
        (["--set", "a:i8=1.5"], "is no i8"),
        (["--set", "a:bool=1"], "is no bool"),
        (["--set", "llama.block_count=x"], "the type that llama.cpp reads"),
        (["--set", "gone=null"], "no such key"),
        (["--unset", "gone"], "there is no such key"),
        (["--rename", "gone=x"], "there is no such key"),
        (["--rename", "general.name=general.architecture"], "is there already; --unset"),
        (["--rename", "general.name="], "a key of 0 bytes"),
        (["--rename", "general.name=split.no"], "which file of a model"),
        (["--rename", &long], "1 to 65535 are written"),
        (["--set", "split.no=1"], "which file of a model"),
        (["--set", "general.alignment=3"], "multiples of 32"),
    ] {
        refused(&gguf, &[&change[..], &["-i"]].concat(), 2, words);
    }
    let safetensors = copy("demo/model-fp8.safetensors", root.path());
    for (change, words) in [
        (["--set", "nothing"], "KEY=VALUE"),
        (["--set", "a:u8=1"], "every value of safetensors is a text"),
        (["--set", "a:[f32]=[1]"], "every value of safetensors is a text"),
        (["--unset", "gone"], "there is no such key"),
        (["--rename", "gone=x"], "there is no `gone`"),
        (["--tokenizer-pre", "llama-bpe"], "is for GGUF files"),
    ] {
        refused(&safetensors, &[&change[..], &["-i"]].concat(), 2, words);
    }
}

#[test]
fn files_that_cannot_be_edited() {
    let root = crate::common::tempdir().unwrap();
    let change = ["--set", "a=1", "-i"];
    for (name, words) in [
        ("demo/arrays.npz", "NPZ archive"),
        ("demo/checkpoint.pth", "PyTorch"),
        ("llamafile/q8_0.llamafile", "amn convert"),
    ] {
        refused(&copy(name, root.path()), &change, 6, words);
    }
    let at = |name: &str| root.path().join(name).to_string_lossy().into_owned();
    std::fs::write(at("text"), "no model").unwrap();
    refused(&at("text"), &change, 3, "not a model file");
    refused(&at("missing"), &change, 7, "missing");
    refused(&at("missing.json"), &change, 7, "missing.json");
    let mut twice = crate::common::gguf::Gguf::default()
        .text("a", "1")
        .text("a", "2")
        .file();
    std::fs::write(at("twice.gguf"), &twice).unwrap();
    refused(&at("twice.gguf"), &change, 3, "`a` is listed twice");
    twice.truncate(40);
    std::fs::write(at("short.gguf"), &twice).unwrap();
    refused(&at("short.gguf"), &change, 3, "truncated");
}
