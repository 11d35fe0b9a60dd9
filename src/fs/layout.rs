//! Sizes and offsets of on-disk structures, checked at compile time.

/// Asserts sizes and field offsets of on-disk structures.
macro_rules! layout {
    ($name:ident: $size:literal { $($field:ident @ $offset:literal),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };
    };
}
pub(crate) use layout;
