//! Turns the table of settings into optional values, flags, and descriptions.

use std::ops::Range;

use clap::{Arg, ArgAction, ArgMatches};
use simurgh::CheckOrigin;
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
    /// The name of its value in help.
    pub(super) value_name: &'static str,
    pub(super) form: Form,
    pub(super) set: fn(&mut Settings, &Value<'_>) -> Result<(), Vec<Wrong>>,
}

/// How the flag of a setting is written.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// With one value.
    One,
    /// Once for each value.
    List,
    /// The same, or with commas.
    CommaList,
    /// Without a value it is on.
    Switch,
}

/// A value of the file, with its position.
pub(crate) type Value<'i> = Spanned<DeValue<'i>>;

/// The mistake in a value, or in one entry of a list.
pub(crate) struct Wrong {
    pub(crate) span: Range<usize>,
    pub(crate) why: String,
}

/// Keys about declared channels and pages; an application in Rust has its own.
const ABOUT_DECLARED: [&str; 7] = [
    "compress",
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

impl<Settings: Default + 'static> Key<Settings> {
    /// The flag, without help. Its value is read like a value of the file.
    pub(super) fn flag(&self) -> Arg {
        let (form, set) = (self.form, self.set);
        let read = move |text: &str| {
            let value = typed(form, [text.to_owned()].into_iter());
            let wrong = |wrong: Vec<Wrong>| wrong.into_iter().map(|it| it.why).collect::<String>();
            set(&mut Settings::default(), &value).map(|()| text.to_owned()).map_err(wrong)
        };
        let flag = Arg::new(self.name).value_name(self.value_name);
        match form {
            Form::One => flag.value_parser(read),
            Form::List => flag.value_parser(read).action(ArgAction::Append),
            Form::CommaList => {
                flag.value_parser(read).action(ArgAction::Append).value_delimiter(',')
            }
            Form::Switch => {
                let flag = flag.value_parser(["true", "false"]).num_args(0..=1);
                flag.require_equals(true).default_missing_value("true")
            }
        }
    }

    /// Takes it from the command line, if it was given.
    pub(super) fn take(&self, settings: &mut Settings, matches: &mut ArgMatches) {
        if let Some(texts) = matches.remove_many(self.name) {
            // Each was read when it was parsed.
            let _ = (self.set)(settings, &typed(self.form, texts));
        }
    }
}

/// The value of a flag, as a value of the file.
fn typed(form: Form, texts: impl Iterator<Item = String>) -> Value<'static> {
    let mut texts = texts.map(|text| Spanned::new(0..0, DeValue::String(text.into())));
    match form {
        Form::List | Form::CommaList => Spanned::new(0..0, DeValue::Array(texts.collect())),
        Form::One => texts.next().unwrap_or_else(|| Spanned::new(0..0, DeValue::Boolean(false))),
        Form::Switch => {
            let is_on = texts.next().is_some_and(|text| text.get_ref().as_str() == Some("true"));
            Spanned::new(0..0, DeValue::Boolean(is_on))
        }
    }
}

/// Turns the table of settings into `PartialSettings` and `ALL`. An entry is `name: type =
/// form("VALUE NAME", reader) => field of simurgh::Config { texts }`; the form is one of the
/// functions below. Without `takes` the text follows from the value's name and the default; without
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
            /// Adds the settings of `below` that are not given here.
            pub(crate) fn over(self, below: Self) -> Self {
                Self { $($name: self.$name.or(below.$name),)* }
            }

            pub(crate) fn has(&self, name: &str) -> bool {
                $((name == stringify!($name) && self.$name.is_some()) ||)* false
            }

            /// The keys whose values differ: in the library's configuration, or if they are no part
            /// of it, as they were given.
            pub(crate) fn differing(
                one: (&Self, &simurgh::Config),
                other: (&Self, &simurgh::Config),
            ) -> Vec<&'static str> {
                let mut found = Vec::new();
                $(if settings!(@differs one, other, $name $(=> $($field).+)?) {
                    found.push(stringify!($name));
                })*
                found
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
                value_name: $value_name,
                form: settings!(@form $form),
                set: |settings, value| {
                    settings.$name = Some(table::$form(value, $read)?);
                    Ok(())
                },
            },)*
        ];
    };
    (@differs $one:ident, $other:ident, $name:ident) => { $one.0.$name != $other.0.$name };
    (@differs $one:ident, $other:ident, $name:ident => $($field:ident).+) => {
        $one.1.$($field).+ != $other.1.$($field).+
    };
    (@takes $value_name:tt, $default:literal, $takes:literal) => { $takes };
    (@takes "TIME", $default:literal) => { concat!("a time such as ", $default, " or \"500ms\"") };
    (@takes "SIZE", $default:literal) => {
        concat!("a size such as ", $default, " or a number of bytes")
    };
    (@takes "BOOL", $default:literal) => { "true or false" };
    (@form list) => { table::Form::List };
    (@form comma_list) => { table::Form::CommaList };
    (@form switch) => { table::Form::Switch };
    (@form $form:ident) => { table::Form::One };
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

fn wrong_type(value: &Value<'_>) -> Vec<Wrong> {
    let why = format!("is of the wrong type ({})", value.get_ref().type_str());
    vec![Wrong { span: value.span(), why }]
}

/// A text or a whole number.
pub(super) fn one<T>(
    value: &Value<'_>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<T, Vec<Wrong>> {
    let result = match value.get_ref() {
        DeValue::String(text) => read(text),
        DeValue::Integer(number) => read(&number.to_string()),
        _ => return Err(wrong_type(value)),
    };
    result.map_err(|why| vec![Wrong { span: value.span(), why }])
}

/// A list; names every invalid entry.
pub(super) fn list<T>(
    value: &Value<'_>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, Vec<Wrong>> {
    let DeValue::Array(entries) = value.get_ref() else { return Err(wrong_type(value)) };
    let (mut right, mut wrong) = (Vec::new(), Vec::new());
    for entry in entries.iter() {
        match one(entry, &read) {
            Ok(entry) => right.push(entry),
            Err(why) => wrong.extend(why),
        }
    }
    if wrong.is_empty() { Ok(right) } else { Err(wrong) }
}

pub(super) use list as comma_list;

pub(super) fn switch(value: &Value<'_>, (): ()) -> Result<bool, Vec<Wrong>> {
    value.get_ref().as_bool().ok_or_else(|| wrong_type(value))
}

/// Origins: one text as in the flag, or a list of entries.
pub(super) fn origins(
    value: &Value<'_>,
    read: impl Fn(&str) -> Result<Choice<CheckOrigin>, String>,
) -> Result<Choice<CheckOrigin>, Vec<Wrong>> {
    if !value.get_ref().is_array() {
        return one(value, read);
    }
    let entry = |entry: &str| match read(entry)?.value() {
        Some(CheckOrigin::List(entries)) => Ok(entries),
        _ => Err(format!("{entry:?} cannot be part of a list: use it alone")),
    };
    let entries = list(value, entry)?.concat();
    if entries.is_empty() {
        let why = "is an empty list, which refuses every page".to_owned();
        return Err(vec![Wrong { span: value.span(), why }]);
    }
    Ok(Choice::Value(CheckOrigin::List(entries)))
}
