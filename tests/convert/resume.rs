//! Directories that are cancelled and resumed, or made in parts: the bytes are always those of one
//! undisturbed run.

mod changed;
mod failures;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anamnesis::{
    AnamnesisError, CancelToken, ConvertOptions, RememberOptions, TargetDtype, finish_parts, parse,
};

use crate::common::directory::{assert_same_tree, names_in, seven_layers, tree};

type Change = fn(&mut ConvertOptions);

fn bf16() -> ConvertOptions {
    ConvertOptions::from(TargetDtype::BF16)
}

/// Options that stop the work once `bytes` are written.
fn cancelled_after(bytes: u64) -> ConvertOptions {
    let cancel = CancelToken::new();
    let token = cancel.clone();
    let stop = move |p: anamnesis::Progress| {
        if p.done_bytes >= bytes {
            token.cancel();
        }
    };
    RememberOptions::new(TargetDtype::BF16)
        .with_cancel(cancel)
        .with_threads(2)
        .with_progress(stop)
        .into()
}

/// Cancels a conversion to `out` after about three shards.
pub fn interrupt(root: &Path, input: &Path) -> PathBuf {
    let output = root.join("out");
    let error = parse(input)
        .unwrap()
        .convert(&output, cancelled_after(700_000))
        .unwrap_err();
    assert!(matches!(error, AnamnesisError::Cancelled), "{error}");
    assert!(!output.exists());
    let done = names_in(&root.join(".out.partial"), ".safetensors").len();
    assert!((1..7).contains(&done), "{done} shards");
    output
}

/// The error of a conversion that is refused; no file may change.
fn refused(input: &Path, output: &Path, options: ConvertOptions) -> String {
    let root = output.parent().unwrap();
    let before = tree(root);
    let error = parse(input).unwrap().convert(output, options).unwrap_err();
    assert!(matches!(error, AnamnesisError::Io(_)), "{error}");
    assert_same_tree(&before, &tree(root), "a refusal changes nothing");
    error.to_string()
}

#[test]
fn a_cancelled_conversion_is_resumed() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 256);
    for bytes in [1, 300_000, 600_000, 1_000_000, 1_150_000] {
        let output = root.path().join("out");
        let error = parse(&input)
            .unwrap()
            .convert(&output, cancelled_after(bytes))
            .unwrap_err();
        assert!(matches!(error, AnamnesisError::Cancelled), "{error}");
        assert!(!output.exists(), "{bytes}");
        parse(&input)
            .unwrap()
            .convert(&output, bf16().with_resume(true))
            .unwrap();
        assert_same_tree(&want, &tree(&output), &format!("after {bytes} bytes"));
        assert_eq!(names_in(root.path(), ""), ["model", "out", "want"]);
        std::fs::remove_dir_all(output).unwrap();
    }
}

#[test]
fn shards_that_are_there_are_not_made_again() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 256);
    let output = interrupt(root.path(), &input);
    let partial = root.path().join(".out.partial");
    let times = || -> Vec<_> {
        let names = names_in(&partial, ".safetensors");
        names
            .iter()
            .map(|name| (name.clone(), partial.join(name).metadata().unwrap().modified().unwrap()))
            .collect()
    };
    let before = times();
    let (most, first) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(u64::MAX)));
    let (seen, begun) = (most.clone(), first.clone());
    let total = Arc::new(AtomicU64::new(0));
    let all = total.clone();
    let run = RememberOptions::new(TargetDtype::BF16).with_progress(move |p| {
        assert!(p.done_bytes <= p.total_bytes, "{p:?}");
        seen.fetch_max(p.done_bytes, Ordering::Relaxed);
        begun.fetch_min(p.done_bytes, Ordering::Relaxed);
        all.store(p.total_bytes, Ordering::Relaxed);
    });
    let resumed = ConvertOptions::from(run).with_resume(true);
    parse(&input).unwrap().convert(&output, resumed).unwrap();
    assert_eq!(most.load(Ordering::Relaxed), total.load(Ordering::Relaxed));
    assert!(first.load(Ordering::Relaxed) > 196_608, "what was there counts as done");
    for (name, time) in before {
        assert_eq!(output.join(&name).metadata().unwrap().modified().unwrap(), time, "{name}");
    }
    assert_same_tree(&want, &tree(&output), "resumed");
}

#[test]
fn a_shard_that_is_not_whole_is_made_again() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 256);
    let output = interrupt(root.path(), &input);
    let partial = root.path().join(".out.partial");
    let first = partial.join(&names_in(&partial, ".safetensors")[0]);
    std::fs::write(first, "short").unwrap();
    parse(&input)
        .unwrap()
        .convert(&output, bf16().with_resume(true))
        .unwrap();
    assert_same_tree(&want, &tree(&output), "resumed");
}

#[test]
fn an_unfinished_directory_is_not_resumed_unasked() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 256);
    let output = interrupt(root.path(), &input);
    let error = refused(&input, &output, bf16());
    assert!(error.contains("--resume") && error.contains("--force"), "{error}");
    let resumed = || bf16().with_resume(true);
    let other = |change: Change| {
        let mut options = resumed();
        change(&mut options);
        refused(&input, &output, options)
    };
    let cases: [(Change, &str); 6] = [
        (|o| o.run.to = TargetDtype::F16, "(to: \"F16\", and it was begun with \"BF16\")"),
        (|o| o.run.to = TargetDtype::F32, "(to: \"F32\""),
        (|o| o.max_shard_size = Some(5), "(max_shard_size: 5"),
        (|o| o.include = vec!["*".to_owned()], "(include: [\"*\"]"),
        (|o| o.exclude = vec!["*.norm.*".to_owned()], "(exclude: "),
        (|o| o.part = Some((1, 2)), "(parts: 2"),
    ];
    for (change, what) in cases {
        let error = other(change);
        assert!(error.contains("other parameters") && error.contains(what), "{error}");
    }
    let error = finish_parts(&output, false).unwrap_err().to_string();
    assert!(error.contains("part 1 of 1 is not done"), "{error}");

    let forced = RememberOptions::new(TargetDtype::BF16).with_force(true);
    parse(&input).unwrap().remember(&output, forced).unwrap();
    assert_same_tree(&want, &tree(&output), "begun anew");
}

