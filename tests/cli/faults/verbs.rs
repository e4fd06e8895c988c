//! Every verb and every container: with an error at any call a command says so, or does all that it
//! would have done. What a file that could not be read would have said is never missing silently.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::tracer::{self, End, Event, Fault, Plan};
use super::{Content, DATA, Kind, content};
use crate::common::directory::names_in;
use crate::common::{data, effort};

/// An input below `tests/data` and the command on it: `IN` and `OUT` stand for paths, `DATA` for
/// that directory.
type Row = (&'static str, &'static str);

const READERS: &[Row] = &[
    ("demo/model-fp8.safetensors", "inspect IN --json"),
    ("demo/model-q4_k.gguf", "ls IN --json"),
    ("demo/arrays.npz", "ls IN"),
    ("demo/checkpoint.pth", "scan IN"),
    ("demo/checkpoint.pth", "show -j 1 IN rnn.weight_ih_l0 --npy OUT.npy --force"),
    ("gptq/b4_v1_act_order", "inspect IN"),
    ("gptq/b4_v1_quantize_config", "check -j 1 IN"),
    ("gptq/b8_v1_sym", "diff -j 1 IN DATA/gptq/b8_v1_g32"),
    ("whole/arcee/hf", "check -j 1 IN"),
    ("whole/arcee/hf", "inspect IN"),
    ("dcp/four", "ls IN"),
    ("fsdp/four", "ls IN"),
    ("deepspeed/stage3", "ls IN"),
    ("uqff/isq", "inspect IN"),
    ("flax/params.msgpack", "ls IN"),
    ("hdf5/keras_float32_archive.keras", "ls IN"),
    ("hdf5/latest_chunks.h5", "diff -j 1 IN DATA/hdf5/chunked.h5"),
    ("onnx_external/one", "ls IN"),
    ("adapters/plain", "inspect IN"),
    ("llamafile/q8_0.llamafile", "inspect IN"),
    ("compressed_tensors/int_quantized", "parse IN"),
];

const WRITERS: &[Row] = &[
    ("demo/model-q4_k.gguf", "remember IN -j 1 -o OUT.safetensors"),
    ("demo/arrays.npz", "convert IN --to safetensors -j 1 -o OUT.safetensors"),
    ("demo/checkpoint.pth", "convert IN --to npz -j 1 -o OUT.npz"),
    ("demo/model-fp8.safetensors", "convert IN --to qnat -j 1 -o OUT.qnat"),
    ("demo/model-fp8.safetensors", "forget IN --to q4_k -j 1 -o OUT.gguf"),
    ("demo/model-fp8.safetensors", "report IN -j 1 -o OUT.html"),
    ("whole/arcee/hf", "convert IN --to gguf -j 1 -o OUT.gguf"),
    ("whole/arcee/hf", "forget IN --to nf4 -j 1 -o OUT"),
    ("adapters/base", "merge IN DATA/adapters/plain -j 1 -o OUT"),
    ("hdf5/latest_chunks.h5", "convert IN --to safetensors -j 1 -o OUT.safetensors"),
    ("dcp/four", "convert IN --to safetensors -j 1 -o OUT.safetensors"),
];

/// A copy of an input in a directory of its own, in which outputs are made as well.
struct Place {
    root: tempfile::TempDir,
    arguments: Vec<OsString>,
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        std::fs::create_dir(to).unwrap();
        for name in names_in(from, "") {
            copy(&from.join(&name), &to.join(&name));
        }
    } else {
        std::fs::copy(from, to).unwrap();
    }
}

impl Place {
    fn new((input, command): Row) -> Self {
        let root = crate::common::tempdir().unwrap();
        let from = data().join(input);
        let copied = root.path().join(from.file_name().unwrap());
        copy(&from, &copied);
        let [input, output, data] =
            [copied, root.path().join("out"), data()].map(|path| path.to_str().unwrap().to_owned());
        let path = |word: &str| {
            let word = word.replace("OUT", &output).replace("DATA", &data);
            if word == "IN" { input.clone() } else { word }
        };
        let arguments = command.split(' ').map(|word| path(word).into()).collect();
        Self { root, arguments }
    }

