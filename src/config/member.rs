//! [`Member`]: one member of an object in a JSON text, which is set, removed or renamed. All other bytes
//! stay as they are, and a new member is written as its neighbours are.

use std::borrow::Cow;
use std::ops::Range;

use super::json_object::{JsonMember, JsonObject};

/// A member of an object, which need not be there yet.
pub(crate) struct Member<'j> {
    json: &'j str,
    object: JsonObject,
    key: String,
    /// Its number among the members of the object; `None` if there is none of this key.
    at: Option<usize>,
}

impl<'j> Member<'j> {
    /// The member `key` of the outer object of `json`.
    ///
    /// # Errors
    /// Says that `json` is no object, or has the key twice.
    pub(crate) fn of(json: &'j str, key: &str) -> Result<Self, String> {
        Self::in_object(json, outer(json)?, key)
    }

    /// The member of `json` at `path`: keys with dots between them. Keys may have dots themselves; one
    /// that is there comes before a path that means the same.
    ///
    /// # Errors
    /// Says that there is no object at the beginning of the path, or that a key is there twice.
    pub(crate) fn at_path(json: &'j str, path: &str) -> Result<Self, String> {
        let (mut object, mut rest) = (outer(json)?, path);
        loop {
            let found = Self::in_object(json, object, rest)?;
            let first = rest.split('.').next().unwrap_or_default();
            if found.at.is_some() || first == rest {
                return Ok(found);
            }
            object = found.object;
            let mut longest: Option<(Cow<'_, str>, &JsonMember)> = None;
            for member in &object.members {
                let key = key_of(json, member);
                let begins = rest
                    .strip_prefix(&*key)
                    .is_some_and(|rest| rest.starts_with('.'));
                let is_longer = longest
                    .as_ref()
                    .is_none_or(|(other, _)| other.len() < key.len());
                if begins && is_longer {
                    longest = Some((key, member));
                }
            }
            let Some((key, member)) = longest else {
                return Err(format!("there is no object `{first}`"));
            };
            let what = || format!("`{key}` is no object");
            let inner = object_at(json, member.value.start).ok_or_else(what)?;
            rest = &rest[key.len() + 1..];
            object = inner;
        }
    }

    fn in_object(json: &'j str, object: JsonObject, key: &str) -> Result<Self, String> {
        let mut all = object.members.iter().enumerate();
        let at = all
            .find(|(_, member)| key_of(json, member) == key)
            .map(|(at, _)| at);
        if all.any(|(_, member)| key_of(json, member) == key) {
            return Err(format!("`{key}` is there twice; delete the one that is wrong"));
        }
        Ok(Self { json, key: key.to_owned(), object, at })
    }

    /// The text of the value; `None` if the member is not there.
    pub(crate) fn value(&self) -> Option<&'j str> {
        self.json
            .get(self.object.members.get(self.at?)?.value.clone())
    }

    /// The key, without those of the objects around it.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The text with `value`, which is JSON, as the value of the member.
    pub(crate) fn with_value(&self, value: &str) -> String {
        let members = &self.object.members;
        if let Some(member) = self.at.and_then(|at| members.get(at)) {
            return self.replaced(member.value.clone(), value);
        }
        let Some((first, last)) = members.first().zip(members.last()) else {
            let inside = self.object.span.start + 1..self.object.span.end - 1;
            return self.replaced(inside, &format!("{}: {value}", quoted(&self.key)));
        };
        let text = |range: Range<usize>| self.json.get(range).unwrap_or_default();
        // A comma, and what else is between two members.
        let between = match members.get(1) {
            Some(second) => text(first.value.end..second.key.start - 1).to_owned(),
            None => format!(",{}", text(self.object.span.start + 1..first.key.start - 1)),
        };
        let colon = text(first.key.end + 1..first.value.start);
        let end = last.value.end;
        self.replaced(end..end, &format!("{between}{}{colon}{value}", quoted(&self.key)))
    }

    /// The text without the member; `None` if it is not there.
    pub(crate) fn removed(&self) -> Option<String> {
        let (members, at) = (&self.object.members, self.at?);
        let member = members.get(at)?;
        let before = at.checked_sub(1).and_then(|at| members.get(at));
        // It takes the comma behind it along; the last member takes the one before it.
        let range = match (members.get(at + 1), before) {
            (Some(next), _) => member.key.start - 1..next.key.start - 1,
            (None, Some(before)) => before.value.end..member.value.end,
            (None, None) => member.key.start - 1..member.value.end,
        };
        Some(self.replaced(range, ""))
    }

