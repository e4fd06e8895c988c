//! Files of the processes of FSDP: what torch has written (`generate/fsdp_ranks.py`), and files that
//! do not go together.

use std::path::Path;

use anamnesis::{ConvertTarget, ErrorKind, PickleRisk, parse, scan_pickles};

use crate::common::{assert_same, data};
use crate::zero::changed::edit;

/// The cases, and the number of tensors that lie in several pieces.
const CASES: [(&str, usize); 3] = [("four", 4), ("replicas", 3), ("torch_2_6", 2)];

#[test]
fn tensors_of_torch() {
    for (name, in_pieces) in CASES {
        crate::distributed::assert_tensors("fsdp", name, in_pieces);
    }
    let notes = parse(data().join("fsdp/four")).unwrap().inspect().notes;
    for words in ["the parts of 4 processes", "no tensors: step"] {
        assert!(notes.iter().any(|note| note.contains(words)), "{words}: {notes:?}");
    }
}

/// The files of a case, as `change` leaves them.
fn changed(case: &str, change: impl Fn(&Path)) -> tempfile::TempDir {
    let copy = crate::common::tempdir().unwrap();
    for entry in std::fs::read_dir(data().join("fsdp").join(case)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    change(copy.path());
    copy
}

fn rank(dir: &Path, rank: usize) -> std::path::PathBuf {
    dir.join(format!("model_world_size_4_rank_{rank}.pt"))
}

fn refused(case: &str, words: &str, change: impl Fn(&Path)) {
    let copy = changed(case, change);
    let error = parse(copy.path()).unwrap_err();
    assert!(error.to_string().contains(words), "{words}: {error}");
    assert!(matches!(error.kind(), ErrorKind::Parse | ErrorKind::Unsupported), "{error}");
}

/// The model in `dir` is that of a case.
fn assert_same_model(dir: &Path, case: &str) {
    let [ours, theirs] = [dir.to_owned(), data().join("fsdp").join(case)].map(|dir| {
        let model = parse(dir).unwrap();
        let plan = model.plan(ConvertTarget::Safetensors);
        plan.and_then(|plan| plan.to_bytes()).unwrap()
    });
    assert_same(&theirs, &ours, case);
}

#[test]
fn files_that_do_not_go_together() {
    for n in 0..4 {
        let words = format!("`model_world_size_4_rank_{n}.pt` is missing");
        refused("four", &words, |dir| std::fs::remove_file(rank(dir, n)).unwrap());
    }
    refused("four", "which of two checkpoints?", |dir| {
        std::fs::copy(rank(dir, 0), dir.join("model_world_size_2_rank_1.pt")).unwrap();
    });
    // A file under the name of another is that one twice.
    refused("four", "do not fill a mesh", |dir| {
        std::fs::copy(rank(dir, 0), rank(dir, 1)).unwrap();
    });
    refused("four", "it is not in `model_world_size_4_rank_0.pt`", |dir| {
        std::fs::copy(data().join("fsdp/replicas/model_world_size_4_rank_2.pt"), rank(dir, 2))
            .unwrap();
    });
    // Processes can be exchanged: their coordinates say which is which.
    let copy = changed("four", |dir| {
        std::fs::rename(rank(dir, 1), dir.join("x")).unwrap();
        std::fs::rename(rank(dir, 2), rank(dir, 1)).unwrap();
        std::fs::rename(dir.join("x"), rank(dir, 2)).unwrap();
    });
    assert_same_model(copy.path(), "four");
    // Another model beside them is taken, and the files are noted as they were.
    let copy = changed("four", |dir| {
        std::fs::copy(data().join("demo/model-fp8.safetensors"), dir.join("model.safetensors"))
            .unwrap();
    });
    let notes = parse(copy.path()).unwrap().inspect().notes;
    assert!(
        notes
            .iter()
            .any(|note| note.contains("model_world_size_4_rank_0.pt")),
        "{notes:?}"
    );
}

#[test]
fn one_file_alone() {
    let error = parse(rank(&data().join("fsdp/four"), 1))
        .unwrap_err()
        .to_string();
    assert!(error.contains("give the directory"), "{error}");
}

/// What a process says of itself must fit what the others say.
#[test]
fn changed_states() {
    let at = |n: usize, anchor: &'static str, from: &'static [u8], to: &'static [u8]| {
        move |dir: &Path| edit(&rank(dir, n), anchor, from, to)
    };
    let coordinate = "_coordinate_on_dim";
    refused("four", "do not fill a mesh", at(1, coordinate, b"K\x01\x85", b"K\x04\x85"));
    refused("four", "do not fill a mesh", at(1, coordinate, b"K\x01\x85", b"K\x02\x85"));
    // Of the first tensor, which has five rows on four processes.
    refused("four", "tensor `weight`: the part in `model_world_size_4_rank_0.pt`", |dir| {
        (0..4).for_each(|n| edit(&rank(dir, n), "bfloat16", b"K\x05K\x03", b"K\x05K\x04"));
    });
    refused("four", "different types, sizes", at(1, "bfloat16", b"K\x05K\x03", b"K\x06K\x03"));
    refused(
        "four",
        "different types, sizes",
        at(1, "placement_types\nShard", b"K\x00s", b"K\x01s"),
    );
    for n in 0..4 {
        let edit = at(n, "placement_types\nShard", b"K\x00s", b"K\x07s");
        refused("four", "different types, sizes", edit);
    }
    refused("four", "along a dimension that it lacks", |dir| {
        (0..4).for_each(|n| edit(&rank(dir, n), "placement_types\nShard", b"K\x00s", b"K\x07s"));
    });
    refused("four", "another way than in chunks", |dir| {
        (0..4).for_each(|n| edit(&rank(dir, n), "placement_types", b"Shard\n", b"Spard\n"));
    });
    refused("replicas", "divided twice", |dir| {
        (0..4).for_each(|n| edit(&rank(dir, n), "both", b"K\x00s", b"K\x01s"));
    });
}

