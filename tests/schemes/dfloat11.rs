//! DFloat11's modules that are incomplete, contradictory or hostile: what is decoded is what was
//! encoded, or it is an error that names the module's codes.

use anamnesis::{ParsedModel, RememberOptions, TargetDtype, parse};

use crate::common::verdict::{Parse, Unsupported, parse_beside, tensors, verdict};
use crate::common::{Raw, data, effort, file};

const CONFIG: &str = r#"{"hidden_size":20,"vocab_size":12,"dfloat11_config":{"version":"0.5.0","threads_per_block":[512],"bytes_per_thread":8,"pattern_dict":{"lm_head":[],"l.\\d+":["a","b"]}}}"#;

fn decoded(all: &[Raw], config: &str) -> anamnesis::Result<Vec<u8>> {
    parse_beside(&file(all, &[]), &[("config.json", config)])?.remember_to_bytes(TargetDtype::BF16)
}

#[test]
fn contradictions() {
    let rows = [
        ("{c}; {t}; {p}; {g}", CONFIG, Parse, "sign_mantissa` is missing"),
        ("{c}; {s}; {p}; {g}", CONFIG, Parse, "luts` is missing"),
        ("{c}; {s}; {t}; {g}", CONFIG, Parse, "output_positions` is missing"),
        ("{c}; {s}; {t}; {p}", CONFIG, Parse, "gaps` is missing"),
        ("{s}; {t}; {p}; {g}", CONFIG, Parse, "lm_head.sign_mantissa"),
        ("lm_head.split_positions I64 0", CONFIG, Parse, "split_positions"),
        (
            "{c}; {s}; {t}; lm_head.output_positions U8 12; {g}",
            CONFIG,
            Parse,
            "output_positions` [12]",
        ),
        ("{c}; {s}; {t}; {p}; lm_head.gaps U8 319", CONFIG, Parse, "gaps` [319]"),
        ("{c}; {s}; lm_head.luts U8 1,256; {p}; {g}", CONFIG, Parse, "`lm_head.luts`"),
        ("{c}; {s}; lm_head.luts U8 19,256; {p}; {g}", CONFIG, Parse, "`lm_head.luts`"),
        ("{c}; {s}; lm_head.luts U8 512; {p}; {g}", CONFIG, Parse, "`lm_head.luts`"),
        ("{c}; {s}; lm_head.luts I8 2,256; {p}; {g}", CONFIG, Parse, "`lm_head.luts` (I8"),
        ("{c}; lm_head.sign_mantissa U8 0; {t}; {p}; {g}", CONFIG, Parse, "nothing in it"),
        // Places of zeros.
        ("{c}; {s}; {t}; {p}; {g}", CONFIG, Parse, "from 0 to 0 of 240"),
        ("{c}; {s}; {t}; {p}; {g}; lm_head.split_positions I64 1", CONFIG, Parse, "cuts it into 2"),
        ("{c}; {s}; {t}; {p}; {g}", r#"{"hidden_size":20}"#, Unsupported, "pattern_dict"),
        ("{c}; {s}; {t}; {p}; {g}", "{chunks}", Unsupported, "threads_per_block"),
        ("{c}; {s}; {t}; {p}; {g}", "{runs}", Unsupported, "bytes_per_thread"),
        ("{c}; {s}; {t}; {p}; {g}", "{names}", Unsupported, "no list of names"),
        ("{c}; {s}; {t}; {p}; {g}", "{expression}", Unsupported, "`pattern_dict`"),
        ("{c}; {s}; {t}; {p}; {g}", "{several}", Unsupported, "several patterns"),
    ];
    let names = [
        ("{c}", "lm_head.encoded_exponent U8 99"),
        ("{s}", "lm_head.sign_mantissa U8 240"),
        ("{t}", "lm_head.luts U8 2,256"),
        ("{p}", "lm_head.output_positions U8 8"),
        ("{g}", "lm_head.gaps U8 320"),
    ];
    let configs = [
        ("{chunks}", CONFIG.replace("[512]", "[0]")),
        ("{runs}", CONFIG.replace(":8,", ":16,")),
        ("{names}", CONFIG.replace(r#""lm_head":[]"#, r#""lm_head":[1]"#)),
        ("{expression}", CONFIG.replace("lm_head", "lm_(head")),
        ("{several}", CONFIG.replace(r"l.\\d+", "lm_.*")),
    ];
    for (text, config, kind, words) in rows {
        let text = names
            .iter()
            .fold(text.to_owned(), |text, (short, long)| text.replace(short, long));
        let config = configs
            .iter()
            .find(|(name, _)| *name == config)
            .map_or(config, |(_, text)| text);
        let wrong = verdict(decoded(&tensors(&text), config), kind, &["lm_head", words]);
        assert_eq!(wrong, None, "{text} | {config}");
    }
}

/// The tensors and the config of a case.
fn case(name: &str) -> (Vec<Raw>, String) {
    let directory = data().join("dfloat11").join(name).join("model");
    let bytes = std::fs::read(directory.join("model.safetensors")).unwrap();
    let all = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut names = all.names();
    names.sort();
    let raw = |name: &&str| {
        let t = all.tensor(name).unwrap();
        let dtype = match t.dtype() {
            safetensors::Dtype::I64 => "I64",
            safetensors::Dtype::BF16 => "BF16",
            _ => "U8",
        };
        crate::common::raw(name, dtype, t.shape(), t.data().to_vec())
    };
    let config = std::fs::read_to_string(directory.join("config.json")).unwrap();
    (names.iter().map(raw).collect(), config)
}

/// Every byte of places and gaps, and every 7th of tables and codes, changed by itself: what is
/// decoded is the same as before, or an error. Nobody can tell a code that is another one of the
/// same length, so that tables and codes may give other values.
#[test]
fn every_byte_counts() {
    let (all, config) = case("short_chunks");
    let want = decoded(&all, &config).unwrap();
    let tensors = ["luts", "output_positions", "split_positions", "gaps", "encoded_exponent"];
    let mut refused = 0;
    let step = effort([5, 1, 1]);
    for (i, t) in all.iter().enumerate() {
        let Some(kind) = tensors
            .iter()
            .find(|end| t.name.starts_with("model.layers.0") && t.name.ends_with(*end))
        else {
            continue;
        };
        let is_free = ["encoded_exponent", "luts"].contains(kind);
        for at in (0..t.bytes.len()).step_by(if is_free { 7 * step } else { step }) {
            for flip in [1, 0x80] {
                let mut changed: Vec<Raw> = all
                    .iter()
                    .map(|t| crate::common::raw(&t.name, t.dtype, &t.shape, t.bytes.clone()))
                    .collect();
                changed[i].bytes[at] ^= flip;
                match decoded(&changed, &config) {
                    Err(e) => {
                        assert!(e.to_string().contains("model.layers.0."), "{e}");
                        refused += 1;
                    }
                    // A weight may end elsewhere if all shapes are still those of the config, which
                    // no single flip reaches.
                    Ok(found) => assert!(is_free || found == want, "{} byte {at}", t.name),
                }
            }
        }
    }
    assert!(refused > 300 / step, "{refused}");
}

/// Signs that are stored as a matrix tell the shape. A config that fits the values contradicts it
/// or not; another is that of a layer with other sizes.
#[test]
fn shapes_of_signs() {
    let (all, config) = case("deep");
    let config_without_sizes = config
        .replace("hidden_size", "other")
        .replace("vocab_size", "another");
    for (shape, config, is_decoded) in [
        (&[255, 257][..], &config, true),
        (&[255, 257], &config_without_sizes, true),
        (&[257, 255], &config_without_sizes, true),
        (&[257, 255], &config, false),
        (&[1, 255 * 257], &config, false),
        (&[257, 255], &config.replace("257", "300"), true),
        (&[255, 257, 1], &config_without_sizes, false),
    ] {
        let mut all: Vec<Raw> = all
            .iter()
            .map(|t| crate::common::raw(&t.name, t.dtype, &t.shape, t.bytes.clone()))
            .collect();
        let signs = all
            .iter_mut()
            .find(|t| t.name.ends_with("sign_mantissa"))
            .unwrap();
        signs.shape = shape.to_vec();
        let wrong = decoded(&all, config).err();
        assert_eq!(wrong.is_none(), is_decoded, "{shape:?} {wrong:?}");
    }
}

fn parsed(name: &str) -> ParsedModel {
    parse(data().join("dfloat11").join(name).join("model")).unwrap()
}

/// Weights of one module, one at a time and by rows: each is decoded from the middle of the stream.
#[test]
fn single_tensors() {
    for name in ["llama", "short_chunks"] {
        let model = parsed(name);
        let bytes = model.remember_to_bytes(TargetDtype::BF16).unwrap();
        let whole = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let conversion = model.plan(RememberOptions::new(TargetDtype::BF16)).unwrap();
        for (name, t) in whole.tensors() {
            let (rows, width) = (t.shape()[0], t.data().len() / t.shape()[0]);
            let mut out = vec![0; t.data().len()];
            conversion.decode_into(&name, &mut out).unwrap();
            assert!(out == t.data(), "{name}");
            for first in [0, rows / 2, rows - 1] {
                let mut row = vec![0; width];
                conversion
                    .decode_rows_into(&name, first..first + 1, &mut row)
                    .unwrap();
                assert!(row == t.data()[first * width..][..width], "{name} {first}");
            }
        }
    }
}

/// All outputs of a module are listed, and no stored tensor is left.
#[test]
fn listed() {
    let info = parsed("llama").inspect();
    assert!(info.problems.is_empty());
    let text = info.to_string();
    assert!(text.contains("DFloat11") && !text.contains("of precision"), "{text}");
    let mut weights = info
        .modules
        .iter()
        .filter(|m| m.scheme != anamnesis::QuantScheme::Unquantized);
    assert!(weights.all(|m| (10.0..13.0).contains(&m.bits_per_weight())), "{text}");
}

/// The library writes a file for each module that it compresses, and one, or shards with an index,
/// for all other tensors. All of them are the model.
#[test]
fn files_of_modules() {
    let (all, config) = case("biases");
    let whole = decoded(&all, &config).unwrap();
    let whole = safetensors::SafeTensors::deserialize(&whole).unwrap();
    let (codes, rest): (Vec<Raw>, Vec<Raw>) = all
        .into_iter()
        .partition(|t| t.dtype == "U8" || t.dtype == "I64");
    let index: Vec<String> = rest
        .iter()
        .map(|t| format!(r#""{}":"rest.safetensors""#, t.name))
        .collect();
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, index.join(","));
    for (name, index) in [
        ("model.safetensors", None),
        ("diffusion_pytorch_model.safetensors", None),
        ("rest.safetensors", Some(index)),
    ] {
        let directory = crate::common::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            std::fs::write(directory.path().join(name), bytes).unwrap();
        };
        write("config.json", config.as_bytes());
        write(name, &file(&rest, &[]));
        if let Some(index) = index {
            write("model.safetensors.index.json", index.as_bytes());
        }
        for (i, part) in codes.chunk_by(|a, b| module(a) == module(b)).enumerate() {
            write(&format!("block_{i}.safetensors"), &file(part, &[]));
        }
        let model = parse(directory.path()).unwrap();
        let bytes = model.remember_to_bytes(TargetDtype::BF16).unwrap();
        let found = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(found.len(), whole.len());
        for (name, t) in whole.iter() {
            assert_eq!(found.tensor(name).unwrap().data(), t.data(), "{name}");
        }
    }
}

fn module(t: &Raw) -> &str {
    t.name.rsplit_once('.').map_or("", |(module, _)| module)
}
