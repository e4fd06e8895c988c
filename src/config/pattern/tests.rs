use super::Pattern;
use super::backtracking::Backtracking;
use crate::config::Selection;
use crate::test_utils::cpu_time;

fn selects(pattern: &str, name: &str) -> bool {
    let selection = Selection::new(&[pattern.to_owned()], &[]).unwrap();
    let selected = selection.has(name);
    selection.check().unwrap();
    selected
}

#[test]
fn stars_and_question_marks() {
    for (pattern, name, expected) in [
        ("*.mlp.*", "model.layers.0.mlp.up_proj", true),
        ("model*", "model/layers/0", true),
        ("**/x", "a/x", true),
        ("**/x", "x", false),
        ("a**b", "a.b", true),
        ("a.b", "axb", false),
        ("a?c", "a/c", true),
        ("a?c", "aäc", true),
        ("a?c", "ac", false),
        ("ä*", "äb", true),
        (r"a\*", r"a\b", true),
        ("a*", "ba", false),
        ("re:a", "ab", true),
        ("re:b", "ab", false),
    ] {
        assert_eq!(selects(pattern, name), expected, "{pattern} {name}");
    }
}

#[test]
fn brackets_and_braces() {
    for (pattern, name, expected) in [
        ("blk.[0-3].*", "blk.2.ffn", true),
        ("blk.[0-3].*", "blk.4.ffn", false),
        ("blk.[!0-3].*", "blk.4.ffn", true),
        ("*.{up,down}_proj", "mlp.down_proj", true),
        ("*.{up,down}_proj", "mlp.gate_proj", false),
        ("{a,b.*}.c", "b.x.c", true),
        ("[äö]x", "öx", true),
        ("[äö]x", "üx", false),
        ("a[*]", "a*", true),
        ("a[]]", "a]", true),
        // A name with such characters is itself.
        ("w[0]", "w[0]", true),
        ("w[0]", "w0", true),
        ("w{0}", "w{0}", true),
    ] {
        assert_eq!(selects(pattern, name), expected, "{pattern} {name}");
    }
    for pattern in ["a[", "a{b", "a}b", "[z-a]"] {
        let error = Selection::new(&[pattern.to_owned()], &[]).err().unwrap();
        assert!(error.to_string().contains(pattern), "{error}");
    }
}

/// A file of test data that Python wrote (`tests/data/generate/patterns.py`).
fn by_python(file: &str) -> Option<serde_json::Value> {
    let data = crate::test_utils::test_data()?;
    let text = std::fs::read(data.join("patterns").join(file)).unwrap();
    Some(serde_json::from_slice(&text).unwrap())
}

fn texts(values: &serde_json::Value) -> Vec<&str> {
    let values = values.as_array().unwrap().iter();
    values.map(|text| text.as_str().unwrap()).collect()
}

/// Against Python's `re.match`.
#[test]
fn matches_as_python() {
    let Some(cases) = by_python("matches.json") else {
        return;
    };
    let names = texts(&cases["names"]);
    let rows = cases["matches"].as_array().unwrap();
    assert_eq!(rows.len(), 13);
    for row in rows {
        let expression = row[0].as_str().unwrap();
        let pattern = Pattern::from_start(expression).unwrap();
        assert!(matches!(pattern, Pattern::Backtracking(_)), "{expression}");
        let found = names.iter().filter(|name| pattern.is_match(name).unwrap());
        let found: Vec<&str> = found.copied().collect();
        assert_eq!(serde_json::json!(found), row[1], "{expression}");
    }
}

/// Against Python's `re.search`.
#[test]
fn groups_as_python() {
    let Some(cases) = by_python("groups.json") else {
        return;
    };
    let texts = texts(&cases["texts"]);
    let rows = cases["groups"].as_array().unwrap();
    assert!(rows.len() > 70, "{}", rows.len());
    for row in rows {
        let expression = row[0].as_str().unwrap();
        let compiled = Backtracking::new(expression).unwrap();
        for (text, expected) in texts.iter().zip(row[1].as_array().unwrap()) {
            let groups = compiled.groups(text).unwrap();
            let groups = groups.map(|groups| {
                let span = |group: std::ops::Range<usize>| [group.start, group.end];
                let spans = groups.into_iter().map(|group| group.map(span));
                spans.collect::<Vec<_>>()
            });
            assert_eq!(serde_json::json!(groups), *expected, "{expression} {text}");
        }
    }
}

#[test]
fn what_is_wrong_with_an_expression() {
    for (expression, reason) in [
        ("(?=a", "a group is not closed, at the end"),
        ("(?=a))b", "a `)` without a `(`, at `)b`"),
        ("(?!a)*+*", "there is nothing to repeat, at `*`"),
        ("(?!a)[b", "no closing bracket"),
        (r"(?!a)\1", "there is no group `1` before it"),
        ("(?!a)(?P=x)", "there is no group `x` before it"),
        ("(?P<x>a)(?P<x>b)(?!c)", "two groups have one name"),
        ("(?!a)b{3,2}", "fewer than the least"),
        (r"(?!a)\q", "unrecognized escape"),
        ("(?!a)(?R)", "not known here, at `R)`"),
        (r"(?!a)\", "a backslash is at the end"),
        ("(?!a)((a{99}){99}){99}", "it is too large"),
        ("(?!a)(?:){99999}", "it is too large"),
    ] {
        let error = Pattern::anywhere(expression).unwrap_err();
        assert!(error.contains(reason), "{expression}: {error}");
    }
    // Classes take memory.
    let classes = ('!'..'~').map(|c| format!("[^a{}]", regex_lite::escape(&c.to_string())));
    let classes: String = ["(?!a)".to_owned()].into_iter().chain(classes).collect();
    let error = Pattern::anywhere(&classes).unwrap_err();
    assert!(error.contains("more than 50 classes"), "{error}");
}

#[test]
fn catastrophic_backtracking_is_an_error() {
    let selection = Selection::new(&["re:(?=x|)(a|a)*(?!a)b".to_owned()], &[]).unwrap();
    let started = cpu_time();
    assert!(!selection.has(&"a".repeat(60)));
    // Nothing is tried again.
    for _ in 0..100_000 {
        assert!(!selection.has(&"a".repeat(60)));
    }
    let error = selection.check().unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::LimitExceeded);
    assert!((cpu_time() - started).as_secs() < 5);
    // Depth does not end the process.
    let deep = format!("re:(?!x){}a{}", "(".repeat(50_000), ")".repeat(50_000));
    assert!(Selection::new(&[deep], &[]).is_err());
}
