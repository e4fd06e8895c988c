//! [`Backtracking`]: expressions that are matched by trying, for what `regex-lite` does not have:
//! look-around, back-references, atomic groups and conditions.
//!
//! An expression is a list of [`Step`]s. At a [`Step::Split`] the matcher takes one way and keeps
//! the other one on a stack, for when the first fails. Each step counts, and after [`MAX_STEPS`]
//! the match is given up: expressions come from files, and some take 2 to the power of the name's
//! length.

mod parse;
mod subexpression;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use self::parse::parse;
use super::{Attempt, MAX_STEPS};

/// An expression that is matched by trying.
#[derive(Debug, Clone)]
pub(in crate::config) struct Backtracking {
    steps: Arc<[Step]>,
    /// Number of groups, besides that of the whole match.
    groups: usize,
    /// Number of positions that a match keeps.
    slots: usize,
}

#[derive(Debug, Clone)]
enum Step {
    Char(char),
    /// A letter in any case.
    Letter(char),
    Class(Arc<CharClass>),
    At(Anchor),
    /// Goes on so many steps further, or so many if that fails.
    Split(i32, i32),
    Jump(i32),
    /// Keeps the position: of a group, or where an iteration begins.
    Save(u32),
    /// Leaves out the next step, which begins another iteration, if the one that began at the
    /// position in this slot has matched nothing: no loop is endless.
    HasMoved(u32),
    /// The text of a group; its letters in any case.
    Reference(u32, bool),
    /// Goes on so many steps further if a group has no text.
    Unless(u32, i32),
    Inner(Arc<Inner>),
}

/// Expression of one character.
#[derive(Debug)]
struct CharClass {
    one: regex_lite::Regex,
    /// Which of ASCII it matches, once it was asked.
    ascii: OnceLock<u128>,
}

/// Where a name has no character, but an expression matches.
#[derive(Debug, Clone, Copy)]
enum Anchor {
    Start,
    End,
    LineStart,
    LineEnd,
    WordBoundary,
    NoWordBoundary,
}

