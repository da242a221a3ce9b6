//! Measures, for people and for programs.

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::machine;

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A table.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// What a ratio must be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    AtLeast(f64),
    Above(f64),
    Below(f64),
    AtMost(f64),
}

impl Target {
    fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(bound) => ratio >= bound,
            Self::Above(bound) => ratio > bound,
            Self::Below(bound) => ratio < bound,
            Self::AtMost(bound) => ratio <= bound,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(bound) => format!(">={bound}"),
            Self::Above(bound) => format!(">{bound}"),
            Self::Below(bound) => format!("<{bound}"),
            Self::AtMost(bound) => format!("<={bound}"),
        }
    }
}

/// One measure: what ours and the ceiling did in each round.
#[derive(Clone, Debug)]
pub(crate) struct Measure {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) rounds: Vec<(f64, f64)>,
    pub(crate) target: Target,
    pub(crate) load: f64,
}

impl Measure {
    pub(crate) fn new(name: impl Into<String>, rounds: Vec<(f64, f64)>, target: Target) -> Self {
        Self { name: name.into(), unit: "messages/s", rounds, target, load: machine::load() }
    }

    fn ratios(&self) -> Vec<f64> {
        self.rounds.iter().map(|(ours, ceiling)| ours / ceiling).collect()
    }

    pub(crate) fn ratio(&self) -> f64 {
        median(self.ratios())
    }

    pub(crate) fn passed(&self) -> bool {
        self.target.is_met(self.ratio())
    }

    fn json(&self) -> Value {
        let ratios = self.ratios();
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        json!({
            "v": 1,
            "name": self.name,
            "unit": self.unit,
            "ours": round(median(self.rounds.iter().map(|r| r.0).collect()), 1),
            "ceiling": round(median(self.rounds.iter().map(|r| r.1).collect()), 1),
            "ratio": round(self.ratio(), 3),
            "rounds": self.rounds.len(),
            "spread": [round(least, 3), round(most, 3)],
            "target": self.target.text(),
            "pass": self.passed(),
            "load": self.load,
        })
    }

    pub(crate) fn print(&self, output: Output) {
        let json = self.json();
        if output == Output::Json {
            println!("{json}");
            return;
        }
        println!(
            "{:<44} {:>11} {:>11} {:>7} {:>15} {:>7}  {}",
            self.name,
            json["ours"].to_string(),
            json["ceiling"].to_string(),
            json["ratio"].to_string(),
            format!("{}..{}", json["spread"][0], json["spread"][1]),
            self.target.text(),
            if self.passed() { "pass" } else { "MISS" },
        );
    }
}

/// Says that something was not measured, and why.
pub(crate) fn not_available(name: &str, reason: &str, output: Output) {
    match output {
        Output::Json => println!("{}", json!({"v": 1, "name": name, "not_available": reason})),
        Output::Text => println!("{name:<44} not available: {reason}"),
    }
}

/// Something that explains a measure and is none.
pub(crate) fn note(name: &str, facts: &Value, output: Output) {
    match output {
        Output::Json => println!("{}", json!({"v": 1, "name": name, "facts": facts})),
        Output::Text => println!("{name:<44} {facts}"),
    }
}

/// The conditions of a run, before its measures.
pub(crate) fn conditions(facts: &Value, output: Output) {
    match output {
        Output::Json => println!("{}", json!({"v": 1, "name": "conditions", "facts": facts})),
        Output::Text => {
            for (name, value) in facts.as_object().into_iter().flatten() {
                println!("{name}: {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            }
            println!(
                "\n{:<44} {:>11} {:>11} {:>7} {:>15} {:>7}",
                "measure (per second)", "ours", "ceiling", "ratio", "spread", "target"
            );
        }
    }
}

pub(crate) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() {
        0 => f64::NAN,
        even if even % 2 == 0 => f64::midpoint(numbers[middle - 1], numbers[middle]),
        _ => numbers[middle],
    }
}

fn round(number: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (number * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_own_ratios() {
        let rounds = vec![(1.0, 1.0), (4.0, 2.0), (9.0, 1.0)];

        let measure = Measure::new("m", rounds, Target::AtLeast(2.0));

        assert!((measure.ratio() - 2.0).abs() < 1e-9);
        assert!(measure.passed());
        assert_eq!(measure.json()["spread"], json!([1.0, 9.0]));
    }
}
