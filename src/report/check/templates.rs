//! Chat templates that reach into Python: programs run a template with Jinja, and one that gets at
//! the objects of the interpreter runs code where they do so without a sandbox.

use std::path::Path;

use serde_json::Value;

use super::{Finding, Severity};
use crate::ParsedModel;
use crate::config::Texts;
#[cfg(feature = "gguf")]
use crate::model::gguf_keys::CHAT_TEMPLATE;

/// Names of Python's objects by which templates get from a value to a module. No template needs one.
const INTERNALS: &[&str] = &[
    "__class__",
    "__base__",
    "__bases__",
    "__mro__",
    "__subclasses__",
    "__init__",
    "__new__",
    "__globals__",
    "__builtins__",
    "__import__",
    "__getattribute__",
    "__getattr__",
    "__getitem__",
    "__dict__",
    "__code__",
    "__closure__",
    "__func__",
    "__self__",
    "__module__",
    "__loader__",
    "__spec__",
    "__call__",
    "__reduce__",
    "__reduce_ex__",
    "_templatereference__context",
    "_module__",
    "func_globals",
    "func_code",
    "gi_frame",
    "cr_frame",
    "ag_frame",
    "gi_code",
    "f_globals",
    "f_builtins",
    "f_back",
    "tb_frame",
    "im_func",
    ".mro(",
];

/// Ways to write an underscore that is not one in the text.
const ESCAPES: &[&str] = &["\\x5f", "\\137", "\\u005f", "\\u{5f}", "\\n{low line}"];

/// Adds a finding for each chat template of `model` that reaches into Python.
pub(super) fn check(model: &ParsedModel, findings: &mut Vec<Finding>) {
    #[cfg(feature = "gguf")]
    if let Some(gguf) = model.gguf() {
        let metadata = gguf.metadata();
        let is_template = |key: &&str| key.starts_with(CHAT_TEMPLATE);
        for key in metadata.keys().filter(is_template) {
            let text = metadata.get(key);
            if let Some(text) = text.as_ref().and_then(|text| text.as_string()) {
                findings.extend(finding(text, &format!("`{key}`")));
            }
        }
    }
    if let Some(directory) = &model.directory {
        for (file, text) in templates_of(&Texts::new(&directory.path, &model.limits)) {
            let found = finding(&text, "the chat template");
            let path = directory.path.join(Path::new(&file));
            findings.extend(found.map(|found| Finding { file: Some(path), ..found }));
        }
    }
}

/// The chat templates of a directory, each with its file. A file that cannot be read has none.
fn templates_of(texts: &Texts) -> Vec<(String, String)> {
    const MORE: &str = "additional_chat_templates";
    let mut all = Vec::new();
    for file in ["tokenizer_config.json", "chat_template.json", "processor_config.json"] {
        let json = texts.json(file).ok().flatten();
        let value = json.as_ref().and_then(|json| json.get("chat_template"));
        let mut add = |text: &str| all.push((file.to_owned(), text.to_owned()));
        match value {
            Some(Value::String(text)) => add(text),
            Some(Value::Array(list)) => {
                let entries = list
                    .iter()
                    .filter_map(|entry| entry.get("template")?.as_str());
                entries.for_each(&mut add);
            }
            Some(Value::Object(named)) => {
                named.values().filter_map(Value::as_str).for_each(&mut add);
            }
            _ => {}
        }
    }
    let more = texts.list(MORE, ".jinja").unwrap_or_default();
    let more = more.into_iter().map(|file| format!("{MORE}/{file}"));
    for file in std::iter::once("chat_template.jinja".to_owned()).chain(more) {
        let text = texts.text(&file).ok().flatten();
        all.extend(text.map(|text| (file, text)));
    }
    all
}

/// The finding that `template`, called `name`, reaches into Python.
fn finding(template: &str, name: &str) -> Option<Finding> {
    let found = internal(template)?;
    let what = format!(
        "{name} reaches into Python by `{found}`: a program that runs it outside of Jinja's sandbox runs its code"
    );
    Some(Finding::new(Severity::Error, what))
}

/// What of Python a template uses in its expressions and statements. Text between them is only
/// printed.
fn internal(template: &str) -> Option<&'static str> {
    let code = code_of(template).to_lowercase();
    let names = INTERNALS.iter().chain(ESCAPES);
    if let Some(found) = names.copied().find(|name| code.contains(name)) {
        return Some(found);
    }
    hides_names(&code)
}

/// The code of a template: what is between `{{` and `}}`, or `{%` and `%}`.
fn code_of(template: &str) -> String {
    let (mut code, mut rest) = (String::new(), template);
    while let Some(start) = rest.find('{') {
        rest = &rest[start..];
        let end = match rest.as_bytes().get(1) {
            Some(b'{') => "}}",
            Some(b'%') => "%}",
            _ => {
                rest = &rest[1..];
                continue;
            }
        };
        let len = rest.find(end).unwrap_or(rest.len());
        code.push_str(&rest[..len]);
        code.push(' ');
        rest = &rest[len..];
    }
    code
}

/// Whether code asks for an attribute whose name it computes, and which of the two ways it takes.
fn hides_names(code: &str) -> Option<&'static str> {
    let dense: String = code.split_whitespace().collect();
    let ways = [("|attr(", "attr"), ("map(attribute=", "map")];
    ways.into_iter().find_map(|(way, found)| {
        let uses = dense.split(way).skip(1);
        let mut arguments = uses.map(|rest| rest.split(')').next().unwrap_or_default());
        arguments
            .any(|argument| !is_plain_name(argument))
            .then_some(found)
    })
}

/// Whether an argument is the text of an attribute's name that is no one's internal.
fn is_plain_name(argument: &str) -> bool {
    let quoted = |quote| argument.strip_prefix(quote)?.strip_suffix(quote);
    let name = quoted('\'').or_else(|| quoted('"'));
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    name.is_some_and(|name| {
        !name.starts_with('_') && !name.contains("__") && name.chars().all(is_name)
    })
}

#[cfg(test)]
mod tests {
    use super::internal;

    #[test]
    fn templates_that_reach_into_python() {
        for template in [
            "{{ ().__class__.__mro__[1].__subclasses__() }}",
            "{{ ''['__class__'] }}",
            "{%- set x = cycler.__init__.__globals__ -%}",
            "{{ lipsum|attr('__globals__') }}",
            "{{ lipsum | attr('_' ~ '_glo' ~ 'bals__') }}",
            "{{ ''|attr(name) }}",
            "{{ ''['\\x5f\\x5fclass\\x5f\\x5f'] }}",
            "{% for x in messages|map(attribute='__cla'+'ss__') %}{% endfor %}",
            "{{ self._TemplateReference__context.cycler }}",
            "{{ x.gi_frame.f_back }}",
            "{{ __import__('os').popen('id') }}",
            "{% if x.__CLASS__ %}",
            "{{ x.__class__ ",
        ] {
            assert!(internal(template).is_some(), "{template}");
        }
    }

    #[test]
    fn templates_that_do_not() {
        for template in [
            "{% for m in messages %}{{ m['role'] + ': ' + m.content }}{% endfor %}",
            "The attribute __class__ of Python { not code }",
            "{{ messages | map(attribute='content') | join }}",
            "{{ message|attr('content') }}",
            "{{ '<|__start__|>' }}{% set ns = namespace(x=false) %}{% set ns.x = true %}",
            "{# __class__ #}",
        ] {
            assert_eq!(internal(template), None, "{template}");
        }
    }
}
