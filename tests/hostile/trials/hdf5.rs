//! HDF5 files that are malformed or hostile, with old groups, and changes of files of h5py.

use crate::common::data;
use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::trials::Trial;

fn n(number: u64, bytes: usize) -> Vec<u8> {
    number.to_le_bytes()[..bytes].to_vec()
}

/// Structures one after another, which refer to each other by addresses.
struct File(Vec<u8>);

impl File {
    /// A superblock of version 0, whose root is set at the end.
    fn new() -> Self {
        let head = [&b"\x89HDF\r\n\x1a\n"[..], &[0, 0, 0, 0, 0, 8, 8, 0, 4, 0, 16, 0, 0, 0, 0, 0]]
            .concat();
        Self([head, vec![0; 72]].concat())
    }

    fn add(&mut self, bytes: &[u8]) -> u64 {
        let at = self.0.len() as u64;
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        at
    }

    fn finish(mut self, root: u64) -> Vec<u8> {
        let len = self.0.len() as u64;
        self.0[40..48].copy_from_slice(&n(len, 8));
        self.0[64..72].copy_from_slice(&n(root, 8));
        self.0
    }

    /// An object header of version 1 with these messages.
    fn object(&mut self, messages: &[(u16, Vec<u8>)]) -> u64 {
        let messages: Vec<u8> = messages
            .iter()
            .flat_map(|(kind, content)| {
                let len = content.len().next_multiple_of(8);
                let padding = vec![0; len - content.len()];
                [n((*kind).into(), 2), n(len as u64, 2), vec![0; 4], content.clone(), padding]
                    .concat()
            })
            .collect();
        let head = [vec![1, 0, 1, 0, 1, 0, 0, 0], n(messages.len() as u64, 4), vec![0; 4]].concat();
        self.add(&[head, messages].concat())
    }

    fn dataset(&mut self, dims: &[u64], layout: Vec<u8>, more: &[(u16, Vec<u8>)]) -> u64 {
        let messages = [&[(1, space(dims)), (3, f32_type()), (8, layout)], more].concat();
        self.object(&messages)
    }

    fn tree(&mut self, kind: u8, level: u8, entries: &[(Vec<u8>, u64)]) -> u64 {
        let head =
            [&b"TREE"[..], &[kind, level], &n(entries.len() as u64, 2), &[0xff; 16]].concat();
        let entries = entries
            .iter()
            .flat_map(|(key, child)| [key.clone(), n(*child, 8)].concat());
        let entries: Vec<u8> = entries.collect();
        self.add(&[head, entries, vec![0; 8]].concat())
    }

    /// A table of links, with places of names and addresses of objects.
    fn table(&mut self, links: &[(u64, u64)]) -> u64 {
        let links: Vec<u8> = links
            .iter()
            .flat_map(|&(name, object)| [n(name, 8), n(object, 8), vec![0; 24]].concat())
            .collect();
        let count = links.len() as u64 / 40;
        self.add(&[&b"SNOD"[..], &[1, 0], &n(count, 2), &links].concat())
    }

    /// A group of a tree of tables, with names that are `a`, `b` and so on at places of 8 bytes.
    fn group(&mut self, tree: u64) -> u64 {
        let names: Vec<u8> = (b'a'..=b'z')
            .flat_map(|name| [name, 0, 0, 0, 0, 0, 0, 0])
            .collect();
        let len = names.len() as u64;
        let names = self.add(&names);
        let heap = self.add(&[&b"HEAP\0\0\0\0"[..], &n(len, 8), &n(1, 8), &n(names, 8)].concat());
        self.object(&[(0x11, [n(tree, 8), n(heap, 8)].concat())])
    }

    /// A root with these objects.
    fn root(mut self, objects: &[u64]) -> Vec<u8> {
        let links: Vec<(u64, u64)> = (0..).map(|i| 8 * i).zip(objects.iter().copied()).collect();
        let table = self.table(&links);
        let tree = self.tree(0, 0, &[(n(0, 8), table)]);
        let root = self.group(tree);
        self.finish(root)
    }
}

