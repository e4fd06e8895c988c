//! Checkpoints as views of storages: what is read of a file and when, which checksums are compared,
//! and copies of every tensor whatever its scheme.

use std::borrow::Cow;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use anamnesis::{
    AnamnesisError, ConvertOptions, ConvertTarget, ErrorKind, ParsedModel, Result, TargetDtype,
    parse_bytes, parse_from_reader, parse_npz_bytes, parse_pth_bytes, pth_to_safetensors_bytes,
};

use crate::common::pickle::{storage, text, view};
use crate::common::zip::{Member, Zip};
use crate::common::{assert_same, data};

/// Bytes of each of the two storages.
const STORAGE: usize = 1 << 20;

/// A pickle of a dict with these values.
fn pickle_of(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let entries = entries
        .iter()
        .map(|(name, value)| [text(name), value.clone(), b"s".to_vec()].concat());
    [b"\x80\x02}".to_vec(), entries.collect::<Vec<_>>().concat(), b".".to_vec()].concat()
}

/// A checkpoint of storages `0`, which the tensors `a`, `b` and `t` view, and `1`, which is `c`.
/// With `damage`, one byte in the middle of storage `1` is not the one that its checksum is of.
fn checkpoint(damage: bool) -> Vec<u8> {
    let floats = (STORAGE / 4) as i64;
    let of = |key: &str| storage("FloatStorage", &text(key), floats);
    let (half, side) = (floats / 2, 512);
    let pickle = pickle_of(&[
        ("a", view(&of("0"), 0, &[half], &[1])),
        ("b", view(&of("0"), half, &[half], &[1])),
        ("t", view(&of("0"), 0, &[side, side], &[1, side])),
        ("c", view(&of("1"), 0, &[floats], &[1])),
    ]);
    let noise = |seed: u32| {
        let values = (0..STORAGE as u32 / 4).map(|i| (i * 7 + seed) as f32);
        values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>()
    };
    let mut members = [
        Member::stored("m/data.pkl", &pickle),
        Member::stored("m/data/0", &noise(0)),
        Member::stored("m/data/1", &noise(1)),
    ];
    if damage {
        members[2].data[STORAGE / 2] ^= 1;
    }
    Zip::of(&members).file()
}

/// Where the data of the two storages is in the file.
fn storages(file: &[u8]) -> [Range<u64>; 2] {
    let model = parse_bytes(file.to_vec()).unwrap();
    ["a", "c"].map(|name| {
        let tensor = model.tensor(name).unwrap();
        let head = &tensor.bytes().unwrap()[..64];
        let at = file.windows(64).position(|w| w == head).unwrap() as u64;
        at..at + STORAGE as u64
    })
}

/// A stream that records offset and length of every read.
struct Recorded(Cursor<Vec<u8>>, Arc<Mutex<Vec<Range<u64>>>>);

impl Read for Recorded {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let (at, n) = (self.0.position(), self.0.read(out)?);
        self.1.lock().unwrap().push(at..at + n as u64);
        Ok(n)
    }
}

impl Seek for Recorded {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.0.seek(to)
    }
}

