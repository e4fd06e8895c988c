//! [`XmlReader`]: the tags of an XML text, one after another. Strict, and without what models do not
//! have: a document type, and with it entities of the text's own, is an error.

use std::borrow::Cow;

use crate::limits::cap;
use crate::{AnamnesisError, Result};

/// Most elements inside of each other.
const MAX_DEPTH: u64 = 128;

/// Most attributes of an element.
const MAX_ATTRIBUTES: u64 = 256;

/// A tag, or the text between two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum XmlEvent<'a> {
    /// An element begins. One without content ends in the next event.
    Start(XmlTag<'a>),
    /// The element with this name ends.
    End(&'a str),
    /// Text, with what stands for characters as it is written.
    Text(&'a str),
}

/// The first tag of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct XmlTag<'a> {
    pub name: &'a str,
    attributes: &'a str,
}

/// Reads a text from front to back, each byte a few times.
pub(super) struct XmlReader<'a> {
    rest: &'a str,
    /// The elements that are open.
    open: Vec<&'a str>,
    /// Whether the last event began an element without content.
    is_empty: bool,
    has_root: bool,
}

fn wrong(what: &str) -> AnamnesisError {
    AnamnesisError::parse(format!("XML: {what}"))
}

impl<'a> XmlReader<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let rest = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self { rest, open: Vec::new(), is_empty: false, has_root: false }
    }

    /// The next event; `None` behind the outermost element.
    ///
    /// # Errors
    /// `Parse` if the text is malformed or ends within an element; `LimitExceeded`.
    pub(super) fn next(&mut self) -> Result<Option<XmlEvent<'a>>> {
        if std::mem::take(&mut self.is_empty) {
            return Ok(self.open.pop().map(XmlEvent::End));
        }
        loop {
            let Some((text, behind)) = self.rest.split_once('<') else {
                return self.end();
            };
            if !text.is_empty() {
                self.rest = &self.rest[text.len()..];
                if self.open.is_empty() && !text.trim_ascii().is_empty() {
                    return Err(wrong("text outside of the root"));
                }
                if !self.open.is_empty() {
                    return Ok(Some(XmlEvent::Text(text)));
                }
                continue;
            }
            if let Some(comment) = behind.strip_prefix("!--") {
                self.rest = after(comment, "-->")?;
            } else if let Some(instruction) = behind.strip_prefix('?') {
                self.rest = after(instruction, "?>")?;
            } else if behind.starts_with('!') {
                return Err(wrong("a document type or a marked section, which models do not have"));
            } else if let Some(end) = behind.strip_prefix('/') {
                let (name, rest) = end
                    .split_once('>')
                    .ok_or_else(|| wrong("a tag is truncated"))?;
                self.rest = rest;
                let name = name.trim_ascii_end();
                return match self.open.pop() {
                    Some(open) if open == name => Ok(Some(XmlEvent::End(name))),
                    _ => Err(wrong("the end of an element that is not open")),
                };
            } else {
                return self.start(behind).map(Some);
            }
        }
    }

    /// What is left when there is no tag any more.
    fn end(&mut self) -> Result<Option<XmlEvent<'a>>> {
        let is_whole = self.open.is_empty() && self.has_root && self.rest.trim_ascii().is_empty();
        match is_whole {
            true => Ok(None),
            false => Err(wrong("the text ends within an element")),
        }
    }

    /// Reads the tag behind its `<`.
    fn start(&mut self, behind: &'a str) -> Result<XmlEvent<'a>> {
        let mut quote = None;
        let end = behind.bytes().position(|b| {
            match quote {
                Some(open) if b == open => quote = None,
                None if matches!(b, b'"' | b'\'') => quote = Some(b),
                None if b == b'>' => return true,
                _ => {}
            }
            false
        });
        let end = end.ok_or_else(|| wrong("a tag is truncated"))?;
        let (tag, rest) = (&behind[..end], &behind[end + 1..]);
        let inner = tag.strip_suffix('/');
        self.is_empty = inner.is_some();
        let tag = inner.unwrap_or(tag);
        let name_end = tag
            .find(|c: char| c.is_ascii_whitespace())
            .unwrap_or(tag.len());
        let (name, attributes) = tag.split_at(name_end);
        let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(wrong("an element without a name"));
        }
        if self.open.is_empty() && std::mem::replace(&mut self.has_root, true) {
            return Err(wrong("two roots"));
        }
        self.open.push(name);
        cap("XML_MAX_DEPTH", self.open.len() as u64, MAX_DEPTH, "elements inside of each other")?;
        self.rest = rest;
        Ok(XmlEvent::Start(XmlTag { name, attributes }))
    }
}