fn space(dims: &[u64]) -> Vec<u8> {
    [vec![1, dims.len() as u8, 0, 0, 0, 0, 0, 0], dims.iter().flat_map(|&dim| n(dim, 8)).collect()]
        .concat()
}

fn f32_type() -> Vec<u8> {
    vec![0x11, 0x20, 31, 0, 4, 0, 0, 0, 0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0]
}

fn whole(address: u64, len: u64) -> Vec<u8> {
    [vec![3, 1], n(address, 8), n(len, 8)].concat()
}

fn in_chunks(tree: u64, chunk: &[u64]) -> Vec<u8> {
    let dims: Vec<u8> = chunk
        .iter()
        .chain(&[4])
        .flat_map(|&dim| n(dim, 4))
        .collect();
    [vec![3, 2, chunk.len() as u8 + 1], n(tree, 8), dims].concat()
}

/// A key of a chunk: its length, and its first element.
fn key(len: u64, at: &[u64]) -> Vec<u8> {
    [n(len, 4), n(0, 4), at.iter().chain(&[0]).flat_map(|&at| n(at, 8)).collect()].concat()
}

/// A file of one dataset.
fn one(dims: &[u64], layout: impl Fn(&mut File) -> Vec<u8>, more: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut file = File::new();
    let layout = layout(&mut file);
    let dataset = file.dataset(dims, layout, more);
    file.root(&[dataset])
}

/// A dataset of `dims` in chunks of `chunk`, of which one of 16 bytes is stored for each of `at`.
fn chunked(dims: &[u64], chunk: &[u64], at: &[&[u64]], more: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let layout = |file: &mut File| {
        let data = file.add(&[1; 16]);
        let entries: Vec<_> = at.iter().map(|at| (key(16, at), data)).collect();
        let tree = file.tree(1, 0, &entries);
        in_chunks(tree, chunk)
    };
    one(dims, layout, more)
}

