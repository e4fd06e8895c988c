//! Texts with wildcards as expressions.

use super::Attempt;

/// The expression of a text with `*`, `?`, `[a-c]`, `[!a-c]` and `{a,b}` that matches a whole name.
/// Each run of `*` is a group.
pub(super) fn glob_expression(text: &str) -> Attempt<String> {
    // The alternatives so far of each brace that is open, the outermost first; the last one of each
    // is still being read. The first level is the whole text.
    let mut levels = vec![vec![String::new()]];
    let mut rest = text.chars();
    let mut last = None;
    while let Some(c) = rest.next() {
        let is_inside = levels.len() > 1;
        match (c, levels.last_mut()) {
            ('}', Some(_)) if is_inside => {
                let mut alternatives = levels.pop().unwrap_or_default();
                // `{a,}` is `a`, as it is for ripgrep.
                alternatives.retain(|alternative| !alternative.is_empty());
                if !alternatives.is_empty() {
                    push(&mut levels, &format!("(?:{})", alternatives.join("|")));
                }
            }
            ('}', _) => {
                let reason = "unopened alternate group; missing '{' (maybe escape '}' with '[}]'?)";
                return Err(reason.to_owned());
            }
            ('{', _) => levels.push(vec![String::new()]),
            (',', Some(alternatives)) if is_inside => alternatives.push(String::new()),
            ('*', _) if last == Some('*') => {}
            ('*', _) => push(&mut levels, "(.*)"),
            ('?', _) => push(&mut levels, "."),
            ('[', _) => push(&mut levels, &class(&mut rest)?),
            (c, _) => push(&mut levels, &escaped(c)),
        }
        last = Some(c);
    }
    match levels.as_slice() {
        [whole] => Ok(format!("^{}$", whole.concat())),
        _ => Err("unclosed alternate group; missing '}' (maybe escape '{' with '[{]'?)".to_owned()),
    }
}

/// Appends to the alternative that is being read.
fn push(levels: &mut [Vec<String>], expression: &str) {
    if let Some(alternative) = levels.last_mut().and_then(|level| level.last_mut()) {
        alternative.push_str(expression);
    }
}

fn escaped(c: char) -> String {
    regex_lite::escape(c.encode_utf8(&mut [0; 4]))
}

/// The expression of the class that begins before `rest`, which is behind it afterwards.
fn class(rest: &mut std::str::Chars) -> Attempt<String> {
    let mut ranges: Vec<(char, char)> = Vec::new();
    let is_negated = rest.as_str().starts_with(['!', '^']);
    if is_negated {
        rest.next();
    }
    // Whether the next character ends a range.
    let mut is_range = false;
    loop {
        let c = rest.next().ok_or("unclosed character class; missing ']'")?;
        match (c, ranges.last_mut()) {
            // A bracket that is the first character is no end.
            (']', Some(_)) => break,
            (c, Some(range)) if is_range => {
                range.1 = c;
                if range.1 < range.0 {
                    return Err(format!("invalid range; '{}' > '{c}'", range.0));
                }
                is_range = false;
            }
            ('-', Some(_)) => is_range = true,
            (c, _) => ranges.push((c, c)),
        }
    }
    if is_range {
        ranges.push(('-', '-'));
    }
    let ranges: String = ranges
        .into_iter()
        .map(|(from, to)| format!("{}-{}", escaped(from), escaped(to)))
        .collect();
    Ok(format!("[{}{ranges}]", if is_negated { "^" } else { "" }))
}
