//! Parses Python literals, which NPY headers consist of: dicts, tuples, lists, strings, integers,
//! `True`, `False`, `None`.

/// A Python literal.
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

/// Deepest nesting of literals, which bounds the parser's recursion. NumPy writes three levels.
const MAX_DEPTH: usize = 16;

/// Parses `text`, which must be one literal with nothing but whitespace and comments around it.
/// `None` if it is not. Linear in the length of the text. With `has_longs`, integers may end in an
/// `L`, as Python 2 writes them.
pub(super) fn parse(text: &str, has_longs: bool) -> Option<Literal> {
    // Python takes no source with a NUL, not even in a comment.
    if text.contains('\0') {
        return None;
    }
    let mut parser = LiteralParser { rest: text, has_longs };
    let literal = parser.literal(0)?;
    parser.skip_blanks();
    parser.rest.is_empty().then_some(literal)
}

struct LiteralParser<'a> {
    /// The text that is not parsed yet.
    rest: &'a str,
    has_longs: bool,
}

impl<'a> LiteralParser<'a> {
    /// Passes over whitespace and comments.
    fn skip_blanks(&mut self) {
        loop {
            self.rest = self
                .rest
                .trim_start_matches([' ', '\t', '\n', '\r', '\x0c']);
            if !self.rest.starts_with('#') {
                return;
            }
            self.rest = self.rest.trim_start_matches(|c| c != '\n');
        }
    }

