//! Names of files that no output gets from its input.
//!
//! Programs run or obey what they find in a directory when somebody merely enters, opens or lists
//! it: git runs commands of `.git/config`, direnv `.envrc`, editors the tasks of `.vscode`. A model
//! needs none of these files, so each way by which files of a model come into an output asks
//! [`why_unwritten`].

/// Why a file or directory of this name, which has no `/`, is in no output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unwritten {
    /// Programs run or obey it where they find it.
    Obeyed,
    /// A conversion marks its own files so.
    Marker,
    /// Longer than file systems allow.
    TooLong,
}

impl Unwritten {
    /// What a note says of the file.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Obeyed => "programs run or obey what has such a name where they find it",
            Self::Marker => "this program names its own unfinished files so",
            Self::TooLong => "its name is longer than file systems allow",
        }
    }
}

/// Longest name in the usual file systems, in bytes.
const LONGEST_NAME: usize = 255;

/// What conversions call their own files: the mark of an unfinished directory, and what the names of
/// its records begin with.
pub(crate) const MARKER_FILE: &str = ".anamnesis";
pub(crate) const RECORD_PREFIX: &str = "anamnesis-part-";

/// Ending of files and directories that are being made.
const PARTIAL_ENDING: &str = ".partial";

/// Names without a dot at their beginning that programs run or obey: compiled Python, which is run in
/// place of the source beside it; directories of CVS and Darcs; what Vim and mise read in the current
/// directory; what Windows does with a folder or drive that is opened.
const OBEYED: &[&str] = &[
    "__pycache__",
    "cvs",
    "_darcs",
    "_vimrc",
    "_gvimrc",
    "_exrc",
    "mise.toml",
    "mise.local.toml",
    "desktop.ini",
    "autorun.inf",
];

/// Files, not directories, that programs obey: git takes a directory that has `HEAD` (beside `refs`
/// and `objects`, which `commondir` moves elsewhere) for a repository, and runs commands of the file
/// `config` in it.
const OBEYED_FILES: &[&str] = &["head", "commondir"];

/// Endings of files by which Explorer reads further files, also from other computers, when it lists
/// a folder.
const OBEYED_ENDINGS: &[&str] = &[".lnk", ".scf", ".url", ".library-ms", ".search-ms"];

/// Hidden names that are usual beside a model, and that nobody misses in an output.
const USUAL: &[&str] =
    &[".git", ".gitattributes", ".gitignore", ".cache", ".ds_store", "__pycache__"];

/// Why the file or directory `path`, a path below a model's directory, is in no output; `None` if it
/// is. Parts of the path are directories, and `is_directory` says whether the last one is, too.
pub(crate) fn why_unwritten(path: &str, is_directory: bool) -> Option<Unwritten> {
    let parts: Vec<&str> = path.split(['/', '\\']).collect();
    let last = parts.len() - 1;
    let of_part = |(i, part): (usize, &&str)| why_unwritten_name(part, i < last || is_directory);
    parts.iter().enumerate().find_map(of_part)
}

/// Whether nobody misses what has this name, so that it is left out without a note.
pub(crate) fn is_usual(name: &str) -> bool {
    USUAL.contains(&folded(name).as_str())
}

fn why_unwritten_name(name: &str, is_directory: bool) -> Option<Unwritten> {
    if name.len() > LONGEST_NAME {
        return Some(Unwritten::TooLong);
    }
    let name = folded(name);
    let is_marker = name.starts_with(MARKER_FILE)
        || name.starts_with(RECORD_PREFIX)
        || name.ends_with(PARTIAL_ENDING);
    if is_marker {
        return Some(Unwritten::Marker);
    }
    let is_obeyed = name.starts_with('.')
        || is_short_name(&name)
        || OBEYED.contains(&name.as_str())
        || !is_directory
            && (OBEYED_FILES.contains(&name.as_str())
                || OBEYED_ENDINGS.iter().any(|ending| name.ends_with(ending)));
    is_obeyed.then_some(Unwritten::Obeyed)
}