/// Writes the file of a process anew. `change` makes the content of a member another, and says
/// whether it has a checksum.
fn rewrite(path: &Path, change: impl Fn(&str, Vec<u8>) -> (Vec<u8>, bool)) {
    let members = crate::zero::changed::members(&std::fs::read(path).unwrap());
    let made = members.into_iter().map(|(name, content)| {
        let (content, has_crc) = change(&name, content);
        let member = crate::common::zip::Member::stored(&name, &content);
        match has_crc {
            true => member,
            false => member.both(|header| header.crc = 0),
        }
    });
    let members: Vec<_> = made.collect();
    std::fs::write(path, crate::common::zip::Zip::of(&members).file()).unwrap();
}

/// Copies are compared by the checksums of their storages, and by their values without these.
#[test]
fn copies_that_differ() {
    let flipped = |has_crc: bool| {
        move |name: &str, mut content: Vec<u8>| {
            if name.contains("/data/") && content.len() == 12 {
                content[3] ^= 1;
            }
            (content, has_crc || !name.contains("/data/"))
        }
    };
    for has_crc in [true, false] {
        // `whole`, of three values, and its copy in another process.
        let words =
            "tensor `whole`: `model_world_size_4_rank_0.pt` and `model_world_size_4_rank_3.pt`";
        refused("replicas", words, |dir| rewrite(&rank(dir, 3), flipped(has_crc)));
    }
    // Without checksums, and the same.
    let copy = changed("replicas", |dir| {
        (0..4).for_each(|n| {
            rewrite(&rank(dir, n), |name, content| (content, !name.contains("/data/")));
        });
    });
    assert_same_model(copy.path(), "replicas");
    // A part of a tensor, which two processes have.
    refused("replicas", "different values of what must be the same", |dir| {
        let change = |name: &str, mut content: Vec<u8>| {
            if name.contains("/data/") && content.len() == 36 {
                content[3] ^= 1;
            }
            (content, true)
        };
        rewrite(&rank(dir, 2), change);
    });
}

/// A changed byte of a pickle, or a file that is cut, is read or refused.
#[test]
fn any_changed_byte() {
    let original = std::fs::read(rank(&data().join("fsdp/replicas"), 1)).unwrap();
    let members = crate::zero::changed::members(&original);
    let pickle = members
        .iter()
        .position(|(name, _)| name.ends_with("data.pkl"))
        .unwrap();
    let copy = changed("replicas", |_| ());
    let step = crate::common::effort([41, 7, 1]);
    for at in (0..members[pickle].1.len()).step_by(step) {
        let mut members = members.clone();
        members[pickle].1[at] ^= 1 << (at % 8);
        let members: Vec<_> = members
            .iter()
            .map(|(name, content)| crate::common::zip::Member::stored(name, content))
            .collect();
        std::fs::write(rank(copy.path(), 1), crate::common::zip::Zip::of(&members).file()).unwrap();
        if let Ok(model) = parse(copy.path()) {
            let _ = model
                .plan(ConvertTarget::Safetensors)
                .and_then(|plan| plan.to_bytes());
        }
    }
}

/// What is unknown stays so, and nothing is dangerous.
#[test]
fn pickles_are_graded() {
    let scan = scan_pickles(rank(&data().join("fsdp/four"), 0), &Default::default()).unwrap();
    assert_eq!(scan.risk, PickleRisk::Suspicious);
    assert!(
        scan.globals
            .iter()
            .any(|global| global.global.name == "DTensor")
    );
}
