//! Enums whose variants have a stable name, which every output uses.

/// Declares a field-less enum with `ALL`, `name()`, `named()`, and serde by name.
macro_rules! named {
    ($(#[$meta:meta])* $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum $type { $($(#[$doc])* $variant,)+ }

        impl $type {
            /// All variants, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name in all outputs.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The variant with this name.
            pub fn named(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let name = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Self::named(&name).ok_or_else(|| {
                    serde::de::Error::custom(format_args!(
                        "{name:?} is no {}", stringify!($type)
                    ))
                })
            }
        }
    };
}

pub(super) use named;
