//! What a global could do to somebody who unpickles a file with Python. This crate itself calls
//! none.
//!
//! The table has what is known to run code, to open files or connections, or to import by name.
//! Sources: picklescan
//! <https://github.com/mmaitre314/picklescan/blob/f15d54da3dec9aa28a87ede82f87882bb80f1023/src/picklescan/scanner.py#L122>,
//! fickling
//! <https://github.com/trailofbits/fickling/blob/608c181d06300b09bc25c846d9ef974fda5cf8a9/fickling/fickle.py>.

use super::PickleGlobal;

/// What a global could do to somebody who unpickles a file with Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PickleRisk {
    /// Nothing: it is one of those that torch allows with `weights_only=True`.
    Safe,
    /// Unknown. Most are classes of training programs, such as `argparse.Namespace`; any could run
    /// code.
    Suspicious,
    /// It runs code, opens files or connections, or imports by name.
    Dangerous,
}

/// Modules with their dangerous names; all names, and those of modules below, if there is no list.
const DANGEROUS: &[(&str, &[&str])] = &[
    ("_aix_support", &[]),
    ("_ctypes", &[]),
    ("_io", &["FileIO", "open", "open_code"]),
    ("_osx_support", &[]),
    ("_pickle", &[]),
    ("_posixsubprocess", &[]),
    ("_pyrepl", &[]),
    ("_socket", &[]),
    ("_thread", &[]),
    ("aiohttp", &[]),
    ("asyncio", &[]),
    ("bdb", &[]),
    ("cProfile", &[]),
    (
        "cloudpickle",
        &[
            "_builtin_type",
            "_function_setstate",
            "_make_cell",
            "_make_empty_cell",
            "_make_function",
            "load",
            "loads",
            "subimport",
        ],
    ),
    ("code", &[]),
    ("codeop", &[]),
    ("commands", &[]),
    ("concurrent", &[]),
    ("ctypes", &[]),
    ("dill", &[]),
    ("distutils", &[]),
    ("doctest", &["debug_script", "debug_src", "testsource"]),
    ("ensurepip", &[]),
    ("ftplib", &[]),
    ("functools", &["partial", "partialmethod", "reduce"]),
    ("http", &[]),
    ("httplib", &[]),
    ("httpx", &[]),
    ("idlelib", &[]),
    ("imaplib", &[]),
    ("imp", &[]),
    ("importlib", &[]),
    ("io", &["FileIO", "open", "open_code"]),
    ("joblib", &["load"]),
    ("lib2to3", &[]),
    ("logging", &["FileHandler", "config"]),
    ("marshal", &[]),
    ("multiprocessing", &[]),
    ("nt", &[]),
    (
        "numpy",
        &["load", "fromfile", "loadtxt", "genfromtxt", "memmap"],
    ),
    ("numpy.ctypeslib", &[]),
    ("numpy.distutils", &[]),
    ("numpy.f2py", &[]),
    ("numpy.testing", &[]),
    ("operator", &["attrgetter", "itemgetter", "methodcaller"]),
    ("_operator", &["attrgetter", "itemgetter", "methodcaller"]),
    ("os", &[]),
    ("pandas", &["read_pickle", "eval"]),
    ("pathlib", &[]),
    ("pdb", &[]),
    ("pickle", &[]),
    ("cPickle", &[]),
    ("pip", &[]),
    ("pkgutil", &[]),
    ("platform", &["popen"]),
    ("popen2", &[]),
    ("posix", &[]),
    ("profile", &[]),
    ("pty", &[]),
    ("pydoc", &[]),
    ("requests", &[]),
    ("runpy", &[]),
    ("setuptools", &[]),
    ("shelve", &[]),
    ("shutil", &[]),
    ("signal", &[]),
    ("smtplib", &[]),
    ("socket", &[]),
    ("sqlite3", &[]),
    ("ssl", &[]),
    ("subprocess", &[]),
    ("sys", &[]),
    ("telnetlib", &[]),
    ("tempfile", &[]),
    ("test", &[]),
    ("threading", &[]),
    ("timeit", &[]),
    ("torch", &["load", "compile"]),
    ("torch._dynamo", &[]),
    ("torch._inductor", &[]),
    ("torch.fx.experimental.symbolic_shapes", &[]),
    ("torch.hub", &[]),
    ("torch.jit", &["load", "unsupported_tensor_ops"]),
    ("torch.package", &[]),
    ("torch.serialization", &["load"]),
    ("torch.storage", &["_load_from_bytes"]),
    ("torch.utils._config_module", &[]),
    ("torch.utils.bottleneck", &[]),
    ("torch.utils.collect_env", &[]),
    ("torch.utils.cpp_extension", &[]),
    ("torch.utils.data.datapipes", &[]),
    ("trace", &[]),
    ("types", &["CodeType", "FunctionType", "LambdaType"]),
    ("urllib", &[]),
    ("urllib2", &[]),
    ("uuid", &[]),
    ("venv", &[]),
    ("webbrowser", &[]),
    ("zipimport", &[]),
];

