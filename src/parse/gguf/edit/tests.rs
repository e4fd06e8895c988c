//! Values of texts and of JSON, by the types of their keys.

use super::*;
use crate::ErrorKind;
use crate::model::gguf::GgufMetadataArray as A;
use crate::model::gguf::GgufMetadataValue as V;

fn resolved(edit: GgufEdit, existing: Option<&V>) -> Result<Option<V>> {
    let found = resolve_edits(&[edit], &|_| existing.cloned())?;
    Ok(found.set.into_iter().next().map(|(_, value)| value))
}

fn of_text(text: &str, existing: Option<&V>) -> Result<Option<V>> {
    resolved(parse_gguf_edit(text)?, existing)
}

#[test]
fn types_of_texts() {
    let list = |array| V::Array(Box::new(array));
    let rows: Vec<(&str, Option<V>, V)> = vec![
        // As the key that is there.
        ("a.b=7", Some(V::I8(1)), V::I8(7)),
        ("a.b=7", Some(V::F64(1.0)), V::F64(7.0)),
        ("a.b=7", Some(V::String("x".into())), V::String("7".into())),
        ("a.b=\"7\"", Some(V::String("x".into())), V::String("\"7\"".into())),
        ("a.b=false", Some(V::Bool(true)), V::Bool(false)),
        ("a.b=[1, 2]", Some(list(A::U16(vec![3]))), list(A::U16(vec![1, 2]))),
        // As a known key, whose type counts after that of one that is there.
        ("tokenizer.ggml.eos_token_id=7", None, V::U32(7)),
        ("tokenizer.ggml.eos_token_id=7", Some(V::I32(1)), V::I32(7)),
        ("llama.rope.freq_base=1000000", None, V::F32(1e6)),
        ("brandnew.rope.freq_base=1e6", None, V::F32(1e6)),
        ("x.attention.causal=true", None, V::Bool(true)),
        ("general.name=7", None, V::String("7".into())),
        ("general.base_model.3.name=7", None, V::String("7".into())),
        ("tokenizer.chat_template.tool_use=true", None, V::String("true".into())),
        ("x.feed_forward_length=8", None, V::U32(8)),
        ("x.feed_forward_length=[8, 9]", None, list(A::I32(vec![8, 9]))),
        ("x.feed_forward_length=[8, 9]", Some(V::U32(1)), list(A::I32(vec![8, 9]))),
        ("general.tags=[\"a\"]", None, list(A::String(vec!["a".into()]))),
        ("tokenizer.ggml.scores=[1, -2]", None, list(A::F32(vec![1.0, -2.0]))),
        // As written.
        ("my.key=7", None, V::U32(7)),
        ("my.key=-7", None, V::I64(-7)),
        ("my.key=7.5", None, V::F32(7.5)),
        ("my.key=true", None, V::Bool(true)),
        ("my.key=\"7\"", None, V::String("7".into())),
        ("my.key=some text", None, V::String("some text".into())),
        ("my.key=", None, V::String(String::new())),
        ("my.key=a=b", None, V::String("a=b".into())),
        // As stated.
        ("my.key:i8=7", None, V::I8(7)),
        ("my.key:string=7", None, V::String("7".into())),
        ("my.key:string=null", None, V::String("null".into())),
        ("my.key:f64=7", Some(V::U32(1)), V::F64(7.0)),
        ("my.key:f32=Infinity", None, V::F32(f32::INFINITY)),
        ("my.key:[u8]=[7]", None, list(A::U8(vec![7]))),
    ];
    for (text, existing, expected) in rows {
        let found = of_text(text, existing.as_ref()).unwrap().unwrap();
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn values_that_do_not_fit() {
    for (text, existing) in [
        ("a.b=x", Some(V::U32(1))),
        ("a.b=-1", Some(V::U32(1))),
        ("a.b=1.5", Some(V::U32(1))),
        ("a.b=256", Some(V::U8(1))),
        ("a.b=1", Some(V::Bool(true))),
        ("a.b=[1]", Some(V::U32(1))),
        ("a.b=1", Some(V::Array(Box::new(A::U32(vec![1]))))),
        ("a.b=[\"x\"]", Some(V::Array(Box::new(A::U32(vec![1]))))),
        ("a.b=\"7\"", Some(V::U32(1))),
        ("tokenizer.ggml.eos_token_id=</s>", None),
        ("llama.block_count=1e300", None),
        ("llama.rope.freq_base=1e300", None),
        ("llama.rope.freq_base=x", None),
        ("x.attention.causal=1", None),
        ("general.tags=a", None),
        ("a.b:u33=1", None),
        ("a.b:u8=300", None),
        ("a.b:[u8]=3", None),
        ("a.b=null", None),
        ("a.b", None),
        ("=1", None),
        (":u8=1", None),
    ] {
        let error = of_text(text, existing.as_ref()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{text}: {error}");
    }
}

#[test]
fn json_objects() {
    let text = r#"{"llama.rope.freq_base": 1000000, "general.name": "7", "gone": null,
        "my.key": {"type": "i8", "value": 3}, "tokenizer.ggml.eos_token_id": 7}"#;
    let edits = parse_gguf_edits_json(text).unwrap();
    let existing = |key: &str| (key == "gone").then_some(V::U8(1));
    let found = resolve_edits(&edits, &existing).unwrap();
    let expected = [
        ("llama.rope.freq_base", V::F32(1e6)),
        ("general.name", V::String("7".into())),
        ("my.key", V::I8(3)),
        ("tokenizer.ggml.eos_token_id", V::U32(7)),
    ];
    assert_eq!(found.set, expected.map(|(key, value)| (key.to_owned(), value)));
    assert!(found.removed.contains("gone") && found.removed.len() == 1);
    for text in [
        r#"{"general.name": 7}"#,
        r#"{"tokenizer.ggml.eos_token_id": "7"}"#,
        r#"{"llama.block_count": 1.5}"#,
        r#"{"my.key": {"type": "i8", "value": 300}}"#,
        r#"{"a": 1, "a": 2}"#,
        r#"{"a": []}"#,
        "[]",
        "{",
    ] {
        let edits = parse_gguf_edits_json(text);
        let error = edits.and_then(|edits| resolve_edits(&edits, &|_| None));
        let error = error.map(|_| text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{text}: {error}");
    }
}

/// The last edit of a key counts.
#[test]
fn several_edits_of_a_key() {
    let edits = |texts: &[&str]| -> Vec<GgufEdit> {
        texts
            .iter()
            .map(|text| parse_gguf_edit(text).unwrap())
            .collect()
    };
    let found = resolve_edits(&edits(&["a=1", "a=2"]), &|_| None).unwrap();
    assert_eq!(found.set, [("a".to_owned(), V::U32(2))]);
    let found = resolve_edits(&edits(&["a=1", "a=null"]), &|_| None).unwrap();
    assert!(found.set.is_empty() && found.removed.contains("a"));
    let found = resolve_edits(&edits(&["a=null", "a=1"]), &|_| Some(V::U8(3))).unwrap();
    assert!(found.set == [("a".to_owned(), V::U8(1))] && found.removed.is_empty());
}
