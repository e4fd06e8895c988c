//! A file's keys and tensors, compared with the table of its architecture.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};

use super::problem::GraphProblem;
use super::sizes::{
    EXPERTS, GgufFacts, KeyFacts, MOST_LAYERS, Size, USED, When, name_in_layer, row_and_layer,
};
use super::towers::{self, CLIP};
use super::{Graph, Row, TensorNeed, graph_of};
use crate::model::gguf::GgufMetadataValue;
use crate::model::gguf_keys::TOKENS;

/// Keys that llama.cpp needs of every model.
const ALL_NEED: &[&str] = &["context_length", "embedding_length", "block_count"];

/// Keys that it needs of models with attention.
const HEADS_NEED: &[&str] = &["attention.head_count"];

/// Everything for which llama.cpp does not load a file with the metadata `keys` and `tensors`: what
/// is wrong with its keys, or else with its tensors. Empty if no table has its architecture.
pub(crate) fn problems<'a>(
    architecture: &'a str,
    keys: impl Iterator<Item = (&'a str, impl Borrow<GgufMetadataValue>)>,
    tensors: impl Iterator<Item = (&'a str, &'a [usize])>,
) -> Vec<GraphProblem> {
    let keys: HashMap<_, _> = keys
        .map(|(key, value)| (key, KeyFacts::new(value.borrow())))
        .collect();
    let tokens = match keys.get(TOKENS) {
        Some(KeyFacts::Texts(count)) => *count,
        _ => 0,
    };
    of_facts(architecture, keys, tensors, tokens)
}

/// As [`problems`], of a file with `tokens` tokens, whose list `keys` may lack.
pub(crate) fn problems_in<'a>(
    architecture: &'a str,
    keys: impl Iterator<Item = (&'a str, GgufMetadataValue)>,
    tensors: impl Iterator<Item = (&'a str, &'a [usize])>,
    tokens: u64,
) -> Vec<GraphProblem> {
    let keys = keys.map(|(key, value)| (key, KeyFacts::new(&value)));
    of_facts(architecture, keys.collect(), tensors, tokens)
}

fn of_facts<'a>(
    architecture: &'a str,
    keys: HashMap<&'a str, KeyFacts>,
    tensors: impl Iterator<Item = (&'a str, &'a [usize])>,
    tokens: u64,
) -> Vec<GraphProblem> {
    let facts = GgufFacts { architecture, tokens, keys, tensors: tensors.collect() };
    if architecture == CLIP {
        return towers::problems(&facts);
    }
    let Some(graph) = graph_of(architecture) else {
        return vec![];
    };
    let of_keys = key_problems(graph, &facts);
    // Without a key, all tensors that follow from it would be wrong.
    match of_keys.is_empty() {
        true => tensor_problems(graph, &facts),
        false => of_keys,
    }
}

/// The keys that the table `graph` has and `facts` lack.
fn missing(graph: &Graph, facts: &GgufFacts<'_>) -> Vec<String> {
    let heads = HEADS_NEED.iter().filter(|_| graph.has_attention());
    let needed = graph.keys.iter().filter(|(when, _)| facts.is(*when, 0));
    let needed = needed.flat_map(|(_, keys)| keys.iter());
    let all = ALL_NEED.iter().chain(heads).chain(needed);
    let is_missing = |key: &&&str| facts.key(key).is_none() && !facts.keys.contains_key(**key);
    let is_general = |key: &str| key.starts_with("tokenizer.") || key.starts_with("xielu.");
    let name = |key: &&str| match is_general(key) {
        true => (*key).to_owned(),
        false => format!("{}.{key}", facts.architecture),
    };
    all.filter(is_missing).map(name).collect()
}

