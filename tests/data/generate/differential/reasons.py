"""Why this crate and another library may say different things of one file: the list that every difference must be on.

Each class of differences is `what the library says | what this crate says`, where a side that accepts says `read`.
"""

# Loud refusals of archives that two readers may see differently, and of what no writer makes.
ARCHIVES = [
    (r"^read \| .*ZIP archive: (its directory is not where|it does not end in)", "bytes before or behind an archive, or a comment that lies: readers find other directories there"),
    (r"^read \| .*ZIP archive: (it has two end records|its two end records|its N-bit end record)", "end records that contradict each other: readers differ in which counts"),
    (r"^read \| .*ZIP archive: (it is in several parts|`…`: it is on another disk)", "numbers of disks: an archive in parts is no whole"),
    (r"^read \| .*(is in it twice|is in the archive with and without|it has two roots)", "two members of one name, also but for case or `.npy`: readers differ in which counts"),
    (r"^read \| .*the local header of", "a local header that says something else than the directory"),
    (r"^read \| .*(its two sizes differ|its N-bit sizes|overlaps what follows|reaches into what|its directory (is truncated|has)|cannot become as long)",
     "sizes that contradict each other, or members that overlap"),
    (r"^read \| .*(has another name in an extra field|its name has a NUL|name is not UTF-N|Extra field content truncated|duplicate)", "a second name, or one that readers end or decode in different ways"),
    (r"^read \| .*(deflate stream|compressed member is (longer|shorter)|wrong length or checksum|has the wrong checksum|its header is longer)",
     "data behind the last block of a stream, or a checksum that the library does not compare"),
    (r"^read \| Unsupported: .*member `…`", "encryption or methods of compression, of members that the library does not read either, or that no writer of models uses"),
    (r"^NotImplementedError: zip file version", "the version that a member needs is not compared; its flags and its method are"),
    (r"^BadZipFile: Corrupt extra field", "a 64-bit field that is longer than the entry: the sizes in it are there"),
    (r"^BadZipFile: (Bad CRC|Truncated)|^(EOFError|error|ValueError: a member that is no array)", "a member that is no array is not read"),
]

# Headers of arrays.
ARRAYS = [
    (r"^read \| .*bytes of data where its header says", "data behind an array, which the library leaves unread: part of a file is no model"),
    (r"^read \| .*NPY header: (there is no type|its descr is no type)", "names of types that NumPy understands and never writes; some depend on the platform"),
    (r"^read \| .*NPY header: it has a key (twice|besides)", "a key twice, of which Python takes the last, or written as `\\N{…}`"),
    (r"^read \| .*NPY header: (it is no Python literal|a dimension is no size|it wants a descr)", "Python that no writer writes: signs, continued lines, `set()`, prefixes, booleans as sizes"),
    (r"^read \| .*(NPY header: its shape|its size) (…|\[…\] )?overflows|^read \| .*overflows", "an empty array whose other dimensions overflow"),
    (r"^read \| Limit", "limits on headers, dimensions and memory"),
    (r"^(ValueError|IndexError|TypeError|MemoryError|SyntaxError|OverflowError|UnicodeDecodeError|KeyError|RecursionError|AttributeError|TimeoutError).* \| left out$",
     "what no tensor can hold (objects, text, records, long doubles) is listed as left out, and neither its type nor its data is looked at; `<f1` is a type of ml_dtypes"),
    (r"^ValueError: descr is not a valid dtype descriptor '[<|=>]?(fN|floatN_\w+|bfloatN)' \| read", "`f1` and names are types of ml_dtypes, without which NumPy does not know them"),
    (r"^ValueError: Cannot parse header +\| read", "a dict that is indented behind a line with a comment"),
    (r"^read \| read: other values of BF16", "`>V2`: ml_dtypes writes big-endian BF16 so, which this crate turns; NumPy alone knows no type and leaves the bytes"),
    (r"^read \| read: tensor only in theirs, skipped in one", "types written as tuples are listed as records"),
]

NPZ = [
    (r"^read \| read: tensor only in", "names in UTF-8 without the flag for it, which Python takes for code page 437"),
    (r"^read \| .*(neither NPZ nor|not an NPY array: its magic)", "archives without a member `.npy`, and members `.npy` that are no arrays: NumPy gives their bytes"),
    (r"^ValueError: This file contains pickled.* \| left out", "an archive that begins with a 64-bit end record has no members; NumPy does not know it"),
    (r"^read \| .*(not a (model|safetensors) file|begins like no container)", "NumPy also looks for an archive behind other bytes"),
    (r"^read \| read: (other arrays are skipped|tensor only)", "the same, among other members"),
]

