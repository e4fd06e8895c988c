//! Tensors without elements have no data to copy or decode. The checksums of what is stored of them
//! are compared all the same, however they are asked for.

use anamnesis::{ConvertTarget, ParsedModel, Result, TargetDtype, parse_bytes};

use crate::common::f32s;
use crate::common::pickle::{floats, text, view};
use crate::common::zip::{Member, Zip, npy};

/// Results of all ways to convert `model`, or to make its tensor `name`.
fn results(model: &ParsedModel, name: &str) -> Vec<(&'static str, Result<()>)> {
    let conversion = model.plan(TargetDtype::F32).unwrap();
    let path = crate::common::tempdir().unwrap();
    let output = path.path().join("out");
    let written = model.remember(&output, TargetDtype::F32).map(drop);
    assert_eq!(written.is_ok(), output.exists());
    let to = TargetDtype::F32;
    vec![
        ("tensor", conversion.tensor(name).map(drop)),
        ("rows", conversion.rows(name, 0..0).map(drop)),
        ("to bytes", conversion.to_bytes().map(drop)),
        ("to a file", written),
        (
            "to NPZ",
            model
                .plan(ConvertTarget::Npz)
                .and_then(|r| r.to_bytes())
                .map(drop),
        ),
        ("to a writer", model.remember_to_writer(Vec::new(), to).map(drop)),
        ("tensor by tensor", model.for_each_tensor(to, |_, _, _, _| Ok(())).map(drop)),
        ("panel by panel", model.for_each_panel(to, |_| Ok(())).map(drop)),
    ]
}

/// Compares all results for a sound file, and for one whose checksum of `name` is wrong.
fn check(context: &str, name: &str, sound: Vec<u8>, wrong: Vec<u8>) {
    for (way, result) in results(&parse_bytes(sound).unwrap(), name) {
        assert!(result.is_ok(), "{context}, {way}: {result:?}");
    }
    for (way, result) in results(&parse_bytes(wrong).unwrap(), name) {
        let Err(error) = result else {
            panic!("{context}, {way}: no error");
        };
        let error = error.to_string();
        assert!(error.contains("wrong checksum"), "{context}, {way}: {error}");
        // Of two views of a compressed storage each is a stream, and the first that fails is named.
        let is_named = error.contains(&format!("`{name}`")) || error.contains("`some`");
        assert!(is_named, "{context}, {way}: {error}");
    }
}

/// The header of an array is a part of its member, and has the shape.
#[test]
fn arrays() {
    let array = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 7), }", &[]);
    let other = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", &[0; 4]);
    for (context, member) in [
        ("stored", Member::stored("a.npy", &array)),
        ("compressed", Member::deflated("a.npy", &array)),
    ] {
        let archive = |flip: u32| {
            let member = member.clone().both(|header| header.crc ^= flip);
            Zip::of(&[member, Member::stored("b.npy", &other)]).file()
        };
        check(context, "a", archive(0), archive(1));
    }
}

/// A view of no elements may be the first of a storage, whose checksum is then compared with it.
#[test]
fn views() {
    let entry = |name: &str, shape: &[i64], strides: &[i64]| {
        [text(name), view(&floats(), 2, shape, strides)].concat()
    };
    let values = f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let rows: [(&str, Vec<Vec<u8>>); 3] = [
        ("alone", vec![entry("none", &[0, 3], &[3, 1])]),
        ("transposed", vec![entry("none", &[3, 0], &[1, 3])]),
        ("before another", vec![entry("none", &[0], &[1]), entry("some", &[3], &[1])]),
    ];
    for (context, entries) in rows {
        let pickle = [b"\x80\x02}(".to_vec(), entries.concat(), b"u.".to_vec()].concat();
        for storage in [Member::stored("m/data/0", &values), Member::deflated("m/data/0", &values)]
        {
            let archive = |flip: u32| {
                let storage = storage.clone().both(|header| header.crc ^= flip);
                Zip::of(&[Member::stored("m/data.pkl", &pickle), storage]).file()
            };
            check(context, "none", archive(0), archive(1));
        }
    }
}

/// A compressed member of no bytes.
#[test]
fn storages() {
    use crate::common::pickle::storage;
    let none = view(&storage("FloatStorage", &text("0"), 0), 0, &[0], &[1]);
    let pickle = [b"\x80\x02}".to_vec(), text("none"), none, b"s.".to_vec()].concat();
    let archive = |flip: u32| {
        let storage = Member::deflated("m/data/0", &[]).both(|header| header.crc ^= flip);
        Zip::of(&[Member::stored("m/data.pkl", &pickle), storage]).file()
    };
    check("of no bytes", "none", archive(0), archive(1));
}
