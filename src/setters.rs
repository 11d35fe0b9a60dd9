//! Macros for types to which fields can be added later, such as options and attributes. The types are `#[non_exhaustive]`. A program
//! creates a value by `Type::new(...).field(value)`. This code still compiles after a field was added.

/// Defines a method for each field. The method sets the field.
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

/// Defines a method for each field of options. The method sets the field. The documentation of the method is the comment before the field.
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
