//! Python literals, as NPY headers are written in them: dicts, tuples, lists, text, integers, True, False, None.

/// A literal.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Literal {
    Dict(Vec<(Self, Self)>),
    Tuple(Vec<Self>),
    List(Vec<Self>),
    Str(String),
    Int(i64),
    Bool(bool),
    None,
}

/// Literals within literals; NumPy writes three.
const MAX_DEPTH: usize = 16;

/// Parses `text`, which must hold one literal and nothing else but blanks. Linear in its length.
pub(super) fn parse(text: &str) -> Option<Literal> {
    let mut parser = Parser { rest: text };
    let literal = parser.literal(0)?;
    parser.skip();
    parser.rest.is_empty().then_some(literal)
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r', '\x0c']);
    }

    /// Passes over `token` if it comes next.
    fn eat(&mut self, token: &str) -> bool {
        self.skip();
        let found = self.rest.strip_prefix(token);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    fn literal(&mut self, depth: usize) -> Option<Literal> {
        self.skip();
        if depth > MAX_DEPTH {
            return None;
        }
        match self.rest.chars().next()? {
            '{' => self.dict(depth),
            '(' => self.tuple(depth),
            '[' => {
                self.eat("[");
                self.items("]", depth).map(|(items, _)| Literal::List(items))
            }
            '\'' | '"' => self.text().map(Literal::Str),
            'u' | 'b' if matches!(self.rest.as_bytes().get(1), Some(b'\'' | b'"')) => {
                self.rest = &self.rest[1..];
                self.text().map(Literal::Str)
            }
            '-' | '0'..='9' => self.integer(),
            _ => self.word(),
        }
    }

    fn dict(&mut self, depth: usize) -> Option<Literal> {
        self.eat("{");
        let mut entries = Vec::new();
        while !self.eat("}") {
            let key = self.literal(depth + 1)?;
            let value = self.eat(":").then(|| self.literal(depth + 1))??;
            entries.push((key, value));
            if !self.eat(",") {
                return self.eat("}").then_some(Literal::Dict(entries));
            }
        }
        Some(Literal::Dict(entries))
    }

    /// A tuple, or one literal in parentheses.
    fn tuple(&mut self, depth: usize) -> Option<Literal> {
        self.eat("(");
        let (mut items, comma) = self.items(")", depth)?;
        if items.len() == 1 && !comma { items.pop() } else { Some(Literal::Tuple(items)) }
    }

    /// Literals up to `end`, and whether there was a comma.
    fn items(&mut self, end: &str, depth: usize) -> Option<(Vec<Literal>, bool)> {
        let (mut items, mut comma) = (Vec::new(), false);
        while !self.eat(end) {
            items.push(self.literal(depth + 1)?);
            if !self.eat(",") {
                return self.eat(end).then_some((items, comma));
            }
            comma = true;
        }
        Some((items, comma))
    }

    fn text(&mut self) -> Option<String> {
        let quote = self.rest.chars().next()?;
        let mut out = String::new();
        let mut chars = self.rest[1..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                _ if c == quote => {
                    self.rest = &self.rest[1 + at + c.len_utf8()..];
                    return Some(out);
                }
                '\\' => match chars.next()?.1 {
                    c @ ('\\' | '\'' | '"') => out.push(c),
                    'n' => out.push('\n'),
                    't' => out.push('\t'),
                    _ => return None,
                },
                '\n' => return None,
                c => out.push(c),
            }
        }
        None
    }

    fn integer(&mut self) -> Option<Literal> {
        let digits = self.rest.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let value = self.rest[..digits].parse().ok()?;
        self.rest = &self.rest[digits..];
        // Python 2 wrote long integers with a letter.
        self.rest = self.rest.strip_prefix(['L', 'l']).unwrap_or(self.rest);
        Some(Literal::Int(value))
    }

    fn word(&mut self) -> Option<Literal> {
        let words = [("True", Literal::Bool(true)), ("False", Literal::Bool(false)), ("None", Literal::None)];
        words.into_iter().find(|(word, _)| self.eat(word)).map(|(_, literal)| literal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals() {
        let int = Literal::Int;
        assert_eq!(parse("(3,)\n"), Some(Literal::Tuple(vec![int(3)])));
        assert_eq!(parse("()"), Some(Literal::Tuple(vec![])));
        assert_eq!(parse("(3)"), Some(int(3)));
        assert_eq!(parse("(2L, -3)"), Some(Literal::Tuple(vec![int(2), int(-3)])));
        assert_eq!(
            parse(r#"{"a": 'b', 'c\'': [True, None,]}"#).map(|l| format!("{l:?}")),
            Some("Dict([(Str(\"a\"), Str(\"b\")), (Str(\"c'\"), List([Bool(true), None]))])".into())
        );
        for bad in [
            "",
            "{",
            "(1,,)",
            "{'a' 1}",
            "f()",
            "1 2",
            "'a",
            "{'a': 1, , }",
            "99999999999999999999",
            "--1",
            &"(".repeat(99),
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
