//! Splits an assertion into event, payload and time, and reads JSON with wildcards.
//!
//! Each macro takes a part from the front and passes the rest on. Exported only for that.

/// Takes the event or the status.
#[doc(hidden)]
#[macro_export]
macro_rules! __testing_words {
    ($how:ident $check:tt $(timeout_ms = $time:expr)? $(,)?) => {
        $crate::__testing_payload!(
            $how $check ($crate::asserts::Words::any()) $(timeout_ms = $time)?
        )
    };
    ($how:ident $check:tt _ $(, $($rest:tt)*)?) => {
        $crate::__testing_payload!(
            $how $check ($crate::asserts::Words::any()) $($($rest)*)?
        )
    };
    ($how:ident $check:tt $word:literal $(| $more:literal)* $(, $($rest:tt)*)?) => {
        $crate::__testing_payload!(
            $how $check ($crate::asserts::Words::these(&[$word $(, $more)*]))
            $($($rest)*)?
        )
    };
    ($how:ident $check:tt $word:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_payload!(
            $how $check ($crate::asserts::Words::one(&$word)) $($($rest)*)?
        )
    };
}

/// Takes the expected payload and the time.
#[doc(hidden)]
#[macro_export]
macro_rules! __testing_payload {
    ($how:ident ($check:expr) ($words:expr) $(timeout_ms = $time:expr)? $(,)?) => {
        $check.$how($words, $crate::asserts::Anything, $crate::__testing_time!($($time)?))
    };
    ($how:ident $check:tt $words:tt { $($json:tt)* } $(, $($time:tt)*)?) => {
        $crate::__testing_expect!(
            $how $check $words ($crate::__testing_json!({ $($json)* })) $($($time)*)?
        )
    };
    ($how:ident $check:tt $words:tt [ $($json:tt)* ] $(, $($time:tt)*)?) => {
        $crate::__testing_expect!(
            $how $check $words ($crate::__testing_json!([ $($json)* ])) $($($time)*)?
        )
    };
    ($how:ident $check:tt $words:tt null $(, $($time:tt)*)?) => {
        $crate::__testing_expect!(
            $how $check $words ($crate::__testing_json!(null)) $($($time)*)?
        )
    };
    ($how:ident $check:tt $words:tt $json:literal $(, $($time:tt)*)?) => {
        $crate::__testing_expect!(
            $how $check $words ($crate::__testing_json!($json)) $($($time)*)?
        )
    };
    ($how:ident $check:tt $words:tt == $exact:expr $(, $($time:tt)*)?) => {
        $crate::__testing_expect!(
            $how $check $words ($crate::asserts::Exactly::from($exact)) $($($time)*)?
        )
    };
    ($how:ident $check:tt $words:tt as $type:ty $(, $($time:tt)*)?) => {
        $crate::__testing_expect!(
            $how $check $words ($crate::asserts::typed::<$type>()) $($($time)*)?
        )
    };
    ($how:ident $check:tt $words:tt |$it:pat_param| $is:expr $(, $($time:tt)*)?) => {
        $crate::__testing_expect!(
            $how $check $words
            ($crate::asserts::meeting_json(
                |$it| $is,
                ::core::concat!("|", ::core::stringify!($it), "| ", ::core::stringify!($is)),
            ))
            $($($time)*)?
        )
    };
    ($how:ident $check:tt $words:tt |$it:ident : $type:ty| $is:expr $(, $($time:tt)*)?) => {
        $crate::__testing_expect!(
            $how $check $words
            ($crate::asserts::meeting(
                |$it: $type| $is,
                ::core::concat!(
                    "|",
                    ::core::stringify!($it),
                    ": ",
                    ::core::stringify!($type),
                    "| ",
                    ::core::stringify!($is),
                ),
            ))
            $($($time)*)?
        )
    };
    (assert ($check:expr) ($words:expr) $pat:pat $(if $guard:expr)?
        $(, timeout_ms = $time:expr)? $(,)?) => {
        #[allow(irrefutable_let_patterns, unused_variables)]
        let $pat = $check.assert(
            $words,
            $crate::__testing_pattern!($pat $(if $guard)?),
            $crate::__testing_time!($($time)?),
        ) else {
            ::core::unreachable!("it matched before")
        };
    };
    (refute ($check:expr) ($words:expr) $pat:pat $(if $guard:expr)?
        $(, timeout_ms = $time:expr)? $(,)?) => {
        $check.refute(
            $words,
            $crate::__testing_pattern!($pat $(if $guard)?),
            $crate::__testing_time!($($time)?),
        )
    };
}

