//! Which assumption breaks first.

use super::{Plans, table};
use crate::figures::count;
use crate::plan::limits::Limit;

/// Limits with more headroom than this are counted, not shown.
const FAR: f64 = 50.0;

pub(super) fn limits(plans: &Plans<'_>) -> String {
    let mut text = String::new();
    for plan in &plans.all {
        let all: Vec<Limit> = crate::plan::limits::limits(plan, plans.prices);
        let (near, far): (Vec<&Limit>, Vec<&Limit>) = all.iter().partition(|it| it.headroom <= FAR);
        let rows: Vec<Vec<String>> = near.iter().map(|it| row(it)).collect();
        text += &format!("\n**{}**\n", plan.load.name);
        text += &table(
            &["limit", "is", "may be", "headroom", "rests on", "what would have to change"],
            rows,
        );
        if !far.is_empty() {
            let names: Vec<&str> = far.iter().map(|it| it.name).collect();
            let words = "More than fifty times as much room:";
            text += &format!("{words} {}.\n\n", names.join("; "));
        }
    }
    text
}

fn row(limit: &Limit) -> Vec<String> {
    let times = format!("{} ×", count(limit.headroom));
    vec![
        limit.name.to_owned(),
        limit.is.clone(),
        limit.may.clone(),
        if limit.headroom < 1.0 { format!("**{times}**") } else { times },
        limit.basis.name().to_owned(),
        limit.then.to_owned(),
    ]
}
