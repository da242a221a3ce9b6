//! Where a case stands: its target, its profile, a counter of its own, and what it has seen.

use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::super::ProfileName;
use super::super::client::{Answer, Message, Target};
use super::ability::Ability;
use super::{Outcome, ensure, expect, pause};

/// A gate that was killed answers again by then.
const BACK: Duration = Duration::from_secs(30);
/// Of what was seen, so much is kept.
const SIGHTS: usize = 64;

/// What a case saw, in order; the same again is counted.
#[derive(Debug, Default)]
struct Seen(Mutex<Vec<(String, usize)>>);

impl Seen {
    fn add(&self, sight: String) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, times)) = all.last_mut().filter(|(last, _)| *last == sight) {
            *times += 1;
        } else if all.len() < SIGHTS {
            all.push((sight, 1));
        }
    }

    fn told(&self) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let one = |(sight, times): &(String, usize)| match times {
            1 => sight.clone(),
            _ => format!("{sight} x{times}"),
        };
        all.iter().map(one).collect()
    }
}

#[derive(Clone, Debug)]
pub(in crate::gate) struct Stand {
    pub(super) target: Target,
    /// Another gate on the same store.
    second: Option<Target>,
    /// Kills the gate and starts it again.
    restart: Option<Arc<str>>,
    profile: ProfileName,
    abilities: Arc<[Ability]>,
    pub(super) case: String,
    seen: Arc<Seen>,
}

impl Stand {
    pub(in crate::gate) fn new(target: &Target, id: &str, profile: ProfileName) -> Self {
        Self {
            target: target.clone(),
            second: None,
            restart: None,
            profile,
            abilities: Arc::new([]),
            case: format!("{id}-{}", uuid::Uuid::new_v4().simple()),
            seen: Arc::default(),
        }
    }

    pub(in crate::gate) fn beside(self, second: Option<&Target>) -> Self {
        Self { second: second.cloned(), ..self }
    }

    pub(in crate::gate) fn restarted_by(self, command: Option<&str>) -> Self {
        Self { restart: command.map(Arc::from), ..self }
    }

    pub(in crate::gate) fn able(self, abilities: &Arc<[Ability]>) -> Self {
        Self { abilities: Arc::clone(abilities), ..self }
    }

    /// What was seen so far.
    pub(in crate::gate) fn observed(&self) -> Vec<String> {
        self.seen.told()
    }

    /// Something else that was seen.
    pub(super) fn note(&self, sight: String) {
        self.seen.add(sight);
    }

    pub(super) fn can(&self, ability: Ability) -> bool {
        self.abilities.contains(&ability)
    }

    /// The same case at the other gate.
    pub(super) fn elsewhere(&self) -> Result<Self, String> {
        let target = self.second.clone().ok_or("there is no second gate")?;
        Ok(Self { target, ..self.clone() })
    }

    /// Runs that are counted apart from those of the case itself.
    pub(super) fn apart(&self, name: &str) -> Self {
        Self { case: format!("{}-{name}", self.case), ..self.clone() }
    }

    pub(super) fn is_atp(&self) -> bool {
        self.profile == ProfileName::Atp
    }

    /// A key that nobody has used.
    pub(super) fn key(&self) -> String {
        let unique = uuid::Uuid::new_v4();
        if self.is_atp() { format!("t:check:{unique}") } else { unique.to_string() }
    }

    /// A message that is counted for this case.
    pub(super) fn message(&self, path: &str) -> Message {
        let message = Message::post(path, "{\"item\":1,\"count\":2}").header("x-fx-case", &self.case);
        if self.is_atp() { message.header("x-fx-tenant", "t") } else { message }
    }

    /// An order, which the handler is told something about.
    pub(super) fn order(&self, wish: &str) -> Message {
        self.message("/orders").header("x-fx", wish)
    }

    pub(super) async fn send(&self, message: &Message) -> Result<Answer, String> {
        match self.target.send(message).await {
            Ok(answer) => {
                self.note(answer.summary());
                Ok(answer)
            }
            Err(error) => {
                self.note(format!("no answer: {error}"));
                Err(format!("{} {}: {error}", message.method, message.path))
            }
        }
    }

    /// How often the handler has run for this case.
    pub(super) async fn runs(&self) -> Result<u64, String> {
        let runs = self.count().await?;
        self.note(format!("runs {runs}"));
        Ok(runs)
    }

    /// The same, for whoever waits for it.
    async fn count(&self) -> Result<u64, String> {
        self.target.count(&self.case).await.map_err(|error| error.to_string())
    }

    /// Waits until the handler runs.
    pub(super) async fn until_running(&self) -> Outcome {
        for _ in 0..500 {
            if self.count().await? > 0 {
                return Ok(());
            }
            pause(10).await;
        }
        Err("the handler was never run".into())
    }

    /// Kills the gate, starts it again and waits until it answers.
    pub(super) async fn restart(&self) -> Outcome {
        let command = self.restart.as_deref().ok_or("there is no --restart")?;
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let status = timeout(BACK, shell.status()).await.map_err(|_| "--restart takes too long")?;
        let status = status.map_err(|error| format!("--restart: {error}"))?;
        ensure(status.success(), || format!("--restart: {status}"))?;
        let back = async {
            while self.target.count(&self.case).await.is_err() {
                pause(20).await;
            }
        };
        timeout(BACK, back).await.map_err(|_| "the gate did not come back".to_owned())?;
        self.note("killed and restarted".into());
        Ok(())
    }

    /// Sends a message twice; answers with both answers, of which the second must be a replay.
    pub(super) async fn twice(&self, message: &Message) -> Result<(Answer, Answer), String> {
        let before = self.count().await?;
        let (first, second) = (self.send(message).await?, self.send(message).await?);
        expect("runs", self.runs().await? - before, 1)?;
        self.is_replay(&first, &second)?;
        Ok((first, second))
    }

    pub(super) fn is_replay(&self, first: &Answer, second: &Answer) -> Outcome {
        let status = if self.is_atp() && (200..300).contains(&first.status) { 200 } else { first.status };
        expect("status of the copy", second.status, status)?;
        expect("marker of the copy", second.get("idempotent-replayed"), Some("true"))?;
        expect("marker of the first", first.get("idempotent-replayed"), None)?;
        ensure(first.body == second.body, || "the body of the copy differs".into())
    }

    /// A request that ran, and whose reply nobody has had before.
    pub(super) fn is_run(&self, answer: &Answer) -> Outcome {
        expect("status", answer.status, 201)?;
        expect("marker", answer.get("idempotent-replayed"), None)
    }

    pub(super) fn mismatch(&self) -> u16 {
        if self.is_atp() { 409 } else { 422 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_again_is_counted_and_there_is_an_end_to_it() {
        let seen = Seen::default();
        for sight in ["201", "409", "409", "runs 1"] {
            seen.add(sight.to_owned());
        }
        assert_eq!(seen.told(), ["201", "409 x2", "runs 1"]);
        for number in 0..1_000 {
            seen.add(number.to_string());
        }
        assert_eq!(seen.told().len(), SIGHTS);
    }
}