fn key_problems(graph: &Graph, facts: &GgufFacts<'_>) -> Vec<GraphProblem> {
    let architecture = facts.architecture;
    let missing = missing(graph, facts).into_iter();
    let mut problems: Vec<_> = missing.map(GraphProblem::Key).collect();
    if facts.tokens == 0 && !facts.keys.contains_key(TOKENS) {
        problems.push(GraphProblem::Key(TOKENS.to_owned()));
    }
    let value = |key: &str, what: String| {
        let key = format!("{architecture}.{key}");
        GraphProblem::Value { key, what }
    };
    let layers = facts.all_layers();
    if layers == 0 && facts.key("block_count").is_some() || layers > MOST_LAYERS {
        let what = format!("{layers} layers, and llama.cpp has 1 to {MOST_LAYERS}");
        problems.push(value("block_count", what));
    }
    let all_used = (0..layers.clamp(1, MOST_LAYERS) as usize).map(|layer| facts.size(USED, layer));
    let (experts, used) = (facts.size(EXPERTS, 0), all_used.max().unwrap_or(0));
    if used > experts || used == 0 && experts > 0 {
        let what = format!("a token gets {used} of {experts} experts");
        problems.push(value("expert_used_count", what));
    }
    problems.extend(group_problem(facts));
    if let Some(KeyFacts::Number(size)) = facts.key("vocab_size")
        && *size != facts.tokens
    {
        let what = format!("it is {size}, and there are {} tokens", facts.tokens);
        problems.push(value("vocab_size", what));
    }
    let all = 0..layers.min(MOST_LAYERS) as usize;
    for (_, [size, other]) in graph.equal.iter().filter(|(when, _)| facts.is(*when, 0)) {
        let sizes = |layer| (facts.size(*size, layer), facts.size(*other, layer));
        let mut sizes = all.clone().map(sizes);
        if let Some((found, expected)) = sizes.find(|(found, expected)| found != expected) {
            let what = format!(
                "{size} is {found}, and {other} is {expected}, which must be the same in llama.cpp's {architecture}"
            );
            problems.push(value(&size.to_string(), what));
        }
    }
    problems
}

/// What is wrong with the groups of experts.
fn group_problem(facts: &GgufFacts<'_>) -> Option<GraphProblem> {
    let (groups, used) = ("expert_group_count", "expert_group_used_count");
    let [experts, count, chosen] =
        [EXPERTS, Size::Key(groups), Size::Key(used)].map(|size| facts.size(size, 0));
    let is_fine = match (experts, count) {
        (_, 0) => true,
        (experts, 1) => experts > 1,
        _ => experts > count && experts.is_multiple_of(count) && (1..count).contains(&chosen),
    };
    (!is_fine).then(|| GraphProblem::Value {
        key: format!("{}.{used}", facts.architecture),
        what: format!("{chosen} of {count} groups of {experts} experts are chosen"),
    })
}

fn tensor_problems(graph: &Graph, facts: &GgufFacts<'_>) -> Vec<GraphProblem> {
    let mut comparison = Comparison { facts, known: HashSet::new(), problems: Vec::new() };
    let layers = loaded_layers(graph, facts);
    for (when, rows) in graph.tensors {
        for row in rows.iter().flat_map(|rows| rows.iter()) {
            let layers = match row.name {
                name if !name.contains("{i}") => 1,
                name if name.starts_with("dec.") => {
                    let own = facts
                        .size(Size::Key("decoder_block_count"), 0)
                        .min(MOST_LAYERS);
                    if own > 0 { own as usize } else { layers }
                }
                _ => layers,
            };
            for layer in (0..layers).filter(|layer| facts.is(*when, *layer)) {
                comparison.add(row, layer);
            }
        }
    }
    comparison.add_unknown(graph);
    comparison.problems
}

/// How many layers llama.cpp loads: also those that predict further tokens, if the table has them.
fn loaded_layers(graph: &Graph, facts: &GgufFacts<'_>) -> usize {
    let shown = facts.size(Size::Layers, 0) as usize;
    let is_there = || facts.is(When::Has("blk.{i}.nextn.eh_proj.weight"), shown);
    let has_all = graph.tensors.iter().any(|(when, _)| match when {
        When::Predicting => true,
        When::MayPredict => is_there(),
        _ => false,
    });
    if has_all {
        facts.all_layers() as usize
    } else {
        shown
    }
}

struct Comparison<'a> {
    facts: &'a GgufFacts<'a>,
    /// Names of tensors that llama.cpp loads.
    known: HashSet<String>,
    problems: Vec<GraphProblem>,
}

