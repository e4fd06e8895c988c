//! Reads expressions. What stands for one character, such as `[^.]` or `\d`, is read by
//! `regex-lite`, so that it means the same in all expressions.

use std::sync::Arc;

use super::subexpression::Subexpression;
use super::{Anchor, Backtracking, CharClass, InnerKind, Step};
use crate::config::pattern::{Attempt, MAX_COMPILED};

/// Most steps of an expression.
const MAX_PROGRAM: usize = MAX_COMPILED / size_of::<Step>();

/// Most classes of an expression. Each takes a few KiB.
const MAX_CLASSES: usize = 50;

/// Most groups in one another.
const MAX_DEPTH: usize = 50;

#[derive(Clone, Copy, Default)]
struct Flags {
    is_any_case: bool,
    is_multi_line: bool,
    has_dot_newline: bool,
    has_comments: bool,
}

struct Parser<'e> {
    rest: &'e str,
    flags: Flags,
    /// Name of each group that has begun.
    names: Vec<Option<&'e str>>,
    /// Number of positions that a match keeps.
    slots: usize,
    depth: usize,
    /// Classes with their texts and flags.
    classes: Vec<(String, Arc<CharClass>)>,
    /// Number of steps that were made.
    made: usize,
}

pub(super) fn parse(expression: &str) -> Attempt<Backtracking> {
    if expression.len() > MAX_COMPILED {
        return Err("it is too long".to_owned());
    }
    // Each group begins with a parenthesis. Positions of iterations come behind those of groups.
    let first_loop = 2 * (expression.matches('(').count() + 1);
    let mut parser = Parser {
        rest: expression,
        flags: Flags::default(),
        names: Vec::new(),
        slots: first_loop,
        depth: 0,
        classes: Vec::new(),
        made: 0,
    };
    let part = parser.alternatives()?;
    if !parser.rest.is_empty() {
        return Err(parser.wrong("a `)` without a `(`"));
    }
    Ok(Backtracking { steps: part.steps.into(), groups: parser.names.len(), slots: parser.slots })
}

impl<'e> Parser<'e> {
    fn wrong(&self, what: &str) -> String {
        match self.rest.is_empty() {
            true => format!("{what}, at the end"),
            false => format!("{what}, at `{}`", self.rest),
        }
    }

    fn eat(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Takes `len` bytes.
    fn take(&mut self, len: usize) -> Attempt<&'e str> {
        let halves = self.rest.split_at_checked(len);
        let (text, rest) = halves.ok_or_else(|| self.wrong("it is cut off"))?;
        self.rest = rest;
        Ok(text)
    }

