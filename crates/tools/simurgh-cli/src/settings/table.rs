//! Turns the table of settings into optional values, flags, and descriptions.

use std::ops::Range;

use clap::builder::ValueParser;
use clap::{Arg, ArgMatches};
use simurgh_text::Choice;
use toml::Spanned;
use toml::de::DeValue;

/// The origin of the channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channels {
    /// The application has its own; keys about declared ones are refused.
    InRust,
    /// `[[channel]]` tables, or the built-in chat.
    Declared,
}

/// One setting: its description, and the readers of flag and file.
pub(crate) struct Key<Settings> {
    /// As in the file; the flag has dashes for underscores.
    pub(crate) name: &'static str,
    /// The allowed values, with their unit.
    pub(crate) takes: &'static str,
    /// The default as written in the file, or in words if the file cannot have it.
    pub(crate) default: &'static str,
    /// A value to print as a comment if there is no default.
    pub(crate) example: Option<&'static str>,
    pub(crate) about: &'static str,
    pub(crate) cost: &'static str,
    /// The flag, without help.
    pub(super) flag: fn() -> Arg,
    /// Takes it from the command line, if it was given.
    pub(super) take: fn(&mut Settings, &mut ArgMatches),
    pub(super) set: fn(&mut Settings, &Value<'_>) -> Result<(), Vec<Wrong>>,
}

/// A value of the file, with its position.
pub(crate) type Value<'i> = Spanned<DeValue<'i>>;

/// The mistake in a value, or in one entry of a list.
pub(crate) struct Wrong {
    pub(crate) span: Range<usize>,
    pub(crate) why: String,
}

/// Keys about declared channels and pages; an application in Rust has its own.
const ABOUT_DECLARED: [&str; 6] = [
    "static_files",
    "static_copies_bytes_max",
    "max_channels",
    "auth_token",
    "longpoll",
    "announce_joins_up_to",
];

impl<Settings> Key<Settings> {
    pub(crate) fn is_for(&self, channels: Channels) -> bool {
        channels == Channels::Declared || !ABOUT_DECLARED.contains(&self.name)
    }

    /// Accepted values and cost, if it costs anything.
    pub(crate) fn details(&self, separator: &str) -> String {
        match self.cost {
            "" => format!("Values: {}.", self.takes),
            cost => format!("Values: {}.{separator}Cost: {cost}.", self.takes),
        }
    }
}

/// Turns the table of settings into `PartialSettings` and `ALL`. An entry is `name: type =
/// form("VALUE NAME", reader) => field of simurgh::Config { texts }`; the form is one of the
/// modules below. Without `takes` the text follows from the value's name and the default; without
/// `cost` it costs nothing.
macro_rules! settings {
    ($($name:ident: $type:ty = $form:ident($value_name:tt, $read:expr)
        $(=> $($field:ident).+)? {
            $(takes: $takes:literal,)?
            default: $default:literal,
            $(example: $example:literal,)?
            about: $about:literal,
            $(cost: $cost:literal,)?
        })*) => {
        /// Settings given in one source, flags or file. Names are the keys of `simurgh.toml`; flags
        /// have dashes.
        #[derive(Debug, Default, Clone, PartialEq)]
        pub(crate) struct PartialSettings {
            $(pub(crate) $name: Option<$type>,)*
        }

        impl PartialSettings {
            #[cfg(test)]
            pub(crate) const FIELDS: &'static [&'static str] = &[$(stringify!($name)),*];

            /// Adds the settings of `below` that are not given here.
            pub(crate) fn over(self, below: Self) -> Self {
                Self { $($name: self.$name.or(below.$name),)* }
            }

            pub(crate) fn has(&self, name: &str) -> bool {
                $((name == stringify!($name) && self.$name.is_some()) ||)* false
            }

            /// Writes the library's settings into its configuration.
            pub(crate) fn fill(self, config: &mut simurgh::Config) {
                $($(
                    if let Some(value) = self.$name {
                        table::Fill::fill(value, &mut config.$($field).+);
                    }
                )?)*
            }
        }

        pub(crate) type Key = table::Key<PartialSettings>;

        /// All settings, in the order in which they are printed.
        pub(crate) const ALL: &[Key] = &[
            $(table::Key {
                name: stringify!($name),
                takes: settings!(@takes $value_name, $default $(, $takes)?),
                default: $default,
                example: settings!(@example $($example)?),
                about: $about,
                cost: settings!(@cost $($cost)?),
                flag: || {
                    let flag = clap::Arg::new(stringify!($name)).value_name($value_name);
                    table::$form::flag(flag, $read, || None::<$type>)
                },
                take: |settings, matches| {
                    let name = stringify!($name);
                    settings.$name = table::$form::take(matches, name);
                },
                set: |settings, value| {
                    settings.$name = Some(table::$form::read(value, $read)?);
                    Ok(())
                },
            },)*
        ];
    };
    (@takes $value_name:tt, $default:literal, $takes:literal) => { $takes };
    (@takes "TIME", $default:literal) => { concat!("a time such as ", $default, " or \"500ms\"") };
    (@takes "SIZE", $default:literal) => {
        concat!("a size such as ", $default, " or a number of bytes")
    };
    (@takes "BOOL", $default:literal) => { "true or false" };
    (@example $example:literal) => { Some($example) };
    (@example) => { None };
    (@cost $cost:literal) => { $cost };
    (@cost) => { "" };
}

pub(super) use settings;