    fn run(&self, plan: Plan) -> End {
        let arguments: Vec<&OsStr> = self.arguments.iter().map(OsString::as_os_str).collect();
        tracer::run(self.root.path(), &arguments, plan)
    }

    /// What is below the names of outputs, and the names of other things that were made.
    fn made(&self) -> (Content, Vec<String>) {
        let (mut made, mut others) = (Content::new(), Vec::new());
        for name in names_in(self.root.path(), "") {
            let path = self.root.path().join(&name);
            if name.starts_with("out") {
                made.extend(content(&path).unwrap());
            } else if name.starts_with('.') {
                others.push(name);
            }
        }
        (made, others)
    }

    fn clear(&self) {
        for name in names_in(self.root.path(), "") {
            let path = self.root.path().join(&name);
            match name.starts_with("out") || name.starts_with('.') {
                true if path.is_dir() => std::fs::remove_dir_all(path).unwrap(),
                true => std::fs::remove_file(path).unwrap(),
                false => {}
            }
        }
    }

    /// Runs the command with the fault at some calls, other ones for each number, or at all (see
    /// `effort`).
    fn rows(&self, fault: Fault, no: usize, check: impl Fn(&End, Plan)) {
        let plan = |at| Plan { kinds: DATA, fault, at: Some(at) };
        self.clear();
        let calls = self.run(plan(usize::MAX)).calls;
        assert!(calls > 5, "{calls} calls: {:?}", self.arguments);
        let stride = calls.div_ceil(effort([1, 6, usize::MAX]));
        for at in (1 + no * 7 % stride..=calls).step_by(stride) {
            self.clear();
            let plan = plan(at);
            check(&self.run(plan), plan);
        }
        self.clear();
    }
}

/// Runs `check` for each row, and reports all failures.
fn each(rows: &[Row], check: impl Fn(usize, &Place)) {
    let mut failures = Vec::new();
    for (no, row) in rows.iter().enumerate() {
        let place = Place::new(*row);
        let run = std::panic::AssertUnwindSafe(|| check(no, &place));
        if let Err(e) = std::panic::catch_unwind(run) {
            let text = e.downcast_ref::<String>().cloned().unwrap_or_default();
            failures.push(format!("{row:?}: {text}"));
        }
    }
    assert!(failures.is_empty(), "{} rows:\n{}", failures.len(), failures.join("\n"));
}

/// A file that cannot be read is no file that is not there.
#[test]
fn errors_while_a_model_is_read() {
    each(READERS, |no, place| {
        let never = Plan { kinds: DATA, fault: Fault::Kill, at: Some(usize::MAX) };
        let want = place.run(never);
        assert!(want.code.is_some_and(|code| code <= 1), "{want:?}");
        place.rows(Fault::Error(Errno::EIO), no, |end, plan| {
            let code = end.code.unwrap();
            let is_said = code != 0 && !end.stderr.is_empty();
            let is_same = end.code == want.code && end.stdout == want.stdout;
            let is_warned = [&end.stdout, &end.stderr]
                .into_iter()
                .any(|text| text.contains("Input/output error"));
            assert!(is_said || is_same || is_warned, "{plan:?}: {end:?}\n{want:?}");
        });
    });
}

/// An output is whole or not there.
#[test]
fn errors_while_an_output_is_written() {
    each(WRITERS, |no, place| {
        let never = Plan { kinds: DATA, fault: Fault::Kill, at: Some(usize::MAX) };
        let end = place.run(never);
        assert_eq!(end.code, Some(0), "{end:?}");
        let (want, others) = place.made();
        assert!(!want.is_empty() && others.is_empty(), "{others:?}");
        for fault in [Fault::Error(Errno::EIO), Fault::Kill] {
            place.rows(fault, no, |end, plan| {
                let (mut made, others) = place.made();
                made.retain(|name, _| name != ".anamnesis");
                match end.code {
                    Some(0) => assert!(made == want, "{plan:?}: {end:?}"),
                    Some(7) => assert!(made.is_empty(), "{plan:?}: {end:?}"),
                    None => assert!(made.is_empty() || made == want, "{plan:?}: {end:?}"),
                    _ => panic!("{plan:?}: {end:?}"),
                }
                let is_left = |name: &String| name != ".out.partial" && end.code.is_some();
                assert!(!others.iter().any(is_left), "{others:?}: {plan:?}: {end:?}");
            });
        }
    });
}