/// Listing reads no byte of a storage, a view reads its own bytes alone, and the checksums of all
/// tensors take each storage once, though three tensors share one.
#[test]
fn storages_are_read_when_they_are_asked_for() {
    let file = checkpoint(false);
    let storages = storages(&file);
    let requests = Arc::new(Mutex::new(Vec::new()));
    let model = parse_from_reader(Recorded(Cursor::new(file), requests.clone())).unwrap();
    // A read ahead for the directory at the end of the file may reach into the last storage.
    requests
        .lock()
        .unwrap()
        .retain(|r| r.end - r.start > 80 << 10);
    assert!(requests.lock().unwrap().is_empty(), "{requests:?}");
    // Bytes read of each storage since the last call.
    let read = || {
        let requests = std::mem::take(&mut *requests.lock().unwrap());
        storages.clone().map(|storage| {
            let within = |r: &Range<u64>| {
                r.end
                    .min(storage.end)
                    .saturating_sub(r.start.max(storage.start)) as usize
            };
            requests.iter().map(within).sum::<usize>()
        })
    };
    let names: Vec<_> = model.tensors().map(|t| t.name()).collect();
    assert_eq!(names, ["a", "b", "t", "c"]);
    let info = model.inspect();
    assert_eq!((info.tensor_count, read()), (4, [0, 0]));
    let half = model.tensor("b").unwrap().bytes().unwrap();
    assert_eq!((half.len(), read()), (STORAGE / 2, [STORAGE / 2, 0]));
    model.verify_checksums().unwrap();
    assert_eq!(read(), [STORAGE, STORAGE]);
    model.tensor("b").unwrap().verify_checksum().unwrap();
    assert_eq!(read(), [STORAGE, 0]);
    // Storage `0` is copied as two halves and gathered once, and read once more for its checksum;
    // the copy of all of storage `1` is summed on the way.
    let mut options = ConvertOptions::new(ConvertTarget::Safetensors);
    options.run.threads = Some(1);
    model.plan(options).unwrap().to_bytes().unwrap();
    let [shared, copied] = read();
    assert_eq!(copied, STORAGE);
    assert_eq!(shared, 3 * STORAGE);
}

/// Views are borrowed from the file, whatever its checksums say.
#[test]
fn views_are_borrowed_and_not_checked() {
    for damage in [false, true] {
        let directory = crate::common::tempdir().unwrap();
        let path = directory.path().join("checkpoint.pth");
        std::fs::write(&path, checkpoint(damage)).unwrap();
        let checkpoint = anamnesis::parse_pth(&path).unwrap();
        let tensors = checkpoint.tensors().unwrap();
        let borrowed = |name: &str| {
            let tensor = tensors.iter().find(|t| t.name == name).unwrap();
            matches!(tensor.data, Cow::Borrowed(_))
        };
        assert_eq!(["a", "b", "t", "c"].map(borrowed), [true, true, false, true]);
        let verified = checkpoint.verify_checksums();
        assert_eq!(verified.is_err(), damage, "{verified:?}");
    }
}

/// Whatever writes or decodes a storage, or is asked to compare its checksum, finds that it is
/// wrong.
#[test]
fn damaged_storages_are_not_converted() {
    let (model, pth) =
        (parse_bytes(checkpoint(true)).unwrap(), parse_pth_bytes(checkpoint(true)).unwrap());
    let path = crate::common::tempdir().unwrap();
    let output = path.path().join("out");
    let convert = |target| {
        let options = ConvertOptions::new(target);
        model.plan(options).and_then(|r| r.to_bytes()).map(drop)
    };
    let results = [
        ("to safetensors", convert(ConvertTarget::Safetensors)),
        ("to NPZ", convert(ConvertTarget::Npz)),
        ("remember", model.remember(&output, TargetDtype::BF16).map(drop)),
        ("bytes", model.remember_to_bytes(TargetDtype::F32).map(drop)),
        ("a copy in memory", pth.to_safetensors_bytes().map(drop)),
        ("a copy", pth.to_safetensors(&output)),
        ("all checksums", model.verify_checksums()),
        ("all checksums of a checkpoint", pth.verify_checksums()),
        ("one checksum", model.tensor("c").unwrap().verify_checksum()),
    ];
    for (what, result) in results {
        let error = result.expect_err(what);
        assert_eq!((error.kind(), error.tensor()), (ErrorKind::Parse, Some("c")), "{what}");
        assert!(error.to_string().contains("checksum"), "{what}: {error}");
    }
    assert!(!output.exists());
    model.tensor("a").unwrap().verify_checksum().unwrap();
}