#[test]
fn datasets() {
    let mut trial = Trial::new();
    let stored = |len: usize| {
        move |file: &mut File| {
            let data = file.add(&vec![1; len]);
            whole(data, len as u64)
        }
    };
    let filters = |n: usize| {
        let all = [3, 0, 0, 0, 0, 0, 0, 0].repeat(n);
        (0x0b, [vec![1, n as u8, 0, 0, 0, 0, 0, 0], all].concat())
    };
    // A message whose content lies elsewhere has flag 2.
    let with = |mut bytes: Vec<u8>, find: &[u8], put: &[u8]| {
        let at = bytes.windows(find.len()).position(|window| window == find);
        bytes[at.unwrap()..][..put.len()].copy_from_slice(put);
        bytes
    };
    let twenty: Vec<[u64; 2]> = (0..20).map(|i| [i, 0]).collect();
    let twenty: Vec<&[u64]> = twenty.iter().map(|at| &at[..]).collect();
    let filter = |id: u64| (0x0b, [vec![1, 1, 0, 0, 0, 0, 0, 0], n(id, 2), vec![0; 6]].concat());
    trial.fine(vec![
        ("six numbers", one(&[2, 3], stored(24), &[])),
        ("chunks", chunked(&[2, 4], &[2, 2], &[&[0, 0], &[0, 2]], &[])),
        (
            "an old layout",
            one(
                &[2],
                |file| {
                    let data = file.add(&[1; 8]);
                    [vec![1, 1, 1, 0, 0, 0, 0, 0], n(data, 8), n(2, 4)].concat()
                },
                &[],
            ),
        ),
        (
            "an old layout with the data in it",
            one(
                &[2],
                |_| [vec![2, 1, 0, 0, 0, 0, 0, 0], n(2, 4), n(8, 4), vec![1; 8]].concat(),
                &[],
            ),
        ),
        ("a chunk that is missing", chunked(&[2, 4], &[2, 2], &[&[0, 2]], &[])),
        ("chunks outside", chunked(&[2, 2], &[2, 2], &[&[0, 0], &[2, 2]], &[])),
        ("behind a block of the user", [vec![b'x'; 512], one(&[2], stored(8), &[])].concat()),
    ]);
    trial.refused(vec![
        ("fewer bytes than numbers", one(&[2, 3], stored(20), &[]), Parse, &["`a`", "24 bytes"]),
        ("sizes that overflow", one(&[1 << 40, 1 << 40], stored(24), &[]), Parse, &["overflow"]),
        ("zero times 2^126", one(&[0, 1 << 63, 1 << 63], stored(24), &[]), Parse, &["overflow"]),
        ("33 dimensions", one(&[1; 33], stored(4), &[]), Limit, &["dimensions"]),
        (
            "data outside of the file",
            one(&[2], |_| whole(1 << 40, 8), &[]),
            Parse,
            &["not in the file"],
        ),
        (
            "data at the end of numbers",
            one(&[2], |_| whole(u64::MAX - 8, 8), &[]),
            Parse,
            &["not in the file"],
        ),
        (
            "2^40 numbers that were never written",
            one(&[1 << 40], |_| whole(u64::MAX, 0), &[]),
            Limit,
            &["max_decompressed_bytes"],
        ),
        (
            "2^40 numbers in chunks",
            chunked(&[1 << 40], &[4], &[&[0]], &[]),
            Limit,
            &["max_decompressed_bytes"],
        ),
        ("a chunk twice", chunked(&[2, 4], &[2, 2], &[&[0, 0], &[0, 0]], &[]), Parse, &["twice"]),
        (
            "a chunk of 4 GiB",
            chunked(&[1 << 30], &[1 << 30], &[&[0]], &[]),
            Limit,
            &["MAX_HDF5_CHUNK"],
        ),
        ("a chunk of other sizes", chunked(&[4], &[5], &[&[0]], &[]), Parse, &["fewer bytes"]),
        ("a number alone in chunks", chunked(&[], &[], &[&[]], &[]), Parse, &["do not fit"]),
        ("a chunk between two", chunked(&[8], &[4], &[&[2]], &[]), Parse, &["inside of another"]),
        (
            "chunks that are far larger than the dataset",
            chunked(&[20, 1], &[1, 1 << 24], &twenty, &[filter(1)]),
            Limit,
            &["max_decompressed_bytes"],
        ),
        (
            "one chunk of two",
            one(
                &[8],
                |file| {
                    let data = file.add(&[1; 16]);
                    [vec![4, 2, 0, 2, 1, 4, 4, 1], n(data, 8)].concat()
                },
                &[],
            ),
            Parse,
            &["single chunk"],
        ),
        ("33 filters", chunked(&[4], &[4], &[&[0]], &[filters(33)]), Limit, &["MAX_HDF5_FILTERS"]),
        (
            "filters that lie elsewhere",
            with(
                chunked(&[4], &[4], &[&[0]], &[filter(3)]),
                &[0x0b, 0, 16, 0, 0],
                &[0x0b, 0, 16, 0, 2],
            ),
            Parse,
            &["object header"],
        ),
        (
            "floats that store the first bit of the mantissa",
            with(one(&[2], stored(8), &[]), &[0x11, 0x20, 31], &[0x11, 0, 31]),
            Unsupported,
            &["another format"],
        ),
        ("chunks of no elements", chunked(&[4], &[0], &[&[0]], &[]), Parse, &["do not fit"]),
        (
            "chunks of two dimensions",
            chunked(&[4], &[2, 2], &[&[0, 0]], &[]),
            Parse,
            &["do not fit"],
        ),
        (
            "data that is not compressed",
            chunked(&[4], &[4], &[&[0]], &[filter(1)]),
            Parse,
            &["compressed as it should be"],
        ),
        (
            "a checksum that is wrong",
            chunked(&[3], &[3], &[&[0]], &[filter(3)]),
            Parse,
            &["checksum"],
        ),
        ("Blosc", chunked(&[4], &[4], &[&[0]], &[filter(32001)]), Unsupported, &["Blosc"]),
        (
            "an unknown filter",
            chunked(&[4], &[4], &[&[0]], &[filter(9)]),
            Unsupported,
            &["filter 9"],
        ),
        (
            "data in other files",
            one(&[2], stored(8), &[(7, vec![1; 16])]),
            Unsupported,
            &["other files"],
        ),
        (
            "a layout of version 6",
            one(&[2], |_| vec![6, 1, 1, 0, 0, 0, 0, 0], &[]),
            Unsupported,
            &["version 6"],
        ),
        (
            "a fill value of two bytes",
            chunked(&[4], &[4], &[&[0]], &[(4, [n(2, 4), vec![1, 1]].concat())]),
            Parse,
            &["fill value"],
        ),
    ]);
    trial.end();
}

