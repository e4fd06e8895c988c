//! Which names a tensor probably has of which a stored one is a part, before schemes have been asked.

/// Endings of the names of companions, and of codes, behind the name of a parameter.
const ENDINGS: &[&str] = &[
    "_blocks",
    "_scales",
    "_scale",
    "_scale_inv",
    "_scale_2",
    "_bias",
    "_packed",
    "_shape",
    "_zero_point",
];

/// The names that the tensor probably has that the stored tensor `name` is, or is a part of.
pub(in crate::convert) fn likely_names(name: &str) -> Vec<String> {
    let mut names = vec![name.to_owned()];
    if let Some((weight, _)) = name.split_once(".weight.") {
        names.push(format!("{weight}.weight"));
    }
    let (module, last) = name
        .rsplit_once('.')
        .map_or(("", name), |(module, last)| (module, last));
    let is_stacked = last.starts_with("gate_up_proj") || last.starts_with("down_proj");
    if !is_stacked && last != "bias" {
        names.push(match module {
            "" => "weight".to_owned(),
            module => format!("{module}.weight"),
        });
    }
    let stems = ENDINGS
        .iter()
        .filter_map(|ending| name.strip_suffix(ending));
    names.extend(stems.map(str::to_owned));
    names
}

/// All names that such a tensor may have.
pub(in crate::convert) fn possible_names(name: &str) -> Vec<String> {
    let mut names = likely_names(name);
    if let Some((module, last)) = name.rsplit_once('.') {
        names.push(module.to_owned());
        let ends = last.match_indices('_').map(|(at, _)| &last[..at]);
        names.extend(ends.map(|stem| format!("{module}.{stem}")));
    }
    names
}
