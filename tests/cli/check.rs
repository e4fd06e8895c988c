//! `amn check`.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::amn;
use crate::common::{data, f32s, file, raw};

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Runs `amn check` on `model` with `options`. Returns the exit code and the findings as `severity
/// tensor: message`.
fn check(model: &Path, options: &[&str]) -> (i32, Vec<String>) {
    let arguments = [&["check", "--json", model.to_str().unwrap()], options].concat();
    let run = amn(&arguments);
    let found: Value = serde_json::from_str(&stdout(&run)).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let findings = found["models"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|model| {
            let findings = model["findings"].as_array().unwrap().iter();
            findings.map(|f| {
                let [severity, tensor, message] =
                    ["severity", "tensor", "message"].map(|k| text(&f[k]));
                format!("{severity} {tensor}: {message}")
            })
        });
    (run.status.code().unwrap(), findings.collect())
}

fn save(path: PathBuf, bytes: &[u8]) -> PathBuf {
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn clean_models() {
    for model in ["demo/model-fp8.safetensors", "demo/model-q4_k.gguf", "demo/checkpoint.pth"] {
        let path = data().join(model);
        assert_eq!(check(&path, &["--data"]), (0, vec![]), "{model}");
        let run = amn(&["check", path.to_str().unwrap()]);
        assert!(stdout(&run).contains(": clean ("), "{}", stdout(&run));
    }
}

/// Special values, of tensors as they are and of scales.
#[test]
fn values() {
    let directory = crate::common::tempdir().unwrap();
    let tensors = [
        raw("bad", "F32", &[4], f32s(&[1.0, f32::NAN, f32::INFINITY, f32::NAN])),
        raw("bias", "F32", &[2], f32s(&[0.0, 0.0])),
        raw("dead", "BF16", &[2, 2], vec![0, 0, 0, 0x80, 0, 0, 0, 0]),
        raw("w.weight", "F8_E4M3", &[128, 512], vec![0x38; 128 * 512]),
        raw("w.weight_scale", "F32", &[1, 4], f32s(&[-1.0, 0.0, 1e-40, 1.0])),
    ];
    let model = save(directory.path().join("m.safetensors"), &file(&tensors, &[]));
    assert_eq!(check(&model, &[]), (0, vec![]));
    let (code, mut findings) = check(&model, &["--data"]);
    findings.sort();
    let expected = [
        "error bad: 2 of 4 values are NaN",
        "warning bad: 1 of 4 values are infinite",
        "warning dead: all 4 values are zero",
        "warning w.weight_scale: 1 of 4 scales are negative",
        "warning w.weight_scale: 1 of 4 scales are subnormal",
        "warning w.weight_scale: 1 of 4 scales are zero",
    ];
    assert_eq!((code, findings), (1, expected.map(str::to_owned).to_vec()));
}

/// Scales of activations that one of several experts lacks, or that are zero. Layers of another kind
/// need none.
#[test]
fn scales_of_activations() {
    let directory = crate::common::tempdir().unwrap();
    let expert = |i: usize, scale: Option<f32>| {
        let name = format!("layers.0.experts.{i}.up_proj");
        let mut tensors = vec![
            raw(&format!("{name}.weight"), "F8_E4M3", &[4, 8], vec![0x38; 32]),
            raw(&format!("{name}.weight_scale"), "F32", &[], f32s(&[1.0])),
        ];
        let scale = scale.map(|x| raw(&format!("{name}.input_scale"), "F32", &[], f32s(&[x])));
        tensors.extend(scale);
        tensors
    };
    let other = [
        raw("head.weight", "F8_E4M3", &[4, 8], vec![0x38; 32]),
        raw("head.weight_scale", "F32", &[], f32s(&[1.0])),
    ];
    let checked = |second: Option<f32>| {
        let experts = [expert(0, Some(0.5)), expert(1, second), expert(2, Some(0.5))];
        let tensors = [experts.concat(), other.to_vec()].concat();
        let model = save(directory.path().join("m.safetensors"), &file(&tensors, &[]));
        check(&model, &["--data"])
    };
    assert_eq!(checked(Some(0.25)), (0, vec![]));
    let name = "layers.0.experts.1.up_proj";
    let expected = format!("warning {name}.input_scale: 1 of 1 scales are zero");
    assert_eq!(checked(Some(0.0)), (1, vec![expected]));
    let expected = format!(
        "warning {name}.weight: `{name}.input_scale` is missing, and other layers have one, such as `layers.0.experts.0.up_proj.input_scale`"
    );
    assert_eq!(checked(None), (1, vec![expected]));
}

/// A code that decodes to NaN, and a group index out of range: only the data shows them.
#[test]
fn decoded_values() {
    let directory = crate::common::tempdir().unwrap();
    let mut codes = vec![0x38; 128 * 128];
    codes[7] = 0x7f;
    let tensors = [
        raw("w.weight", "F8_E4M3", &[128, 128], codes),
        raw("w.weight_scale", "F32", &[1, 1], f32s(&[1.0])),
    ];
    let model = save(directory.path().join("m.safetensors"), &file(&tensors, &[]));
    let expected = "error w.weight: 1 of 16384 decoded values are NaN";
    assert_eq!(check(&model, &["--data"]), (1, vec![expected.to_owned()]));

    let (k, n) = (32usize, 8usize);
    let words = |values: &[u32]| {
        values
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect::<Vec<_>>()
    };
    let tensors = [
        raw("w.g_idx", "I32", &[k], words(&[&[0; 31][..], &[9]].concat())),
        raw("w.qweight", "I32", &[k / 8, n], vec![0x11; k * n / 2]),
        raw("w.qzeros", "I32", &[1, n / 8], vec![0x11; n / 2]),
        raw("w.scales", "F16", &[1, n], [0, 0x3c].repeat(n)),
        raw("x", "F32", &[1], f32s(&[f32::NAN])),
    ];
    let model = save(directory.path().join("g.safetensors"), &file(&tensors, &[]));
    let (code, findings) = check(&model, &[]);
    assert_eq!((code, findings.len()), (1, 1), "{findings:?}");
    assert!(findings[0].contains("version of GPTQ"), "{findings:?}");
    let (code, mut findings) = check(&model, &["--data"]);
    findings.remove(0);
    assert_eq!((code, findings.len()), (1, 2), "{findings:?}");
    assert_eq!(findings[0], "error x: 1 of 1 values are NaN");
    assert!(findings[1].contains("g_idx") || findings[1].contains("group"), "{findings:?}");
}

/// Companions without a weight, bytes behind the last tensor, and checksums of archives.
#[test]
fn structure() {
    let directory = crate::common::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let orphan = [
        raw("w.qzeros", "I32", &[1, 1], vec![0x11; 4]),
        raw("w.scales", "F16", &[1, 8], [0, 0x3c].repeat(8)),
    ];
    let (code, findings) = check(&save(at("o.safetensors"), &file(&orphan, &[])), &[]);
    assert!(code == 1 && findings[0].starts_with("error w.qzeros: "), "{findings:?}");

    // Of a block type that no other tensor has, parsing refuses bytes behind the last tensor.
    let demo = data().join("demo/model-fp8.safetensors");
    let plain = at("p.gguf");
    let paths = [&demo, &plain].map(|path| path.to_str().unwrap());
    assert!(
        amn(&["convert", paths[0], "--to", "gguf", "-o", paths[1]])
            .status
            .success()
    );
    let mut gguf = std::fs::read(plain).unwrap();
    gguf.extend([7; 100]);
    let expected = "warning -: 100 bytes lie behind the last tensor";
    assert_eq!(check(&save(at("t.gguf"), &gguf), &[]), (1, vec![expected.to_owned()]));

    let mut archive = std::fs::read(data().join("demo/checkpoint.pth")).unwrap();
    let model = anamnesis::parse(data().join("demo/checkpoint.pth")).unwrap();
    let t = model.tensors().find(|t| t.elements() > 0).unwrap();
    archive[t.offset().unwrap() as usize] ^= 1;
    let (code, findings) = check(&save(at("c.pth"), &archive), &[]);
    assert!(code == 1 && findings.len() == 1, "{findings:?}");
    assert!(findings[0].ends_with("its data has the wrong checksum"), "{findings:?}");
}

/// SHA-256 of files is compared with names in the hub's cache and with manifests of `sha256sum`.
#[test]
fn sums() {
    use std::process::Command;
    let directory = crate::common::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    // Written by coreutils 9.4: `sha256sum tests/data/demo/model-fp8.safetensors`.
    let demo = data().join("demo/model-fp8.safetensors");
    let sum = "f4892e0a4c24058130da4499e1d61eba9cc62eafc64e07ffee84e4d020f66e3f";
    if let Ok(run) = Command::new("sha256sum").arg(&demo).output() {
        assert!(stdout(&run).starts_with(sum), "{}", stdout(&run));
    }
    std::fs::create_dir_all(at("models--a--b/blobs")).unwrap();
    let blob = at("models--a--b/blobs").join(sum);
    std::fs::copy(&demo, &blob).unwrap();
    let manifest = |text: &str| {
        save(at("SHA256SUMS"), text.as_bytes())
            .to_str()
            .unwrap()
            .to_owned()
    };
    let good = manifest(&format!("{sum}  models--a--b/blobs/{sum}\n{sum} *elsewhere/x\n"));
    assert_eq!(check(&blob, &["--data", "--manifest", &good]), (0, vec![]));
    let bad = manifest(&format!("{}  models--a--b/blobs/{sum}\n", "0".repeat(64)));
    let (code, findings) = check(&blob, &["--manifest", &bad]);
    assert!(
        code == 1 && findings[0].contains(&format!("is {sum}; the manifest has 000")),
        "{findings:?}"
    );
    let empty = manifest("\n");
    let expected = "warning -: the manifest has no sum of it";
    assert_eq!(check(&blob, &["--manifest", &empty]), (1, vec![expected.to_owned()]));
    // A snapshot has links to the blobs.
    let snapshot = at("models--a--b/snapshots/main");
    std::fs::create_dir_all(&snapshot).unwrap();
    let link = snapshot.join("model.safetensors");
    #[cfg(unix)]
    std::os::unix::fs::symlink(&blob, &link).unwrap();
    let mut bytes = std::fs::read(&blob).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&blob, bytes).unwrap();
    let (code, findings) = check(&blob, &["--data"]);
    assert!(code == 1 && findings[0].contains("its name in the cache has"), "{findings:?}");
    if cfg!(unix) {
        let (code, findings) = check(&snapshot, &["--data"]);
        assert!(code == 1 && findings[0].contains("its name in the cache has"), "{findings:?}");
    }
    let malformed = manifest("no sum\n");
    assert_eq!(check(&blob, &["--manifest", &malformed]).0, 3);
}

