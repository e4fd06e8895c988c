//! Keys that a file says twice: with two values the file means two things, and which one counts
//! depends on the reader.

use crate::common::verdict::{Parse, parse_beside, verdict};
use crate::common::{file, raw};

/// A safetensors file with one plain tensor, whose header is `header` with `{}` as the tensor's
/// entry.
fn with_header(header: &str) -> Vec<u8> {
    let entry = r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    let header = header.replace("{}", entry);
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat()
}

#[test]
fn safetensors_headers() {
    let rows = [
        (r#"{"__metadata__":{"a":"1","a":"2"},"X":{}}"#, "`a`"),
        (r#"{"__metadata__":{"a":"1","a":"1"},"X":{}}"#, "`a`"),
        (r#"{"__metadata__":{"a":"1"},"X":{},"__metadata__":{"b":"1"}}"#, "__metadata__"),
        (r#"{"__metadata__":null,"X":{},"__metadata__":{"b":"1"}}"#, "__metadata__"),
        (r#"{"X":{"dtype":"F32","shape":[2],"shape":[1],"data_offsets":[0,8]}}"#, "shape"),
        (r#"{"X":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}}"#, "dtype"),
    ];
    for (header, word) in rows {
        let wrong = verdict(
            anamnesis::parse_bytes(with_header(header)),
            Parse,
            &["safetensors header", word],
        );
        assert_eq!(wrong, None, "{header}");
    }
    for header in
        [r#"{"__metadata__":{"a":"1","b":"1"},"X":{}}"#, r#"{"__metadata__":null,"X":{}}"#]
    {
        anamnesis::parse_bytes(with_header(header)).unwrap();
    }
}

/// A whole config in the metadata, and torchao's descriptions of parameters.
#[test]
fn configs_in_metadata() {
    let tensors = [raw("X", "F32", &[2], vec![0; 8])];
    let config = |json| file(&tensors, &[("quantization_config", json)]);
    let twice = config(r#"{"quant_method":"fp8","quant_method":"gptq"}"#);
    let words = ["__metadata__", "`quant_method`", "twice"];
    assert_eq!(verdict(anamnesis::parse_bytes(twice), Parse, &words), None);
    for fine in [r#"{"quant_method":"fp8","quant_method":"fp8"}"#, "fp8", "{"] {
        anamnesis::parse_bytes(config(fine)).unwrap();
    }
}

#[test]
fn configs() {
    let bytes = file(&[raw("X", "F32", &[2], vec![0; 8])], &[]);
    let refused = [
        (
            "config.json",
            r#"{"quantization_config":{"bits":4,"bits":8}}"#,
            "`quantization_config.bits`",
        ),
        (
            "config.json",
            r#"{"quantization_config":{"bits":4},"quantization_config":{"bits":8}}"#,
            "`quantization_config`",
        ),
        (
            "config.json",
            r#"{"quantization_config":{"dynamic":{"a":{"bits":4,"x":NaN,"bits":8}}}}"#,
            "`quantization_config.dynamic.a.bits`",
        ),
        (
            "config.json",
            r#"{"text_config":{"quantization_config":{"bits":4}},"text_config":{}}"#,
            "`text_config`",
        ),
        (
            "config.json",
            r#"{"quantization":{"layers.0":{"bits":4},"layers.0":{"bits":8}}}"#,
            "`quantization.layers.0`",
        ),
        ("config.json", r#"{"hidden_size":64,"hidden_size":32}"#, "`hidden_size`"),
        (
            "config.json",
            r#"{"text_config":{"head_dim":64,"head_dim":32}}"#,
            "`text_config.head_dim`",
        ),
        (
            "hf_quant_config.json",
            r#"{"quantization":{"quant_algo":"FP8","quant_algo":"NVFP4"}}"#,
            "`quantization.quant_algo`",
        ),
        ("quantize_config.json", r#"{"sym":true,"bits":4,"sym":false}"#, "`sym`"),
        ("quanto_qmap.json", r#"{"a":{"weights":"qint8"},"a":{"weights":"qint4"}}"#, "`a`"),
    ];
    for (name, text, path) in refused {
        let result = parse_beside(&bytes, &[(name, text)]);
        assert_eq!(verdict(result, Parse, &[name, path, "twice"]), None, "{text}");
    }
    let fine = [
        // As people edit configs: keys that nothing here reads, and keys that say the same twice.
        (
            "config.json",
            r#"{"use_cache":true,"use_cache":false,"quantization_config":{"bits":4,"bits":4}}"#,
        ),
        ("config.json", r#"{"rope":{"a":1,"a":2},"hidden_size":8}"#),
        ("hf_quant_config.json", r#"{"producer":{"a":1,"a":2},"quantization":{}}"#),
    ];
    for (name, text) in fine {
        parse_beside(&bytes, &[(name, text)]).unwrap();
    }
}

#[cfg(all(feature = "npz", feature = "pth"))]
#[test]
fn archives() {
    use crate::common::pickle::{archive, dict, good, text};
    use crate::common::zip::{Member, Zip, npy};

    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'shape': (1,), }\n";
    let result = anamnesis::parse_bytes(npy(header, &[0; 8]));
    assert_eq!(verdict(result, Parse, &["NPY header", "twice"]), None);

    let x = || [text("x"), good()].concat();
    let twice = [b"}(", &x()[..], &x(), b"u."].concat();
    let result = anamnesis::parse_bytes(archive(&twice));
    assert_eq!(verdict(result, Parse, &["`x`", "twice"]), None);
    // Keys that are equal are one in Python, and all of them are numbers.
    for (a, b) in
        [(&b"K\x01"[..], &b"\x88"[..]), (b"K\x02", b"G\x40\0\0\0\0\0\0\0"), (b"K\0", b"I00\n")]
    {
        let twice = [b"}(", a, &good(), b, &good(), b"u."].concat();
        assert_eq!(verdict(anamnesis::parse_bytes(archive(&twice)), Parse, &["twice"]), None);
    }
    let names = |pickle: &[u8]| -> Vec<String> {
        let model = anamnesis::parse_bytes(archive(pickle)).unwrap();
        model.tensors().map(|t| t.name().to_owned()).collect()
    };
    let one = [&text("1")[..], b"\x85"].concat();
    let pair = [&b"K\x01"[..], &text("a'b"), b"\x86"].concat();
    let float = b"G\x44\xb5\x2d\x02\xc7\xe1\x4a\xf6".to_vec();
    let unlike = [&b"}("[..], &one, &good(), &pair, &good(), &float, &good(), b"u."].concat();
    assert_eq!(names(&unlike), ["('1',)", "(1, \"a'b\")", "1e+23"]);
    // A value that is no tensor is lost as well.
    let twice = [b"}(", &x()[..], &text("a"), b"K\x01", &text("a"), b"K\x02u."].concat();
    let result = anamnesis::parse_bytes(archive(&twice));
    assert_eq!(verdict(result, Parse, &["`a`", "twice"]), None);

    let pickle = [&b"\x80\x02"[..], &dict(&good())].concat();
    let with_roots = |roots: &[&str]| {
        let members: Vec<Member> = roots
            .iter()
            .flat_map(|root| {
                [
                    Member::stored(&format!("{root}data.pkl"), &pickle),
                    Member::stored(&format!("{root}data/0"), &[0; 24]),
                ]
            })
            .collect();
        Zip::of(&members).file()
    };
    for roots in [&["m/", "n/"][..], &["", "m/"], &["m/", ""]] {
        let result = anamnesis::parse_bytes(with_roots(roots));
        let words = ["two roots", "data.pkl"];
        assert_eq!(verdict(result, Parse, &words), None, "{roots:?}");
    }
    // TorchScript's extra files are below the one root, wherever they stand in the directory.
    for roots in [&["m/"][..], &["m/", "m/extra/"], &["m/extra/", "m/"]] {
        let model = anamnesis::parse_bytes(with_roots(roots)).unwrap();
        assert_eq!(model.tensors().count(), 1);
    }
}
