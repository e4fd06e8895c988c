//! Names of the files of a directory of arrays: each is called as its tensor is.

/// Ending of the files.
const ENDING: &str = ".npy";

/// Marks that stand in names of files as they are. All others but letters and digits are written as `%` and the two hexadecimal digits
/// of each of their bytes: some systems have no file of such a name, or take it for a path.
#[cfg(feature = "npz")]
const PLAIN: &str = "_-.+=,@()[] ";

/// The name of the file with the tensor `name`.
#[cfg(feature = "npz")]
pub(crate) fn array_file(name: &str) -> String {
    let mut file = String::with_capacity(name.len() + ENDING.len());
    for (at, c) in name.char_indices() {
        // A dot at the beginning hides a file.
        let is_plain = c.is_alphanumeric() || PLAIN.contains(c) && (at > 0 || c != '.');
        match is_plain {
            true => file.push(c),
            false => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    file.push('%');
                    for digit in [byte >> 4, byte & 15] {
                        file.extend(char::from_digit(digit.into(), 16));
                    }
                }
            }
        }
    }
    file.push_str(ENDING);
    file
}

/// The name of the tensor in the file `file`; `None` if the file is not called as an array. A `%` that no digits follow stands for
/// itself.
pub(crate) fn tensor_of_file(file: &str) -> Option<String> {
    let stem = file.strip_suffix(ENDING)?;
    let (mut name, mut rest) = (Vec::with_capacity(stem.len()), stem.as_bytes());
    while let [first, after @ ..] = rest {
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        match (*first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                name.push((high << 4 | low) as u8);
                rest = &after[2..];
            }
            _ => {
                name.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(name).ok()
}

#[cfg(all(test, feature = "npz"))]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for (name, file) in [
            ("model.layers.0.weight", "model.layers.0.weight.npy"),
            ("a/b\\c:d", "a%2fb%5cc%3ad.npy"),
            (".a", "%2ea.npy"),
            ("50%", "50%25.npy"),
            ("gewicht_ä~1", "gewicht_ä%7e1.npy"),
            ("a\u{200d}b", "a%e2%80%8db.npy"),
        ] {
            assert_eq!(array_file(name), file);
            assert_eq!(tensor_of_file(file).as_deref(), Some(name));
        }
        assert_eq!(tensor_of_file("5%.npy").as_deref(), Some("5%"));
        assert_eq!(tensor_of_file("%ff.npy"), None);
        assert_eq!(tensor_of_file("a.npz"), None);
    }
}
