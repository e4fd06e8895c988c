//! Single edits of every model of the test data: a dtype, a shape, a name, a tensor, a number of a
//! config. A model that was edited must be refused, or decode to the very tensors that it decoded
//! to before. Other values are a failure, unless nothing in the model can tell the edit (see
//! [`undecidable`]).

mod configs;
mod model;
mod tensors;
mod undecidable;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{case_directories, data, effort};
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

/// The kinds of edits that there are. Each is tried.
const KINDS: usize = 18;

/// How many edits had which outcome.
#[derive(Default)]
struct Tally {
    kinds: BTreeSet<&'static str>,
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

/// Which edits of a model are tried: one of `stride`, from the edit `first` on.
struct Choice {
    first: usize,
    stride: usize,
    seen: usize,
}

impl Choice {
    /// Whether the next edit is tried. The others are not made.
    fn takes_next(&mut self) -> bool {
        let at = self.seen;
        self.seen += 1;
        at % self.stride == self.first
    }
}

/// Tries the edits of one model that are in `choice`.
fn try_model(path: &Path, mut choice: Choice, tally: &Mutex<Tally>) {
    let Some(model) = Model::read(path) else {
        return;
    };
    let place = crate::common::tempdir().unwrap();
    let Some(expected) = model.decode(place.path()).accepted() else {
        return;
    };
    let roles = model.roles(place.path());
    let mut edits = tensors::edits(&model, &roles, &mut choice);
    edits.extend(configs::edits(&model, &mut choice));
    for edit in edits {
        let outcome = edit.model.decode(place.path());
        let mut tally = tally.lock().unwrap();
        tally.kinds.insert(edit.kind);
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

/// One of so many edits is tried, another one of each model, and outside the gate of every third
/// model, unless `EDITS` names models, of which all are: `EDITS=/gptq/`.
#[test]
fn no_other_values() {
    let mut directories = directories();
    let filter = std::env::var("EDITS").unwrap_or_default();
    let step = effort([3, 1, 1]);
    if filter.is_empty() {
        directories = directories.into_iter().step_by(step).collect();
    }
    let stride = match filter.is_empty() {
        true => effort([60, 40, 1]),
        false => 1,
    };
    let (next, tally) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = directories.get(at) else {
                return;
            };
            if path.to_str().unwrap().contains(&filter) {
                let choice = Choice { first: at % stride, stride, seen: 0 };
                try_model(path, choice, &tally);
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
    if filter.is_empty() {
        assert!(all > 80_000 / stride / step, "{all}");
        assert_eq!(tally.kinds.len(), KINDS, "{:?}", tally.kinds);
    }
    // One of so many edits may miss what a rule is for.
    if filter.is_empty() && stride == 1 {
        let unused = undecidable::reasons().find(|reason| !tally.undecidable.contains_key(reason));
        assert_eq!(unused, None, "no edit has this reason");
    }
}