    /// Takes what is before `end`, and `end`.
    fn take_until(&mut self, end: char) -> Attempt<&'e str> {
        let halves = self.rest.split_once(end);
        let (text, rest) = halves.ok_or_else(|| self.wrong(&format!("there is no `{end}`")))?;
        self.rest = rest;
        Ok(text)
    }

    /// Counts steps before they are made.
    fn count(&mut self, steps: usize) -> Attempt<()> {
        self.made = self.made.saturating_add(steps);
        match self.made > MAX_PROGRAM {
            true => Err("it is too large".to_owned()),
            false => Ok(()),
        }
    }

    fn alternatives(&mut self) -> Attempt<Subexpression> {
        let mut all = vec![self.sequence()?];
        while self.eat("|") {
            self.count(2)?;
            all.push(self.sequence()?);
        }
        let last = all.pop().unwrap_or_default();
        let or =
            |other: Subexpression, part: Subexpression| part.or(other, |skip| Step::Split(1, skip));
        Ok(all.into_iter().rev().fold(last, or))
    }

    fn sequence(&mut self) -> Attempt<Subexpression> {
        let mut out = Subexpression::default();
        loop {
            self.skip_comments();
            if self.rest.is_empty() || self.rest.starts_with(['|', ')']) {
                return Ok(out);
            }
            self.count(1)?;
            let part = self.atom()?;
            out.append(&self.repeated(part)?);
        }
    }

    fn skip_comments(&mut self) {
        let has_comments = self.flags.has_comments;
        loop {
            let rest = self.rest;
            let skipped = match rest.chars().next() {
                Some('(') => rest
                    .strip_prefix("(?#")
                    .and_then(|rest| rest.split_once(')')),
                Some('#') if has_comments => rest.split_once('\n').or(Some(("", ""))),
                Some(c) if has_comments && c.is_ascii_whitespace() => rest.split_at_checked(1),
                _ => None,
            };
            let Some((_, rest)) = skipped else {
                return;
            };
            self.rest = rest;
        }
    }

    /// `part` as often as the quantifier behind it says.
    fn repeated(&mut self, part: Subexpression) -> Attempt<Subexpression> {
        self.skip_comments();
        let Some((least, most)) = self.quantifier()? else {
            return Ok(part);
        };
        let is_lazy = self.eat("?");
        let is_possessive = !is_lazy && self.eat("+");
        let copies = most.unwrap_or(least.saturating_add(1));
        self.count((part.steps.len() + 4).saturating_mul(copies))?;
        let split = |over| match is_lazy {
            true => Step::Split(over, 1),
            false => Step::Split(1, over),
        };
        let mut out = Subexpression::default();
        (0..least).for_each(|_| out.append(&part));
        match most {
            Some(most) => {
                for left in (1..=most - least).rev() {
                    out.push(split(left as i32 * (part.len() + 1)));
                    out.append(&part);
                    out.width.0 -= part.width.0;
                }
            }
            None => {
                // An iteration that matches nothing is the last one.
                let mut body = Subexpression::default();
                if part.width.0 == 0 {
                    body.push(Step::Save(self.slots as u32));
                    body.append(&part);
                    body.push(Step::HasMoved(self.slots as u32));
                    self.slots += 1;
                } else {
                    body.append(&part);
                }
                body.push(Step::Jump(-body.len() - 1));
                out.push(split(body.len() + 1));
                out.steps.extend(body.steps);
                out.width.1 = usize::MAX;
            }
        }
        Ok(if is_possessive {
            out.into_inner(InnerKind::Atomic)
        } else {
            out
        })
    }

    /// Fewest and most repetitions, if a quantifier follows. A brace may be a character.
    fn quantifier(&mut self) -> Attempt<Option<(usize, Option<usize>)>> {
        for (text, counts) in [("*", (0, None)), ("+", (1, None)), ("?", (0, Some(1)))] {
            if self.eat(text) {
                return Ok(Some(counts));
            }
        }
        let braces = self
            .rest
            .strip_prefix('{')
            .and_then(|rest| rest.split_once('}'));
        let Some((inside, rest)) = braces else {
            return Ok(None);
        };
        let (least, most) = inside.split_once(',').unwrap_or((inside, inside));
        let is_number = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
        if inside.is_empty() || !is_number(least) || !is_number(most) {
            return Ok(None);
        }
        let number = |text: &str| {
            text.parse::<usize>()
                .map_err(|_| self.wrong("a number is too large"))
        };
        let least = if least.is_empty() { 0 } else { number(least)? };
        let most = if most.is_empty() {
            None
        } else {
            Some(number(most)?)
        };
        if most.is_some_and(|most| most < least) {
            return Err(self.wrong("the most repetitions are fewer than the least"));
        }
        self.rest = rest;
        Ok(Some((least, most)))
    }

    fn atom(&mut self) -> Attempt<Subexpression> {
        let flags = self.flags;
        let anchor = |multi_line, anchor| match flags.is_multi_line {
            true => Ok(Subexpression::of(Step::At(multi_line), 0)),
            false => Ok(Subexpression::of(Step::At(anchor), 0)),
        };
        match self.rest.chars().next() {
            Some('(') => self.group(),
            Some('[') => self.class(class_len(self.rest)),
            Some('.') => self.class(1),
            Some('\\') => self.escape(),
            Some('*' | '+' | '?') => Err(self.wrong("there is nothing to repeat")),
            Some(c) => {
                self.take(c.len_utf8())?;
                match c {
                    '^' => anchor(Anchor::LineStart, Anchor::Start),
                    '$' => anchor(Anchor::LineEnd, Anchor::End),
                    c => Ok(self.character(c)),
                }
            }
            None => Ok(Subexpression::default()),
        }
    }

    fn character(&self, c: char) -> Subexpression {
        Subexpression::of(
            if self.flags.is_any_case {
                Step::Letter(c)
            } else {
                Step::Char(c)
            },
            1,
        )
    }

    /// The next `len` bytes, which stand for one character.
    fn class(&mut self, len: usize) -> Attempt<Subexpression> {
        let flags = [("i", self.flags.is_any_case), ("s", self.flags.has_dot_newline)];
        let flags = flags.iter().filter(|(_, is_set)| *is_set);
        let flags: String = flags.map(|(flag, _)| *flag).collect();
        let text = format!("(?{flags}:{})", self.take(len)?);
        let known = self.classes.iter().find(|(known, _)| *known == text);
        let class = match known {
            Some((_, class)) => class.clone(),
            None if self.classes.len() == MAX_CLASSES => {
                return Err(format!("it has more than {MAX_CLASSES} classes of characters"));
            }
            None => {
                let class = Arc::new(CharClass::new(&text)?);
                self.classes.push((text, class.clone()));
                class
            }
        };
        Ok(Subexpression::of(Step::Class(class), 1))
    }

    fn escape(&mut self) -> Attempt<Subexpression> {
        let mut rest = self.rest.chars();
        rest.next();
        let c = rest.next().ok_or("a backslash is at the end")?;
        let hex = |len| match rest.as_str().starts_with('{') {
            true => self.rest.find('}').map_or(len, |end| end + 1),
            false => len,
        };
        let len = 1 + c.len_utf8();
        let anchor = match c {
            'A' => Anchor::Start,
            'Z' | 'z' => Anchor::End,
            // `regex-lite` has `\b{start}`.
            'b' if !rest.as_str().starts_with('{') => Anchor::WordBoundary,
            'B' => Anchor::NoWordBoundary,
            '1'..='9' => {
                let digits = rest.as_str().starts_with(|c: char| c.is_ascii_digit());
                let number = &self.take(len + usize::from(digits))?[1..];
                return self.reference(number);
            }
            'k' if rest.as_str().starts_with('<') => {
                self.take(len + 1)?;
                let name = self.take_until('>')?;
                return self.reference(name);
            }
            'x' => return self.class(hex(4)),
            'u' => return self.class(hex(6)),
            'U' => return self.class(hex(10)),
            c if c.is_ascii_alphanumeric() => return self.class(len),
            // Beginning and end of a word for `regex-lite`, characters for Python.
            '<' | '>' => return Err(self.wrong("`\\<` and `\\>` are not known here")),
            c => {
                self.take(len)?;
                return Ok(self.character(c));
            }
        };
        self.take(len)?;
        Ok(Subexpression::of(Step::At(anchor), 0))
    }

    /// Number of a group that has begun, by its number or its name.
    fn number_of(&self, group: &str) -> Attempt<u32> {
        let named = || self.names.iter().position(|name| *name == Some(group));
        let number = match group.parse::<usize>() {
            Ok(number) => (1..=self.names.len()).contains(&number).then_some(number),
            Err(_) => named().map(|at| at + 1),
        };
        let number = number.ok_or_else(|| format!("there is no group `{group}` before it"))?;
        Ok(number as u32)
    }

    fn reference(&self, group: &str) -> Attempt<Subexpression> {
        let step = Step::Reference(self.number_of(group)?, self.flags.is_any_case);
        Ok(Subexpression { steps: vec![step], width: (0, usize::MAX) })
    }

    fn group(&mut self) -> Attempt<Subexpression> {
        const INNER: [(&str, InnerKind); 5] = [
            ("(?=", InnerKind::Ahead),
            ("(?!", InnerKind::NotAhead),
            ("(?<=", InnerKind::Behind),
            ("(?<!", InnerKind::NotBehind),
            ("(?>", InnerKind::Atomic),
        ];
        if let Some((_, kind)) = INNER.into_iter().find(|(text, _)| self.eat(text)) {
            return Ok(self.inside()?.into_inner(kind));
        }
        if self.eat("(?:") {
            return self.inside();
        }
        if self.eat("(?P=") {
            let name = self.take_until(')')?;
            return self.reference(name);
        }
        if self.eat("(?(") {
            let group = self.take_until(')')?;
            let group = self.number_of(group)?;
            return self.condition(group);
        }
        let name = match self.eat("(?P<") || self.eat("(?<") {
            true => Some(self.take_until('>')?),
            false if self.eat("(?") => return self.flags(),
            false => {
                self.take(1)?;
                None
            }
        };
        if name.is_some() && self.names.contains(&name) {
            return Err(self.wrong("two groups have one name"));
        }
        self.names.push(name);
        self.count(2)?;
        let slot = 2 * self.names.len() as u32;
        let mut out = Subexpression::of(Step::Save(slot), 0);
        out.append(&self.inside()?);
        out.push(Step::Save(slot + 1));
        Ok(out)
    }

    /// What is before the end of a group, whose flags end there.
    fn inside(&mut self) -> Attempt<Subexpression> {
        let flags = self.flags;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} groups are in one another"));
        }
        let out = self.alternatives()?;
        self.depth -= 1;
        self.flags = flags;
        self.close(out)
    }

    fn close(&mut self, part: Subexpression) -> Attempt<Subexpression> {
        match self.eat(")") {
            true => Ok(part),
            false => Err(self.wrong("a group is not closed")),
        }
    }

    fn condition(&mut self, group: u32) -> Attempt<Subexpression> {
        self.count(2)?;
        let yes = self.sequence()?;
        let no = if self.eat("|") {
            self.sequence()?
        } else {
            Subexpression::default()
        };
        self.close(yes.or(no, |skip| Step::Unless(group, skip)))
    }

    /// Flags of the group that begins with them, or of what follows in the group around them.
    fn flags(&mut self) -> Attempt<Subexpression> {
        let (before, mut is_set) = (self.flags, true);
        loop {
            let Some(c) = self.rest.chars().next() else {
                return Err(self.wrong("a group is not closed"));
            };
            match c {
                'i' => self.flags.is_any_case = is_set,
                'm' => self.flags.is_multi_line = is_set,
                's' => self.flags.has_dot_newline = is_set,
                'x' => self.flags.has_comments = is_set,
                'u' => {}
                '-' => is_set = false,
                ':' | ')' => {}
                _ => return Err(self.wrong("a group begins with what is not known here")),
            }
            self.take(1)?;
            if c == ')' {
                return Ok(Subexpression::default());
            }
            if c == ':' {
                let out = self.inside()?;
                self.flags = before;
                return Ok(out);
            }
        }
    }
}

/// Number of bytes of the class that an expression begins with.
fn class_len(text: &str) -> usize {
    let mut at = if text.starts_with("[^") { 2 } else { 1 };
    // A bracket that is the first character is no end.
    at += usize::from(text[at..].starts_with(']'));
    while let Some(c) = text[at..].chars().next() {
        let posix = text[at..].starts_with("[:");
        match c {
            ']' => return at + 1,
            '\\' => at += 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8),
            '[' if posix => at += text[at..].find(":]").map_or(1, |end| end + 2),
            c => at += c.len_utf8(),
        }
    }
    text.len()
}
