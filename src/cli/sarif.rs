//! SARIF 2.1.0, in which code hosts and editors read what checkers of files find.
//!
//! Source: <https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html>. GitHub also asks for a
//! line: <https://docs.github.com/en/code-security/code-scanning/integrating-with-code-scanning/sarif-support-for-code-scanning>.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::printed::print_json;
use crate::{Finding, PickleRisk, PickleScan, Result, Severity};

/// A kind of findings: its name, what it means, and how grave it is in SARIF's words.
struct SarifRule {
    id: &'static str,
    text: &'static str,
    level: &'static str,
}

const DAMAGED: SarifRule = SarifRule {
    id: "damaged",
    text: "The model is damaged, or cannot be decoded.",
    level: "error",
};
const UNUSUAL: SarifRule = SarifRule {
    id: "unusual",
    text: "Unusual, and possible in a model that works.",
    level: "warning",
};
const DANGEROUS: SarifRule = SarifRule {
    id: "dangerous",
    text: "Who opens the file with Python runs code that is known to do harm.",
    level: "error",
};
const SUSPICIOUS: SarifRule = SarifRule {
    id: "suspicious",
    text: "Who opens the file with Python may run code of which nothing is known.",
    level: "warning",
};

/// What was found in files, as results of SARIF.
#[derive(Default)]
pub(super) struct Sarif(Vec<Value>);

impl Sarif {
    /// Adds what `amn check` found of the model at `path`.
    pub(super) fn add_findings(&mut self, path: &Path, findings: &[Finding]) {
        for finding in findings {
            let rule = match finding.severity {
                Severity::Warning => UNUSUAL,
                _ => DAMAGED,
            };
            let file = finding.file.as_deref().unwrap_or(path);
            self.add(&rule, file, &finding.message, finding.tensor.as_deref());
        }
    }

    /// Adds what `amn scan` found of the file at `path`.
    pub(super) fn add_scan(&mut self, path: &Path, scan: &PickleScan) {
        for graded in &scan.globals {
            let rule = match graded.risk {
                PickleRisk::Safe => continue,
                PickleRisk::Suspicious => SUSPICIOUS,
                _ => DANGEROUS,
            };
            let global = &graded.global;
            let name = format!("{}.{}", global.module, global.name);
            self.add(&rule, path, &format!("a pickle names `{name}`"), None);
        }
        for remark in &scan.remarks {
            self.add(&SUSPICIOUS, path, remark, None);
        }
    }

    fn add(&mut self, rule: &SarifRule, file: &Path, message: &str, tensor: Option<&str>) {
        let physical = json!({
            "artifactLocation": {"uri": uri(file)},
            "region": {"startLine": 1},
        });
        let mut location = json!({"physicalLocation": physical});
        if let Some(tensor) = tensor {
            location["logicalLocations"] =
                json!([{"fullyQualifiedName": tensor, "kind": "variable"}]);
        }
        self.0.push(json!({
            "ruleId": rule.id,
            "level": rule.level,
            "message": {"text": message},
            "locations": [location],
        }));
    }

    /// Prints a log of one run.
    ///
    /// # Errors
    /// `Io` of the writer.
    pub(super) fn print(self, out: &mut impl Write) -> Result<()> {
        let rules = [DAMAGED, UNUSUAL, DANGEROUS, SUSPICIOUS].map(|rule| {
            json!({
                "id": rule.id,
                "shortDescription": {"text": rule.text},
                "defaultConfiguration": {"level": rule.level},
            })
        });
        let driver = json!({"name": "amn", "version": env!("CARGO_PKG_VERSION"), "rules": rules});
        let log = json!({
            "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
            "version": "2.1.0",
            "runs": [{"tool": {"driver": driver}, "results": self.0}],
        });
        print_json(&log, out)
    }
}

/// A path as a reference of RFC 3986: relative, or with `file://`.
fn uri(path: &Path) -> String {
    let text = path.to_string_lossy().replace('\\', "/");
    let mut uri = String::new();
    if path.is_absolute() {
        uri.push_str(if text.starts_with('/') {
            "file://"
        } else {
            "file:///"
        });
    }
    for byte in text.trim_start_matches("./").bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => uri.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => uri.push(char::from(byte)),
            _ => drop(write!(uri, "%{byte:02X}")),
        }
    }
    uri
}
