//! Pickles of NumPy arrays, as Paddle writes them, that are malformed or hostile.

use crate::common::data;
use crate::common::pickle::{dict, int, text, tuple};
use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::trials::Trial;

/// Bytes as protocol 3 has them.
fn raw(bytes: &[u8]) -> Vec<u8> {
    [&b"B"[..], &(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

/// Bytes as protocol 2 has them: text of Latin-1.
fn encoded(bytes: &[u8]) -> Vec<u8> {
    let chars: String = bytes.iter().map(|&byte| char::from(byte)).collect();
    [b"c_codecs\nencode\n(", &text(&chars)[..], &text("latin1"), b"tR"].concat()
}

fn dtype(code: &str, order: &str) -> Vec<u8> {
    [b"cnumpy\ndtype\n(", &text(code)[..], b"tR(K\x03", &text(order), b"NNNtb"].concat()
}

const NEW: &[u8] = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85C\x01btR";

/// An array: what makes it, and its state.
fn array(shape: &[u8], dtype: &[u8], data: &[u8]) -> Vec<u8> {
    [NEW, b"(K\x01", shape, dtype, b"\x89", data, b"tb"].concat()
}

fn floats(n: usize) -> Vec<u8> {
    array(&tuple(&[n as i64]), &dtype("f4", "<"), &raw(&vec![1; 4 * n]))
}

fn file(value: &[u8]) -> Vec<u8> {
    [b"\x80\x03", &dict(value)[..]].concat()
}

/// A dict with a list of arrays in slices.
fn sliced(slices: &[(&str, Vec<u8>)], list: &[u8]) -> Vec<u8> {
    let entries = slices
        .iter()
        .map(|(name, array)| [&text(name)[..], array, b"s"].concat());
    let entries: Vec<u8> = entries.collect::<Vec<_>>().concat();
    [b"\x80\x03}", &entries[..], &text("UnpackBigParamInfor@@"), list, b"s."].concat()
}

/// The description of the array `a` with a shape and slices.
fn description(shape: &[i64], slices: &[&str]) -> Vec<u8> {
    [b"}", &described("a", shape, slices)[..]].concat()
}

fn described(name: &str, shape: &[i64], slices: &[&str]) -> Vec<u8> {
    let slices: Vec<u8> = slices
        .iter()
        .flat_map(|name| [text(name), b"a".to_vec()].concat())
        .collect();
    [
        &text(name)[..],
        b"}",
        &text("OriginShape"),
        &tuple(shape),
        b"s",
        &text("slices"),
        b"]",
        &slices,
        b"ss",
    ]
    .concat()
}

#[test]
fn arrays() {
    let mut trial = Trial::new();
    let with = |shape: &[i64], code: &str, data: &[u8]| {
        file(&array(&tuple(shape), &dtype(code, "<"), data))
    };
    let long: Vec<u8> = (0..300_000u32).map(|i| (i * 7) as u8).collect();
    trial.fine(vec![
        ("an array", file(&floats(3))),
        ("a long one", with(&[75_000], "f4", &raw(&long))),
        ("long ones as text", with(&[75_000], "f4", &encoded(&long))),
        ("text", with(&[2, 2], "u1", &encoded(&[0, 127, 128, 255]))),
        ("an empty one", with(&[0, 3], "f4", b"c__builtin__\nbytes\n)R")),
        ("big-endian", file(&array(&tuple(&[1]), &dtype("f4", ">"), &raw(&[1; 4])))),
        (
            "slices",
            sliced(
                &[("a@@.0", floats(3)), ("a@@.1", floats(1))],
                &description(&[2, 2], &["a@@.0", "a@@.1"]),
            ),
        ),
    ]);
    let numbers = |shape: &[i64]| with(shape, "f4", &raw(&[1; 12]));
    trial.refused(vec![
        ("a byte too few", with(&[3], "f4", &raw(&[1; 11])), Parse, &["`x`"]),
        ("a byte too many", with(&[3], "f4", &raw(&[1; 13])), Parse, &["12 bytes", "13"]),
        ("2^62 numbers", numbers(&[1 << 62]), Parse, &["overflows"]),
        ("2^40 numbers", numbers(&[1 << 40]), Parse, &["`x`"]),
        ("zero times 2^126", numbers(&[0, i64::MAX, i64::MAX]), Parse, &["overflow"]),
        ("a negative size", numbers(&[-3]), Parse, &["shape"]),
        ("65 dimensions", numbers(&[1; 65]), Parse, &["shape"]),
        ("objects that are no arrays", with(&[1], "O8", b"]Na"), Parse, &["no tensors"]),
        ("objects that are no list", with(&[1], "O8", b"N"), Unsupported, &["objects"]),
        ("an object too few", with(&[2], "O8", b"]Na"), Parse, &["number of objects"]),
        ("text in an array", with(&[1], "U3", &raw(&[1; 12])), Unsupported, &["array of text"]),
        ("long doubles", with(&[1], "f16", &raw(&[1; 16])), Unsupported, &["dtype"]),
        ("data that are a number", with(&[1], "f4", b"K\x01"), Parse, &["no bytes"]),
        ("data that are text", with(&[1], "f4", &text("abcd")), Parse, &["no bytes"]),
        (
            "text that is no bytes",
            with(&[1], "u1", &[b"c_codecs\nencode\n(", &text("\u{100}")[..], b"tR"].concat()),
            Parse,
            &["no bytes"],
        ),
        ("no state", file(NEW), Parse, &["no tensors"]),
        ("a state of another form", file(&[NEW, b"(NNtb"].concat()), Parse, &["another state"]),
        ("two states", file(&[&floats(3)[..], b"Nb"].concat()), Parse, &["state of its own"]),
        (
            "no byte order",
            file(&array(&tuple(&[3]), b"cnumpy\ndtype\n(U\x02f4tR", &raw(&[1; 12]))),
            Parse,
            &["byte order"],
        ),
        ("data behind it", [file(&floats(3)), vec![0]].concat(), Parse, &["behind"]),
        (
            "a slice that is missing",
            sliced(&[("a@@.0", floats(3))], &description(&[3], &["a@@.0", "a@@.1"])),
            Parse,
            &["missing"],
        ),
        (
            "a slice twice",
            sliced(&[("a@@.0", floats(3))], &description(&[6], &["a@@.0", "a@@.0"])),
            Parse,
            &["two arrays"],
        ),
        (
            "another shape",
            sliced(&[("a@@.0", floats(3))], &description(&[4], &["a@@.0"])),
            Parse,
            &["`a`"],
        ),
        (
            "slices that are no list",
            sliced(&[("a@@.0", floats(3))], &int(3)),
            Parse,
            &["as Paddle writes it"],
        ),
    ]);
    // A slice that is the first of two arrays.
    let part = |data: &[u8]| array(&tuple(&[data[1].into()]), &dtype("u1", "|"), data);
    let first = [&raw(&[1; 4])[..], b"q\x07"].concat();
    let of_both = array(&tuple(&[4]), &dtype("u1", "|"), b"h\x07");
    let slices = [
        ("a0", part(&first)),
        ("a1", part(&raw(&[2]))),
        ("b0", of_both),
        ("b1", part(&raw(&[3; 2]))),
    ];
    let list =
        [&description(&[5], &["a0", "a1"])[..], &described("b", &[6], &["b0", "b1"])].concat();
    let of_buffer = |order: &str, axes: &[i64]| {
        let axes = if axes.is_empty() { vec![] } else { tuple(axes) };
        let call = b"cnumpy.core.numeric\n_frombuffer\n(";
        let data = raw(&(0..24).collect::<Vec<_>>());
        let shape = tuple(&[2, 3, 4]);
        let ends = [&text(order)[..], &axes, b"tR"].concat();
        file(&[&call[..], &data, &dtype("u1", "|"), &shape, &ends].concat())
    };
    trial.fine(vec![("axes in another order", of_buffer("K", &[1, 0, 2]))]);
    let made = anamnesis::parse_bytes(of_buffer("K", &[2, 0, 1])).unwrap();
    let tensor = made.tensors().next().unwrap();
    assert_eq!(tensor.shape(), [4, 2, 3]);
    assert_eq!(tensor.bytes().unwrap()[..7], [0, 4, 8, 12, 16, 20, 1]);
    let order = |order, axes: &[i64]| (order, of_buffer(order, axes), Parse, &["order"][..]);
    trial.refused(vec![
        order("K", &[]),
        order("K", &[0, 1]),
        order("K", &[0, 1, 1]),
        order("K", &[0, 1, 3]),
        order("C", &[1, 0, 2]),
        order("A", &[]),
    ]);
    let text_of = |encoding: &str| {
        let call = [b"c_codecs\nencode\n(", &text("abc")[..], &text(encoding), b"tR"].concat();
        with(&[3], "u1", &call)
    };
    trial
        .fine(vec![("a slice of two arrays", sliced(&slices, &list)), ("text", text_of("latin1"))]);
    trial.refused(vec![("text in another encoding", text_of("rot13"), Parse, &["no bytes"])]);
    // One text that many arrays have is read once.
    let shared = [
        &b"("[..],
        &encoded(&long),
        b"q\x01",
        &(0..3000)
            .flat_map(|_| array(&tuple(&[300_000]), &dtype("u1", "|"), b"h\x01"))
            .collect::<Vec<_>>(),
        b"t",
    ]
    .concat();
    trial.refused(vec![("3000 arrays of one text", file(&shared), Limit, &["made of"])]);
    let files = ["state_2.pdparams", "nested_2.pdparams", "slices_3.pdparams"];
    let files = files.map(|name| std::fs::read(data().join("paddle").join(name)).unwrap());
    trial.truncations("a state", &files[0]);
    trial.mutations(&files, 12);
    let command = [&floats(3)[..], b"0cos\nsystem\n(U\x02idtR"].concat();
    let error = anamnesis::parse_bytes(file(&command)).unwrap_err();
    assert!(matches!(error, anamnesis::AnamnesisError::DisallowedGlobal { .. }), "{error}");
    trial.end();
}
