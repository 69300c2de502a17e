//! The costs, and the prices they rest on.

use simurgh_text::format::{bytes, number};

use super::{Plans, by_load, table};
use crate::figures::{count, rate, share};
use crate::plan::Plan;
use crate::plan::node::delivered;
use crate::prices::{Kind, Price};

/// Hours of a month.
const HOURS: f64 = 730.0;

struct Bought {
    cores: f64,
    gigabytes: f64,
    terabytes: f64,
}

impl Bought {
    fn of(plan: &Plan) -> Self {
        let machines = &plan.machines;
        let servers = plan.servers.unwrap_or(f64::INFINITY);
        let nodes = plan.nodes + plan.proxies.as_ref().map_or(0.0, |it| it.all);
        let load = &plan.load;
        let sent = load.delivered() * delivered(load.payload)
            + load.presence_delivered() * delivered(160.0);
        Self {
            cores: nodes * machines.node_cores + servers * machines.broker_cores,
            gigabytes: (nodes * machines.node_memory + servers * machines.broker_memory) / 1e9,
            terabytes: sent * HOURS * 3600.0 / 1e12,
        }
    }
}

/// Bytes in streams.
fn disk(plans: &Plans<'_>, plan: &Plan) -> f64 {
    let load = &plan.load;
    let bytes = plans.prices.get("stored_bytes") + load.payload;
    load.rooms * load.kept * load.kept_each() * bytes * plan.machines.replicas
}

pub(super) fn costs(plans: &Plans<'_>) -> String {
    let costs = plans.costs;
    let pay = |price: Option<f64>, flag: &str, amount: f64| match price {
        Some(price) => count(price * amount),
        None => format!("put yours: {flag}"),
    };
    by_load(
        plans,
        "in a month",
        &[
            ("cores, all machines", &|it| count(Bought::of(it).cores)),
            ("cost of them", &|it| {
                pay(costs.core_hour, "--core-hour", Bought::of(it).cores * HOURS)
            }),
            ("GB of memory", &|it| count(Bought::of(it).gigabytes)),
            ("cost of it", &|it| pay(costs.gb_month, "--gb-month", Bought::of(it).gigabytes)),
            ("TB of disk for what is kept, all copies", &|it| count(disk(plans, it) / 1e12)),
            ("TB to clients, packets included", &|it| count(Bought::of(it).terabytes)),
            ("cost of these", &|it| pay(costs.tb, "--tb", Bought::of(it).terabytes)),
            ("clients a core", &|it| count(it.load.clients / Bought::of(it).cores)),
        ],
    )
}

fn value(price: &Price) -> String {
    let text = match price.unit.as_str() {
        "B" => bytes(price.value),
        "1/s" => rate(price.value),
        "share" => share(price.value),
        "factor" => format!("× {}", number(price.value)),
        unit if price.value >= 1000.0 => format!("{} {unit}", count(price.value)),
        unit => format!("{} {unit}", number(price.value)),
    };
    let at = price.at.map(|it| format!(", with {} clients", count(it))).unwrap_or_default();
    text + &at
}

pub(super) fn assumed(plans: &Plans<'_>) -> String {
    let all = plans.prices.iter().filter(|it| it.kind == Kind::Assumed);
    let row = |it: &Price| vec![it.what.clone(), value(it), it.source.clone()];
    table(&["nobody has measured", "assumed", "whose it is"], all.map(row).collect())
}

pub(super) fn prices(plans: &Plans<'_>) -> String {
    let all = plans.prices.iter().filter(|it| it.kind != Kind::Assumed);
    let row = |it: &Price| {
        let source = match it.quote {
            Some(_) => {
                let name = it.source.rsplit('/').next().unwrap_or_default();
                let link = it
                    .source
                    .strip_prefix("docs/")
                    .map_or_else(|| format!("../{}", it.source), str::to_owned);
                format!("[{name}]({link})")
            }
            None => it.source.clone(),
        };
        vec![it.what.clone(), value(it), it.kind.name().to_owned(), source]
    };
    let rows: Vec<Vec<String>> = all.map(row).collect();
    let text = table(&["price", "", "how it is known", "from"], rows);
    format!("\nMeasured on: {}.\n{text}", plans.prices.machine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Costs;
    use crate::load::{Load, Machines};
    use crate::prices::Prices;

    #[test]
    fn nobody_is_told_a_price_that_was_not_given() {
        let prices = Prices::read(None).unwrap();
        let loads = Load::all(None).unwrap();
        let machines = Machines::default();
        let plans = |costs| Plans::new(&loads, &machines, &prices, costs, None);
        assert_eq!(super::costs(&plans(Costs::default())).matches("put yours").count(), 12);
        let own = Costs { core_hour: Some(0.02), ..Costs::default() };
        assert_eq!(super::costs(&plans(own)).matches("put yours").count(), 8);
    }
}
