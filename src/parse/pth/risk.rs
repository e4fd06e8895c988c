//! What a global could do to somebody who unpickles a file with Python. This crate itself calls
//! none.
//!
//! The tables in [`names`] have what is known to run code, to open files or connections, or to
//! import by name, and what is known to make plain values alone.

mod names;

use self::names::{DANGEROUS, DANGEROUS_ANYWHERE, HARMLESS, Names};

/// What a global could do to somebody who unpickles a file with Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PickleRisk {
    /// Nothing: it is one of those that torch allows with `weights_only=True`, or makes plain values
    /// such as numbers, dates and arrays.
    Safe,
    /// Unknown. Most are classes of training programs, such as `argparse.Namespace`; any could run
    /// code.
    Suspicious,
    /// It runs code, opens files or connections, or imports by name.
    Dangerous,
}

/// Modules of Python's built-in names, of Python 2 and 3.
const BUILTINS: &[&str] = &["__builtin__", "__builtins__", "builtins"];

/// What the global `name` of `module` could do, if it is not on the allow-list.
pub(super) fn risk_of(module: &str, name: &str) -> PickleRisk {
    let is_listed_in = |list: &[Names]| {
        let has = |&(listed, names): &Names| listed == module && names.contains(&name);
        list.iter().any(has)
    };
    let builtin = "builtins";
    if is_listed_in(HARMLESS)
        || (BUILTINS.contains(&module)
            && HARMLESS
                .iter()
                .any(|&(m, names)| m == builtin && names.contains(&name)))
        || is_layer(module, name)
    {
        return PickleRisk::Safe;
    }
    // `STACK_GLOBAL` takes names with dots, which lead to attributes: `system` of `os` is
    // `path.os.system` of another module.
    let mut parts = name.split('.');
    let is_below = |listed: &str| {
        let rest = module.strip_prefix(listed);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let is_listed = |&(listed, names): &Names| {
        is_below(listed) && (names.is_empty() || name.split('.').any(|part| names.contains(&part)))
    };
    // A module that another one has imported is an attribute of that one, with an underscore before
    // its name or without.
    let is_module = |part: &str| {
        let part = part.strip_prefix('_').unwrap_or(part);
        IMPORTED_EVERYWHERE.contains(&part)
    };
    let is_dangerous = module == "?"
        || parts.any(|part| DANGEROUS_ANYWHERE.contains(&part) || is_module(part))
        || BUILTINS.contains(&module)
        || DANGEROUS.iter().any(is_listed);
    match is_dangerous {
        true => PickleRisk::Dangerous,
        false => PickleRisk::Suspicious,
    }
}

/// Dangerous modules that many others import, and so have as attributes.
const IMPORTED_EVERYWHERE: &[&str] = &[
    "builtins",
    "ctypes",
    "importlib",
    "nt",
    "os",
    "pickle",
    "posix",
    "pty",
    "runpy",
    "shutil",
    "socket",
    "subprocess",
    "sys",
];

/// Whether a global is a class of torch's own layers, as a whole module that was saved names them.
/// Their states are attributes, which are graded by themselves.
fn is_layer(module: &str, name: &str) -> bool {
    module.starts_with("torch.nn.modules.")
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PickleGlobal;

    #[test]
    fn globals_are_graded() {
        let risk = |module: &str, name: &str| {
            let (module, name) = (module.to_owned(), name.to_owned());
            let allowed = false;
            PickleGlobal { module, name, allowed }.risk()
        };
        for (module, name) in [
            ("os", "system"),
            ("os.path", "join"),
            ("posix", "system"),
            ("builtins", "eval"),
            ("__builtin__", "getattr"),
            ("builtins", "print"),
            ("torch.storage", "_load_from_bytes"),
            ("torch._dynamo.guards", "GuardBuilder.get"),
            ("a.b", "os.system"),
            ("a", "eval"),
            ("?", "x"),
            ("x", "?"),
            ("numpy", "load"),
            ("pipes", "Template"),
            ("_winapi", "CreateProcess"),
            ("_bootsubprocess", "Popen"),
            ("codecs", "open"),
            ("jinja2", "Template"),
            ("torch.serialization", "os.execv"),
            ("collections", "_sys.modules.get"),
            ("a", "B.__init__.__globals__"),
            ("fickling.hook", "remove_hook"),
        ] {
            assert_eq!(risk(module, name), PickleRisk::Dangerous, "{module}.{name}");
        }
        for (module, name) in [
            ("argparse", "Namespace"),
            ("__torch__.model", "Model"),
            ("torch.nn.modules.linear", "F.linear"),
            ("osmium", "x"),
            ("evaluate", "evaluation"),
        ] {
            assert_eq!(risk(module, name), PickleRisk::Suspicious, "{module}.{name}");
        }
        for (module, name) in [
            ("collections", "OrderedDict"),
            ("collections", "defaultdict"),
            ("__builtin__", "long"),
            ("builtins", "int"),
            ("builtins", "len"),
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "scalar"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("_codecs", "encode"),
            ("torch.nn.modules.linear", "Linear"),
        ] {
            assert_eq!(risk(module, name), PickleRisk::Safe, "{module}.{name}");
        }
        assert_eq!(risk("torch._utils", "_rebuild_tensor_v2"), PickleRisk::Safe);
    }
}
