//! The tables that are printed and are in docs/SCALE.md.

mod cells;
mod limits;
mod plans;
mod prices;
mod simulated;

use simurgh_bench_kit::report;

use crate::args::Costs;
use crate::load::{Load, Machines};
use crate::plan::Plan;
use crate::prices::Prices;

/// Plans for some loads on the same machines.
pub struct Plans<'a> {
    prices: &'a Prices,
    machines: Machines,
    costs: Costs,
    seed: Option<u64>,
    all: Vec<Plan>,
}

impl<'a> Plans<'a> {
    /// Computes the plans.
    pub fn new(
        loads: &[Load],
        machines: &Machines,
        prices: &'a Prices,
        costs: Costs,
        seed: Option<u64>,
    ) -> Self {
        let all = loads.iter().map(|load| Plan::new(load, machines, prices)).collect();
        Self { prices, machines: machines.clone(), costs, seed, all }
    }

    /// All tables with their names, each a Markdown table between empty lines.
    pub fn tables(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![
            ("loads", plans::loads(self)),
            ("machines", plans::machines(self)),
            ("memory", plans::memory(self)),
            ("cpu", plans::cpu(self)),
            ("links", plans::links(self)),
            ("domains", plans::domains(self)),
            ("deploys", plans::deploys(self)),
            ("limits", limits::limits(self)),
            ("cells", cells::cells(self)),
        ];
        if let Some(seed) = self.seed {
            all.extend([
                ("interests", simulated::interests(self, seed)),
                ("beats", simulated::beats(self, seed)),
                ("storms", simulated::storms(self, seed)),
            ]);
        }
        all.extend([
            ("costs", prices::costs(self)),
            ("assumed", prices::assumed(self)),
            ("prices", prices::prices(self)),
        ]);
        all
    }
}

/// A Markdown table between empty lines; all but the first column may be numbers.
fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    format!("\n{}\n", report::table(head, rows))
}

/// The cell of a row for a plan.
type Show<'a> = &'a dyn Fn(&Plan) -> String;

/// A table with a column for each plan.
fn by_load(plans: &Plans<'_>, first: &str, rows: &[(&str, Show<'_>)]) -> String {
    let names = plans.all.iter().map(|it| it.load.name.as_str());
    let head: Vec<&str> = std::iter::once(first).chain(names).collect();
    let row = |(name, show): &(&str, Show<'_>)| {
        let cells = plans.all.iter().map(show);
        std::iter::once((*name).to_owned()).chain(cells).collect()
    };
    table(&head, rows.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_every_table_has_as_many_cells_as_its_head() {
        let prices = Prices::read(None).unwrap();
        let loads = Load::all(None).unwrap();
        let machines = Machines::default();
        let plans = Plans::new(&loads, &machines, &prices, Costs::default(), None);
        let tables = plans.tables();
        assert_eq!(tables.len(), 12);
        for (name, text) in tables {
            let mut cells = 0;
            for line in text.lines() {
                if !line.starts_with('|') {
                    cells = 0;
                    continue;
                }
                let own = line.matches(" | ").count();
                assert!(!line.contains("NaN"), "{name}: {line}");
                match cells {
                    0 => cells = own + 1,
                    _ if line.starts_with("|---") => {}
                    _ => assert_eq!(own + 1, cells, "{name}: {line}"),
                }
            }
        }
    }
}