/// Runs the command with so much address space, in KiB.
fn run_in(place: &Place, kib: u64) -> std::process::Output {
    place.clear();
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "ulimit -v $0; exec timeout 60 \"$@\"", &kib.to_string()])
        .arg(env!("CARGO_BIN_EXE_amn"));
    command.args(&place.arguments).output().unwrap()
}

/// Without memory a command ends, whenever that is: with an error, or by the abort of the standard
/// library. Nothing has the name of an output that is not whole, and nothing is said that is not so.
/// The least memory with which it succeeds is searched, so that it fails early and late.
#[test]
fn memory_that_there_is_not() {
    let rows: Vec<Row> = READERS.iter().chain(WRITERS).copied().collect();
    let rows: Vec<Row> = rows.into_iter().step_by(effort([4, 1, 1])).collect();
    each(&rows, |_, place| {
        let (mut fails, mut works) = (1u64 << 14, 1 << 22);
        let want = run_in(place, works);
        let (made, _) = place.made();
        assert!(want.status.code().is_some_and(|code| code <= 1), "{want:?}");
        while works - fails > 1 << 7 {
            let kib = u64::midpoint(fails, works);
            let end = run_in(place, kib);
            let (mut left, _) = place.made();
            left.retain(|name, _| name != ".anamnesis");
            // What is printed of an output has the time that it took.
            let is_same = end.stdout == want.stdout || !made.is_empty();
            let is_done = end.status == want.status && is_same && left == made;
            let is_said = end.status != want.status;
            // What ends behind its last step has all.
            let is_whole = left.is_empty() || left == made;
            assert!(end.status.code() != Some(124), "{kib}: it does not end");
            assert!(is_done || is_said && is_whole, "{kib}: {end:?}");
            match is_done {
                true => works = kib,
                false => fails = kib,
            }
        }
    });
}

/// The power may go at any moment: what gets a name is on the disk before, and the name before the
/// command ends.
#[test]
fn names_are_given_to_what_is_on_the_disk() {
    each(WRITERS, |_, place| {
        let never = Plan { kinds: &[Kind::Name], fault: Fault::Kill, at: Some(usize::MAX) };
        let end = place.run(never);
        assert_eq!(end.code, Some(0), "{end:?}");
        let (mut unwritten, mut names, mut renamed) = (Vec::new(), Vec::new(), 0);
        for event in &end.events {
            match event {
                Event::Changed(path) => unwritten.push(path),
                Event::Created(path) => names.push(path),
                Event::Removed(path) => {
                    unwritten.retain(|changed| *changed != path);
                    names.retain(|name| *name != path);
                }
                Event::Synced(path) => {
                    unwritten.retain(|changed| *changed != path);
                    names.retain(|name| name.parent() != Some(path));
                }
                Event::Renamed(from, to) => {
                    renamed += 1;
                    let of_it =
                        |paths: &[&PathBuf]| paths.iter().any(|path| path.starts_with(from));
                    names.retain(|name| *name != from);
                    let is_whole = !of_it(&unwritten) && !of_it(&names);
                    assert!(is_whole, "{from:?} becomes {to:?} before {unwritten:?} {names:?}");
                    names.push(to);
                }
            }
        }
        assert!(renamed > 0, "{:?}", end.events);
        let output = place.root.path().join("out");
        assert!(!names.iter().any(|name| name.starts_with(&output)), "{names:?} at the end");
    });
}
