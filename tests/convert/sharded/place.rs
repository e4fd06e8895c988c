//! Where an output directory may be made, and what it may replace.

use std::path::Path;

use anamnesis::{ConvertOptions, ConvertTarget, TargetDtype, parse};

use super::{bf16, forced, model};
use crate::common::directory::{INDEX, assert_same_tree, names_in, tree, write_files};
use crate::common::file;

#[test]
fn the_output_place_is_checked_first() {
    let root = crate::common::tempdir().unwrap();
    let (input, one) = model(root.path(), 2);
    let at = |name: &str| root.path().join(name);
    let parsed = parse(&input).unwrap();
    let refused = |output: &Path, options: ConvertOptions, what: &str| {
        let error = parsed.convert(output, options).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    write_files(
        root.path(),
        &[
            ("photos/cat.jpg", "precious"),
            ("weights/model.safetensors", "old"),
            ("file", "precious"),
        ],
    );
    std::fs::create_dir(at("empty")).unwrap();
    let before = tree(root.path());
    refused(&at("weights"), bf16().no_replace(), "exists");
    refused(&at("photos"), bf16(), "without weights");
    refused(&at("photos"), forced(), "without weights");
    refused(&at("file"), forced(), "a file is there");
    refused(&at("missing/out"), bf16(), "does not exist");
    refused(&input, bf16().no_replace(), "exists");
    refused(&input, bf16(), "the output is the input");
    refused(&input, forced(), "the output is the input");
    refused(&input.join("."), forced(), "the output is the input");
    assert_same_tree(&before, &tree(root.path()), "a refusal changes nothing");
    assert_eq!(names_in(root.path(), ".partial"), Vec::<String>::new());

    parsed.convert(at("empty"), bf16()).unwrap();
    parsed.convert(at("weights"), bf16()).unwrap();
    assert_same_tree(&tree(&at("empty")), &tree(&at("weights")), "what was there is gone");
    assert_eq!(names_in(root.path(), ".old"), Vec::<String>::new());
    drop(one);
}

/// A directory with a name that this crate uses, or with a file of weights, may belong to somebody
/// else.
#[test]
fn files_of_others_are_never_removed() {
    let root = crate::common::tempdir().unwrap();
    let (input, _) = model(root.path(), 2);
    let files = [
        (".a.partial/mine.safetensors", "precious"),
        ("b/model.safetensors", "old"),
        // The only copy, if a replacement was interrupted between its two renames.
        (".b.old/model.safetensors", "older"),
        ("firmware/rom.bin", "precious"),
        ("repository/model.safetensors", "old"),
        ("repository/.git/HEAD", "precious"),
    ];
    write_files(root.path(), &files);
    let before = tree(root.path());
    let parsed = parse(&input).unwrap();
    for (name, what) in [
        ("a", "no unfinished conversion"),
        ("b", "move it away"),
        ("firmware", "without weights"),
        ("repository", "a repository"),
    ] {
        for options in [forced(), forced().with_resume(true)] {
            let error = parsed
                .convert(root.path().join(name), options)
                .unwrap_err()
                .to_string();
            assert!(error.contains(what), "{name}: {error}");
        }
    }
    assert_same_tree(&before, &tree(root.path()), "a refusal changes nothing");
}

/// Replacing a directory removes everything in it, so it must not hold the input.
#[test]
fn an_output_that_holds_the_input_is_not_replaced() {
    let root = crate::common::tempdir().unwrap();
    let (input, one) = model(root.path(), 2);
    std::fs::write(root.path().join("weights.safetensors"), file(&[], &[])).unwrap();
    let linked = root.path().join("linked");
    std::fs::create_dir(&linked).unwrap();
    let mut cases = vec![
        (input.clone(), root.path().to_path_buf()),
        (one.clone(), one.parent().unwrap().to_path_buf()),
    ];
    if cfg!(unix) {
        for (name, _) in tree(&input).iter().filter(|(name, _)| !name.contains('/')) {
            #[cfg(unix)]
            std::os::unix::fs::symlink(input.join(name), linked.join(name)).unwrap();
        }
        cases.push((linked, input));
    }
    let before = tree(root.path());
    for (from, over) in cases {
        let options = forced().with_max_shard_size(1 << 40);
        let error = parse(&from)
            .unwrap()
            .convert(&over, options)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("the input is in it") || error.contains("the output is the input"),
            "{error}"
        );
        assert_same_tree(&before, &tree(root.path()), "a refusal changes nothing");
    }
}

#[test]
fn an_output_within_the_input_is_not_copied_into_itself() {
    let root = crate::common::tempdir().unwrap();
    let (input, _) = model(root.path(), 2);
    let model = parse(&input).unwrap();
    model
        .remember(root.path().join("out"), TargetDtype::BF16)
        .unwrap();
    for _ in 0..2 {
        model.convert(input.join("out"), forced()).unwrap();
        assert_same_tree(&tree(&root.path().join("out")), &tree(&input.join("out")), "inside");
    }
}

#[test]
fn parts_need_directories() {
    let root = crate::common::tempdir().unwrap();
    let (input, one) = model(root.path(), 2);
    let to_npz = ConvertOptions::new(ConvertTarget::Npz);
    let refused = |path: &Path, options: ConvertOptions, what: &str| {
        let error = parse(path)
            .unwrap()
            .convert(root.path().join("out"), options)
            .unwrap_err()
            .to_string();
        assert!(error.contains(what), "{error}");
    };
    refused(&input, bf16().with_part(0, 2), "0 of 2");
    refused(&input, bf16().with_part(3, 2), "3 of 2");
    refused(&one, bf16().with_part(1, 2), "part");
    if cfg!(feature = "npz") {
        refused(&input, to_npz.with_part(1, 2), "part");
    }
    assert!(!root.path().join("out").exists() && !root.path().join(".out.partial").exists());
    let nothing = anamnesis::finish_parts(root.path().join("out"), false)
        .unwrap_err()
        .to_string();
    assert!(nothing.contains("nothing to finish"), "{nothing}");
    assert!(std::fs::read(input.join(INDEX)).is_ok());
}

/// A file of the input that has another name in the output (a hard link) would be removed there.
#[cfg(unix)]
#[test]
fn an_output_with_the_inputs_files_is_not_replaced() {
    let root = crate::common::tempdir().unwrap();
    let (input, _) = model(root.path(), 2);
    let output = root.path().join("linked");
    std::fs::create_dir(&output).unwrap();
    let ours = names_in(&input, ".safetensors")[1].clone();
    let theirs = output.join("model.safetensors");
    std::fs::hard_link(input.join(&ours), theirs).unwrap();
    let before = tree(root.path());
    let error = parse(&input)
        .unwrap()
        .convert(&output, forced())
        .unwrap_err();
    let error = error.to_string();
    assert!(error.contains("linked/model.safetensors") && error.contains(&ours), "{error}");
    assert_same_tree(&before, &tree(root.path()), "a refusal changes nothing");
}
