//! The program, run as a user runs it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::amn;
use crate::common::{assert_same, data, effort, f32s, file, raw, rounded};

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn demo() -> String {
    data()
        .join("demo/model-fp8.safetensors")
        .to_string_lossy()
        .into_owned()
}

#[test]
fn version_and_help() {
    for program in [env!("CARGO_BIN_EXE_amn"), env!("CARGO_BIN_EXE_anamnesis")] {
        let output = Command::new(program).arg("--version").output().unwrap();
        assert_eq!(stdout(&output), concat!("anamnesis ", env!("CARGO_PKG_VERSION"), "\n"));
    }
    assert_eq!(amn(&[]).status.code(), Some(2));
    assert_eq!(amn(&["remember"]).status.code(), Some(2));
    assert_eq!(amn(&["remember", &demo(), "--to", "f8"]).status.code(), Some(2));
    assert_eq!(amn(&["remember", &demo(), "--threads", "0"]).status.code(), Some(2));
}

/// A scheme that no tensor can have is an error, and nothing is written.
#[test]
fn nothing_to_encode() {
    let directory = crate::common::tempdir().unwrap();
    let output = directory.path().join("out.safetensors");
    let run = amn(&["forget", &demo(), "--to", "mxfp4-gpt-oss", "-o", &output.to_string_lossy()]);
    assert_eq!(run.status.code(), Some(6));
    let text = stderr(&run);
    assert!(text.contains("no tensor can be encoded to it (1: "), "{text}");
    assert!(!output.exists());
}

/// Names and options as other tools have them.
#[test]
fn habits() {
    let directory = crate::common::tempdir().unwrap();
    let output = directory.path().join("out.safetensors");
    let output = output.to_string_lossy();
    for dtype in ["bfloat16", "fp16", "half", "float32", "FP32", "float16", "float"] {
        let run = amn(&["remember", &demo(), "--to", dtype, "-f", "-j", "1", "-o", &output]);
        assert_eq!(run.status.code(), Some(0), "{dtype}: {}", stderr(&run));
    }
    let sharded = directory.path().join("sharded");
    let sharded = sharded.to_string_lossy();
    let run = amn(&["remember", &demo(), "--max-shard-size", "5G", "-o", &sharded]);
    assert_eq!(run.status.code(), Some(0), "{}", stderr(&run));
    for command in ["forget", "convert"] {
        let run = amn(&[command, &demo(), "--to", "q4k_m"]);
        assert_eq!(run.status.code(), Some(2));
        let text = stderr(&run);
        assert!(text.contains("near are Q4_K_M, ") && text.len() < 400, "{text}");
    }
}

