//! What came out: medians, ranges and ratios of all rounds.

use std::fs;

use crate::load::{Failed, Sample};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/performance.md");
const BEGIN: &str = "<!-- scripts/bench --write: from here -->\n";
const END: &str = "<!-- to here -->\n";

/// What has come out until now, shown as it comes.
#[derive(Default)]
pub struct Report(String);

impl Report {
    pub fn line(&mut self, line: &str) {
        println!("{line}");
        self.0.push_str(line);
        self.0.push('\n');
    }

    /// Puts it in its place in the documentation.
    pub fn write(&self) -> Result<(), Failed> {
        let page = fs::read_to_string(PAGE)?;
        let (head, rest) = page.split_once(BEGIN).ok_or("the page has no place for the table")?;
        let (_, tail) = rest.split_once(END).ok_or("the place for the table has no end")?;
        Ok(fs::write(PAGE, format!("{head}{BEGIN}\n{}\n{END}{tail}", self.0))?)
    }
}

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
