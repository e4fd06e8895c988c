#[cfg(feature = "patterns")]
use super::Pattern;
use crate::config::Selection;

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
#[cfg(feature = "patterns")]
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

#[test]
#[cfg(not(feature = "patterns"))]
fn brackets_are_refused() {
    for pattern in ["blk.[0-3].*", "{a,b}"] {
        let error = Selection::new(&[pattern.to_owned()], &[]).err().unwrap();
        assert!(error.to_string().contains("`patterns`"), "{error}");
    }
}

/// Against Python's `re.match` (`tests/data/generate/patterns.py`).
#[test]
#[cfg(feature = "patterns")]
fn matches_as_python() {
    let Some(data) = crate::test_utils::test_data() else {
        return;
    };
    let text = std::fs::read(data.join("patterns/matches.json")).unwrap();
    let cases: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let names: Vec<&str> = cases["names"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n.as_str().unwrap())
        .collect();
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

#[test]
#[cfg(feature = "patterns")]
fn catastrophic_backtracking_is_an_error() {
    let selection = Selection::new(&["re:(?=x|)(a|a)*(?!a)b".to_owned()], &[]).unwrap();
    let started = std::time::Instant::now();
    assert!(!selection.has(&"a".repeat(60)));
    // Nothing is tried again.
    for _ in 0..100_000 {
        assert!(!selection.has(&"a".repeat(60)));
    }
    let error = selection.check().unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::LimitExceeded);
    assert!(started.elapsed().as_secs() < 5);
    // Depth does not end the process.
    let deep = format!("re:(?!x){}a{}", "(".repeat(50_000), ")".repeat(50_000));
    assert!(Selection::new(&[deep], &[]).is_err());
}
