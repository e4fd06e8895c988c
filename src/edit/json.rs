//! [`EditedJson`]: an object in a JSON text whose members change, with an account of what has changed.

use serde_json::Value;

use super::{EditOptions, KeyChange, KeyValue, wrong_key};
use crate::Result;
use crate::config::Member;

/// Finds the member of a text that a key means.
type Find = for<'j> fn(&'j str, &str) -> std::result::Result<Member<'j>, String>;

/// A JSON text that is being edited.
pub(super) struct EditedJson {
    pub text: String,
    pub changes: Vec<KeyChange>,
    find: Find,
}

impl EditedJson {
    /// Makes the changes of `options` in `text`. `written` is the JSON text of a value.
    ///
    /// # Errors
    /// `Usage` that names the key.
    pub(super) fn new(
        text: &str,
        find: Find,
        options: &EditOptions,
        written: fn(&str) -> String,
    ) -> Result<Self> {
        let mut json = Self { text: text.to_owned(), changes: Vec::new(), find };
        options.unset.iter().try_for_each(|key| json.remove(key))?;
        options
            .rename
            .iter()
            .try_for_each(|(from, to)| json.rename(from, to))?;
        for pair in options.pairs() {
            let (key, value) = pair?;
            json.set(key, &written(value))?;
        }
        Ok(json)
    }

    fn member(&self, key: &str) -> Result<Member<'_>> {
        (self.find)(&self.text, key).map_err(|what| wrong_key(key, what))
    }

    fn remove(&mut self, key: &str) -> Result<()> {
        let member = self.member(key)?;
        let missing = || wrong_key(key, "it cannot be removed: there is no such key");
        let text = member.removed().ok_or_else(missing)?;
        let before = member.value().map(value_of);
        self.text = text;
        self.add(key, None, before, None);
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        let member = self.member(from)?;
        let around = from.strip_suffix(member.key()).unwrap_or_default();
        let key = to.strip_prefix(around).filter(|key| !key.is_empty());
        let elsewhere = || {
            let what = format!("`{to}` is not beside it; --unset and --set move a value");
            wrong_key(from, what)
        };
        let text = member.renamed(key.ok_or_else(elsewhere)?);
        let text = text.map_err(|what| wrong_key(from, what))?;
        let value = member.value().map(value_of);
        self.text = text;
        self.add(to, Some(from), value.clone(), value);
        Ok(())
    }

    fn set(&mut self, key: &str, written: &str) -> Result<()> {
        let member = self.member(key)?;
        let (before, after) = (member.value().map(value_of), value_of(written));
        if before.as_ref() != Some(&after) {
            self.text = member.with_value(written);
            self.add(key, None, before, Some(after));
        }
        Ok(())
    }

    fn add(
        &mut self,
        key: &str,
        from: Option<&str>,
        before: Option<KeyValue>,
        after: Option<KeyValue>,
    ) {
        let (key, renamed_from) = (key.to_owned(), from.map(str::to_owned));
        self.changes
            .push(KeyChange { key, renamed_from, before, after });
    }
}

/// The value of a JSON text. Floats that only Python reads are numbers without a value.
fn value_of(json: &str) -> KeyValue {
    let number = KeyValue { kind: "number".to_owned(), value: Value::Null };
    serde_json::from_str(json).map_or(number, KeyValue::of_json)
}