/// Structures that refer to each other in circles, or many times.
#[test]
fn structures() {
    let mut trial = Trial::new();
    // Thirty levels of nodes with two children, which are one.
    let mut file = File::new();
    let data = file.add(&[1; 8]);
    let dataset = file.dataset(&[2], whole(data, 8), &[]);
    let table = file.table(&[(0, dataset)]);
    let mut node = file.tree(0, 0, &[(n(0, 8), table), (n(0, 8), table)]);
    for level in 1..30 {
        node = file.tree(0, level, &[(n(0, 8), node), (n(0, 8), node)]);
    }
    let root = file.group(node);
    trial.refused(vec![("2^30 tables", file.finish(root), Limit, &["MAX_HDF5_WORK"])]);
    // A node that is its own child.
    let mut file = File::new();
    let at = file.0.len() as u64;
    let node = file.tree(0, 5, &[(n(0, 8), at)]);
    let root = file.group(node);
    trial.refused(vec![("a node in itself", file.finish(root), Parse, &["another tree"])]);
    // A header that goes on in itself.
    let mut file = File::new();
    let at = file.0.len() as u64;
    let root = file.object(&[(0x10, [n(at + 16, 8), n(24, 8)].concat())]);
    trial.refused(vec![("a header in itself", file.finish(root), Limit, &["MAX_HDF5"])]);
    // A group in itself, and groups below each other.
    let mut file = File::new();
    let data = file.add(&[1; 8]);
    let dataset = file.dataset(&[2], whole(data, 8), &[]);
    let mut below = dataset;
    for _ in 0..3000 {
        let table = file.table(&[(0, below)]);
        let tree = file.tree(0, 0, &[(n(0, 8), table)]);
        below = file.group(tree);
    }
    trial.refused(vec![("3000 groups", file.finish(below), Limit, &["MAX_HDF5_PATH"])]);
    // One dataset by many names.
    let mut file = File::new();
    let data = file.add(&[1; 8]);
    let dataset = file.dataset(&[2], whole(data, 8), &[]);
    let table = file.table(&vec![(0, dataset); 60_000]);
    let tables: Vec<_> = (0..1000).map(|_| (n(0, 8), table)).collect();
    let tree = file.tree(0, 0, &tables);
    let root = file.group(tree);
    trial.refused(vec![("60 million links", file.finish(root), Limit, &["MAX"])]);
    let mut file = File::new();
    let data = file.add(&[1; 1 << 16]);
    let dataset = file.dataset(&[1 << 14], whole(data, 1 << 16), &[]);
    let table = file.table(&[(0, dataset); 600]);
    let names = |mut file: File, table: u64, times: usize, names: Vec<u8>| {
        let tree = file.tree(0, 0, &vec![(n(0, 8), table); times]);
        let names_at = file.add(&names);
        let len = n(names.len() as u64, 8);
        let heap = file.add(&[&b"HEAP\0\0\0\0"[..], &len, &n(1, 8), &n(names_at, 8)].concat());
        let root = file.object(&[(0x11, [n(tree, 8), n(heap, 8)].concat())]);
        file.finish(root)
    };
    let long = |len: usize| [vec![b'a'; len], vec![0]].concat();
    let copy = || File(file.0.clone());
    let mut many = copy();
    let links: Vec<_> = (0..600).map(|i| (8 * i, dataset)).collect();
    let of_many = many.table(&links);
    let all: String = (0..600).map(|i| format!("{i:07}\0")).collect();
    trial.refused(vec![
        ("a name of 5000 bytes", names(copy(), table, 1, long(5000)), Parse, &["4096"]),
        ("24 000 links of a long name", names(copy(), table, 40, long(4000)), Limit, &["WORK"]),
        (
            "600 names of one dataset",
            names(many, of_many, 1, all.into()),
            Limit,
            &["MAX_HDF5_DATA"],
        ),
    ]);
    trial.refused(vec![("records of a byte", records_of_a_byte(), Limit, &["MAX_HDF5_WORK"])]);
    let lost = |bytes: Vec<u8>| [vec![0u8; 3], bytes].concat();
    let file = File::new();
    let empty = file.finish(1 << 50);
    trial.refused(vec![
        ("a root outside of the file", empty.clone(), Parse, &["not in the file"]),
        ("a superblock at byte 3", lost(empty), Parse, &[]),
    ]);
    trial.end();
}