/// The name under which the most lenient file systems find a file: those of macOS ignore case and
/// some characters that are not shown, Windows ignores case, dots and spaces at the end, and all
/// behind a colon, which names a stream of the file. Git compares names of `.git` so (`path.c`
/// `is_ntfs_dotgit`, `utf8.c` `is_hfs_dotgit`).
pub(crate) fn folded(name: &str) -> String {
    let is_ignored = |c: &char| {
        matches!(
            c,
            '\u{200c}'..='\u{200f}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{ad}'
        )
    };
    let name: String = name.chars().filter(|c| !is_ignored(c)).collect();
    let name = name.split(':').next().unwrap_or_default();
    let name = name.trim_end_matches(['.', ' ']);
    // Upper case first: some letters have one upper case and several lower ones (`ſ`, `s`).
    name.to_uppercase().to_lowercase()
}

/// Whether a name is one that Windows gives to files of longer names, such as `git~1` to `.git`: it
/// may stand for any.
fn is_short_name(name: &str) -> bool {
    let (stem, ending) = name.split_once('.').unwrap_or((name, ""));
    let Some((start, number)) = stem.rsplit_once('~') else {
        return false;
    };
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    is_number && !start.is_empty() && stem.chars().count() <= 8 && ending.chars().count() <= 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_programs_obey() {
        for path in [
            ".git",
            ".git/config",
            ".GIT/config",
            "a/.Git/hooks/post-checkout",
            "GIT~1/config",
            "git~2",
            "gi7eba~1",
            ".git./config",
            ".git /config",
            ".git . ./config",
            ".git::$INDEX_ALLOCATION/config",
            ".git:x",
            ".g\u{200c}it/config",
            "\u{feff}.git/config",
            ".gi\u{202e}t",
            "\u{2060}.envrc",
            "a\\.git\\config",
            ".gitmodules",
            ".gitattributes",
            ".hg/hgrc",
            ".svn/wc.db",
            ".jj/repo",
            ".bzr/branch",
            "CVS/Root",
            "_darcs/prefs",
            "HEAD",
            "head",
            "sub/HEAD",
            "commondir",
            ".ssh/authorized_keys",
            ".ſſh/config",
            ".envrc",
            ".env",
            ".vscode/tasks.json",
            ".VSCode",
            ".idea/workspace.xml",
            ".devcontainer.json",
            ".dir-locals.el",
            ".exrc",
            "_exrc",
            ".gdbinit",
            ".cargo/config.toml",
            ".mise.toml",
            "mise.toml",
            ".bashrc",
            ".npmrc",
            ".netrc",
            ".claude/settings.json",
            ".cache",
            "__pycache__/modeling.cpython-312.pyc",
            "__PYCACHE__",
            "Desktop.ini",
            "autorun.inf",
            "readme.lnk",
        ] {
            let found = why_unwritten(path, false);
            assert_eq!(found, Some(Unwritten::Obeyed), "{path}");
        }
        for path in [
            ".anamnesis",
            ".Anamnesis",
            ".anamnesis-mode",
            "sub/.anamnesis",
            "anamnesis-part-1-of-2.json",
            "Anamnesis-part-1-of-1.json",
            "model.safetensors.partial",
            "x.PARTIAL",
            "x.partial.",
        ] {
            let found = why_unwritten(path, false);
            assert_eq!(found, Some(Unwritten::Marker), "{path}");
        }
        let long = "x".repeat(256);
        for path in [long.clone(), format!("a/{long}/b"), format!("{long}.json")] {
            assert_eq!(why_unwritten(&path, false), Some(Unwritten::TooLong));
        }
    }

    #[test]
    fn files_of_models() {
        for path in [
            "config.json",
            "tokenizer.json",
            "1_Pooling/config.json",
            "additional_chat_templates/rag.jinja",
            "modeling_x.py",
            "README.md",
            "LICENSE",
            "git",
            "gitconfig",
            "x.git",
            "head.json",
            "heads/a.json",
            "config~.json",
            "a-long-name~1",
            "notes~one.txt",
            "a..b",
            "模型.json",
            "partial",
            "anamnesis.md",
        ] {
            assert_eq!(why_unwritten(path, false), None, "{path}");
        }
        assert_eq!(why_unwritten("head", true), None);
        assert_eq!(why_unwritten("head/config.json", false), None);
        assert_eq!(why_unwritten(&"x".repeat(255), false), None);
    }
}
