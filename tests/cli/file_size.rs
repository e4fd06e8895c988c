//! A limit on the size of files, which kills processes that do not expect it.

use std::process::Command;

use crate::common::directory::{in_one_file, make, names_in, shards};

#[test]
fn a_limit_on_the_size_of_files_is_an_error() {
    for is_directory in [true, false] {
        let root = crate::common::tempdir().unwrap();
        let mut input = root.path().join("model");
        match is_directory {
            true => make(&input, &shards(2, 512)),
            false => {
                std::fs::create_dir(&input).unwrap();
                input = in_one_file(&input, &shards(2, 512));
            }
        }
        // The limit counts blocks of 512 or 1024 bytes, by the shell.
        let script = "ulimit -f 100 && exec \"$0\" remember \"$1\" -o \"$2\"";
        let out = Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_amn")])
            .arg(&input)
            .arg(root.path().join("out.safetensors"))
            .output()
            .unwrap();
        let stderr = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(7), "{}: {stderr}", out.status);
        assert!(stderr.contains("File too large"), "{stderr}");
        assert_eq!(names_in(root.path(), ""), ["model"]);
    }
}