/// A group whose names are in a tree with records of a byte, of which many nodes are one.
fn records_of_a_byte() -> Vec<u8> {
    let mut file = File::new();
    let (records, children) = (60_000u64, 3000u64);
    let leaf = file.add(&[&b"BTLF\0\x05"[..], &vec![0; records as usize + 4]].concat());
    let pointers = [n(leaf, 8), n(records, 2)]
        .concat()
        .repeat(children as usize + 1);
    let node = [&b"BTIN\0\x05"[..], &vec![0; children as usize], &pointers, &[0; 4]].concat();
    let node = file.add(&node);
    let sizes = [n(records + 200, 4), n(1, 2), n(1, 2), n(0, 2)].concat();
    let root = [n(node, 8), n(children, 2), n(1 << 28, 8), n(0, 4)].concat();
    let tree = file.add(&[&b"BTHD\0\x05"[..], &sizes, &root].concat());
    let sizes = [n(4, 2), n(512, 8), n(1 << 16, 8), n(32, 2), n(1, 2)].concat();
    let root = [n(leaf, 8), n(0, 2), n(0, 4)].concat();
    let head = [&b"FRHP\0\x07\0\0\0\0"[..], &n(4096, 4), &[0; 96]].concat();
    let heap = file.add(&[head, sizes, root].concat());
    let root = file.object(&[(2, [vec![0, 0], n(heap, 8), n(tree, 8)].concat())]);
    file.finish(root)
}

#[test]
fn files() {
    let mut trial = Trial::new();
    let read = |name: &str| std::fs::read(data().join("hdf5").join(name)).unwrap();
    trial.truncations("data in headers", &read("compact_latest.h5"));
    let names = [
        "compact_latest.h5",
        "links_3_latest.h5",
        "ordered.h5",
        "links_3_earliest.h5",
        "tables.h5",
    ];
    trial.mutations(&names.map(read), 14);
    trial.end();
}

/// Models that Keras has quantized, whose configs and indexes of blocks are read.
#[test]
fn layers_of_keras() {
    let mut trial = Trial::new();
    let names = ["int4_blocks_attention_whole", "int8_attention_whole", "int8_whole"];
    let files = names.map(|name| {
        let case = data().join("keras_quantized").join(name);
        std::fs::read(case.join("model.h5")).unwrap()
    });
    trial.mutations(&files, 41);
    trial.end();
}
