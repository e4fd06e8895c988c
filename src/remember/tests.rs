//! What holds for every scheme, whichever it is.

use std::collections::{HashMap, HashSet};
#[cfg(feature = "remember")]
use std::ops::Range;
use std::path::{Path, PathBuf};

#[cfg(feature = "remember")]
use super::seam::{Buffers, Decode, Grid, Tile};
use super::seam::{
    Group, Identity, Index, NamePattern, Registry, Resolution, ResolvedItem, Scheme,
};
use super::{REGISTRY, SCHEMES};
use crate::config::{QuantConfig, QuantMethod};
#[cfg(feature = "remember")]
use crate::element::Out;
use crate::model::Tensor;
#[cfg(feature = "remember")]
use crate::simd::Level;
#[cfg(feature = "remember")]
use crate::test_utils::effort;
use crate::{Dtype, QuantScheme, TensorRole, parse};

#[test]
fn every_scheme_has_a_name_of_its_own() {
    let mut seen = HashSet::new();
    for scheme in SCHEMES {
        let name = scheme.identity().name;
        assert!(!name.is_empty() && seen.insert(name), "`{name}`");
    }
}

/// Which of two patterns is found first must not matter, so that neither does the order of schemes.
#[test]
fn a_companion_has_one_role() {
    let all = || SCHEMES.iter().flat_map(|s| s.identity().companions);
    for (pattern, role) in all() {
        for (other, its_role) in all() {
            let (NamePattern::Ends(end)
            | NamePattern::Contains(end)
            | NamePattern::Is(end)
            | NamePattern::EndsIfQuantized(end)) = *other;
            assert!(
                !pattern.fits(end) || role == its_role,
                "{pattern:?} is {role:?}, and {other:?} {its_role:?}"
            );
        }
    }
}

#[test]
fn what_is_dropped_is_no_companion() {
    for scheme in SCHEMES {
        for name in scheme.identity().activations {
            let name = format!("layer.{name}");
            assert_eq!(REGISTRY.companion(&name), None, "{name}");
        }
    }
}

#[test]
fn every_method_belongs_to_a_scheme() {
    for method in QuantMethod::all() {
        assert!(REGISTRY.knows(method), "{method:?}");
    }
    assert!(!REGISTRY.knows(&QuantMethod::parse("quip")));
}

/// A file that configs are read from is a sidecar of some scheme, unless it describes the model,
/// too.
#[test]
fn every_file_of_a_quantization_belongs_to_a_scheme() {
    for file in QuantConfig::files() {
        let is_general = matches!(file, "config.json" | "params.json");
        assert_eq!(REGISTRY.is_sidecar(file), !is_general, "{file}");
    }
}

/// Models and directories of models below `dir`.
fn models(dir: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        let is_model = path
            .file_name()
            .is_some_and(|name| name == "model" || name == "model.safetensors");
        if is_model {
            found.push(path);
        } else if path.is_dir() {
            models(&path, found);
        }
    }
}

/// Claims over the models of `tests/data`: a claimed part has the role that its name has where
/// nobody claims it, and a container's scheme is alone.
#[test]
#[cfg_attr(miri, ignore = "hundreds of models, each of which takes Miri half a minute")]
fn claims_agree_with_identities() {
    let mut paths = Vec::new();
    let Some(data) = crate::test_utils::test_data() else {
        return;
    };
    models(&data, &mut paths);
    let mut parts: HashMap<TensorRole, usize> = HashMap::new();
    for path in &paths {
        let Ok(model) = parse(path) else { continue };
        for group in model.resolve().groups() {
            for (role, part) in &group.parts {
                let at = format!("{}: {}", path.display(), part.name());
                *parts.entry(*role).or_default() += 1;
                if *role == TensorRole::Quantized {
                    assert_eq!(REGISTRY.companion(part.name()), None, "{at}");
                    continue;
                }
                let listed = REGISTRY.companion(part.name());
                assert!(listed.is_none_or(|listed| listed == *role), "{at}");
                // Scales of EXL2 and MLC have the name of a scale of queries. They are claimed with
                // their codes or not at all.
                let of_codes = match group.scheme {
                    QuantScheme::Exl2 => true,
                    QuantScheme::Grouped { family, .. } => family == "MLC",
                    _ => false,
                };
                let is_scale = of_codes && part.name().ends_with(".q_scale");
                assert!(is_scale || !REGISTRY.is_activation(part.name()), "{at}");
                assert!(!REGISTRY.is_marker(part.name()), "{at}");
            }
        }
    }
    let some = [TensorRole::Quantized, TensorRole::Scale, TensorRole::ZeroPoint];
    assert!(some.iter().all(|role| parts.contains_key(role)));
}

