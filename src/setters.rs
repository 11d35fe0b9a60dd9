//! A common form for options and attributes that can get more fields: `Type::new(...).field(value)`. They are `#[non_exhaustive]`, so a program that
//! constructs one in this way still builds when a field is added.

/// Defines a method for each field, which sets it.
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

pub(crate) use setters;
