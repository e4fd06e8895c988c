//! Faults of the operating system at every call of small runs: an error, half the bytes, or the end
//! of the process. An output under its name is whole, or it is what was there before; the next run
//! makes the bytes of an undisturbed one.

mod edit;
mod tracer;
mod verbs;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::errno::Errno;
use tempfile::TempDir;

use self::tracer::{Fault, Kind, Plan};
use crate::common::directory::{in_one_file, make, names_in, shards, tree, write_files};
use crate::common::effort;

/// Every kind of call that can lose data.
const DATA: &[Kind] = &[Kind::Read, Kind::Write, Kind::Sync, Kind::Open, Kind::Name];

/// What is at a path: the bytes of a file, or of all files below a directory.
type Content = BTreeMap<String, Vec<u8>>;

fn content(path: &Path) -> Option<Content> {
    if path.is_dir() {
        return Some(tree(path));
    }
    let bytes = std::fs::read(path).ok()?;
    Some(BTreeMap::from([(String::new(), bytes)]))
}

/// What is at the name of an output, without the records of the work: these go when the output has
/// its name, and a process that is killed then leaves them to the next run.
fn named_content(path: &Path) -> Option<Content> {
    let mut content = content(path)?;
    content.retain(|name, _| name != ".anamnesis" && !name.starts_with("anamnesis-part-"));
    Some(content)
}

/// A conversion that is run again and again.
struct Scene {
    root: TempDir,
    input: PathBuf,
    output: PathBuf,
    /// What an undisturbed run makes.
    want: Content,
    /// What is at `output` before, and is replaced.
    old: Option<Content>,
    threads: usize,
}

impl Scene {
    /// A model of two layers, in two files or in one.
    fn new(is_directory: bool) -> Self {
        let root = crate::common::tempdir().unwrap();
        let mut input = root.path().join("model");
        if is_directory {
            make(&input, &shards(2, 128));
            // A name that would clear a terminal.
            write_files(&input, &[("extra/\u{1b}[2Jred.txt", "red")]);
            std::os::unix::fs::symlink("nowhere", input.join("\u{1b}[31mlink")).unwrap();
        } else {
            std::fs::create_dir(&input).unwrap();
            input = in_one_file(&input, &shards(2, 128));
        }
        let output = root
            .path()
            .join(["out.safetensors", "out"][usize::from(is_directory)]);
        let mut scene = Self { root, input, output, want: Content::new(), old: None, threads: 1 };
        let end = scene.run(&[]);
        assert!(end.status.success(), "{end:?}");
        scene.want = content(&scene.output).unwrap();
        scene.clear();
        scene
    }

    /// A model whose output replaces an older one.
    fn replacing(is_directory: bool) -> Self {
        let mut scene = Self::new(is_directory);
        let older = ["-", "model.safetensors"][usize::from(is_directory)];
        let older = Content::from([(older.to_owned(), b"older".to_vec())]);
        scene.old = Some(if is_directory {
            older
        } else {
            older.into_values().map(|b| (String::new(), b)).collect()
        });
        scene.clear();
        scene
    }

    fn is_directory(&self) -> bool {
        self.input.is_dir()
    }

    fn arguments(&self, more: &[&str]) -> Vec<OsString> {
        let (input, output) = (self.input.as_os_str(), self.output.as_os_str());
        let mut all = vec!["remember".into(), input.into(), "-o".into(), output.into()];
        all.extend(["--threads".into(), self.threads.to_string().into()]);
        if self.old.is_some() {
            all.push("--force".into());
        }
        all.extend(more.iter().map(OsString::from));
        all
    }

    fn run(&self, more: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_amn"));
        command.args(self.arguments(more)).output().unwrap()
    }

    fn partial(&self) -> PathBuf {
        self.root.path().join(".out.partial")
    }

    /// Removes everything but the input, and puts back what was there before.
    fn clear(&self) {
        for name in names_in(self.root.path(), "") {
            let path = self.root.path().join(&name);
            match name.as_str() {
                "model" => {}
                _ if path.is_dir() => std::fs::remove_dir_all(path).unwrap(),
                _ => std::fs::remove_file(path).unwrap(),
            }
        }
        for (name, bytes) in self.old.iter().flatten() {
            let path = self.output.join(name);
            match name.as_str() {
                "" => std::fs::write(&self.output, bytes).unwrap(),
                _ => {
                    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                    std::fs::write(path, bytes).unwrap();
                }
            }
        }
    }

