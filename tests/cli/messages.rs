//! How much commands say: `--quiet`, `--verbose` and `--progress`.

use std::process::Output;

use serde_json::Value;

use crate::amn;
use crate::common::directory::seven_layers;
use crate::common::{data, f32s, file, raw};
use crate::json::assert_valid;

fn at(name: &str) -> String {
    data().join(name).to_string_lossy().into_owned()
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// Runs a command that must succeed; what it printed on stdout and on stderr.
fn run(arguments: &[&str]) -> (String, String) {
    let output = amn(arguments);
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {err}");
    (out, err)
}

#[test]
fn quiet_commands_print_results_alone() {
    let directory = crate::common::tempdir().unwrap();
    let out = directory.path().join("out").to_string_lossy().into_owned();
    let (demo, fp8) = (at("demo/model-fp8.safetensors"), at("fp8/cast/model.safetensors"));
    let nothing = (String::new(), String::new());
    for command in [
        &["remember", &fp8][..],
        &["convert", &demo, "--to", "gguf"],
        &["forget", &demo, "--to", "nf4"],
    ] {
        let command = [command, &["-f", "-o", &out]].concat();
        assert!(!run(&command).0.is_empty());
        assert_eq!(run(&[&command[..], &["-q"]].concat()), nothing, "{command:?}");
        assert!(std::fs::metadata(&out).unwrap().len() > 0);
        // What the command is asked to print stays.
        let (json, _) = run(&[&command[..], &["--quiet", "--json"]].concat());
        assert_valid(json.as_bytes(), "conversion", "--quiet --json");
        let plan = [&command[..], &["--dry-run"]].concat();
        // Other programs write to the disk between the two.
        let without_space = |(out, err): (String, String)| {
            let lines = out.lines().filter(|line| !line.starts_with("Free space:"));
            (lines.collect::<Vec<_>>().join("\n"), err)
        };
        assert_eq!(without_space(run(&plan)), without_space(run(&[&plan[..], &["-q"]].concat())));
    }
    assert_eq!(run(&["check", "-q", &demo]), nothing);
    for command in [
        &["parse", &demo][..],
        &["ls", &demo],
        &["inspect", &demo],
        &["show", &demo],
        &["diff", &demo, &demo],
    ] {
        assert_eq!(run(command), run(&[command, &["-q"]].concat()), "{command:?}");
    }
    let failed = amn(&["remember", "-q", "missing"]);
    assert!(texts(&failed).1.starts_with("error: "), "{failed:?}");
    assert_eq!(amn(&["remember", &demo, "-q", "-v"]).status.code(), Some(2));
}

#[test]
fn quiet_finish() {
    let root = crate::common::tempdir().unwrap();
    let (input, _) = seven_layers(root.path(), 256);
    let (input, out) = (
        input.to_string_lossy().into_owned(),
        root.path().join("out").to_string_lossy().into_owned(),
    );
    for part in ["1/2", "2/2"] {
        run(&["remember", &input, "-o", &out, "--part", part]);
    }
    let nothing = (String::new(), String::new());
    assert_eq!(run(&["remember", &out, "--finish", "-q"]), nothing);
}

#[test]
fn verbose_commands_say_what_they_decide() {
    let directory = crate::common::tempdir().unwrap();
    let out = directory.path().join("out").to_string_lossy().into_owned();
    let demo = at("demo/model-fp8.safetensors");
    let (_, err) = run(&["remember", &demo, "-o", &out, "-v"]);
    let weight = "layers.0.attention.wq.weight";
    for line in [
        format!("opened {demo}"),
        format!("tensor `{weight}`: per-tensor FP8 (E4M3)"),
        format!("tensor `{weight}`: written as BF16 [256, 256]"),
    ] {
        assert!(err.lines().any(|found| found == line), "{line}: {err}");
    }
    let moe = at("mlx/tiny_qwen3_moe/model");
    let (_, err) = run(&["forget", &moe, "--to", "nf4", "-o", &out, "-f", "-v", "--dry-run"]);
    let kept = "tensor `model.norm.weight`: not encoded: ";
    assert!(err.contains(kept) && err.contains(": encoded to nf4"), "{err}");
    // A command that only reads.
    assert_eq!(run(&["ls", &demo, "-v"]).1, format!("opened {demo}\n"));
    let (_, err) = run(&["show", &demo, "-v"]);
    assert!(err.contains("written as F32 [256, 256]"), "{err}");
    let (_, err) = run(&["remember", &demo, "-o", &out, "-f"]);
    assert_eq!(err, "");
}

/// Names from files reach no terminal as they are.
#[test]
fn verbose_lines_are_escaped() {
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("m.safetensors");
    let tensors = [raw("a\u{1b}[31m\n", "F32", &[1], f32s(&[1.0]))];
    std::fs::write(&path, file(&tensors, &[])).unwrap();
    let (_, err) = run(&["remember", &path.to_string_lossy(), "-v", "--dry-run"]);
    assert!(err.contains("`a\\u{1b}[31m\\u{a}`: not quantized"), "{err}");
    assert!(!err.contains('\u{1b}'));
}

#[test]
fn verbose_resume() {
    let root = crate::common::tempdir().unwrap();
    let (input, _) = seven_layers(root.path(), 256);
    let (input, out) = (
        input.to_string_lossy().into_owned(),
        root.path().join("out").to_string_lossy().into_owned(),
    );
    let part = ["remember", &input, "-o", &out, "--part", "1/2"];
    let (_, err) = run(&[&part[..], &["-v"]].concat());
    assert_eq!(err.matches(": made now").count(), 4, "{err}");
    let (_, err) = run(&[&part[..], &["-v", "--resume"]].concat());
    assert_eq!(err.matches(": finished by an earlier run").count(), 4, "{err}");
}

/// The events on stderr of a command that must end with this exit code, and the lines behind them.
fn events(code: i32, arguments: &[&str]) -> Vec<Value> {
    let output = amn(&[arguments, &["--progress", "json"]].concat());
    let (_, err) = texts(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {err}");
    let lines = err.lines();
    lines
        .map(|line| assert_valid(line.as_bytes(), "progress", &format!("{arguments:?}")))
        .collect()
}

#[test]
fn progress_as_json() {
    let directory = crate::common::tempdir().unwrap();
    let out = directory.path().join("out").to_string_lossy().into_owned();
    let (demo, moe) = (at("demo/model-fp8.safetensors"), at("mlx/tiny_qwen3_moe/model"));
    let gguf = at("demo/model-q4_k.gguf");
    for (command, file, tensors) in [
        (&["remember", &demo, "-o", &out, "-f"][..], &out, 1),
        (&["convert", &demo, "--to", "npz", "-o", &out, "-f"], &out, 1),
        // The encoded tensor, its scales and its description.
        (&["forget", &demo, "--to", "nf4", "-o", &out, "-f"], &out, 4),
        (&["diff", &moe, &moe], &moe, 18),
        (&["diff", &demo, &demo], &demo, 1),
        (&["check", "--data", &moe], &moe, 28),
        (&["check", "--data", &gguf], &gguf, 1),
        (&["show", &demo], &demo, 1),
        (&["show", &moe], &moe, 18),
    ] {
        let events = events(0, command);
        let (first, last) = (&events[0], events.last().unwrap());
        assert_eq!((&first["event"], &last["event"]), (&"start".into(), &"end".into()));
        assert_eq!(last["file"], file.as_str(), "{command:?}");
        assert_eq!(last["total_bytes"], last["done_bytes"], "{command:?} {last}");
        assert!(last["done_bytes"].as_u64().unwrap() > 0, "{command:?}");
        let counts = (last["total_tensors"].as_u64(), last["done_tensors"].as_u64());
        assert_eq!(counts, (Some(tensors), Some(tensors)), "{command:?} {last}");
    }
}

#[test]
fn progress_of_shards() {
    let root = crate::common::tempdir().unwrap();
    let (input, _) = seven_layers(root.path(), 256);
    let (input, out) = (input.to_string_lossy().into_owned(), root.path().join("out"));
    let text = out.to_string_lossy().into_owned();
    let part = ["remember", &input, "-o", &text, "--part", "1/2"];
    for more in [&[][..], &["--resume"]] {
        let events = events(0, &[&part[..], more].concat());
        let last = events.last().unwrap();
        assert_eq!(last["total_bytes"], last["done_bytes"], "of this part alone: {last}");
        assert_eq!(last["total_tensors"], last["done_tensors"], "{last}");
        // Shards are written side by side, so any of the part's may be the last.
        let shards =
            [1, 3, 5, 7].map(|shard| out.join(format!("model-{shard:05}-of-00007.safetensors")));
        let is_last = |shard: &std::path::PathBuf| last["file"] == *shard.to_string_lossy();
        assert!(shards.iter().any(is_last), "{last}");
    }
}

#[test]
fn progress_of_failures() {
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("m.safetensors");
    std::fs::write(&path, file(&[raw("x.weight", "F32", &[2, 32], f32s(&[f32::NAN; 64]))], &[]))
        .unwrap();
    let path = path.to_string_lossy();
    let output = amn(&["forget", &path, "--to", "gguf:q8_0", "--progress", "json", "--json"]);
    let (_, err) = texts(&output);
    let lines: Vec<&str> = err.lines().collect();
    let [start, failed, error] = lines.as_slice() else {
        panic!("{err}");
    };
    for (line, event) in [(start, "start"), (failed, "failed")] {
        assert_eq!(assert_valid(line.as_bytes(), "progress", event)["event"], event);
    }
    assert_eq!(assert_valid(error.as_bytes(), "error", "error")["tensor"], "x.weight");
}

#[test]
fn progress_as_text() {
    let directory = crate::common::tempdir().unwrap();
    let out = directory.path().join("out").to_string_lossy().into_owned();
    let command = ["remember", &at("demo/model-fp8.safetensors"), "-f", "-o", &out];
    let stderr = |more: &[&str]| run(&[&command[..], more].concat()).1;
    for silent in [&[][..], &["--progress", "auto"], &["--progress=never"], &["-q"]] {
        assert_eq!(stderr(silent), "", "{silent:?}");
    }
    let lines = stderr(&["--progress", "always", "-q"]);
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines[0], "Recalling... 0 of 1 tensor, 0 B of 128.0 KB");
    let done = "Recalling... 1 of 1 tensor, 128.0 KB of 128.0 KB (100 %), ";
    assert!(lines[1].starts_with(done), "{lines:?}");
    assert_eq!(amn(&["remember", "x", "--progress", "some"]).status.code(), Some(2));
    assert_eq!(amn(&["ls", "x", "--progress", "json"]).status.code(), Some(2));
}