/// An expression that is matched by itself.
#[derive(Debug)]
struct Inner {
    kind: InnerKind,
    steps: Vec<Step>,
    /// Fewest and most characters that it matches.
    width: (usize, usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InnerKind {
    Ahead,
    NotAhead,
    Behind,
    NotBehind,
    /// What it matches first is what it matches.
    Atomic,
}

impl Backtracking {
    /// Reads an expression.
    pub(super) fn new(expression: &str) -> Attempt<Self> {
        parse(expression)
    }

    /// Ranges of the groups of the first match, that of the whole match first.
    pub(super) fn groups(&self, name: &str) -> Attempt<Option<Vec<Option<Range<usize>>>>> {
        let mut matcher =
            Matcher { name, slots: vec![None; self.slots], undo: Vec::new(), steps: 0 };
        let starts = (0..=name.len()).filter(|&at| name.is_char_boundary(at));
        let is_anchored = matches!(self.steps.first(), Some(Step::At(Anchor::Start)));
        for start in starts.take(if is_anchored { 1 } else { usize::MAX }) {
            if let Some(end) = matcher.run(&self.steps, start, None)? {
                let group = |i: usize| Some(matcher.slots[2 * i]?..matcher.slots[2 * i + 1]?);
                let groups = (1..=self.groups).map(group);
                return Ok(Some([Some(start..end)].into_iter().chain(groups).collect()));
            }
        }
        Ok(None)
    }

    /// Number of groups, besides that of the whole match.
    pub(super) fn group_count(&self) -> usize {
        self.groups
    }
}

/// One search in a name.
struct Matcher<'n> {
    name: &'n str,
    /// Beginning and end of each group, and beginnings of iterations.
    slots: Vec<Option<usize>>,
    undo: Vec<Undo>,
    steps: usize,
}

/// What is done when a way has failed, the last first.
enum Undo {
    /// Goes on at a step and a position.
    GoOn(usize, usize),
    /// Gives a slot the value that it had.
    Slot(usize, Option<usize>),
}

impl Matcher<'_> {
    /// Matches from `start`, to `end` if there is one. Returns the end of the match; ways that were
    /// not tried are left in `undo`.
    fn run(&mut self, steps: &[Step], start: usize, end: Option<usize>) -> Attempt<Option<usize>> {
        let kept = self.undo.len();
        let (mut at, mut step) = (start, 0);
        loop {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Err(format!("it takes more than {MAX_STEPS} steps"));
            }
            let next = match steps.get(step) {
                None if end.is_none_or(|end| end == at) => return Ok(Some(at)),
                None => None,
                Some(Step::Split(first, second)) => {
                    let second = step.wrapping_add_signed(*second as isize);
                    self.undo.push(Undo::GoOn(second, at));
                    Some((*first, at))
                }
                Some(taken) => self.take(taken, at)?,
            };
            (step, at) = match next {
                Some((by, at)) => (step.wrapping_add_signed(by as isize), at),
                None => match self.back_to(kept) {
                    Some(way) => way,
                    None => return Ok(None),
                },
            };
        }
    }

    /// How many steps further it goes on after `step`, and where in the name; `None` if it does not
    /// match.
    fn take(&mut self, step: &Step, at: usize) -> Attempt<Option<(i32, usize)>> {
        let rest = self.name.get(at..).unwrap_or_default();
        let behind = |is_match: bool, len| is_match.then_some((1, at + len));
        let char = |is_match: &dyn Fn(char) -> bool| {
            let c = rest.chars().next();
            c.and_then(|c| behind(is_match(c), c.len_utf8()))
        };
        Ok(match step {
            Step::Char(expected) => char(&|c| c == *expected),
            Step::Letter(expected) => char(&|c| c.eq_ignore_ascii_case(expected)),
            Step::Class(class) => char(&|c| class.has(c)),
            Step::At(anchor) => behind(anchor.is_at(self.name, at), 0),
            Step::Split(by, _) | Step::Jump(by) => Some((*by, at)),
            Step::Save(slot) => {
                let slot = *slot as usize;
                self.undo.push(Undo::Slot(slot, self.slots[slot]));
                self.slots[slot] = Some(at);
                behind(true, 0)
            }
            Step::HasMoved(slot) => Some((
                if self.slots[*slot as usize] == Some(at) {
                    2
                } else {
                    1
                },
                at,
            )),
            Step::Reference(group, is_any_case) => self.group(*group).and_then(|text| {
                let found = rest.get(..text.len())?;
                let is_same = found == text || (*is_any_case && found.eq_ignore_ascii_case(text));
                behind(is_same, text.len())
            }),
            Step::Unless(group, by) => {
                Some((if self.group(*group).is_some() { 1 } else { *by }, at))
            }
            Step::Inner(inner) => self.inner(inner, at)?.map(|at| (1, at)),
        })
    }

    /// The text of a group.
    fn group(&self, group: u32) -> Option<&str> {
        let slot = 2 * group as usize;
        self.name.get(self.slots[slot]?..self.slots[slot + 1]?)
    }

    /// The last way that was not tried, down to the first `kept` entries.
    fn back_to(&mut self, kept: usize) -> Option<(usize, usize)> {
        while self.undo.len() > kept {
            match self.undo.pop()? {
                Undo::GoOn(step, at) => return Some((step, at)),
                Undo::Slot(slot, value) => self.slots[slot] = value,
            }
        }
        None
    }

    /// Where the name goes on after an expression that is matched by itself.
    fn inner(&mut self, inner: &Inner, at: usize) -> Attempt<Option<usize>> {
        use InnerKind::{Ahead, Atomic, Behind, NotAhead, NotBehind};
        let kept = self.undo.len();
        let found = match inner.kind {
            Ahead | NotAhead | Atomic => self.run(&inner.steps, at, None)?,
            Behind | NotBehind => self.behind(inner, at)?,
        };
        if matches!(inner.kind, NotAhead | NotBehind) {
            // Groups in what must not match have no text.
            while self.back_to(kept).is_some() {}
            return Ok(found.is_none().then_some(at));
        }
        // No other way is tried in it, but what groups had comes back.
        let undo = self.undo.split_off(kept).into_iter();
        self.undo
            .extend(undo.filter(|undo| matches!(undo, Undo::Slot(..))));
        Ok(found.map(|end| if inner.kind == Atomic { end } else { at }))
    }

    /// `at` if a match ends there.
    fn behind(&mut self, inner: &Inner, at: usize) -> Attempt<Option<usize>> {
        let (least, most) = inner.width;
        let before = self.name.get(..at).unwrap_or_default();
        let starts = [at].into_iter();
        let starts = starts.chain(before.char_indices().rev().map(|(start, _)| start));
        let starts = starts.take(most.saturating_add(1)).skip(least);
        for start in starts {
            if let Some(end) = self.run(&inner.steps, start, Some(at))? {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }
}

impl CharClass {
    /// A class as it is written, such as `[a-z]`, `\d` or `.`.
    fn new(text: &str) -> Attempt<Self> {
        let one = regex_lite::Regex::new(&format!("^{text}$"));
        Ok(Self { one: one.map_err(|e| e.to_string())?, ascii: OnceLock::new() })
    }

    fn has(&self, c: char) -> bool {
        let is_match = |c: char| self.one.is_match(c.encode_utf8(&mut [0; 4]));
        let all = || {
            let found = (0..128u8).filter(|c| is_match(char::from(*c)));
            found.fold(0, |all, c| all | (1 << c))
        };
        match u8::try_from(c) {
            Ok(c) if c.is_ascii() => (self.ascii.get_or_init(all) >> c) & 1 == 1,
            _ => is_match(c),
        }
    }
}

impl Anchor {
    fn is_at(self, name: &str, at: usize) -> bool {
        let (before, behind) = (&name.as_bytes()[..at], &name.as_bytes()[at..]);
        let is_word = |c: Option<&u8>| c.is_some_and(|c| c.is_ascii_alphanumeric() || *c == b'_');
        let is_boundary = is_word(before.last()) != is_word(behind.first());
        match self {
            Self::Start => before.is_empty(),
            Self::End => behind.is_empty(),
            Self::LineStart => before.last().is_none_or(|c| *c == b'\n'),
            Self::LineEnd => behind.first().is_none_or(|c| *c == b'\n'),
            Self::WordBoundary => is_boundary,
            Self::NoWordBoundary => !is_boundary,
        }
    }
}