GGUF = [
    (r"^read \| .*(takes N bytes, and (the next tensor begins|the file has)|past the end|begins N bytes into the data)", "tensors that overlap, have gaps between them, or whose size is not that of the type"),
    (r"^read \| .*(its offset N is not a multiple|truncated)", "offsets that are not aligned, and counts beyond the end, where gguf-py reads nothing"),
    (r"^read \| .*a metadata key is empty", "an empty key, with which llama.cpp ends"),
    (r"^read \| .*(is listed twice)", "a name twice"),
    (r"^read \| Unsupported: .*no byte order is defined", "blocks in a big-endian file, of types for which llama.cpp has no such files"),
    (r"^read \| read: other values of (BF16|Q|IQ|TQ|MXFP|NVFP)", "big-endian files: gguf-py leaves the bytes of what NumPy has no type for as they are; Q8_1 has 36 bytes in ggml and 40 in gguf-py"),
    (r"^read \| Limit", "limits: arrays in arrays deeper than four, long texts, alignments, dimensions"),
    (r"^read \| .*(values of type N are unknown|overflows|a dimension of|where .* stores N together|is not UTF-N|not a power of two)", "empty arrays of unknown types, and shapes that gguf-py multiplies beyond 64 bits"),
    (r"^ValueError: (np.uintN|N) ?(\[…\])? is not a valid GGMLQuantizationType", "a tensor of an unknown type is listed, and not decoded"),
    (r"^ValueError: .*is not a valid GGMLQ", "a tensor of an unknown type is listed, and not decoded"),
    (r"^ValueError: Sorry, file appears to be version", "version 1 is read as well"),
    (r"^(ValueError: Quantized tensor row size|KeyError: 'GGUF\.|ValueError: cannot reshape|ValueError: N bytes of N|ZeroDivisionError)", "types whose size gguf-py has otherwise"),
    (r"^KeyError: .* \| read", "a type of a fork that gguf-py has a number and no size for"),
    (r"^(UnicodeDecodeError|UnicodeEncodeError).* \| read", "text in metadata that is not UTF-8 is shown with replacement characters"),
    (r"^(TimeoutError|MemoryError|IndexError).* \| (read|left out)$", "gguf-py takes too long or ends in an error of its own"),
    (r"^read \| read: other metadata", "texts that are not UTF-8"),
]

TORCH = [
    (r"^read \| .*(PyTorch checkpoint: there is data behind)", "data behind the last storage of a stream"),
    (r"^read \| .*PyTorch checkpoint: (storage|a storage|the keys)", "storages whose length, type or list says two things, of which torch does not look at one"),
    (r"^read \| .*(its storage `…` is not in the archive)", "a member whose name is another in case, which torch finds"),
    (r"^read \| .*(its storage `…` is not in the file|the checkpoint holds no tensors)", "a stream without the magic number as torch writes it, and storages that are not there, whose memory torch leaves as it was"),
    (r"^read \| .*(a number that is none|memo)", "integers with spaces and underscores, which Python's two unpicklers read in different ways"),
    (r"^read \| .*does not end in its frame", "frames that end elsewhere than opcodes or the pickle, behind which Python's two unpicklers go on in different ways"),
    (r"^read \| .*a dict has the key `…` twice", "a key twice, of which Python takes the last"),
    (r"^read \| .*pickle: ", "values that torch makes of odd arguments: booleans as sizes, bytes as names, strides that are missing, calls of what it has built"),
    (r"^read \| Disallowed", "torch takes any module for the name of a storage"),
    (r"^read \| Unsupported: .*(protocols N to N|N to N are read|a version other)", "versions that torch does not compare"),
    (r"^read \| .*(not a (model|safetensors) file|begins like no container|safetensors header|neither NPZ|not an NPY array)", "files with the beginning of another format, or without the opcode PROTO, or archives with a member `.npy`"),
    (r"^read \| Limit", "limits on memory"),
    (r"^(TypeError|AssertionError|AttributeError|IndexError|KeyError|UnicodeDecodeError|UnicodeEncodeError|ValueError: (not enough|too many) values|LookupError|ZeroDivisionError).* \| (read|left out)$",
     "calls whose values hold no tensor are not made, and arguments that no tensor follows from are not looked at"),
    (r"^ValueError: (invalid literal|could not convert|bytes must be|byte must be|ASN|dictionary update|Cannot|unknown|negative count|embedded)", "the same"),
    (r"^RuntimeError: (requires_grad|only Tensors of floating|Trying to resize|Only Tensors of floating|a leaf Variable|Expected one of|Invalid device|Device index|.*[dD]evice|.*Unknown saved id|\[…\]: .*)", "the same: gradients and devices"),
    (r"^RuntimeError: (record size|.*storage has wrong byte size)", "a storage under one key with two lengths, of which the tensors that are found use one"),
    (r"^(RuntimeError: (Expected hasRecord|.*file in archive is not|Pytorch|.*parse the version|.*internal miniz|.*unsupported)|ValueError: (negative seek|Unknown endianness))", "torch wants a record of its version and one directory for all, and its ZIP reader refuses more"),
    (r"^ValueError: a directory with data", "a member with the attribute of a directory: torch leaves the memory that it is for as it was"),
    (r"^UnpicklingError: (global|Weights only|A load persistent|NEWOBJ|state is not|.*argument)", "the same: calls that are not made; `__builtin__.set` is a name of Python 2"),
    (r"^(UnpicklingError: pickle data was truncated|OverflowError: FRAME)", "a frame that is longer than the file"),
    (r"^(MemoryError|TimeoutError|RuntimeError: .*can't allocate|RecursionError|OverflowError|SystemError)", "places in the memo that Python allocates, and other limits of the process"),
    (r"^read \| read: (other arrays are skipped|tensor only in theirs, skipped in one)", "tensors in sets and those that a call makes of numbers are listed as left out"),
]

REASONS = {"npy": ARRAYS, "npz": ARCHIVES + NPZ + ARRAYS, "gguf": GGUF, "torch": ARCHIVES + TORCH, "legacy": TORCH}
