//! `--part`, `--part-index` and `--finish`, and the job script of the documents.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::directory::{assert_same_tree, names_in, seven_layers, tree};

struct Parts {
    root: tempfile::TempDir,
    input: PathBuf,
    out: PathBuf,
    want: BTreeMap<String, Vec<u8>>,
}

impl Parts {
    fn new() -> Self {
        let root = crate::common::tempdir().unwrap();
        let (input, want) = seven_layers(root.path(), 256);
        let out = root.path().join("out");
        Self { root, input, out, want }
    }

    /// Makes a part; the exit code, stdout and stderr.
    fn make(&self, more: &[&str]) -> (Option<i32>, String, String) {
        let (input, out) = (self.input.to_str().unwrap(), self.out.to_str().unwrap());
        run(&[&["remember", input, "-o", out], more].concat())
    }
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = crate::amn(arguments);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn finish(path: &Path) -> (Option<i32>, String, String) {
    run(&["remember", path.to_str().unwrap(), "--finish"])
}

#[test]
fn parts_name_what_they_write() {
    let parts = Parts::new();
    let partial = parts.root.path().join(".out.partial");
    let (code, text, _) = parts.make(&["--part", "1/2"]);
    assert_eq!(code, Some(0));
    let out = parts.out.display();
    let note =
        format!("Note: part 1 of 2; when all are there, `amn remember {out} --finish` ends it\n");
    assert!(text.contains(&note), "{text}");
    let output = format!("Output: {} (4 of 7 files of weights, ", partial.display());
    assert!(text.contains(&output), "{text}");
    let (_, json, _) = parts.make(&["--part", "2/2", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    let files = report["files"].as_array().unwrap();
    assert_eq!(files.len(), 3);
    assert!(
        files
            .iter()
            .all(|file| Path::new(file.as_str().unwrap()).is_file()),
        "{json}"
    );
    assert_eq!(finish(&parts.out).0, Some(0));
    assert_same_tree(&parts.want, &tree(&parts.out), "two parts");
}

/// An input that was moved to the output's place since the parts were made stays; another output
/// does not.
#[cfg(unix)]
#[test]
fn the_input_is_not_replaced_at_the_end() {
    for place in ["out", "out/sub", "out/a/b/input"] {
        let parts = Parts::new();
        for part in ["1/2", "2/2"] {
            assert_eq!(parts.make(&["--part", part]).0, Some(0));
        }
        let before = tree(&parts.input);
        let place = parts.root.path().join(place);
        if place != parts.out {
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::write(parts.out.join("model.safetensors"), "weights").unwrap();
        }
        std::fs::rename(&parts.input, &place).unwrap();
        let finish = || run(&["remember", parts.out.to_str().unwrap(), "--finish", "--force"]);
        let (code, _, error) = finish();
        assert_eq!(code, Some(7), "{error}");
        assert!(error.contains("is a file of the input"), "{error}");
        assert_same_tree(&before, &tree(&place), "the input");
        // A copy of it is an output like any other.
        std::fs::rename(&place, &parts.input).unwrap();
        std::fs::create_dir_all(&place).unwrap();
        for (name, bytes) in &before {
            let path = place.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        let (code, _, error) = finish();
        assert_eq!(code, Some(0), "{error}");
        assert_same_tree(&parts.want, &tree(&parts.out), "two parts");
    }
}

#[test]
fn parts_that_count_from_0() {
    let parts = Parts::new();
    for (part, n) in [("0/3", 3), ("1/3", 2), ("2/3", 2)] {
        let (code, text, error) = parts.make(&["--part-index", part]);
        assert_eq!(code, Some(0), "{error}");
        assert!(text.contains(&format!("({n} of 7 files")), "{text}");
    }
    assert_eq!(finish(&parts.out).0, Some(0));
    assert_same_tree(&parts.want, &tree(&parts.out), "three parts");
    for wrong in [
        &["--part-index", "3/3"][..],
        &["--part-index", "1"],
        &["--part-index", "0/2", "--part", "1/2"],
    ] {
        assert_eq!(parts.make(wrong).0, Some(2), "{wrong:?}");
    }
    let (code, _, error) = parts.make(&["--part", "0/3"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("--part-index counts from 0"), "{error}");
}

#[test]
fn finishing_what_is_no_output() {
    let parts = Parts::new();
    parts.make(&["--part", "1/2"]);
    let before = tree(parts.root.path());
    let partial = parts.root.path().join(".out.partial");
    for (path, what) in [
        (
            &parts.input,
            format!(
                "it is the input, and --finish takes the output: amn remember {} --finish",
                parts.out.display()
            ),
        ),
        (&partial, "--finish takes the name that the output is to have: `out`".to_owned()),
        (
            &parts.root.path().join("none"),
            "there is nothing to finish: neither this nor its parts in `.none.partial`".to_owned(),
        ),
        (
            &parts.input.join("config.json"),
            "there is nothing to finish, and it is no output of parts".to_owned(),
        ),
        (&parts.root.path().to_path_buf(), "there is nothing to finish".to_owned()),
        (&parts.out, ".out.partial: part 2 of 2 was not begun".to_owned()),
    ] {
        let (code, _, error) = finish(path);
        assert_eq!(code, Some(7), "{}: {error}", path.display());
        assert!(error.contains(&what), "{error}");
    }
    assert_same_tree(&before, &tree(parts.root.path()), "nothing is done");
}

/// The two scripts of `docs/guide/cluster.md`, with a stand-in for `sbatch` that runs the tasks of an array
/// one after another.
#[test]
fn slurm_scripts_of_the_documents() {
    let text = include_str!("../../docs/guide/cluster.md");
    let (_, text) = text.split_once("## As a SLURM job").unwrap();
    let mut blocks = text.split("```sh\n").skip(1);
    let mut block = || blocks.next().unwrap().split_once("```").unwrap().0;
    let (job, submit) = (block(), block());
    let parts = Parts::new();
    let root = parts.root.path();
    std::fs::rename(&parts.input, root.join("model-fp8")).unwrap();
    std::fs::write(root.join("parts.sh"), job).unwrap();
    let array = job
        .lines()
        .find_map(|line| line.strip_prefix("#SBATCH --array=0-"));
    let sbatch = format!(
        "sbatch() {{
            case \"$*\" in
                *--wrap*) for last; do :; done; eval \"$last\" ;;
                *) for i in $(seq 0 {}); do
                       SLURM_ARRAY_TASK_ID=$i SLURM_CPUS_PER_TASK=1 sh parts.sh >&2 || exit 1
                   done; echo 17 ;;
            esac
        }}",
        array.unwrap()
    );
    let bin = Path::new(env!("CARGO_BIN_EXE_amn")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-ec", &format!("{sbatch}\n{submit}")]);
    let output = shell.current_dir(root).env("PATH", path).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let mut found = tree(&root.join("model-bf16"));
    assert!(found.remove("SHA256SUMS").is_some());
    assert_same_tree(&parts.want, &found, "a job array");
    assert_eq!(names_in(root, ".partial").len(), 0);
}
