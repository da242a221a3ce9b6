//! `oncebox gate check`: tries a gate of any make with a list of cases, each
//! alone and then all of them at once.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args as ClapArgs;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::ProfileName;
use super::cases::{Ability, CASES, Case, Conclusion, Stand};
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
    /// What the gate can do beyond the plain cases, and what it is; what it cannot is not applicable
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_values = ["routes", "wait", "tenants", "limits", "strategies", "faults", "capped", "grpc"]
    )]
    with: Vec<Ability>,
    /// Another gate on the same store, as http://host:port
    #[arg(long, value_name = "URL")]
    second: Option<String>,
    /// What kills the gate with SIGKILL and starts it again, for a shell; its receipts must outlive that
    #[arg(long, value_name = "COMMAND")]
    restart: Option<String>,
    /// Only cases whose id begins like this
    #[arg(long, value_name = "ID")]
    only: Option<String>,
    /// Cases at once, after each was tried alone
    #[arg(long, value_name = "N", default_value_t = 8)]
    workers: usize,
    /// In which order they are tried at once; drawn if it is not given
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Also tell what was seen where a case passed, and why one is not applicable
    #[arg(short, long)]
    verbose: bool,
}

/// One case, tried.
struct Tried {
    case: &'static Case,
    conclusion: Conclusion,
    observed: Vec<String>,
}

impl Tried {
    /// What two tries say together: it must have held in both.
    fn and(self, later: Option<Self>) -> Self {
        match later {
            Some(later) if self.conclusion == Conclusion::Passed => match later.conclusion {
                Conclusion::Failed(why) => {
                    Self { conclusion: Conclusion::Failed(format!("beside others: {why}")), ..later }
                }
                _ => later,
            },
            _ => self,
        }
    }
}

/// The gate, and how it is tried.
#[derive(Clone)]
struct Trial {
    target: Target,
    second: Option<Target>,
    restart: Option<String>,
    profile: ProfileName,
    abilities: Arc<[Ability]>,
}

impl Trial {
    fn of(args: &Args) -> Result<Self, Fault> {
        let target = parse("--target", &args.target)?;
        let second = args.second.as_deref().map(|url| parse("--second", url)).transpose()?;
        let given = [
            (Ability::Multi, second.is_some()),
            (Ability::Persist, args.restart.is_some()),
            (Ability::Atp, args.profile == ProfileName::Atp),
        ];
        for (ability, is_given) in given {
            if args.with.contains(&ability) && !is_given {
                let text = format!("--with: a case of that kind {}", ability.lacking());
                return Err(Fault::new(Class::Input, text));
            }
        }
        let given = given.into_iter().filter(|(_, is_given)| *is_given).map(|(ability, _)| ability);
        let abilities = args.with.iter().copied().chain(given).collect();
        Ok(Self { target, second, restart: args.restart.clone(), profile: args.profile, abilities })
    }

