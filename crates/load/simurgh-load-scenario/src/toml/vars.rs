//! The variables of a scenario: those that a step sets, in the order of the text. A finished
//! scenario gives the same order, so that a written scenario is read with the same numbers.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::{Act, Scenario, VarId};

/// Names that are set in the sessions of a text. Mistakes are reported elsewhere.
pub(super) fn declared(root: &DeTable<'_>) -> Vec<String> {
    let mut names = Vec::new();
    let mut add = |name: &str| {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    };
    if let Some(known) = root.get("vars") {
        texts(known).for_each(&mut add);
    }
    let sessions = root.get("session").into_iter().flat_map(one_or_more);
    for steps in sessions.filter_map(|session| session.get_ref().get("steps")) {
        in_steps(steps, &mut add);
    }
    names
}

fn in_steps(steps: &Spanned<DeValue<'_>>, add: &mut dyn FnMut(&str)) {
    for step in one_or_more(steps) {
        let step = step.get_ref();
        for key in ["set", "counter", "each"] {
            step.get(key).into_iter().flat_map(texts).for_each(&mut *add);
        }
        match step.get("capture").map(Spanned::get_ref) {
            Some(DeValue::Table(table)) => {
                let mut names: Vec<_> = table.keys().collect();
                names.sort_by_key(|name| name.span().start);
                names.iter().for_each(|name| add(name.get_ref()));
            }
            Some(DeValue::Array(captures)) => {
                let pairs = captures.iter().filter_map(|pair| pair.get_ref().get(0));
                pairs.flat_map(texts).for_each(&mut *add);
            }
            _ => {}
        }
        if let Some(steps) = step.get("steps") {
            in_steps(steps, add);
        }
    }
}

fn one_or_more<'v, 'i>(value: &'v Spanned<DeValue<'i>>) -> &'v [Spanned<DeValue<'i>>] {
    match value.get_ref() {
        DeValue::Array(values) => values,
        _ => std::slice::from_ref(value),
    }
}

fn texts<'v>(value: &'v Spanned<DeValue<'_>>) -> impl Iterator<Item = &'v str> {
    one_or_more(value).iter().filter_map(|value| value.get_ref().as_str())
}

/// The same for a finished scenario.
pub(super) fn set(scenario: &Scenario) -> Vec<VarId> {
    let mut vars = Vec::new();
    scenario.each_step(|_, step| {
        match &step.act {
            Act::Set(set) => set.vars.iter().for_each(|var| add(&mut vars, *var)),
            Act::For(each) => each.var.iter().for_each(|var| add(&mut vars, *var)),
            Act::ForEach(each) => add(&mut vars, each.var),
            _ => {}
        }
        let captures = step.act.answer().into_iter().flat_map(|answer| &answer.captures);
        captures.for_each(|capture| add(&mut vars, capture.var));
    });
    vars
}

fn add(vars: &mut Vec<VarId>, var: VarId) {
    if !vars.contains(&var) {
        vars.push(var);
    }
}