/// What follows `end` in `text`.
fn after<'a>(text: &'a str, end: &str) -> Result<&'a str> {
    let found = text.split_once(end);
    found
        .map(|(_, rest)| rest)
        .ok_or_else(|| wrong("a comment is truncated"))
}

impl<'a> XmlTag<'a> {
    /// The value of each of the attributes `names`; `None` for those that are not there.
    ///
    /// # Errors
    /// `Parse` if attributes are malformed or there twice; `LimitExceeded`.
    pub(super) fn attributes<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<[Option<Cow<'a, str>>; N]> {
        let mut found = [const { None }; N];
        let (mut rest, mut n) = (self.attributes.trim_ascii(), 0);
        while !rest.is_empty() {
            n += 1;
            cap("XML_MAX_ATTRIBUTES", n, MAX_ATTRIBUTES, "attributes of an element")?;
            let malformed = || wrong("an attribute is malformed");
            let (name, value) = rest.split_once('=').ok_or_else(malformed)?;
            let (name, value) = (name.trim_ascii_end(), value.trim_ascii_start());
            let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
            let quote = quote.ok_or_else(malformed)?;
            let (value, behind) = value[1..].split_once(quote).ok_or_else(malformed)?;
            if !behind.is_empty() && !behind.starts_with(|c: char| c.is_ascii_whitespace()) {
                return Err(malformed());
            }
            if let Some(i) = names.iter().position(|wanted| *wanted == name)
                && found[i].replace(unescaped(value)?).is_some()
            {
                return Err(wrong("an attribute is there twice"));
            }
            rest = behind.trim_ascii_start();
        }
        Ok(found)
    }
}

/// `text` with the characters that its references stand for.
fn unescaped(text: &str) -> Result<Cow<'_, str>> {
    let Some((before, mut rest)) = text.split_once('&') else {
        return Ok(Cow::Borrowed(text));
    };
    let mut out = before.to_owned();
    loop {
        let (name, behind) = rest
            .split_once(';')
            .ok_or_else(|| wrong("a reference is truncated"))?;
        out.push(referred(name).ok_or_else(|| wrong("a reference to no character"))?);
        let Some((text, next)) = behind.split_once('&') else {
            out.push_str(behind);
            return Ok(Cow::Owned(out));
        };
        out.push_str(text);
        rest = next;
    }
}

/// The character that `&name;` stands for.
fn referred(name: &str) -> Option<char> {
    Some(match name {
        "lt" => '<',
        "gt" => '>',
        "amp" => '&',
        "quot" => '"',
        "apos" => '\'',
        _ => {
            let number = name.strip_prefix('#')?;
            let number = match number.strip_prefix('x') {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(number)?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str) -> Result<Vec<String>> {
        let (mut reader, mut out) = (XmlReader::new(text), Vec::new());
        while let Some(event) = reader.next()? {
            out.push(match event {
                XmlEvent::Start(tag) => {
                    let [a] = tag.attributes(["a"])?;
                    format!("<{} {}", tag.name, a.unwrap_or_default())
                }
                XmlEvent::End(name) => format!("/{name}"),
                XmlEvent::Text(text) => text.trim().to_owned(),
            });
        }
        Ok(out)
    }

    #[test]
    fn tags_attributes_and_text() {
        let text =
            "<?xml version='1.0'?>\n<!-- <x> -->\n<r a = \"1 &lt; &#x32;&amp;\"><b a='>'/>t</r >\n";
        let found = events(text).unwrap();
        assert_eq!(found, ["<r 1 < 2&", "<b >", "/b", "t", "/r"]);
    }

    #[test]
    fn what_is_malformed() {
        for text in [
            "",
            "text",
            "<r>",
            "<r></s>",
            "</r>",
            "<r/><s/>",
            "<r/>text",
            "<r a></r>",
            "<r a=1></r>",
            "<r a='1'b='2'/>",
            "<r a='1' a='2'/>",
            "<r a='&x;'/>",
            "<r a='&#xd800;'/>",
            "<r a='&'/>",
            "<!DOCTYPE r><r/>",
            "<r><![CDATA[x]]></r>",
            "< r/>",
            "<r a='1",
            "<!-- <r/>",
            "<r/",
        ] {
            assert!(events(text).is_err(), "{text}");
        }
        let deep = "<a>".repeat(200);
        assert!(matches!(events(&deep), Err(AnamnesisError::LimitExceeded { .. })));
    }
}
