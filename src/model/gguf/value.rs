//! GGUF metadata values: one table of types, and how each is read and written.
//!
//! Types: ggml `gguf.h`, `enum gguf_type`.

/// Metadata bytes that are being decoded. The header's reader has checked that values are complete.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GgufBytes<'a> {
    pub bytes: &'a [u8],
    pub encoding: GgufEncoding,
}

/// Encoding of numbers and lengths in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GgufEncoding {
    pub big_endian: bool,
    /// Whether lengths, counts and dimensions take 64 bits; in version 1 they take 32.
    pub has_64_bit_lengths: bool,
}

impl GgufEncoding {
    /// The encoding of written files.
    pub const WRITTEN: Self = Self { big_endian: false, has_64_bit_lengths: true };

    /// Bytes of a length.
    pub(crate) fn len_bytes(self) -> usize {
        if self.has_64_bit_lengths { 8 } else { 4 }
    }

    /// The unsigned integer in `bytes`, at most eight.
    pub(crate) fn number(self, bytes: &[u8]) -> u64 {
        let fold = |n: u64, &b: &u8| n << 8 | u64::from(b);
        if self.big_endian {
            bytes.iter().fold(0, fold)
        } else {
            bytes.iter().rev().fold(0, fold)
        }
    }

    /// Appends a length or a count to `out`.
    pub(crate) fn write_len(self, len: usize, out: &mut Vec<u8>) {
        match self.has_64_bit_lengths {
            true => (len as u64).write(self, out),
            // What is read or written is far shorter than 4 GiB.
            false => (len as u32).write(self, out),
        }
    }

    /// Appends a string to `out`: its length and the text.
    pub(crate) fn write_str(self, text: &str, out: &mut Vec<u8>) {
        self.write_len(text.len(), out);
        out.extend_from_slice(text.as_bytes());
    }

    /// Appends the number of a type to `out`.
    pub(crate) fn write_type(self, id: u32, out: &mut Vec<u8>) {
        id.write(self, out);
    }
}

impl<'a> GgufBytes<'a> {
    /// Consumes the next `n` bytes. All are there, which the header's reader has checked; taking
    /// fewer instead of panicking is a second safeguard.
    pub(super) fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(n.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    pub(super) fn number(&mut self, size: usize) -> u64 {
        let encoding = self.encoding;
        encoding.number(self.take(size))
    }

    pub(super) fn len(&mut self) -> usize {
        self.number(self.encoding.len_bytes()) as usize
    }
}

/// A Rust type of metadata values and of arrays' elements.
trait GgufItem: Sized {
    fn read(bytes: &mut GgufBytes<'_>) -> Self;
    fn write(&self, encoding: GgufEncoding, out: &mut Vec<u8>);

    fn read_array(bytes: &mut GgufBytes<'_>) -> Vec<Self> {
        let n = bytes.len();
        (0..n).map(|_| Self::read(bytes)).collect()
    }
}

macro_rules! numbers {
    ($($type:ty, $bits:ty;)*) => {$(
        impl GgufItem for $type {
            fn read(bytes: &mut GgufBytes<'_>) -> Self {
                // The value has only as many bits as were read, so the cast to that width loses
                // nothing.
                Self::from_le_bytes((bytes.number(size_of::<Self>()) as $bits).to_le_bytes())
            }

            fn write(&self, encoding: GgufEncoding, out: &mut Vec<u8>) {
                match encoding.big_endian {
                    true => out.extend(self.to_be_bytes()),
                    false => out.extend(self.to_le_bytes()),
                }
            }
        }
    )*};
}

numbers! { u8, u8; i8, u8; u16, u16; i16, u16; u32, u32; i32, u32; u64, u64; i64, u64; f32, u32; f64, u64; }

impl GgufItem for bool {
    fn read(bytes: &mut GgufBytes<'_>) -> Self {
        bytes.number(1) != 0
    }

    fn write(&self, _encoding: GgufEncoding, out: &mut Vec<u8>) {
        out.push((*self).into());
    }
}

impl GgufItem for String {
    fn read(bytes: &mut GgufBytes<'_>) -> Self {
        let n = bytes.len();
        Self::from_utf8_lossy(bytes.take(n)).into_owned()
    }

