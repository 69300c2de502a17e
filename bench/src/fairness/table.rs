//! The lines of the table, with the sizes of a full run or of a short one.

use anyhow::Result;

use super::messages::Serializer;
use super::{cursors, field, flood, inbound, silent, suspended};
use simurgh_bench_kit::rounds::Options;
use simurgh_bench_kit::rounds::table::{Recipe, read};
use simurgh_bench_kit::stats;

/// The limit of a server's memory beyond the published bytes, MB.
const BESIDE_MB: f64 = 16.0;

fn mb(bytes: usize) -> f64 {
    stats::per(bytes, 1_000_000)
}

pub(super) fn recipes(options: &Options) -> Result<Vec<Recipe>> {
    let members = options.size(cursors::SILENT, cursors::SILENT_SHORT);
    let serializers = stats::per(Serializer::ALL.len(), 1);
    let at_cursors = mb(cursors::LARGE + members * cursors::SMALL) * serializers + BESIDE_MB;
    let values = [
        ("{many}", options.size("100,000", "10,000").to_owned()),
        ("{readers}", flood::READERS.to_string()),
        ("{members}", members.to_string()),
        ("{narrow}", format!("with {} MiB of address space", field::NARROW >> 20)),
        ("{cursors_mb}", at_cursors.to_string()),
        ("{one_mb}", (mb(silent::LARGE) + BESIDE_MB).to_string()),
        ("{all_mb}", (mb(silent::LARGE * silent::SILENT) + BESIDE_MB).to_string()),
        ("{watched_s}", silent::WATCHED_S.to_string()),
        ("{others}", inbound::OTHERS.to_string()),
        ("{clients}", options.size(suspended::CLIENTS, suspended::CLIENTS / 10).to_string()),
        ("{seconds}", options.size(90, 6).to_string()),
    ];
    read(include_str!("table.txt"), &values)
}