/// Compressed storages are compared on request as well, and so are arrays of an NPZ archive, which
/// `parse_npz` always compares.
#[test]
fn other_checksums() {
    let pickle = pickle_of(&[("x", crate::common::pickle::good())]);
    let deflated = Member::deflated("m/data/0", &[0; 24]).both(|h| h.crc ^= 1);
    let file = Zip::of(&[Member::stored("m/data.pkl", &pickle), deflated]).file();
    let npy = std::fs::read(data().join("npz/bf16_little.npy")).unwrap();
    let wrong = Member::stored("x.npy", &npy).both(|h| h.crc ^= 1);
    let npz = Zip::of(&[wrong]).file();
    let models = [file, npz.clone()].map(|file| parse_bytes(file).unwrap());
    let results = models.iter().map(ParsedModel::verify_checksums);
    for result in results.chain([parse_npz_bytes(npz).map(drop)]) {
        let error = result.unwrap_err();
        assert_eq!((error.kind(), error.tensor()), (ErrorKind::Parse, Some("x")), "{error}");
    }
}

/// The tensors of a safetensors file, or a checkpoint's, copied one by one.
fn copied(file: &[u8]) -> (Result<Vec<u8>>, Result<Vec<u8>>) {
    let pth = parse_pth_bytes(file.to_vec()).unwrap();
    let whole = pth.tensors().and_then(|all| pth_to_safetensors_bytes(&all));
    (pth.to_safetensors_bytes(), whole)
}

/// Names of schemes do not matter where tensors are only moved: SDNQ's and BitsAndBytes' tensors
/// are copied as they are.
#[test]
fn quantized_checkpoints_are_copied() {
    let codes = || view(&storage("CharStorage", &text("0"), 24), 0, &[4, 6], &[6, 1]);
    let scales = |shape: &[i64]| {
        let strides = vec![1; shape.len()];
        view(&storage("FloatStorage", &text("1"), 4), 0, shape, &strides)
    };
    for (companion, shape) in [("act.scale", &[4, 1][..]), ("act.SCB", &[4])] {
        let pickle = pickle_of(&[("act.weight", codes()), (companion, scales(shape))]);
        let bytes: Vec<u8> = (0..24).collect();
        let file = Zip::of(&[
            Member::stored("m/data.pkl", &pickle),
            Member::stored("m/data/0", &bytes),
            Member::stored("m/data/1", &[0, 0, 0, 0x3f].repeat(4)),
        ])
        .file();
        let (ours, whole) = copied(&file);
        let ours = ours.unwrap();
        assert_eq!(ours, whole.unwrap(), "{companion}");
        let model = parse_bytes(ours).unwrap();
        let weight = model.tensor("act.weight").unwrap();
        assert_eq!(weight.dtype(), anamnesis::Dtype::I8);
        assert_eq!(weight.bytes().unwrap(), bytes.as_slice());
        assert!(model.tensor(companion).is_some());
    }
}

/// Every checkpoint that torch wrote for the tests.
#[test]
fn checkpoints_are_copied_as_they_are() {
    let mut same = 0;
    for entry in std::fs::read_dir(data().join("pth")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        if parse_pth_bytes(bytes.clone()).is_err() {
            continue;
        }
        match copied(&bytes) {
            (Ok(ours), Ok(whole)) => {
                assert_same(&whole, &ours, &path.display().to_string());
                same += 1;
            }
            (Err(ours), Err(_)) => assert_ne!(ours.kind(), ErrorKind::Io, "{ours}"),
            // What is written is compared with its checksum, views are not.
            (Err(ours), Ok(_)) if path.ends_with("crc_wrong.pt") => {
                assert!(ours.to_string().contains("checksum"), "{ours}");
            }
            (ours, whole) => panic!("{path:?}: {:?} {:?}", ours.err(), whole.err()),
        }
    }
    assert!(same >= 60, "{same}");
}

