//! Tables. Without scripts they are plain; with one they sort by columns and filter by text.

use std::fmt::{Display, Write};

use super::text::{Text, count, exact};

/// A column.
#[derive(Debug, Clone, Copy)]
pub(super) struct HtmlColumn {
    pub title: &'static str,
    pub is_number: bool,
}

impl HtmlColumn {
    pub(super) const fn text(title: &'static str) -> Self {
        Self { title, is_number: false }
    }

    pub(super) const fn number(title: &'static str) -> Self {
        Self { title, is_number: true }
    }
}

/// A table that is being written.
pub(super) struct HtmlTable<'o> {
    out: &'o mut String,
}

impl<'o> HtmlTable<'o> {
    /// Begins a table called `id`, which may be empty.
    pub(super) fn begin(out: &'o mut String, id: &str, columns: &[HtmlColumn]) -> Self {
        out.push_str("<div class=\"wide\"><table class=\"sortable\"");
        if !id.is_empty() {
            let _ = write!(out, " id=\"{id}\"");
        }
        out.push_str("><thead><tr>");
        for column in columns {
            let class = if column.is_number { " class=\"n\"" } else { "" };
            let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", column.title);
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        Self { out }
    }

    pub(super) fn begin_row(&mut self) {
        self.out.push_str("<tr>");
    }

    pub(super) fn end_row(&mut self) {
        self.out.push_str("</tr>\n");
    }

    /// A cell with text from a file.
    pub(super) fn text(&mut self, text: &str) {
        let _ = write!(self.out, "<td>{}</td>", Text(text));
    }

    /// A cell with a name, in letters of one width.
    pub(super) fn name(&mut self, name: &str) {
        let _ = write!(self.out, "<td class=\"name\">{}</td>", Text(name));
    }

    /// A cell with an integer, shown as `shown`.
    pub(super) fn integer(&mut self, n: u64, shown: impl Display) {
        let _ = write!(self.out, "<td class=\"n\" data-v=\"{n}\">{shown}</td>");
    }

    /// A cell with an integer, or with nothing.
    pub(super) fn count(&mut self, n: Option<u64>) {
        match n {
            Some(n) => self.integer(n, count(n)),
            None => self.nothing(),
        }
    }

    /// A cell with a number in the form that `show` gives it, or with nothing.
    pub(super) fn number(&mut self, x: Option<f64>, show: impl Fn(f64) -> String) {
        match x {
            Some(x) => {
                let _ =
                    write!(self.out, "<td class=\"n\" data-v=\"{}\">{}</td>", exact(x), show(x));
            }
            None => self.nothing(),
        }
    }

    fn nothing(&mut self) {
        self.out.push_str("<td class=\"n\">–</td>");
    }

    pub(super) fn end(self) {
        self.out.push_str("</tbody></table></div>\n");
    }
}