pub(super) trait Fill<Field> {
    fn fill(self, field: &mut Field);
}

impl<T> Fill<T> for T {
    fn fill(self, field: &mut T) {
        *field = self;
    }
}

impl<T> Fill<Option<T>> for T {
    fn fill(self, field: &mut Option<T>) {
        *field = Some(self);
    }
}

impl<T> Fill<Option<T>> for Choice<T> {
    fn fill(self, field: &mut Option<T>) {
        *field = self.value();
    }
}

/// `auto` does not change the field.
impl<T> Fill<T> for Choice<T> {
    fn fill(self, field: &mut T) {
        if let Some(value) = self.value() {
            *field = value;
        }
    }
}

impl Fill<u64> for usize {
    fn fill(self, field: &mut u64) {
        *field = self as u64;
    }
}

/// The bounds of clap for values of flags.
pub(super) trait Plain: Clone + Send + Sync + 'static {}

impl<T: Clone + Send + Sync + 'static> Plain for T {}

pub(super) trait Read<T>:
    Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
{
}

impl<T, F: Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static> Read<T> for F {}

fn wrong_type(value: &Value<'_>) -> Wrong {
    let why = format!("is of the wrong type ({})", value.get_ref().type_str());
    Wrong { span: value.span(), why }
}

/// Reads a text or a whole number of the file like the flag of the same name.
fn read_one<T>(value: &Value<'_>, read: impl Read<T>) -> Result<T, Wrong> {
    let result = match value.get_ref() {
        DeValue::String(text) => read(text),
        DeValue::Integer(number) => read(&number.to_string()),
        _ => return Err(wrong_type(value)),
    };
    result.map_err(|why| Wrong { span: value.span(), why })
}

// In each form, `flag` gets a function only for the type of the setting; it is never called.

/// One value.
pub(super) mod one {
    use super::*;

    pub(crate) fn flag<T: Plain>(flag: Arg, read: impl Read<T>, _: fn() -> Option<T>) -> Arg {
        flag.value_parser(ValueParser::new(read))
    }

    pub(crate) fn take<T: Plain>(matches: &mut ArgMatches, name: &str) -> Option<T> {
        matches.remove_one(name)
    }

    pub(crate) fn read<T>(value: &Value<'_>, read: impl Read<T>) -> Result<T, Vec<Wrong>> {
        read_one(value, read).map_err(|wrong| vec![wrong])
    }
}

/// A list; the flag is repeated.
pub(super) mod list {
    use super::*;

    pub(crate) fn flag<T: Plain>(flag: Arg, read: impl Read<T>, _: fn() -> Option<Vec<T>>) -> Arg {
        one::flag(flag, read, || None).action(clap::ArgAction::Append)
    }

    pub(crate) fn take<T: Plain>(matches: &mut ArgMatches, name: &str) -> Option<Vec<T>> {
        matches.remove_many(name).map(Iterator::collect)
    }

    /// Names every invalid entry.
    pub(crate) fn read<T>(value: &Value<'_>, read: impl Read<T>) -> Result<Vec<T>, Vec<Wrong>> {
        let DeValue::Array(entries) = value.get_ref() else { return Err(vec![wrong_type(value)]) };
        let (mut right, mut wrong) = (Vec::new(), Vec::new());
        for entry in entries.iter() {
            match read_one(entry, read.clone()) {
                Ok(entry) => right.push(entry),
                Err(why) => wrong.push(why),
            }
        }
        if wrong.is_empty() { Ok(right) } else { Err(wrong) }
    }
}

/// A list; the flag is repeated or has commas.
pub(super) mod comma_list {
    use super::*;

    pub(crate) use super::list::{read, take};

    pub(crate) fn flag<T: Plain>(flag: Arg, read: impl Read<T>, of: fn() -> Option<Vec<T>>) -> Arg {
        list::flag(flag, read, of).value_delimiter(',')
    }
}

/// On or off; the flag alone is on.
pub(super) mod switch {
    use super::*;

    pub(crate) use super::one::take;

    pub(crate) fn flag(flag: Arg, (): (), _: fn() -> Option<bool>) -> Arg {
        let flag = flag.value_parser(clap::value_parser!(bool)).num_args(0..=1);
        flag.require_equals(true).default_missing_value("true")
    }

    pub(crate) fn read(value: &Value<'_>, (): ()) -> Result<bool, Vec<Wrong>> {
        value.get_ref().as_bool().ok_or_else(|| vec![wrong_type(value)])
    }
}

/// Origins: one text as in the flag, or a list of entries.
pub(super) mod origins {
    use simurgh::CheckOrigin;

    use super::*;

    pub(crate) use super::one::{flag, take};

    pub(crate) fn read(
        value: &Value<'_>,
        read: impl Read<Choice<CheckOrigin>>,
    ) -> Result<Choice<CheckOrigin>, Vec<Wrong>> {
        if !value.get_ref().is_array() {
            return one::read(value, read);
        }
        let entry = move |entry: &str| match read(entry)?.value() {
            Some(CheckOrigin::List(entries)) => Ok(entries),
            _ => Err(format!("{entry:?} cannot be part of a list: use it alone")),
        };
        let entries = list::read(value, entry)?.concat();
        if entries.is_empty() {
            let why = "is an empty list, which refuses every page".to_owned();
            return Err(vec![Wrong { span: value.span(), why }]);
        }
        Ok(Choice::Value(CheckOrigin::List(entries)))
    }
}