    /// The text with the member under the key `to` of the same object.
    ///
    /// # Errors
    /// Says that the member is not there, or that another has the key.
    pub(crate) fn renamed(&self, to: &str) -> Result<String, String> {
        let members = &self.object.members;
        let Some(member) = self.at.and_then(|at| members.get(at)) else {
            return Err(format!("there is no `{}`", self.key));
        };
        if members.iter().any(|other| key_of(self.json, other) == to) {
            return Err(format!("`{to}` is there already"));
        }
        Ok(self.replaced(member.key.start - 1..member.key.end + 1, &quoted(to)))
    }

    fn replaced(&self, range: Range<usize>, text: &str) -> String {
        let part = |range: Range<usize>| self.json.get(range).unwrap_or_default();
        [part(0..range.start), text, part(range.end..self.json.len())].concat()
    }
}

fn outer(json: &str) -> Result<JsonObject, String> {
    let start = json.len() - json.trim_start().len();
    object_at(json, start).ok_or_else(|| "the text is no JSON object".to_owned())
}

fn object_at(json: &str, start: usize) -> Option<JsonObject> {
    let begins = json.as_bytes().get(start) == Some(&b'{');
    begins.then(|| JsonObject::parse(json, start))?
}

/// The key of `member`, whose escapes are resolved.
fn key_of<'j>(json: &'j str, member: &JsonMember) -> Cow<'j, str> {
    let key = json.get(member.key.clone()).unwrap_or_default();
    if !key.contains('\\') {
        return Cow::Borrowed(key);
    }
    let quoted = json.get(member.key.start - 1..member.key.end + 1);
    let resolved = quoted.and_then(|quoted| serde_json::from_str(quoted).ok());
    resolved.map_or(Cow::Borrowed(key), Cow::Owned)
}

/// `text` as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(json: &str, path: &str, value: &str) -> String {
        Member::at_path(json, path).unwrap().with_value(value)
    }

    #[test]
    fn values_are_set_where_they_are() {
        let json = "{\n  \"a\": 1.00E+4,\n  \"b\": {\"c.d\": [1, 2], \"e\": NaN}\n}\n";
        assert_eq!(set(json, "a", "1e6"), json.replace("1.00E+4", "1e6"));
        assert_eq!(set(json, "b.c.d", "null"), json.replace("[1, 2]", "null"));
        assert_eq!(set(json, "b.e", "0"), json.replace("NaN", "0"));
        assert_eq!(Member::at_path(json, "b.e").unwrap().value(), Some("NaN"));
    }

    #[test]
    fn new_members_are_written_as_their_neighbours() {
        for (json, path, expected) in [
            ("{\n    \"a\": 1\n}", "b", "{\n    \"a\": 1,\n    \"b\": 2\n}"),
            ("{\"a\":1,\"c\":3}", "b", "{\"a\":1,\"c\":3,\"b\":2}"),
            ("{\"a\": 1, \"c\": 3}", "b", "{\"a\": 1, \"c\": 3, \"b\": 2}"),
            ("{ }", "b", "{\"b\": 2}"),
            ("{\"x\": {\n}}", "x.b", "{\"x\": {\"b\": 2}}"),
        ] {
            assert_eq!(set(json, path, "2"), expected);
        }
        assert_eq!(Member::of("{\"a\":1}", "b.c").unwrap().with_value("2"), "{\"a\":1,\"b.c\":2}");
    }

    #[test]
    fn members_are_removed_with_a_comma() {
        let json = r#"{"a": 1, "b": {"c": 2}, "d": 3}"#;
        for (path, expected) in [
            ("a", r#"{"b": {"c": 2}, "d": 3}"#),
            ("b", r#"{"a": 1, "d": 3}"#),
            ("d", r#"{"a": 1, "b": {"c": 2}}"#),
            ("b.c", r#"{"a": 1, "b": {}, "d": 3}"#),
        ] {
            assert_eq!(Member::at_path(json, path).unwrap().removed().unwrap(), expected);
        }
        assert!(Member::at_path(json, "e").unwrap().removed().is_none());
    }

    #[test]
    fn members_are_renamed() {
        let json = r#"{"a\u0062": 1, "c": 2}"#;
        let member = Member::at_path(json, "ab").unwrap();
        assert_eq!(member.renamed("x\"").unwrap(), r#"{"x\"": 1, "c": 2}"#);
        assert_eq!(member.renamed("c").unwrap_err(), "`c` is there already");
    }

    #[test]
    fn what_is_not_there_or_twice() {
        let refused = |json, path| Member::at_path(json, path).err().unwrap_or_default();
        assert_eq!(refused("{\"a\": 1}", "a.b"), "`a` is no object");
        assert_eq!(refused("{\"a\": 1}", "b.c"), "there is no object `b`");
        assert!(refused("{\"a\": 1, \"a\": 1}", "a").starts_with("`a` is there twice"));
        assert_eq!(refused("[{}]", "a"), "the text is no JSON object");
    }
}
