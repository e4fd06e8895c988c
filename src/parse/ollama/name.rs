//! Names of Ollama models, parsed by Ollama's grammar.

use crate::{AnamnesisError, Result};

pub(super) const PREFIX: &str = "ollama:";
pub(super) const HOST: &str = "registry.ollama.ai";
pub(super) const NAMESPACE: &str = "library";
pub(super) const DEFAULT_TAG: &str = "latest";

/// A model's full name. Each part is checked to be safe as one component of a path.
pub(super) struct OllamaName<'a> {
    pub host: &'a str,
    pub namespace: &'a str,
    pub model: &'a str,
    pub tag: &'a str,
}

impl<'a> OllamaName<'a> {
    /// Parses `ollama:[[host/]namespace/]model[:tag]`, and fills in what is left out.
    ///
    /// # Errors
    /// `Parse` if a part is not valid by the grammar; `Unsupported` for a digest in place of a tag.
    pub(super) fn parse(spec: &'a str) -> Result<Self> {
        let fail = |what: String| AnamnesisError::parse(format!("model name `{spec}`: {what}"));
        let text = spec.strip_prefix(PREFIX).unwrap_or(spec);
        if text.contains("@sha256") {
            let detail =
                format!("model name `{spec}`: the store knows models by tag, not by digest");
            return Err(AnamnesisError::unsupported("Ollama digest", detail));
        }
        // A URL's scheme says how to pull the model, and is not part of its path in the store. Only
        // full names can have one.
        let url = text
            .strip_prefix("https://")
            .or(text.strip_prefix("http://"));
        let text = url
            .filter(|text| text.matches('/').count() == 2)
            .unwrap_or(text);
        // A colon before the last slash belongs to the port.
        let (path, tag) = text
            .rsplit_once(':')
            .filter(|(_, t)| !t.contains('/'))
            .unwrap_or((text, DEFAULT_TAG));
        let mut parts = path.rsplitn(3, '/');
        let model = parts.next().unwrap_or_default();
        let namespace = parts.next().unwrap_or(NAMESPACE);
        let host = parts.next().unwrap_or(HOST);
        for (what, part) in
            [("host", host), ("namespace", namespace), ("model", model), ("tag", tag)]
        {
            flaw(what, part)
                .map_or(Ok(()), |flaw| Err(fail(format!("the {what} `{part}` {flaw}"))))?;
        }
        Ok(Self { host, namespace, model, tag })
    }
}

/// Describes why `part` is not valid as the `what` of a name; `None` if it is valid. The grammar is
/// Ollama's, in which no part is empty, `.` or `..`, or holds a separator.
pub(super) fn flaw(what: &str, part: &str) -> Option<String> {
    let (max, marks) = match what {
        "host" => (350, "-.:"),
        "namespace" => (80, "-"),
        _ => (80, "-."),
    };
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if part.is_empty() {
        Some("is empty".to_owned())
    } else if part.len() > max {
        Some(format!("has {} bytes, of at most {max}", part.len()))
    } else if let Some(c) = part.chars().find(|&c| !is_word(c) && !marks.contains(c)) {
        Some(format!("contains {c:?}"))
    } else if !part.starts_with(is_word) {
        Some("does not begin with a letter, a digit or `_`".to_owned())
    } else {
        // The grammar allows `C:` as a host. On Windows, joining it to a path would replace the
        // path.
        (part.find(':') == Some(1)).then(|| "looks like a drive".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::super::file_stem;
    use super::OllamaName;

    #[test]
    fn names() {
        for (spec, expected, stem) in [
            ("m:Latest", "registry.ollama.ai library m Latest", "m"),
            ("ollama:m:Latest", "registry.ollama.ai library m Latest", "m"),
            ("ollama:_n/m.1:t-2", "registry.ollama.ai _n m.1 t-2", "m.1-t-2"),
            ("ollama:hf.co/Org/Repo:Q4_K_M", "hf.co Org Repo Q4_K_M", "Repo-Q4_K_M"),
            ("ollama:http://localhost:5000/n/m", "localhost:5000 n m latest", "m"),
            ("ollama:hf.co/../m", "", "model"),
        ] {
            let name =
                OllamaName::parse(spec).map(|n| [n.host, n.namespace, n.model, n.tag].join(" "));
            assert_eq!(
                (name.unwrap_or_default(), file_stem(spec)),
                (expected.to_owned(), stem.to_owned())
            );
        }
    }
}