impl Comparison<'_> {
    /// Compares the tensor of `row` in layer `layer`.
    fn add(&mut self, row: &Row, layer: usize) {
        let name = name_in_layer(row.name, layer);
        let architecture = || self.facts.architecture.to_owned();
        let is_in_place = |other: &str| {
            self.facts
                .tensors
                .contains_key(name_in_layer(other, layer).as_str())
        };
        let (is_needed, has_place) = match row.need {
            TensorNeed::Required => (true, true),
            TensorNeed::Optional => (false, true),
            TensorNeed::Unless(other) => (!is_in_place(other), !is_in_place(other)),
        };
        match self.facts.tensors.get(name.as_str()) {
            None if is_needed => {
                let architecture = architecture();
                self.problems
                    .push(GraphProblem::Missing { tensor: name, architecture });
            }
            Some(shape) if has_place => {
                let sizes: Vec<_> = row
                    .sizes
                    .iter()
                    .map(|size| self.facts.size(*size, layer))
                    .collect();
                if !fits(row.sizes, &sizes, shape) {
                    let all: Vec<_> = row.sizes.iter().rev().map(Size::to_string).collect();
                    self.problems.push(GraphProblem::Shape {
                        tensor: name.clone(),
                        architecture: architecture(),
                        found: shape.to_vec(),
                        expected: sizes.into_iter().rev().collect(),
                        sizes: all.join(", "),
                    });
                }
                self.known.insert(name);
            }
            _ => {}
        }
    }

    /// Adds the tensors that no row is about, or the key that is missing for the row that is. llama.cpp
    /// takes scales of weights in all architectures.
    fn add_unknown(&mut self, graph: &Graph) {
        let experts = self.facts.size(EXPERTS, 0) as usize;
        let is_scale = |name: &str, shape: &[usize]| {
            let base = name
                .strip_suffix(".input_scale")
                .or_else(|| name.strip_suffix(".scale"));
            let is_of = |base: &str| self.known.contains(&format!("{base}.weight"));
            let count = if base.is_some_and(|base| base.ends_with("_exps")) {
                experts
            } else {
                1
            };
            base.is_some_and(is_of) && *shape == [count]
        };
        let tensors = self.facts.tensors.iter();
        let unknown =
            tensors.filter(|(name, shape)| !self.known.contains(**name) && !is_scale(name, shape));
        let mut unknown: Vec<_> = unknown.map(|(name, _)| *name).collect();
        unknown.sort_unstable();
        let mut whens: HashMap<&str, Vec<When>> = HashMap::new();
        for (when, rows) in graph.tensors {
            for row in rows.iter().flat_map(|rows| rows.iter()) {
                whens.entry(row.name).or_default().push(*when);
            }
        }
        let mut keys = HashSet::new();
        for name in unknown {
            let (row, layer) = row_and_layer(name);
            let whens = whens.get(row.as_str()).into_iter().flatten();
            let mut missing = whens.filter_map(|when| self.facts.missing_key(*when, layer));
            match missing.next() {
                Some(key) if keys.insert(key) => {
                    let key = format!("{}.{key}", self.facts.architecture);
                    self.problems.push(GraphProblem::Key(key));
                }
                Some(_) => {}
                None => self.problems.push(GraphProblem::NoPlace {
                    tensor: name.to_owned(),
                    architecture: self.facts.architecture.to_owned(),
                }),
            }
        }
    }
}

/// Whether a tensor of the shape `shape` has the sizes `sizes`, which are in the other order. Sizes of
/// 1 at the end count for nothing.
fn fits(rules: &[Size], sizes: &[u64], shape: &[usize]) -> bool {
    let found: Vec<u64> = shape.iter().rev().map(|n| *n as u64).collect();
    let rank = found.len().max(sizes.len());
    (0..rank).all(|i| {
        let is_free = matches!(rules.get(i), Some(Size::Free));
        is_free || found.get(i).unwrap_or(&1) == sizes.get(i).unwrap_or(&1)
    })
}