#[test]
fn parse_counts_by_role() {
    let output = amn(&["parse", &demo()]);
    let expected = "2 tensors parsed\n    1 quantized   FP8 E4M3, per-tensor scale\n    1 scale       BF16\nFile: 64.2 KB\n\n";
    let text = stdout(&output);
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn inspect_shows_format_and_sizes() {
    for command in ["inspect", "info"] {
        let text = stdout(&amn(&[command, &demo()]));
        let expected = "Format:      Per-tensor FP8 (E4M3), single scale factor per tensor\nQuantized:   1 tensor (weights) + 1 scale tensor (BF16)\n\
                        Passthrough: 0 tensors\nSize:        64.0 KB (FP8) -> 128.0 KB (BF16)\n\
                        Lethe took:  ~64.0 KB of precision\nParameters:  65536 (8.00 bits each as stored)\n";
        assert_eq!(text, expected);
    }
}

#[test]
fn remember_writes_beside_the_input() {
    let directory = crate::common::tempdir().unwrap();
    let input = directory.path().join("model-fp8.safetensors");
    std::fs::copy(demo(), &input).unwrap();
    let input = input.to_string_lossy().into_owned();
    for (to, command) in [("bf16", "remember"), ("F32", "dequantize")] {
        let output = amn(&[command, &input, "--to", to]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let lower = to.to_lowercase();
        let path = directory.path().join(format!("model-{lower}.safetensors"));
        let text = stdout(&output);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Parsing...   2 tensors, per-tensor FP8 (E4M3)");
        assert!(lines[1].starts_with("Recalling... 1 tensor [====================] "), "{text}");
        assert!(lines[2].starts_with(&format!("Output: {} (", path.display())), "{text}");
        assert_eq!(stderr(&output), "", "progress is for terminals");
        let expected =
            std::fs::read(data().join(format!("demo/expected-{lower}.safetensors"))).unwrap();
        assert_same(&expected, &std::fs::read(path).unwrap(), to);
    }
    let again = amn(&["remember", &input]);
    assert_eq!(again.status.code(), Some(7));
    assert!(stderr(&again).contains("--force"));
    assert_eq!(
        amn(&["remember", &input, "--force", "--threads", "3"])
            .status
            .code(),
        Some(0)
    );
}

/// A file and a directory that leave nothing in the system's cache are those that do.
#[test]
fn uncached_outputs_are_the_same() {
    let (input, root) = (demo(), crate::common::tempdir().unwrap());
    let directory = root.path().join("model");
    std::fs::create_dir(&directory).unwrap();
    std::fs::copy(&input, directory.join("model.safetensors")).unwrap();
    for (i, input) in [input, directory.to_string_lossy().into_owned()]
        .iter()
        .enumerate()
    {
        let made = [&[][..], &["--uncached"]].map(|options| {
            let output = root.path().join(format!("{i}{}", options.len()));
            let arguments = ["remember", input, "-o", output.to_str().unwrap()];
            let done = amn(&[&arguments[..], options].concat());
            assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
            std::fs::read(&output).or_else(|_| std::fs::read(output.join("model.safetensors")))
        });
        let [cached, uncached] = made.map(Result::unwrap);
        assert_same(&cached, &uncached, input);
    }
}

/// Every golden of these families, through the program.
#[test]
fn goldens_come_out_of_the_program() {
    let directory = crate::common::tempdir().unwrap();
    let output = directory.path().join("out").to_string_lossy().into_owned();
    for family in ["fp8", "nvfp4", "bnb", "gptq", "awq"] {
        let cases = std::fs::read_dir(data().join(family)).unwrap();
        let mut cases: Vec<_> = cases.map(|e| e.unwrap().path()).collect();
        cases.sort();
        for case in cases.into_iter().step_by(effort([4, 1, 1])) {
            let Ok(f32) = std::fs::read(case.join("expected-f32.safetensors")) else {
                continue;
            };
            let input = case
                .join("model.safetensors")
                .to_string_lossy()
                .into_owned();
            let model = anamnesis::parse(&input).unwrap();
            let bf16 = rounded(&f32, &model, anamnesis::TargetDtype::BF16);
            for (to, expected) in [("f32", f32), ("bf16", bf16)] {
                let run = amn(&["remember", &input, "--to", to, "-o", &output, "--force"]);
                assert_eq!(run.status.code(), Some(0), "{input}: {}", stderr(&run));
                assert_same(&expected, &std::fs::read(&output).unwrap(), &input);
            }
        }
    }
}

#[test]
fn several_schemes_are_listed_one_a_line() {
    let directory = crate::common::tempdir().unwrap();
    let input = directory.path().join("mixed.safetensors");
    let tensors = [
        raw("a.weight", "F8_E4M3", &[2, 2], vec![0; 4]),
        raw("a.weight_scale", "F32", &[], f32s(&[1.0])),
        raw("b.weight", "F8_E5M2", &[2, 2], vec![0; 4]),
        raw("b.weight_scale", "F32", &[2, 1], f32s(&[1.0, 2.0])),
        raw("c\u{1b}[31m\u{202e}.input_scale", "F32", &[], f32s(&[1.0])),
    ];
    std::fs::write(&input, file(&tensors, &[])).unwrap();
    let input = input.to_string_lossy().into_owned();
    let parsed = stdout(&amn(&["parse", &input]));
    assert!(
        parsed
            .contains("    1 quantized   FP8 E4M3, per-tensor scale\n    1 quantized   FP8 E5M2, per-channel scale\n"),
        "{parsed}"
    );
    let inspected = stdout(&amn(&["inspect", &input]));
    assert!(
        inspected
            .contains("single scale factor per tensor (1 tensor)\n             Per-channel FP8 (E5M2), one scale per row (1"),
        "{inspected}"
    );
    let remembered = stdout(&amn(&["remember", &input]));
    assert!(
        remembered.contains("Note: 1 activation scales and markers left out, e.g. `c\\u{1b}[31m\\u{202e}.input_scale`"),
        "{remembered}"
    );
}

fn code_of(content: &[u8], name: &str, directory: &Path) -> Option<i32> {
    let path = directory.join(name);
    std::fs::write(&path, content).unwrap();
    let output = amn(&["remember", &path.to_string_lossy()]);
    assert!(stderr(&output).starts_with("error: "), "{name}: {}", stderr(&output));
    output.status.code()
}

#[test]
fn exit_codes_by_kind_of_error() {
    let directory = crate::common::tempdir().unwrap();
    let at = directory.path();
    assert_eq!(code_of(b"junk", "junk", at), Some(3));
    assert_eq!(code_of(b"a line of text\n", "text", at), Some(6));
    let orphan = file(&[raw("x.weight_scale", "F32", &[], f32s(&[1.0]))], &[]);
    assert_eq!(code_of(&orphan, "orphan", at), Some(3));
    assert_eq!(code_of(b"GGUF\x09\0\0\0", "gguf", at), Some(6));
    let foreign = file(&[raw("x.Qidxs", "I64", &[1, 1], vec![0; 8])], &[]);
    assert_eq!(code_of(&foreign, "quip", at), Some(6));
    let missing = amn(&["inspect", &at.join("missing").to_string_lossy()]);
    assert_eq!(missing.status.code(), Some(7));
    assert!(stderr(&missing).contains("No such file or directory"), "{}", stderr(&missing));
    let empty = crate::common::tempdir().unwrap();
    let empty = amn(&["inspect", &empty.path().to_string_lossy()]);
    assert_eq!(empty.status.code(), Some(3));
    assert!(stderr(&empty).contains("no weights in this directory"), "{}", stderr(&empty));
}

#[cfg(unix)]
#[test]
fn a_closed_pipe_ends_quietly() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_amn"))
        .args(["parse", &demo()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[cfg(unix)]
#[test]
fn signals_leave_no_temporary_file() {
    let directory = crate::common::tempdir().unwrap();
    let input = directory.path().join("in.safetensors");
    let n = 96 << 20;
    let tensors = [
        raw("a.weight", "F8_E4M3", &[n >> 12, 1 << 12], vec![1; n]),
        raw("a.weight_scale", "F32", &[], f32s(&[1.0])),
    ];
    std::fs::write(&input, file(&tensors, &[])).unwrap();
    for signal in ["INT", "TERM"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_amn"))
            .args(["remember", &input.to_string_lossy(), "--to", "f32", "--threads", "1"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let temporary = || std::fs::read_dir(directory.path()).unwrap().count() > 1;
        while !temporary() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        Command::new("kill")
            .args(["-s", signal, &child.id().to_string()])
            .status()
            .unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "SIG{signal}");
        assert!(!temporary(), "SIG{signal}: something was left behind");
    }
}
