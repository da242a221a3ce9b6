//! `oncebox check`: what preflight says about every destination, without
//! sending anything.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use oncebox_core::preflight::{Grade, Inspection};
use serde_json::{Value, json};

use crate::config::{SinkConfig, shown};
use crate::fault::Fault;
use crate::output::{Format, plain};
use crate::relay::{ConfigArgs, Sink};

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
}

/// What was found about one sink, or why nothing was.
struct Found<'a> {
    config: &'a SinkConfig,
    place: String,
    inspections: Result<Vec<Inspection>, String>,
}

impl Found<'_> {
    fn passes(&self) -> bool {
        self.inspections
            .as_ref()
            .is_ok_and(|all| all.iter().all(|one| one.grade().satisfies(self.config.require)))
    }
}

pub(crate) async fn run(args: Args, format: Format) -> Result<ExitCode, Fault> {
    let config = args.config.load(&[])?;
    let sinks = config.sinks.iter().map(Sink::open).collect::<Result<Vec<_>, _>>()?;
    let mut found = Vec::new();
    for sink in &sinks {
        let inspections = sink.inspect().await;
        found.push(Found { config: &sink.config, place: sink.place(), inspections });
    }
    match format {
        Format::Json => println!("{}", as_json(&found)),
        Format::Text => print!("{}", as_text(&found)),
    }
    Ok(if found.iter().all(Found::passes) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_json(found: &[Found<'_>]) -> Value {
    let sinks: Vec<Value> = found
        .iter()
        .map(|found| {
            let (inspections, error) = match &found.inspections {
                Ok(inspections) => (inspections.iter().map(inspection_json).collect(), None),
                Err(reason) => (Vec::new(), Some(reason)),
            };
            json!({ "sink": found.config.name(), "to": found.config.kind.name(), "place": found.place,
                    "require": found.config.require.letter(), "passes": found.passes(), "error": error,
                    "destinations": inspections })
        })
        .collect();
    json!({ "v": 1, "passes": found.iter().all(Found::passes), "sinks": sinks })
}

fn inspection_json(inspection: &Inspection) -> Value {
    let findings: Vec<Value> = inspection
        .findings
        .iter()
        .map(|f| json!({ "grade": f.grade.letter(), "reason": f.reason, "advice": f.advice }))
        .collect();
    let destination = shown(&inspection.destination);
    json!({ "destination": destination, "grade": inspection.grade().letter(), "findings": findings })
}

fn as_text(found: &[Found<'_>]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for found in found {
        let (name, require) = (plain(found.config.name()), found.config.require);
        let _ = writeln!(text, "sink {name} to {}, requires {require}", plain(&found.place));
        match &found.inspections {
            Err(reason) => {
                let _ = writeln!(text, "  ! cannot be inspected: {}", plain(reason));
            }
            Ok(inspections) if inspections.is_empty() => {
                text.push_str(
                    "  no destination is known before a message names one; list some in `destinations`\n",
                );
            }
            Ok(inspections) => {
                let width =
                    inspections.iter().map(|one| shown(&one.destination).chars().count()).max().unwrap_or(0);
                for inspection in inspections {
                    text.push_str(&destination_text(inspection, width, require));
                }
            }
        }
    }
    text
}

fn destination_text(inspection: &Inspection, width: usize, require: Grade) -> String {
    use std::fmt::Write as _;
    let grade = inspection.grade();
    let mark = if grade.satisfies(require) { ' ' } else { '!' };
    let mut text = format!("{mark} {:<width$}  {grade}", plain(&shown(&inspection.destination)));
    if inspection.findings.is_empty() {
        text.push_str("  nothing to complain about");
    }
    text.push('\n');
    for finding in &inspection.findings {
        let _ = writeln!(text, "    {}  {}", finding.grade, plain(&finding.reason));
        if !finding.advice.is_empty() {
            let _ = writeln!(text, "       {}", plain(&finding.advice));
        }
    }
    text
}