/// Names of `builtins` that cannot run code: types, and functions of values.
const HARMLESS_BUILTINS: &[&str] = &[
    "Ellipsis",
    "NotImplemented",
    "bool",
    "bytearray",
    "bytes",
    "complex",
    "dict",
    "float",
    "frozenset",
    "int",
    "list",
    "long",
    "object",
    "range",
    "set",
    "slice",
    "str",
    "tuple",
    "unicode",
    "xrange",
];

/// Names that run code or import in whatever module they are: a module can have them from another
/// one.
const DANGEROUS_ANYWHERE: &[&str] = &[
    "eval",
    "exec",
    "execfile",
    "system",
    "popen",
    "__import__",
    "?",
];

/// What the global `name` of `module` could do, if it is not on the allow-list.
pub(super) fn risk_of(module: &str, name: &str) -> PickleRisk {
    let is_builtin = matches!(module, "builtins" | "__builtin__" | "__builtins__");
    // `STACK_GLOBAL` takes names with dots, which lead to attributes: `system` of `os` is
    // `path.os.system` of another module.
    let mut parts = name.split('.');
    let is_below = |listed: &str| {
        let rest = module.strip_prefix(listed);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let is_listed = |&(listed, names): &(&str, &[&str])| {
        is_below(listed) && (names.is_empty() || name.split('.').any(|part| names.contains(&part)))
    };
    let is_dangerous = module == "?"
        || parts.any(|part| DANGEROUS_ANYWHERE.contains(&part))
        || (is_builtin && !HARMLESS_BUILTINS.contains(&name))
        || DANGEROUS.iter().any(is_listed);
    match is_dangerous {
        true => PickleRisk::Dangerous,
        false => PickleRisk::Suspicious,
    }
}

impl PickleGlobal {
    /// What the global could do to somebody who unpickles the file with Python.
    #[must_use]
    pub fn risk(&self) -> PickleRisk {
        match super::globals::Global::find(&self.module, &self.name) {
            Some(_) => PickleRisk::Safe,
            None => risk_of(&self.module, &self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globals_are_graded() {
        let risk = |module: &str, name: &str| {
            let (module, name) = (module.to_owned(), name.to_owned());
            let allowed = false;
            PickleGlobal {
                module,
                name,
                allowed,
            }
            .risk()
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
        ] {
            assert_eq!(risk(module, name), PickleRisk::Dangerous, "{module}.{name}");
        }
        for (module, name) in [
            ("argparse", "Namespace"),
            ("numpy.core.multiarray", "scalar"),
            ("numpy", "dtype"),
            ("__torch__.model", "Model"),
            ("builtins", "int"),
            ("osmium", "x"),
            ("evaluate", "evaluation"),
        ] {
            assert_eq!(
                risk(module, name),
                PickleRisk::Suspicious,
                "{module}.{name}"
            );
        }
        assert_eq!(risk("collections", "OrderedDict"), PickleRisk::Safe);
        assert_eq!(risk("torch._utils", "_rebuild_tensor_v2"), PickleRisk::Safe);
    }
}
