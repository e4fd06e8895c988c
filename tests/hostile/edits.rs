//! Single edits of every model of the test data: a dtype, a shape, a name, a tensor, a number of a
//! config. A model that was edited must be refused, or decode to the very tensors that it decoded
//! to before. Other values are a failure, unless nothing in the model can tell the edit (see
//! [`undecidable`]).

mod configs;
mod model;
mod tensors;
mod undecidable;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{case_directories, data};
use model::{Decoded, Model, Outcome};

/// One change of a model.
struct Edit {
    /// What was changed, for the list of reasons and for messages: `shape transposed`, `config
    /// number`.
    kind: &'static str,
    /// The tensor or the place in a config.
    place: String,
    /// What stands there now.
    new: String,
    /// The tensor's role, or the config's file name.
    role: String,
    tensor: Option<tensors::Change>,
    model: Model,
}

/// How many edits had which outcome.
#[derive(Default)]
struct Tally {
    refused: usize,
    same: usize,
    undecidable: BTreeMap<&'static str, usize>,
    wrong: Vec<String>,
}

/// Every directory of the test data that holds a model in safetensors files.
fn directories() -> Vec<PathBuf> {
    let mut all = case_directories();
    all.retain(|path| {
        path.join("config.json").is_file() || path.join("model.safetensors").is_file()
    });
    all
}

/// One of so many edits is tried, another one of each model, unless `EDITS` names models:
/// `EDITS=/gptq/`, or `EDITS=/` for all.
const STRIDE: usize = 8;

/// Tries edits of one model, one of `stride` from edit `first`.
fn try_model(path: &Path, [first, stride]: [usize; 2], tally: &Mutex<Tally>) {
    let Some(model) = Model::read(path) else {
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let Some(expected) = model.decode(place.path()).accepted() else {
        return;
    };
    let roles = model.roles(place.path());
    let edits = tensors::edits(&model, &roles)
        .into_iter()
        .chain(configs::edits(&model));
    for edit in edits.skip(first).step_by(stride) {
        let outcome = edit.model.decode(place.path());
        let mut tally = tally.lock().unwrap();
        match outcome {
            Outcome::Refused => tally.refused += 1,
            Outcome::Accepted(tensors) if is_same(&edit, &expected, &tensors) => tally.same += 1,
            Outcome::Accepted(_) => match undecidable::reason(&edit) {
                Some(reason) => *tally.undecidable.entry(reason).or_default() += 1,
                None => {
                    let case = path.strip_prefix(data()).unwrap().display();
                    tally.wrong.push(format!(
                        "{case}: {}: {} ({}) is now {}",
                        edit.kind, edit.place, edit.role, edit.new
                    ));
                }
            },
        }
    }
}

/// Whether an edited model gave the tensors that the model itself gives. A name that no program
/// knows is a tensor that is copied as it is, and in sight.
fn is_same(edit: &Edit, expected: &Decoded, decoded: &Decoded) -> bool {
    let is_unknown = |name: &String| edit.kind == "unknown name" && *name == edit.new;
    expected
        .iter()
        .eq(decoded.iter().filter(|(name, _)| !is_unknown(name)))
}

#[test]
fn no_other_values() {
    let directories = directories();
    let filter = std::env::var("EDITS").unwrap_or_default();
    let (next, tally) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = directories.get(at) else {
                return;
            };
            if path.to_str().unwrap().contains(&filter) {
                let tried = if filter.is_empty() {
                    [at % STRIDE, STRIDE]
                } else {
                    [0, 1]
                };
                try_model(path, tried, &tally);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    let mut tally = tally.into_inner().unwrap();
    tally.wrong.sort();
    let undecidable: usize = tally.undecidable.values().sum();
    let all = tally.refused + tally.same + undecidable + tally.wrong.len();
    println!(
        "{all} edits: {} refused, {} without effect, {undecidable} undecidable, {} wrong\n{:#?}",
        tally.refused,
        tally.same,
        tally.wrong.len(),
        tally.undecidable
    );
    assert!(tally.wrong.is_empty(), "{}", tally.wrong.join("\n"));
    assert!(all > 10_000 || !filter.is_empty(), "{all}");
    // One of so many edits may miss what a rule is for.
    if filter == "/" {
        let unused = undecidable::reasons().find(|reason| !tally.undecidable.contains_key(reason));
        assert_eq!(unused, None, "no edit has this reason");
    }
}
