//! The values in a dump: numbers, texts and bytes, in lists and records.

use zerocopy::{big_endian as be, little_endian as le};

/// A value of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A truth value.
    Flag(bool),
    /// A name or another text, without zero bytes.
    Text(Vec<u8>),
    /// Bytes that are not text.
    Bytes(Vec<u8>),
    /// Several values of one kind.
    List(Vec<Self>),
    /// Fields by name, in on-disk order.
    Record(Fields),
}

/// A list of fields by name, in on-disk order.
pub type Fields = Vec<(&'static str, Value)>;

impl Value {
    /// A text that is not stored on the volume, such as a problem or the name of a feature.
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into().into_bytes())
    }

    /// A list of texts that are not stored on the volume.
    pub(super) fn texts(texts: impl IntoIterator<Item = String>) -> Self {
        Self::List(texts.into_iter().map(Self::text).collect())
    }
}

impl<T: ToValue + Copy> From<T> for Value {
    fn from(value: T) -> Self {
        value.to_value()
    }
}

/// A field of an on-disk structure.
pub(super) trait ToValue {
    fn to_value(&self) -> Value;
}

macro_rules! numbers {
    ($($name:ty: $this:ident => $number:expr),* $(,)?) => {
        $(impl ToValue for $name {
            fn to_value(&self) -> Value {
                let $this = self;
                Value::Number($number.into())
            }
        })*
    };
}

numbers! {
    u8: n => *n, u16: n => *n, u32: n => *n, u64: n => *n,
    le::U16: n => n.get(), le::U32: n => n.get(), le::U64: n => n.get(),
    be::U32: n => n.get(), be::U64: n => n.get(),
}

impl ToValue for bool {
    fn to_value(&self) -> Value {
        Value::Flag(*self)
    }
}

impl<const N: usize> ToValue for [u8; N] {
    fn to_value(&self) -> Value {
        Value::Bytes(self.to_vec())
    }
}

macro_rules! lists {
    ($($item:ty),*) => {
        $(impl<const N: usize> ToValue for [$item; N] {
            fn to_value(&self) -> Value {
                Value::List(self.iter().map(ToValue::to_value).collect())
            }
        })*
    };
}

lists!(le::U32, be::U32);

/// Converts the fields `names` of a record from bytes to texts. A text ends at the first zero byte.
pub(super) fn with_texts(mut record: Fields, names: &[&str]) -> Fields {
    for (_, value) in record.iter_mut().filter(|(name, _)| names.contains(name)) {
        if let Value::Bytes(bytes) = value {
            let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            *value = Value::Text(text.to_vec());
        }
    }
    record
}

/// Converts all fields of an on-disk structure to [`Fields`], except the fields that are listed after `but`.
macro_rules! record {
    ($raw:expr, $type:ident { $($field:ident),* $(,)? } $(but $($out:ident),*)?) => {{
        let $type { $($field,)* $($($out: _,)*)? } = $raw;
        vec![$((stringify!($field), $crate::fs::ext4::dump::value::ToValue::to_value($field))),*]
    }};
}
pub(super) use record;