/// Arrays that no tensor can hold are listed with what they are.
#[test]
fn arrays_that_are_skipped() {
    let member = |name: &str, file: &str| {
        Member::stored(name, &std::fs::read(data().join("npz").join(file)).unwrap())
    };
    let file = Zip::of(&[
        member("words.npy", "no_tensor_object.npy"),
        member("x.npy", "bf16_little.npy"),
        member("rows.npy", "no_tensor_structured.npy"),
    ])
    .file();
    let model = parse_bytes(file.clone()).unwrap();
    let skipped: Vec<_> = model.skipped_arrays().collect();
    let info = anamnesis::inspect_npz_from_reader(Cursor::new(&file)).unwrap();
    let listed = info.skipped.iter().map(|(name, what)| (&**name, &**what));
    assert_eq!(skipped, listed.collect::<Vec<_>>());
    assert_eq!((skipped[0].0, skipped[1].0), ("words", "rows"));
    assert!(skipped.iter().all(|(_, what)| !what.is_empty()));
    assert_eq!(model.tensors().len(), 1);
    let Err(AnamnesisError::Unsupported { detail, .. }) =
        model.plan(ConvertTarget::Safetensors).map(drop)
    else {
        panic!("text became a tensor");
    };
    assert!(detail.contains("`words`"), "{detail}");
}

/// A tar archive of other files, as NeMo writes it, and one in gzip are called that.
#[test]
fn archives_of_other_files_are_named() {
    use crate::common::zip::tarred;
    let error = |bytes: Vec<u8>| anamnesis::parse_bytes(bytes).unwrap_err().to_string();
    let nemo = error([tarred("model_weights.ckpt.gz", "1", b"x"), vec![0; 1024]].concat());
    assert!(nemo.contains("model_weights.ckpt.gz") && nemo.contains("tar -xf"), "{nemo}");
    let gzip = error(b"\x1f\x8b\x08\0aaaaaaaa".to_vec());
    assert!(gzip.contains("gzip") && gzip.contains(".nemo"), "{gzip}");
}

/// What holds numbers and is no entry is told of: attributes of tensors and of other values, and
/// storages alone. Cycles among attributes end.
#[test]
fn what_is_no_entry_is_told() {
    let whole = view(&storage("FloatStorage", &text("0"), 6), 0, &[6], &[1]);
    let bare = storage("FloatStorage", &text("0"), 6);
    let ordered = |state: &[u8]| [b"ccollections\nOrderedDict\n)R", state, b"b"].concat();
    let pair = |name: &str, value: &[u8]| [b"}", &text(name)[..], value, b"s"].concat();
    let of_type = [
        &b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\nctorch\nTensor\n("[..],
        &bare,
        b"K\0K\x06\x85K\x01\x85\x89Nt",
        &pair("scale", &whole),
        b"tR",
    ]
    .concat();
    let parameter = [
        &b"ctorch._utils\n_rebuild_parameter_with_state\n("[..],
        &whole,
        b"\x88N",
        &pair("scale", &[&b"]"[..], &whole, b"a"].concat()),
        b"tR",
    ]
    .concat();
    let rows = [
        ("attributes of other values: `x.scale`", of_type),
        ("attributes of other values: `x.scale.0`", parameter),
        ("attributes of other values: `x.extra`", ordered(&pair("extra", &whole))),
        ("attributes of other values: `x.<entry 0>`", ordered(&[b"}}", &whole[..], b"s"].concat())),
        ("storages without a tensor: `x`", bare.clone()),
        // The state of a dict is the dict.
        ("storages without a tensor: `x.extra`", {
            let dict = ordered(b"h\x07")[..].to_vec();
            let dict = dict.strip_suffix(b"h\x07b").unwrap();
            [dict, b"q\x07", &text("extra"), &bare, b"sh\x07b"].concat()
        }),
    ];
    for (expected, value) in rows {
        let pickle = pickle_of(&[("kept", whole.clone()), ("x", value)]);
        let members = [Member::stored("m/data.pkl", &pickle), Member::stored("m/data/0", &[0; 24])];
        let model = parse_bytes(Zip::of(&members).file()).unwrap();
        let notes = model.inspect().notes;
        assert!(notes.iter().any(|note| note.contains(expected)), "{expected}: {notes:?}");
        assert!(model.tensors().any(|tensor| tensor.name() == "kept"));
    }
}