/// The values of `rows` of a tile, as bits.
#[cfg(feature = "remember")]
fn decoded(decoder: &dyn Decode, tile: &Tile, rows: Range<usize>) -> Vec<u32> {
    let mut buffers = Buffers::default();
    decoder.load(tile, &mut buffers).unwrap();
    let mut values = vec![0.0; rows.len() * tile.cols.len()];
    decoder.decode(tile, rows, &buffers, Level::detect(), Out::F32(&mut values));
    values.into_iter().map(f32::to_bits).collect()
}

/// Of each tensor of the models of `tests/data`, any tile that the grid allows, and any rows of it,
/// are that part of the whole: small models would be one tile each.
#[cfg(feature = "remember")]
#[test]
#[cfg_attr(miri, ignore = "hundreds of models, each of which takes Miri half a minute")]
fn any_tile_is_a_part_of_the_whole() {
    let mut paths = Vec::new();
    let Some(data) = crate::test_utils::test_data() else {
        return;
    };
    models(&data, &mut paths);
    let (step, tiles) = effort([(11, 2), (2, 3), (1, 6)]);
    let mut state = 1usize;
    let mut any = |most: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % (most + 1)
    };
    let mut compared = 0;
    for path in paths.iter().step_by(step) {
        let Ok(model) = parse(path) else { continue };
        let resolution = model.resolve();
        for item in &resolution.items {
            let plain = item.plain_floats();
            let Some(decoder) = item.decoder(plain.as_ref()) else {
                continue;
            };
            let Grid { rows, cols, row_align, col_align, .. } = decoder.grid();
            if rows * cols == 0 || rows * cols > 1 << 17 {
                continue;
            }
            let whole = decoded(decoder, &Tile { rows: 0..rows, cols: 0..cols }, 0..rows);
            let mut range = |len: usize, align: usize| {
                let blocks = len.div_ceil(align);
                let first = any(blocks - 1);
                let end = first + 1 + any(blocks - first - 1);
                first * align..(end * align).min(len)
            };
            for _ in 0..tiles {
                let tile = Tile { rows: range(rows, row_align), cols: range(cols, col_align) };
                let some = range(tile.rows.len(), 1);
                let some = tile.rows.start + some.start..tile.rows.start + some.end;
                let found = decoded(decoder, &tile, some.clone());
                let of_row = |row: usize| &whole[row * cols..][tile.cols.clone()];
                let want: Vec<u32> = some.clone().flat_map(of_row).copied().collect();
                let at = format!("{}: {}: {tile:?}, {some:?}", path.display(), item.name());
                assert!(found == want, "{at}");
                compared += 1;
            }
        }
    }
    assert!(compared > 200, "{compared}");
}

/// A safetensors file of `tensors` (name, dtype, shape, bytes), with `metadata`.
fn safetensors(metadata: &serde_json::Value, tensors: &[(&str, &str, &[usize], &[u8])]) -> Vec<u8> {
    let mut header = serde_json::json!({ "__metadata__": metadata });
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend_from_slice(bytes);
        header[name] = serde_json::json!({
            "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()],
        });
    }
    let header = header.to_string().into_bytes();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    file
}

/// What metadata say of quantized layers is untrue of decoded ones: an output that kept it could
/// not be read.
#[test]
fn an_output_does_not_describe_what_it_was_decoded_from() {
    let layers = r#"{"layers": {"a": {"format": "float8_e4m3fn"}}}"#;
    let metadata = serde_json::json!({ "_quantization_metadata": layers, "author": "me" });
    let scale = 0.5f32.to_le_bytes();
    let tensors: [(&str, &str, &[usize], &[u8]); 2] = [
        ("a.weight", "F8_E4M3", &[2, 2], &[0, 56, 60, 64]),
        ("a.weight_scale", "F32", &[], &scale),
    ];
    let model = crate::parse_bytes(safetensors(&metadata, &tensors)).unwrap();
    let decoded = model.remember_to_bytes(crate::TargetDtype::F32).unwrap();
    let decoded = crate::parse_bytes(decoded).unwrap();
    assert!(decoded.resolve().problems.is_empty());
    assert!(!decoded.metadata.contains_key("_quantization_metadata"));
    assert!(decoded.metadata.contains_key("author"));
}

/// Precedence is declared by names of schemes that there are, and none is over itself.
#[test]
fn precedence_is_an_order() {
    let names: HashSet<&str> = SCHEMES.iter().map(|s| s.identity().name).collect();
    for scheme in SCHEMES {
        for other in scheme.identity().over {
            assert!(names.contains(other), "{} is over `{other}`", scheme.identity().name);
        }
    }
    assert!(SCHEMES.len() <= 64 && !REGISTRY.has_circle());
}