    /// Runs the conversion with the fault of `plan`, checks what is left, and runs it again.
    /// Returns whether the run came to the call of the plan.
    fn row(&self, plan: Plan) -> bool {
        let arguments = self.arguments(&[]);
        let arguments: Vec<_> = arguments.iter().map(OsString::as_os_str).collect();
        let end = tracer::run(self.root.path(), &arguments, plan);
        if end.changed.is_empty() {
            assert_eq!(end.code, Some(0), "{}", end.stderr);
            self.clear();
            return false;
        }
        let context = format!("{plan:?}: {end:?}");
        assert!(!end.stderr.contains('\u{1b}'), "{context}");
        let found = named_content(&self.output);
        match end.code {
            Some(0) => assert!(found.as_ref() == Some(&self.want), "{context}"),
            Some(7) => {
                // Whatever threads there are make the output.
                assert!(!plan.kinds.contains(&Kind::Thread), "{context}");
                assert!(found == self.old, "{context}");
                assert!(end.stderr.starts_with("error: "), "{context}");
            }
            None if plan.fault == Fault::Kill => {
                let is_known = found == self.old || found.as_ref() == Some(&self.want);
                // Between the renames of a directory there is nothing under the name.
                assert!(is_known || found.is_none(), "{context}");
            }
            _ => panic!("{context}"),
        }
        if end.code.is_some() {
            self.check_leftovers(&context);
        }
        self.run_again(plan, &context);
        self.clear();
        true
    }

    /// Fails if a run that has ended by itself has left anything but what `--resume` goes on with.
    fn check_leftovers(&self, context: &str) {
        let names = names_in(self.root.path(), "");
        let is_known = |name: &String| {
            let is_partial = name == ".out.partial" && self.is_directory();
            // What a directory replaces is removed last of all, and its marker stays until then.
            let is_old = name == ".out.old" && self.output.join(".anamnesis").exists();
            let is_output = self.root.path().join(name) == self.output;
            name == "model" || is_output || is_partial || is_old
        };
        assert!(names.iter().all(is_known), "{names:?}, {context}");
        if self.partial().exists() {
            let shards = names_in(&self.partial(), ".safetensors");
            assert!(!shards.is_empty(), "nothing to resume, {context}");
            let temporary = names_in(&self.partial(), ".partial");
            assert!(temporary.is_empty(), "{temporary:?}, {context}");
        }
    }

    /// Runs the conversion again without a fault: as it was, or resumed if there is something to
    /// resume.
    fn run_again(&self, plan: Plan, context: &str) {
        let was_made = named_content(&self.output).as_ref() == Some(&self.want);
        let has_moved = self.root.path().join(".out.old").exists();
        let has_records = self.output.join(".anamnesis").exists();
        let again = match self.partial().exists() {
            true => self.run(&["--resume"]),
            false => self.run(&[]),
        };
        let stderr = String::from_utf8(again.stderr).unwrap();
        assert!(!stderr.contains('\u{1b}') && !again.stdout.contains(&0x1b), "{stderr}");
        if was_made && self.old.is_none() {
            assert_eq!(again.status.code(), Some(7), "{stderr}, {context}");
            assert!(stderr.contains("the output exists"), "{stderr}, {context}");
        } else {
            assert!(again.status.success(), "{stderr}, {context}");
        }
        assert!(content(&self.output).as_ref() == Some(&self.want), "{stderr}, {context}");
        let note = stderr.lines().find(|line| line.starts_with("note: "));
        assert_eq!(note.is_some(), has_moved || has_records, "{stderr}, {context}");
        let mut names = names_in(self.root.path(), "");
        if plan.fault == Fault::Kill {
            names.retain(|name| !(name.starts_with(".anamnesis-") && name.ends_with(".tmp")));
        }
        let output = self.output.file_name().unwrap().to_str().unwrap();
        assert_eq!(names, ["model", output], "{context}");
    }

    /// How many calls of these kinds an undisturbed run makes.
    fn calls(&self, kinds: &'static [Kind], fault: Fault) -> usize {
        let arguments = self.arguments(&[]);
        let arguments: Vec<_> = arguments.iter().map(OsString::as_os_str).collect();
        let never = Plan { kinds, fault, at: Some(usize::MAX) };
        let end = tracer::run(self.root.path(), &arguments, never);
        assert_eq!(end.code, Some(0), "{}", end.stderr);
        self.clear();
        end.calls
    }