    fn write(&self, encoding: GgufEncoding, out: &mut Vec<u8>) {
        encoding.write_str(self, out);
    }
}

/// Number of the type `array` in files.
pub(crate) const ARRAY: u32 = 9;
/// Number of the type `string` in files.
pub(crate) const STRING: u32 = 8;

macro_rules! values {
    ($($variant:ident $type:ty, $id:literal $size:expr, $name:literal $slice:ident;)*) => {
        /// A value of GGUF metadata. It is serialized without its type; JSON has null for NaN and
        /// infinities.
        #[derive(Debug, Clone, PartialEq, serde::Serialize)]
        #[serde(untagged)]
        #[non_exhaustive]
        #[allow(missing_docs)] // the variants are the format's types
        pub enum GgufMetadataValue {
            $($variant($type),)*
            Array(Box<GgufMetadataArray>),
        }

        /// An array in GGUF metadata: values of one type. It is serialized without that type.
        #[derive(Debug, Clone, PartialEq, serde::Serialize)]
        #[serde(untagged)]
        #[non_exhaustive]
        #[allow(missing_docs)] // the variants are the format's types
        pub enum GgufMetadataArray {
            $($variant(Vec<$type>),)*
            Array(Vec<Self>),
        }

        impl GgufMetadataValue {
            /// Name of the value's type: `u32`, `string`, `array`, ….
            #[must_use]
            pub const fn type_name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                    Self::Array(_) => "array",
                }
            }

            /// Number of the value's type in files.
            pub(crate) fn type_id(&self) -> u32 {
                match self {
                    $(Self::$variant(_) => $id,)*
                    Self::Array(_) => ARRAY,
                }
            }

            /// Decodes a value of type `id`.
            pub(crate) fn read(id: u32, bytes: &mut GgufBytes<'_>) -> Self {
                match id {
                    $($id => Self::$variant(GgufItem::read(bytes)),)*
                    _ => Self::Array(Box::new(GgufMetadataArray::read(bytes))),
                }
            }

            /// Appends the value to `out`, without its type.
            pub(crate) fn write(&self, encoding: GgufEncoding, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant(value) => value.write(encoding, out),)*
                    Self::Array(array) => array.write(encoding, out),
                }
            }
        }

        impl GgufMetadataArray {
            /// Number of elements.
            #[must_use]
            pub fn len(&self) -> usize {
                match self {
                    $(Self::$variant(items) => items.len(),)*
                    Self::Array(items) => items.len(),
                }
            }

            /// Keeps the elements whose numbers `keeps` is true of.
            #[cfg_attr(not(feature = "models"), allow(dead_code))]
            pub(crate) fn retain(&mut self, mut keeps: impl FnMut(usize) -> bool) {
                let mut numbers = 0..;
                let mut next = || numbers.next().is_some_and(&mut keeps);
                match self {
                    $(Self::$variant(items) => items.retain(|_| next()),)*
                    Self::Array(items) => items.retain(|_| next()),
                }
            }

            /// Name of the elements' type: `u32`, `string`, `array`, ….
            #[must_use]
            pub const fn item_name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                    Self::Array(_) => "array",
                }
            }

            $(
                #[doc = concat!("The elements, if they are of type `", $name, "`.")]
                #[must_use]
                pub fn $slice(&self) -> Option<&[$type]> {
                    if let Self::$variant(items) = self { Some(items) } else { None }
                }
            )*

            fn read(bytes: &mut GgufBytes<'_>) -> Self {
                match bytes.number(4) as u32 {
                    $($id => Self::$variant(GgufItem::read_array(bytes)),)*
                    _ => {
                        let n = bytes.len();
                        Self::Array((0..n).map(|_| Self::read(bytes)).collect())
                    }
                }
            }

            fn write(&self, encoding: GgufEncoding, out: &mut Vec<u8>) {
                let id: u32 = match self {
                    $(Self::$variant(_) => $id,)*
                    Self::Array(_) => ARRAY,
                };
                encoding.write_type(id, out);
                encoding.write_len(self.len(), out);
                match self {
                    $(Self::$variant(items) => items.iter().for_each(|item| item.write(encoding, out)),)*
                    Self::Array(items) => items.iter().for_each(|item| item.write(encoding, out)),
                }
            }
        }

        /// Bytes of a value of type `id`; `None` if they vary, or if there is no such type.
        pub(crate) fn fixed_size(id: u32) -> Option<usize> {
            match id {
                $($id => $size,)*
                _ => None,
            }
        }
    };
}

values! {
    U8 u8, 0 Some(1), "u8" as_u8_slice;
    I8 i8, 1 Some(1), "i8" as_i8_slice;
    U16 u16, 2 Some(2), "u16" as_u16_slice;
    I16 i16, 3 Some(2), "i16" as_i16_slice;
    U32 u32, 4 Some(4), "u32" as_u32_slice;
    I32 i32, 5 Some(4), "i32" as_i32_slice;
    F32 f32, 6 Some(4), "f32" as_f32_slice;
    Bool bool, 7 Some(1), "bool" as_bool_slice;
    String String, 8 None, "string" as_string_slice;
    U64 u64, 10 Some(8), "u64" as_u64_slice;
    I64 i64, 11 Some(8), "i64" as_i64_slice;
    F64 f64, 12 Some(8), "f64" as_f64_slice;
}

impl GgufMetadataValue {
    /// The text, if this value is a string.
    #[must_use]
    pub fn as_string(&self) -> Option<&str> {
        if let Self::String(text) = self {
            Some(text)
        } else {
            None
        }
    }

    /// The number, if this value is a `u32`.
    #[must_use]
    pub const fn as_u32(&self) -> Option<u32> {
        if let Self::U32(n) = self {
            Some(*n)
        } else {
            None
        }
    }

    /// The number, if this value is a `u64`.
    #[must_use]
    pub const fn as_u64(&self) -> Option<u64> {
        if let Self::U64(n) = self {
            Some(*n)
        } else {
            None
        }
    }

    /// The boolean, if this value is a `bool`.
    #[must_use]
    pub const fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(truth) = self {
            Some(*truth)
        } else {
            None
        }
    }

    /// The array, if this value is an array.
    #[must_use]
    pub fn as_array(&self) -> Option<&GgufMetadataArray> {
        if let Self::Array(array) = self {
            Some(array)
        } else {
            None
        }
    }

    /// The number, if this value is an integer of any type and not negative.
    pub(crate) fn as_unsigned(&self) -> Option<u64> {
        match *self {
            Self::U8(n) => Some(n.into()),
            Self::U16(n) => Some(n.into()),
            Self::U32(n) => Some(n.into()),
            Self::U64(n) => Some(n),
            Self::I8(n) => n.try_into().ok(),
            Self::I16(n) => n.try_into().ok(),
            Self::I32(n) => n.try_into().ok(),
            Self::I64(n) => n.try_into().ok(),
            _ => None,
        }
    }
}

impl GgufMetadataArray {
    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements, if they are arrays.
    #[must_use]
    pub fn as_nested_slice(&self) -> Option<&[Self]> {
        if let Self::Array(items) = self {
            Some(items)
        } else {
            None
        }
    }
}
