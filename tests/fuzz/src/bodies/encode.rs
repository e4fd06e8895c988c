//! Encoding with every scheme: shapes, options and values by the input.

use std::sync::OnceLock;

use anamnesis::{
    ConvertOptions, Forget, ForgetScheme, ParsedModel, RememberOptions, Tensor, parse_bytes,
    parse_bytes_with_limits,
};

use super::bytes::{Bytes, by_id, id};
use super::directory::place;
use super::model::{check_level, limits, text};
use crate::common::forget::{
    bf16s, decoded, every_scheme, f16s, importance, needs_importance, values,
};
use crate::common::{Random, Raw, f32s, file, raw};

const ROWS: &[usize] = &[1, 2, 3, 8, 16, 32, 33, 64, 128, 0];
const COLUMNS: &[usize] = &[32, 64, 128, 256, 512, 96, 160, 33, 1, 1024, 0];
const GROUPS: &[usize] = &[0, 16, 32, 64, 128, 256, 1, 33, 4096];

/// Names of matrices that a scheme may treat differently.
const NAMES: &[&str] = &[
    "model.layers.0.mlp.down_proj.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.mlp.experts.gate_up_proj",
    "model.embed_tokens.weight",
    "lm_head.weight",
    "blk.0.ffn_down.weight",
];

/// Every scheme with its id.
pub fn schemes() -> &'static [(u16, String)] {
    static SCHEMES: OnceLock<Vec<(u16, String)>> = OnceLock::new();
    SCHEMES.get_or_init(|| {
        let names = every_scheme().into_iter();
        names.map(|name| (id(&name), name)).collect()
    })
}

/// The tensors that an input describes: one to three, of at most 32 Ki values together.
pub fn tensors(input: &mut Bytes<'_>) -> Vec<Raw> {
    let mut out = Vec::new();
    let count = 1 + input.below(3);
    for no in 0..count {
        let mut shape = vec![input.of(ROWS), input.of(COLUMNS)];
        while shape.iter().product::<usize>() > 1 << 13 {
            shape[0] /= 2;
        }
        if input.below(6) == 0 {
            shape.insert(0, 2);
        }
        let kind = input.u8();
        let name = NAMES[usize::from(kind / 3) % NAMES.len()];
        // BitsAndBytes stores codes in a column. A parameter of one column beside them could be
        // codes, which is an error.
        if !name.ends_with(".weight") && shape.last() == Some(&1) {
            shape.push(32);
        }
        let values = floats(shape.iter().product(), input);
        let (dtype, bytes) = match kind % 3 {
            0 => ("F32", f32s(&values)),
            1 => ("BF16", bf16s(&values)),
            _ => ("F16", f16s(&values)),
        };
        let name = name.replace(".0.", &format!(".{no}."));
        if out.iter().all(|t: &Raw| t.name != name) {
            out.push(raw(&name, dtype, &shape, bytes));
        }
    }
    out
}

/// `n` values: ordinary ones, of which the input changes some; or the input's bytes as bits.
fn floats(n: usize, input: &mut Bytes<'_>) -> Vec<f32> {
    let mut random = Random(0x9e37_79b9 + u64::from(input.u16()));
    let mut out = random.floats(n);
    let edits = input.u8();
    if edits >= 0xf0 {
        let bits = input.take(64);
        let words: Vec<f32> = bits
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        if !words.is_empty() {
            out.iter_mut()
                .zip(words.iter().cycle())
                .for_each(|(x, w)| *x = *w);
        }
        return out;
    }
    // One factor for all, so that ranges of small and large values are met.
    let factor = f32::exp2(f32::from(edits & 0xf) * 8.0 - 60.0);
    if edits & 0x10 != 0 {
        out.iter_mut().for_each(|x| *x *= factor);
    }
    for _ in 0..(edits >> 5) {
        let (at, bits) = (usize::from(input.u16()), input.take(4));
        if let (Some(b), false) = (bits.first_chunk(), out.is_empty()) {
            let n = out.len();
            out[at % n] = f32::from_le_bytes(*b);
        }
    }
    out
}

/// Options for the scheme that the input names.
fn options(name: &str, input: &mut Bytes<'_>) -> Forget {
    let mut scheme: ForgetScheme = name.parse().unwrap();
    let group = input.of(GROUPS);
    let flags = input.u8();
    if flags & 1 != 0 {
        scheme = scheme.with_group_size(group);
    }
    if flags & 2 != 0 {
        scheme = scheme.pure();
    }
    if flags & 12 == 12 {
        let rules = ["compressed-tensors", "modelopt", "ggml", "floor", "ceil", "even", "rceil"];
        scheme = scheme.with_scale_rule(input.of(&rules)).unwrap();
    }
    let mut forget = Forget::from(scheme);
    if flags & 16 != 0 {
        forget.include = vec!["*".to_owned()];
    }
    forget
}

