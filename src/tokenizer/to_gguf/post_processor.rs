//! Post-processors of tokenizer.json: which special tokens begin, end and separate texts.
//!
//! gguf-py compares their templates with tokenizer_config.json, and changes its copy of that where
//! they differ.

use serde_json::{Map, Value};

/// Kinds of special tokens: `bos`, `eos`, ….
#[derive(Debug, Default)]
pub(super) struct SpecialKinds {
    /// Those that are looked for.
    pub looked_for: Vec<&'static str>,
    /// Whether a token of a kind is added to a text.
    pub added: Vec<(&'static str, bool)>,
}

impl SpecialKinds {
    pub(super) fn set_added(&mut self, kind: &'static str, flag: bool) {
        match self.added.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, old)) => *old = flag,
            None => self.added.push((kind, flag)),
        }
    }

    /// Whether it is known if a token of `kind` is added.
    pub(super) fn knows_added(&self, kind: &str) -> bool {
        self.added.iter().any(|(other, _)| *other == kind)
    }
}

/// tokenizer_config.json while a post-processor is compared with it. Special tokens are kept as the
/// file has them: a token that is an object there is equal to no text, and counts as another token
/// than the one in a template.
pub(super) struct SpecialReader {
    pub config: Map<String, Value>,
    bos: Value,
    cls: Value,
    eos: Value,
    sep: Value,
}

/// Whether Python takes a value for true.
fn is_truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
        Value::Number(n) => n.as_f64() != Some(0.0),
    }
}

/// The special token of a template's step.
fn special_of(step: Option<&Value>) -> Option<&Value> {
    let id = step?.pointer("/SpecialToken/id")?;
    is_truthy(id).then_some(id)
}

impl SpecialReader {
    pub(super) fn new(config: Map<String, Value>) -> Self {
        let of = |key: &str| config.get(key).cloned().unwrap_or_default();
        Self {
            bos: of("bos_token"),
            cls: of("cls_token"),
            eos: of("eos_token"),
            sep: of("sep_token"),
            config,
        }
    }

    /// BERT's classes have `cls` and `sep` where others have `bos` and `eos`.
    pub(super) fn fill_from_twins(&mut self) {
        if self.config.is_empty() {
            return;
        }
        if !is_truthy(&self.bos) && is_truthy(&self.cls) {
            self.bos = self.cls.clone();
            self.put("bos_token", self.bos.clone());
        }
        if !is_truthy(&self.eos) && is_truthy(&self.sep) {
            self.eos = self.sep.clone();
            self.put("eos_token", self.eos.clone());
        }
    }

    fn put(&mut self, key: &str, value: Value) {
        self.config.insert(key.to_owned(), value);
    }

    pub(super) fn read_roberta(&mut self, processor: &Value) {
        let first = |key: &str, other: &Value| {
            let pair = processor.get(key).and_then(Value::as_array);
            pair.and_then(|pair| pair.first()).unwrap_or(other).clone()
        };
        if self.config.is_empty() {
            return;
        }
        if !is_truthy(&self.cls) {
            self.cls = first("cls", &self.bos);
            self.put("cls_token", self.cls.clone());
        }
        if !is_truthy(&self.sep) {
            self.sep = first("sep", &self.eos);
            self.put("sep_token", self.sep.clone());
        }
    }

    /// Whether BOS, EOS and SEP are added, by the templates for one text and for two.
    pub(super) fn read_single(&mut self, processor: &Value, out: &mut SpecialKinds) {
        let steps = |key: &str| processor.get(key).and_then(Value::as_array);
        let single = steps("single").map_or(&[][..], Vec::as_slice);
        let (mut first, mut last) = (None, None);
        if single.len() > 1 {
            first = special_of(single.first());
            if let Some(first) = first {
                self.first(first, out);
            }
            last = special_of(single.last());
            if let Some(last) = last {
                self.last(last, out);
            }
        }
        let pair = steps("pair").map_or(&[][..], Vec::as_slice);
        if !pair.is_empty() {
            self.pair(pair, first, last, out);
        }
    }

    fn first(&mut self, first: &Value, out: &mut SpecialKinds) {
        if self.config.is_empty() {
            self.bos = first.clone();
        } else if *first != self.bos && *first != self.cls {
            if !is_truthy(&self.bos) {
                self.bos = first.clone();
                self.put("bos_token", first.clone());
            }
            if !is_truthy(&self.cls) {
                self.cls = first.clone();
                self.put("cls_token", first.clone());
            }
        }
        out.set_added("bos", *first == self.bos || *first == self.cls);
    }

    fn last(&mut self, last: &Value, out: &mut SpecialKinds) {
        if self.config.is_empty() {
            self.eos = last.clone();
        } else if *last != self.eos {
            // The EOS token of the config becomes the end of a turn, or of a message.
            let free = ["eot", "eom"]
                .into_iter()
                .find(|kind| !out.looked_for.contains(kind));
            if let Some(kind) = free {
                out.looked_for.push(kind);
                self.put(&format!("{kind}_token"), self.eos.clone());
            }
            self.eos = last.clone();
            self.put("eos_token", last.clone());
        }
        out.set_added("eos", *last == self.eos);
    }

    /// Whether texts are separated: `A [sep] [eos] B`.
    fn pair(
        &mut self,
        pair: &[Value],
        first: Option<&Value>,
        last: Option<&Value>,
        out: &mut SpecialKinds,
    ) {
        let mut rest = pair;
        if first.is_some() && rest.first().map(|step| special_of(Some(step))) == Some(first) {
            rest = rest.get(1..).unwrap_or_default();
        }
        if last.is_some() && pair.last().map(|step| special_of(Some(step))) == Some(last) {
            rest = rest.split_last().map_or(&[][..], |(_, rest)| rest);
        }
        let is_sequence = |step: Option<&Value>, name: &str| {
            step.and_then(|step| step.pointer("/Sequence/id")) == Some(&Value::from(name))
        };
        if !is_sequence(rest.first(), "A") || !is_sequence(rest.last(), "B") {
            return;
        }
        let between = rest
            .get(1..rest.len().saturating_sub(1))
            .unwrap_or_default();
        if between.is_empty() {
            return;
        }
        let separates = |step: Option<&Value>| {
            special_of(step).is_some_and(|s| *s == self.sep || *s == self.eos)
        };
        let mut add = separates(between.first()) && last.is_none();
        if between.len() == 2 {
            add |= separates(between.get(1));
        }
        out.set_added("sep", add);
        if add && !is_truthy(&self.sep) && !self.config.is_empty() {
            self.put("sep_token", self.eos.clone());
        }
    }
}
