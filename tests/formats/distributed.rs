//! Distributed checkpoints of PyTorch: what torch has written (`generate/dcp.py`), changed bytes,
//! and files alone.

mod by_hand;

use std::path::Path;

use anamnesis::{ConvertOptions, ConvertTarget, TargetDtype, parse, scan_pickles};
use safetensors::SafeTensors;

use crate::common::zip::{Member, Zip};
use crate::common::{assert_same, data, effort};

/// The cases of `generate/dcp.py`, and the number of tensors that lie in several pieces.
const CASES: [(&str, usize); 5] =
    [("one", 0), ("two", 6), ("four", 9), ("ragged", 1), ("files", 1)];

/// Compares the checkpoint `name` in `directory` with its golden, as it is and converted. `in_pieces`
/// of its tensors lie in several files.
pub fn assert_tensors(directory: &str, name: &str, in_pieces: usize) {
    let directory = data().join(directory);
    let expected = std::fs::read(directory.join(format!("{name}.expected.safetensors"))).unwrap();
    let model = parse(directory.join(name)).unwrap();
    let tensors = SafeTensors::deserialize(&expected).unwrap();
    assert_eq!(model.tensors().len(), tensors.len(), "{name}");
    for (tensor, view) in tensors.tensors() {
        let found = model
            .tensor(&tensor)
            .unwrap_or_else(|| panic!("{name}: no {tensor}"));
        assert_eq!(found.shape(), view.shape(), "{name}: {tensor}");
        assert_eq!(*found.bytes().unwrap(), *view.data(), "{name}: {tensor}");
        assert_eq!(found.file().is_none(), found.offset().is_none(), "{tensor}");
    }
    let apart = model.tensors().filter(|t| t.file().is_none());
    assert_eq!(apart.count(), in_pieces, "{name}");
    model.verify_checksums().unwrap();
    let directory = crate::common::tempdir().unwrap();
    let output = directory.path().join("out");
    let options = ConvertOptions::new(ConvertTarget::Safetensors);
    model.convert(&output, &options).unwrap();
    let written: Vec<_> = std::fs::read_dir(&output).unwrap().collect();
    assert_eq!(written.len(), 1, "{written:?}");
    let written = std::fs::read(output.join("model.safetensors")).unwrap();
    assert_same(&expected, &written, name);
}

#[test]
fn tensors_of_torch() {
    for (name, in_pieces) in CASES {
        assert_tensors("dcp", name, in_pieces);
    }
}

#[test]
fn values_that_are_no_tensors_are_named() {
    let model = parse(data().join("dcp/one")).unwrap();
    let notes = model.inspect().notes;
    let expected = "3 values (optimizer.lr, optimizer.betas, step)";
    assert!(notes.iter().any(|note| note.contains(expected)), "{notes:?}");
}

#[test]
fn rows_of_a_tensor_in_pieces() {
    let model = parse(data().join("dcp/four")).unwrap();
    let conversion = model.plan(TargetDtype::F32).unwrap();
    for name in ["model.rows", "model.columns", "model.both", "model.inner"] {
        let whole = conversion.tensor(name).unwrap();
        let rows = model.tensor(name).unwrap().shape()[0];
        let row = whole.len() / rows;
        for first in 0..rows {
            let found = conversion.rows(name, first..rows).unwrap();
            assert_eq!(found, whole[first * row..], "{name}");
        }
    }
}

/// torch's writer of safetensors makes a file for each process, of pieces, and joins them if it is
/// asked to.
#[test]
fn safetensors_of_torch() {
    let directory = data().join("dcp/hugging_face");
    let model = parse(&directory).unwrap();
    let expected = std::fs::read(data().join("dcp/files.expected.safetensors")).unwrap();
    assert_same(&expected, &model.remember_to_bytes(TargetDtype::BF16).unwrap(), "joined");
    let copy = crate::common::tempdir().unwrap();
    for rank in 1..=2 {
        let name = format!("shard-{rank:05}-model-00001-of-00001.safetensors");
        let error = parse(directory.join(&name)).unwrap_err();
        assert!(error.to_string().contains("its tensors are pieces"), "{error}");
        std::fs::copy(directory.join(&name), copy.path().join(&name)).unwrap();
    }
    let error = parse(copy.path()).unwrap_err().to_string();
    assert!(error.contains("each process has written its pieces"), "{error}");
    // Under another name, and in memory, the offset of the second piece tells.
    let second = std::fs::read(directory.join("shard-00002-model-00001-of-00001.safetensors"));
    assert!(anamnesis::parse_bytes(second.unwrap()).is_err());
}

/// Copies the files of a case to a directory, without those that `left_out` selects.
fn copied(case: &str, left_out: impl Fn(&str) -> bool) -> tempfile::TempDir {
    let copy = crate::common::tempdir().unwrap();
    for entry in std::fs::read_dir(data().join("dcp").join(case)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !left_out(name) {
            std::fs::copy(&path, copy.path().join(name)).unwrap();
        }
    }
    copy
}