pub fn run(bytes: &[u8]) {
    let salt = crc32fast::hash(bytes);
    let mut input = Bytes(bytes);
    let name = by_id(schemes(), input.u16());
    let mut forget = options(name, &mut input);
    let target = crate::common::TARGETS[usize::from(input.u8()) % 3].0;
    let tensors = tensors(&mut input);
    let model = parse_bytes_with_limits(file(&tensors, &[]), &limits()).unwrap();
    let place = place();
    if needs_importance(name) && !salt.is_multiple_of(8) {
        let path = place.path().join("importance.dat");
        std::fs::write(&path, importance(&model)).unwrap();
        forget.imatrix = Some(path);
    }
    let options = |threads| {
        let mut options = ConvertOptions::from(forget.clone());
        options.run = RememberOptions::new(target).with_threads(threads);
        options.single_file = true;
        options
    };
    let Ok(mut conversion) = model.plan(options(1)) else {
        return;
    };
    let result = conversion.to_bytes();
    if salt & 0x30 == 0 {
        let other = model.plan(options(3)).and_then(|r| r.to_bytes());
        assert_eq!(text(&result), text(&other), "{name}: three threads");
        check_level(&mut conversion, &result);
    }
    let Ok(output) = result else {
        return;
    };
    let encoded: Vec<_> = conversion
        .report()
        .encoded
        .iter()
        .map(|e| &e.name[..])
        .collect();
    let back = decoded(&parse_bytes(output.clone()).unwrap()).unwrap();
    check_values(name, &model, &back, &encoded);
    if salt & 0x700 == 0 {
        let path = place.path().join("output");
        let report = model.plan(options(2)).unwrap().write(&path).unwrap();
        assert!(std::fs::read(&path).unwrap() == output, "{name}: file and memory differ");
        check_report(name, &model, &back, &report);
    }
}

/// Every tensor comes back with its shape. Values that are not encoded are the same; encoded ones
/// are finite.
fn check_values(scheme: &str, model: &ParsedModel, back: &ParsedModel, encoded: &[&str]) {
    for was in model.tensors() {
        let name = was.name();
        let is = returned(back, name).unwrap_or_else(|| panic!("{scheme}: no `{name}`"));
        if is.name() == name {
            assert_eq!(was.shape(), is.shape(), "{scheme}: `{name}`");
        } else {
            assert_eq!(was.elements(), is.elements(), "{scheme}: `{name}`");
        }
        let (old, new) = (values(&was).unwrap(), values(&is).unwrap());
        if encoded.contains(&name) {
            let finite = old.iter().all(|x| x.is_finite());
            let bad = new.iter().position(|x| !x.is_finite());
            assert!(
                !finite || bad.is_none(),
                "{scheme}: `{name}` has {:?}",
                bad.map(|i| (i, old[i], new[i]))
            );
        } else if was.dtype() == is.dtype() {
            assert!(
                *was.bytes().unwrap() == *is.bytes().unwrap(),
                "{scheme}: `{name}` is not encoded"
            );
        }
    }
}

/// The tensor that `name` came back as. In gpt-oss a stack of modules' weights comes back as a
/// parameter, transposed. A parameter that is asked for by its name becomes the weight of a module.
fn returned<'m>(back: &'m ParsedModel, name: &str) -> Option<Tensor<'m>> {
    let parameter = || back.tensor(name.strip_suffix(".weight")?);
    let module = || back.tensor(&format!("{name}.weight"));
    back.tensor(name).or_else(parameter).or_else(module)
}

/// The largest error that the report states is that of the values which the output decodes to.
fn check_report(scheme: &str, model: &ParsedModel, back: &ParsedModel, report: &anamnesis::Report) {
    let Some(distance) = &report.distance else {
        return;
    };
    let mut worst = 0f64;
    for name in report.encoded.iter().map(|e| &e.name) {
        let Some(is) = back.tensor(name) else {
            return;
        };
        let both = [model.tensor(name).unwrap(), is].map(|t| values(&t).unwrap());
        for (a, b) in both[0].iter().zip(&both[1]) {
            worst = worst.max((f64::from(*a) - f64::from(*b)).abs());
        }
    }
    let stated = distance.all.maximum;
    assert!(
        (stated - worst).abs() <= 1e-6 * worst.max(stated),
        "{scheme}: {stated} is stated, {worst} is true"
    );
}
