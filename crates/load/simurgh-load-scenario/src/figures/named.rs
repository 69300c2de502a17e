//! Enums whose variants have a stable name, which every output uses.

/// Declares a field-less enum with `ALL`, `name()`, `named()`, and serde by name.
macro_rules! named {
    ($(#[$meta:meta])* $type:ident { $($(#[$doc:meta])* $variant:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(strum::Display, strum::EnumString, strum::IntoStaticStr, strum::VariantArray)]
        #[derive(serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[strum(serialize_all = "snake_case")]
        #[repr(u16)]
        pub enum $type { $($(#[$doc])* $variant,)+ }

        impl $type {
            /// All variants, in the order of their numbers.
            pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

            /// The name in all outputs.
            pub fn name(self) -> &'static str {
                self.into()
            }

            /// The variant with this name.
            pub fn named(name: &str) -> Option<Self> {
                name.parse().ok()
            }
        }
    };
}

pub(super) use named;