    /// A row for the first of these calls, for the last, which give the output its name, and for
    /// some between them, or all (see `effort`). Fails with all rows that are wrong, or
    /// if there are fewer calls than `least`.
    fn rows(&self, kinds: &'static [Kind], fault: Fault, least: usize) {
        let (mut rows, mut failures) = (0, Vec::new());
        let (calls, stride) = (self.calls(kinds, fault), effort([97, 5, 1]));
        let [first, last] = effort([[1, 4], [3, 6], [3, 6]]);
        for at in 1..=calls {
            if at > first && at + last < calls && at % stride != 0 {
                continue;
            }
            let at = Some(at);
            let row = std::panic::AssertUnwindSafe(|| self.row(Plan { kinds, fault, at }));
            match std::panic::catch_unwind(row) {
                Ok(reached) => assert!(reached, "{fault:?} at {kinds:?}: no call {at:?}"),
                Err(e) => {
                    failures.push(e.downcast_ref::<String>().cloned().unwrap_or_default());
                    self.clear();
                }
            }
            rows += 1;
        }
        println!("{rows} rows of {calls}: {fault:?} at {kinds:?}");
        assert!(calls >= least, "only {calls} calls for {fault:?} at {kinds:?}");
        let wrong = failures.len();
        assert!(failures.is_empty(), "{wrong} rows:\n{}", failures.join("\n"));
    }
}

#[test]
fn errors_while_a_file_is_made() {
    let scene = Scene::new(false);
    scene.rows(DATA, Fault::Error(Errno::EIO), 20);
    scene.rows(&[Kind::Write], Fault::Error(Errno::ENOSPC), 3);
}

#[test]
fn errors_while_a_file_is_replaced() {
    let scene = Scene::replacing(false);
    scene.rows(DATA, Fault::Error(Errno::EIO), 20);
}

#[test]
fn errors_while_a_directory_is_made() {
    let scene = Scene::new(true);
    scene.rows(DATA, Fault::Error(Errno::EIO), 100);
    scene.rows(&[Kind::Write], Fault::Error(Errno::ENOSPC), 20);
}

#[test]
fn errors_while_a_directory_is_replaced() {
    let scene = Scene::replacing(true);
    scene.rows(DATA, Fault::Error(Errno::EIO), 100);
}

#[test]
fn calls_that_are_interrupted_or_do_half() {
    for is_directory in [false, true] {
        let scene = Scene::new(is_directory);
        for kinds in [&[Kind::Read], &[Kind::Write]] {
            scene.rows(kinds, Fault::Short, 3);
            scene.rows(kinds, Fault::Error(Errno::EINTR), 3);
        }
    }
}

#[test]
fn killed_at_every_call() {
    for is_directory in [false, true] {
        Scene::new(is_directory).rows(DATA, Fault::Kill, 20);
        Scene::replacing(is_directory).rows(DATA, Fault::Kill, 20);
    }
}

#[test]
fn threads_that_cannot_be_started() {
    for is_directory in [false, true] {
        let mut scene = Scene::new(is_directory);
        scene.threads = 4;
        scene.rows(&[Kind::Thread], Fault::Error(Errno::EAGAIN), 3);
        let none = Plan { kinds: &[Kind::Thread], fault: Fault::Error(Errno::EAGAIN), at: None };
        assert!(scene.row(none));
    }
}

/// A run that is resumed reads finished shards with several threads. Killed at any name, it goes on
/// without them.
#[test]
fn threads_of_checksums_that_cannot_be_started() {
    let mut scene = Scene::new(true);
    scene.threads = 4;
    let run = |more: &[&str], plan| {
        let arguments = scene.arguments(more);
        let arguments: Vec<_> = arguments.iter().map(OsString::as_os_str).collect();
        tracer::run(scene.root.path(), &arguments, plan)
    };
    let kill = |at| Plan { kinds: &[Kind::Name], fault: Fault::Kill, at: Some(at) };
    let none = Plan { kinds: &[Kind::Thread], fault: Fault::Error(Errno::EAGAIN), at: None };
    let mut resumed = 0;
    let step = effort([3, 1, 1]);
    for at in (1..).step_by(step) {
        if run(&[], kill(at)).code == Some(0) {
            break;
        }
        if scene.partial().exists() && !names_in(&scene.partial(), ".safetensors").is_empty() {
            let end = run(&["--resume"], none);
            assert_eq!(end.code, Some(0), "{end:?}");
            assert!(named_content(&scene.output).as_ref() == Some(&scene.want));
            assert!(!end.changed.is_empty(), "{end:?}");
            resumed += 1;
        }
        scene.clear();
    }
    assert!(resumed >= 3 / step, "{resumed}");
}

