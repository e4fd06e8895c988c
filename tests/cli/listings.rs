//! `amn parse` and `amn inspect`: the tables of tensors, containers and dtypes.

use std::path::Path;

use crate::amn;
use crate::common::zip::{Member, Zip};
use crate::common::{data, f32s, file, raw};

/// The lines that `amn` prints with these arguments, which must succeed.
fn lines(command: &str, path: &Path) -> Vec<String> {
    let output = amn(&[command, path.to_str().unwrap()]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// The rows of the table of tensors: name, dtype, shape.
fn table(path: &Path) -> Vec<[String; 3]> {
    let lines = lines("parse", path);
    let begin = lines.iter().position(String::is_empty).unwrap() + 1;
    let rows = &lines[begin..lines.len() - 1];
    let columns = |row: &String| {
        let name = row.split_whitespace().next().unwrap();
        let dtype = row[2 + name.len()..].split_whitespace().next().unwrap();
        let shape = &row[row.rfind('[').unwrap()..=row.rfind(']').unwrap()];
        [name.to_owned(), dtype.to_owned(), shape.to_owned()]
    };
    // A column begins at the same character of every row.
    let starts = |row: &String| [2, row.rfind('[').unwrap()];
    assert!(rows.iter().all(|row| starts(row) == starts(&rows[0])));
    rows.iter().map(columns).collect()
}

fn rows(expected: &[[&str; 3]]) -> Vec<[String; 3]> {
    expected.iter().map(|row| row.map(str::to_owned)).collect()
}

#[test]
fn tensors_of_every_container_are_listed() {
    let demo = |name: &str| data().join("demo").join(name);
    for (name, expected, last) in [
        (
            "arrays.npz",
            &[
                ["W_dec", "F32", "[8]"],
                ["W_enc", "F32", "[8]"],
                ["b_dec", "F32", "[8]"],
                ["b_enc", "F32", "[8]"],
                ["threshold", "F32", "[8]"],
            ][..],
            "5 tensors, 160 bytes",
        ),
        (
            "checkpoint.pth",
            &[
                ["rnn.weight_ih_l0", "F32", "[2, 1]"],
                ["rnn.weight_hh_l0", "F32", "[2, 2]"],
                ["linear.weight", "F32", "[2, 2]"],
            ],
            "3 tensors, 40 bytes",
        ),
        (
            "model-fp8.safetensors",
            &[
                ["layers.0.attention.wq.weight_scale", "BF16", "[]"],
                ["layers.0.attention.wq.weight", "F8_E4M3", "[256, 256]"],
            ],
            "2 tensors, 65538 bytes (64.0 KB)",
        ),
        // In the file's order, as ggml's tools print shapes.
        (
            "model-q4_k.gguf",
            &[["blk.0.ffn_up.weight", "Q4_K", "[256, 32]"]],
            "1 tensor, 4608 bytes (4.5 KB)",
        ),
    ] {
        let path = demo(name);
        assert_eq!(table(&path), rows(expected), "{name}");
        assert_eq!(lines("parse", &path).last().unwrap(), last, "{name}");
    }
}

#[test]
fn columns_are_as_wide_as_names_and_names_are_escaped() {
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("m.safetensors");
    let long = format!("model.{}.weight", "x".repeat(60));
    let tensors = [
        raw("a\u{1b}[31m\u{202e}b", "F32", &[2, 1], f32s(&[1.0, 2.0])),
        raw(&long, "F8_E4M3FNUZ", &[3], vec![0; 3]),
        raw("huge".repeat(50).as_str(), "U8", &[1], vec![0]),
    ];
    std::fs::write(&path, file(&tensors, &[])).unwrap();
    let lines = lines("parse", &path);
    let row = |begin: &str| lines.iter().find(|l| l.starts_with(begin)).unwrap();
    let (escaped, wide) = (row("  a\\u{1b}[31m\\u{202e}b "), row("  model."));
    let column = |row: &str, text: &str| row.find(text).unwrap();
    assert_eq!(column(escaped, " F32 "), column(wide, " F8_E4M3FNUZ "));
    assert_eq!(column(escaped, " [2, 1] "), column(wide, " [3] "));
    // One name of 200 characters does not widen the lines of all others.
    assert!(escaped.len() < 200, "{escaped}");
    assert!(row("  hugehuge").contains(" U8 "));
}

#[test]
fn archives_name_their_container_and_keep_their_dtype() {
    let directory = crate::common::tempdir().unwrap();
    let write = |name: &str, arrays: &[(&str, &str)]| {
        let array = |(name, header): &(&str, &str)| {
            let text = format!("{header:<117}\n");
            let head = b"\x93NUMPY\x01\0\x76\0";
            let bytes = [head, text.as_bytes(), &[0; 16]].concat();
            Member::stored(&format!("{name}.npy"), &bytes)
        };
        let members: Vec<_> = arrays.iter().map(array).collect();
        let path = directory.path().join(name);
        std::fs::write(&path, Zip::of(&members).file()).unwrap();
        path
    };
    let f32 = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}";
    let i64 = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,)}";
    let plain = write("params.npz", &[("W_enc", f32)]);
    let expected = [
        "Format:      NPZ archive",
        "Scheme:      Unquantized",
        "Quantized:   0 tensors (weights)",
        "Passthrough: 1 tensor",
        "Size:        16 B (unquantized) -> 16 B (F32)",
        "Parameters:  4 (32.00 bits each as stored)",
    ];
    assert_eq!(lines("inspect", &plain), expected);
    let mixed = write("mixed.npz", &[("a", f32), ("b", i64), ("c", i64)]);
    let size = "Size:        48 B (unquantized) -> 48 B (I64, F32)";
    assert_eq!(lines("inspect", &mixed)[4], size);
    let checkpoint = lines("inspect", &data().join("demo/checkpoint.pth"));
    assert_eq!(checkpoint[0], "Format:      PyTorch checkpoint");
    assert_eq!(checkpoint[4], "Size:        40 B (unquantized) -> 40 B (F32)");
    let array = lines("inspect", &data().join("npz/bf16_little.npy"));
    assert_eq!(array[0], "Format:      NumPy array (.npy)");
    assert_eq!(array[4], "Size:        12 B (unquantized) -> 12 B (BF16)");
}

