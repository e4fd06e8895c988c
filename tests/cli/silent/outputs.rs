//! Extensions of outputs, and outputs on stdout.

use std::path::Path;
use std::process::{Command, Stdio};

use anamnesis::Dtype;

use super::{DEMO, at, dtypes, plain_directory, refused, succeed, told};
use crate::amn;
use crate::common::{assert_same, file, raw};

#[test]
fn extensions_are_believed() {
    let root = crate::common::tempdir().unwrap();
    let path = |name: &str| root.path().join(name).to_string_lossy().into_owned();
    let input = at(DEMO);
    #[cfg(all(feature = "gguf", feature = "npz"))]
    {
        succeed(&["remember", &input, "-o", &path("out.gguf")]);
        assert!(
            std::fs::read(path("out.gguf"))
                .unwrap()
                .starts_with(b"GGUF")
        );
        succeed(&["convert", &input, "--to", "gguf", "-o", &path("want.GGUF")]);
        assert!(
            std::fs::read(path("out.gguf")).unwrap() == std::fs::read(path("want.GGUF")).unwrap()
        );
        succeed(&["remember", &input, "-o", &path("out.npz")]);
        assert!(std::fs::read(path("out.npz")).unwrap().starts_with(b"PK"));
    }
    let directory = plain_directory(root.path()).to_string_lossy().into_owned();
    for (arguments, output, words) in [
        (&["forget", &directory, "--to", "nf4"][..], "x.gguf", ["GGUF", "safetensors"]),
        (&["forget", &input, "--to", "gguf:q8_0"], "x.safetensors", ["safetensors", "GGUF"]),
        (&["convert", &input, "--to", "npz"], "x.safetensors", ["safetensors", "NPZ"]),
        (&["convert", &input, "--to", "gguf"], "x.safetensors", ["safetensors", "GGUF"]),
        (&["convert", &input, "--to", "safetensors"], "x.qnat", ["QNAT", "safetensors"]),
        (&["convert", &input, "--to", "nf4"], "x.npz", ["NPZ", "safetensors"]),
        (&["remember", &input], "x.qnat", ["QNAT", "codes"]),
        (&["remember", &input], "x.h5", ["x.h5", "not written"]),
        (&["remember", &input], "x.npy", ["NAME.npy", "directories"]),
        (
            &["remember", &input, "--max-shard-size", "5KB"],
            "x.safetensors",
            ["--max-shard-size", "-o"],
        ),
    ] {
        let output = path(output);
        let arguments = [arguments, &["-o", &output]].concat();
        refused(&arguments, 2, &words, root.path());
    }
    // Any other ending is part of the name.
    succeed(&["remember", &input, "-o", &path("Llama-3.1")]);
    assert_eq!(dtypes(Path::new(&path("Llama-3.1"))), [Dtype::BF16]);
}

#[test]
fn stdout_takes_what_can_be_streamed() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = (at(DEMO), root.path().join("want.safetensors"));
    succeed(&["remember", &input, "-o", want.to_str().unwrap()]);
    let output = amn(&["remember", &input, "-o", "-"]);
    assert_eq!(output.status.code(), Some(0));
    assert_same(&std::fs::read(&want).unwrap(), &output.stdout, "safetensors");
    let texts = String::from_utf8(output.stderr).unwrap();
    assert!(
        texts.contains("Parsing...   2 tensors") && texts.contains("Output: stdout (128.1 KB)"),
        "{texts}"
    );
    #[cfg(feature = "gguf")]
    {
        let output = amn(&["convert", &input, "--to", "gguf", "-o", "-"]);
        assert!(output.status.success() && output.stdout.starts_with(b"GGUF"));
    }
    // A directory is one file then.
    let directory = plain_directory(root.path()).to_string_lossy().into_owned();
    let output = amn(&["remember", &directory, "--cast", "-o", "-"]);
    assert_eq!(
        anamnesis::parse_bytes(output.stdout)
            .unwrap()
            .tensors()
            .len(),
        3
    );
    for (arguments, code, word) in [
        (&["convert", &input, "--to", "npz"][..], 6, "checksums before the data"),
        (&["forget", &input, "--to", "nf4"], 6, "encoded only for a whole output"),
        (&["remember", &input, "--json"], 2, "stdout is for the output"),
        (&["remember", &directory, "--part", "1/2"], 2, "--part"),
        (&["remember", &directory, "--resume"], 2, "--resume"),
        (&["remember", &directory, "--max-shard-size", "5KB"], 2, "one file"),
    ] {
        let output = amn(&[arguments, &["-o", "-"]].concat());
        let (out, err, found) = told(&output);
        assert!(out.is_empty() && found == code && err.contains(word), "{arguments:?}: {err}");
    }
    assert!(!Path::new("-").exists());
}

/// A reader that goes away ends the program with an error, for the output is not complete.
#[cfg(unix)]
#[test]
fn a_closed_pipe_is_an_error() {
    let root = crate::common::tempdir().unwrap();
    let input = root.path().join("in.safetensors");
    let tensors = [raw("a", "F32", &[1 << 20], vec![0; 4 << 20])];
    std::fs::write(&input, file(&tensors, &[])).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_amn"))
        .args(["remember", input.to_str().unwrap(), "-o", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let (_, err, code) = told(&child.wait_with_output().unwrap());
    assert_eq!(code, 7, "{err}");
    assert!(
        err.contains("stdout was closed before the whole output") && !err.contains("panic"),
        "{err}"
    );
}

#[test]
fn a_terminal_gets_no_weights() {
    // Without `script` there is no terminal to try.
    let command = format!("'{}' remember '{}' -o -", env!("CARGO_BIN_EXE_amn"), at(DEMO));
    let Ok(output) = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .output()
    else {
        return;
    };
    let (out, err, code) = told(&output);
    assert!(code == 2 && out.contains("stdout is a terminal"), "{out}{err}");
}
