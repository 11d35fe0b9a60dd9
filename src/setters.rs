//! Macros for `#[non_exhaustive]` types to which fields can be added later, such as options and attributes. A program creates a value by
//! `Type::new(...).field(value)`. This code still compiles after a field is added to the type.

/// Defines, for each field, a method that sets the field.
macro_rules! setters {
    ($type:ident { $($field:ident: $value:ty),+ $(,)? }) => {
        impl $type {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self#structfield.", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $value) -> Self {
                    self.$field = $field.into();
                    self
                }
            )+
        }
    };
}

/// Defines, for each field of an options type, a method that sets the field. The comment before the field in the macro call is the
/// documentation of the method.
macro_rules! options {
    ($type:ident { $($(#[$doc:meta])+ $field:ident: $value:ty),+ $(,)? }) => {
        impl $type {
            $(
                $(#[$doc])+
                #[must_use]
                pub const fn $field(mut self, $field: $value) -> Self {
                    self.$field = $field;
                    self
                }
            )+
        }
    };
}

pub(crate) use {options, setters};
