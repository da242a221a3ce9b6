//! `oncebox gate check`: tries a gate of any make with a list of cases.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use serde_json::json;
use tokio::sync::Semaphore;

use super::ProfileName;
use super::cases::{CASES, Case, Conclusion, Stand};
use super::client::Target;
use crate::fault::{Class, Fault};
use crate::output::{Format, plain};

/// No case takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// The gate, with the fixture's service behind it, as http://host:port
    #[arg(long, value_name = "URL")]
    target: String,
    /// What the gate should behave like
    #[arg(long, value_enum, default_value = "ietf")]
    profile: ProfileName,
    /// What the gate can do beyond the plain cases; others are left out
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["routes", "tenants", "limits", "strategies", "faults"])]
    with: Vec<Ability>,
    /// Another gate on the same store, as http://host:port
    #[arg(long, value_name = "URL")]
    second: Option<String>,
    /// Only cases whose id begins like this
    #[arg(long, value_name = "ID")]
    only: Option<String>,
    /// Cases at once
    #[arg(long, value_name = "N", default_value_t = 8)]
    workers: usize,
}

/// What a gate may be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Ability {
    /// It has the paths of `oncebox gate fixture`, each with a policy of its own
    Routes,
    /// It tells callers apart by `authorization` and tenants by `x-fx-tenant`
    Tenants,
    /// It has the fixture's limits for bodies
    Limits,
    /// It has the fixture's paths for other requests under a key
    Strategies,
    /// It has the fixture's paths whose store is down
    Faults,
    /// It is a proxy
    Proxy,
    /// There is a second one
    #[value(skip)]
    Second,
}

/// One case, tried.
struct Tried {
    case: &'static Case,
    conclusion: Conclusion,
}

pub(crate) async fn run(args: Args, format: Format) -> Result<ExitCode, Fault> {
    let target = parse("--target", &args.target)?;
    let second = args.second.as_deref().map(|url| parse("--second", url)).transpose()?;
    let can = |need: &Ability| match need {
        Ability::Second => second.is_some(),
        other => args.with.contains(other),
    };
    if let Err(error) = target.count("nothing").await {
        let text = format!("the fixture behind {} does not answer: {error}", args.target);
        return Err(Fault::new(Class::Unreachable, text).help("start it with: oncebox gate fixture"));
    }
    let wanted = |case: &&Case| args.only.as_ref().is_none_or(|only| case.id.starts_with(only.as_str()));
    let places = Arc::new(Semaphore::new(args.workers.max(1)));
    let tasks: Vec<_> = CASES
        .iter()
        .filter(wanted)
        .map(|case| {
            let stand = Stand::new(&target, case.id, args.profile).beside(second.as_ref());
            let (places, can) = (Arc::clone(&places), case.needs.iter().all(can));
            tokio::spawn(async move {
                if !can {
                    return Tried { case, conclusion: Conclusion::NotApplicable };
                }
                let _place = places.acquire().await;
                let tried = tokio::time::timeout(PATIENCE, (case.run)(stand)).await;
                let late = || Err("the case was not over in time".to_owned());
                Tried { case, conclusion: tried.unwrap_or_else(|_| late()).into() }
            })
        })
        .collect();
    let mut tried = Vec::new();
    for task in tasks {
        tried.push(
            task.await.map_err(|error| Fault::new(Class::Failed, format!("a case fell over: {error}")))?,
        );
    }
    print(&tried, format);
    let is_failed = tried.iter().any(|tried| matches!(tried.conclusion, Conclusion::Failed(_)));
    Ok(if is_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn parse(flag: &str, url: &str) -> Result<Target, Fault> {
    Target::parse(url).ok_or_else(|| {
        Fault::new(Class::Input, format!("{flag} is no URL of the form http://host:port"))
            .help("TLS is not spoken here")
    })
}

fn print(tried: &[Tried], format: Format) {
    let count = |letter: &str| tried.iter().filter(|tried| tried.conclusion.letter() == letter).count();
    let (passed, failed, left_out) = (count("P"), count("F"), count("N/A"));
    if format == Format::Json {
        let cases: Vec<_> = tried
            .iter()
            .map(|tried| {
                json!({ "id": tried.case.id, "what": tried.case.what, "verdict": tried.conclusion.letter(),
                        "observed": tried.conclusion.observed() })
            })
            .collect();
        let sums =
            json!({ "v": 1, "passed": passed, "failed": failed, "not_applicable": left_out, "cases": cases });
        println!("{sums}");
        return;
    }
    for Tried { case, conclusion } in tried {
        println!("{:<4} {:<3}  {}", conclusion.letter(), case.id, case.what);
        if let Conclusion::Failed(observed) = conclusion {
            println!("          {}", plain(observed));
        }
    }
    println!("{passed} passed, {failed} failed, {left_out} not applicable");
}