#[test]
fn an_input_that_has_changed_is_not_resumed() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 256);
    let output = interrupt(root.path(), &input);
    let shard = input.join(&names_in(&input, ".safetensors")[3]);
    let bytes = std::fs::read(&shard).unwrap();
    let before = shard.metadata().unwrap().modified().unwrap();
    let rewrite = |time: std::time::SystemTime| {
        std::fs::write(&shard, &bytes).unwrap();
        std::fs::File::options()
            .write(true)
            .open(&shard)
            .unwrap()
            .set_modified(time)
            .unwrap();
    };
    rewrite(before + std::time::Duration::from_secs(1));
    let error = refused(&input, &output, bf16().with_resume(true));
    assert!(error.contains("the input has changed"), "{error}");
    rewrite(before);
    // The config decides how codes are read, and a user may correct it in between.
    let config = input.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let changed = std::fs::File::options().append(true).open(&config).unwrap();
    std::io::Write::write_all(&mut &changed, b"\n").unwrap();
    let error = refused(&input, &output, bf16().with_resume(true));
    assert!(error.contains("the input has changed"), "{error}");
    std::fs::write(&config, text).unwrap();
    let run = RememberOptions::new(TargetDtype::BF16).with_force(true);
    parse(&input).unwrap().remember(&output, run).unwrap();
    assert_same_tree(&want, &tree(&output), "begun anew");
}

#[test]
fn files_of_another_conversion_do_not_stay() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 256);
    let output = interrupt(root.path(), &input);
    let partial = root.path().join(".out.partial");
    // The state after an interruption at the very end: the manifest is gone, everything else is
    // there.
    for manifest in names_in(&partial, ".json")
        .iter()
        .filter(|name| name.starts_with("anamnesis-"))
    {
        std::fs::remove_file(partial.join(manifest)).unwrap();
    }
    std::fs::write(partial.join("model-00009-of-00009.safetensors"), "").unwrap();
    parse(&input)
        .unwrap()
        .convert(&output, bf16().with_resume(true))
        .unwrap();
    assert_same_tree(&want, &tree(&output), "resumed");
}

#[test]
fn parts_one_after_another() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 256);
    let output = root.path().join("out");
    let model = parse(&input).unwrap();
    let part = |part: usize, of: usize| model.convert(&output, bf16().with_part(part, of));
    let unfinished = || finish_parts(&output, false).unwrap_err().to_string();
    for (no, next) in [(3, 1), (1, 2)] {
        let report = part(no, 3).unwrap();
        assert!(report.notes.iter().any(|note| note.contains("--finish")), "{:?}", report.notes);
        assert!(
            unfinished().contains(&format!("part {next} of 3 was not begun")),
            "{}",
            unfinished()
        );
    }
    assert!(refused(&input, &output, bf16().with_part(2, 4)).contains("(parts: 4"));
    let mut other = bf16().with_part(2, 3);
    other.run.to = TargetDtype::F16;
    assert!(refused(&input, &output, other).contains("(to: \"F16\""));
    let again = refused(&input, &output, bf16().with_part(1, 3));
    assert!(again.contains("--resume"), "{again}");
    let mut forced = bf16().with_part(1, 3);
    forced.run.replace = anamnesis::Replace::Everything;
    let again = refused(&input, &output, forced);
    assert!(!again.contains("--force") && again.contains("delete"), "{again}");

    let error = model
        .convert(&output, cancelled_after(1).with_part(2, 3))
        .unwrap_err();
    assert!(matches!(error, AnamnesisError::Cancelled), "{error}");
    assert!(unfinished().contains("part 2 of 3 was not begun"), "{}", unfinished());
    model
        .convert(&output, bf16().with_part(2, 3).with_resume(true))
        .unwrap();
    assert!(!output.exists());
    finish_parts(&output, false).unwrap();
    assert_same_tree(&want, &tree(&output), "three parts");
    assert!(unfinished().contains("exists"), "{}", unfinished());
    assert_eq!(names_in(root.path(), ""), ["model", "out", "want"]);
}

#[test]
fn more_parts_than_shards() {
    let root = crate::common::tempdir().unwrap();
    let (input, want) = seven_layers(root.path(), 256);
    let output = root.path().join("out");
    for part in (1..=10).rev() {
        parse(&input)
            .unwrap()
            .convert(&output, bf16().with_part(part, 10))
            .unwrap();
    }
    finish_parts(&output, false).unwrap();
    assert_same_tree(&want, &tree(&output), "ten parts");
}

#[test]
fn parts_are_made_of_one_input() {
    let root = crate::common::tempdir().unwrap();
    let (input, _) = seven_layers(root.path(), 256);
    let output = root.path().join("out");
    parse(&input)
        .unwrap()
        .convert(&output, bf16().with_part(1, 2))
        .unwrap();
    let shard = std::fs::File::options()
        .write(true)
        .open(input.join(&names_in(&input, ".safetensors")[3]))
        .unwrap();
    shard
        .set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(5))
        .unwrap();
    let error = refused(&input, &output, bf16().with_part(2, 2));
    assert!(error.contains("the input has changed"), "{error}");
}
