//! Metadata to files.

use super::from_gguf;

/// Converts the vocabulary of the GGUF file in the variable `GGUF` to the directory in `OUT`.
#[test]
#[ignore = "for comparisons with other programs"]
fn converts_a_file() {
    let gguf = std::env::var("GGUF").unwrap();
    let out = std::path::PathBuf::from(std::env::var("OUT").unwrap());
    let model = crate::parse(&gguf).unwrap();
    let tokenizer = from_gguf(model.gguf().unwrap().metadata(), None).unwrap();
    std::fs::create_dir_all(&out).unwrap();
    for (name, text) in tokenizer.files {
        std::fs::write(out.join(name), text).unwrap();
    }
    eprintln!("{:#?}", tokenizer.notes);
}