/// The files beside the weights count, as far as they take space. A refusal leaves nothing that is
/// in the way of the next run.
#[test]
fn space_for_the_files_beside_the_weights() {
    let scene = Scene::new(true);
    let end = |bytes| {
        let plan = Plan { kinds: &[Kind::Space], fault: Fault::Free(bytes), at: None };
        let arguments = scene.arguments(&[]);
        let arguments: Vec<_> = arguments.iter().map(OsString::as_os_str).collect();
        let end = tracer::run(scene.root.path(), &arguments, plan);
        assert!(!end.changed.is_empty(), "{end:?}");
        end
    };
    let weights: usize = scene
        .want
        .iter()
        .filter(|(name, _)| name.ends_with(".safetensors"))
        .map(|(_, bytes)| bytes.len())
        .sum();
    let free = weights as u64 + (1 << 20);
    std::fs::write(scene.input.join("tokenizer.model"), vec![1; 2 << 20]).unwrap();
    let refused = end(free);
    assert_eq!(refused.code, Some(7), "{refused:?}");
    assert!(refused.stderr.contains("are free"), "{refused:?}");
    assert_eq!(names_in(scene.root.path(), ""), ["model"]);

    // A hole takes no space.
    let sparse = std::fs::File::create(scene.input.join("tokenizer.model")).unwrap();
    sparse.set_len(1 << 33).unwrap();
    let made = end(free);
    assert_eq!(made.code, Some(0), "{made:?}");
    let copy = scene.output.join("tokenizer.model").metadata().unwrap();
    assert_eq!(copy.len(), 1 << 33);
}

/// Network file systems may be mounted without locks.
#[test]
fn file_systems_without_locks() {
    let scene = Scene::replacing(true);
    for error in [Errno::ENOLCK, Errno::EOPNOTSUPP, Errno::ENOSYS, Errno::EBADF] {
        let none = Plan { kinds: &[Kind::Lock], fault: Fault::Error(error), at: None };
        assert!(scene.row(none), "{error}");
    }
}

/// An array that is written by `amn show`: all of it is under its name, or what was there before.
#[test]
fn errors_while_an_array_is_written() {
    let scene = Scene::new(false);
    let (input, output) = (&scene.input, scene.root.path().join("a.npy"));
    let [input, path] = [input, &output].map(|path| path.to_str().unwrap());
    let name = "model.layers.0.proj.weight";
    let arguments = ["show", input, name, "--npy", path, "--force", "-j", "1"];
    let arguments = arguments.map(OsString::from);
    let arguments: Vec<_> = arguments.iter().map(OsString::as_os_str).collect();
    let undisturbed = Command::new(env!("CARGO_BIN_EXE_amn"))
        .args(&arguments)
        .output();
    assert!(undisturbed.unwrap().status.success());
    let want = std::fs::read(&output).unwrap();
    for fault in [Fault::Error(Errno::EIO), Fault::Kill] {
        let mut syncs = 0;
        for at in 1.. {
            std::fs::write(&output, "older").unwrap();
            let plan = Plan { kinds: DATA, fault, at: Some(at) };
            let end = tracer::run(scene.root.path(), &arguments, plan);
            let found = std::fs::read(&output).unwrap();
            match end.code {
                Some(0) => assert!(found == want, "{plan:?}"),
                Some(7) => assert!(found == b"older", "{plan:?}: {end:?}"),
                None => assert!(found == b"older" || found == want, "{plan:?}"),
                _ => panic!("{plan:?}: {end:?}"),
            }
            syncs += usize::from(end.changed.iter().any(|call| call.contains("call 74 ")));
            if fault != Fault::Kill {
                assert_eq!(names_in(scene.root.path(), ""), ["a.npy", "model"], "{plan:?}");
            }
            if end.changed.is_empty() {
                assert!(at > 10, "only {at} rows");
                break;
            }
        }
        // The file, and its directory.
        assert_eq!(syncs, 2, "{fault:?}");
    }
}
