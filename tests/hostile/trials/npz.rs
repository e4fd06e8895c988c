//! NPZ archives and NPY arrays that are malformed or hostile.

mod compressed;

use safetensors::SafeTensors;

use crate::common::data;
use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::common::zip::*;
use crate::trials::{Row, Trial};

/// Each array as a bare file, and as a member of an archive.
fn in_both(mut rows: Vec<Row<'_>>) -> Vec<Row<'_>> {
    let archive = |bytes: &[u8]| Zip::of(&[Member::stored("a.npy", bytes)]).file();
    rows.extend(
        rows.clone()
            .into_iter()
            .map(|(what, bytes, kind, words)| (what, archive(&bytes), kind, words)),
    );
    rows
}

#[test]
fn magic_version_and_length() {
    let mut trial = Trial::new();
    let version = |major: u8, minor: u8| [&b"\x93NUMPY"[..], &[major, minor], &[b' '; 40]].concat();
    let long = |version: u8, len: u32| {
        let len = len.to_le_bytes();
        [
            &b"\x93NUMPY"[..],
            &[version, 0],
            &len[..if version == 1 { 2 } else { 4 }],
            &[b' '; 20_000],
        ]
        .concat()
    };
    trial.refused(in_both(vec![
        ("magic alone", b"\x93NUMPY".to_vec(), Parse, &["truncated"]),
        ("no length", b"\x93NUMPY\x01\0".to_vec(), Parse, &["truncated"]),
        ("half a length", b"\x93NUMPY\x02\0\x09\0\0".to_vec(), Parse, &["truncated"]),
        ("no header", npy("", b""), Parse, &["literal"]),
        (
            "a header longer than the file",
            npy(&" ".repeat(99), b"")[..50].to_vec(),
            Parse,
            &["109 bytes"],
        ),
        ("version 3.1", version(3, 1), Unsupported, &["version 3.1"]),
        ("version 255.255", version(255, 255), Unsupported, &["version 255.255"]),
        ("10000 blanks", long(3, 10_000), Parse, &["literal"]),
        ("10001 bytes", long(1, 10_001), Limit, &["10001"]),
        ("65535 bytes", long(1, 65_535), Limit, &["65535"]),
        ("any number of bytes", long(2, u32::MAX), Limit, &["4294967295"]),
    ]));
    trial.end();
}

#[test]
fn headers() {
    let mut trial = Trial::new();
    let with = |descr: &str, fortran: &str, data: usize| {
        npy(&dict(descr, fortran, "(2,)"), &vec![0; data])
    };
    let whole = |text: &str| npy(text, &[0; 8]);
    let descr = |text: &str| with(text, "False", 8);
    trial.fine(vec![
        ("no newline", npy(dict("'<f4'", "False", "(2,)").trim_end(), &[0; 8])),
        ("escapes", descr(r"'\74\x66\u0034'")),
        ("an octal escape with a zero in it", with(r"'\102'", "False", 2)),
    ]);
    let nested = |open: &str, close: &str| format!("{}0{}", open.repeat(40), close.repeat(40));
    let (long, deep) = (format!("'{}'", "f".repeat(9000)), "(".repeat(9000));
    let [lists, tuples, dicts] = [nested("[", "]"), nested("(", ",)"), nested("{0:", "}")];
    type Make<'a> = &'a dyn Fn(&str) -> Vec<u8>;
    let tables: [(Make<'_>, &[&str], &str); 8] = [
        (&whole, &["'descr'", "('<f4', False, (2,))", "[]", "0", "None"], "no dict"),
        (
            &whole,
            &[
                "",
                "{",
                "{'''descr': 0}",
                "{'descr'}",
                "{'descr': '\\",
                "{b'': 1}",
                "{\0}",
                "{**{}}",
                "{}{}",
            ],
            "literal",
        ),
        (
            &whole,
            &["{}", "{'fortran_order': False, 'shape': (2,)}", "{'descr': '', 'fortran_order': 0}"],
            "wants",
        ),
        (
            &whole,
            &["{'Shape': (2,)}", "{0: 0}", "{None: 0}", "{(): 0}", "{'descr ': '<f4'}"],
            "key",
        ),
        (&descr, &["None", "True", "4", "{}"], "descr"),
        (
            &descr,
            &[
                "'<float32'",
                "'|uint8'",
                "'<'",
                "'<f3'",
                "'<<f4'",
                "'<f4 '",
                r"'<\u0444\u0664'",
                r"'<f4\x00'",
                "'f-4'",
                &long,
            ],
            "type",
        ),
        (
            &descr,
            &[r"'\x3'", r"'\ud800'", r"'\U00110000'", "f4", "'<f4", &lists, &tuples, &dicts, &deep],
            "literal",
        ),
        (
            &|text| with("'<f4'", text, 8),
            &["None", "'False'", "[]", "-1", "(True,)"],
            "fortran_order",
        ),
    ];
    for (make, texts, word) in tables {
        let words = [word];
        trial.refused(in_both(
            texts
                .iter()
                .map(|text| (*text, make(text), Parse, &words[..]))
                .collect(),
        ));
    }
    trial.end();
}

#[test]
fn shapes() {
    let mut trial = Trial::new();
    let shape = |shape: &str, data: usize| npy(&dict("'<f4'", "True", shape), &vec![0; data]);
    let ones = |n: usize| shape(&format!("({})", "1,".repeat(n)), 4);
    trial.fine(vec![
        ("64 dimensions", ones(64)),
        ("nothing, of a large size", shape("(0, 1099511627776)", 0)),
        ("numbers of other bases", shape("(0x1, 0b1_0)", 8)),
    ]);
    trial.refused(in_both(vec![
        ("65 dimensions", ones(65), Limit, &["65"]),
        ("4000 dimensions", ones(4000), Limit, &["4000"]),
        ("a byte too few", shape("(2,)", 7), Parse, &["7", "8"]),
        ("a byte too many", shape("(2,)", 9), Parse, &["9", "8"]),
        ("no data", shape("(2,)", 0), Parse, &["0", "8"]),
        // NumPy leaves zeros out of the product as well: "array is too big".
        (
            "nothing, of more than any size",
            shape("(0, 4611686018427387904, 4611686018427387904)", 0),
            Parse,
            &["overflows"],
        ),
        ("4 TiB", shape("(1099511627776,)", 8), Parse, &["4398046511104"]),
    ]));
    let tables: [(&[&str], &str); 4] = [
        (
            &["(2.0,)", "(2e0,)", "(2j,)", "(0x,)", "(2 2,)", "(--2,)", "(9223372036854775808,)"],
            "literal",
        ),
        (&["None", "'(2,)'", "{}", "2"], "tuple"),
        (
            &[
                "(True,)",
                "(None,)",
                "('2',)",
                "((2,),)",
                "([2],)",
                "(-1,)",
                "(-9223372036854775807,)",
            ],
            "size",
        ),
        (
            &["(4294967296, 4294967296)", "(9223372036854775807,)", "(2, 1152921504606846976)"],
            "overflows",
        ),
    ];
    for (texts, word) in tables {
        let words = [word];
        trial.refused(in_both(
            texts
                .iter()
                .map(|text| (*text, shape(text, 8), Parse, &words[..]))
                .collect(),
        ));
    }
    trial.end();
}

/// Time and memory for many members grow in proportion to their number.
#[test]
fn many_members() {
    let mut trial = Trial::new();
    let name = |i: usize| format!("{i}.npy");
    let empty = Zip::of(
        &(0..5000)
            .map(|i| Member::stored(&name(i), &zeros(0)))
            .collect::<Vec<_>>(),
    )
    .file();
    let packed = Zip::of(
        &(0..500)
            .map(|i| Member::deflated(&name(i), &zeros(9)))
            .collect::<Vec<_>>(),
    )
    .file();
    trial.fine(vec![("5000 empty arrays", empty), ("500 compressed ones", packed)]);
    trial.end();
}

/// Compression is no way to more memory for the values of a pickle.
#[cfg(feature = "pth")]
#[test]
fn objects() {
    let mut trial = Trial::new();
    let array = |pickle: &[u8]| {
        let header = "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }";
        Zip::of(&[
            Member::deflated("a.npy", &zeros(9)),
            Member::deflated("o.npy", &npy(header, pickle)),
        ])
        .file()
    };
    let many = |n: usize| [&b"\x80\x04]("[..], &b"]".repeat(n), b"e."].concat();
    let mut damaged = array(&many(9));
    let at = damaged.windows(5).position(|at| at == b"o.npy").unwrap();
    damaged[at + 60] ^= 1;
    trial.refused(vec![
        ("many values", array(&many(2_000_000)), Limit, &["pickle"]),
        ("damaged", damaged, Parse, &["`o`"]),
    ]);
    trial.end();
}

/// Member names that look like paths are only names: nothing is written there.
#[test]
fn names() {
    let mut trial = Trial::new();
    let names = "../x|../../out/x|/etc/x|C:\\x|..||a/../../x|\u{202e}x|x\n|CON|in/model".split('|');
    for name in names {
        let bytes = Zip::of(&[Member::deflated(&format!("{name}.npy"), &zeros(300))]).file();
        match trial.try_file(name, &bytes) {
            Some(Ok(output)) => {
                assert_eq!(SafeTensors::deserialize(&output).unwrap().names(), [name]);
            }
            Some(Err(error)) => trial.fail(name, error),
            None => {}
        }
    }
    trial.end();
}

/// A file cut anywhere is an error.
#[test]
fn truncations() {
    let mut trial = Trial::new();
    for name in ["stored.npz", "streamed_deflated.npz", "objects_deflated.npz", "shape_2x3_c.npy"] {
        trial.truncations(name, &std::fs::read(data().join("npz").join(name)).unwrap());
    }
    trial.end();
}

#[test]
fn mutations() {
    let mut trial = Trial::new();
    let names = [
        "stored.npz",
        "compressed.npz",
        "streamed_deflated.npz",
        "objects_deflated.npz",
        "objects_deflated_protocol2.npz",
        "zip64.npz",
        "comment.npz",
        "shape_2x3_f.npy",
    ];
    let read = |name: &str| std::fs::read(data().join("npz").join(name)).unwrap();
    let files: Vec<_> = names
        .into_iter()
        .map(read)
        .chain([wide(End64::default())])
        .collect();
    trial.mutations(&files, 32);
    trial.end();
}