#[test]
fn files_alone_are_refused() {
    let directory = data().join("dcp/two");
    for (file, words) in [
        (".metadata", "metadata of a distributed checkpoint"),
        ("__0_0.distcp", "give the directory"),
    ] {
        let error = parse(directory.join(file)).unwrap_err().to_string();
        assert!(error.contains(words), "{file}: {error}");
    }
    let refused = |directory: &Path, words: &str| {
        let error = parse(directory).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    };
    let copy = copied("two", |name| name == ".metadata");
    refused(copy.path(), "`.metadata` is missing");
    std::fs::write(copy.path().join("__0.metadata"), b"").unwrap();
    refused(copy.path(), "metadata of its own");
    let copy = copied("two", |name| name == "__1_0.distcp");
    refused(copy.path(), "__1_0.distcp");
    let copy = copied("two", |_| false);
    let shard = data().join("demo/model-fp8.safetensors");
    std::fs::copy(&shard, copy.path().join("model.safetensors")).unwrap();
    refused(copy.path(), "which of two models?");
    // A file that the metadata do not name is not read, and a note says so.
    let copy = copied("two", |_| false);
    std::fs::copy(&shard, copy.path().join("other.safetensors")).unwrap();
    std::fs::write(copy.path().join("__9_0.distcp"), b"").unwrap();
    let notes = parse(copy.path()).unwrap().inspect().notes;
    let expected = "left out: __9_0.distcp, other.safetensors";
    assert!(notes.iter().any(|note| note.contains(expected)), "{notes:?}");
}

#[test]
fn pickles_are_graded() {
    for (name, _) in CASES {
        for entry in std::fs::read_dir(data().join("dcp").join(name)).unwrap() {
            let path = entry.unwrap().path();
            let scan = scan_pickles(&path, &Default::default()).unwrap();
            assert!(scan.remarks.is_empty(), "{path:?}: {:?}", scan.remarks);
            assert!(!scan.globals.is_empty() || name == "one" || name == "files", "{path:?}");
            let safe = anamnesis::PickleRisk::Safe;
            let worse = scan.globals.iter().filter(|global| global.risk != safe);
            assert_eq!(worse.count(), 0, "{path:?}: {:?}", scan.globals);
        }
    }
    // Of two archives the first is graded as well, and what is in none is a remark.
    let evil = Member::stored("m/data.pkl", b"\x80\x02cos\nsystem\n.");
    let mild = Zip::of(&[Member::stored("m/data.pkl", b"\x80\x02N.")]).file();
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("__0_0.distcp");
    std::fs::write(&path, [Zip::of(&[evil]).file(), mild.clone()].concat()).unwrap();
    let scan = scan_pickles(&path, &Default::default()).unwrap();
    assert_eq!(scan.risk, anamnesis::PickleRisk::Dangerous);
    std::fs::write(&path, [&b"x"[..], &mild].concat()).unwrap();
    let scan = scan_pickles(&path, &Default::default()).unwrap();
    assert_eq!((scan.risk, scan.remarks.len()), (anamnesis::PickleRisk::Suspicious, 1));
}

/// Every byte of a file of pieces, or a fifth of them, is changed: an error, or the same values.
#[test]
fn no_changed_byte_changes_a_value() {
    let copy = copied("ragged", |_| false);
    let expected = std::fs::read(data().join("dcp/ragged.expected.safetensors")).unwrap();
    let path = copy.path().join("__1_0.distcp");
    let whole = std::fs::read(&path).unwrap();
    let (mut refused, step) = (0, effort([5, 1, 1]));
    for i in (0..whole.len()).step_by(step) {
        let mut changed = whole.clone();
        changed[i] ^= 1 << (i % 8);
        std::fs::write(&path, &changed).unwrap();
        let made = parse(copy.path()).and_then(|model| model.remember_to_bytes(TargetDtype::F32));
        match made {
            Ok(made) => assert_same(&expected, &made, &format!("byte {i}")),
            Err(_) => refused += 1,
        }
    }
    // Many bytes mean nothing: times, padding, what the directory has once more.
    assert!(refused > whole.len() / step / 3, "{refused} of {}", whole.len());
}

/// Every byte of the metadata, or a third of them, is changed: an error, or a model that can be decoded or not, but no
/// panic.
#[test]
fn changed_metadata_panic_nowhere() {
    let copy = copied("ragged", |_| false);
    let path = copy.path().join(".metadata");
    let whole = std::fs::read(&path).unwrap();
    for i in (0..whole.len()).step_by(effort([3, 1, 1])) {
        for change in [1, 0x80] {
            let mut changed = whole.clone();
            changed[i] ^= change;
            std::fs::write(&path, &changed).unwrap();
            let model = parse(copy.path());
            let _ = model.and_then(|model| model.remember_to_bytes(TargetDtype::F32));
        }
    }
}