/// Several models, of which one cannot be parsed and one is a directory: the others are checked all
/// the same.
#[test]
fn several_models() {
    let directory = crate::common::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir_all(at("a/model")).unwrap();
    std::fs::create_dir_all(at("empty")).unwrap();
    std::fs::create_dir_all(at("uqff")).unwrap();
    std::fs::create_dir_all(at("others")).unwrap();
    for name in ["m-0.uqff", "m-1.uqff", "residual.safetensors"] {
        let file = data().join("uqff/random").join(name);
        std::fs::copy(file, at("uqff").join(name)).unwrap();
    }
    save(at("one.uqff"), &std::fs::read(data().join("uqff/random/m-0.uqff")).unwrap());
    let demo = std::fs::read(data().join("demo/model-fp8.safetensors")).unwrap();
    save(at("a/model/model.safetensors"), &demo);
    save(at("a/model/config.json"), b"{}");
    let cut = save(at("cut.safetensors"), &demo[..demo.len() - 1]);
    save(at("notes.txt"), b"no model");
    save(at("z.gguf"), &std::fs::read(data().join("demo/model-q4_k.gguf")).unwrap());
    let root = directory.path().to_str().unwrap();
    let run = amn(&["check", "-r", "--json", root]);
    assert_eq!(run.status.code(), Some(3));
    let found: Value = serde_json::from_str(&stdout(&run)).unwrap();
    let rows = found["models"].as_array().unwrap().iter().map(|model| {
        let path = model["path"].as_str().unwrap().strip_prefix(root).unwrap();
        (path, model["findings"].as_array().unwrap().len())
    });
    let expected =
        [("/cut.safetensors", 1), ("/one.uqff", 0), ("/z.gguf", 0), ("/a/model", 0), ("/uqff", 0)];
    assert_eq!(rows.collect::<Vec<_>>(), expected);
    std::fs::remove_file(cut).unwrap();
    assert_eq!(amn(&["check", "-r", root]).status.code(), Some(0));
    // Without it, the way out is named.
    assert!(stdout(&amn(&["check", root])).contains("  `amn check -r` checks every model"));
    // Files of every container, and none of what is not read.
    let others = [
        "demo/arrays.npz",
        "demo/checkpoint.pth",
        "burnpack/types.bpk",
        "coreml/matrices.mlmodel",
        "flax/dtypes.msgpack",
        "hdf5/keras_float32.h5",
        "hdf5/keras_float32_archive.keras",
        "npz/bf16_little.npy",
    ];
    for from in others {
        save(
            at("others").join(Path::new(from).file_name().unwrap()),
            &std::fs::read(data().join(from)).unwrap(),
        );
    }
    for end in ["xml", "bin"] {
        let part = data().join("openvino/bodies/model").with_extension(end);
        save(at("others/model").with_extension(end), &std::fs::read(part).unwrap());
    }
    save(at("others/training_args.bin"), b"no model");
    save(at("others/model.ot"), b"not read");
    let run = amn(&["check", "-r", at("others").to_str().unwrap()]);
    assert_eq!(run.status.code(), Some(0), "{}", stdout(&run));
    assert_eq!(stdout(&run).lines().count(), others.len() + 1);
    let empty = at("empty");
    assert_eq!(amn(&["check", "-r", empty.to_str().unwrap()]).status.code(), Some(3));
    assert_eq!(amn(&["check"]).status.code(), Some(2));
    assert_eq!(amn(&["check", "no such file"]).status.code(), Some(7));
}
