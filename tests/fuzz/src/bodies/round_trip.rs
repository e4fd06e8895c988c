//! Round trips that must give the same bits: containers that hold the values as they are, and
//! schemes that are exact on values which they have decoded themselves.

use anamnesis::{
    ConvertOptions, ConvertTarget, Forget, ForgetScheme, RememberOptions, TargetDtype,
};
use anamnesis::{ParsedModel, parse_bytes, parse_bytes_with_limits};

use super::bytes::{Bytes, by_id, id};
use super::encode::tensors;
use super::model::limits;
use crate::common::file;
use crate::common::forget::{decoded, encoded, values};

/// Schemes that encode their own values without a change: the largest magnitude of a block has a
/// code whose value is ±1 or the negative end of the range, so the second encoding finds the scale
/// of the first.
pub const EXACT: &[&str] =
    &["nf4", "fp4", "gguf:q4_0", "gguf:q5_0", "gguf:q8_0", "gguf:q1_0", "gguf:tq1_0"];

pub fn run(bytes: &[u8]) {
    let mut input = Bytes(bytes);
    let kind = input.u8();
    let exact: Vec<_> = EXACT.iter().map(|name| (id(name), *name)).collect();
    let scheme = *by_id(&exact, input.u16());
    let model = parse_bytes_with_limits(file(&tensors(&mut input), &[]), &limits()).unwrap();
    if kind.is_multiple_of(2) {
        through_containers(&model);
    } else {
        twice(&model, scheme);
    }
}

/// Converts a model of floats to every container that takes it, and back.
fn through_containers(model: &ParsedModel) {
    for target in [ConvertTarget::Safetensors, ConvertTarget::Gguf, ConvertTarget::Npz] {
        let mut options = ConvertOptions::new(target);
        options.run.to = TargetDtype::F32;
        let Ok(there) = model.plan(options).and_then(|r| r.to_bytes()) else {
            continue;
        };
        let there = parse_bytes(there).unwrap();
        for was in model.tensors() {
            let is = there.tensor(was.name()).unwrap();
            assert_eq!(was.shape(), is.shape(), "{target:?}: `{}`", was.name());
            let bits = |t| values(t).unwrap().into_iter().map(same).collect::<Vec<_>>();
            assert!(bits(&was) == bits(&is), "{target:?}: `{}`", was.name());
        }
    }
}

/// The bits of a value; NaN equals NaN.
fn same(x: f32) -> u32 {
    if x.is_nan() { u32::MAX } else { x.to_bits() }
}

/// Encodes, decodes, and does both again.
fn twice(model: &ParsedModel, scheme: &str) {
    let trip = |model: &ParsedModel| {
        let forget = Forget::from(scheme.parse::<ForgetScheme>().unwrap().pure());
        let mut options = ConvertOptions::from(forget);
        options.run = RememberOptions::new(TargetDtype::F32).with_threads(1);
        let (out, report) = encoded(model, options)?;
        Ok::<_, anamnesis::AnamnesisError>((decoded(&out)?, report))
    };
    let Ok((once, report)) = trip(model) else {
        return;
    };
    let (twice, _) = trip(&once).unwrap_or_else(|e| panic!("{scheme} refuses its own values: {e}"));
    for name in report.encoded.iter().map(|e| &e.name) {
        let [a, b] = [&once, &twice].map(|m| values(&m.tensor(name).unwrap()).unwrap());
        // The sign of a zero is no part of the promise: some codes have only one zero. Neither are
        // scales whose reciprocal is infinite, as the libraries compute it.
        let is_same = |a: f32, b: f32| a == b || a.abs().max(b.abs()) < 1e-36;
        let differs = a.iter().zip(&b).position(|(a, b)| !is_same(*a, *b));
        assert!(differs.is_none(), "{scheme}: `{name}` {:?}", differs.map(|i| (i, a[i], b[i])));
    }
}