#[test]
fn passthrough_tensors_are_called_what_they_are() {
    let directory = crate::common::tempdir().unwrap();
    for (names, expected) in [
        (&["model.norm.weight", "lm_head.weight"][..], " (norms, lm_head)"),
        (&["W_enc", "b_enc"], ""),
        (&["a.q_proj.bias", "x"], " (biases, others)"),
    ] {
        let path = directory.path().join("m.safetensors");
        let tensor = |name: &&str| raw(name, "F32", &[1], f32s(&[1.0]));
        let tensors: Vec<_> = names.iter().map(tensor).collect();
        std::fs::write(&path, file(&tensors, &[])).unwrap();
        let n = names.len();
        let parsed = lines("parse", &path);
        assert_eq!(parsed[1], format!("    {n} passthrough F32{expected}"));
        let inspected = lines("inspect", &path);
        assert_eq!(inspected[2], format!("Passthrough: {n} tensors{expected}"));
    }
}

/// What a pickle may take counts the machine's stack and memo, and the message says so.
#[test]
fn the_limit_of_a_pickle_is_told_plainly() {
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("m.pkl");
    // One value, and its copies on the stack of the machine: 24 bytes each.
    let pickle = [&b"\x80\x02N"[..], &vec![b'2'; 3 << 20]].concat();
    std::fs::write(&path, pickle).unwrap();
    let output = amn(&["parse", path.to_str().unwrap()]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{error}");
    let prefix = format!("error: {}: ", path.display());
    let error = error.strip_prefix(&prefix).unwrap();
    let words: Vec<&str> = error.split(' ').collect();
    let number = |at: usize| words[at].trim().parse::<usize>().unwrap();
    let [held, read, most] = [number(3), number(10), number(17)];
    let expected = format!(
        "limit exceeded (MAX_PICKLE_WORKING_SET): {held} bytes of memory for the first {read} bytes of a \
         pickle; at most {most}\n"
    );
    assert_eq!(error, expected);
    assert_eq!(most, (24 << 20) + 6 * read);
    assert!(held > most && held <= most + 24, "{error}");
}