/// Calls the check.
#[doc(hidden)]
#[macro_export]
macro_rules! __testing_expect {
    ($how:ident ($check:expr) ($words:expr) ($expect:expr)
        $(timeout_ms = $time:expr)? $(,)?) => {
        $check.$how($words, $expect, $crate::__testing_time!($($time)?))
    };
}

/// Checks that a value matches a pattern.
#[doc(hidden)]
#[macro_export]
macro_rules! __testing_pattern {
    ($pat:pat $(if $guard:expr)?) => {
        $crate::asserts::matching(
            |value| {
                #[allow(unused_variables, unreachable_patterns, clippy::all)]
                let is_it = match value {
                    $pat $(if $guard)? => true,
                    _ => false,
                };
                is_it
            },
            ::core::stringify!($pat $(if $guard)?),
        )
    };
}

/// The time to wait, if it is given.
#[doc(hidden)]
#[macro_export]
macro_rules! __testing_time {
    () => {
        ::core::option::Option::None
    };
    ($time:expr) => {
        ::core::option::Option::Some($time)
    };
}

/// A [`Pattern`](crate::asserts::Pattern), written as JSON.
#[doc(hidden)]
#[macro_export]
macro_rules! __testing_json {
    (_) => {
        $crate::asserts::Pattern::Any
    };
    (null) => {
        $crate::asserts::Pattern::is(&())
    };
    ({ $($members:tt)* }) => {
        $crate::__testing_members!(($crate::asserts::Pattern::object()) $($members)*)
    };
    ([ $($items:tt)* ]) => {
        $crate::__testing_items!(($crate::asserts::Pattern::array()) $($items)*)
    };
    ($value:expr) => {
        $crate::asserts::Pattern::is(&$value)
    };
}

/// The members of an object, one at a time.
#[doc(hidden)]
#[macro_export]
macro_rules! __testing_members {
    (($object:expr)) => {
        $object
    };
    (($object:expr) $key:literal : _ $(, $($rest:tt)*)?) => {
        $crate::__testing_members!(
            ($object.with($key, $crate::__testing_json!(_))) $($($rest)*)?
        )
    };
    (($object:expr) $key:literal : null $(, $($rest:tt)*)?) => {
        $crate::__testing_members!(
            ($object.with($key, $crate::__testing_json!(null))) $($($rest)*)?
        )
    };
    (($object:expr) $key:literal : { $($value:tt)* } $(, $($rest:tt)*)?) => {
        $crate::__testing_members!(
            ($object.with($key, $crate::__testing_json!({ $($value)* }))) $($($rest)*)?
        )
    };
    (($object:expr) $key:literal : [ $($value:tt)* ] $(, $($rest:tt)*)?) => {
        $crate::__testing_members!(
            ($object.with($key, $crate::__testing_json!([ $($value)* ]))) $($($rest)*)?
        )
    };
    (($object:expr) $key:literal : $value:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_members!(
            ($object.with($key, $crate::__testing_json!($value))) $($($rest)*)?
        )
    };
}

/// The values of an array, one at a time.
#[doc(hidden)]
#[macro_export]
macro_rules! __testing_items {
    (($array:expr)) => {
        $array
    };
    (($array:expr) ..) => {
        $array.and_more()
    };
    (($array:expr) _ $(, $($rest:tt)*)?) => {
        $crate::__testing_items!(($array.then($crate::__testing_json!(_))) $($($rest)*)?)
    };
    (($array:expr) null $(, $($rest:tt)*)?) => {
        $crate::__testing_items!(($array.then($crate::__testing_json!(null))) $($($rest)*)?)
    };
    (($array:expr) { $($value:tt)* } $(, $($rest:tt)*)?) => {
        $crate::__testing_items!(
            ($array.then($crate::__testing_json!({ $($value)* }))) $($($rest)*)?
        )
    };
    (($array:expr) [ $($value:tt)* ] $(, $($rest:tt)*)?) => {
        $crate::__testing_items!(
            ($array.then($crate::__testing_json!([ $($value)* ]))) $($($rest)*)?
        )
    };
    (($array:expr) $value:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_items!(($array.then($crate::__testing_json!($value))) $($($rest)*)?)
    };
}
