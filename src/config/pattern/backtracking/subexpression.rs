//! [`Subexpression`]: steps of a part of an expression, which are put together.

use std::sync::Arc;

use super::{Inner, InnerKind, Step};

/// Steps of a part of an expression.
#[derive(Clone, Default)]
pub(super) struct Subexpression {
    pub steps: Vec<Step>,
    /// Fewest and most characters that it matches.
    pub width: (usize, usize),
}

impl Subexpression {
    pub(super) fn of(step: Step, width: usize) -> Self {
        Self { steps: vec![step], width: (width, width) }
    }

    pub(super) fn push(&mut self, step: Step) {
        self.steps.push(step);
    }

    pub(super) fn append(&mut self, other: &Self) {
        self.steps.extend(other.steps.iter().cloned());
        self.width.0 = self.width.0.saturating_add(other.width.0);
        self.width.1 = self.width.1.saturating_add(other.width.1);
    }

    /// Number of steps, as a jump over them has it.
    pub(super) fn len(&self) -> i32 {
        self.steps.len() as i32
    }

    /// `self`, or `other` if that fails, by a split or by the condition of `first`.
    pub(super) fn or(self, other: Self, first: impl FnOnce(i32) -> Step) -> Self {
        let width = (self.width.0.min(other.width.0), self.width.1.max(other.width.1));
        let mut out = Self { steps: vec![first(self.len() + 2)], width };
        out.steps.extend(self.steps);
        out.push(Step::Jump(other.len() + 1));
        out.steps.extend(other.steps);
        out
    }

    pub(super) fn into_inner(self, kind: InnerKind) -> Self {
        let width = if kind == InnerKind::Atomic {
            self.width
        } else {
            (0, 0)
        };
        let inner = Inner { kind, steps: self.steps, width: self.width };
        Self { steps: vec![Step::Inner(Arc::new(inner))], width }
    }
}
