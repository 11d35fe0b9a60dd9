//! Macros for `#[non_exhaustive]` types to which fields can be added later, such as options and attributes. A program creates a value by
//! `Type::new(...).field(value)`. After a field was added to the type, this code still compiles.

/// Defines a method for each field, which sets the field.
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

/// Defines a method for each field of options, which sets the field. The comment before the field in the macro call is the documentation of
/// the method.
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
