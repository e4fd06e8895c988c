//! FlatBuffers that are written field by field, so that each can be wrong.

/// A field of a table.
#[derive(Clone)]
pub enum Field {
    Number(Vec<u8>),
    /// The elements of a vector, and how many they are.
    Vector(u32, Vec<u8>),
    Table(Vec<(u16, Field)>),
    /// Tables of a vector, each so many times.
    Tables(Vec<(Table, usize)>),
}

pub type Table = Vec<(u16, Field)>;

pub fn byte(n: u8) -> Field {
    Field::Number(vec![n])
}

pub fn int(n: i32) -> Field {
    Field::Number(n.to_le_bytes().to_vec())
}

pub fn ints(numbers: &[i32]) -> Field {
    Field::Vector(numbers.len() as u32, numbers.iter().flat_map(|n| n.to_le_bytes()).collect())
}

pub fn floats(numbers: &[f32]) -> Field {
    Field::Vector(numbers.len() as u32, numbers.iter().flat_map(|n| n.to_le_bytes()).collect())
}

pub fn text(text: &str) -> Field {
    Field::Vector(text.len() as u32, text.as_bytes().to_vec())
}

pub fn tables(tables: Vec<Table>) -> Field {
    Field::Tables(tables.into_iter().map(|table| (table, 1)).collect())
}

/// Writes a table, and behind it what its fields lead to. Returns where it begins.
fn write(out: &mut Vec<u8>, table: &[(u16, Field)]) -> usize {
    let fields = table.iter().map(|(id, _)| id + 1).max().unwrap_or(0);
    let size = |field: &Field| match field {
        Field::Number(bytes) => bytes.len(),
        _ => 4,
    };
    let mut offsets = vec![0u16; fields.into()];
    let mut len = 4;
    for (id, field) in table {
        offsets[usize::from(*id)] = len as u16;
        len += size(field);
    }
    let offsets_at = out.len();
    out.extend((4 + 2 * fields).to_le_bytes());
    out.extend((len as u16).to_le_bytes());
    offsets
        .iter()
        .for_each(|offset| out.extend(offset.to_le_bytes()));
    let at = out.len();
    out.extend(((at - offsets_at) as i32).to_le_bytes());
    out.resize(at + len, 0);
    for (id, field) in table {
        let place = at + usize::from(offsets[usize::from(*id)]);
        let target = match field {
            Field::Number(bytes) => {
                out[place..place + bytes.len()].copy_from_slice(bytes);
                continue;
            }
            Field::Table(table) => write(out, table),
            Field::Vector(n, bytes) => {
                let target = out.len();
                out.extend(n.to_le_bytes());
                out.extend(bytes);
                target
            }
            Field::Tables(rows) => write_tables(out, rows),
        };
        let offset = (target - place) as u32;
        out[place..place + 4].copy_from_slice(&offset.to_le_bytes());
    }
    at
}

fn write_tables(out: &mut Vec<u8>, rows: &[(Table, usize)]) -> usize {
    let target = out.len();
    let n: usize = rows.iter().map(|(_, n)| n).sum();
    out.extend((n as u32).to_le_bytes());
    let mut place = out.len();
    out.resize(place + 4 * n, 0);
    for (row, times) in rows {
        let at = write(out, row);
        for _ in 0..*times {
            let offset = (at - place) as u32;
            out[place..place + 4].copy_from_slice(&offset.to_le_bytes());
            place += 4;
        }
    }
    target
}

/// A vector of numbers of 64 bits.
pub fn numbers(numbers: &[u64]) -> Field {
    Field::Vector(numbers.len() as u32, numbers.iter().flat_map(|n| n.to_le_bytes()).collect())
}

/// A FlatBuffer with the mark `mark`, and `gap` bytes before its tables.
pub fn file(mark: &[u8; 4], gap: usize, root: &[(u16, Field)]) -> Vec<u8> {
    let mut out = [&[0; 4], &mark[..]].concat();
    out.resize(8 + gap, 0);
    let root = write(&mut out, root);
    out[..4].copy_from_slice(&(root as u32).to_le_bytes());
    out
}