    async fn attempt(self, case: &'static Case) -> Tried {
        let stand = Stand::new(&self.target, case.id, self.profile).beside(self.second.as_ref());
        let stand = stand.restarted_by(self.restart.as_deref()).able(&self.abilities);
        // In a task of its own, so that one that falls over does not take the others along.
        let run = tokio::spawn(tokio::time::timeout(PATIENCE, (case.run)(stand.clone())));
        let outcome = match run.await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err("the case was not over in time".into()),
            Err(error) => Err(format!("the case fell over: {error}")),
        };
        Tried { case, conclusion: outcome.into(), observed: stand.observed() }
    }

    /// Each alone, in the order they are listed.
    async fn alone(&self, cases: &[&'static Case]) -> Vec<Tried> {
        let mut tried = Vec::new();
        for case in cases {
            tried.push(match case.reason_against(&self.abilities) {
                Some(why) => Tried { case, conclusion: Conclusion::NotApplicable(why), observed: Vec::new() },
                None => self.clone().attempt(case).await,
            });
        }
        tried
    }

    /// Many at once, shuffled; those that need quiet have it afterwards.
    async fn together(&self, cases: &[&'static Case], workers: usize) -> Vec<Tried> {
        let places = Arc::new(Semaphore::new(workers.max(1)));
        let (mut running, mut tried) = (JoinSet::new(), Vec::new());
        for case in cases.iter().copied().filter(|case| !case.is_quiet) {
            let place = Arc::clone(&places).acquire_owned().await;
            let trial = self.clone();
            running.spawn(async move {
                let _place = place;
                trial.attempt(case).await
            });
        }
        while let Some(one) = running.join_next().await {
            tried.extend(one.ok());
        }
        for case in cases.iter().copied().filter(|case| case.is_quiet) {
            tried.push(self.clone().attempt(case).await);
        }
        tried
    }
}

pub(crate) async fn run(args: Args, format: Format) -> Result<ExitCode, Fault> {
    let trial = Trial::of(&args)?;
    if let Err(error) = trial.target.count("nothing").await {
        let text = format!("the fixture behind {} does not answer: {error}", args.target);
        return Err(Fault::new(Class::Unreachable, text).help("start it with: oncebox gate fixture"));
    }
    let wanted = |case: &&Case| args.only.as_ref().is_none_or(|only| case.id.starts_with(only.as_str()));
    let cases: Vec<&Case> = CASES.iter().filter(wanted).collect();
    let seed = args.seed.unwrap_or_else(drawn);
    let alone = trial.alone(&cases).await;
    // What failed alone has its verdict.
    let passed = alone.iter().filter(|tried| tried.conclusion == Conclusion::Passed);
    let mut again: Vec<&Case> = passed.map(|tried| tried.case).collect();
    again.sort_by_cached_key(|case| lot(seed, case.id));
    let mut together = trial.together(&again, args.workers).await;
    let tried: Vec<Tried> = alone
        .into_iter()
        .map(|first| {
            let place = together.iter().position(|later| later.case.id == first.case.id);
            let later = place.map(|place| together.swap_remove(place));
            first.and(later)
        })
        .collect();
    print(&tried, seed, format, args.verbose);
    let is_failed = tried.iter().any(|tried| matches!(tried.conclusion, Conclusion::Failed(_)));
    Ok(if is_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Few digits, to be typed again.
fn drawn() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1 % 1_000_000
}

/// Where a case comes in the order of a seed.
fn lot(seed: u64, id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, id).hash(&mut hasher);
    hasher.finish()
}

fn parse(flag: &str, url: &str) -> Result<Target, Fault> {
    Target::parse(url).ok_or_else(|| {
        Fault::new(Class::Input, format!("{flag} is no URL of the form http://host:port"))
            .help("TLS is not spoken here")
    })
}

fn print(tried: &[Tried], seed: u64, format: Format, is_verbose: bool) {
    let count = |letter: &str| tried.iter().filter(|tried| tried.conclusion.letter() == letter).count();
    let (passed, failed, left_out) = (count("P"), count("F"), count("N/A"));
    if format == Format::Json {
        let case = |tried: &Tried| {
            json!({ "id": tried.case.id, "what": tried.case.what, "verdict": tried.conclusion.letter(),
                    "why": tried.conclusion.why(), "observed": tried.observed })
        };
        let cases: Vec<_> = tried.iter().map(case).collect();
        let sums = json!({ "v": 1, "passed": passed, "failed": failed, "not_applicable": left_out,
                           "seed": seed, "cases": cases });
        println!("{sums}");
        return;
    }
    for Tried { case, conclusion, observed } in tried {
        println!("{:<4} {:<3}  {}", conclusion.letter(), case.id, case.what);
        let is_told = is_verbose || matches!(conclusion, Conclusion::Failed(_));
        if let Some(why) = conclusion.why().filter(|_| is_told) {
            println!("          {}", plain(why));
        }
        if is_told && !observed.is_empty() {
            println!("          seen: {}", plain(&observed.join(", ")));
        }
    }
    println!("{passed} passed, {failed} failed, {left_out} not applicable; seed {seed}");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_a_seed_is_an_order() {
        let order = |seed| {
            let mut ids: Vec<_> = CASES.iter().map(|case| case.id).collect();
            ids.sort_by_cached_key(|id| lot(seed, id));
            ids
        };
        assert_eq!(order(1).into_iter().collect::<BTreeSet<_>>().len(), CASES.len());
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn what_holds_alone_and_not_beside_others_does_not_hold() {
        let case = CASES.first().unwrap();
        let tried = |conclusion| Tried { case, conclusion, observed: Vec::new() };
        let failed = || Conclusion::Failed("why".into());

        let both = tried(Conclusion::Passed).and(Some(tried(Conclusion::Passed)));
        assert_eq!(both.conclusion, Conclusion::Passed);
        let later = tried(Conclusion::Passed).and(Some(tried(failed())));
        assert_eq!(later.conclusion.why(), Some("beside others: why"));
        assert_eq!(tried(failed()).and(None).conclusion, failed());
    }
}