    /// Passes over `token` if it comes next, and says whether it did.
    fn eat(&mut self, token: &str) -> bool {
        self.skip_blanks();
        let found = self.rest.strip_prefix(token);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    fn literal(&mut self, depth: usize) -> Option<Literal> {
        self.skip_blanks();
        if depth > MAX_DEPTH {
            return None;
        }
        match self.rest.chars().next()? {
            '{' => self.dict(depth),
            '(' => self.tuple(depth),
            '[' => {
                self.eat("[");
                self.items("]", depth)
                    .map(|(items, _)| Literal::List(items))
            }
            '\'' | '"' | 'u' | 'U' | 'r' | 'R' => self.strings().map(Literal::Str),
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

    /// A tuple, or one literal in parentheses: only a comma makes a tuple of one item.
    fn tuple(&mut self, depth: usize) -> Option<Literal> {
        self.eat("(");
        let (mut items, comma) = self.items(")", depth)?;
        if items.len() == 1 && !comma {
            items.pop()
        } else {
            Some(Literal::Tuple(items))
        }
    }

    /// Literals separated by commas up to `end`, and whether there was a comma.
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

    /// A string: one or several adjacent string literals, which Python joins.
    fn strings(&mut self) -> Option<String> {
        let mut all = String::new();
        loop {
            let raw = self.rest.starts_with(['r', 'R']);
            self.rest = self
                .rest
                .strip_prefix(['u', 'U', 'r', 'R'])
                .unwrap_or(self.rest);
            let quote = ["\"\"\"", "'''", "\"", "'"]
                .into_iter()
                .find(|quote| self.rest.starts_with(quote))?;
            self.rest = &self.rest[quote.len()..];
            self.string_body(quote, raw, &mut all)?;
            self.skip_blanks();
            let prefixed = self
                .rest
                .strip_prefix(['u', 'U', 'r', 'R'])
                .unwrap_or(self.rest);
            if !prefixed.starts_with(['\'', '"']) {
                return Some(all);
            }
        }
    }

    /// Appends one string literal, from behind its opening quotes on, to `out`.
    fn string_body(&mut self, quote: &str, raw: bool, out: &mut String) -> Option<()> {
        loop {
            if let Some(rest) = self.rest.strip_prefix(quote) {
                self.rest = rest;
                return Some(());
            }
            let c = self.next()?;
            match c {
                '\n' if quote.len() == 1 => return None,
                '\\' if raw => {
                    out.push(c);
                    out.push(self.next()?);
                }
                '\\' => match self.next()? {
                    '\n' => {}
                    c @ ('\\' | '\'' | '"') => out.push(c),
                    'n' => out.push('\n'),
                    'r' => out.push('\r'),
                    't' => out.push('\t'),
                    'x' => out.push(self.hex_char(2)?),
                    'u' => out.push(self.hex_char(4)?),
                    'U' => out.push(self.hex_char(8)?),
                    // Up to three octal digits.
                    c @ '0'..='7' => {
                        let more = self.rest.len()
                            - self
                                .rest
                                .trim_start_matches(|c| matches!(c, '0'..='7'))
                                .len();
                        let (digits, rest) = self.rest.split_at(more.min(2));
                        self.rest = rest;
                        let number = digits
                            .chars()
                            .fold(c.to_digit(8)?, |n, d| n * 8 + d.to_digit(8).unwrap_or(0));
                        out.push(char::from_u32(number)?);
                    }
                    other => out.extend(['\\', other]),
                },
                c => out.push(c),
            }
        }
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    /// The character whose code point is in the next `n` hexadecimal digits.
    fn hex_char(&mut self, n: usize) -> Option<char> {
        let (digits, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        u32::from_str_radix(digits, 16)
            .ok()
            .and_then(char::from_u32)
    }

    fn integer(&mut self) -> Option<Literal> {
        let negative = self.eat("-");
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        let digits = if self.has_longs {
            digits.strip_suffix('L').unwrap_or(digits)
        } else {
            digits
        };
        let number = number(digits)?;
        Some(Literal::Int(if negative { -number } else { number }))
    }

    fn word(&mut self) -> Option<Literal> {
        let words = [
            ("True", Literal::Bool(true)),
            ("False", Literal::Bool(false)),
            ("None", Literal::None),
        ];
        words
            .into_iter()
            .find(|(word, _)| self.eat(word))
            .map(|(_, literal)| literal)
    }
}

/// The integer that `text` is in Python 3. A zero before other digits is an error there, and octal in
/// Python 2; an underscore stands between two digits, or behind the prefix of a base.
fn number(text: &str) -> Option<i64> {
    let prefix = text.get(..2).map(str::to_ascii_lowercase);
    let (base, digits) = match prefix.as_deref() {
        Some("0x") => (16, &text[2..]),
        Some("0o") => (8, &text[2..]),
        Some("0b") => (2, &text[2..]),
        _ => (10, text),
    };
    let after_prefix = digits.strip_prefix('_').filter(|_| base != 10);
    let parts = after_prefix.unwrap_or(digits).split('_');
    if parts.clone().any(str::is_empty) {
        return None;
    }
    let plain: String = parts.collect();
    let is_octal_of_python_2 = base == 10 && plain.starts_with('0') && plain.contains(|c| c != '0');
    match is_octal_of_python_2 {
        true => None,
        false => i64::from_str_radix(&plain, base).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals() {
        let int = Literal::Int;
        assert_eq!(parse("(3,)\n", true), Some(Literal::Tuple(vec![int(3)])));
        assert_eq!(parse("()", true), Some(Literal::Tuple(vec![])));
        assert_eq!(parse("(3)", true), Some(int(3)));
        assert_eq!(parse("(2L, -3)", true), Some(Literal::Tuple(vec![int(2), int(-3)])));
        assert_eq!(
            parse("(0, 00, 0_0, 1_0, 0x_1f, 0B11, 0o17)", true),
            Some(Literal::Tuple([0, 0, 0, 10, 31, 3, 15].map(int).to_vec()))
        );
        assert_eq!(
            parse(r#"{"a": 'b', 'c\'': [True, None,]}"#, true).map(|l| format!("{l:?}")),
            Some(
                "Dict([(Str(\"a\"), Str(\"b\")), (Str(\"c'\"), List([Bool(true), None]))])".into()
            )
        );
        let text = |text: &str| Some(Literal::Str(text.to_owned()));
        assert_eq!(parse("'''a'b''' \"c\" ''", true), text("a'bc"));
        assert_eq!(parse("\"\"\"a\nb\"\"\"", true), text("a\nb"));
        for bad in [
            "",
            "'''a'",
            "'''a",
            "{",
            "(1,,)",
            "{'a' 1}",
            "f()",
            "1 2",
            "'a",
            "{'a': 1, , }",
            "99999999999999999999",
            "--1",
            "003",
            "010",
            "0_1",
            "3_",
            "_3",
            "1__0",
            "0x",
            "0x1_",
            "3l",
            "3 # \0",
            &"(".repeat(99),
        ] {
            assert_eq!(parse(bad, true), None, "{bad}");
        }
    }
}
