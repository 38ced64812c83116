//! What came out: medians, ranges and ratios of all rounds.

use crate::load::Sample;

/// One row, over all rounds.
pub struct Row {
    pub what: &'static str,
    /// What it is measured against.
    pub against: String,
    pub rounds: Vec<Round>,
}

pub struct Round {
    pub ours: Sample,
    pub unit: f64,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The median, and the least and the most.
fn range(values: &[f64], digits: usize) -> String {
    let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(least, most), value| {
        (least.min(*value), most.max(*value))
    });
    format!(
        "{:.digits$} ({least:.digits$}–{most:.digits$})",
        median(values.to_vec())
    )
}

pub const HEAD: &str = "| work | against | ours a second | unit a second | ratio | p50 / p99 ms | CPU µs: client + server + PostgreSQL | in a group: dispatches / reserves / calls |\n\
    | --- | --- | --- | --- | --- | --- | --- | --- |";

impl Row {
    pub fn line(&self) -> String {
        let of = |value: &dyn Fn(&Round) -> f64| self.rounds.iter().map(value).collect::<Vec<f64>>();
        let mid = |value: &dyn Fn(&Round) -> f64| median(of(value));
        format!(
            "| {} | {} | {} | {} | **{}** | {:.1} / {:.1} | {:.0} + {:.0} + {:.0} | {:.0} / {:.0} / {:.0} |",
            self.what,
            self.against,
            range(&of(&|round| round.ours.per_second), 0),
            range(&of(&|round| round.unit), 0),
            range(&of(&|round| round.ours.per_second / round.unit), 2),
            mid(&|round| round.ours.p50),
            mid(&|round| round.ours.p99),
            mid(&|round| round.ours.cpu.client),
            mid(&|round| round.ours.cpu.server),
            mid(&|round| round.ours.cpu.postgres),
            mid(&|round| round.ours.groups[0]),
            mid(&|round| round.ours.groups[1]),
            mid(&|round| round.ours.groups[2]),
        )
    }
}
