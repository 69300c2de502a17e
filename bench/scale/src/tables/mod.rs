//! What is printed, and stands in docs/SCALE.md.

mod cells;
mod limited;
mod planned;
mod played;
mod priced;

use crate::args::Costs;
use crate::load::{Load, Machines};
use crate::plan::Plan;
use crate::prices::Prices;

/// Plans for some loads on the same machines.
pub struct Scene<'a> {
    prices: &'a Prices,
    machines: Machines,
    costs: Costs,
    /// What is played through has a seed.
    seed: Option<u64>,
    plans: Vec<Plan>,
}

impl<'a> Scene<'a> {
    /// Works them out.
    pub fn new(
        loads: &[Load],
        machines: &Machines,
        prices: &'a Prices,
        costs: Costs,
        seed: Option<u64>,
    ) -> Self {
        let plans = loads.iter().map(|load| Plan::new(load, machines, prices)).collect();
        Self { prices, machines: machines.clone(), costs, seed, plans }
    }

    /// All tables with their names, each a Markdown table and an empty line around it.
    pub fn tables(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![
            ("loads", planned::loads(self)),
            ("machines", planned::machines(self)),
            ("memory", planned::memory(self)),
            ("cpu", planned::cpu(self)),
            ("links", planned::links(self)),
            ("domains", planned::domains(self)),
            ("deploys", planned::deploys(self)),
            ("limits", limited::limits(self)),
            ("cells", cells::cells(self)),
        ];
        if let Some(seed) = self.seed {
            all.extend([
                ("interests", played::interests(self, seed)),
                ("beats", played::beats(self, seed)),
                ("storms", played::storms(self, seed)),
            ]);
        }
        all.extend([
            ("costs", priced::costs(self)),
            ("assumed", priced::assumed(self)),
            ("prices", priced::prices(self)),
        ]);
        all
    }
}

/// A Markdown table between empty lines; all but the first column may be numbers.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let names: Vec<String> = head.iter().map(|it| (*it).to_owned()).collect();
    let rule = format!("|{}\n", "---|".repeat(head.len()));
    let body: String = rows.iter().map(|row| line(row)).collect();
    format!("\n{}{rule}{body}\n", line(&names))
}

/// What a row shows of a plan.
type Show<'a> = &'a dyn Fn(&Plan) -> String;

/// A table with a column for each plan: what each row shows of it.
fn by_load(scene: &Scene<'_>, first: &str, rows: &[(&str, Show<'_>)]) -> String {
    let names = scene.plans.iter().map(|it| it.load.name.as_str());
    let head: Vec<&str> = std::iter::once(first).chain(names).collect();
    let row = |(name, show): &(&str, Show<'_>)| {
        let cells = scene.plans.iter().map(show);
        std::iter::once((*name).to_owned()).chain(cells).collect()
    };
    table(&head, &rows.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_every_table_has_as_many_cells_as_its_head() {
        let prices = Prices::read(None).unwrap();
        let loads = Load::all(None).unwrap();
        let machines = Machines::default();
        let scene = Scene::new(&loads, &machines, &prices, Costs::default(), None);
        let tables = scene.tables();
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