/// The groups, dropped tensors and problems of a model as text.
fn resolved(model: &crate::ParsedModel, registry: &Registry) -> String {
    let resolution = Resolution::new(model, registry);
    let mut text = String::new();
    for item in &resolution.items {
        let scheme = match item {
            ResolvedItem::Group(group) => {
                format!("{:?} of {} parts", group.scheme, group.parts.len())
            }
            ResolvedItem::Plain(t) => format!("{:?}", t.stored.dtype()),
        };
        text += &format!("{} {:?} {scheme}\n", item.name(), item.shape());
    }
    for problem in &resolution.problems {
        text += &format!("{:?} {:?} {}\n", problem.role, problem.scheme, problem.error);
    }
    let dropped = resolution.dropped.iter().map(|t| t.name());
    text + &dropped.collect::<Vec<_>>().join("\n")
}

/// The order of the table changes nothing.
#[test]
#[cfg_attr(miri, ignore = "hundreds of models, each of which takes Miri half a minute")]
fn any_order_of_schemes_gives_the_same() {
    let Some(data) = crate::test_utils::test_data() else {
        return;
    };
    let mut paths = Vec::new();
    models(&data, &mut paths);
    // A linear congruential generator takes the schemes in another order for each seed.
    let shuffled = (1..=crate::test_utils::effort([2, 5, 5])).map(|seed: u64| {
        let mut schemes = SCHEMES.to_vec();
        let mut state = seed;
        for last in (1..schemes.len()).rev() {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            schemes.swap(last, (state >> 33) as usize % (last + 1));
        }
        Registry::new(schemes.leak())
    });
    let shuffled: Vec<Registry> = shuffled.collect();
    for path in &paths {
        let Ok(model) = parse(path) else { continue };
        let expected = resolved(&model, &REGISTRY);
        for registry in &shuffled {
            assert_eq!(resolved(&model, registry), expected, "{}", path.display());
        }
    }
}

/// A scheme that refuses all bytes.
struct Greedy(&'static Identity);

impl Scheme for Greedy {
    fn identity(&self) -> &'static Identity {
        self.0
    }

    fn claim<'m>(&self, t: &Tensor<'m>, _: &Index<'m>) -> crate::Result<Option<Group<'m>>> {
        match t.dtype() {
            Dtype::U8 => Err(super::seam::refused(t, self.0.name, "it is refused")),
            _ => Ok(None),
        }
    }
}

const fn identity(name: &'static str) -> Identity {
    Identity {
        name,
        over: &[],
        methods: &[],
        codes: &[],
        companions: &[],
        optional: &[],
        activations: &[],
        markers: &[],
        sidecars: &[],
        container: None,
    }
}

static ONE: Greedy = Greedy(&identity("one"));
static OTHER: Greedy = Greedy(&identity("other"));

/// Where no scheme is over the other, a tensor of both is an error that names them.
#[test]
fn two_answers_are_an_error() {
    let tensors: [(&str, &str, &[usize], &[u8]); 1] = [("a.weight", "U8", &[2, 2], &[1, 2, 3, 4])];
    let model = crate::parse_bytes(safetensors(&serde_json::json!({}), &tensors)).unwrap();
    for schemes in [[&ONE, &OTHER], [&OTHER, &ONE]] {
        let schemes: Vec<&'static dyn Scheme> = schemes.map(|s| s as &dyn Scheme).to_vec();
        let registry = Registry::new(schemes.leak());
        let text = resolved(&model, &registry);
        assert!(text.contains("the names and the types of one and of other"), "{text}");
    }
}

/// Beside a weight whose claim failed no tensor is a weight by itself, whatever lies between them in
/// the order of names.
#[test]
fn companions_of_failed_weights_are_no_weights() {
    let codes: (&str, &[usize], &[u8]) = ("F8_E4M3", &[2, 2], &[0, 56, 60, 64]);
    let words = [0; 16];
    let fp8 = |name| (name, codes.0, codes.1, codes.2);
    let tensors: [(&str, &str, &[usize], &[u8]); 5] = [
        ("a.qweight", "I32", &[2, 2], &words),
        fp8("a.b"),
        fp8("a.c.weight"),
        fp8("ab.weight"),
        fp8("b.weight"),
    ];
    let model = crate::parse_bytes(safetensors(&serde_json::json!({}), &tensors)).unwrap();
    let text = resolved(&model, &REGISTRY);
    let casts: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("CastFp8"))
        .collect();
    assert!(casts.len() == 2 && casts.iter().all(|line| !line.starts_with("a.")), "{text}");
    assert!(text.ends_with("a.b\na.c.weight"), "neither is copied: {text}");
}
