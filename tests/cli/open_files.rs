//! More shards than a process may have open files.

use anamnesis::{TargetDtype, parse};

use crate::common::{Raw, assert_same, raw};

#[test]
fn more_shards_than_open_files() {
    let root = crate::common::tempdir().unwrap();
    let dir = root.path().join("model");
    let shards: Vec<Vec<Raw>> = (0..150)
        .map(|i| vec![raw(&format!("layer.{i:03}"), "BF16", &[1], vec![1, 2])])
        .collect();
    crate::common::directory::write_shards(&dir, &shards);
    let limited = |command: &str| {
        let program = env!("CARGO_BIN_EXE_amn");
        let script = format!("ulimit -n 100 && exec \"$0\" {command}");
        let out = std::process::Command::new("sh")
            .args(["-c", &script, program])
            .arg(&dir)
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    assert!(limited("inspect \"$1\"").contains("150 tensors"));
    limited("remember \"$1\" --max-shard-size 20 --threads 4");
    let output = root.path().join("model-BF16");
    assert_eq!(crate::common::directory::placement(&output).len(), 15);
    let expected = parse(&dir)
        .unwrap()
        .remember_to_bytes(TargetDtype::BF16)
        .unwrap();
    assert_same(&expected, &crate::common::directory::joined(&output), "150 shards");
    // Views map their files, and close them again.
    assert_eq!(
        parse(&dir)
            .unwrap()
            .tensors()
            .filter(|t| *t.bytes().unwrap() == [1, 2])
            .count(),
        150
    );
}
